//! Training as passes ask for it: pruning with recovery, and quantisation-aware training.

use super::tuner;
use crate::{
    data::Sets,
    distill::workers,
    evaluator::{Evaluator, answers, in_order, measure, sequences},
    events::{Monitor, Progress},
    measure::{sized, timing_batch},
    shown,
};
use compress_compiler::{
    bound::made_bytes,
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    op::Op,
    pass::{RateTrial, Trained, Trainer, Training, Tuning, Weight},
    words::{
        counted,
        option::{self, CHANNELS_BY, DATA, LR},
    },
};
use compress_runtime::{
    burn::tensor::Float,
    dataset::sample,
    metrics::{Answers, Meaning, Metric},
    session::Backend,
    train::{
        augment::Augment,
        job::{Ended, Job, JobOptions, Progress as Course, Watcher, number},
        loader::{Loader, LoaderOptions, Share},
        loss::{LossOptions, Setting, Term},
        masks::Masks,
        model::{ModelOptions, Parameter, Trainable},
        optimiser::OptimiserOptions,
        replicas::{self, Learning, Replicas},
        schedule::Schedule,
        teacher::{Answer, Teacher},
    },
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Multiply-accumulates of a training that nobody sized: some minutes on two cores.
const MACS: f64 = 6e12;
/// A step computes about three times what a forward pass does.
const PASSES: f64 = 3.0;
/// Epochs of a training that nobody sized, and its steps where that makes few.
const EPOCHS: usize = 10;
const STEPS: usize = 1000;
/// Epochs of a small set at most.
const MOST_EPOCHS: usize = 50;
/// Weights that are only rounded move little: of both, and of the learning rate, a part is enough, and more leads away from
/// the teacher (measured: docs/recovery.md).
const ROUNDED_EPOCHS: f64 = 0.3;
const ROUNDED_RATE: f64 = 0.1;
/// Samples of an epoch at least, however large the model.
const LEAST_SAMPLES: usize = 512;

/// How much longer than its passes through the model a step takes: the optimiser, the teacher, scores.
const BESIDES: f64 = 1.3;

/// Samples for saliencies.
const SALIENCY_SAMPLES: usize = 2048;

/// Samples of a step at most.
const BATCH: usize = 64;
/// Bytes of values that a step may keep for its backward pass: larger batches are divided, and their gradients added up. The bound is the
/// same on all machines, so that the result is.
const KEPT_BYTES: u64 = 1 << 30;
/// The usual rate of long trainings, beside which trials look for a better one.
const RATE: f64 = 1e-3;
/// Where compression cost this part of the samples, labels lead as much as the teacher, whose answers the model can't give any more.
/// Where it cost less, that leads away from the teacher (measured: docs/recovery.md).
const DAMAGED: f64 = 0.02;
const DAMAGED_LABELS: f32 = 0.5;
const DAMAGED_TEMPERATURE: f32 = 1.0;
/// Rows that are normalised and have more values than this are learnt at a lower rate, in inverse proportion: each step of Adam moves
/// an output by as much as it has inputs (Yang et al. 2022; measured: docs/recovery.md).
const NARROW: f64 = 64.0;
/// Epochs without a better score after which the training has converged.
const PATIENCE: u64 = 3;
/// The share of the training in which the learning rate rises.
pub(super) const WARMUP: f64 = 0.05;

/// Trains graphs on the data of a run.
pub struct DataTrainer<'a> {
    /// The model as it was, which is learnt from, and the file of it.
    pub teacher: (&'a Path, &'a Graph),
    pub sets: &'a Sets,
    /// Times that every sample is seen, if that was asked for.
    pub epochs: Option<usize>,
    /// The highest learning rate, if that was asked for.
    pub rate: Option<f64>,
    pub seed: u64,
    pub backend: &'a Backend,
    pub monitor: &'a Monitor<'a>,
}

impl Trainer for DataTrainer<'_> {
    fn saliency(&self, graph: &Graph, constants: &[NodeId]) -> Result<Vec<Weight>> {
        let set = &self.sets.trained_on;
        let measure = measure(&Answers::of(self.teacher.1), &self.sets.validation, true);
        if !set.is_labelled() || !measure.metric.needs_labels() {
            let what = "the saliency taylor needs labels: without them the model would be its own teacher, and every gradient is zero";
            let help = format!("give labels with {DATA}, or choose by other than {CHANNELS_BY} taylor");
            return Err(Error::data(what).help(help));
        }
        let model = Trainable::new(graph, &ModelOptions::default(), &self.backend.device)?;
        let Size { samples, batch, parts, .. } = self.size(graph, 1.0, false);
        let loader = self.loader(samples.min(SALIENCY_SAMPLES), batch)?;
        let loss = LossOptions::usual(Setting { classes: true, labelled: true, ..Setting::default() });
        let steps = self.monitor.step("saliency", loader.batches());
        let mut saliency: Vec<Option<Float>> = vec![None; model.parameters().len()];
        let mut gradients = saliency.clone();
        for (batch, done) in loader.epoch(0, 0)?.zip(1..) {
            self.monitor.check()?;
            let how = Learning { loss: &loss, seed: 0, scale: 1.0 };
            let learnt = Replicas::default().learn(&model, how, Ok((&batch?, &Answer::default())), &())?;
            let lesson =
                learnt.lesson.ok_or_else(|| Error::data("the loss of the model on its data is not a number"))?;
            for (sum, gradient) in gradients.iter_mut().zip(lesson.gradients) {
                *sum = replicas::sum(sum.take(), gradient)?;
            }
            steps.advance(1);
            if done % parts != 0 && done < loader.batches() {
                continue;
            }
            for ((saliency, gradient), p) in saliency.iter_mut().zip(&mut gradients).zip(model.parameters()) {
                let now = gradient.take().map(|g| g.mul(p.value.clone())).transpose()?.map(Float::abs);
                *saliency = replicas::sum(saliency.take(), now)?;
            }
        }
        let share = 1.0 / loader.batches().max(1) as f32;
        let of = |(p, saliency): (&Parameter, Option<Float>)| {
            let saliency = saliency.map(|f| f.mul_scalar(share).into_vec()).transpose()?.unwrap_or_default();
            Ok(Weight { node: p.node(), values: p.value.clone().into_vec()?, saliency })
        };
        let wanted = model.parameters().iter().zip(saliency).filter(|(p, _)| constants.contains(&p.node()));
        wanted.map(of).collect()
    }

    fn tune(&self, graph: &mut Graph, tuning: Tuning) -> Result<(u64, usize)> {
        tuner::tune(self, graph, tuning)
    }

    fn train(&self, graph: &mut Graph, training: Training) -> Result<Trained> {
        let began = Instant::now();
        let held = &self.sets.validation;
        let set = &self.sets.trained_on;
        let (path, original) = self.teacher;
        let outputs = answers(original);
        let measure = measure(&outputs, held, true);
        let sequences = sequences(&outputs, &measure);
        let metric = measure.metric;
        let options = ModelOptions { scales: training.scales, ..ModelOptions::default() };
        let model = Trainable::new(graph, &options, &self.backend.device)?;
        let gradual = training.masking.is_some();
        let masks = Masks::new(model.parameters(), &training.masked, training.masking, &self.backend.device)?;
        let rounded = training.scales;
        let Size { epochs, samples, batch, parts } = self.size(graph, training.share, rounded);
        let loader = self.loader(samples, batch)?;
        let ask = |keep| Teacher::new(path, original, &[], self.backend, keep);
        let beside = if measure.metric.judges_alone() { None } else { Some(ask(held.set.len())?) };
        let judge = Evaluator::new(held, self.backend, beside, outputs, measure)?;
        let steps = loader.batches() * epochs;
        let first = loader.epoch(0, 0)?.next().transpose()?.ok_or_else(|| Error::data("no batch"))?;
        let step = model.duration_of_a_step(&first.inputs)?;
        let classes = measure.meaning == Meaning::Classes;
        let setting = Setting { classes, labelled: set.is_labelled(), taught: true, matched: false, sequences };
        let deployed = |graph: &Graph| {
            let mut graph = graph.clone();
            (training.deploy)(&mut graph)?;
            judge.score(&graph)
        };
        // What goes step by step has cost nothing yet.
        let judged = !rounded && !gradual && metric.is_share();
        let damaged = judged && judge.score(original)?.value - deployed(graph)?.value > DAMAGED;
        let asks_again = epochs > 1 || self.rate.is_none();
        let mut job = Job {
            replicas: Replicas::default(),
            teacher: Some(ask(if asks_again { set.len() } else { 0 })?),
            model,
            loader,
            options: self.options((epochs, parts), rate(graph, rounded), loss(setting, damaged)),
            score: &deployed,
            checkpoints: None,
            same_samples: true,
            masks: Some(masks),
        };
        let trials = if self.rate.is_none() { job.batches_of_trials() } else { 0 };
        self.announce(training.name, epochs, samples, step.mul_f64(BESIDES * (steps as u64 + trials) as f64));
        let rate_trials = match self.rate {
            Some(_) => vec![],
            None => self.find_rate(&mut job, training.name, rounded)?,
        };
        let rate = job.options.rate;
        let mut watcher = TrainWatcher {
            steps: self.monitor.step(training.name, steps),
            monitor: self.monitor,
            metric,
            epochs: epochs as u64,
            done: 0,
        };
        let done = job.run(false, &mut watcher)?;
        if done.ended == Ended::Stopped {
            return Err(Error::interrupted());
        }
        *graph = done.graph;
        Ok(Trained {
            name: training.name.into(),
            epochs: watcher.done,
            planned: epochs as u64,
            samples,
            steps: done.steps,
            seconds: began.elapsed().as_secs_f64(),
            metric: metric.name().into(),
            unit: metric.unit(),
            validated: held.indices.len(),
            before: number(done.first).filter(|_| !gradual),
            after: number(done.best),
            course: done.scores,
            rate: Some(rate),
            rate_trials,
            ended: if done.ended == Ended::Patience { "it had converged" } else { "all epochs were done" }.into(),
        })
    }
}

struct Size {
    epochs: usize,
    samples: usize,
    /// Samples that are computed at once.
    batch: usize,
    /// How many of these batches make a step.
    parts: usize,
}

impl DataTrainer<'_> {
    fn announce(&self, name: &str, epochs: usize, samples: usize, most: Duration) {
        let (epochs, samples) = (counted(epochs, "epoch"), counted(samples, "sample"));
        let most = shown::duration(most);
        self.monitor
            .note(&format!("{name}: {epochs} of {samples}, {most} or less; {} sets another number", option::EPOCHS));
    }

    /// How it trains: `usual` is the rate if none was asked for, and `part` what is taken of either.
    fn options(&self, (epochs, parts): (usize, usize), (usual, part): (f64, f64), loss: LossOptions) -> JobOptions {
        JobOptions {
            epochs: epochs as u64,
            accumulate: parts,
            rate: self.rate.unwrap_or(usual) * part,
            schedule: Schedule::Cosine,
            warmup: WARMUP,
            optimiser: OptimiserOptions::default(),
            loss,
            average: None,
            patience: self.epochs.is_none().then_some(PATIENCE),
            time: None,
            save_every: Duration::MAX,
            seed: self.seed,
        }
    }

    /// Chooses the learning rate by trials, which the samples that validate judge.
    fn find_rate(&self, job: &mut Job, name: &str, rounded: bool) -> Result<Vec<RateTrial>> {
        let held = &self.sets.validation;
        let held = in_order(held, held.set.fixed_batch().unwrap_or(job.loader.batch()))?;
        let steps = job.steps_of_a_trial();
        let batches = steps as usize * job.options.accumulate;
        let mut watcher = TrialWatcher { monitor: self.monitor, batches, last: (0, 0), trial: None };
        let trials = job.find_rate(&held, &mut watcher)?;
        let rate = job.options.rate;
        let loss = |t: &RateTrial| t.loss.map_or("not a number".into(), |loss| shown::digits(loss, 3));
        let told = trials.iter().map(|t| match t.rate > 0.0 {
            true => format!("{} at {}", loss(t), t.rate),
            false => format!("{} untrained", loss(t)),
        });
        let told = told.collect::<Vec<_>>().join(", ");
        let part = if rounded { ", of which it takes a tenth" } else { "" };
        self.monitor.note(&format!(
            "{name}: learning rate {rate}, chosen by trials of {} (loss on samples that validate: {told}); {LR} sets another{part}",
            counted(steps as usize, "step")
        ));
        Ok(trials)
    }

    /// So many of the samples to train on.
    pub(super) fn loader(&self, samples: usize, batch: usize) -> Result<Loader> {
        let set = &self.sets.trained_on;
        let options = LoaderOptions {
            batch,
            seed: self.seed,
            workers: workers(rayon::current_num_threads()),
            prefetch: 2,
            augment: Augment::default(),
            shuffle: true,
            drop_last: set.fixed_batch().is_some() || samples > batch,
            share: Share::default(),
        };
        Loader::new(set.clone(), sample(&self.sets.training, samples, self.seed), options)
    }

    /// How much to train. It follows from the model and the data alone, so that the result does too.
    fn size(&self, graph: &Graph, share: f64, rounded: bool) -> Size {
        // The sizes that samples have.
        let sample = timing_batch(&self.sets.validation, 1).ok();
        let sample = sample.and_then(|batch| sized(graph, &batch.inputs).ok());
        let sample = sample.as_ref().unwrap_or(graph);
        let (epochs, samples, batch) = self.course(sample, share, rounded);
        // Statistics of a batch are those of all of it.
        let is_whole = |n: NodeId| matches!(graph.op(n), Op::BatchNorm(_));
        if self.sets.trained_on.fixed_batch().is_some() || graph.operators().any(is_whole) {
            return Size { epochs, samples, batch, parts: 1 };
        }
        let (part, parts) = divided(batch, made_bytes(sample).unwrap_or(0));
        // A step of fewer parts than others would count as much.
        let samples = if parts > 1 && samples > part * parts { samples - samples % (part * parts) } else { samples };
        Size { epochs, samples, batch: part, parts }
    }

    /// Epochs, their samples, and the samples of a step.
    fn course(&self, sample: &Graph, share: f64, rounded: bool) -> (usize, usize, usize) {
        let all = self.sets.training.len();
        let batch = self.sets.trained_on.fixed_batch().unwrap_or((all / 16).clamp(1, BATCH));
        if let Some(epochs) = self.epochs {
            // A part of an epoch is one of fewer samples.
            let epochs = epochs as f64 * share;
            let samples = if epochs < 1.0 { (all as f64 * epochs) as usize } else { all };
            return (epochs.round().max(1.0) as usize, samples.max(batch).min(all), batch);
        }
        let macs: u64 = sample.operators().map(|n| sample.macs(n)).sum();
        let affordable = MACS / (PASSES * (macs as f64).max(1.0));
        let samples = (affordable as usize).max(LEAST_SAMPLES).min(all);
        let steps = (samples / batch).max(1);
        let most = EPOCHS.max(STEPS.div_ceil(steps)).min(MOST_EPOCHS) as f64;
        let share = if rounded { share * ROUNDED_EPOCHS } else { share };
        let epochs = (affordable / samples as f64).clamp(1.0, most) * share;
        (epochs.round().max(1.0) as usize, samples, batch)
    }
}

/// The samples of a step that are computed at once, and how many times as many make it, where values of a sample take so many `bytes`.
fn divided(batch: usize, bytes: u64) -> (usize, usize) {
    let part = (KEPT_BYTES / bytes.max(1)).clamp(1, batch as u64) as usize;
    (part, batch / part)
}

/// The usual learning rate of long trainings, and the part of any that is taken: less of weights that already have the values of codes.
fn rate(graph: &Graph, rounded: bool) -> (f64, f64) {
    (RATE * (NARROW / normalised(graph)).min(1.0), if rounded { ROUNDED_RATE } else { 1.0 })
}

/// The most values that a row has which is normalised.
fn normalised(graph: &Graph) -> f64 {
    let is_norm = |n: &NodeId| matches!(graph.op(*n), Op::LayerNorm(_) | Op::RmsNorm(_));
    let scale = |n: NodeId| graph.operand(n, 1).and_then(|scale| graph.constant(scale));
    let sizes = graph.operators().filter(is_norm).filter_map(scale).filter_map(|t| t.shape().last().copied());
    sizes.max().unwrap_or(1) as f64
}

/// What is learnt from.
fn loss(setting: Setting, damaged: bool) -> LossOptions {
    let usual = LossOptions::usual(setting);
    match damaged && setting.classes && setting.labelled {
        true => {
            usual.with(Term::Labels, DAMAGED_LABELS).with(Term::Distill, 1.0 - DAMAGED_LABELS).at(DAMAGED_TEMPERATURE)
        }
        false => usual,
    }
}

/// Shows the course of a training.
pub(super) struct TrainWatcher<'a> {
    pub steps: Progress<'a>,
    pub monitor: &'a Monitor<'a>,
    pub metric: Metric,
    pub epochs: u64,
    /// Epochs that are done.
    pub done: u64,
}

/// Shows the course of short trainings, one after the other.
struct TrialWatcher<'a> {
    monitor: &'a Monitor<'a>,
    /// Batches of a training.
    batches: usize,
    /// The epoch and the batch that were done last.
    last: (u64, u64),
    trial: Option<Progress<'a>>,
}

impl Watcher for TrialWatcher<'_> {
    fn batch(&mut self, p: &Course) -> Result<()> {
        let now = (p.epoch, p.batch);
        // Another training begins.
        if now <= self.last {
            self.trial = None;
        }
        self.last = now;
        self.trial.get_or_insert_with(|| self.monitor.minor_step("learning rate", self.batches)).advance(1);
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }
}

/// Epochs of which a line tells, or about so many.
const LINES: u64 = 10;

impl Watcher for TrainWatcher<'_> {
    fn batch(&mut self, _: &Course) -> Result<()> {
        self.steps.advance(1);
        Ok(())
    }

    fn scored(&mut self, p: &Course, score: f64, _: f64) -> Result<()> {
        self.done = p.epoch;
        if !p.epoch.is_multiple_of(self.epochs.div_ceil(LINES)) && p.epoch < self.epochs {
            return Ok(());
        }
        let loss = if p.epoch == 0 { String::new() } else { format!("loss {:.4}, ", p.loss) };
        self.monitor.note(&format!("  epoch {}: {loss}{} {}", p.epoch, self.metric, self.metric.unit().show(score)));
        Ok(())
    }

    fn warn(&mut self, what: &str) {
        self.monitor.note(&format!("warning: {what}"));
    }

    fn saving(&mut self) -> Result<()> {
        Ok(())
    }

    fn stopped(&self) -> bool {
        self.monitor.stopped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_divided_where_they_keep_too_much() {
        assert_eq!([divided(64, 0), divided(64, KEPT_BYTES / 64), divided(12, 1000)], [(64, 1), (64, 1), (12, 1)]);
        assert_eq!([divided(64, KEPT_BYTES / 63), divided(64, KEPT_BYTES / 7)], [(63, 1), (7, 9)]);
        assert_eq!([divided(64, KEPT_BYTES), divided(64, u64::MAX)], [(1, 64), (1, 64)]);
    }
}
