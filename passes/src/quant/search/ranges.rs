//! How ranges are chosen, for all values alike.

use super::{Best, Proposal, Search};
use crate::quant::calibrators::Calibration;
use compress_compiler::{choice::Choice, error::Result};

/// Every calibrator but the scheme's own.
pub(super) fn of_all(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let others = Calibration::ALL.iter().filter(|c| **c != search.int8.scheme.calibration);
    let with = |how: &Calibration| {
        let mut variant = best.variant.clone();
        variant.choices.calibration = Some(*how);
        Proposal::of(format!("{how} for all ranges"), variant)
    };
    Ok(others.map(with).collect())
}
