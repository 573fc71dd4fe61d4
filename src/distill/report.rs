//! What a training job says at its end: the report beside the model.

use super::plan::DistillPlan;
use crate::{
    facts::sha256,
    report::{FileFacts, Recorded},
};
use compress_compiler::{
    error::{Error, Result},
    pass::EpochScore,
    words::option::{FORCE, OUTPUT},
};
use compress_runtime::{
    device::GpuLoad,
    metrics::Metric,
    train::job::{Ended, Spent},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a job's report says.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct TrainReport {
    /// The version of this layout.
    pub schema: u32,
    /// The digest of all that the result follows from.
    pub job: String,
    /// The model as it was.
    pub input: FileFacts,
    /// The model that was learnt from.
    pub teacher: Option<FileFacts>,
    /// The model that was trained.
    pub output: FileFacts,
    /// The course of the training.
    pub training: TrainFigures,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
    /// What was asked for and not done.
    pub undone: Vec<String>,
    /// What is needed to run it again.
    pub recipe: Recorded,
    /// The digest of the data.
    pub data: String,
    /// The version of this program.
    pub version: String,
    /// Whether the job was done before, and nothing was done now.
    #[serde(skip)]
    pub done_before: bool,
}

/// What was trained, how well and how fast.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct TrainFigures {
    /// What it was scored by.
    pub metric: Metric,
    /// Samples that the score is of.
    pub samples: usize,
    /// The score of the model that the job began with.
    pub before: f64,
    /// The best score.
    pub after: f64,
    /// Why it ended.
    pub ended: Ended,
    /// Steps that were done.
    pub steps: u64,
    /// Elements of the weights that were trained.
    pub parameters: usize,
    /// Wall time.
    pub seconds: f64,
    /// The speed, scores and checkpoints aside.
    pub samples_per_second: f64,
    /// Where the time went.
    pub spent: Spent,
    /// The same in words.
    pub bound: String,
    /// What would make it faster, where something that was seen says so.
    #[serde(default)]
    pub advice: Option<String>,
    /// What the GPU did; absent on the CPU, and where its driver says nothing.
    #[serde(default)]
    pub gpu: Option<GpuLoad>,
    /// Samples of a batch.
    pub batch: usize,
    /// Processes that trained together.
    #[serde(default = "alone")]
    pub ranks: usize,
    /// Its course, from before the first step on; absent in reports of earlier versions.
    #[serde(default)]
    pub course: Vec<EpochScore>,
}

/// The ranks of reports that don't tell them.
fn alone() -> usize {
    1
}

impl TrainReport {
    /// What the job amounts to.
    ///
    /// # Errors
    /// If `strict`, gate for what was not done.
    pub fn verdict(&self, strict: bool) -> Result<()> {
        match self.undone.first() {
            Some(what) if strict && !self.done_before => Err(Error::gate(what.clone())),
            _ => Ok(()),
        }
    }
}

/// The report of the job of this digest, where it is done: its model and the report are there. `None` when the model is not
/// there any more.
///
/// # Errors
/// File when another job left its model there.
pub fn finished(plan: &DistillPlan, digest: &str) -> Result<Option<TrainReport>> {
    let path = plan.report_path();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    // What is not such a report is that of another job.
    let report = serde_json::from_str::<TrainReport>(&text).ok().filter(|r| r.job == digest);
    let sha256 = std::fs::read(&plan.output).ok().map(|model| sha256(&model));
    match (report, sha256) {
        _ if plan.recipe.force => Ok(None),
        (Some(report), Some(sha256)) if report.output.sha256 == sha256 => {
            Ok(Some(TrainReport { done_before: true, ..report }))
        }
        (_, Some(_)) => {
            let help = format!(
                "the recipe or a file changed: pass {FORCE} to begin anew, or give another place with {OUTPUT}"
            );
            Err(Error::file("exists already, and is not what this job made").in_file(&plan.output).help(help))
        }
        (None, None) if path.exists() => Err(Error::file("is the report of another job")
            .in_file(&path)
            .help(format!("pass {FORCE} to begin anew, or give another place with {OUTPUT}"))),
        (_, None) => Ok(None),
    }
}

/// What bounded the speed, and the share of each part of the time.
pub fn bound(s: &Spent) -> String {
    let share = |v: f64| 100.0 * v / (s.training() + s.scoring + s.saving).max(1e-9);
    let parts = [
        ("computing", s.compute),
        ("running the teacher", s.teacher),
        ("waiting for data", s.data),
        ("waiting for other ranks", s.exchange),
    ];
    let largest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map_or("computing", |(name, _)| name);
    let ranks = if s.exchange > 0.0 { format!(", other ranks {:.0}%", share(s.exchange)) } else { String::new() };
    format!(
        "bound by {largest}: computing {:.0}%, teacher {:.0}%, waiting for data {:.0}%{ranks}, scoring {:.0}%, checkpoints {:.0}%",
        share(s.compute),
        share(s.teacher),
        share(s.data),
        share(s.scoring),
        share(s.saving),
    )
}
