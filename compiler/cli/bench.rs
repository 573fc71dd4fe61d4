//! `compress bench`: a model's speed on our runtime, and the same on a second device.

use crate::{
    args::BenchArgs,
    data::{self, Samples, Sets},
    interrupt, measure, needs,
    plan::{BackendPlan, DataPlan},
    terminal,
};
use compress_compiler::{
    error::Result,
    onnx::{self, Model},
    tensor::Tensor,
};
use compress_runtime::session::{Backend, Session};
use serde::Serialize;
use std::collections::BTreeMap;

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
    engine: String,
    threads: usize,
    median_ms: f64,
    p90_ms: f64,
    samples_per_second: f64,
    /// Where the time went, by node.
    nodes: Vec<NodeTime>,
}

#[derive(Serialize)]
struct NodeTime {
    node: String,
    kernel: String,
    ms: f64,
}

/// Runs the subcommand.
pub fn run(args: BenchArgs) -> Result<()> {
    needs::shapes(&args.shape, args.data.is_some())?;
    let (first, second) = (BackendPlan::new(&args.on)?, args.reference.as_deref().map(str::parse).transpose()?);
    let backend = first.open()?;
    let second = second.map(|device| Backend::open(device, "auto")).transpose()?;
    let model = onnx::read_with(&args.model, &args.read.clone().into())?;
    let data =
        DataPlan { data: args.data.clone(), eval: args.data.clone(), preprocess: None, shapes: args.shape.clone() };
    let sets = Sets::open_running(&data, &model.graph, 1, args.on.seed, (false, &backend))
        .map_err(|e| e.in_file(&args.model))?;
    let suited = |e| if sets.evaluation.synthetic { data::unsuited(e, &model.graph) } else { e };
    let time = |on: &Backend| time(&model, on, &sets.evaluation, &args).map_err(|e| suited(e).in_file(&args.model));
    let (on, outputs, batch) = time(&backend)?;
    let reference = second.as_ref().map(time).transpose()?;
    let f = Figures {
        model: args.model.display().to_string(),
        batch,
        runs: args.runs,
        max_relative_difference: reference.as_ref().map(|(_, other, _)| difference(other, &outputs)),
        reference: reference.map(|r| r.0),
        on,
    };
    terminal::print(&if args.on.json { terminal::json(&f)? } else { text(&f) })?;
    Ok(())
}

fn time(model: &Model, backend: &Backend, samples: &Samples, args: &BenchArgs) -> Result<(Timed, Vec<Tensor>, usize)> {
    let exe = measure::session(&model.graph, backend)?;
    let batch = measure::timing_batch(samples, args.on.batch)?;
    let outputs = exe.run(&batch.inputs)?;
    let timing = compress_runtime::bench::time(&exe, &batch.inputs, args.runs, &interrupt::stopped)?;
    let nodes = profile(&exe, &batch.inputs, args.runs.min(PROFILED))?;
    let timed = Timed {
        nodes,
        device: backend.device.describe(),
        engine: backend.engine.to_string(),
        threads: measure::threads(&backend.device),
        median_ms: timing.median_ms,
        p90_ms: timing.p90_ms,
        samples_per_second: batch.len as f64 * 1e3 / timing.median_ms,
    };
    Ok((timed, outputs, batch.len))
}

/// Nodes that are listed; --json has all.
const SLOWEST: usize = 10;

/// Runs of which the least time of each node counts: other work on the machine only adds to it.
const PROFILED: usize = 20;

/// The least time of each node in `runs`.
fn profile(session: &Session, inputs: &[Tensor], runs: usize) -> Result<Vec<NodeTime>> {
    let mut sum: Vec<NodeTime> = vec![];
    for _ in 0..runs {
        let spent = session.profile(inputs)?;
        if sum.is_empty() {
            sum = spent
                .iter()
                .map(|s| NodeTime { node: s.node.clone(), kernel: s.kernel.into(), ms: f64::INFINITY })
                .collect();
        }
        sum.iter_mut().zip(&spent).for_each(|(sum, s)| sum.ms = sum.ms.min(s.ms));
    }
    Ok(sum)
}

/// The nodes or kernels that take longest, with their share.
fn slowest(nodes: &[NodeTime], name: impl Fn(&NodeTime) -> &str, most: usize) -> Vec<(String, f64, usize)> {
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for n in nodes {
        let sum = sums.entry(name(n)).or_default();
        *sum = (sum.0 + n.ms, sum.1 + 1);
    }
    let mut list: Vec<(String, f64, usize)> = sums.into_iter().map(|(n, (ms, k))| (n.into(), ms, k)).collect();
    list.sort_by(|a, b| b.1.total_cmp(&a.1));
    list.truncate(most);
    list
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
            "median {:.3} ms, p90 {:.3} ms, {:.0} samples/s ({}, {}, {} threads)",
            t.median_ms, t.p90_ms, t.samples_per_second, t.device, t.engine, t.threads
        )
    };
    let mut out = format!("{}: batch {}, {} runs\n  {}\n", f.model, f.batch, f.runs, line(&f.on));
    if let (Some(r), Some(d)) = (&f.reference, f.max_relative_difference) {
        out += &format!("  {}\n  {:.2}x, outputs differ by {d:.1e} relative\n", line(r), r.median_ms / f.on.median_ms);
    }
    let all: f64 = f.on.nodes.iter().map(|n| n.ms).sum();
    for (title, list) in [
        ("kernel", slowest(&f.on.nodes, |n| &n.kernel, usize::MAX)),
        ("node", slowest(&f.on.nodes, |n| &n.node, SLOWEST)),
    ] {
        out += &format!("\n  {:>9}  share  calls  {title}\n", "least ms");
        for (name, ms, calls) in list {
            out += &format!("  {ms:>9.4}  {:>4.0}%  {calls:>5}  {name}\n", 100.0 * ms / all);
        }
    }
    out
}
