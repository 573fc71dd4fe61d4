//! Whether loading limits the speed of a training job.

use super::{
    LoadedJob,
    advice::CoresClock,
    plan::{self, DistillPlan},
};
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

/// How long it takes unless told otherwise.
const TIME: Duration = Duration::from_secs(10);
/// Rounds, each with the loader and without: other work on the machine changes from one to the next.
const ROUNDS: u32 = 3;
/// What a round takes of its time before it counts.
const WARM: f64 = 1.2;
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
    /// The share of the speed that loading costs, by the middle rounds; 0 where it costs nothing.
    pub loading_costs: f64,
    /// Whether that is a tenth or more; absent where rounds differ by more than that.
    pub loading_limits: Option<bool>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
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
    let replicas = opened.replicas(plan, &backend, batch)?;
    let loader = opened.loader(plan, batch, replicas.share())?;
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
    let time = plan.job.time.unwrap_or(TIME).div_f64(f64::from(2 * ROUNDS) * WARM);
    let (mut loaded, mut resident) = (vec![], vec![]);
    let mut seen = None;
    for _ in 0..ROUNDS {
        for (source, speeds) in [(Source::Loader, &mut loaded), (Source::OneBatch, &mut resident)] {
            let mut begun = None;
            let mut begins = || begun = Some((Watch::begin(&backend.device), CoresClock::start()));
            let (samples_per_second, spent) = job
                .speed(source, time, &mut begins, &|| monitor.stopped())
                .map_err(|e| e.in_file(&plan.recipe.student))?;
            speeds.push(TrainSpeed { samples_per_second, spent });
            if let (Source::Loader, Some((watch, clock))) = (source, begun) {
                seen = Some((spent, watch.map(|watch| watch.so_far()), clock.busy(plan::cores())));
            }
        }
    }
    let [loaded, resident] = [loaded, resident].map(Rounds::of);
    let loading_costs = (1.0 - loaded.middle() / resident.middle().max(1e-9)).max(0.0);
    let (spent, gpu, cores_busy) = seen.ok_or_else(|| Error::bug("no round with the loader"))?;
    let advice = opened.seen(plan, batch, &backend, (&spent, gpu.as_ref(), cores_busy)).advice();
    Ok(Ablation {
        student: plan.recipe.student.display().to_string(),
        device: backend.device.describe(),
        batch,
        workers: plan.workers,
        loading_limits: limits(&loaded, &resident, loading_costs),
        loading_costs,
        warnings: opened.ignored_batch(plan).into_iter().collect(),
        advice,
        gpu,
        loaded: loaded.0[loaded.0.len() / 2],
        resident: resident.0[resident.0.len() / 2],
    })
}

/// What the rounds of one kind were, the slowest first.
struct Rounds(Vec<TrainSpeed>);

impl Rounds {
    fn of(mut speeds: Vec<TrainSpeed>) -> Self {
        speeds.sort_by(|a, b| a.samples_per_second.total_cmp(&b.samples_per_second));
        Self(speeds)
    }

    fn middle(&self) -> f64 {
        self.0[self.0.len() / 2].samples_per_second
    }

    /// How far the slowest is from the fastest, in parts of that.
    fn spread(&self) -> f64 {
        match (self.0.first(), self.0.last()) {
            (Some(slowest), Some(fastest)) => 1.0 - slowest.samples_per_second / fastest.samples_per_second.max(1e-9),
            _ => 0.0,
        }
    }
}

/// Whether loading limits; `None` where rounds of one kind differ by more than the two kinds do.
fn limits(loaded: &Rounds, resident: &Rounds, costs: f64) -> Option<bool> {
    let spread = loaded.spread().max(resident.spread());
    match costs >= COSTS {
        true if costs > spread => Some(true),
        false if spread < COSTS => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds(speeds: [f64; 3]) -> Rounds {
        Rounds::of(speeds.map(|samples_per_second| TrainSpeed { samples_per_second, spent: Spent::default() }).into())
    }

    #[test]
    fn noise_is_no_verdict() {
        let verdict = |loaded, resident| {
            let (loaded, resident) = (rounds(loaded), rounds(resident));
            limits(&loaded, &resident, (1.0 - loaded.middle() / resident.middle()).max(0.0))
        };
        assert_eq!(verdict([50.0, 52.0, 51.0], [100.0, 99.0, 97.0]), Some(true));
        assert_eq!(verdict([98.0, 96.0, 97.0], [100.0, 99.0, 97.0]), Some(false));
        assert_eq!(verdict([60.0, 85.0, 95.0], [100.0, 99.0, 97.0]), None);
        assert_eq!(verdict([99.0, 98.0, 97.0], [100.0, 60.0, 97.0]), None);
    }
}
