//! A model's speed on our runtime, and the same on a second device.

mod ceiling;
mod load;
mod profile;
mod trace;

use crate::{
    compress::needs,
    data::Sets,
    events::{Events, Monitor, watched},
    files,
    given::DataSource,
    measure,
    options::{DataOptions, DeviceOptions, ReadOptions, within},
    values::{Count, InputShape},
};
use clap::Args;
use compress_compiler::{
    error::{Error, Kind, Result},
    node::NodeId,
    onnx::{self, Model},
    op::Op,
    tensor::Tensor,
    words::option::TRACE,
};
use compress_runtime::{
    bench::{self, Pace, Timing},
    dataset::Batch,
    device::DeviceChoice,
    session::{Backend, Engine, EngineChoice, Session},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

pub use ceiling::{Ceilings, CopySpeed};
pub use load::RunningGpu;
pub use profile::{BatchTime, Bound, Profile, ProfiledPart};

/// Times a model.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Bench {
    /// The ONNX model.
    pub model: PathBuf,
    /// Data to run on, as for compressing; made up if there is none.
    #[arg(long, value_name = "PATH")]
    pub data: Option<DataSource>,
    /// The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of 256 words].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text [default: 128].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tokens: Option<Count<1_048_576>>,
    /// Sizes of an input, e.g. image=1x3x320x320; may be repeated.
    #[arg(long, value_name = "NAME=SIZES")]
    pub shape: Vec<InputShape>,
    /// Timed runs.
    #[arg(long, value_name = "N", default_value_t = Self::default().runs, allow_hyphen_values = true)]
    pub runs: Count<4_294_967_295>,
    /// Run on this device too, and compare: outputs and time.
    #[arg(long, value_name = "DEVICE")]
    pub reference: Option<DeviceChoice>,
    /// Set each kernel beside what the machine or the GPU can do (a large product, a large copy), and time batches of 1 to 64
    /// samples.
    #[arg(long)]
    pub profile: bool,
    /// Write a trace of a few runs for Perfetto or Chrome, in place of an older file. On the CPU, by our runtime.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Where it runs.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
}

impl Default for Bench {
    fn default() -> Self {
        Self {
            model: PathBuf::new(),
            data: None,
            tokenizer: None,
            tokens: None,
            shape: vec![],
            // 50 is within the bounds.
            runs: Count::try_from(50).expect("50 runs"),
            reference: None,
            profile: false,
            trace: None,
            on: DeviceOptions::default(),
            read: ReadOptions::default(),
        }
    }
}

/// How fast a model is.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Figures {
    /// The model.
    pub model: String,
    /// Samples of a run.
    pub batch: usize,
    /// Samples of the first trial, where the device had no memory for as many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked_batch: Option<usize>,
    /// Timed runs.
    pub runs: usize,
    /// On the device.
    #[serde(flatten)]
    pub on: Timed,
    /// On the second device.
    pub reference: Option<Timed>,
    /// Where the time goes, beside what the machine can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// The largest difference of an output between the two devices, relative to that output's largest value; the largest number of all
    /// where they can't be compared: they have other sizes or types, or are not finite in the same places.
    pub max_relative_difference: Option<f64>,
}

/// How fast a model is on one device.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Timed {
    /// The device.
    pub device: String,
    /// What ran the model.
    pub engine: String,
    /// Threads that it may use.
    pub threads: usize,
    /// The median of all runs.
    pub median_ms: f64,
    /// The 90th percentile.
    pub p90_ms: f64,
    /// The samples that the median is of, in a second.
    pub samples_per_second: f64,
    /// Of a decoder with a cache, how fast it reads and writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decoding: Option<DecodingSpeed>,
    /// Where the time went, by node.
    pub nodes: Vec<NodeTime>,
}

/// How fast a decoder is: it takes most tokens of a sequence at once, the last ones one by one.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct DecodingSpeed {
    /// Tokens of a sequence that are taken at once.
    pub prompt: usize,
    /// Of those, tokens of all sequences in a second.
    pub prompt_tokens_per_second: f64,
    /// The time of a token behind them, of each sequence.
    pub token_ms: f64,
    /// Of these, tokens of all sequences in a second.
    pub tokens_per_second: f64,
    /// Bytes of the weights in that time, tables of words and places aside, in GB/s: a step reads each weight once.
    pub weights_gb_per_second: f64,
}

impl DecodingSpeed {
    /// That of `session`, a decoder of `model`; nothing of another model.
    fn of(session: &Session, model: &Model, batch: &Batch, monitor: &Monitor) -> Result<Option<Self>> {
        let (mut prompt, mut first, mut later) = (0, vec![], vec![]);
        for _ in 0..DECODED {
            monitor.check()?;
            let steps = session.steps(&batch.inputs)?;
            let [(tokens, time), rest @ ..] = &steps[..] else { return Ok(None) };
            prompt = *tokens;
            first.push(time.as_secs_f64() * 1e3);
            later.extend(rest.iter().map(|(_, time)| time.as_secs_f64() * 1e3));
        }
        if later.is_empty() {
            return Ok(None);
        }
        let (first, later) = (Timing::of(first).median_ms, Timing::of(later).median_ms);
        let graph = &model.graph;
        // Of a table a step reads a row.
        let is_table =
            |n: NodeId| graph.uses(n.into()).iter().all(|u| u.slot == 0 && matches!(graph.op(u.node), Op::Gather(_)));
        let read = graph.ids().filter(|n| !is_table(*n)).filter_map(|n| graph.constant(n.into()));
        let bytes: usize = read.map(|t| t.bytes().len()).sum();
        Ok(Some(Self {
            prompt,
            prompt_tokens_per_second: (prompt * batch.len) as f64 * 1e3 / first,
            token_ms: later,
            tokens_per_second: batch.len as f64 * 1e3 / later,
            weights_gb_per_second: bytes as f64 / later / 1e6,
        }))
    }
}

/// The time of a node.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct NodeTime {
    /// The node.
    pub node: String,
    /// What computed it.
    pub kernel: String,
    /// The least time of several runs.
    pub ms: f64,
}

impl Bench {
    /// Times the model.
    ///
    /// # Errors
    /// Usage for contradictions in the recipe; device; whatever reading and running the model can raise; interrupted when
    /// `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<Figures> {
        needs::shapes(&self.shape, self.data.is_some())?;
        watched(events, |monitor| within(self.on.threads, false, || self.time(monitor)))
    }

    /// Whether what is asked for can be done where the model runs.
    fn check_profile(&self, backend: &Backend) -> Result<()> {
        let (is_cpu, is_ours) = (backend.device.is_cpu(), !matches!(backend.engine, Engine::OnnxRuntime(_)));
        if let Some(path) = &self.trace {
            if !is_cpu || !is_ours {
                return Err(Error::usage(format!("{TRACE} is for our runtime, on the CPU")));
            }
            let read = onnx::weight_files(&self.model).into_iter().chain([self.model.clone()]);
            let read = read.chain(self.data.as_ref().and_then(DataSource::path).map(Path::to_path_buf));
            if read.into_iter().any(|read| files::same(path, &read)) {
                return Err(Error::usage("the trace would replace a file that the job reads").in_file(path));
            }
            files::replaceable(path)?;
            files::placed(path, &TRACE.to_string())?;
        }
        Ok(())
    }

    fn time(&self, monitor: &Monitor) -> Result<Figures> {
        let backend = self.on.open()?;
        self.check_profile(&backend)?;
        let second = self.reference.map(|device| Backend::open(device, EngineChoice::Auto, None)).transpose()?;
        let model = onnx::read_with(&self.model, &(&self.read).into())?;
        let backend = backend.of(&model);
        let data = DataOptions::of(self.data.clone(), self.tokenizer.as_ref(), self.tokens).beside(&self.model)?;
        let sets = Sets::open_running(&data, &self.shape, &model.graph, 1, self.on.seed.0, (false, &backend));
        let sets = sets.map_err(|e| e.in_file(&self.model))?;
        let suited = |e| sets.evaluation.unfit(e, &model.graph);
        let batch_of = |samples| measure::timing_batch(&sets.evaluation, samples);
        let time = |on: &Backend, batch: &Batch| {
            time(&model, on, batch, self, monitor).map_err(|e| suited(e).in_file(&self.model))
        };
        let asked = batch_of(self.on.batch.get())?;
        let (mut batch, asked) = (asked.clone(), asked.len);
        let (on, outputs) = loop {
            match time(&backend, &batch) {
                Err(e) if e.kind() == Kind::Limit && batch.len > 1 && !backend.device.is_cpu() => {
                    let half = batch_of(batch.len / 2)?;
                    // A model may fix the size of a batch.
                    if half.len >= batch.len {
                        return Err(e);
                    }
                    monitor.note(&format!("note: {}: {} of the {} samples", e.message(), half.len, batch.len));
                    batch = half;
                    backend.device.give_back();
                }
                timed => break timed?,
            }
        };
        let reference = second.as_ref().map(|on| time(on, &batch)).transpose()?;
        let profiled = |_| Profile::of(&model, &backend, &sets.evaluation, batch.len, monitor);
        let profile =
            self.profile.then_some(()).map(profiled).transpose().map_err(|e| suited(e).in_file(&self.model))?;
        if let Some(path) = &self.trace {
            let session = Session::of_model(&model, &backend)?;
            trace::write(path, &session, &batch.inputs, monitor)?;
        }
        Ok(Figures {
            model: self.model.display().to_string(),
            batch: batch.len,
            asked_batch: (batch.len < asked).then_some(asked),
            runs: self.runs.get(),
            profile,
            max_relative_difference: reference.as_ref().map(|(_, other)| difference(other, &outputs)),
            reference: reference.map(|r| r.0),
            on,
        })
    }
}

fn time(
    model: &Model,
    backend: &Backend,
    batch: &Batch,
    recipe: &Bench,
    monitor: &Monitor,
) -> Result<(Timed, Vec<Tensor>)> {
    let exe = Session::of_model(model, backend)?;
    monitor.check()?;
    exe.run(&batch.inputs)?;
    monitor.check()?;
    let runs = recipe.runs.get();
    let timing = bench::time(&exe, &batch.inputs, runs, &|| monitor.stopped())?;
    // By now a GPU plays a recorded run, which is what was timed: its outputs are compared.
    let outputs = exe.run(&batch.inputs)?;
    let pace = Pace { runs: runs.min(PROFILED), time: Duration::MAX, stopped: &|| monitor.stopped() };
    let spent = bench::least(&[&exe], &batch.inputs, &pace)?.concat();
    let nodes = spent.into_iter().map(|s| NodeTime { node: s.node, kernel: s.kernel.name.into(), ms: s.ms }).collect();
    let timed = Timed {
        nodes,
        device: backend.device.describe(),
        engine: backend.engine.to_string(),
        threads: measure::threads(&backend.device),
        median_ms: timing.median_ms,
        p90_ms: timing.p90_ms,
        samples_per_second: batch.len as f64 * 1e3 / timing.median_ms,
        decoding: DecodingSpeed::of(&exe, model, batch, monitor)?,
    };
    Ok((timed, outputs))
}

/// Sequences whose tokens are timed one by one.
const DECODED: usize = 10;

/// Runs of which the least time of each node counts: other work on the machine only adds to it.
const PROFILED: usize = 20;

/// How far runs are from each other that can't be compared; infinity has no place in a report.
pub(crate) const FAR: f64 = f64::MAX;

/// How far two runs are from each other, in parts of the largest finite value of the first. A value that only one of them has
/// infinite, or not as a number, is [`FAR`]; so is an output of another type or of other sizes.
fn difference(a: &[Tensor], b: &[Tensor]) -> f64 {
    if a.len() != b.len() {
        return FAR;
    }
    a.iter().zip(b).map(|(a, b)| apart(a, b)).fold(0.0, f64::max)
}

fn apart(a: &Tensor, b: &Tensor) -> f64 {
    if a.dtype() != b.dtype() || a.shape() != b.shape() {
        return FAR;
    }
    let numbers = |t: &Tensor| -> Option<Vec<f64>> {
        match t.as_f32() {
            Some(v) => Some(v.iter().map(|v| f64::from(*v)).collect()),
            None => t.as_i64().map(|v| v.iter().map(|v| *v as f64).collect()),
        }
    };
    let (Some(x), Some(y)) = (numbers(a), numbers(b)) else {
        return if a.bytes() == b.bytes() { 0.0 } else { FAR };
    };
    let finite = x.iter().filter(|v| v.is_finite());
    let largest = finite.fold(0f64, |m, v| m.max(v.abs())).max(f64::from(f32::MIN_POSITIVE));
    let far = |(x, y): (&f64, &f64)| match x == y || (x.is_nan() && y.is_nan()) {
        true => 0.0,
        false if x.is_finite() && y.is_finite() => (x - y).abs() / largest,
        false => FAR,
    };
    x.iter().zip(&y).map(far).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_finite_is_far_unless_both_have_it() {
        let far = |a: &[f32], b: &[f32]| {
            let tensor = |v: &[f32]| Tensor::f32(&[v.len()], v);
            difference(&[tensor(a)], &[tensor(b)])
        };
        assert_eq!(far(&[4.0, 1.0], &[4.0, 2.0]), 0.25);
        assert_eq!(far(&[f32::INFINITY, f32::NAN, 1.0], &[f32::INFINITY, f32::NAN, 1.0]), 0.0);
        assert_eq!(far(&[f32::INFINITY, 4.0], &[f32::INFINITY, 5.0]), 0.25);
        for other in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(far(&[1.0, 2.0], &[1.0, other]), FAR);
            assert_eq!(far(&[1.0, other], &[1.0, 2.0]), FAR);
        }
        assert_eq!(far(&[f32::INFINITY], &[f32::NEG_INFINITY]), FAR);
        assert_eq!(far(&[f32::MAX], &[-f32::MAX]), 2.0);
    }

    #[test]
    fn integers_and_sizes_are_compared_too() {
        let ints = |v: &[i64]| [Tensor::i64s(v)];
        assert_eq!(difference(&ints(&[1, 4]), &ints(&[1, 4])), 0.0);
        assert_eq!(difference(&ints(&[1, 4]), &ints(&[1, 3])), 0.25);
        assert_eq!(difference(&ints(&[1, 4]), &ints(&[1])), FAR);
        assert_eq!(difference(&ints(&[1]), &[Tensor::f32(&[1], &[1.0])]), FAR);
        assert_eq!(difference(&ints(&[1]), &[]), FAR);
    }
}
