//! Some samples of a data set, and how a model takes them.

use crate::measure;
use compress_compiler::{
    bound,
    error::{Error, Kind, Result},
    graph::Graph,
    words::option::{DATA, TOKENS},
};
use compress_runtime::dataset::Dataset;
use std::sync::Arc;

/// Bytes that the activations of a batch may take at once.
const LIVE_BYTES: u64 = 16 << 20;

/// Some samples of a data set, and how many of them a model takes at once.
pub struct Samples {
    pub set: Arc<Dataset>,
    pub indices: Vec<usize>,
    /// Whether they are made up.
    pub synthetic: bool,
    /// Samples a batch.
    pub batch: usize,
    /// Whether the model takes batches of this size only.
    pub(super) fixed: bool,
}

impl Samples {
    /// What stopped a run of the model of `g` on them. A model that was read is not malformed: where a node refuses what it is given,
    /// these samples don't suit it.
    pub fn unfit(&self, e: Error, g: &Graph) -> Error {
        if self.synthetic { unsuited(e, g) } else { self.unfit_if_given(e) }
    }

    /// The same where samples were given. Where they were made up, the error stays: others may suit the model.
    pub fn unfit_if_given(&self, e: Error) -> Error {
        if e.kind() != Kind::Malformed || self.synthetic {
            return e;
        }
        let help = match self.set.is_text() {
            true => format!("give fewer tokens a sample with {TOKENS}"),
            false => "check the sizes and the values of the arrays: one that is a whole input, whose first axis is time, say, \
                      needs an axis in front of it that counts the samples"
                .into(),
        };
        Error::data(format!("the model can't take these samples: {e}")).help(help)
    }

    pub(super) fn of(graph: &Graph, set: Arc<Dataset>, indices: Vec<usize>, synthetic: bool) -> Result<Self> {
        let fixed = set.fixed_batch().is_some();
        let batch = batch_size(graph, &set);
        if indices.len() < batch && fixed {
            return Err(Error::data(format!("the model takes {batch} samples at once, there are {}", indices.len()))
                .help("give more data, or export the model with a dynamic batch"));
        }
        Ok(Self { set, indices, synthetic, batch, fixed })
    }

    /// The samples in batches. A model with a fixed batch can't take a smaller last one, so
    /// that is left out.
    pub fn batches(&self) -> impl Iterator<Item = &[usize]> {
        self.indices.chunks(self.batch).filter(|c| !self.fixed || c.len() == self.batch)
    }

    /// The first samples, `count` of them.
    pub fn first(&self, count: usize) -> Self {
        let count = count.next_multiple_of(if self.fixed { self.batch } else { 1 });
        let indices = self.indices.iter().copied().take(count).collect();
        Self { set: self.set.clone(), indices, ..*self }
    }

    /// One of so many samples, spread over all of them.
    pub fn every(&self, step: usize) -> Self {
        let indices = self.indices.iter().copied().step_by(step.max(1)).collect();
        Self { set: self.set.clone(), indices, ..*self }
    }

    /// Others of the same set.
    pub fn with(self, indices: Vec<usize>) -> Self {
        Self { indices, ..self }
    }

    /// The first samples, `count` or a few more, in small batches: for what keeps every
    /// activation of a batch at once.
    pub fn few(&self, count: usize) -> impl Iterator<Item = &[usize]> {
        let size = if self.fixed { self.batch } else { self.batch.min(4) };
        self.indices.chunks(size).filter(move |c| !self.fixed || c.len() == size).take(count.div_ceil(size))
    }

    /// The batch to time when `asked` is: a model with a fixed batch has no choice.
    pub fn timed(&self, asked: usize) -> usize {
        if self.fixed { self.batch } else { asked }
    }
}

/// What stopped a run of the model of `g` on made-up inputs: what looks like a malformed model may
/// only be one that they don't suit.
pub fn unsuited(e: Error, g: &Graph) -> Error {
    if e.kind() != Kind::Malformed || !is_guesswork(g) {
        return e;
    }
    Error::data(format!("the model may not take made-up inputs: {e}")).help(format!("give {DATA}"))
}

/// Whether made-up inputs may be ones that the model can't take: some have axes of any size
/// besides the batch, or are integers, such as indices.
pub(super) fn is_guesswork(g: &Graph) -> bool {
    g.inputs().iter().map(|n| g.fact((*n).into())).any(|f| match f.dims() {
        Some(dims) => dims.iter().skip(1).any(|d| d.known().is_none()) || f.dtype.is_some_and(|d| !d.is_float()),
        None => true,
    })
}

/// How many samples to run at once: what the model fixes, else as many as keep activations
/// within bounds, so that memory depends neither on the model nor on the set.
pub(super) fn batch_size(g: &Graph, set: &Dataset) -> usize {
    if let Some(n) = set.fixed_batch() {
        return n;
    }
    // At the sizes of the first sample, where the model leaves them open.
    let sized = set.batch(&[0]).and_then(|b| measure::sized(g, &b.inputs));
    let g = sized.as_ref().unwrap_or(g);
    let live = bound::live_bytes(g).unwrap_or(u64::MAX);
    (LIVE_BYTES / live.max(1)).clamp(1, 256).min(set.len() as u64) as usize
}
