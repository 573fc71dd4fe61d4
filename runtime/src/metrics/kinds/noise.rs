//! How far numbers are from what they were, whatever they mean.

use super::{Best, Facts, Made};
use compress_compiler::words::Unit;

/// The worst of all outputs.
pub(in crate::metrics) const SQNR: Facts = Facts {
    unit: Unit::Decibels,
    best: Best::High,
    labelled: false,
    takes: &[],
    made: Made::OfNoise(|compared| compared.sqnr_db()),
    beside: &[],
};

/// Of the output that is measured.
pub(in crate::metrics) const MAX_ERROR: Facts = Facts {
    unit: Unit::Scientific,
    best: Best::Low,
    made: Made::OfNoise(|compared| compared.measured().map(|o| o.max_error)),
    ..SQNR
};
