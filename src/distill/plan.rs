//! A training recipe in, decisions out: everything is checked before any work.

use super::Distill;
use crate::{
    files,
    options::{DataOptions, expressions},
    values::Batch,
};
use compress_compiler::{
    error::{Error, Result},
    words::{Opt, option},
};
use compress_runtime::{
    burn::precision::Precision,
    session::{Backend, EngineChoice},
    train::{
        augment::Augment,
        job::JobOptions,
        loss::{LossOptions, Setting, Takes, Term},
        optimiser::{Method, OptimiserOptions},
    },
};
use regex::Regex;
use std::{path::PathBuf, time::Duration};

/// What a training job will do.
pub struct DistillPlan<'a> {
    /// The recipe, for the report and the digest.
    pub recipe: &'a Distill,
    pub output: PathBuf,
    /// Where checkpoints and logs go.
    pub folder: PathBuf,
    pub data: DataOptions,
    pub augment: Augment,
    pub batch: Batch,
    pub workers: usize,
    pub freeze: Vec<Regex>,
    pub precision: Precision,
    pub replicas: usize,
    /// All but the loss.
    pub job: JobOptions,
}

const EPOCHS: u64 = 10;
const BATCH: usize = 64;
const WARMUP: f64 = 0.05;
const MOMENTUM: f64 = 0.9;
const CLIP: f64 = 5.0;
const SAVE_EVERY: Duration = Duration::from_secs(60);
/// The most threads that prepare samples unless told otherwise: each holds a batch.
const WORKERS: usize = 8;

/// Threads that prepare samples unless told otherwise, beside so many that compute.
pub fn workers(threads: usize) -> usize {
    threads.min(WORKERS)
}

/// Cores of this machine.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl<'a> DistillPlan<'a> {
    /// `writes` says that the job is going to be run.
    ///
    /// # Errors
    /// Usage for contradictions and impossible values; file when the output can't be there.
    pub fn new(r: &'a Distill, writes: bool) -> Result<Self> {
        let output = r.output();
        if files::same(&r.student, &output) || r.teacher.as_ref().is_some_and(|t| files::same(t, &output)) {
            let help = format!("give another name with {}", option::OUTPUT);
            return Err(Error::usage("the output would replace an input").in_file(&output).help(help));
        }
        if r.data.is_none() {
            return Err(Error::usage(format!("training needs {}", option::DATA))
                .help("labels are used if there are any; a teacher is enough"));
        }
        if r.lora.is_some() && r.from_nothing {
            let why =
                format!("{} updates weights that were trained, and {} has none", option::LORA, option::FROM_NOTHING);
            return Err(Error::usage(why).help(format!("leave {} away", option::LORA)));
        }
        let learnt = r.weights.asked().map(|(term, _)| term).find(|term| term.takes() != Takes::Labels);
        let learnt = learnt.map(|term| Opt(term.name())).or((!r.matched.is_empty()).then_some(option::MATCH));
        if let Some(learnt) = learnt.filter(|_| r.teacher.is_none()) {
            return Err(Error::usage(format!("{learnt} needs a {}", option::TEACHER)));
        }
        let unmatched = r.weights.asked().map(|(term, _)| term).find(|term| term.takes() == Takes::Features);
        if let Some(term) = unmatched.filter(|_| r.matched.is_empty()) {
            return Err(Error::usage(format!("{} needs a {}", Opt(term.name()), option::MATCH)));
        }
        if r.answers.is_some() {
            let others = [
                (option::TEACHER, r.teacher.is_none(), "needs"),
                (option::MATCH, !r.matched.is_empty(), "has only outputs, not the values of"),
                (
                    option::AUGMENT,
                    r.augment.is_some_and(|how| how != Augment::default()),
                    "has no answers to samples changed by",
                ),
            ];
            if let Some((other, _, why)) = others.into_iter().find(|(_, is, _)| *is) {
                return Err(Error::usage(format!("{} {why} {other}", option::ANSWERS)));
            }
        }
        // 64 is within the bounds.
        let batch = r.batch.unwrap_or(Batch::Fixed(BATCH.try_into().expect("64 samples")));
        let made = Self {
            folder: r.folder(),
            data: DataOptions {
                data: r.data.clone(),
                eval: r.eval.clone(),
                preprocess: r.preprocess.clone(),
                tokenizer: r.tokenizer.clone(),
                tokens: r.tokens,
                encoder: r.encoder.clone(),
            }
            .beside(&r.student)?,
            augment: r.augment.unwrap_or_default(),
            batch,
            workers: r.workers.map_or_else(|| workers(r.threads.map_or_else(cores, |n| n.get())), |n| n.get()),
            freeze: expressions(&r.freeze),
            precision: r.precision.unwrap_or_default(),
            replicas: r.replicas.map_or(1, |n| n.get()),
            job: job(r),
            recipe: r,
            output,
        };
        made.check_files(writes)?;
        Ok(made)
    }

    /// The device to train on.
    ///
    /// # Errors
    /// Device when it is not there.
    pub fn open(&self) -> Result<Backend> {
        Backend::open(self.recipe.device.unwrap_or_default(), EngineChoice::Auto, None)
    }

    /// The loss for a model and data of which this is known.
    ///
    /// # Errors
    /// Usage when there is nothing to learn from.
    pub fn loss(&self, known: Setting) -> Result<LossOptions> {
        let asked = self.recipe;
        let matched = !asked.matched.is_empty();
        let labelled = known.labelled || known.sequences.is_some();
        let usual = LossOptions::usual(Setting { taught: asked.teacher.is_some(), matched, ..known });
        let weights = asked.weights.asked();
        let loss = weights
            .fold(usual, |loss, (term, weight)| loss.with(term, weight.get() as f32))
            .smoothed(asked.smoothing.unwrap_or_default().get() as f32);
        let loss = match asked.temperature {
            Some(temperature) => loss.at(temperature.get() as f32),
            None => loss,
        };
        if loss.takes(Takes::Labels) && !labelled {
            let help = format!("give labels, or leave {} out", Opt(Term::Labels.name()));
            return Err(Error::data("the data has no labels").help(help));
        }
        if !loss.takes(Takes::Labels) && !loss.needs_teacher() {
            let (teacher, data, eval) = (option::TEACHER, option::DATA, option::EVAL);
            let nothing = "there is nothing to learn from: no teacher, no labels of classes, and no decoder with a cache, whose labels are \
                           the next tokens";
            return Err(Error::usage(nothing).help(format!(
                "give {teacher} MODEL, or labels in {data}, and in {eval}, for a model that tells classes apart"
            )));
        }
        Ok(loss)
    }

    /// Whether everything can be written that has to be.
    fn check_files(&self, writes: bool) -> Result<()> {
        let Self { recipe, output, .. } = self;
        if output.as_os_str() == "-" {
            let (option, what) = (option::OUTPUT, "a job writes checkpoints and a report beside its model");
            return Err(Error::usage(format!("{option} -: {what}")).help(format!("give {option} FILE")));
        }
        for path in [output, &self.report_path()] {
            files::free(path, !writes || recipe.force || recipe.resume, &option::OUTPUT.to_string())?;
        }
        if !writes {
            return Ok(());
        }
        let folder = output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(".".as_ref());
        files::made(folder)
    }

    /// Where the report goes.
    pub fn report_path(&self) -> PathBuf {
        self.output.with_extension("report.json")
    }
}

/// All of a job but its loss, which depends on models and data.
fn job(r: &Distill) -> JobOptions {
    let method = r.optimiser.unwrap_or_default();
    let (rate, decay) = match method {
        Method::AdamW => (1e-3, 1e-2),
        Method::Sgd => (0.05, 5e-4),
        Method::Lars => (1.0, 5e-4),
    };
    let clip = r.clip.map_or(CLIP, |v| v.get());
    JobOptions {
        epochs: r.epochs.map_or(EPOCHS, |n| n.get() as u64),
        accumulate: r.accumulate.map_or(1, |n| n.get()),
        rate: r.lr.map_or(rate, |v| v.get()),
        schedule: r.schedule.unwrap_or_default(),
        warmup: r.warmup.map_or(WARMUP, |v| v.get()),
        optimiser: OptimiserOptions {
            method,
            momentum: r.momentum.map_or(MOMENTUM, |v| v.get()),
            nesterov: r.nesterov,
            weight_decay: r.weight_decay.map_or(decay, |v| v.get()) as f32,
            clip: (clip > 0.0).then_some(clip as f32),
        },
        loss: LossOptions::default(),
        average: r.ema.map(|v| v.get()),
        patience: r.patience.map(|n| n.get() as u64),
        time: r.time.map(|t| t.get()),
        save_every: r.save_every.map_or(SAVE_EVERY, |t| t.get()),
        seed: r.seed.unwrap_or_default().0,
    }
}
