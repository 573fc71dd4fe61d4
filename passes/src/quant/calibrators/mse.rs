//! The range with the least mean squared error of quantisation.

use super::{super::observe::Histogram, Calibrator};

pub const CALIBRATOR: Calibrator = Calibrator {
    name: "mse",
    means: "the range with the least squared error of quantisation",
    looks_inside: true,
    range,
};

/// Tries smaller and smaller shares of the full range. Inside, the error of rounding is
/// uniform (step^2 / 12); outside, it is the distance to the range.
fn range(seen: &Histogram, steps: f64) -> (f32, f32) {
    let (low, high) = (seen.low.min(0.0), seen.high.max(0.0));
    let used: Vec<(f64, f64)> = (0..seen.bins.len())
        .filter(|b| seen.bins[*b] > 0)
        .map(|b| ((seen.edge(b) + seen.edge(b + 1)) / 2.0, seen.bins[b] as f64))
        .collect();
    let error = |share: f32| {
        let (lo, hi) = (f64::from(low * share), f64::from(high * share));
        let round = ((hi - lo) / steps).powi(2) / 12.0;
        used.iter().map(|(x, n)| n * (round + (x - x.clamp(lo, hi)).powi(2))).sum::<f64>()
    };
    let best = (20..=100).map(|p| p as f32 / 100.0).min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(1.0);
    (low * best, high * best)
}
