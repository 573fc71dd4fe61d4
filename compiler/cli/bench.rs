//! `compress bench`: a model's speed on our runtime, and the same on a second device.

use crate::{
    args::BenchArgs,
    data::{Samples, Sets},
    interrupt, measure,
    plan::DataPlan,
    terminal,
};
use compress_compiler::{
    error::Result,
    onnx::{self, Model},
    tensor::Tensor,
};
use compress_runtime::device::Device;
use serde::Serialize;

#[derive(Serialize)]
struct Figures {
    model: String,
    batch: usize,
    runs: usize,
    #[serde(flatten)]
    on: Timed,
    reference: Option<Timed>,
    /// The largest difference of an output between the two devices, relative to that output's
    /// largest value.
    max_relative_difference: Option<f64>,
}

#[derive(Serialize)]
struct Timed {
    device: String,
    engine: &'static str,
    threads: usize,
    median_ms: f64,
    p90_ms: f64,
    samples_per_second: f64,
}

/// Runs the subcommand.
pub fn run(args: BenchArgs) -> Result<()> {
    let (first, second) = (args.on.device.parse()?, args.reference.as_deref().map(str::parse).transpose()?);
    let device = Device::open(first)?;
    let second = second.map(Device::open).transpose()?;
    let model = onnx::read_with(&args.model, &args.read.clone().into())?;
    let data = DataPlan { data: None, eval: None, preprocess: None };
    let sets = Sets::open(&data, &model.graph, 1, args.on.seed).map_err(|e| e.in_file(&args.model))?;
    let time = |device: &Device| time(&model, device, &sets.evaluation, &args).map_err(|e| e.in_file(&args.model));
    let (on, outputs, batch) = time(&device)?;
    let reference = second.as_ref().map(time).transpose()?;
    let f = Figures {
        model: args.model.display().to_string(),
        batch,
        runs: args.runs,
        max_relative_difference: reference.as_ref().map(|(_, other, _)| difference(other, &outputs)),
        reference: reference.map(|r| r.0),
        on,
    };
    terminal::print(&if args.on.json { terminal::json(&f)? } else { text(&f) });
    Ok(())
}

fn time(model: &Model, device: &Device, samples: &Samples, args: &BenchArgs) -> Result<(Timed, Vec<Tensor>, usize)> {
    let exe = measure::executable(&model.graph, device)?;
    let batch = measure::timing_batch(samples, args.on.batch)?;
    let outputs = exe.run(&batch.inputs)?;
    let timing = compress_runtime::bench::time(&exe, &batch.inputs, args.runs, &interrupt::stopped)?;
    let timed = Timed {
        device: device.describe(),
        engine: "burn",
        threads: measure::threads(device),
        median_ms: timing.median_ms,
        p90_ms: timing.p90_ms,
        samples_per_second: batch.len as f64 * 1e3 / timing.median_ms,
    };
    Ok((timed, outputs, batch.len))
}

/// NaN where one side alone is NaN counts as infinitely far.
fn difference(a: &[Tensor], b: &[Tensor]) -> f64 {
    let pairs = a.iter().zip(b).filter_map(|(a, b)| Some((a.as_f32()?, b.as_f32()?)));
    pairs
        .map(|(a, b)| {
            let largest = a.iter().fold(0f32, |m, v| m.max(v.abs())).max(f32::MIN_POSITIVE);
            let far = |(x, y): (&f32, &f32)| match x.is_nan() || y.is_nan() {
                true if x.is_nan() && y.is_nan() => 0.0,
                true => f64::INFINITY,
                false => f64::from((x - y).abs() / largest),
            };
            a.iter().zip(b.iter()).map(far).fold(0.0, f64::max)
        })
        .fold(0.0, f64::max)
}

fn text(f: &Figures) -> String {
    let line = |t: &Timed| {
        format!(
            "median {:.3} ms, p90 {:.3} ms, {:.0} samples/s ({}, {} threads)",
            t.median_ms, t.p90_ms, t.samples_per_second, t.device, t.threads
        )
    };
    let mut out = format!("{}: batch {}, {} runs\n  {}\n", f.model, f.batch, f.runs, line(&f.on));
    if let (Some(r), Some(d)) = (&f.reference, f.max_relative_difference) {
        out += &format!("  {}\n  {:.2}x, outputs differ by {d:.1e} relative\n", line(r), r.median_ms / f.on.median_ms);
    }
    out
}
