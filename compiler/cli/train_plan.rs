//! A training recipe in, decisions out: everything is checked before any work.

use crate::{
    args::JobArgs,
    numbers,
    plan::{self, BackendPlan, DataPlan},
    train_args::{Batch, Recipe, TrainArgs},
};
use compress_compiler::error::{Error, Result};
use compress_runtime::{
    burn::precision::Precision,
    train::{
        augment::Augment,
        job::JobOptions,
        loss::LossOptions,
        optimiser::{Method, OptimiserOptions},
        schedule::Schedule,
    },
};
use regex::Regex;
use std::{path::PathBuf, time::Duration};

/// What a training job will do.
pub struct TrainPlan {
    pub student: PathBuf,
    pub teacher: Option<PathBuf>,
    pub output: PathBuf,
    /// Where checkpoints and logs go.
    pub folder: PathBuf,
    pub data: DataPlan,
    pub augment: Augment,
    pub batch: Batch,
    pub workers: usize,
    pub freeze: Vec<Regex>,
    /// Values of the student, and those of the teacher that they are matched with.
    pub matched: Vec<(String, String)>,
    pub from_nothing: bool,
    pub recompute: bool,
    pub precision: Precision,
    pub replicas: usize,
    pub on: BackendPlan,
    /// All but the loss.
    pub job: JobOptions,
    loss: AskedLoss,
    /// The recipe in full, for the report and the digest.
    pub recipe: Recipe,
}

/// What the user said of the loss; the rest follows from the models and the data.
struct AskedLoss {
    labels: Option<f64>,
    smoothing: f64,
    distill: Option<f64>,
    temperature: f64,
    mse: Option<f64>,
    features: f64,
}

const EPOCHS: usize = 10;
const BATCH: usize = 64;
const WARMUP: f64 = 0.05;
const CLIP: f64 = 5.0;
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// The most threads that prepare samples unless told otherwise: each holds a batch.
const WORKERS: usize = 8;

/// Threads that prepare samples unless told otherwise, beside so many that compute.
pub fn workers(threads: usize) -> usize {
    threads.min(WORKERS)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl TrainPlan {
    /// # Errors
    /// Usage for contradictions and impossible values; file when the output can't be there.
    pub fn new(recipe: Recipe, job: &JobArgs) -> Result<Self> {
        let a: TrainArgs = recipe.train.clone();
        let student = recipe.student.clone();
        let output = a.output.unwrap_or_else(|| student.with_extension("trained.onnx"));
        if plan::same_file(&student, &output) || a.teacher.as_ref().is_some_and(|t| plan::same_file(t, &output)) {
            return Err(Error::usage("the output is an input").in_file(&output).help("give another name with -o"));
        }
        let data = DataPlan::from_paths(a.data, a.eval, a.preprocess)?;
        if data.data.is_none() {
            return Err(
                Error::usage("training needs --data").help("labels are used if there are any; a teacher is enough")
            );
        }
        if a.teacher.is_none() && (a.distill.is_some() || a.mse.is_some() || !a.matched.is_empty()) {
            return Err(Error::usage("--distill, --mse and --match need a --teacher"));
        }
        let method: Method = a.optimiser.as_deref().map_or(Ok(Method::default()), str::parse)?;
        let (rate, decay) = match method {
            Method::AdamW => (1e-3, 1e-2),
            Method::Sgd => (0.05, 5e-4),
            Method::Lars => (1.0, 5e-4),
        };
        let time = |flag: &str, s: &Option<String>| match s {
            Some(s) => numbers::duration(s).map(Some).map_err(|why| Error::usage(format!("{flag} {s}: {why}"))),
            None => Ok(None),
        };
        let clip = a.clip.unwrap_or(CLIP);
        let pair = |s: &String| match s.split_once('=') {
            Some((ours, theirs)) if !ours.is_empty() && !theirs.is_empty() => Ok((ours.into(), theirs.into())),
            _ => Err(Error::usage(format!("--match {s}")).help("say --match STUDENT_VALUE=TEACHER_VALUE")),
        };
        let regex = |r: &String| Regex::new(r).map_err(|e| Error::usage(format!("--freeze {r}: {e}")));
        let made = Self {
            folder: a.checkpoint.unwrap_or_else(|| output.with_extension("job")),
            augment: a.augment.as_deref().map_or(Ok(Augment::default()), str::parse)?,
            batch: a.batch.unwrap_or(Batch::Fixed(BATCH)),
            workers: a.workers.unwrap_or_else(|| workers(a.threads.unwrap_or_else(cores))),
            freeze: a.freeze.iter().map(regex).collect::<Result<_>>()?,
            matched: a.matched.iter().map(pair).collect::<Result<_>>()?,
            from_nothing: a.from_nothing,
            recompute: a.recompute,
            precision: a.precision.as_deref().map_or(Ok(Precision::default()), str::parse)?,
            replicas: a.replicas.unwrap_or(1),
            on: BackendPlan::of(a.device.as_deref().unwrap_or("auto"), "auto", a.threads)?,
            job: JobOptions {
                epochs: a.epochs.unwrap_or(EPOCHS) as u64,
                accumulate: a.accumulate.unwrap_or(1),
                rate: a.lr.unwrap_or(rate),
                schedule: a.schedule.as_deref().map_or(Ok(Schedule::default()), str::parse)?,
                warmup: a.warmup.unwrap_or(WARMUP),
                optimiser: OptimiserOptions {
                    method,
                    momentum: a.momentum.unwrap_or(0.9),
                    nesterov: a.nesterov,
                    weight_decay: a.weight_decay.unwrap_or(decay) as f32,
                    clip: (clip > 0.0).then_some(clip as f32),
                },
                loss: LossOptions::default(),
                average: a.ema,
                patience: a.patience.map(|n| n as u64),
                time: time("--time", &a.time)?,
                save_every: time("--save-every", &a.save_every)?.unwrap_or(SAVE_EVERY),
                seed: a.seed.unwrap_or(0),
            },
            loss: AskedLoss {
                labels: a.labels,
                smoothing: a.smoothing.unwrap_or(0.0),
                distill: a.distill,
                temperature: a.temperature.unwrap_or(4.0),
                mse: a.mse,
                features: if a.matched.is_empty() { 0.0 } else { a.features.unwrap_or(1.0) },
            },
            teacher: a.teacher,
            student,
            output,
            data,
            recipe,
        };
        made.check_files(job)?;
        Ok(made)
    }

    /// The loss for a model whose outputs are scores of classes or not, and data with labels or not.
    ///
    /// # Errors
    /// Usage when there is nothing to learn from.
    pub fn loss(&self, classes: bool, labelled: bool) -> Result<LossOptions> {
        let (asked, taught) = (&self.loss, self.teacher.is_some());
        let usual = LossOptions::usual(classes, labelled, taught);
        let or = |asked: Option<f64>, usual: f32| asked.map_or(usual, |v| v as f32);
        let loss = LossOptions {
            labels: or(asked.labels, usual.labels),
            smoothing: asked.smoothing as f32,
            distill: or(asked.distill, usual.distill),
            temperature: asked.temperature as f32,
            mse: or(asked.mse, usual.mse),
            features: asked.features as f32,
        };
        if loss.labels > 0.0 && !labelled {
            return Err(Error::data("the data has no labels").help("give labels, or leave --labels out"));
        }
        if loss.labels == 0.0 && !loss.needs_teacher() {
            return Err(Error::usage("there is nothing to learn from: no teacher, and no labels of classes").help(
                "give --teacher MODEL, or labels in --data, and in --eval, for a model that tells classes apart",
            ));
        }
        Ok(loss)
    }

    /// Whether everything can be written that has to be.
    fn check_files(&self, job: &JobArgs) -> Result<()> {
        let writes = !job.dry_run;
        if self.output.as_os_str() == "-" {
            return Err(
                Error::usage("-o -: a job writes checkpoints and a report beside its model").help("give -o FILE")
            );
        }
        for path in [&self.output, &self.report_path()] {
            plan::replaceable(path)?;
            if writes && !job.force && !job.resume && path.exists() {
                let help = "pass --force, or give another place with -o";
                return Err(Error::file("exists already").in_file(path).help(help));
            }
        }
        if !writes {
            return Ok(());
        }
        let folder = self.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(".".as_ref());
        plan::made(folder)
    }

    /// Where the report goes.
    pub fn report_path(&self) -> PathBuf {
        self.output.with_extension("report.json")
    }
}
