//! The smallest and the largest value.

use super::Calibrator;

pub const CALIBRATOR: Calibrator = Calibrator {
    name: "minmax",
    means: "the smallest and the largest value",
    looks_inside: false,
    range: |seen, _| (seen.low, seen.high),
};
