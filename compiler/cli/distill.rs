//! `compress distill` and `compress run`: training jobs.

use crate::{
    args::{DistillArgs, JobArgs, RunRecipeArgs},
    data::{Samples, Sets},
    facts,
    fit::{Answers, check_filters, check_labels, check_teacher},
    terminal,
    train_args::{Batch, Recipe},
    train_plan::TrainPlan,
    train_progress::{Follower, shown},
    train_report::{TrainReport, Training, bound, show_finished},
    train_score::{Judge, measure},
};
use compress_compiler::{
    error::{Error, Result},
    onnx::{self, Model, SourceFile},
};
use compress_runtime::{
    metrics::{self, Meaning, Measure, Metric},
    session::Backend,
    train::{
        augment::Augment,
        checkpoint::{Checkpoint, Checkpoints},
        init,
        job::{self, Ended, Job, JobOptions, Outcome, Watcher},
        loader::{Loader, LoaderOptions},
        loss::LossOptions,
        model::{ModelOptions, Trainable},
        replicas::Replicas,
        teacher::Teacher,
    },
};
use std::{path::PathBuf, time::Instant};

/// What `--batch auto` stays within besides memory: batches so large that an epoch has but a few steps learn badly.
const STEPS_AN_EPOCH: usize = 16;
const LARGEST_BATCH: usize = 4096;

/// Runs `compress distill`.
///
/// # Errors
/// Those of the job.
pub fn run(args: DistillArgs) -> Result<()> {
    let recipe = Recipe { student: args.student, train: args.train };
    if let Some(path) = &args.save_recipe {
        onnx::write_atomic(path, recipe.text()?.as_bytes(), args.job.force)?;
    }
    train(recipe, &args.job)
}

/// Runs `compress run`.
///
/// # Errors
/// Those of the recipe and of the job.
pub fn run_recipe(args: RunRecipeArgs) -> Result<()> {
    train(Recipe::read(&args.recipe)?, &args.job)
}

fn train(recipe: Recipe, job: &JobArgs) -> Result<()> {
    let began = Instant::now();
    crate::keep_memory();
    let plan = TrainPlan::new(recipe, job)?;
    let backend = plan.on.open_among()?;
    let opened = Opened::new(&plan, job)?;
    let mut model = opened.trainable(&plan, &backend)?;
    let teacher = opened.teacher(&plan, &backend)?;
    if job.dry_run {
        let loader = opened.loader(&plan, opened.batch(&plan, &mut model, None)?)?;
        opened.replicas(&plan, &backend, loader.batch())?;
        terminal::print(&opened.summary(&plan, &model, &loader))?;
        opened.ignored_batch(&plan).iter().for_each(|note| eprintln!("note: {note}"));
        return Ok(());
    }
    let digest = opened.digest(&plan)?;
    let checkpoints = Checkpoints::open(&plan.folder)?;
    if !job.resume && !job.force && plan.folder.join("metrics.jsonl").exists() {
        return Err(Error::file("a job left its checkpoints here")
            .in_file(&plan.folder)
            .help("pass --resume to go on with it, --force to begin anew, or another folder with --checkpoint"));
    }
    // It is read again when the job begins: until then there is no need for its memory.
    let saved = if job.resume { checkpoints.latest(&digest)?.map(|(found, _)| found) } else { None };
    if job.resume && saved.is_none() {
        if show_finished(&plan, &digest, job)? {
            return Ok(());
        }
        if !job.quiet {
            eprintln!("note: there is no checkpoint to go on from: the job begins");
        }
    }
    let batch = opened.batch(&plan, &mut model, saved.as_ref())?;
    let resumed = saved.map(|c| (c.step, c.epoch, c.batch));
    let replicas = opened.replicas(&plan, &backend, batch)?;

    let judge = opened.judge(&backend)?;
    let loader = opened.loader(&plan, batch)?;
    let shape = (plan.job.epochs, loader.batches() as u64);
    let parameters = elements(&model);
    let mut follower =
        Follower::new(&plan.folder, resumed, shape, opened.measure.metric.name(), job.quiet || job.json)?;
    opened.ignored_batch(&plan).iter().for_each(|note| follower.warn(note));
    if let [first, rest @ ..] = model.left_out() {
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        follower.warn(&format!("`{first}`{more} stay as they are: nothing that learns reads them"));
    }
    let work = Job {
        model,
        replicas,
        teacher,
        loader,
        options: JobOptions { loss: opened.loss.clone(), ..plan.job.clone() },
        score: &|graph| judge.score(graph),
        checkpoints: Some((checkpoints, digest.clone())),
        same_samples: same_samples(&plan),
        masks: None,
    };
    let done = work.run(resumed.is_some(), &mut follower).map_err(|e| e.in_file(&plan.student))?;
    let mut warnings = opened.original.warnings.clone();
    warnings.append(&mut follower.warnings);
    drop(follower);
    if done.ended == Ended::Stopped {
        let help = format!("go on with --resume; the checkpoint is in {}", plan.folder.display());
        return Err(Error::interrupted().help(help));
    }
    let training = Training {
        metric: opened.measure.metric.name(),
        samples: opened.sets.evaluation.indices.len(),
        before: done.first,
        after: done.best,
        ended: done.ended,
        steps: done.steps,
        parameters,
        seconds: began.elapsed().as_secs_f64(),
        samples_per_second: done.spent.samples_per_second(done.samples),
        spent: done.spent,
        bound: bound(&done.spent),
        batch,
    };
    opened.write(&plan, job, &done, training, warnings, digest)
}

/// What to say where training was of no use.
fn nothing_better(t: &Training) -> Option<String> {
    let first = shown(t.metric, t.before);
    (t.after <= t.before).then(|| {
        format!(
            "no epoch has a better {} than the {first} that the job began with: what is written is that model, not trained",
            t.metric
        )
    })
}

fn elements(model: &Trainable) -> usize {
    model.parameters().iter().map(|p| p.value.elements()).sum()
}

/// Whether every epoch shows the model the same samples, so that the teacher's answers can be kept.
fn same_samples(plan: &TrainPlan) -> bool {
    plan.augment == Augment::default() && plan.job.epochs > 1
}

/// The files of a job, and what follows from them together.
struct Opened {
    original: Model,
    /// The model that is trained: the original, or one with random weights.
    student: Model,
    teacher: Option<(PathBuf, Model)>,
    sets: Sets,
    outputs: metrics::Answers,
    measure: Measure,
    loss: LossOptions,
    /// The digest of the data to train on.
    data: String,
}

impl Opened {
    fn new(plan: &TrainPlan, job: &JobArgs) -> Result<Self> {
        let read = job.read.clone().into();
        let original = onnx::read_with(&plan.student, &read)?;
        let teacher = match &plan.teacher {
            Some(path) => Some((path.clone(), onnx::read_with(path, &read)?)),
            None => None,
        };
        let mut student = original.clone();
        let weights = original.graph.ids().filter(|n| original.graph.constant((*n).into()).is_some());
        let weights: Vec<&str> = weights.map(|n| &original.graph.value(n.into()).name[..]).collect();
        check_filters("--freeze", &plan.freeze, &weights, "weight").map_err(|e| e.in_file(&plan.student))?;
        if plan.from_nothing {
            init::from_nothing(&mut student.graph, plan.job.seed);
        }
        let sets = Sets::open(&plan.data, &student.graph, usize::MAX, plan.job.seed)?;
        let outputs = metrics::Answers::of(&student.graph);
        let measure = measure(&outputs, &sets.evaluation, teacher.is_some());
        let by_labels = measure.metric == Metric::Top1;
        let loss = plan.loss(measure.meaning == Meaning::Classes, sets.calibration.set.is_labelled())?;
        let labelled = [(&sets.calibration, loss.labels > 0.0), (&sets.evaluation, by_labels)];
        for (samples, _) in labelled.into_iter().filter(|(_, used)| *used) {
            check_labels(&samples.set, &samples.indices, &student.graph)?;
        }
        if let Some((path, teacher)) = &teacher {
            let answers = match (!by_labels || loss.mse > 0.0, loss.distill > 0.0) {
                (true, _) => Answers::All,
                (_, true) => Answers::Scores,
                _ => Answers::None,
            };
            check_teacher(path, &teacher.graph, &student.graph, answers)?;
        }
        let data = sets.calibration.set.digest()?;
        Ok(Self { original, student, teacher, sets, outputs, measure, loss, data })
    }

    fn samples(&self) -> &Samples {
        &self.sets.calibration
    }

    /// The digest of all that the result follows from. Files may change between two runs, which then are not one job.
    fn digest(&self, plan: &TrainPlan) -> Result<String> {
        let scored = if plan.data.eval.is_some() { self.sets.evaluation.set.digest()? } else { self.data.clone() };
        let models = [Some(&self.original), self.teacher.as_ref().map(|(_, t)| t)].into_iter().flatten();
        let models: Vec<&str> = models.flat_map(|m| m.source().files()).map(SourceFile::sha256).collect();
        let all = [&plan.recipe.essence()?, &self.data, &scored, &models.join("\n")].map(String::as_str).join("\n");
        Ok(facts::sha256(all.as_bytes()))
    }

    fn trainable(&self, plan: &TrainPlan, backend: &Backend) -> Result<Trainable> {
        let features = plan.matched.iter().map(|(ours, _)| ours.clone()).collect();
        let options = ModelOptions {
            freeze: plan.freeze.clone(),
            features,
            recompute: plan.recompute,
            precision: plan.precision,
            ..ModelOptions::default()
        };
        Trainable::new(&self.student.graph, &options, &backend.device).map_err(|e| e.in_file(&plan.student))
    }

    /// The samples of a batch: what the model fixes, what was asked for, what the job had that goes on from `saved`
    /// (by now another number may fit the memory), or what fits the memory.
    fn batch(&self, plan: &TrainPlan, model: &mut Trainable, saved: Option<&Checkpoint>) -> Result<usize> {
        let Samples { set, indices, .. } = self.samples();
        match (set.fixed_batch(), plan.batch, saved.and_then(job::batch_of)) {
            (Some(n), ..) => Ok(n),
            (None, Batch::Fixed(n), _) => Ok(n.min(indices.len())),
            (None, Batch::Auto(_), Some(n)) => Ok(n),
            (None, Batch::Auto(_), None) => {
                let most = (indices.len() / STEPS_AN_EPOCH).clamp(1, LARGEST_BATCH);
                let sample =
                    |n: usize| Ok(set.batch(&indices.iter().cycle().take(n).copied().collect::<Vec<_>>())?.inputs);
                model.largest_batch(most, sample).map_err(|e| e.in_file(&plan.student))
            }
        }
    }

    /// What to say where the model decides on the size of batches and not who asked for one.
    fn ignored_batch(&self, plan: &TrainPlan) -> Option<String> {
        let (fixed, asked) = (self.samples().set.fixed_batch()?, plan.recipe.train.batch?);
        let asked = match asked {
            Batch::Fixed(n) if n == fixed => return None,
            Batch::Fixed(n) => n.to_string(),
            Batch::Auto(_) => "auto".into(),
        };
        Some(format!(
            "--batch {asked} is not heeded: the model takes {fixed} at once; --accumulate sums several batches"
        ))
    }

    fn replicas(&self, plan: &TrainPlan, backend: &Backend, batch: usize) -> Result<Replicas> {
        let refused = |why: &str| Err(Error::usage(format!("--replicas {}: {why}", plan.replicas)));
        match plan.replicas {
            1 => Ok(Replicas::default()),
            _ if !backend.device.is_cpu() => refused("replicas share the threads of a CPU"),
            _ if self.samples().set.fixed_batch().is_some() => refused("the model fixes the size of a batch"),
            n => Replicas::new(n, batch, rayon::current_num_threads()),
        }
    }

    fn loader(&self, plan: &TrainPlan, batch: usize) -> Result<Loader> {
        let Samples { set, indices, .. } = self.samples();
        let options = LoaderOptions {
            batch,
            seed: plan.job.seed,
            workers: plan.workers,
            prefetch: 2,
            augment: plan.augment,
            shuffle: true,
            drop_last: set.fixed_batch().is_some() || indices.len() > batch,
        };
        Loader::new(set.clone(), indices.clone(), options)
    }

    /// The teacher of the training, if its loss needs one.
    fn teacher(&self, plan: &TrainPlan, backend: &Backend) -> Result<Option<Teacher>> {
        let Some((path, model)) = self.teacher.as_ref().filter(|_| self.loss.needs_teacher()) else { return Ok(None) };
        let features: Vec<String> = plan.matched.iter().map(|(_, theirs)| theirs.clone()).collect();
        let keep = if same_samples(plan) { self.samples().set.len() } else { 0 };
        Teacher::new(path, &model.graph, &features, backend, keep).map(Some)
    }

    fn judge<'a>(&'a self, backend: &'a Backend) -> Result<Judge<'a>> {
        let held = &self.sets.evaluation;
        let teacher = match &self.teacher {
            Some((path, t)) if self.measure.metric != Metric::Top1 => {
                Some(Teacher::new(path, &t.graph, &[], backend, held.set.len())?)
            }
            _ => None,
        };
        Judge::new(held, backend, teacher, self.outputs.clone(), self.measure)
    }

    fn summary(&self, plan: &TrainPlan, model: &Trainable, loader: &Loader) -> String {
        format!(
            "{} ({} parameters in {} tensors) -> {}\n\
             {} epochs of {} batches of {}; {} samples to train on, {} to score\n",
            plan.student.display(),
            elements(model),
            model.parameters().len(),
            plan.output.display(),
            plan.job.epochs,
            loader.batches(),
            loader.batch(),
            self.samples().indices.len(),
            self.sets.evaluation.indices.len(),
        )
    }

    /// Writes the model, then its report; then the checkpoints are of no more use.
    fn write(
        &self,
        plan: &TrainPlan,
        job: &JobArgs,
        done: &Outcome,
        training: Training,
        warnings: Vec<String>,
        digest: String,
    ) -> Result<()> {
        let mut trained = self.student.clone();
        trained.graph = done.graph.clone();
        trained.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
        trained.set_metadata("compress.recipe", &facts::sha256(plan.recipe.essence()?.as_bytes()));
        let staged = onnx::stage(&trained, &plan.output, false).map_err(|e| e.in_file(&plan.student))?;
        let written = staged.read_back().map_err(|e| Error::bug(format!("the output does not read back: {e}")))?;
        let report = TrainReport {
            schema: 1,
            job: digest,
            input: facts::file(&plan.student, &self.original),
            teacher: self.teacher.as_ref().map(|(path, t)| facts::file(path, t)),
            output: facts::file(&plan.output, &written),
            warnings,
            undone: nothing_better(&training).into_iter().collect(),
            training,
            recipe: plan.recipe.clone(),
            data: self.data.clone(),
            version: env!("CARGO_PKG_VERSION"),
        };
        let force = job.force || job.resume;
        staged.commit(force)?;
        onnx::write_atomic(&plan.report_path(), terminal::json(&report)?.as_bytes(), force)?;
        done.checkpoints.iter().try_for_each(Checkpoints::clear)?;
        report.show(job)
    }
}
