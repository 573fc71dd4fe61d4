//! What a batch teaches: its loss and the gradients, found in one piece or by replicas of the model, each of which
//! takes a part of the samples on threads of its own.
//!
//! Small layers leave threads idle that share one of them; replicas share nothing. What they find is averaged by the
//! sizes of their parts, so it depends on how many they are, not on their threads.

use super::{
    loader::TrainBatch,
    loss::{LossOptions, Supervision},
    model::Trainable,
    teacher::Answer,
};
use crate::burn::tensor::{Float, Value};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
    words::option::REPLICAS,
};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{borrow::Cow, ops::Range};

/// The threads of each replica; none where all threads work on the whole batch.
#[derive(Debug, Default)]
pub struct Replicas(Vec<ThreadPool>);

impl Replicas {
    /// So many replicas, for batches of `samples`, that share `threads`.
    ///
    /// # Errors
    /// Usage when there are more replicas than samples or threads; limit when threads can't be started.
    pub fn new(count: usize, samples: usize, threads: usize) -> Result<Self> {
        for (have, what) in [(samples, "samples of a batch"), (threads, "threads")] {
            if count > have {
                return Err(Error::usage(format!("{count} replicas for {have} {what}"))
                    .help("each replica takes a sample of every batch and a thread at least"));
            }
        }
        if count < 2 {
            return Ok(Self::default());
        }
        let pool = |i| ThreadPoolBuilder::new().num_threads(threads / count + usize::from(i < threads % count)).build();
        let pools = (0..count).map(pool).collect::<Result<_, _>>();
        pools.map(Self).map_err(|e| Error::limit(format!("the threads could not be started: {e}")))
    }

    /// What a batch teaches `model`. The loss is multiplied by `scale` before its gradients are taken, and they are
    /// divided by it. `None` when the loss is not a number.
    ///
    /// # Errors
    /// Those of the model and the loss; data when an answer of the teacher can't be divided among replicas.
    pub fn learn(
        &self,
        model: &Trainable,
        loss: &LossOptions,
        batch: &TrainBatch,
        answer: &Answer,
        seed: u64,
        scale: f32,
    ) -> Result<Option<Lesson>> {
        let whole = Material::new(batch, answer);
        let count = self.0.len().min(whole.len);
        if count < 2 {
            return whole.teach(model, loss, seed, scale);
        }
        let parts = (0..count).map(|i| whole.part(i * whole.len / count..(i + 1) * whole.len / count));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        // Each has a dropout of its own.
        let seed = |i: usize| seed.wrapping_add((i as u64).wrapping_mul(0xa076_1d64_78bd_642f));
        let teach = |i: usize| parts[i].teach(model, loss, seed(i), scale);
        let mut made: Vec<_> = parts.iter().map(|_| None).collect();
        among(&self.0, 0, &mut made, &teach);
        let mut sum: Option<Lesson> = None;
        for (lesson, part) in made.into_iter().zip(&parts) {
            let lesson = lesson.ok_or_else(|| Error::bug("a replica gave no answer"))??;
            let Some(lesson) = lesson else { return Ok(None) };
            let lesson = lesson.times(part.len as f64 / whole.len as f64);
            sum = Some(match sum {
                Some(sum) => sum.plus(lesson)?,
                None => lesson,
            });
        }
        Ok(sum)
    }
}

/// Fills each slot with what `work` makes of its place, in the pool of that place. The caller waits.
fn among<T: Send>(pools: &[ThreadPool], place: usize, slots: &mut [Option<T>], work: &(dyn Fn(usize) -> T + Sync)) {
    let ([pool, pools @ ..], [slot, slots @ ..]) = (pools, slots) else { return };
    pool.in_place_scope(|scope| {
        scope.spawn(move |_| *slot = Some(work(place)));
        among(pools, place + 1, slots, work);
    });
}

/// What a batch taught.
pub struct Lesson {
    /// The loss.
    pub loss: f64,
    /// Its parts by name, before their weights.
    pub parts: Vec<(&'static str, f32)>,
    /// The gradient of each parameter, `None` where the loss doesn't depend on it.
    pub gradients: Vec<Option<Float>>,
    /// The running statistics, moved.
    pub statistics: Vec<Float>,
}

impl Lesson {
    /// Whether all gradients are numbers.
    ///
    /// # Errors
    /// Device, when reading fails.
    pub fn is_finite(&self) -> Result<bool> {
        let mut finite = true;
        for g in self.gradients.iter().flatten() {
            finite &= g.view(|v| Ok(v.iter().all(|v| v.is_finite())))?;
        }
        Ok(finite)
    }

    fn times(self, share: f64) -> Self {
        let times = |x: Float| x.mul_scalar(share);
        Self {
            loss: self.loss * share,
            parts: self.parts.into_iter().map(|(name, v)| (name, (f64::from(v) * share) as f32)).collect(),
            gradients: self.gradients.into_iter().map(|g| g.map(times)).collect(),
            statistics: self.statistics.into_iter().map(times).collect(),
        }
    }

    fn plus(self, other: Self) -> Result<Self> {
        let gradients = self.gradients.into_iter().zip(other.gradients).map(|(a, b)| sum(a, b));
        let statistics = self.statistics.into_iter().zip(other.statistics).map(|(a, b)| a.add(b));
        Ok(Self {
            loss: self.loss + other.loss,
            parts: self.parts.into_iter().zip(other.parts).map(|((name, a), (_, b))| (name, a + b)).collect(),
            gradients: gradients.collect::<Result<_>>()?,
            statistics: statistics.collect::<Result<_>>()?,
        })
    }
}

/// The sum of two gradients, either of which may be none.
///
/// # Errors
/// None for gradients of one parameter.
pub fn sum(a: Option<Float>, b: Option<Float>) -> Result<Option<Float>> {
    match (a, b) {
        (Some(a), Some(b)) => a.add(b).map(Some),
        (a, b) => Ok(a.or(b)),
    }
}

/// Samples, and what belongs to each.
struct Material<'a> {
    len: usize,
    inputs: Cow<'a, [Tensor]>,
    /// The same on the device, if they are there.
    sent: Option<&'a [Value]>,
    labels: Option<&'a [i64]>,
    /// The labels of the samples mixed into these, and the share that these kept.
    mix: Option<(Cow<'a, [i64]>, f32)>,
    outputs: Cow<'a, [Tensor]>,
    features: Cow<'a, [Tensor]>,
}

impl<'a> Material<'a> {
    fn new(batch: &'a TrainBatch, answer: &'a Answer) -> Self {
        let labels = batch.labels.as_deref();
        let mixed = labels.zip(batch.mix.as_ref());
        Self {
            len: batch.len,
            inputs: Cow::Borrowed(&batch.inputs),
            sent: batch.sent.as_deref(),
            labels,
            mix: mixed.map(|(labels, m)| (m.partner.iter().map(|p| labels[*p]).collect(), m.share)),
            outputs: Cow::Borrowed(&answer.outputs),
            features: Cow::Borrowed(&answer.features),
        }
    }

    fn part(&self, range: Range<usize>) -> Result<Material<'_>> {
        let cut = |tensors: &[Tensor]| -> Result<Cow<'_, [Tensor]>> {
            tensors.iter().map(|t| rows(t, self.len, &range)).collect::<Result<Vec<_>>>().map(Cow::Owned)
        };
        Ok(Material {
            len: range.len(),
            inputs: cut(&self.inputs)?,
            sent: None,
            labels: self.labels.map(|l| &l[range.clone()]),
            mix: self.mix.as_ref().map(|(labels, share)| (Cow::Borrowed(&labels[range.clone()]), *share)),
            outputs: cut(&self.outputs)?,
            features: cut(&self.features)?,
        })
    }

    fn teach(&self, model: &Trainable, loss: &LossOptions, seed: u64, scale: f32) -> Result<Option<Lesson>> {
        let labels = loss.labels(&self.inputs, self.labels)?;
        let target = Supervision {
            labels: labels.as_deref(),
            mix: self.mix.as_ref().map(|(labels, share)| (&labels[..], *share)),
            outputs: &self.outputs,
            features: &self.features,
        };
        let inputs = match self.sent {
            Some(sent) => sent.to_vec(),
            None => model.send(&self.inputs)?,
        };
        let pass = model.forward(inputs, seed)?;
        let found = loss.of(&pass.outputs, &pass.features, &target, model.device())?;
        let value = found.whole.clone().detached().scalar()?;
        if !value.is_finite() {
            return Ok(None);
        }
        let scaled = |x: Float, by: f32| if by == 1.0 { x } else { x.mul_scalar(by) };
        let gradients = pass.gradients(scaled(found.whole, scale))?;
        let gradients = gradients.into_iter().map(|g| g.map(|g| scaled(g, 1.0 / scale))).collect();
        Ok(Some(Lesson { loss: value, parts: found.parts, gradients, statistics: pass.statistics()? }))
    }
}

/// Some of the `len` samples of `t`.
fn rows(t: &Tensor, len: usize, range: &Range<usize>) -> Result<Tensor> {
    match t.shape() {
        [first, rest @ ..] if *first == len => {
            let each = t.bytes().len() / len;
            let bytes = &t.bytes()[range.start * each..range.end * each];
            Tensor::new(t.dtype(), [&[range.len()], rest].concat(), bytes.to_vec())
        }
        shape => {
            Err(Error::data(format!("a tensor of {shape:?} cannot be divided: it is not counted by {len} samples"))
                .help(format!("train without {REPLICAS}")))
        }
    }
}

#[cfg(test)]
mod tests;
