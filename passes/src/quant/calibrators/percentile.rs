//! All but the outermost values.

use super::{super::observe::Histogram, Calibrator};

pub const CALIBRATOR: Calibrator = Calibrator {
    name: "percentile",
    means: "all but the outermost 0.01% of values",
    looks_inside: true,
    range: |seen, _| range(seen, 1e-4),
};

/// One that cuts off more.
pub const NARROW: Calibrator = Calibrator {
    name: "percentile-99.9",
    means: "all but the outermost 0.1% of values",
    looks_inside: true,
    range: |seen, _| range(seen, 1e-3),
};

/// One that cuts off less.
pub const WIDE: Calibrator = Calibrator {
    name: "percentile-99.999",
    means: "all but the outermost 0.001% of values",
    looks_inside: true,
    range: |seen, _| range(seen, 1e-5),
};

/// `share` of the values are cut off, both ends together.
fn range(seen: &Histogram, share: f64) -> (f32, f32) {
    // One-sided values (after Relu) have one tail, which gets the whole cut.
    let sides = if seen.low < 0.0 && seen.high > 0.0 { 2.0 } else { 1.0 };
    let cut = (seen.count as f64 * share / sides) as u64;
    let reach = |mut bins: Box<dyn Iterator<Item = usize>>| {
        let mut gone = 0;
        bins.find(|b| {
            gone += seen.bins[*b];
            gone > cut
        })
    };
    let low = reach(Box::new(0..seen.bins.len())).map_or(seen.low, |b| seen.edge(b) as f32);
    let high = reach(Box::new((0..seen.bins.len()).rev())).map_or(seen.high, |b| seen.edge(b + 1) as f32);
    (low.max(seen.low), high.min(seen.high))
}
