//! Finds the activations that lose most by their ranges, for the report.

use super::{
    observe::Histogram,
    params::Affine,
    ptq::{Int8, Variant},
    values::heeded,
};
use compress_compiler::{
    clipping::{Bins, ClippedValue, Clipping},
    error::Result,
    judge::decibels,
};

/// Values that are named.
const NAMED: usize = 10;

/// Bins of a histogram that is shown.
const BINS: usize = 64;

/// What the ranges that `variant` is quantised by cut off.
///
/// # Errors
/// Data where calibration reached no value of an activation.
pub(super) fn of(int8: &Int8, variant: &Variant) -> Result<Clipping> {
    let mut plan = int8.values(variant)?;
    let params = int8.parameters(variant, &mut plan)?;
    let (least, most) = int8.scheme.activations.codes().range();
    let g = &variant.graph;
    let mut found = Clipping { values: 0, clipped: 0, worst: vec![] };
    for port in &plan.wanted {
        let Some(seen) = variant.seen.histogram(*port) else { continue };
        found.values += 1;
        let Affine { scale, zero } = params[port];
        let real = |code: i64| (code - zero) as f32 * scale;
        let range = [real(least), real(most)];
        let (share, noise) = lost(&seen, range, scale, heeded(g, *port, 0));
        if noise > 0.0 {
            found.clipped += 1;
            let name = g.value(*port).name.clone();
            let (low, high, sqnr_db) = (seen.low, seen.high, decibels(noise));
            found.worst.push(ClippedValue { name, low, high, range, share, sqnr_db, histogram: shown(&seen) });
        }
    }
    found.worst.sort_by(|a, b| a.sqnr_db.total_cmp(&b.sqnr_db));
    found.worst.truncate(NAMED);
    Ok(found)
}

/// The share of elements that no code of this range is near, and the noise that this makes in parts of the signal, where
/// readers tell elements apart between two limits only. Elements count as the middle of their bin.
fn lost(seen: &Histogram, [low, high]: [f32; 2], scale: f32, heeded: (f32, f32)) -> (f64, f64) {
    let half = f64::from(scale) / 2.0;
    let (low, high) = (f64::from(low), f64::from(high));
    let heeds = |x: f64| x.clamp(f64::from(heeded.0.min(0.0)), f64::from(heeded.1.max(0.0)));
    let (mut outside, mut noise, mut signal) = (0, 0.0, 0.0);
    for (bin, n) in seen.bins.iter().enumerate().filter(|(_, n)| **n > 0) {
        let middle = f64::midpoint(seen.edge(bin), seen.edge(bin + 1));
        let x = middle.clamp(f64::from(seen.low), f64::from(seen.high));
        signal += *n as f64 * x * x;
        if x < low - half || x > high + half {
            outside += n;
            noise += *n as f64 * (heeds(x) - heeds(x.clamp(low, high))).powi(2);
        }
    }
    let share = outside as f64 / seen.count.max(1) as f64;
    (share, if noise > 0.0 { noise / signal.max(f64::MIN_POSITIVE) } else { 0.0 })
}

/// The histogram in few bins, each of which is a number of the finer ones: so counts are exact.
fn shown(seen: &Histogram) -> Bins {
    let used = |n: &u64| *n > 0;
    let first = seen.bins.iter().position(used).unwrap_or(0);
    let last = seen.bins.iter().rposition(used).unwrap_or(0);
    let merged = (last + 1 - first).div_ceil(BINS);
    let counts = seen.bins[first..=last].chunks(merged).map(|part| part.iter().sum()).collect();
    Bins { from: seen.edge(first), width: seen.edge(first + merged) - seen.edge(first), counts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::observe::Observer;

    const ALL: (f32, f32) = (f32::MIN, f32::MAX);

    fn seen(values: &[f32]) -> Histogram {
        let observer = Observer::new(true);
        observer.add(values).unwrap();
        observer.histogram()
    }

    #[test]
    fn what_a_range_covers_costs_nothing() {
        let seen = seen(&[-1.0, 0.0, 3.0]);
        assert_eq!(lost(&seen, [-1.0, 3.0], 4.0 / 255.0, ALL), (0.0, 0.0));
        // Half a step beyond the last code is as near to it as others are to theirs.
        assert_eq!(lost(&seen, [-1.0, 2.5], 1.1, ALL), (0.0, 0.0));
    }

    #[test]
    fn what_is_cut_off_is_noise() {
        let seen = seen(&[1.0, 1.0, 1.0, 4.0]);
        let (share, noise) = lost(&seen, [0.0, 2.0], 2.0 / 255.0, ALL);
        assert_eq!(share, 0.25);
        // (4 - 2)^2 / (3 * 1 + 16), as exactly as bins are narrow.
        assert!((noise - 4.0 / 19.0).abs() < 0.01, "{noise}");
    }

    #[test]
    fn nobody_minds_what_no_reader_tells_apart() {
        let seen = seen(&[1.0, 1.0, 1.0, 4.0]);
        assert_eq!(lost(&seen, [0.0, 2.0], 2.0 / 255.0, (-2.0, 2.0)), (0.25, 0.0));
    }

    #[test]
    fn few_bins_have_every_count() {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 / 250.0 - 1.0).collect();
        let bins = shown(&seen(&values));
        assert!(bins.counts.len() <= BINS && bins.counts.iter().sum::<u64>() == 1000, "{bins:?}");
        let end = bins.from + bins.width * bins.counts.len() as f64;
        assert!(bins.from <= -1.0 && end > 2.99, "{bins:?}");
    }

    #[test]
    fn a_single_value_is_one_bin() {
        assert_eq!(shown(&seen(&[0.5; 7])).counts, [7]);
    }
}
