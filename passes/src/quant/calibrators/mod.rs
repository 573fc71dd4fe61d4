//! How the range of an activation is chosen from what was observed: a file and a row of [`CALIBRATORS`] each.

mod entropy;
mod minmax;
mod mse;
mod percentile;

use super::observe::Histogram;
use compress_compiler::choice_of_rows;

/// The calibrators.
const CALIBRATORS: &[Calibration] = &[
    MINMAX,
    Calibration(&percentile::WIDE),
    PERCENTILE,
    Calibration(&percentile::NARROW),
    Calibration(&mse::CALIBRATOR),
    Calibration(&entropy::CALIBRATOR),
];

/// The smallest and the largest value.
pub(crate) const MINMAX: Calibration = Calibration(&minmax::CALIBRATOR);

/// Those that cut off more and more of the outermost values.
pub(crate) const PERCENTILES: [Calibration; 3] =
    [Calibration(&percentile::WIDE), PERCENTILE, Calibration(&percentile::NARROW)];

/// All but the outermost values.
pub(crate) const PERCENTILE: Calibration = Calibration(&percentile::CALIBRATOR);

/// One of the calibrators.
#[derive(Debug, Clone, Copy)]
pub struct Calibration(&'static Calibrator);

/// A way to choose the range of an activation.
#[derive(Debug)]
struct Calibrator {
    name: &'static str,
    /// What it chooses, in a few words.
    means: &'static str,
    /// Whether it looks at the bins of the histogram, and not at the extremes alone.
    looks_inside: bool,
    /// The range for what was seen, to be divided into so many steps.
    range: fn(&Histogram, f64) -> (f32, f32),
}

impl Calibration {
    /// Whether it looks at the bins of a histogram.
    pub(crate) fn looks_inside(self) -> bool {
        self.0.looks_inside
    }

    /// The range of what was seen, to be divided into so many steps.
    pub fn range(self, seen: &Histogram, steps: f64) -> (f32, f32) {
        (self.0.range)(seen, steps)
    }
}

impl Default for Calibration {
    fn default() -> Self {
        MINMAX
    }
}

choice_of_rows!(Calibration, "calibration", CALIBRATORS);
