//! `compress bench`: a model's speed on our runtime.

use crate::{
    args::BenchArgs,
    data::Sets,
    measure,
    plan::{DataPlan, RunPlan},
    terminal,
};
use compress_compiler::{
    error::{Error, Result},
    onnx,
};
use compress_runtime::device::Device;
use serde::Serialize;

#[derive(Serialize)]
struct Figures {
    model: String,
    device: String,
    engine: &'static str,
    threads: usize,
    batch: usize,
    runs: usize,
    median_ms: f64,
    p90_ms: f64,
    samples_per_second: f64,
}

/// Runs the subcommand.
pub fn run(args: BenchArgs) -> Result<()> {
    let run = RunPlan::new(args.run)?;
    if args.runs == 0 {
        return Err(Error::usage("--runs must be 1 or more"));
    }
    let model = onnx::read(&args.model)?;
    let device = Device::open(run.device)?;
    let data = DataPlan { data: None, eval: None, preprocess: None };
    let sets = Sets::open(&data, &model.graph, 1, run.seed).map_err(|e| e.in_file(&args.model))?;
    let exe = measure::executable(&model.graph, &device).map_err(|e| e.in_file(&args.model))?;
    let (timing, batch) = measure::time(&exe, &sets.evaluation, run.batch, args.runs)?;
    let f = Figures {
        model: args.model.display().to_string(),
        device: device.describe(),
        engine: "burn",
        threads: measure::threads(&device),
        batch,
        runs: timing.runs,
        median_ms: timing.median_ms,
        p90_ms: timing.p90_ms,
        samples_per_second: batch as f64 * 1e3 / timing.median_ms,
    };
    terminal::print(&if run.json {
        terminal::json(&f)?
    } else {
        format!(
            "{}: median {:.3} ms, p90 {:.3} ms, {:.0} samples/s (batch {}, {} runs, {} threads, {})\n",
            f.model, f.median_ms, f.p90_ms, f.samples_per_second, f.batch, f.runs, f.threads, f.device
        )
    });
    Ok(())
}
