//! Training jobs: hours long, resumable, watched.

mod ablation;
mod advice;
mod follower;
mod loaded;
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
    events::{Events, Monitor, watched},
    fit::unread,
    options::within,
};
use advice::CoresClock;
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    words::option,
};
use compress_runtime::{
    session::Backend,
    train::{
        augment::Augment,
        checkpoint::{Checkpoint, Checkpoints},
        job::{Ended, Job, JobOptions, Outcome, Watcher},
        loader::Share,
        lora::LoRA,
        model::Trainable,
        ranks::Team,
        teacher::Teacher,
    },
};
use follower::{Follower, Untold};
use loaded::LoadedJob;
use plan::DistillPlan;
use schemars::JsonSchema;
use serde::Serialize;
use std::{borrow::Cow, time::Instant};

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
    plan.augment == Augment::default()
}
