//! What a run would do, and how long it would take.

use super::{CompressPlan, Opened, coverage};
use crate::report::SCHEMA;
use compress_compiler::error::Result;
use compress_passes::STAGES;
use schemars::JsonSchema;
use serde::Serialize;
use std::time::Instant;

/// What a run would do.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Intent {
    /// The version of this layout.
    pub schema: u32,
    /// The model.
    pub model: String,
    /// Where the result would go.
    pub output: String,
    /// How many operators the model has.
    pub operators: usize,
    /// Samples, where the model would be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<Shares>,
    /// The passes, in order.
    pub passes: Vec<PlannedPass>,
    /// How long it would take, where the model would be run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Expected>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
}

/// How many samples each part of the work gets, and the inputs with their sizes.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Shares {
    /// Samples to calibrate on.
    pub calibrate: usize,
    /// Samples to measure on.
    pub measure: usize,
    /// The inputs: `image Nx3x224x224`.
    pub sizes: String,
}

/// A pass that would run.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct PlannedPass {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub does: &'static str,
}

/// How long running the model is going to take: the time of a run, times the runs.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Expected {
    /// Seconds of a run.
    pub run_s: f64,
    /// Samples of a run.
    pub batch: usize,
    /// Seconds of calibration, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibrate_s: Option<f64>,
    /// Whether training follows, which takes longer.
    pub trains: bool,
}

impl Intent {
    /// What `plan` would do with the model that is open.
    ///
    /// # Errors
    /// Whatever reading and running the model on data can raise.
    pub(crate) fn of(opened: &Opened, plan: &CompressPlan) -> Result<Self> {
        let does = |name: &'static str| STAGES.iter().find(|s| s.name == name).map_or("", |s| s.does);
        let passes = plan.pipeline(&opened.options(plan)).passes;
        Ok(Self {
            schema: SCHEMA,
            model: plan.recipe.model.display().to_string(),
            output: plan.shown_output().display().to_string(),
            operators: opened.original.graph.operators().count(),
            samples: opened.sets.as_ref().map(|s| Shares {
                calibrate: s.calibration.indices.len(),
                measure: s.evaluation.indices.len(),
                sizes: s.sizes.clone(),
            }),
            passes: passes.iter().map(|p| PlannedPass { name: p.name(), does: does(p.name()) }).collect(),
            time: expected(opened, plan)?,
            warnings: opened.warnings.iter().cloned().chain(coverage::missed(plan)).collect(),
        })
    }
}

fn expected(opened: &Opened, plan: &CompressPlan) -> Result<Option<Expected>> {
    let (Some(sets), Some(before)) = (&opened.sets, &opened.before) else { return Ok(None) };
    let Some(first) = sets.calibration.batches().next() else { return Ok(None) };
    let inputs = sets.calibration.set.batch(first)?.inputs;
    let started = Instant::now();
    before.run(&inputs)?;
    let run_s = started.elapsed().as_secs_f64();
    let batches = sets.calibration.indices.len().div_ceil(sets.calibration.batch.max(1)) as f64;
    let reached = plan.pipeline(&plan.options).passes;
    let looks = reached.iter().any(|p| matches!(p.name(), "int8" | "prune" | "channels" | "recover"));
    let looks = looks && (plan.recipe.calibrates() || plan.options.reconstruct);
    Ok(Some(Expected {
        run_s,
        batch: first.len(),
        calibrate_s: looks.then(|| (batches * run_s).ceil()),
        trains: plan.trains(),
    }))
}
