//! Whether loading limits the speed of a training job.

use super::{LoadedJob, advice::CoresClock, plan::DistillPlan};
use crate::{
    Distill,
    events::{Events, Monitor, watched},
    options::within,
};
use compress_compiler::error::{Error, Result};
use compress_runtime::{
    device::{GpuLoad, Watch},
    train::job::{Job, JobOptions, Source, Spent},
};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Duration;

/// How long each half takes unless told otherwise.
const TIME: Duration = Duration::from_secs(5);
/// The share of the speed that loading has to cost for it to be what limits.
const COSTS: f64 = 0.1;

/// How fast a job trains with its loader, and on one batch that stays where it is trained on.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Ablation {
    /// The model.
    pub student: String,
    /// The device.
    pub device: String,
    /// Samples of a batch.
    pub batch: usize,
    /// Threads that prepare samples.
    pub workers: usize,
    /// With the loader.
    pub loaded: TrainSpeed,
    /// Without.
    pub resident: TrainSpeed,
    /// The share of the speed that loading costs.
    pub loading_costs: f64,
    /// Whether that is a tenth or more.
    pub loading_limits: bool,
    /// What the GPU did with the loader; absent on the CPU, and where its driver says nothing.
    pub gpu: Option<GpuLoad>,
    /// What would make training faster, where something that was seen says so.
    pub advice: Option<String>,
}

/// How fast a job trains.
#[derive(Debug, Clone, Copy, JsonSchema, Serialize)]
pub struct TrainSpeed {
    /// Samples of a second.
    pub samples_per_second: f64,
    /// Where the time went.
    pub spent: Spent,
}

impl Distill {
    /// Trains for some seconds as [`Distill::run`] would, and as long on one batch. It writes nothing.
    ///
    /// # Errors
    /// Those of [`Distill::run`].
    pub fn ablate_data(&self, events: &mut dyn Events) -> Result<Ablation> {
        let plan = DistillPlan::new(self, false)?;
        watched(events, |monitor| within(self.threads, true, || ablate(&plan, monitor)))
    }
}

fn ablate(plan: &DistillPlan, monitor: &Monitor) -> Result<Ablation> {
    let backend = plan.open()?;
    let opened = LoadedJob::new(plan)?;
    let mut model = opened.trainable(plan, &backend)?;
    let teacher = opened.teacher(plan, &backend)?;
    let batch = opened.batch(plan, &mut model, None)?;
    let loader = opened.loader(plan, batch)?;
    let replicas = opened.replicas(plan, &backend, batch)?;
    let options = JobOptions { loss: opened.loss.clone(), ..plan.job.clone() };
    let score = |_: &_| Err(Error::bug("nothing is scored"));
    let mut job = Job {
        model,
        replicas,
        teacher,
        loader,
        options,
        score: &score,
        checkpoints: None,
        same_samples: false,
        masks: None,
    };
    let time = plan.job.time.map_or(TIME, |both| both / 2);
    let mut speed = |source| -> Result<TrainSpeed> {
        let (samples_per_second, spent) =
            job.speed(source, time, &|| monitor.stopped()).map_err(|e| e.in_file(&plan.recipe.student))?;
        Ok(TrainSpeed { samples_per_second, spent })
    };
    let (watch, clock) = (Watch::begin(&backend.device), CoresClock::start());
    let loaded = speed(Source::Loader)?;
    let gpu = watch.map(|watch| watch.so_far());
    let advice = opened.seen(plan, &loaded.spent, gpu.as_ref(), &clock).advice();
    let resident = speed(Source::OneBatch)?;
    let loading_costs = 1.0 - loaded.samples_per_second / resident.samples_per_second.max(1e-9);
    Ok(Ablation {
        student: plan.recipe.student.display().to_string(),
        device: backend.device.describe(),
        batch,
        workers: plan.workers,
        loading_limits: loading_costs >= COSTS,
        loading_costs,
        advice,
        gpu,
        loaded,
        resident,
    })
}
