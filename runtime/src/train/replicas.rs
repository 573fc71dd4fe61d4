//! What a batch teaches: its loss and the gradients, found in one piece or by replicas of the model, each of which
//! takes a part of the samples on threads of its own, or on another machine ([`Team`]).
//!
//! Small layers leave threads idle that share one of them; replicas share nothing. What they find is averaged by the
//! sizes of their parts, so it depends on how many they are, not on their threads, nor on the processes that they are divided among:
//! parts are summed in a tree ([`in_tree`]).

use super::{
    loader::{Share, TrainBatch, tensor_rows},
    loss::{Loss, LossOptions, Supervision},
    model::{Forward, Trainable},
    ranks::{Arrived, Layout, LossAndTerms, Summing, Taught, Team, Word, in_tree},
    teacher::Answer,
};
use crate::burn::tensor::{
    Float, Value,
    hearing::{Ear, Listener},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
    words::option::REPLICAS,
};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::{
    borrow::Cow,
    env,
    ops::Range,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// How often a rank that waits for others looks after other things.
const LOOK: Duration = Duration::from_millis(50);

/// Who computes what a batch teaches.
#[derive(Default)]
pub struct Replicas {
    /// The threads of each replica of this process; none where all threads work on its whole part.
    pools: Vec<ThreadPool>,
    team: Team,
    share: Share,
}

impl Replicas {
    /// So many replicas, for batches of `samples`, that share `threads`.
    ///
    /// # Errors
    /// Usage when there are more replicas than samples or threads; limit when threads can't be started.
    pub fn new(count: usize, samples: usize, threads: usize) -> Result<Self> {
        Self::of(Team::default(), count, samples, threads)
    }

    /// So many replicas, divided among the ranks of `team`; those of this rank share `threads`.
    ///
    /// # Errors
    /// As for [`Replicas::new`]; usage when ranks would have different numbers of replicas.
    pub fn of(team: Team, count: usize, samples: usize, threads: usize) -> Result<Self> {
        let (ranks, rank) = (team.count(), team.rank());
        if !count.is_multiple_of(ranks) {
            return Err(Error::usage(format!("{count} replicas for {ranks} ranks"))
                .help(format!("give {REPLICAS} a multiple of the number of ranks")));
        }
        let own = count / ranks;
        if ranks > 1 && !own.is_power_of_two() {
            return Err(Error::usage(format!(
                "{count} replicas on {ranks} ranks: {own} on each would be summed in another order than on one rank"
            ))
            .help(format!("give {REPLICAS} once, twice, four or eight times the number of ranks")));
        }
        let replicas =
            || if ranks > 1 { format!("{count} replicas on {ranks} ranks") } else { format!("{count} replicas") };
        for (wanted, have, what) in [(count, samples, "samples of a batch"), (own, threads, "threads")] {
            if wanted > have {
                return Err(Error::usage(format!("{} for {have} {what}", replicas()))
                    .help(match ranks {
                        1 => "each replica takes a sample of every batch and a thread at least",
                        _ => {
                            "each replica takes a sample of every batch and a thread at least; mpirun binds a rank to one core unless \
                             it is told otherwise"
                        }
                    }));
            }
        }
        let share = Share { parts: count, own: rank * own..(rank + 1) * own };
        if own < 2 {
            return Ok(Self { pools: vec![], team, share });
        }
        let pool = |i| ThreadPoolBuilder::new().num_threads(threads / own + usize::from(i < threads % own)).build();
        let pools = (0..own).map(pool).collect::<Result<_, _>>();
        let pools = pools.map_err(|e| Error::limit(format!("the threads could not be started: {e}")))?;
        Ok(Self { pools, team, share })
    }

    /// The part of each batch that this process reads.
    pub fn share(&self) -> &Share {
        &self.share
    }

    /// The ranks that replicas are divided among.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// What a batch teaches `model`. The loss is multiplied by `scale` before its gradients are taken, and they are
    /// divided by it. `None` when the loss is not a number.
    ///
    /// # Errors
    /// Those of the batch, the model and the loss, of this rank or another; data when an answer of the teacher can't be divided among
    /// replicas; device when a rank is lost.
    pub fn learn(
        &self,
        model: &Trainable,
        how: Learning,
        batch: Result<(&TrainBatch, &Answer)>,
        beside: &dyn Beside,
    ) -> Result<Learnt> {
        let (batch, answer) = match batch {
            Err(e) => return self.failed(model, e, beside),
            Ok(batch) => batch,
        };
        let material = Material::new(batch, answer);
        // Each has a dropout of its own.
        let seed = |i: usize| how.seed.wrapping_add((i as u64).wrapping_mul(0xa076_1d64_78bd_642f));
        let rows: Vec<Range<usize>> = self.share.divided(batch.whole).collect();
        let whole = rows.len() == 1 && rows[0].len() == batch.len;
        let parts = rows.iter().map(|rows| {
            let own = rows.start - batch.first..rows.end - batch.first;
            if whole { Ok(Cow::Borrowed(&material)) } else { material.part(own).map(Cow::Owned) }
        });
        let parts = match parts.collect::<Result<Vec<_>>>() {
            Err(e) => return self.failed(model, e, beside),
            Ok(parts) => parts,
        };
        let teach = |i: usize, hear: Option<Listener>| -> Result<(Option<Lesson>, Vec<bool>)> {
            let share = parts[i].len as f64 / batch.whole as f64;
            let hear = hear.map(|mut hear| -> Listener {
                Box::new(move |place, values| hear(place, in_proportion(values, how.scale, share)))
            });
            let (taught, heard) = parts[i].teach(model, how, seed(self.share.own.start + i), hear)?;
            Ok((taught.map(|lesson| if share < 1.0 { lesson.times(share) } else { lesson }), heard))
        };
        if self.team.count() == 1 {
            let lessons = self.lessons(parts.len(), &|i| Ok(teach(i, None)?.0))?;
            let lesson = lessons.map(|lessons| in_tree(lessons, &Lesson::plus)).transpose()?.flatten();
            return Ok(Learnt { lesson, word: beside.word(), waited: 0.0 });
        }
        self.sum(model, parts.len(), &teach, beside)
    }

    /// Tells the others of an error before the batch.
    fn failed(&self, model: &Trainable, e: Error, beside: &dyn Beside) -> Result<Learnt> {
        match self.team.count() {
            1 => Err(e),
            _ => self.sum(model, 1, &|_, _| Err(e.clone()), beside),
        }
    }

    /// What each part of this process is taught; `None` where one has none.
    fn lessons(
        &self,
        parts: usize,
        teach: &(dyn Fn(usize) -> Result<Option<Lesson>> + Sync),
    ) -> Result<Option<Vec<Lesson>>> {
        let mut made: Vec<_> = (0..parts).map(|_| None).collect();
        match (&self.pools[..], &mut made[..]) {
            ([], made) => made.iter_mut().enumerate().for_each(|(i, made)| *made = Some(teach(i))),
            (pools, made) => among(pools, 0, made, teach),
        }
        made.into_iter().map(|made| made.ok_or_else(|| Error::bug("a replica gave no answer"))?).collect()
    }

    /// The sum of what all ranks are taught, each in so many parts. Gradients are on their way while others are still computed.
    fn sum(&self, model: &Trainable, parts: usize, teach: &Teach, beside: &dyn Beside) -> Result<Learnt> {
        let (shapes, order) = (model.sizes_of_lessons(), model.order_of_lessons());
        let mut item_of = vec![0; order.len()];
        order.iter().enumerate().for_each(|(item, place)| item_of[*place] = item);
        let layout = Layout::of(order.iter().map(|place| shapes[*place].iter().product()), self.team.count())?;
        let summing = Summing::new(&self.team, &layout, parts);
        let (to, from) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let overlaps = env::var_os("COMPRESS_RANKS_WAIT").is_none();
        let (mut computed, ended, summed) = thread::scope(|scope| {
            let (end, ended_with) = mpsc::channel();
            scope.spawn(move || drop(end.send(summing.run(&from, &told))));
            let computed = self.lessons(parts, &|part| {
                // Where the thread that sums is gone, its error is told below.
                let send = |place: usize, values| drop(to.send(Arrived { item: item_of[place], part, values }));
                let hear = || -> Listener {
                    let (to, item_of) = (to.clone(), item_of.clone());
                    Box::new(move |place, values| {
                        let _ = to.send(Arrived { item: item_of[place], part, values: Some(values) });
                    })
                };
                let (lesson, heard) = teach(part, overlaps.then(hear))?;
                for place in order.iter().copied().filter(|place| heard.get(*place) != Some(&true)) {
                    let found = lesson.as_ref().and_then(|lesson| lesson.item(place));
                    send(place, found.map(|found| found.clone().into_vec()).transpose()?);
                }
                Ok(lesson)
            });
            let ended = Instant::now();
            let computed = computed.and_then(|lessons| {
                let loss = lessons.map(|lessons| loss_of(&lessons)).transpose()?;
                Ok(loss.map_or((None, vec![]), |(loss, names)| (Some(loss), names)))
            });
            let loss = computed.as_ref().map_or(None, |(loss, _)| loss.clone());
            let _ = tell.send(Taught { loss, word: beside.word(), failed: computed.is_err() });
            drop((to, tell));
            let summed = loop {
                match ended_with.recv_timeout(LOOK) {
                    Ok(summed) => break summed,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(e) = beside.waits(ended.elapsed()) {
                            break Err(e);
                        }
                    }
                    Err(RecvTimeoutError::Disconnected) => {
                        break Err(Error::bug("the thread that sums gradients panicked"));
                    }
                }
            };
            (computed, ended, summed)
        });
        let (sums, taught) = match summed {
            Ok(summed) => summed,
            Err(e) => return Err(computed.err().unwrap_or(e)),
        };
        if taught.failed {
            computed = self.team.agree(computed, |_| String::new());
        }
        let ((_, names), waited) = (computed?, ended.elapsed().as_secs_f64());
        let Some((loss, terms)) = taught.loss else { return Ok(Learnt { lesson: None, word: taught.word, waited }) };
        let mut found: Vec<Option<Float>> = shapes.iter().map(|_| None).collect();
        for (place, values) in order.into_iter().zip(sums) {
            let upload = |values: Vec<f32>| Float::upload(&Tensor::f32(&shapes[place], &values), model.device());
            found[place] = values.map(upload).transpose()?;
        }
        let statistics = found.split_off(model.parameters().len());
        let missing = || Error::bug("no rank moved a statistic");
        let statistics = statistics.into_iter().map(|s| s.ok_or_else(missing)).collect::<Result<_>>()?;
        let parts = names.into_iter().zip(terms).collect();
        Ok(Learnt { lesson: Some(Lesson { loss, parts, gradients: found, statistics }), word: taught.word, waited })
    }
}

/// Teaches one of the parts of this process, and may tell gradients as they are found: the lesson, and of which it told.
type Teach<'a> = dyn Fn(usize, Option<Listener>) -> Result<(Option<Lesson>, Vec<bool>)> + Sync + 'a;

/// A gradient of a loss that was multiplied by `scale`, of so many in a batch: as [`Lesson::times`] and the division by the scale make it.
fn in_proportion(mut values: Vec<f32>, scale: f32, share: f64) -> Vec<f32> {
    let (by, share) = (1.0 / scale, share as f32);
    values.iter_mut().for_each(|v| *v = *v * by * share);
    values
}

/// The sum of the losses and of their parts, and what these are called.
fn loss_of(lessons: &[Lesson]) -> Result<(LossAndTerms, Vec<&'static str>)> {
    let own = lessons.iter().map(|l| (l.loss, l.parts.iter().map(|(_, v)| *v).collect::<Vec<f32>>()));
    let names = lessons.first().map_or(vec![], |l| l.parts.iter().map(|(name, _)| *name).collect());
    Ok((in_tree(own.collect(), &plus)?.unwrap_or_default(), names))
}

fn plus((loss, a): LossAndTerms, (other, b): LossAndTerms) -> Result<LossAndTerms> {
    Ok((loss + other, a.into_iter().zip(b).map(|(a, b)| a + b).collect()))
}

/// How a batch teaches.
#[derive(Clone, Copy)]
pub struct Learning<'a> {
    /// What is made small.
    pub loss: &'a LossOptions,
    /// What dropout follows from.
    pub seed: u64,
    /// What the loss is multiplied by before its gradients are taken.
    pub scale: f32,
}

/// What a rank does beside a batch.
pub trait Beside {
    /// What it says of the job, once it has computed its part.
    fn word(&self) -> Word {
        Word::default()
    }

    /// Called from time to time while it waits for others, with how long it has.
    ///
    /// # Errors
    /// Whatever ends the job.
    fn waits(&self, _: Duration) -> Result<()> {
        Ok(())
    }
}

impl Beside for () {}

/// The loss of a batch, of which nothing is learnt; it may be no finite number.
///
/// # Errors
/// Those of the model and the loss.
pub fn loss_of_batch(model: &Trainable, how: Learning, batch: &TrainBatch, answer: &Answer) -> Result<f64> {
    let (_, found) =
        Material::new(batch, answer).pass(model, how.loss, &|inputs| model.forward_alone(inputs, how.seed))?;
    found.whole.detached().scalar()
}

/// What a batch taught all replicas together.
pub struct Learnt {
    /// `None` when the loss was not a number.
    pub lesson: Option<Lesson>,
    /// What the ranks decided.
    pub word: Word,
    /// Seconds that this rank waited for others.
    pub waited: f64,
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

    /// A gradient, or a running statistic behind these.
    fn item(&self, item: usize) -> Option<&Float> {
        match self.gradients.get(item) {
            Some(gradient) => gradient.as_ref(),
            None => self.statistics.get(item - self.gradients.len()),
        }
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
#[derive(Clone)]
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
        Self {
            len: batch.len,
            inputs: Cow::Borrowed(&batch.inputs),
            sent: batch.sent.as_deref(),
            labels,
            mix: batch.mix.as_ref().map(|(labels, share)| (Cow::Borrowed(&labels[..]), *share)),
            outputs: Cow::Borrowed(&answer.outputs),
            features: Cow::Borrowed(&answer.features),
        }
    }

    fn part(&self, range: Range<usize>) -> Result<Material<'_>> {
        let cut = |tensors: &[Tensor]| -> Result<Cow<'_, [Tensor]>> {
            tensors.iter().map(|t| tensor_rows(t, self.len, &range)).collect::<Result<Vec<_>>>().map(Cow::Owned)
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

    /// A run of the model on them, and its loss.
    fn pass(
        &self,
        model: &Trainable,
        loss: &LossOptions,
        forward: &dyn Fn(Vec<Value>) -> Result<Forward>,
    ) -> Result<(Forward, Loss)> {
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
        let pass = forward(inputs)?;
        let found = loss.of(&pass.outputs, &pass.features, &target, model.device())?;
        Ok((pass, found))
    }

    /// What they teach, and of which gradients `hear` was told as they were found.
    fn teach(
        &self,
        model: &Trainable,
        Learning { loss, scale, .. }: Learning,
        seed: u64,
        hear: Option<Listener>,
    ) -> Result<(Option<Lesson>, Vec<bool>)> {
        let ear = hear.map(|hear| Ear::new(model.parameters().len(), hear));
        let (pass, found) = self.pass(model, loss, &|inputs| model.forward(inputs, seed))?;
        let value = found.whole.clone().detached().scalar()?;
        if !value.is_finite() {
            return Ok((None, vec![]));
        }
        let scaled = |x: Float, by: f32| if by == 1.0 { x } else { x.mul_scalar(by) };
        let gradients = pass.gradients(scaled(found.whole, scale))?;
        let gradients = gradients.into_iter().map(|g| g.map(|g| scaled(g, 1.0 / scale))).collect();
        let lesson = Lesson { loss: value, parts: found.parts, gradients, statistics: pass.statistics()? };
        Ok((Some(lesson), ear.map_or(vec![], Ear::heard)))
    }
}

#[cfg(test)]
mod tests;
