//! A score that a program of the user's own prints, which knows what the outputs are for.

use super::{Best, Facts, Made};
use compress_compiler::words::Unit;

pub(in crate::metrics) const SCORE: Facts =
    Facts { unit: Unit::Number, best: Best::High, labelled: false, takes: &[], made: Made::Printed, beside: &[] };
