//! How far numbers are from what they were, and scores from labels.

use compress_compiler::tensor::Tensor;
use std::ops::AddAssign;

/// The length of rows of scores, one row a sample: `[N, C]`, or with more axes of size 1.
fn rows(t: &Tensor) -> Option<usize> {
    let (_, rest) = t.shape().split_first()?;
    (!rest.is_empty() && rest.iter().filter(|n| **n != 1).count() <= 1).then(|| rest.iter().product())
}

/// The sum over the rows of `outputs`, `[N, C]`, of the cross-entropy of their softmax with `labels`; infinite where a
/// label is not a class. Zero when it is not a matrix of scores.
pub fn cross_entropy(outputs: &Tensor, labels: &[i64]) -> f64 {
    let (Some(c), Some(scores)) = (rows(outputs), outputs.as_f32()) else { return 0.0 };
    let loss = |(row, label): (&[f32], &i64)| {
        let most = row.iter().fold(f32::MIN, |m, v| m.max(*v));
        let sum: f64 = row.iter().map(|v| f64::from(v - most).exp()).sum();
        let of = usize::try_from(*label).ok().and_then(|label| row.get(label));
        of.map_or(f64::INFINITY, |v| sum.ln() - f64::from(v - most))
    };
    scores.chunks_exact(c.max(1)).zip(labels).map(loss).sum()
}

/// The least that a mask adds to what it excludes: -1e4, -65504, -1e9, the lowest number of a float type are usual.
const LEAST_MASK: f64 = 1e4;

/// How far what a mask excludes is from all that is left, at least.
const GAP: f64 = 10.0;

/// From where down numbers stand for minus infinity: where many are about the same huge number, and all others, which are some,
/// are far from it.
pub(super) fn masked_below(x: &[f32]) -> f64 {
    let numbers = || x.iter().map(|v| f64::from(*v)).filter(|v| v.is_finite());
    let least = numbers().fold(0.0, f64::min);
    // Scores make little of it more or less.
    let below = 0.9 * least;
    let left = numbers().filter(|v| *v > below).map(f64::abs).reduce(f64::max);
    match left {
        Some(most) if least <= -LEAST_MASK && most * GAP <= -least => below,
        _ => f64::NEG_INFINITY,
    }
}

/// Signal to quantisation noise, summed up: what a signal holds against what was lost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sqnr {
    signal: f64,
    noise: f64,
    /// Whether something was NaN before.
    unknown: bool,
}

impl Sqnr {
    /// Adds the elements of a value before and after. What is equal, infinities too, adds no noise, and infinities add no signal:
    /// nor do the huge numbers that stand for them in the scores of what a mask excludes.
    pub fn add(&mut self, before: &[f32], after: &[f32]) {
        self.add_above(masked_below(before), before, after);
    }

    /// The same, where what is at most `masked` stands for minus infinity.
    pub(super) fn add_above(&mut self, masked: f64, before: &[f32], after: &[f32]) {
        for (a, b) in before.iter().zip(after) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            if a.is_finite() && a > masked {
                self.signal += a * a;
            }
            self.unknown |= a.is_nan();
            // A huge number excludes as minus infinity does.
            let excludes = |v: f64| v <= -LEAST_MASK;
            if a == b || a.is_nan() || a == f64::NEG_INFINITY && excludes(b) {
                continue;
            }
            // A number that became infinite or NaN is lost altogether.
            let d = a - b;
            self.noise += if d.is_nan() { f64::INFINITY } else { d * d };
        }
    }

    /// The sum of the squares of what was added before.
    pub fn signal(&self) -> f64 {
        self.signal
    }

    /// Whether what was added before is zero throughout.
    pub fn is_silent(&self) -> bool {
        self.signal == 0.0 && !self.unknown
    }

    /// Whether something turned NaN or infinite.
    pub fn is_lost(&self) -> bool {
        self.noise == f64::INFINITY
    }

    /// Whether all that was added is equal, and numbers.
    pub fn is_equal(&self) -> bool {
        self.noise == 0.0 && !self.unknown
    }

    /// The ratio in decibels: infinite when nothing was lost, `None` before anything was added.
    pub fn db(&self) -> Option<f64> {
        match (self.signal > 0.0, self.noise > 0.0) {
            (_, true) => Some(10.0 * (self.signal / self.noise).log10()),
            (true, false) => Some(f64::INFINITY),
            (false, false) => None,
        }
    }
}

impl AddAssign for Sqnr {
    fn add_assign(&mut self, other: Self) {
        self.signal += other.signal;
        self.noise += other.noise;
        self.unknown |= other.unknown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_entropy_by_hand() {
        let t = Tensor::f32(&[2, 2], &[0.0, 0.0, 1000.0, 999.0]);
        let expected = 2f64.ln() + (1.0 + (-1f64).exp()).ln() + 1.0;
        assert!((cross_entropy(&t, &[0, 1]) - expected).abs() < 1e-9);
        assert_eq!(cross_entropy(&t, &[0, 2]), f64::INFINITY);
    }

    #[test]
    fn only_numbers_can_be_lost() {
        let (nan, infinite) = (f32::NAN, f32::NEG_INFINITY);
        let became = [
            (1.0, nan, true),
            (1.0, infinite, true),
            (infinite, 1.0, true),
            (infinite, nan, true),
            (infinite, -1e9, false),
            (nan, 1.0, false),
        ];
        for (before, after, lost) in became {
            let mut sqnr = Sqnr::default();
            sqnr.add(&[1.0, before], &[1.0, after]);
            assert_eq!(sqnr.is_lost(), lost, "{before} became {after}");
        }
    }

    #[test]
    fn masks_are_no_signal() {
        let db = |before: &[f32], after: &[f32]| {
            let mut sqnr = Sqnr::default();
            sqnr.add(before, after);
            sqnr.db().map(|v| v.round())
        };
        for mask in [0.0, -1e4, -65504.0, -1e9, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(db(&[10.0, -10.0, mask, mask + 3.0], &[9.0, -10.0, mask, mask + 3.0]), Some(23.0), "{mask}");
        }
        // Large numbers without a gap between them, and numbers that are all about the same.
        for signal in [[-1e4f32, -3e3], [-1e4, -1e4], [1e4, 1.0], [-5e3, 1.0]] {
            let noisy = signal.map(|v| v + 1.0);
            assert!(db(&signal, &noisy) > Some(60.0), "{signal:?}");
        }
    }
}
