//! The range under which the distribution changes least (Migacz 2017, "8-bit inference with TensorRT").

use super::{super::observe::Histogram, Calibrator};

pub const CALIBRATOR: Calibrator = Calibrator {
    name: "entropy",
    means: "the range under which the distribution of values changes least",
    looks_inside: true,
    range,
};

/// Tries smaller and smaller shares of the full range: the divergence of the values within it, those outside at its ends,
/// from what is left of them when all values of a step count as spread over it.
fn range(seen: &Histogram, steps: f64) -> (f32, f32) {
    let (low, high) = (seen.low.min(0.0), seen.high.max(0.0));
    let at = |v: f32| (0..seen.bins.len()).rposition(|b| seen.edge(b) <= f64::from(v)).unwrap_or(0);
    let divergence = |share: f32| {
        let (first, last) = (at(low * share), at(high * share));
        let inside = &seen.bins[first..=last];
        if (inside.len() as f64) < steps {
            return f64::INFINITY;
        }
        let mut clipped: Vec<f64> = inside.iter().map(|n| *n as f64).collect();
        clipped[0] += seen.bins[..first].iter().sum::<u64>() as f64;
        clipped[last - first] += seen.bins[last + 1..].iter().sum::<u64>() as f64;
        let total: f64 = clipped.iter().sum();
        let kept: f64 = inside.iter().sum::<u64>() as f64;
        let step = inside.len() as f64 / steps;
        let mut sum = 0.0;
        let mut from = 0;
        for level in 1..=steps as usize {
            let to = ((level as f64 * step).round() as usize).clamp(from, inside.len());
            let used = inside[from..to].iter().filter(|n| **n > 0).count().max(1) as f64;
            let each = inside[from..to].iter().sum::<u64>() as f64 / used / kept.max(1.0);
            for (p, n) in clipped[from..to].iter().zip(&inside[from..to]).filter(|(p, _)| **p > 0.0) {
                // What only clipping brought there is lost.
                let q = if *n > 0 { each } else { f64::MIN_POSITIVE };
                let p = p / total;
                sum += p * (p / q).ln();
            }
            from = to;
        }
        sum
    };
    let best = (30..=100).map(|p| p as f32 / 100.0).min_by(|a, b| divergence(*a).total_cmp(&divergence(*b)));
    let best = best.filter(|share| divergence(*share).is_finite()).unwrap_or(1.0);
    (low * best, high * best)
}
