//! Training jobs: hours long, resumable, watched.

mod ablation;
mod advice;
mod follower;
mod plan;
mod recipe;
mod report;
mod weights;

pub use ablation::{Ablation, TrainSpeed};
pub use recipe::Distill;
pub use report::{TrainFigures, TrainReport};
pub use weights::LossWeights;

pub(crate) use plan::workers;

use crate::{
    data::{Samples, Sets},
    evaluator::{Evaluator, answers, measure, sequences},
    events::{Events, Monitor, watched},
    facts, files,
    fit::{Answers, check_filters, check_labels, check_teacher, unread},
    options::within,
    recipe::Recipe,
    report::{self as reports, Recorded},
    values::Batch,
};
use advice::{CoresClock, Seen};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::{self, Model},
    words::{counted, option},
};
use compress_runtime::{
    device::GpuLoad,
    metrics::{self, Meaning, Measure},
    session::Backend,
    train::{
        augment::Augment,
        checkpoint::{Checkpoint, Checkpoints},
        init,
        job::{self, Ended, Job, JobOptions, Outcome, Spent, Watcher},
        loader::{Loader, LoaderOptions, Share},
        lora::LoRA,
        loss::{LossOptions, Setting, Takes},
        model::{ModelOptions, Trainable},
        ranks::Team,
        replicas::Replicas,
        teacher::Teacher,
    },
};
use follower::{Follower, Untold};
use plan::DistillPlan;
use schemars::JsonSchema;
use serde::Serialize;
use std::{borrow::Cow, path::PathBuf, time::Instant};

/// What a batch that fits the memory stays within besides: batches so large that an epoch has but a few steps learn badly.
const STEPS_AN_EPOCH: usize = 16;
const LARGEST_BATCH: usize = 4096;

/// What a training job would do.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct TrainIntent {
    /// The model to train.
    pub student: String,
    /// Where the result would go.
    pub output: String,
    /// Elements of the weights that would be trained.
    pub parameters: usize,
    /// Those weights.
    pub tensors: usize,
    /// Epochs.
    pub epochs: u64,
    /// Batches of an epoch.
    pub batches: usize,
    /// Samples of a batch.
    pub batch: usize,
    /// Samples to train on.
    pub samples: usize,
    /// Samples to score on.
    pub scored: usize,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
}

impl Distill {
    /// Trains the model. The result and its report are written at the end; checkpoints meanwhile.
    ///
    /// # Errors
    /// Usage for contradictions in the recipe; file; data for what doesn't fit the model; device; interrupted when `events`
    /// asks to stop, after a checkpoint.
    pub fn run(&self, events: &mut dyn Events) -> Result<TrainReport> {
        let team = Team::get();
        let recipe = self.divided(&team)?;
        let plan = team.agree(DistillPlan::new(&recipe, true), |_| String::new())?;
        watched(events, |monitor| within(self.threads, true, || train(&plan, monitor)))
    }

    /// The recipe with the number of replicas that ranks are unless it has one: the result follows from that.
    fn divided(&self, team: &Team) -> Result<Cow<'_, Self>> {
        let (ranks, asked) = (team.count(), self.replicas.map_or(1, |n| n.get()));
        match self.replicas {
            Some(_) if asked < ranks => Err(Error::usage(format!("{} {asked} for {ranks} ranks", option::REPLICAS))
                .help("each rank is a replica at least")),
            None if ranks > 1 => {
                let replicas = ranks.to_string().parse().map_err(|e| Error::bug(format!("{ranks} replicas: {e}")))?;
                Ok(Cow::Owned(Self { replicas: Some(replicas), ..self.clone() }))
            }
            _ => Ok(Cow::Borrowed(self)),
        }
    }

    /// What [`Distill::run`] would do.
    ///
    /// # Errors
    /// Those of [`Distill::run`].
    pub fn intent(&self, events: &mut dyn Events) -> Result<TrainIntent> {
        let plan = DistillPlan::new(self, false)?;
        watched(events, |monitor| within(self.threads, true, || intent(&plan, monitor)))
    }
}

fn intent(plan: &DistillPlan, monitor: &Monitor) -> Result<TrainIntent> {
    let backend = plan.open()?;
    let opened = LoadedJob::new(plan)?;
    monitor.check()?;
    let mut model = opened.trainable(plan, &backend)?;
    opened.teacher(plan, &backend)?;
    monitor.check()?;
    let loader = opened.loader(plan, opened.batch(plan, &mut model, None)?, &Share::default())?;
    opened.replicas(plan, &backend, loader.batch())?;
    Ok(TrainIntent {
        student: plan.recipe.student.display().to_string(),
        output: plan.output.display().to_string(),
        parameters: elements(&model),
        tensors: model.parameters().len(),
        epochs: plan.job.epochs,
        batches: loader.batches(),
        batch: loader.batch(),
        samples: opened.samples().indices.len(),
        scored: opened.sets.evaluation.indices.len(),
        warnings: opened.ignored_batch(plan).into_iter().chain(unread(&opened.sets)).collect(),
    })
}

fn train(plan: &DistillPlan, monitor: &Monitor) -> Result<TrainReport> {
    let began = Instant::now();
    let recipe = plan.recipe;
    let team = Team::get();
    let Ready { backend, opened, mut model, teacher, digest } =
        team.agree(Ready::new(plan), |ready| ready.digest.clone())?;
    let mut checkpoints = None;
    let start = team.told(|| {
        let folder = Checkpoints::open(&plan.folder)?;
        let start = start(plan, &folder, &digest, monitor)?;
        checkpoints = Some(folder);
        Ok(match start {
            Start::Finished(report) => Err(report),
            Start::From(saved) => {
                let batch = opened.batch(plan, &mut model, saved.as_ref())?;
                // The checkpoint is read again when the job begins: until then there is no need for its memory.
                Ok((batch, saved.map(|c| (c.step, c.epoch, c.batch))))
            }
        })
    })?;
    let (batch, resumed) = match start {
        Ok(start) => start,
        Err(report) => return Ok(TrainReport { done_before: true, ..*report }),
    };
    let replicas = opened.replicas(plan, &backend, batch)?;
    let judge = team.leads().then(|| opened.judge(&backend)).transpose()?;
    let loader = opened.loader(plan, batch, replicas.share())?;
    let shape = (plan.job.epochs, loader.batches() as u64);
    let (parameters, left_out) = (elements(&model), model.left_out().to_vec());
    let metric = opened.measure.metric;
    let score = |graph: &Graph| match &judge {
        Some(judge) => judge.score(&*opened.written(graph)?),
        None => Err(Error::bug("the first rank scores")),
    };
    let work = Job {
        replicas,
        teacher,
        loader,
        options: JobOptions { loss: opened.loss.clone(), ..plan.job.clone() },
        score: &score,
        checkpoints: checkpoints.map(|folder| (folder, digest.clone())),
        same_samples: same_samples(plan),
        masks: None,
        model,
    };
    let blamed = |e: Error| match e.kind() {
        Kind::Device => e,
        _ => opened.samples().unfit_if_given(e).in_file(&recipe.student),
    };
    let follower = || Follower::new(&plan.folder, resumed, shape, metric, &backend.device, monitor);
    let follower = team.agree(team.leads().then(follower).transpose(), |_| String::new())?;
    // One rank tells and writes.
    let Some(mut follower) = follower else {
        let done = work.run(resumed.is_some(), &mut Untold(monitor)).map_err(blamed)?;
        check_stopped(plan, &done)?;
        return team.told(|| Err(Error::bug("the first rank has the report")));
    };
    opened.ignored_batch(plan).iter().chain(&unread(&opened.sets)).for_each(|note| follower.warn(note));
    if let [first, rest @ ..] = &left_out[..] {
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        follower.warn(&format!("`{first}`{more} are not trained: no operator that can be trained reads them"));
    }
    if let Some([first, rest @ ..]) = opened.lora.as_ref().map(LoRA::left_out) {
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        follower.warn(&format!(
            "{} leaves `{first}`{more} as they are: they are too small for an update, or not read by products x W alone",
            option::LORA
        ));
    }
    let clock = CoresClock::start();
    let done = work.run(resumed.is_some(), &mut follower).map_err(blamed)?;
    let (gpu, cores_busy) = (follower.gpu(), clock.busy(plan::cores()));
    check_stopped(plan, &done)?;
    let warnings = opened.original.warnings.iter().cloned().chain(follower.warnings).collect();
    let training = TrainFigures {
        metric,
        samples: opened.sets.evaluation.indices.len(),
        before: done.first,
        after: done.best,
        ended: done.ended,
        steps: done.steps,
        parameters,
        seconds: began.elapsed().as_secs_f64(),
        samples_per_second: done.spent.samples_per_second(done.samples),
        spent: done.spent,
        bound: report::bound(&done.spent),
        advice: opened.seen(plan, batch, &backend, (&done.spent, gpu.as_ref(), cores_busy)).advice(),
        gpu,
        batch,
        ranks: team.count(),
        course: done.scores.clone(),
    };
    team.told(|| opened.write(plan, &done, training, warnings, digest))
}

/// What a job is made of, which all ranks have before it begins.
struct Ready {
    backend: Backend,
    opened: LoadedJob,
    model: Trainable,
    teacher: Option<Teacher>,
    digest: String,
}

impl Ready {
    fn new(plan: &DistillPlan) -> Result<Self> {
        let backend = plan.open()?;
        let opened = LoadedJob::new(plan)?;
        let model = opened.trainable(plan, &backend)?;
        let teacher = opened.teacher(plan, &backend)?;
        let digest = opened.digest(plan)?;
        Ok(Self { backend, opened, model, teacher, digest })
    }
}

/// # Errors
/// Interrupted when the user stopped the job.
fn check_stopped(plan: &DistillPlan, done: &Outcome) -> Result<()> {
    match done.ended {
        Ended::Stopped => {
            let help = format!("go on with {}; the checkpoint is in {}", option::RESUME, plan.folder.display());
            Err(Error::interrupted().help(help))
        }
        _ => Ok(()),
    }
}

/// Where a job starts.
enum Start {
    /// At a checkpoint, or at the beginning.
    From(Option<Checkpoint>),
    /// Nowhere: an earlier run finished it.
    Finished(Box<TrainReport>),
}

fn start(plan: &DistillPlan, checkpoints: &Checkpoints, digest: &str, monitor: &Monitor) -> Result<Start> {
    let recipe = plan.recipe;
    if !recipe.resume {
        if !recipe.force && plan.folder.join("metrics.jsonl").exists() {
            return Err(Error::file("a job left its checkpoints here").in_file(&plan.folder).help(format!(
                "pass {} to go on with it, {} to begin anew, or another folder with {}",
                option::RESUME,
                option::FORCE,
                option::CHECKPOINT
            )));
        }
        return Ok(Start::From(None));
    }
    if let Some((found, _)) = checkpoints.latest(digest)? {
        return Ok(Start::From(Some(found)));
    }
    if let Some(report) = report::finished(plan, digest)? {
        return Ok(Start::Finished(Box::new(report)));
    }
    monitor.note("note: there is no checkpoint to go on from: the job begins");
    Ok(Start::From(None))
}

/// What to say where training was of no use.
fn nothing_better(t: &TrainFigures) -> Option<String> {
    let first = t.metric.unit().show(t.before);
    let is_better = if t.metric.rises() { t.after > t.before } else { t.after < t.before };
    (!is_better).then(|| {
        let equal = if t.after == t.before { ", or the last that is as good" } else { "" };
        format!(
            "no epoch improved {} beyond the {first} at the start: the written model is the untrained one{equal}",
            t.metric
        )
    })
}

fn elements(model: &Trainable) -> usize {
    model.parameters().iter().map(|p| p.value.elements()).sum()
}

/// Whether every epoch shows the model the same samples, so that the teacher's answers can be kept.
fn same_samples(plan: &DistillPlan) -> bool {
    plan.augment == Augment::default() && plan.job.epochs > 1
}

/// The files of a job, and what follows from them together.
struct LoadedJob {
    original: Model,
    /// The model that is trained: the original, or one with random weights.
    student: Model,
    /// The updates that are trained in the place of its weights.
    lora: Option<LoRA>,
    teacher: Option<(PathBuf, Model)>,
    sets: Sets,
    outputs: metrics::Answers,
    measure: Measure,
    loss: LossOptions,
    /// The digest of the data to train on.
    data: String,
}

impl LoadedJob {
    fn new(plan: &DistillPlan) -> Result<Self> {
        let recipe = plan.recipe;
        let read = (&recipe.read).into();
        let original = onnx::read_with(&recipe.student, &read)?;
        let teacher = match &recipe.teacher {
            Some(path) => Some((path.clone(), onnx::read_with(path, &read)?)),
            None => None,
        };
        let mut student = original.clone();
        let weights = original.graph.ids().filter(|n| original.graph.constant((*n).into()).is_some());
        let weights: Vec<&str> = weights.map(|n| &original.graph.value(n.into()).name[..]).collect();
        check_filters(option::FREEZE, &recipe.freeze, &weights, "weight").map_err(|e| e.in_file(&recipe.student))?;
        if recipe.from_nothing {
            init::from_nothing(&mut student.graph, plan.job.seed);
        }
        let sets = Sets::open(&plan.data, &[], &student.graph, usize::MAX, plan.job.seed)?;
        let outputs = answers(&student.graph);
        let measure = measure(&outputs, &sets.evaluation, teacher.is_some());
        let by_labels = measure.metric.judges_alone();
        let sequences = sequences(&outputs, &measure);
        let classes = measure.meaning == Meaning::Classes;
        let labelled = sets.calibration.set.is_labelled();
        let loss = plan.loss(Setting { classes, labelled, sequences, ..Setting::default() })?;
        let labelled = [(&sets.calibration, loss.takes(Takes::Labels)), (&sets.evaluation, by_labels)];
        for (samples, _) in labelled.into_iter().filter(|(_, used)| *used) {
            check_labels(&samples.set, &samples.indices, &student.graph)?;
        }
        if let Some((path, teacher)) = &teacher {
            let answers = match (!by_labels || loss.takes(Takes::Outputs), loss.takes(Takes::Scores)) {
                (true, _) => Answers::All,
                (_, true) => Answers::Scores,
                _ => Answers::None,
            };
            check_teacher(path, &teacher.graph, &student.graph, answers)?;
        }
        let data = sets.calibration.set.digest()?;
        let lora =
            recipe.lora.map(|rank| LoRA::new(&student.graph, rank.get(), &plan.freeze, plan.job.seed)).transpose();
        let lora = lora.map_err(|e| e.in_file(&recipe.student))?;
        Ok(Self { lora, original, student, teacher, sets, outputs, measure, loss, data })
    }

    /// The models that the result is made from.
    fn models(&self) -> impl Iterator<Item = &Model> {
        [&self.original].into_iter().chain(self.teacher.as_ref().map(|(_, t)| t))
    }

    fn samples(&self) -> &Samples {
        &self.sets.calibration
    }

    /// The digest of all that the result follows from. Files may change between two runs, which then are not one job.
    fn digest(&self, plan: &DistillPlan) -> Result<String> {
        let scored = if plan.data.eval.is_some() { self.sets.evaluation.set.digest()? } else { self.data.clone() };
        let recorded = Recorded::new(&Recipe::Distill(plan.recipe.clone()), Some(self.data.clone()));
        Ok(facts::sha256([recorded.digest(self.models())?, scored].join("\n").as_bytes()))
    }

    fn trainable(&self, plan: &DistillPlan, backend: &Backend) -> Result<Trainable> {
        let features = plan.recipe.matched.iter().map(|m| m.student.clone()).collect();
        let options = ModelOptions {
            // Updates have names of their own, and what is frozen has none.
            freeze: if self.lora.is_some() { vec![] } else { plan.freeze.clone() },
            features,
            recompute: plan.recipe.recompute,
            precision: plan.precision,
            only: self.lora.as_ref().map(LoRA::trained),
            ..ModelOptions::default()
        };
        let graph = self.lora.as_ref().map_or(&self.student.graph, LoRA::graph);
        Trainable::new(graph, &options, &backend.device).map_err(|e| e.in_file(&plan.recipe.student))
    }

    /// The graph as it is written.
    fn written<'a>(&self, trained: &'a Graph) -> Result<Cow<'a, Graph>> {
        match &self.lora {
            Some(lora) => lora.merged(trained).map(Cow::Owned),
            None => Ok(Cow::Borrowed(trained)),
        }
    }

    /// The samples of a batch: what the model fixes, what was asked for, what the job had that goes on from `saved`
    /// (by now another number may fit the memory), or what fits the memory.
    fn batch(&self, plan: &DistillPlan, model: &mut Trainable, saved: Option<&Checkpoint>) -> Result<usize> {
        let Samples { set, indices, .. } = self.samples();
        match (set.fixed_batch(), plan.batch, saved.and_then(job::batch_of)) {
            (Some(n), ..) => Ok(n),
            (None, Batch::Fixed(n), _) => Ok(n.get().min(indices.len())),
            (None, Batch::Auto, Some(n)) => Ok(n),
            (None, Batch::Auto, None) => {
                let most = (indices.len() / STEPS_AN_EPOCH).clamp(1, LARGEST_BATCH);
                let sample =
                    |n: usize| Ok(set.batch(&indices.iter().cycle().take(n).copied().collect::<Vec<_>>())?.inputs);
                model.largest_batch(most, sample).map_err(|e| e.in_file(&plan.recipe.student))
            }
        }
    }

    /// What to say where the model decides on the size of batches and not who asked for one.
    fn ignored_batch(&self, plan: &DistillPlan) -> Option<String> {
        let (fixed, asked) = (self.samples().set.fixed_batch()?, plan.recipe.batch?);
        if matches!(asked, Batch::Fixed(n) if n.get() == fixed) {
            return None;
        }
        Some(format!(
            "{} {asked} has no effect: the model fixes its batch at {}; {} adds up the gradients of several batches",
            option::BATCH,
            counted(fixed, "sample"),
            option::ACCUMULATE
        ))
    }

    fn replicas(&self, plan: &DistillPlan, backend: &Backend, batch: usize) -> Result<Replicas> {
        let (team, asked) = (Team::get(), plan.replicas);
        let refused = |why: &str| {
            let what = if team.count() > 1 {
                format!("{} ranks", team.count())
            } else {
                format!("{} {asked}", option::REPLICAS)
            };
            Err(Error::usage(format!("{what}: {why}")))
        };
        match asked {
            1 => Ok(Replicas::default()),
            _ if self.samples().set.fixed_batch().is_some() => refused("the model fixes the size of a batch"),
            n if n > team.count() && !backend.device.is_cpu() => refused("replicas share the threads of a CPU"),
            n => Replicas::of(team, n, batch, rayon::current_num_threads()),
        }
    }

    /// The batches, of which this rank reads its `share`.
    fn loader(&self, plan: &DistillPlan, batch: usize, share: &Share) -> Result<Loader> {
        let Samples { set, indices, .. } = self.samples();
        let options = LoaderOptions {
            batch,
            seed: plan.job.seed,
            workers: plan.workers,
            prefetch: 2,
            augment: plan.augment,
            shuffle: true,
            drop_last: set.fixed_batch().is_some() || indices.len() > batch,
            share: share.clone(),
        };
        Loader::new(set.clone(), indices.clone(), options)
    }

    /// What its speed is judged by: where the time went, what the GPU did, and the share of the cores that worked.
    fn seen<'a>(
        &self,
        plan: &DistillPlan,
        batch: usize,
        backend: &Backend,
        (spent, gpu, cores_busy): (&'a Spent, Option<&'a GpuLoad>, f64),
    ) -> Seen<'a> {
        let Samples { set, indices, .. } = self.samples();
        Seen {
            spent,
            gpu,
            cores_busy,
            cores: plan::cores(),
            workers: plan.workers,
            pictures: set.are_pictures(),
            augmented: plan.augment != Augment::default(),
            more_samples: set.fixed_batch().is_none() && batch < indices.len(),
            precision: plan.precision,
            multiplies_halves: backend.device.multiplies_halves(),
            recompute: plan.recipe.recompute,
        }
    }

    /// The teacher of the training, if its loss needs one.
    fn teacher(&self, plan: &DistillPlan, backend: &Backend) -> Result<Option<Teacher>> {
        let Some((path, model)) = self.teacher.as_ref().filter(|_| self.loss.needs_teacher()) else { return Ok(None) };
        let features: Vec<String> = plan.recipe.matched.iter().map(|m| m.teacher.clone()).collect();
        let keep = if same_samples(plan) { self.samples().set.len() } else { 0 };
        Teacher::new(path, &model.graph, &features, backend, keep).map(Some)
    }

    fn judge<'a>(&'a self, backend: &'a Backend) -> Result<Evaluator<'a>> {
        let held = &self.sets.evaluation;
        let teacher = match &self.teacher {
            Some((path, t)) if !self.measure.metric.judges_alone() => {
                Some(Teacher::new(path, &t.graph, &[], backend, held.set.len())?)
            }
            _ => None,
        };
        Evaluator::new(held, backend, teacher, self.outputs.clone(), self.measure)
    }

    /// Writes the model, then its report; then the checkpoints are of no more use.
    fn write(
        &self,
        plan: &DistillPlan,
        done: &Outcome,
        training: TrainFigures,
        warnings: Vec<String>,
        digest: String,
    ) -> Result<TrainReport> {
        let recipe = plan.recipe;
        let recorded = Recorded::new(&Recipe::Distill(recipe.clone()), Some(self.data.clone()));
        let mut trained = self.student.clone();
        trained.graph = self.written(&done.graph)?.into_owned();
        trained.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
        trained.set_metadata("compress.recipe", &recorded.digest(self.models())?);
        let staged = onnx::stage(&trained, &plan.output, false).map_err(|e| e.in_file(&recipe.student))?;
        let written = staged.read_back().map_err(|e| Error::bug(format!("the output does not read back: {e}")))?;
        let report = TrainReport {
            schema: reports::SCHEMA,
            job: digest,
            input: facts::file(&recipe.student, &self.original),
            teacher: self.teacher.as_ref().map(|(path, t)| facts::file(path, t)),
            output: facts::file(&plan.output, &written),
            warnings,
            undone: nothing_better(&training).into_iter().collect(),
            training,
            recipe: recorded,
            data: self.data.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            done_before: false,
        };
        let force = recipe.force || recipe.resume;
        files::free(&plan.report_path(), force, &option::OUTPUT.to_string())?;
        staged.commit(force)?;
        onnx::write_atomic(&plan.report_path(), reports::json(&report)?.as_bytes(), force)?;
        done.checkpoints.iter().try_for_each(Checkpoints::clear)?;
        Ok(report)
    }
}
