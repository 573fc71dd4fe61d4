//! What a run would do, and how long it would take (--dry-run).

use crate::{compress::Opened, coverage, plan::CompressPlan, terminal};
use compress_compiler::{error::Result, report::counted};
use compress_passes::{STAGES, pipeline};
use serde::Serialize;
use std::{fmt, time::Instant};

/// What a run would do.
#[derive(Serialize)]
pub struct Intent {
    schema: u32,
    model: String,
    output: String,
    operators: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    samples: Option<Shares>,
    passes: Vec<Step>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<Expected>,
    warnings: Vec<String>,
}

/// How many samples each part of the work gets, and where the sizes of the inputs are from.
#[derive(Serialize)]
struct Shares {
    calibrate: usize,
    measure: usize,
    sizes: String,
}

#[derive(Serialize)]
struct Step {
    name: &'static str,
    does: &'static str,
}

/// How long what runs the model is going to take: the time of a run, times the runs.
#[derive(Serialize)]
struct Expected {
    run_s: f64,
    batch: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibrate_s: Option<f64>,
    trains: bool,
}

/// Says what would be done, and does no more than look at the layers, where that was asked for.
///
/// # Errors
/// Whatever reading and running the model on data can raise.
pub fn say(plan: &CompressPlan) -> Result<()> {
    if plan.sensitivity {
        let opened = Opened::new(plan, false)?;
        if plan.run.json {
            terminal::print(&terminal::json(&serde_json::json!({"schema": 1, "sensitivity": opened.sensitivity}))?)?;
        }
        return Ok(());
    }
    let intent = Intent::of(&Opened::new(plan, false)?, plan)?;
    terminal::print(&if plan.run.json { terminal::json(&intent)? } else { intent.to_string() })
}

impl Intent {
    /// What `plan` would do with the model that is open.
    ///
    /// # Errors
    /// Whatever reading and running the model on data can raise.
    pub fn of(opened: &Opened, plan: &CompressPlan) -> Result<Self> {
        let does = |name: &'static str| STAGES.iter().find(|s| s.name == name).map_or("", |s| s.does);
        let options = opened.options(plan);
        let passes = pipeline(&options, plan.stop_after.as_deref()).passes;
        Ok(Self {
            schema: 1,
            model: plan.model.display().to_string(),
            output: plan.shown_output().display().to_string(),
            operators: opened.original.graph.operators().count(),
            samples: opened.sets.as_ref().map(|s| Shares {
                calibrate: s.calibration.indices.len(),
                measure: s.evaluation.indices.len(),
                sizes: s.sizes.clone(),
            }),
            passes: passes.iter().map(|p| Step { name: p.name(), does: does(p.name()) }).collect(),
            time: expected(opened, plan)?,
            warnings: opened.warnings.iter().cloned().chain(coverage::missed(plan)).collect(),
        })
    }
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(f, "{} ({}) -> {}", self.model, counted(self.operators, "operator"), self.output)?;
        if let Some(Shares { calibrate, measure, sizes }) = &self.samples {
            writeln!(f, "  {} to calibrate on, {measure} to measure on: {sizes}", counted(*calibrate, "sample"))?;
        }
        self.passes.iter().try_for_each(|p| writeln!(f, "  {:<10}{}", p.name, p.does))?;
        if let Some(Expected { run_s, batch, calibrate_s, trains }) = &self.time {
            write!(f, "  time: {run_s:.3} s for a run of {}", counted(*batch, "sample"))?;
            calibrate_s.iter().try_for_each(|s| write!(f, ", about {s:.0} s to calibrate"))?;
            let training = "; the training says how long it takes after its first steps";
            writeln!(f, "{}", if *trains { training } else { "" })?;
        }
        self.warnings.iter().try_for_each(|w| writeln!(f, "  note: {w}"))
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
    let reached = pipeline(&plan.options, plan.stop_after.as_deref()).passes;
    let looks = reached.iter().any(|p| matches!(p.name(), "int8" | "prune" | "channels" | "recover"));
    let looks = looks && (plan.options.int8.is_some() || plan.options.reconstruct);
    Ok(Some(Expected {
        run_s,
        batch: first.len(),
        calibrate_s: looks.then(|| (batches * run_s).ceil()),
        trains: plan.trains(),
    }))
}
