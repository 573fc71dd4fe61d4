//! The metrics: a file for each kind, with the facts of its metrics and what sums them up over batches. Their names are
//! in the list of [`super::metric`].

pub(super) mod classes;
pub(super) mod noise;
pub(super) mod overlap;
pub(super) mod program;
pub(super) mod text;
pub(super) mod tokens;
pub(super) mod vectors;

use super::{Meaning, Metric, compare::Comparison};
use crate::dataset::Batch;
use compress_compiler::{error::Result, words::Unit};

/// What the list of metrics says of one.
pub(super) struct Facts {
    /// How its values are read.
    pub(super) unit: Unit,
    pub(super) best: Best,
    /// Whether labels say what is right.
    pub(super) labelled: bool,
    /// What an output may hold: it is taken for the first of them if it seems to hold something else, and for what it
    /// seems to hold if there is none.
    pub(super) takes: &'static [Meaning],
    pub(super) made: Made,
    /// What is shown beside it: metrics of the same kind.
    pub(super) beside: &'static [Metric],
}

/// Which values are good.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Best {
    /// 1: what is missing there, or from what it was, is a drop.
    One,
    /// The larger, the better.
    High,
    /// The smaller, the better.
    Low,
}

/// Where the values come from.
pub(super) enum Made {
    /// Summed up over batches, of the output that is measured.
    Tallied(fn() -> Box<dyn Tally>),
    /// Read from the noise of the outputs, which is always summed up.
    OfNoise(fn(&Comparison) -> Option<f64>),
    /// A program prints them.
    Printed,
}

/// What the metrics of a kind are made from, batch by batch.
pub(super) trait Tally: Send {
    /// Adds a batch.
    ///
    /// # Errors
    /// Data when its labels don't fit.
    fn add(&mut self, pair: &Pair) -> Result<()>;

    /// A metric of this kind: of the model before, where labels say what is right, and of the model after.
    fn value(&self, metric: Metric) -> (Option<f64>, Option<f64>);

    /// Why the outputs can't be what they were taken for, if they can't.
    fn doubt(&self) -> Option<&'static str> {
        None
    }
}

/// The measured output of a batch, before and after.
pub(super) struct Pair<'a> {
    pub(super) batch: &'a Batch,
    pub(super) meaning: Meaning,
    /// Of both.
    pub(super) shape: &'a [usize],
    pub(super) before: &'a [f32],
    pub(super) after: &'a [f32],
    /// The place of the attention mask among the inputs.
    pub(super) mask: Option<usize>,
    /// That of the numbers of tokens.
    pub(super) tokens: Option<usize>,
}

impl Pair<'_> {
    /// The size of the last axis, 1 at least.
    pub(super) fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1).max(1)
    }

    /// The elements of a sample, 1 at least.
    pub(super) fn each(&self) -> usize {
        (self.before.len() / self.batch.len.max(1)).max(1)
    }

    /// The attention mask, if it has an entry for each of so many positions.
    pub(super) fn mask(&self, positions: usize) -> Option<Vec<bool>> {
        let mask = self.batch.inputs.get(self.mask?)?.as_i64()?;
        (mask.len() == positions).then(|| mask.into_iter().map(|v| v != 0).collect())
    }
}

/// Some of a whole.
#[derive(Default)]
pub(super) struct Share {
    pub(super) part: f64,
    pub(super) whole: usize,
}

impl Share {
    /// Adds one to the whole, and `part` of it.
    pub(super) fn add(&mut self, part: f64) {
        self.part += part;
        self.whole += 1;
    }

    /// The share, unless the whole is nothing.
    pub(super) fn value(&self) -> Option<f64> {
        (self.whole > 0).then(|| self.part / self.whole as f64)
    }
}

/// Samples from which on the same answer to all of them is not a coincidence.
pub(super) const TELLING: usize = 16;

/// The place of the largest score; NaN never is, and a row of nothing else has none.
pub(super) fn largest(scores: &[f32]) -> Option<usize> {
    let mut best: Option<(usize, f32)> = None;
    for (i, v) in scores.iter().enumerate().filter(|(_, v)| !v.is_nan()) {
        if best.is_none_or(|(_, b)| *v > b) {
            best = Some((i, *v));
        }
    }
    best.map(|(i, _)| i)
}
