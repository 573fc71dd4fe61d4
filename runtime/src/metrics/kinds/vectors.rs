//! Embeddings: whether they point where they did, and whose neighbours they are.

use super::{Best, Facts, Made, Pair, Tally};
use crate::metrics::{Meaning, Metric};
use compress_compiler::{error::Result, words::Unit};

pub(in crate::metrics) const COSINE: Facts = Facts {
    unit: Unit::Number,
    best: Best::One,
    labelled: false,
    takes: &[Meaning::Embedding, Meaning::Tokens],
    made: Made::Tallied(|| Box::<Vectors>::default()),
    beside: &[Metric::Recall10],
};

pub(in crate::metrics) const RECALL10: Facts = Facts { unit: Unit::Share, beside: &[Metric::Cosine], ..COSINE };

/// Samples, and floats of all of them, whose neighbours are looked at.
const MOST: usize = 2000;
const MOST_FLOATS: usize = 8 << 20;
/// Neighbours that are looked at, of so many samples at least.
const NEIGHBOURS: usize = 10;
const FEWEST: usize = 2 * NEIGHBOURS;

/// Vectors of unit length, before and after, sample by sample.
#[derive(Default)]
struct Vectors {
    width: usize,
    both: [Vec<f32>; 2],
    count: usize,
    cosines: f64,
}

impl Tally for Vectors {
    fn add(&mut self, pair: &Pair) -> Result<()> {
        let samples = pair.before.chunks(pair.each()).zip(pair.after.chunks(pair.each()));
        if pair.meaning != Meaning::Tokens {
            samples.for_each(|(x, y)| self.push(x, y));
            return Ok(());
        }
        // A text stands for itself by the sum of those of its tokens that count.
        let width = pair.width();
        let mask = pair.mask(pair.before.len() / width);
        let tokens = pair.each() / width;
        for (i, (x, y)) in samples.enumerate() {
            let counts = |t: usize| mask.as_ref().is_none_or(|m| m[i * tokens + t]);
            let [x, y] = [x, y].map(|v| {
                let mut sum = vec![0f32; width];
                for (_, row) in v.chunks_exact(width).enumerate().filter(|(t, _)| counts(*t)) {
                    sum.iter_mut().zip(row).for_each(|(s, v)| *s += v);
                }
                sum
            });
            self.push(&x, &y);
        }
        Ok(())
    }

    fn value(&self, metric: Metric) -> (Option<f64>, Option<f64>) {
        (None, if metric == Metric::Recall10 { self.recall() } else { self.cosine() })
    }
}

impl Vectors {
    /// Adds the embedding of a sample. One without a length, or that is not a number, is as far as can be.
    fn push(&mut self, before: &[f32], after: &[f32]) {
        let [a, b] = [before, after].map(unit);
        self.cosines += match (&a, &b) {
            (Some(a), Some(b)) => dot(a, b),
            (None, None) if before == after => 1.0,
            _ => 0.0,
        };
        self.count += 1;
        self.width = before.len();
        let fits = self.count <= MOST && self.both[0].len() + self.width <= MOST_FLOATS;
        if let (Some(a), Some(b), true) = (a, b, fits) {
            self.both[0].extend(a);
            self.both[1].extend(b);
        }
    }

    /// The mean cosine.
    fn cosine(&self) -> Option<f64> {
        (self.count > 0).then(|| self.cosines / self.count as f64)
    }

    /// The share of each sample's nearest neighbours that stay its nearest.
    fn recall(&self) -> Option<f64> {
        let samples = self.both[0].len() / self.width.max(1);
        if samples < FEWEST {
            return None;
        }
        let nearest = |vectors: &[f32], i: usize| -> Vec<usize> {
            let row = |j: usize| &vectors[j * self.width..(j + 1) * self.width];
            let mut others: Vec<(f64, usize)> =
                (0..samples).filter(|j| *j != i).map(|j| (dot(row(i), row(j)), j)).collect();
            others.select_nth_unstable_by(NEIGHBOURS - 1, |a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            others[..NEIGHBOURS].iter().map(|(_, j)| *j).collect()
        };
        let kept = |i: usize| {
            let [a, b] = [0, 1].map(|side: usize| nearest(&self.both[side], i));
            a.iter().filter(|j| b.contains(j)).count()
        };
        let kept: usize = (0..samples).map(kept).sum();
        Some(kept as f64 / (samples * NEIGHBOURS) as f64)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn unit(v: &[f32]) -> Option<Vec<f32>> {
    let length = dot(v, v).sqrt();
    (length.is_finite() && length > 0.0).then(|| v.iter().map(|x| (f64::from(*x) / length) as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Points on a circle, `turn` apart.
    fn circle(turn: f32, off: impl Fn(usize) -> f32) -> Vectors {
        let mut v = Vectors::default();
        for i in 0..40 {
            let [a, b] = [i as f32 * turn, i as f32 * turn + off(i)];
            v.push(&[a.cos() * 3.0, a.sin() * 3.0], &[b.cos(), b.sin()]);
        }
        v
    }

    #[test]
    fn a_turn_of_all_keeps_neighbours_but_not_directions() {
        let turned = circle(0.05, |_| 0.5);
        assert_eq!(turned.recall(), Some(1.0));
        assert!((turned.cosine().unwrap() - f64::from(0.5f32.cos())).abs() < 1e-6);
    }

    #[test]
    fn shuffled_vectors_lose_neighbours() {
        let shuffled = circle(0.05, |i| ((i * 17) % 40) as f32 * 0.05 - i as f32 * 0.05);
        assert!(shuffled.recall().unwrap() < 0.6);
        assert_eq!(circle(0.05, |_| 0.0).cosine().map(|c| (c * 1e6).round()), Some(1e6));
    }

    #[test]
    fn few_samples_have_no_neighbours_to_speak_of() {
        let mut v = Vectors::default();
        (0..19).for_each(|i| v.push(&[1.0, i as f32], &[1.0, i as f32]));
        assert_eq!(v.recall(), None);
        v.push(&[0.0, 0.0], &[0.0, f32::NAN]);
        assert!(v.cosine().unwrap() < 1.0);
    }
}
