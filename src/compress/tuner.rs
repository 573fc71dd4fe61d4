//! Training as the search for a way to quantise asks for it: weights adapt to being rounded.

use super::trainer::{DataTrainer, TrainWatcher, WARMUP};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    pass::Tuning,
};
use compress_runtime::{
    metrics::Metric,
    train::{
        job::{Ended, Job, JobOptions, Score},
        loss::{LossOptions, Term},
        masks::Masks,
        model::{ModelOptions, Trainable},
        optimiser::OptimiserOptions,
        replicas::Replicas,
        schedule::Schedule,
        teacher::Teacher,
    },
};
use std::time::Duration;

/// Multiply-accumulates of all forward passes: about two minutes on two cores.
const MACS: f64 = 1.2e12;
/// Samples that are seen, those of all epochs together: beyond that, weights do not get better.
const MOST_SEEN: usize = 4096;
/// Epochs at least: the first ones make weights worse, as the rate is high.
const LEAST_EPOCHS: usize = 4;
const MOST_EPOCHS: usize = 24;
/// Samples of a step: on PP-OCR, many small steps found more than few large ones.
const BATCH: usize = 2;
/// The highest learning rate, in codes.
const RATE: f64 = 0.003;
/// Bytes of the teacher's values that are kept on disk from epoch to epoch.
const KEPT_BYTES: usize = 2 << 30;

/// Trains the constants of `graph` that `tuning` names, on samples that neither judge nor measure. Returns the epochs and the samples of each.
///
/// # Errors
/// Whatever running and reading the data can raise; interrupted.
pub(super) fn tune(of: &DataTrainer, graph: &mut Graph, tuning: Tuning) -> Result<(u64, usize)> {
    let options =
        ModelOptions { features: tuning.places.clone(), only: Some(tuning.constants), ..ModelOptions::default() };
    let model = Trainable::new(graph, &options, &of.backend.device)?;
    let masks = Masks::as_in(tuning.teacher, model.parameters(), &of.backend.device)?;
    let set = &of.sets.trained_on;
    // Samples that change each other's answers are run one by one.
    let usual = BATCH.min(of.sets.calibration.batch);
    let batch = set.fixed_batch().unwrap_or(usual).min(of.sets.training.len());
    let seen = ((MACS / (tuning.macs as f64).max(1.0)) as usize).min(MOST_SEEN);
    let samples = of.sets.training.len().min((seen / LEAST_EPOCHS).max(batch));
    let epochs = of.epochs.unwrap_or((seen / samples).clamp(LEAST_EPOCHS, MOST_EPOCHS)).max(1);
    let loader = of.loader(samples, batch)?;
    let ask = |keep| Teacher::new(of.teacher.0, tuning.teacher, &tuning.places, of.backend, keep);
    let keep = if can_be_kept(of, &mut ask(0)?)? { set.len() } else { 0 };
    let mut watcher = TrainWatcher {
        steps: of.monitor.step("train", loader.batches() * epochs),
        monitor: of.monitor,
        metric: Metric::Sqnr,
        epochs: epochs as u64,
        done: 0,
    };
    let score = |graph: &Graph| Ok(Score::new((tuning.score)(graph)?, true, 0.0));
    let job = Job {
        replicas: Replicas::default(),
        teacher: Some(ask(keep)?),
        model,
        loader,
        options: JobOptions {
            epochs: epochs as u64,
            accumulate: 1,
            rate: RATE,
            schedule: Schedule::Cosine,
            warmup: WARMUP,
            optimiser: OptimiserOptions { weight_decay: 0.0, ..OptimiserOptions::default() },
            loss: LossOptions::default().with(Term::Features, 1.0).relative(),
            average: None,
            patience: None,
            time: tuning.time,
            save_every: Duration::MAX,
            seed: of.seed,
        },
        score: &score,
        checkpoints: None,
        same_samples: true,
        masks: Some(masks),
    };
    let done = job.run(false, &mut watcher)?;
    if done.ended == Ended::Stopped {
        return Err(Error::interrupted());
    }
    *graph = done.graph;
    Ok((watcher.done, samples))
}

/// Whether the teacher's values can be kept from epoch to epoch: they are not too many, and the first axis of each tells samples
/// apart.
fn can_be_kept(of: &DataTrainer, teacher: &mut Teacher) -> Result<bool> {
    let (set, some) = (&of.sets.trained_on, &of.sets.training);
    let mut shapes = |samples: &[usize]| -> Result<Vec<Vec<usize>>> {
        let answer = teacher.answer(&set.batch(samples)?.inputs, None)?;
        Ok(answer.outputs.iter().chain(&answer.features).map(|t| t.shape().to_vec()).collect())
    };
    let one = match (set.fixed_batch(), &some[..]) {
        (None, [a, b, ..]) => {
            let (one, two) = (shapes(&[*a])?, shapes(&[*a, *b])?);
            let is_one_more = |(one, two): (&Vec<usize>, &Vec<usize>)| matches!((&one[..], &two[..]), ([1, one @ ..], [2, two @ ..]) if one == two);
            if one.len() != two.len() || !one.iter().zip(&two).all(is_one_more) {
                return Ok(false);
            }
            one
        }
        (Some(1), [a, ..]) => shapes(&[*a])?,
        _ => return Ok(false),
    };
    let elements: usize = one.iter().map(|shape| shape.iter().product::<usize>()).sum();
    Ok(elements * size_of::<f32>() * set.len() <= KEPT_BYTES)
}
