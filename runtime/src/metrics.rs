//! How good a model is, and how close to another, summed up batch by batch.

use std::borrow::Cow;

use compress_compiler::{
    error::{Error, Kind, Result},
    tensor::Tensor,
};

/// The length of rows of scores, one row a sample: `[N, C]`, or with more axes of size 1.
fn rows(t: &Tensor) -> Option<usize> {
    let (_, rest) = t.shape().split_first()?;
    (!rest.is_empty() && rest.iter().filter(|n| **n != 1).count() <= 1).then(|| rest.iter().product())
}

/// How many rows of `outputs`, `[N, C]`, have a largest score: those with any number.
fn classified(outputs: &Tensor) -> usize {
    let (Some(c), Some(scores)) = (rows(outputs), outputs.as_f32()) else { return 0 };
    scores.chunks_exact(c.max(1)).filter(|row| best(row).is_some()).count()
}

/// The place of the largest score; NaN never is, and a row of nothing else has none.
fn best(scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, v) in scores.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
        if best.is_none_or(|(_, b)| *v > b) {
            best = Some((i, *v));
        }
    }
    best.map(|(i, _)| i)
}

/// How many rows of `outputs`, `[N, C]`, have their largest score where `labels` says.
/// Zero when it is no matrix of scores.
pub fn top1(outputs: &Tensor, labels: &[i64]) -> usize {
    let (Some(c), Some(scores)) = (rows(outputs), outputs.as_f32()) else { return 0 };
    let hit = |(row, label): (&[f32], &i64)| best(row).is_some_and(|b| b as i64 == *label);
    scores.chunks_exact(c.max(1)).zip(labels).filter(|p| hit(*p)).count()
}

/// The sum over the rows of `outputs`, `[N, C]`, of the cross-entropy of their softmax with `labels`; infinite where a
/// label is no class. Zero when it is no matrix of scores.
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

/// How many rows of two outputs `[N, C]` have their largest score at the same place. Zero
/// when they are no matrices of scores, or of different shapes.
pub fn agreement(before: &Tensor, after: &Tensor) -> usize {
    let (Some(c), Some(a), Some(b)) = (rows(before), before.as_f32(), after.as_f32()) else { return 0 };
    if before.shape() != after.shape() {
        return 0;
    }
    let pairs = a.chunks_exact(c.max(1)).zip(b.chunks_exact(c.max(1)));
    pairs.filter(|(p, q)| best(p).is_some() && best(p) == best(q)).count()
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
    /// Adds elements before and after. What is equal, infinities too, adds no noise.
    pub fn add(&mut self, before: &[f32], after: &[f32]) {
        for (a, b) in before.iter().zip(after) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            if a.is_finite() {
                self.signal += a * a;
            }
            self.unknown |= a.is_nan();
            let same = a == b || (a.is_nan() && b.is_nan());
            if !same {
                // A number that became infinite or NaN is lost altogether.
                let d = a - b;
                self.noise += if d.is_nan() { f64::INFINITY } else { d * d };
            }
        }
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

/// Compares the outputs of a model before and after, batch by batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Comparison {
    blame: Kind,
    samples: usize,
    labelled: usize,
    correct_before: usize,
    correct_after: usize,
    scored: usize,
    agreed: usize,
    sqnr: Sqnr,
}

impl Comparison {
    /// A comparison that finds nothing yet. Outputs that can't be compared are an error of the kind `blame`: the
    /// data's where somebody else made the second model, a bug where nothing meant to change them.
    pub fn blaming(blame: Kind) -> Self {
        Self {
            blame,
            samples: 0,
            labelled: 0,
            correct_before: 0,
            correct_after: 0,
            scored: 0,
            agreed: 0,
            sqnr: Sqnr::default(),
        }
    }

    /// Adds one batch of `samples`: all outputs before, the same outputs after, and the labels
    /// if known. The first output with a score for each class decides on classes.
    ///
    /// # Errors
    /// Of the kind to blame when number or shapes of the outputs differ, or when the outputs after have NaN or
    /// infinite values where those before have none; data when a label is no class.
    pub fn add(&mut self, before: &[Tensor], after: &[Tensor], samples: usize, labels: Option<&[i64]>) -> Result<()> {
        if before.len() != after.len() || before.iter().zip(after).any(|(a, b)| a.shape() != b.shape()) {
            return Err(Error::new(self.blame, "the two models have outputs of different number or shape"));
        }
        self.samples += samples;
        for (a, b) in before.iter().zip(after) {
            self.sqnr.add(&numbers(a), &numbers(b));
        }
        if self.sqnr.is_lost() {
            return Err(Error::new(
                self.blame,
                "the new model's outputs have NaN or infinite values where the original's have none",
            ));
        }
        let scores = |t: &Tensor| t.dtype().is_float() && t.shape().first() == Some(&samples) && rows(t) > Some(1);
        let Some(i) = before.iter().position(scores) else { return Ok(()) };
        self.scored += classified(&before[i]);
        self.agreed += agreement(&before[i], &after[i]);
        if let Some(l) = labels {
            let classes = before[i].shape()[1];
            if let Some(bad) = l.iter().find(|l| usize::try_from(**l).map_or(true, |l| l >= classes)) {
                return Err(Error::data(format!("label {bad}, where the model tells {classes} classes apart, from 0")));
            }
            if l.len() != samples {
                return Err(Error::data(format!("{} labels for {samples} samples", l.len())));
            }
            self.labelled += samples;
            self.correct_before += top1(&before[i], l);
            self.correct_after += top1(&after[i], l);
        }
        Ok(())
    }

    /// How many samples were compared.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The share of labelled samples that the model had right before.
    pub fn top1_before(&self) -> Option<f64> {
        share(self.correct_before, self.labelled)
    }

    /// The share of labelled samples that the model has right after.
    pub fn top1_after(&self) -> Option<f64> {
        share(self.correct_after, self.labelled)
    }

    /// The share of samples to which both give the same class, of those to which the first gives any.
    pub fn agreement(&self) -> Option<f64> {
        share(self.agreed, self.scored)
    }

    /// See [`Sqnr::is_equal`].
    pub fn is_equal(&self) -> bool {
        self.samples > 0 && self.sqnr.is_equal()
    }

    /// See [`Sqnr::db`].
    pub fn sqnr_db(&self) -> Option<f64> {
        self.sqnr.db()
    }
}

/// The elements as numbers, whatever their type.
fn numbers(t: &Tensor) -> Cow<'_, [f32]> {
    t.as_f32().unwrap_or_else(|| t.as_i64().unwrap_or_default().into_iter().map(|v| v as f32).collect())
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
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
    fn counts_hits() {
        let t = Tensor::f32(&[3, 2], &[1.0, 2.0, f32::NAN, 0.0, f32::NAN, f32::NAN]);
        assert_eq!(top1(&t, &[1, 1, 0]), 2);
        assert_eq!(agreement(&t, &t), 2);
        assert_eq!(top1(&Tensor::f32(&[1, 2, 1, 1], &[0.0, 1.0]), &[1]), 1);
        assert_eq!(top1(&Tensor::f32(&[2], &[0.0, 1.0]), &[1]), 0);
    }

    #[test]
    fn compares_batches() {
        let mut c = Comparison::blaming(Kind::Data);
        assert_eq!((c.agreement(), c.sqnr_db(), c.top1_before()), (None, None, None));
        let before = [Tensor::f32(&[2, 2], &[3.0, 0.0, 0.0, 4.0])];
        let after = [Tensor::f32(&[2, 2], &[3.0, 0.0, 0.5, 0.0])];
        c.add(&before, &after, 2, Some(&[0, 1])).unwrap();
        assert_eq!((c.samples(), c.top1_before(), c.top1_after(), c.agreement()), (2, Some(1.0), Some(0.5), Some(0.5)));
        let db = 10.0 * (25.0f64 / 16.25).log10();
        assert!((c.sqnr_db().unwrap() - db).abs() < 1e-9);
        let mut same = Comparison::blaming(Kind::Data);
        let one = [Tensor::f32(&[2, 1], &[1.0, 2.0])];
        same.add(&one, &one, 2, None).unwrap();
        assert_eq!((same.sqnr_db(), same.agreement()), (Some(f64::INFINITY), None));
    }

    #[test]
    fn what_is_no_number_is_not_equal() {
        let compared = |values: &[f32]| {
            let t = [Tensor::f32(&[2, 2], values)];
            let mut c = Comparison::blaming(Kind::Data);
            c.add(&t, &t, 2, None).unwrap();
            (c.is_equal(), c.agreement())
        };
        assert_eq!(compared(&[f32::NAN; 4]), (false, None));
        assert_eq!(compared(&[1.0, 0.0, f32::NAN, f32::NAN]), (false, Some(1.0)));
        assert_eq!(compared(&[0.0; 4]), (true, Some(1.0)));
        assert!(!Comparison::blaming(Kind::Data).is_equal());
    }

    #[test]
    fn refuses_what_cannot_be_compared() {
        let t = [Tensor::f32(&[2, 2], &[3.0, 0.0, 0.0, 4.0])];
        let refused = |after: &[Tensor], labels: Option<&[i64]>| {
            Comparison::blaming(Kind::Data).add(&t, after, 2, labels).unwrap_err().exit_code() == 7
        };
        assert!(refused(&t, Some(&[0])), "a label is missing");
        assert!(refused(&t, Some(&[0, 2])) && refused(&t, Some(&[-1, 0])), "labels that are no class");
        assert!(refused(&[], None) && refused(&[Tensor::f32(&[1], &[0.0])], None), "other outputs");
        assert!(refused(&[Tensor::f32(&[2, 2], &[f32::NAN, 0.0, 0.0, 4.0])], None), "a NaN that is new");
    }

    #[test]
    fn whole_numbers_count() {
        let (a, b) = ([Tensor::i64s(&[1, 2])], [Tensor::i64s(&[1, 3])]);
        let mut c = Comparison::blaming(Kind::Data);
        c.add(&a, &b, 2, None).unwrap();
        assert!(c.sqnr_db().unwrap().is_finite());
    }
}
