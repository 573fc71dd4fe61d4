//! Ranges of activations, gathered in one streaming pass at constant memory.
//!
//! Every watched value has one histogram over `[-r, r]`. When a value falls outside, `r`
//! doubles and neighbouring bins merge two by two, which is exact; so no first pass is needed
//! to find the range and no activation is kept.

use compress_compiler::error::{Error, Result};
use rayon::prelude::*;
use std::str::FromStr;

/// How a range is chosen from what was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Calibration {
    /// The smallest and largest value.
    #[default]
    MinMax,
    /// All but the outermost 0.01% of values.
    Percentile,
    /// The range with the least mean squared error of quantisation.
    Mse,
}

impl FromStr for Calibration {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        match s {
            "minmax" => Ok(Self::MinMax),
            "percentile" => Ok(Self::Percentile),
            "mse" => Ok(Self::Mse),
            other => Err(Error::usage(format!("calibration `{other}`")).help("known: minmax, percentile, mse")),
        }
    }
}

/// Bins on either side of zero.
const HALF: usize = 2048;

/// The share of values that percentile calibration cuts off, both ends together.
const CUT: f64 = 1e-4;

/// Values that one thread counts at a time; few enough that a bin's count fits 32 bits.
const PART: usize = 1 << 17;

/// How many of `values` fall into each bin.
fn counted(values: &[f32], scale: f32) -> Vec<u32> {
    // Most values are alike, zeros after a Relu above all: neighbours counted in one place would
    // wait for each other.
    const LANES: usize = 4;
    const BATCH: usize = 64;
    let mut lanes = vec![[0u32; LANES]; 2 * HALF];
    for batch in values.chunks(BATCH) {
        let mut bins = [0u32; BATCH];
        for (bin, v) in bins.iter_mut().zip(batch) {
            *bin = (v * scale + HALF as f32).min((2 * HALF - 1) as f32) as i32 as u32;
        }
        for (i, bin) in bins[..batch.len()].iter().enumerate() {
            lanes[*bin as usize][i % LANES] += 1;
        }
    }
    lanes.iter().map(|l| l.iter().sum()).collect()
}

/// What was seen of one value.
#[derive(Clone)]
pub struct Observer {
    bins: Vec<u64>,
    /// The bins cover `[-radius, radius]`; 0 before the first nonzero value.
    radius: f32,
    low: f32,
    high: f32,
    count: u64,
}

impl Default for Observer {
    fn default() -> Self {
        Self { bins: vec![0; 2 * HALF], radius: 0.0, low: f32::INFINITY, high: f32::NEG_INFINITY, count: 0 }
    }
}

impl Observer {
    /// Takes in values.
    ///
    /// # Errors
    /// Data when one of them is NaN or infinite.
    pub fn add(&mut self, values: &[f32]) -> Result<()> {
        let extremes = |part: &[f32]| {
            part.iter().fold((f32::INFINITY, f32::NEG_INFINITY, true), |(low, high, finite), v| {
                (low.min(*v), high.max(*v), finite & v.is_finite())
            })
        };
        let (low, high, finite) = values
            .par_chunks(PART)
            .map(extremes)
            .reduce(|| (f32::INFINITY, f32::NEG_INFINITY, true), |a, b| (a.0.min(b.0), a.1.max(b.1), a.2 & b.2));
        if !finite {
            return Err(Error::data("an activation is NaN or infinite on the calibration data")
                .help("check the data's preprocessing, or exclude the layer with --exclude"));
        }
        self.low = self.low.min(low);
        self.high = self.high.max(high);
        self.count += values.len() as u64;
        self.grow(low.abs().max(high.abs()));
        if self.radius == 0.0 {
            self.bins[HALF] += values.len() as u64;
            return Ok(());
        }
        let scale = HALF as f32 / self.radius;
        let counts = values.par_chunks(PART).map(|part| counted(part, scale)).reduce_with(|mut a, b| {
            a.iter_mut().zip(&b).for_each(|(a, b)| *a += b);
            a
        });
        self.bins.iter_mut().zip(counts.iter().flatten()).for_each(|(bin, n)| *bin += u64::from(*n));
        Ok(())
    }

    /// Doubles the radius until it covers `reach`.
    fn grow(&mut self, reach: f32) {
        // An empty batch has an infinite reach.
        if reach == 0.0 || !reach.is_finite() {
            return;
        }
        if self.radius == 0.0 {
            self.radius = reach;
            return;
        }
        while self.radius < reach {
            let mut merged = vec![0; 2 * HALF];
            for (i, n) in self.bins.iter().enumerate() {
                merged[HALF / 2 + i / 2] += n;
            }
            self.bins = merged;
            self.radius *= 2.0;
        }
    }

    /// The range to quantise, `None` when nothing was seen. It always includes zero, which
    /// padding and Relu need to be exact.
    pub fn range(&self, how: Calibration) -> Option<(f32, f32)> {
        if self.count == 0 {
            return None;
        }
        let (low, high) = match how {
            Calibration::MinMax => (self.low, self.high),
            Calibration::Percentile => self.percentile(),
            Calibration::Mse => self.least_error(),
        };
        Some((low.min(0.0), high.max(0.0)))
    }

    fn edge(&self, bin: usize) -> f32 {
        (bin as f32 / HALF as f32 - 1.0) * self.radius
    }

    fn percentile(&self) -> (f32, f32) {
        // One-sided values (after Relu) have one tail, which gets the whole cut.
        let sides = if self.low < 0.0 && self.high > 0.0 { 2.0 } else { 1.0 };
        let cut = (self.count as f64 * CUT / sides) as u64;
        let reach = |mut bins: Box<dyn Iterator<Item = usize>>| {
            let mut gone = 0;
            bins.find(|b| {
                gone += self.bins[*b];
                gone > cut
            })
        };
        let low = reach(Box::new(0..2 * HALF)).map_or(self.low, |b| self.edge(b));
        let high = reach(Box::new((0..2 * HALF).rev())).map_or(self.high, |b| self.edge(b + 1));
        (low.max(self.low), high.min(self.high))
    }

    /// Tries smaller and smaller shares of the full range. Inside, the error of rounding is
    /// uniform (step^2 / 12); outside, it is the distance to the range.
    fn least_error(&self) -> (f32, f32) {
        let (low, high) = (self.low.min(0.0), self.high.max(0.0));
        let used: Vec<(f64, f64)> = (0..2 * HALF)
            .filter(|b| self.bins[*b] > 0)
            .map(|b| (f64::from(self.edge(b) + self.edge(b + 1)) / 2.0, self.bins[b] as f64))
            .collect();
        let error = |share: f32| {
            let (lo, hi) = (f64::from(low * share), f64::from(high * share));
            let round = ((hi - lo) / 255.0).powi(2) / 12.0;
            used.iter().map(|(x, n)| n * (round + (x - x.clamp(lo, hi)).powi(2))).sum::<f64>()
        };
        let best = (20..=100).map(|p| p as f32 / 100.0).min_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap_or(1.0);
        (low * best, high * best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growing_keeps_every_count() {
        let mut o = Observer::default();
        o.add(&[0.0; 3]).unwrap();
        o.add(&[0.1, -0.1]).unwrap();
        o.add(&[100.0, -3.0]).unwrap();
        assert_eq!(o.bins.iter().sum::<u64>(), 7);
        assert_eq!(o.range(Calibration::MinMax), Some((-3.0, 100.0)));
    }

    #[test]
    fn percentile_cuts_the_outlier_only() {
        let mut o = Observer::default();
        let values: Vec<f32> = (0..100_000).map(|i| i as f32 / 100_000.0).collect();
        o.add(&values).unwrap();
        o.add(&[50.0]).unwrap();
        let (low, high) = o.range(Calibration::Percentile).unwrap();
        assert_eq!(low, 0.0);
        // The bins are 50 / 2048 wide or less.
        assert!((0.95..1.06).contains(&high), "{high}");
    }

    #[test]
    fn least_error_trades_clipping_for_resolution() {
        let mut o = Observer::default();
        let values: Vec<f32> = (0..1_000_000).map(|i| (i % 1000) as f32 / 1000.0).collect();
        o.add(&values).unwrap();
        o.add(&[2.0]).unwrap();
        let (_, high) = o.range(Calibration::Mse).unwrap();
        assert!((0.9..1.3).contains(&high), "{high}");
    }

    #[test]
    fn nan_is_refused() {
        assert_eq!(Observer::default().add(&[f32::NAN]).unwrap_err().exit_code(), 7);
    }
}
