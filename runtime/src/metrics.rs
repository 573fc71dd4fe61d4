//! How good a model is, and how close to another, summed up batch by batch.

use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
};

/// Rows of scores, one a sample: `[N, C]`, or with more axes of size 1 behind.
fn rows(t: &Tensor) -> Option<usize> {
    match t.shape() {
        [_, c, rest @ ..] if rest.iter().all(|n| *n == 1) => Some(*c),
        _ => None,
    }
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
}

impl Sqnr {
    /// Adds elements before and after. What is equal, infinities too, adds no noise.
    pub fn add(&mut self, before: &[f32], after: &[f32]) {
        for (a, b) in before.iter().zip(after) {
            let (a, b) = (f64::from(*a), f64::from(*b));
            if a.is_finite() {
                self.signal += a * a;
            }
            let same = a == b || (a.is_nan() && b.is_nan());
            if !same {
                // A number that became infinite or NaN is lost altogether.
                let d = a - b;
                self.noise += if d.is_nan() { f64::INFINITY } else { d * d };
            }
        }
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
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Comparison {
    samples: usize,
    labelled: usize,
    correct_before: usize,
    correct_after: usize,
    scored: usize,
    agreed: usize,
    sqnr: Sqnr,
}

impl Comparison {
    /// Adds one batch: an output before, the same output after, and the labels if known.
    ///
    /// # Errors
    /// Data when the shapes differ or there are not as many labels as samples; unsupported
    /// when the outputs are no floats.
    pub fn add(&mut self, before: &Tensor, after: &Tensor, labels: Option<&[i64]>) -> Result<()> {
        if before.shape() != after.shape() {
            let (a, b) = (before.shape(), after.shape());
            return Err(Error::data(format!("the outputs to compare have shapes {a:?} and {b:?}")));
        }
        let (Some(a), Some(b)) = (before.as_f32(), after.as_f32()) else {
            return Err(Error::unsupported(format!("comparing outputs of type {}", before.dtype())));
        };
        let samples = before.shape().first().copied().unwrap_or(1);
        if let Some(l) = labels.filter(|l| l.len() != samples) {
            return Err(Error::data(format!("{} labels for {samples} samples", l.len())));
        }
        self.samples += samples;
        self.sqnr.add(&a, &b);
        // One score a sample is no choice among classes.
        if rows(before).is_some_and(|c| c > 1) {
            self.scored += samples;
            self.agreed += agreement(before, after);
            if let Some(l) = labels {
                self.labelled += samples;
                self.correct_before += top1(before, l);
                self.correct_after += top1(after, l);
            }
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

    /// The share of samples to which both give the same class.
    pub fn agreement(&self) -> Option<f64> {
        share(self.agreed, self.scored)
    }

    /// See [`Sqnr::db`].
    pub fn sqnr_db(&self) -> Option<f64> {
        self.sqnr.db()
    }
}

fn share(part: usize, whole: usize) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut c = Comparison::default();
        assert_eq!((c.agreement(), c.sqnr_db(), c.top1_before()), (None, None, None));
        let before = Tensor::f32(&[2, 2], &[3.0, 0.0, 0.0, 4.0]);
        let after = Tensor::f32(&[2, 2], &[3.0, 0.0, 0.5, 0.0]);
        c.add(&before, &after, Some(&[0, 1])).unwrap();
        assert_eq!((c.samples(), c.top1_before(), c.top1_after(), c.agreement()), (2, Some(1.0), Some(0.5), Some(0.5)));
        let db = 10.0 * (25.0f64 / 16.25).log10();
        assert!((c.sqnr_db().unwrap() - db).abs() < 1e-9);
        assert!(c.add(&before, &after, Some(&[0])).is_err());
        assert!(c.add(&before, &Tensor::f32(&[1], &[0.0]), None).is_err());
        let mut same = Comparison::default();
        same.add(&Tensor::f32(&[2, 1], &[1.0, 2.0]), &Tensor::f32(&[2, 1], &[1.0, 2.0]), None).unwrap();
        assert_eq!((same.sqnr_db(), same.agreement()), (Some(f64::INFINITY), None));
    }
}
