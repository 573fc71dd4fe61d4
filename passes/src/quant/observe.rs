//! Ranges of activations, gathered in one streaming pass at constant memory.
//!
//! Every watched value has one histogram over `[-2^n, 2^n]`. When a value falls outside, `n` grows
//! and neighbouring bins merge, which is exact; so no first pass is needed to find the range and
//! no activation is kept. Nor does it matter in which order values come, or on which threads.

use super::calibrators::{Calibration, MINMAX};
use compress_compiler::{
    error::{Error, Result},
    words::option::EXCLUDE,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bins on either side of zero.
const HALF: usize = 2048;

/// Where histograms begin: what is smaller than `2^LEAST / HALF` may as well be zero.
const LEAST: i32 = -64;

/// Values that are counted at a time; few enough that a bin's count fits 32 bits.
const PART: usize = 1 << 24;

/// The smallest and largest of some values, `None` if one of them is NaN or infinite.
fn extremes(values: &[f32]) -> Option<(f32, f32)> {
    // Each lane is on its own, so the compiler can keep several in a register.
    const LANES: usize = 16;
    let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
    // Stays zero as long as all values are finite.
    let mut odd = [0.0; LANES];
    let mut look = |values: &[f32]| {
        for (i, v) in values.iter().enumerate() {
            low[i] = if *v < low[i] { *v } else { low[i] };
            high[i] = if *v > high[i] { *v } else { high[i] };
            odd[i] += v * 0.0;
        }
    };
    let (lanes, rest) = values.as_chunks::<LANES>();
    lanes.iter().for_each(|v| look(v));
    look(rest);
    let least = |a: [f32; LANES]| a.into_iter().fold(f32::INFINITY, f32::min);
    odd.iter().all(|o| *o == 0.0).then(|| (least(low), -least(high.map(|v| -v))))
}

/// How many of `values` fall into each bin of a histogram over `[-2^power, 2^power]`, between
/// which they are.
fn counted(values: &[f32], power: i32) -> Vec<u32> {
    // Most values are alike, zeros after a Relu above all: neighbours counted in one place would
    // wait for each other.
    const LANES: usize = 4;
    const BATCH: usize = 64;
    // Floats from 2 * HALF up to twice that have one exponent: the first bits of their mantissa
    // count in steps of 1.
    const OFFSET: f32 = (3 * HALF) as f32;
    const DROPPED: u32 = f32::MANTISSA_DIGITS - 1 - (2 * HALF).ilog2();
    // `2^-128` itself is not an f32 that `powi` finds.
    let scale = (HALF as f64 * 2f64.powi(-power)) as f32;
    let mut lanes = [[0u32; LANES]; 2 * HALF];
    let mut count = |values: &[f32]| {
        let mut bins = [0u32; BATCH];
        for (bin, v) in bins.iter_mut().zip(values) {
            let scaled = v * scale;
            let at = scaled + OFFSET;
            // Rounded up, to the next bin perhaps, into which a narrower histogram would not have put it; so would it be
            // what became zero from below.
            let up = (at - OFFSET > scaled) | ((scaled == 0.0) & (*v < 0.0));
            *bin = (at.to_bits() - u32::from(up)) >> DROPPED;
        }
        for (i, bin) in bins[..values.len()].iter().enumerate() {
            lanes[*bin as usize % (2 * HALF)][i % LANES] += 1;
        }
    };
    let (batches, rest) = values.as_chunks::<BATCH>();
    batches.iter().for_each(|v| count(v));
    count(rest);
    lanes.iter().map(|l| l.iter().sum()).collect()
}

/// What was seen of one value, by any number of threads.
pub struct Observer {
    seen: Mutex<Histogram>,
}

/// What was seen of one value: its extremes, and how often it was where.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// How many values fell into each of the bins, which cover `[-2^power, 2^power]`. Empty where nobody asks for them.
    pub bins: Vec<u64>,
    power: i32,
    /// The least value.
    pub low: f32,
    /// The largest value.
    pub high: f32,
    /// How many values were seen.
    pub count: u64,
}

impl Observer {
    /// Observes extremes and, if it `looks_inside`, how often values are where.
    pub fn new(looks_inside: bool) -> Self {
        let bins = if looks_inside { 2 * HALF } else { 0 };
        let (low, high) = (f32::INFINITY, f32::NEG_INFINITY);
        Self { seen: Mutex::new(Histogram { bins: vec![0; bins], power: LEAST, low, high, count: 0 }) }
    }

    /// What has seen these extremes, and nothing of what lies between.
    pub fn between(low: f32, high: f32) -> Self {
        let seen = Histogram { bins: vec![], power: LEAST, low, high, count: 2 };
        Self { seen: Mutex::new(seen) }
    }

    /// Takes in values.
    ///
    /// # Errors
    /// Data when one of them is NaN or infinite.
    pub fn add(&self, values: &[f32]) -> Result<()> {
        let (low, high) = extremes(values).ok_or_else(|| {
            Error::data("an activation is NaN or infinite on the calibration data")
                .help(format!("check the data's preprocessing, or exclude the layer with {EXCLUDE}"))
        })?;
        let (power, looks_inside) = {
            let mut seen = self.seen();
            seen.low = seen.low.min(low);
            seen.high = seen.high.max(high);
            seen.count += values.len() as u64;
            seen.grow(power_above(low.abs().max(high.abs())));
            (seen.power, !seen.bins.is_empty())
        };
        if looks_inside {
            for part in values.chunks(PART) {
                // Outside of the lock: other threads count too.
                let counts = counted(part, power);
                self.seen().merge(&counts, power);
            }
        }
        Ok(())
    }

    fn seen(&self) -> MutexGuard<'_, Histogram> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was seen so far.
    pub fn histogram(&self) -> Histogram {
        self.seen().clone()
    }

    /// The range to quantise in so many steps, as `how` chooses it, `None` when nothing was seen. It always includes zero, which
    /// padding and Relu need to be exact.
    pub fn range(&self, how: Calibration, steps: f64) -> Option<(f32, f32)> {
        let seen = self.seen();
        if seen.count == 0 {
            return None;
        }
        // Extremes are all that is known of values in no bin.
        let how = if seen.bins.is_empty() { MINMAX } else { how };
        let (low, high) = how.range(&seen, steps);
        Some((low.min(0.0), high.max(0.0)))
    }
}

/// The least power of two above a number that is not negative; nothing in particular if that is
/// infinite, as the reach of no values is.
fn power_above(reach: f32) -> i32 {
    match reach.is_finite() {
        true => (reach.to_bits() >> (f32::MANTISSA_DIGITS - 1)) as i32 + f32::MIN_EXP - 1,
        false => LEAST,
    }
}

/// Where a bin goes when the range of the histogram grows by `2^doublings`.
fn moved(bin: usize, doublings: i32) -> usize {
    let at = (bin as isize - HALF as isize) >> doublings.clamp(0, HALF.ilog2() as i32);
    (at + HALF as isize) as usize
}

impl Histogram {
    /// Makes the histogram cover `[-2^power, 2^power]`.
    fn grow(&mut self, power: i32) {
        if power <= self.power {
            return;
        }
        let bins = std::mem::take(&mut self.bins);
        self.bins = vec![0; bins.len()];
        let doublings = power - self.power;
        bins.iter().enumerate().for_each(|(i, n)| self.bins[moved(i, doublings)] += n);
        self.power = power;
    }

    /// Adds what was counted in a histogram over `[-2^power, 2^power]`, which is no wider.
    fn merge(&mut self, counts: &[u32], power: i32) {
        let doublings = self.power - power;
        counts.iter().enumerate().for_each(|(i, n)| self.bins[moved(i, doublings)] += u64::from(*n));
    }

    /// Where a bin begins.
    pub fn edge(&self, bin: usize) -> f64 {
        (bin as f64 / HALF as f64 - 1.0) * 2f64.powi(self.power)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::{choice::Choice, error::Kind};

    fn named(calibrator: &str) -> Calibration {
        calibrator.parse().unwrap()
    }

    fn observer(all: &[&[f32]]) -> Observer {
        let o = Observer::new(true);
        all.iter().for_each(|values| o.add(values).unwrap());
        o
    }

    #[test]
    fn growing_keeps_every_count() {
        let o = observer(&[&[0.0; 3], &[0.1, -0.1], &[100.0, -3.0], &[]]);
        let seen = o.seen();
        assert_eq!((seen.bins.iter().sum::<u64>(), seen.power), (7, 7));
        assert_eq!((seen.low, seen.high), (-3.0, 100.0));
    }

    #[test]
    fn every_value_is_in_its_bin() {
        // More than a batch, and both ends of the histogram.
        let mut values: Vec<f32> = (-4000..4000).map(|i| i as f32 / 2000.0).collect();
        values.extend([2f32.next_down(), -2f32.next_down()]);
        let counts = counted(&values, 1);
        let mut want = vec![0; 2 * HALF];
        for v in values {
            want[((f64::from(v) / 2.0 + 1.0) * HALF as f64) as usize] += 1;
        }
        assert_eq!(counts, want);
    }

    #[test]
    fn all_finite_values_have_a_range() {
        let far = [f32::MAX, -f32::MAX, f32::MIN_POSITIVE, 1e-45, 0.0, -0.0];
        for how in Calibration::ALL.iter().copied() {
            assert_eq!(observer(&[&far]).range(how, 255.0), Some((-f32::MAX, f32::MAX)), "{how:?}");
            assert_eq!(observer(&[&[0.0; 100]]).range(how, 255.0), Some((0.0, 0.0)), "{how:?}");
            let near = observer(&[&[1e-45; 100]]).range(how, 255.0);
            assert!(near.is_some_and(|(low, high)| low == 0.0 && high <= 1e-45), "{how:?}: {near:?}");
            assert_eq!(observer(&[&[]]).range(how, 255.0), None, "{how:?}");
        }
    }

    #[test]
    fn neither_order_nor_threads_matter() {
        let parts: Vec<Vec<f32>> = (0..40)
            .map(|i| (0..500 + i).map(|j| ((i * 7919 + j * 104_729) % 1009 - 300) as f32 * 1.3f32.powi(i)).collect())
            .collect();
        for how in Calibration::ALL.iter().copied() {
            let want = Observer::new(true);
            parts.iter().for_each(|p| want.add(p).unwrap());
            let (back, together) = (Observer::new(true), Observer::new(true));
            parts.iter().rev().for_each(|p| back.add(p).unwrap());
            std::thread::scope(|s| {
                for half in parts.chunks(10) {
                    s.spawn(|| half.iter().for_each(|p| together.add(p).unwrap()));
                }
            });
            assert_eq!(back.range(how, 255.0), want.range(how, 255.0), "{how:?}");
            assert_eq!(together.range(how, 255.0), want.range(how, 255.0), "{how:?}");
            assert_eq!(together.seen().bins, want.seen().bins, "{how:?}");
        }
    }

    #[test]
    fn what_is_counted_by_a_narrower_histogram_is_merged() {
        let o = observer(&[&[3.0]]);
        o.seen().merge(&counted(&[0.5, -0.5], 0), 0);
        let bins: Vec<usize> = (0..2 * HALF).filter(|b| o.seen().bins[*b] > 0).collect();
        assert_eq!(bins, [HALF - HALF / 8, HALF + HALF / 8, HALF + HALF * 3 / 4]);
    }

    #[test]
    fn a_value_is_in_the_same_bin_whatever_the_width_of_the_histogram() {
        let below = |v: f32| f32::from_bits(v.to_bits() - 1);
        let values = [0.0, -0.0, 1e-6, -1e-6, -1e-40, below(0.25), below(-0.25), 0.25, -0.25, below(0.5), 0.3];
        for v in values {
            let (narrow, wide) = (observer(&[&[v], &[3000.0]]), observer(&[&[3000.0]]));
            wide.seen().merge(&counted(&[v], 12), 12);
            assert_eq!(narrow.seen().power, 12);
            assert_eq!(narrow.seen().bins, wide.seen().bins, "{v}");
        }
    }

    #[test]
    fn percentile_cuts_the_outlier_only() {
        let values: Vec<f32> = (0..100_000).map(|i| i as f32 / 100_000.0).collect();
        let (low, high) = observer(&[&values, &[50.0]]).range(named("percentile"), 255.0).unwrap();
        assert_eq!(low, 0.0);
        // The bins are 64 / 2048 wide.
        assert!((0.95..1.06).contains(&high), "{high}");
    }

    #[test]
    fn percentiles_cut_more_and_more() {
        let values: Vec<f32> = (0..100_000).map(|i| (i as f32 / 100_000.0).powi(9)).collect();
        let o = observer(&[&values]);
        let high = |name: &str| o.range(named(name), 255.0).unwrap().1;
        let cut = ["minmax", "percentile-99.999", "percentile", "percentile-99.9"].map(high);
        assert!(cut.is_sorted_by(|a, b| a >= b) && cut[3] < cut[0], "{cut:?}");
        // A thousandth of the values is above 0.999^9.
        assert!((cut[3] - 0.999f32.powi(9)).abs() < 2e-3, "{cut:?}");
    }

    #[test]
    fn least_error_trades_clipping_for_resolution() {
        let values: Vec<f32> = (0..1_000_000).map(|i| (i % 1000) as f32 / 1000.0).collect();
        let (_, high) = observer(&[&values, &[2.0]]).range(named("mse"), 255.0).unwrap();
        assert!((0.9..1.3).contains(&high), "{high}");
    }

    #[test]
    fn least_divergence_cuts_a_long_tail() {
        let values: Vec<f32> = (0..1_000_000).map(|i| (i % 1000) as f32 / 1000.0).collect();
        let (low, high) = observer(&[&values, &[2.0]]).range(named("entropy"), 255.0).unwrap();
        assert!(low == 0.0 && (0.9..1.3).contains(&high), "{low} {high}");
    }

    #[test]
    fn nan_is_refused() {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 15, 16, 99] {
                let mut values = [1.0; 100];
                values[at] = odd;
                let e = Observer::new(false).add(&values).unwrap_err();
                assert_eq!(e.kind(), Kind::Data);
            }
        }
    }
}
