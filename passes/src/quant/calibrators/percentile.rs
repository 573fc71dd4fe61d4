//! All but the outermost values.

use super::{super::observe::Histogram, Calibrator};

/// The share of values that are cut off, both ends together.
const CUT: f64 = 1e-4;

pub const CALIBRATOR: Calibrator =
    Calibrator { name: "percentile", means: "all but the outermost 0.01% of values", looks_inside: true, range };

fn range(seen: &Histogram, _: f64) -> (f32, f32) {
    // One-sided values (after Relu) have one tail, which gets the whole cut.
    let sides = if seen.low < 0.0 && seen.high > 0.0 { 2.0 } else { 1.0 };
    let cut = (seen.count as f64 * CUT / sides) as u64;
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
