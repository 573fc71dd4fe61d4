//! Language models: how likely they find the next token, and whether they find the same as before.

use super::{Best, Facts, Made, Pair, Share, Tally, largest};
use crate::metrics::{Meaning, Metric};
use compress_compiler::{
    error::{Error, Result},
    words::Unit,
};

pub(in crate::metrics) const NEXT_TOKEN: Facts = Facts {
    unit: Unit::Share,
    best: Best::One,
    labelled: false,
    takes: &[Meaning::NextToken],
    made: Made::Tallied(|| Box::<Tokens>::default()),
    beside: &[Metric::Perplexity, Metric::Kl],
};

pub(in crate::metrics) const PERPLEXITY: Facts =
    Facts { unit: Unit::Number, best: Best::Low, beside: &[Metric::Kl, Metric::NextToken], ..NEXT_TOKEN };

pub(in crate::metrics) const KL: Facts = Facts { beside: &[Metric::Perplexity, Metric::NextToken], ..PERPLEXITY };

/// The token that follows each of `ids`, which are sequences of `length`: none for the last of a sequence, and for what the
/// mask leaves out.
pub(crate) fn next_tokens<'a>(
    ids: &'a [i64],
    mask: Option<&'a [bool]>,
    length: usize,
) -> impl Iterator<Item = Option<i64>> + 'a {
    let counts = move |i: usize| mask.is_none_or(|m| m.get(i).copied().unwrap_or(false));
    let has_next = move |i: usize| i % length.max(1) + 1 < length && counts(i) && counts(i + 1);
    (0..ids.len()).map(move |i| has_next(i).then(|| ids.get(i + 1).copied()).flatten())
}

/// What is summed up over tokens.
#[derive(Default)]
struct Tokens {
    /// The negative log-likelihood of each token that another follows, before and after.
    loss: [Share; 2],
    divergence: Share,
    /// Tokens for which both models find the same the most likely.
    same: Share,
}

impl Tally for Tokens {
    fn add(&mut self, pair: &Pair) -> Result<()> {
        let width = pair.width();
        let rows = pair.before.len() / width;
        let mask = pair.mask(rows);
        let ids = pair.tokens.and_then(|place| pair.batch.inputs.get(place)?.as_i64()).filter(|ids| ids.len() == rows);
        let length = pair.shape.iter().nth_back(1).copied().unwrap_or(1);
        let next: Vec<Option<i64>> =
            ids.map(|ids| next_tokens(&ids, mask.as_deref(), length).collect()).unwrap_or_default();
        let both = pair.before.chunks_exact(width).zip(pair.after.chunks_exact(width));
        for (i, (p, q)) in both.enumerate() {
            if mask.as_ref().is_some_and(|m| !m[i]) {
                continue;
            }
            let logs = [p, q].map(logarithm);
            let log = |scores: &[f32], side: usize, k: usize| f64::from(scores[k]) - logs[side];
            let divergence: f64 = (0..width).map(|k| divergence(log(p, 0, k), log(q, 1, k))).sum();
            // Rounding may leave it below 0. What is not a number stays so.
            self.divergence.add(if divergence < 0.0 { 0.0 } else { divergence });
            self.same.add(f64::from(u8::from(largest(p).is_some() && largest(p) == largest(q))));
            if let Some(next) = next.get(i).copied().flatten() {
                let k = usize::try_from(next)
                    .ok()
                    .filter(|k| *k < width)
                    .ok_or_else(|| Error::data(format!("token {next} is outside the model's vocabulary of {width}")))?;
                self.loss[0].add(-log(p, 0, k));
                self.loss[1].add(-log(q, 1, k));
            }
        }
        Ok(())
    }

    fn value(&self, metric: Metric) -> (Option<f64>, Option<f64>) {
        let perplexity = |side: usize| self.loss[side].value().map(f64::exp);
        match metric {
            Metric::Perplexity => (perplexity(0), perplexity(1)),
            Metric::Kl => (None, self.divergence.value()),
            _ => (None, self.same.value()),
        }
    }
}

/// The logarithm of the sum of exponentials.
fn logarithm(scores: &[f32]) -> f64 {
    let most = f64::from(scores.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b)));
    most + scores.iter().map(|s| (f64::from(*s) - most).exp()).sum::<f64>().ln()
}

/// What a token of these log-likelihoods adds to the divergence: nothing where the first model never chooses it.
fn divergence(p: f64, q: f64) -> f64 {
    if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Batch;

    fn kl(before: &[f32], after: &[f32]) -> Option<f64> {
        let batch = Batch { inputs: vec![], labels: None, len: 1 };
        let shape = [1, 1, before.len()];
        let pair =
            Pair { batch: &batch, meaning: Meaning::NextToken, shape: &shape, before, after, mask: None, tokens: None };
        let mut tokens = Tokens::default();
        tokens.add(&pair).unwrap();
        tokens.value(Metric::Kl).1
    }

    #[test]
    fn a_token_that_is_never_chosen_hides_no_divergence() {
        let never = f32::NEG_INFINITY;
        let wanted = kl(&[2.0, 1.0], &[1.0, 2.0]).unwrap();
        assert!((wanted - 0.462_117).abs() < 1e-5, "{wanted}");
        assert_eq!(kl(&[2.0, 1.0, never], &[1.0, 2.0, never]), Some(wanted));
        assert_eq!(kl(&[2.0, 1.0], &[2.0, never]), Some(f64::INFINITY));
        assert!(kl(&[2.0, f32::NAN], &[2.0, 1.0]).unwrap().is_nan());
        assert_eq!(kl(&[2.0, 1.0], &[2.0, 1.0]), Some(0.0));
    }
}
