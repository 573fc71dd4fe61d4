//! A training job: epochs of steps, checkpoints, the best model kept.
//!
//! What a job makes follows from its options alone: it can be stopped or killed at any moment, and goes on from its
//! last checkpoint to the same bytes. So everything a step depends on is either a function of its number (learning
//! rate, order of the samples, augmentation, dropout) or in the checkpoint (weights, statistics, what the optimiser
//! remembers, the average of the weights, gradients that are being summed, the best model so far).

mod ablation;
mod rate;
mod together;

pub use super::course::{Ended, Progress, Score, Spent, Unwatched, Watcher, number};
pub use ablation::Source;

use self::together::Clocks;
use super::{
    checkpoint::{Checkpoint, Checkpoints},
    loader::{Loader, TrainBatch},
    loss::LossOptions,
    masks::Masks,
    model::Trainable,
    optimiser::{Optimiser, OptimiserOptions},
    replicas::{self, Learnt, Lesson, Replicas},
    scaler::Scaler,
    schedule::Schedule,
    sender::Sent,
    teacher::Teacher,
};
use crate::burn::{precision::Precision, tensor::Float};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    pass::EpochScore,
    tensor::{DType, Tensor},
    words::option::{FORCE, LR, RESUME},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The share of a job after which scores count for its end.
const SETTLES: f64 = 0.5;

/// How a model is trained.
#[derive(Debug, Clone)]
pub struct JobOptions {
    /// Times that every sample is seen.
    pub epochs: u64,
    /// Batches whose gradients are summed for a step.
    pub accumulate: usize,
    /// The highest learning rate.
    pub rate: f64,
    /// How it falls.
    pub schedule: Schedule,
    /// The share of the training in which it rises.
    pub warmup: f64,
    /// How gradients change weights.
    pub optimiser: OptimiserOptions,
    /// What is made small.
    pub loss: LossOptions,
    /// How much of the average of the weights stays in a step; the average is what is scored and kept.
    pub average: Option<f64>,
    /// Epochs without a better score after which the job ends. Those count once half of it is over: before that the
    /// learning rate is too high for scores to settle.
    pub patience: Option<u64>,
    /// The time after which the job ends.
    pub time: Option<Duration>,
    /// How often a checkpoint is written.
    pub save_every: Duration,
    /// The seed of dropout.
    pub seed: u64,
}

/// What a job made.
pub struct Outcome {
    /// The best model, as it is written.
    pub graph: Graph,
    /// Its score.
    pub best: f64,
    /// The score before the first step.
    pub first: f64,
    /// Why it ended.
    pub ended: Ended,
    /// Steps done, those before going on included.
    pub steps: u64,
    /// Samples seen since it began or went on.
    pub samples: u64,
    /// Where the time went.
    pub spent: Spent,
    /// Every score, that before the first step first.
    pub scores: Vec<EpochScore>,
    /// The checkpoints, of no more use when the model is written.
    pub checkpoints: Option<Checkpoints>,
}

/// The small part of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Course {
    first: Score,
    best: Score,
    /// Epochs since the best score.
    idle: u64,
    /// What the learning rate is multiplied by since the loss was not a number.
    backoff: f64,
    /// Batches whose gradients are summed and not yet applied.
    summed: usize,
    /// The mean loss of the epoch: sum and count.
    loss: (f64, u64),
    /// Seconds of earlier runs.
    seconds: f64,
    /// In 16 bits, by what the loss is multiplied.
    scaler: Option<Scaler>,
    /// Samples of a batch, which may have been chosen by the memory that was free.
    samples: usize,
    /// Every score so far.
    #[serde(default)]
    scores: Vec<EpochScore>,
}

impl Course {
    /// Keeps a score with the loss of the epoch.
    fn remember(&mut self, epoch: u64, score: Score) {
        let (sum, batches) = self.loss;
        let loss = (batches > 0).then(|| sum / batches as f64);
        self.scores.push(EpochScore { epoch, loss, score: number(score.value) });
    }
}

/// A job, ready to run.
pub struct Job<'a> {
    /// What is trained.
    pub model: Trainable,
    /// Who computes.
    pub replicas: Replicas,
    /// What it learns from, if not from labels alone.
    pub teacher: Option<Teacher>,
    /// Where samples come from.
    pub loader: Loader,
    /// How.
    pub options: JobOptions,
    /// Scores a model.
    pub score: &'a dyn Fn(&Graph) -> Result<Score>,
    /// Where it can go on from, and the digest of its recipe.
    pub checkpoints: Option<(Checkpoints, String)>,
    /// Whether answers of the teacher can be kept from epoch to epoch.
    pub same_samples: bool,
    /// What stays zero.
    pub masks: Option<Masks<'a>>,
}

/// What changes while a job runs.
struct State {
    optimiser: Optimiser,
    course: Course,
    average: Option<Vec<Float>>,
    /// Summed gradients.
    sum: Vec<Option<Float>>,
    /// Parameters and statistics of the best model.
    best: Vec<(String, Tensor)>,
    step: u64,
    epoch: u64,
    batch: u64,
}

/// What a batch showed: the parts of its loss, the norm of the gradients, and the learning rate.
struct BatchResult {
    parts: Vec<(&'static str, f32)>,
    norm: f32,
    rate: f64,
}

/// The samples of a batch in the job that left this checkpoint.
pub fn batch_of(checkpoint: &Checkpoint) -> Option<usize> {
    serde_json::from_value::<Course>(checkpoint.state.clone()).ok().map(|course| course.samples)
}

impl Job<'_> {
    /// Trains the model to the end, or until it is stopped. With `resume` it goes on from its last checkpoint, if
    /// there is one.
    ///
    /// # Errors
    /// Whatever running, reading and writing raises; data when the loss is not a number twice.
    pub fn run(mut self, resume: bool, watcher: &mut dyn Watcher) -> Result<Outcome> {
        let began = Instant::now();
        let mut spent = Spent::default();
        let mut state = self.begin(resume, watcher, &mut spent)?;
        let earlier = state.course.seconds;
        let (mut samples, mut saved, mut seconds) = (0, Instant::now(), earlier);
        let mut ended = Ended::Finished;
        'epochs: while state.epoch < self.options.epochs {
            let mut batches = self.batches(state.epoch, state.batch)?;
            loop {
                let asked = Instant::now();
                let Some(batch) = batches.next() else { break };
                spent.data += asked.elapsed().as_secs_f64();
                let done = self.done(&state, seconds);
                samples += batch.as_ref().map_or(0, |batch| batch.whole as u64);
                state.course.seconds = seconds;
                let clocks = Clocks { earlier, began, saved };
                let Learnt { lesson, word, .. } = {
                    let batch = batch.as_ref().map_err(Clone::clone);
                    self.learn(&state, batch, watcher, clocks, &mut spent)?
                };
                seconds = word.seconds;
                let Some(BatchResult { parts, norm, rate }) = self.step(&mut state, lesson, done, &mut spent)? else {
                    self.back_off(&mut state, watcher)?;
                    continue;
                };
                let progress = self.progress(&state, spent.samples_per_second(samples));
                watcher.batch(&Progress { parts, norm, rate, ..progress })?;
                if word.stops {
                    ended = Ended::Stopped;
                } else if self.options.time.is_some_and(|most| seconds >= most.as_secs_f64()) {
                    ended = Ended::Time;
                }
                if ended != Ended::Finished || word.saves {
                    state.course.seconds = seconds;
                    self.save(&state, watcher, &mut spent)?;
                    saved = Instant::now();
                }
                if ended != Ended::Finished {
                    break 'epochs;
                }
            }
            (state.epoch, state.batch) = (state.epoch + 1, 0);
            state.course.seconds = seconds;
            self.judge(&mut state, watcher, samples, &mut spent)?;
            state.course.loss = (0.0, 0);
            // One clock decides for all ranks.
            seconds = self.replicas.team().told(|| Ok(earlier + began.elapsed().as_secs_f64()))?;
            state.course.seconds = seconds;
            self.save(&state, watcher, &mut spent)?;
            saved = Instant::now();
            if self.options.patience.is_some_and(|most| state.course.idle >= most) {
                ended = Ended::Patience;
                break;
            }
        }
        if ended == Ended::Time {
            // What was learnt since the last score counts too.
            self.judge(&mut state, watcher, samples, &mut spent)?;
        }
        self.restore(&state.best)?;
        Ok(Outcome {
            graph: self.model.trained()?,
            best: state.course.best.value,
            first: state.course.first.value,
            ended,
            steps: state.step,
            samples,
            spent,
            scores: state.course.scores,
            checkpoints: self.checkpoints.map(|(c, _)| c),
        })
    }

    /// The batches of an epoch from one on, on another device than the CPU sent there ahead.
    fn batches(&self, epoch: u64, from: u64) -> Result<Box<dyn Iterator<Item = Result<TrainBatch>>>> {
        let epoch = self.loader.epoch(epoch, from as usize)?;
        Ok(match self.model.device() {
            device if device.is_cpu() => Box::new(epoch),
            device => Box::new(Sent::new(epoch, device)?),
        })
    }

    /// The state of a job that nothing was done of.
    fn fresh(&self) -> State {
        let count = self.model.parameters().len();
        State {
            optimiser: Optimiser::new(&self.options.optimiser, count),
            course: Course {
                first: Score::NONE,
                best: Score::NONE,
                idle: 0,
                backoff: 1.0,
                summed: 0,
                loss: (0.0, 0),
                seconds: 0.0,
                scaler: (self.model.precision() == Precision::F16).then(Scaler::default),
                samples: self.loader.batch(),
                scores: vec![],
            },
            average: self.average(),
            sum: (0..count).map(|_| None).collect(),
            best: vec![],
            step: 0,
            epoch: 0,
            batch: 0,
        }
    }

    /// The state to begin with: that of the last checkpoint, or a fresh one with the model's first score.
    fn begin(&mut self, resume: bool, watcher: &mut dyn Watcher, spent: &mut Spent) -> Result<State> {
        let precision = self.model.precision();
        if self.model.device().is_cpu()
            && let Some(why) = precision.slow_on_cpu()
        {
            watcher.warn(&format!("training in {precision} is slower than in f32 here: {why}"));
        }
        let mut state = self.fresh();
        if resume && let Some(found) = self.checkpoint(watcher)? {
            self.resume(&mut state, found)?;
            return Ok(state);
        }
        let started = Instant::now();
        state.best = self.model.state()?;
        state.course.first = self.scored()?;
        state.course.best =
            if self.masks.as_ref().is_none_or(Masks::are_final) { state.course.first } else { Score::NONE };
        state.course.remember(0, state.course.first);
        spent.scoring += started.elapsed().as_secs_f64();
        watcher.scored(&self.progress(&state, 0.0), state.course.first.value, state.course.first.value)?;
        Ok(state)
    }

    /// The average of the weights to begin with, if one is kept.
    fn average(&self) -> Option<Vec<Float>> {
        self.options.average.map(|_| self.model.parameters().iter().map(|p| p.value.clone()).collect())
    }

    /// The share of the training that is done, which the learning rate follows.
    fn done(&self, state: &State, seconds: f64) -> f64 {
        let batches = self.loader.batches() as u64;
        let steps = (state.epoch * batches + state.batch) as f64 / (self.options.epochs * batches).max(1) as f64;
        let time = self.options.time.map_or(0.0, |most| seconds / most.as_secs_f64().max(1e-9));
        steps.max(time)
    }

    /// Takes over what was learnt. `None` when the loss, or what it asks for, was not a number.
    fn step(
        &mut self,
        state: &mut State,
        lesson: Option<Lesson>,
        done: f64,
        spent: &mut Spent,
    ) -> Result<Option<BatchResult>> {
        let started = Instant::now();
        let Some(lesson) = lesson else { return Ok(None) };
        let mut finite = true;
        if let Some(scaler) = &mut state.course.scaler {
            finite = lesson.is_finite()?;
            if !scaler.saw(finite) {
                return Ok(None);
            }
        }
        state.course.loss = (state.course.loss.0 + lesson.loss, state.course.loss.1 + 1);
        state.batch += 1;
        if finite {
            self.model.keep_statistics(lesson.statistics);
            for (sum, gradient) in state.sum.iter_mut().zip(lesson.gradients) {
                *sum = replicas::sum(sum.take(), gradient)?;
            }
            state.course.summed += 1;
        }
        let rate = self.options.rate * state.course.backoff * self.options.schedule.factor(done, self.options.warmup);
        let last = state.batch as usize == self.loader.batches();
        let mut norm = 0.0;
        if state.course.summed == self.options.accumulate || last && state.course.summed > 0 {
            let share = 1.0 / state.course.summed as f32;
            let sums =
                state.sum.iter_mut().map(|s| s.take().map(|s| if share < 1.0 { s.mul_scalar(share) } else { s }));
            let sums: Vec<Option<Float>> = sums.collect();
            if let Some(masks) = &mut self.masks {
                masks.feel(self.model.parameters(), &sums)?;
            }
            norm = state.optimiser.step(rate, self.model.parameters_mut(), sums)?;
            if let Some(masks) = &mut self.masks {
                let device = self.model.device().clone();
                masks.apply(done, self.model.parameters_mut(), &device)?;
            }
            state.course.summed = 0;
            state.step += 1;
            if let (Some(average), Some(stays)) = (&mut state.average, self.options.average) {
                // The first steps count more: an average that began with them would lag (Adam's correction).
                let stays = stays.min((1.0 + state.step as f64) / (10.0 + state.step as f64));
                for (a, p) in average.iter_mut().zip(self.model.parameters()) {
                    *a = a.clone().mul_scalar(stays).add(p.value.clone().mul_scalar(1.0 - stays))?;
                }
            }
        }
        spent.compute += started.elapsed().as_secs_f64();
        Ok(Some(BatchResult { parts: lesson.parts, norm, rate }))
    }

    /// The loss was not a number: back to the best model, at half the rate; a second time is the end.
    fn back_off(&mut self, state: &mut State, watcher: &mut dyn Watcher) -> Result<()> {
        if state.course.backoff < 1.0 {
            return Err(Error::data("the loss, or its gradient, is not a number, also at half the learning rate")
                .help(format!("lower {LR}, or look for broken samples")));
        }
        watcher.warn(
            "the loss, or its gradient, is not a number: going back to the best model, at half the learning rate",
        );
        state.course.backoff = 0.5;
        self.restore(&state.best)?;
        let count = self.model.parameters().len();
        state.optimiser = Optimiser::new(&self.options.optimiser, count);
        state.sum.iter_mut().for_each(|s| *s = None);
        state.course.summed = 0;
        state.average = self.average();
        state.batch += 1;
        Ok(())
    }

    /// Scores the model, and keeps it if it is the best.
    fn judge(&mut self, state: &mut State, watcher: &mut dyn Watcher, samples: u64, spent: &mut Spent) -> Result<()> {
        let started = Instant::now();
        self.align(watcher)?;
        let live: Option<Vec<Float>> = state.average.as_ref().map(|average| self.swap(average.clone()));
        let score = self.scored()?;
        // Of equal scores the later one stands: it has seen more. One with weights that are yet to go is none.
        let counts = self.masks.as_ref().is_none_or(Masks::are_final);
        let early = self.done(state, state.course.seconds) < SETTLES;
        let waits = early || !counts || score > state.course.best;
        state.course.idle = if waits { 0 } else { state.course.idle + 1 };
        if score >= state.course.best || !counts {
            state.best = self.model.state()?;
            state.course.best = if counts { score } else { Score::NONE };
        }
        live.map(|live| self.swap(live));
        state.course.remember(state.epoch + u64::from(state.batch > 0), score);
        spent.scoring += started.elapsed().as_secs_f64();
        let progress = self.progress(state, spent.samples_per_second(samples));
        watcher.scored(&progress, score.value, state.course.best.value)
    }

    /// Puts other values in the place of the parameters, and gives those.
    fn swap(&mut self, values: Vec<Float>) -> Vec<Float> {
        let swapped = self.model.parameters_mut().iter_mut().zip(values);
        swapped.map(|(p, v)| std::mem::replace(&mut p.value, v)).collect()
    }

    fn progress(&self, state: &State, samples_per_second: f64) -> Progress {
        Progress {
            step: state.step,
            epoch: state.epoch,
            batch: state.batch,
            loss: state.course.loss.0 / state.course.loss.1.max(1) as f64,
            parts: vec![],
            rate: self.options.rate
                * state.course.backoff
                * self.options.schedule.factor(self.done(state, 0.0), self.options.warmup),
            norm: 0.0,
            scale: state.course.scaler.as_ref().map(Scaler::scale),
            samples_per_second,
        }
    }

    fn restore(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        self.model.set_state(&state.iter().map(|(name, t)| (&name[..], t)).collect())
    }

    fn save(&self, state: &State, watcher: &mut dyn Watcher, spent: &mut Spent) -> Result<()> {
        let Some((checkpoints, digest)) = &self.checkpoints else { return Ok(()) };
        let started = Instant::now();
        watcher.saving()?;
        let names: Vec<&str> = self.model.parameters().iter().map(|p| &p.name[..]).collect();
        let mut tensors = prefixed("model/", self.model.state()?);
        tensors.extend(prefixed("optimiser/", state.optimiser.state(self.model.parameters())?));
        tensors.extend(prefixed("best/", state.best.clone()));
        for (name, average) in names.iter().zip(state.average.iter().flatten()) {
            tensors.push((format!("average/{name}"), float(average)?));
        }
        for (name, sum) in names.iter().zip(&state.sum) {
            if let Some(sum) = sum {
                tensors.push((format!("sum/{name}"), float(sum)?));
            }
        }
        let course = serde_json::to_value(&state.course).map_err(|e| Error::bug(format!("a checkpoint: {e}")))?;
        let State { step, epoch, batch, .. } = *state;
        checkpoints.save(&Checkpoint { step, epoch, batch, digest: digest.clone(), state: course, tensors })?;
        spent.saving += started.elapsed().as_secs_f64();
        Ok(())
    }

    fn resume(&mut self, state: &mut State, found: Checkpoint) -> Result<()> {
        let broken = || {
            Error::data("the checkpoint is not one of this program")
                .help(format!("begin anew: {FORCE} without {RESUME}"))
        };
        let part = |prefix: &str| -> HashMap<&str, &Tensor> {
            found.tensors.iter().filter_map(|(name, t)| Some((name.strip_prefix(prefix)?, t))).collect()
        };
        self.model.set_state(&part("model/"))?;
        let device = self.model.device().clone();
        state.optimiser.set_state(self.model.parameters(), &part("optimiser/"), &device);
        state.best = part("best/").into_iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
        let (averages, sums) = (part("average/"), part("sum/"));
        for (i, p) in self.model.parameters().iter().enumerate() {
            if let Some(average) = &mut state.average {
                average[i] = Float::upload(averages.get(&p.name[..]).ok_or_else(broken)?, &device)?;
            }
            state.sum[i] = sums.get(&p.name[..]).map(|t| Float::upload(t, &device)).transpose()?;
        }
        state.course = serde_json::from_value(found.state.clone()).map_err(|_| broken())?;
        (state.step, state.epoch, state.batch) = (found.step, found.epoch, found.batch);
        Ok(())
    }
}

fn float(x: &Float) -> Result<Tensor> {
    let data = x.clone().into_vec()?;
    Ok(Tensor::floats(DType::F32, x.shape(), &data))
}

fn prefixed(prefix: &str, tensors: Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
    tensors.into_iter().map(|(name, t)| (format!("{prefix}{name}"), t)).collect()
}
