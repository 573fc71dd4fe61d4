//! Why a model is as fast as it is: which kernel runs each node, on our runtime and on ONNX Runtime, how long it takes, and why
//! it runs in floats.

mod beside;
mod engines;
mod join;
mod reasons;
mod remedy;

use crate::{
    check::same_signature,
    compress::{Compress, CompressPlan, Opened, Purpose, needs},
    data::{Samples, Sets},
    events::{Events, Monitor, watched},
    given::DataSource,
    measure,
    options::{DataOptions, DeviceOptions, Effort, MeasureOptions, ReadOptions, within},
    report::{LayerFacts, LayerKernel},
    values::{Count, InputShape, Int8},
};
use clap::Args;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    onnx::{self, Model},
    op::{Op, Operator},
};
use compress_runtime::{
    device::DeviceChoice,
    onnxruntime::Provider,
    session::{Backend, EngineChoice},
};
pub(crate) use engines::Engines;
use join::Kernel;
pub(crate) use join::Part;
pub use remedy::Remedy;
pub(crate) use remedy::{Trial, find as find_remedy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, path::PathBuf, time::Duration};

/// Parts that get a sentence each.
const COSTLIEST: usize = 5;
/// For how long each engine runs the models, about.
const TIME: Duration = Duration::from_secs(4);

/// Explains where the time of a model goes.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Explain {
    /// The ONNX model.
    pub model: PathBuf,
    /// The model it came from: each part of the result is held beside the time of the same part there.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
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
    /// Where it runs.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
}

/// Where the time of a model goes.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Explained {
    /// The model.
    pub model: String,
    /// The model that it is held beside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// Samples of a run.
    pub batch: usize,
    /// Threads that an engine may use.
    pub threads: usize,
    /// Our runtime; absent where ONNX Runtime was asked for with a provider.
    pub ours: Option<EngineTime>,
    /// ONNX Runtime; absent where it is not installed.
    pub onnxruntime: Option<EngineTime>,
    /// All parts of the model, the costliest first: on ONNX Runtime if it ran, else on ours.
    pub parts: Vec<ExplainedPart>,
    /// A sentence for each of the costliest parts, where those that are alike count as one.
    pub costliest: Vec<String>,
    /// Layers that are better left in floats, where the model is slower on ONNX Runtime than the one that it came from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
}

/// A model on an engine.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct EngineTime {
    /// The engine.
    pub engine: String,
    /// Milliseconds of all kernels together.
    pub ms: f64,
    /// The share of it in kernels that work on 8-bit codes.
    pub int8: f64,
    /// The share in kernels that change the type or the layout of a value alone.
    pub conversions: f64,
    /// Milliseconds of all kernels of the model that it is held beside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_ms: Option<f64>,
}

/// Nodes that kernels compute together.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ExplainedPart {
    /// The node with the most multiply-accumulates, or the last.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Multiply-accumulates of one sample.
    pub macs: u64,
    /// All nodes, in the order of the graph.
    pub nodes: Vec<String>,
    /// Those of them that multiply, and have a name by which they can be excluded from INT8.
    pub layers: Vec<String>,
    /// What our runtime does for them.
    pub ours: Option<Work>,
    /// What ONNX Runtime does.
    pub onnxruntime: Option<Work>,
    /// Milliseconds of the same nodes in the model that it is held beside, on the same engine as the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against_ms: Option<f64>,
    /// Why ONNX Runtime works in floats, where the model has codes and this part multiplies, or changes between both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_because: Option<String>,
}

/// Kernels that ran for a part.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Work {
    /// The kernels, in the order in which they ran.
    pub kernels: Vec<KernelWork>,
    /// Milliseconds of all.
    pub ms: f64,
    /// Their share of the model's time.
    pub share: f64,
    /// Whether the one that takes longest works on 8-bit codes.
    pub int8: bool,
    /// Milliseconds of those that change the type or the layout of a value alone.
    pub conversions_ms: f64,
}

/// A kernel that ran.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct KernelWork {
    /// Its name.
    pub kernel: String,
    /// The node that it ran for: of the graph that ONNX Runtime made of the file, or the last one that our runtime computes with
    /// it. A node inside If, Loop or Scan stands behind the name of that.
    pub node: String,
    /// The value of the model that it makes, if ONNX Runtime makes one under its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Milliseconds.
    pub ms: f64,
}

impl Work {
    /// The names of the kernels, each once, in the order in which they ran.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = vec![];
        for k in &self.kernels {
            if !names.contains(&&k.kernel[..]) {
                names.push(&k.kernel);
            }
        }
        names
    }

    /// Whether the same kernels ran.
    fn is_like(&self, other: &Self) -> bool {
        self.kernels.iter().map(|k| &k.kernel).eq(other.kernels.iter().map(|k| &k.kernel))
    }
}

impl Explain {
    /// Runs the model on our runtime and on ONNX Runtime, and explains where the time goes.
    ///
    /// # Errors
    /// Usage for contradictions in the recipe; device for an ONNX Runtime that was asked for and is not there; whatever reading
    /// and running the models can raise; interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<Explained> {
        needs::shapes(&self.shape, self.data.is_some())?;
        watched(events, |monitor| within(self.on.threads, false, || self.explain(monitor)))
    }

    fn explain(&self, monitor: &Monitor) -> Result<Explained> {
        let backend = self.on.open()?;
        let read = (&self.read).into();
        let model = onnx::read_with(&self.model, &read)?;
        let original = self.against.as_ref().map(|path| onnx::read_with(path, &read)).transpose()?;
        if let Some(original) = &original {
            same_signature(original, &model).map_err(|e| e.in_file(&self.model))?;
        }
        let data = DataOptions::of(self.data.clone(), self.tokenizer.as_ref(), self.tokens).beside(&self.model)?;
        let sets = Sets::open_running(&data, &self.shape, &model.graph, 1, self.on.seed.0, (false, &backend));
        let samples = sets.map_err(|e| e.in_file(&self.model))?.evaluation;
        let mut engines = Engines::open(&backend, self.on.ort.as_deref())?;
        engines.leave_out_ours_for(&model.graph);
        let suited = |e| samples.unfit(e, &model.graph);
        let batch = self.on.batch.get();
        let pace = (batch, TIME);
        let see = |engines: &Engines| Seen::of(&model, original.as_ref(), engines, &samples, pace, monitor);
        let seen = match see(&engines) {
            Err(e) if engines.leave_out_onnxruntime(&e) => see(&engines),
            seen => seen,
        };
        let Seen { parts: mut made, totals } = seen.map_err(|e| suited(e).in_file(&self.model))?;
        let ms = |part: &ExplainedPart| part.onnxruntime.as_ref().or(part.ours.as_ref()).map_or(0.0, |w| w.ms);
        made.sort_by(|a, b| ms(b).total_cmp(&ms(a)));
        let onnxruntime = engines.provider.map(|provider| totals[1].named(provider.engine()));
        let remedy = match (&onnxruntime, engines.provider) {
            (Some(e), Some(provider)) => self.remedy(&model, e, provider, &made, monitor)?,
            _ => None,
        };
        Ok(Explained {
            model: self.model.display().to_string(),
            against: self.against.as_ref().map(|path| path.display().to_string()),
            batch: measure::timing_batch(&samples, batch)?.len,
            threads: measure::threads(&backend.device),
            ours: engines.ours.as_ref().map(|b| totals[0].named(b.engine.to_string())),
            onnxruntime,
            costliest: reasons::costliest(&made, COSTLIEST),
            remedy,
            parts: made,
            warnings: engines.warnings,
        })
    }
}

impl Explain {
    /// What to exclude from INT8, if the model is slower than the one that it came from: found by quantising that one anew.
    fn remedy(
        &self,
        model: &Model,
        time: &EngineTime,
        provider: Provider,
        parts: &[ExplainedPart],
        monitor: &Monitor,
    ) -> Result<Option<Remedy>> {
        let (Some(_), Some(against)) = (time.against_ms.filter(|before| *before < time.ms), &self.against) else {
            return Ok(None);
        };
        let recipe = Compress {
            model: against.clone(),
            int8: Some(Int8::Static),
            data: DataOptions {
                data: self.data.clone(),
                tokenizer: self.tokenizer.clone(),
                tokens: self.tokens,
                ..DataOptions::default()
            },
            measures: MeasureOptions { check: Effort::None, shape: self.shape.clone(), ..MeasureOptions::default() },
            on: DeviceOptions { engine: EngineChoice::Auto, ..self.on.clone() },
            read: self.read.clone(),
            ..Compress::default()
        };
        let plan = CompressPlan::new(&recipe, Purpose::Intent)?;
        let opened = Opened::new(&plan, true, monitor)?;
        let Some(sets) = &opened.sets else { return Ok(None) };
        let backend = Backend::open(DeviceChoice::Cpu, EngineChoice::OnnxRuntime(provider), self.on.ort.as_deref())?;
        let trial = Trial {
            opened: &opened,
            plan: &plan,
            samples: &sets.evaluation,
            backend: &backend,
            batch: self.on.batch.get(),
            monitor,
        };
        let now = trial.speed(model)?;
        if now.interval[1] >= 1.0 {
            return Ok(None);
        }
        find_remedy(now.speedup, parts, &|layers| trial.without(layers))
    }
}

/// A model on engines, part by part.
pub(crate) struct Seen {
    /// Its parts, in the order in which they run.
    pub parts: Vec<ExplainedPart>,
    /// All of it, on our runtime and on ONNX Runtime.
    totals: [EngineTime; 2],
}

impl Seen {
    /// Runs a model, and the one that it came from if that is given, on a batch of some samples for some time.
    ///
    /// # Errors
    /// Whatever running them can raise; interrupted.
    pub fn of(
        model: &Model,
        original: Option<&Model>,
        engines: &Engines,
        samples: &Samples,
        pace: (usize, Duration),
        monitor: &Monitor,
    ) -> Result<Self> {
        let models: Vec<&Model> = [Some(model), original].into_iter().flatten().collect();
        let all = engines.parts(&models, samples, pace, monitor)?;
        let (parts, before) = (&all[0], all.get(1));
        // At the sizes of the batch's samples.
        let inputs = measure::timing_batch(samples, 1)?.inputs;
        let sized = |model: &Model| measure::sized(&model.graph, &inputs).unwrap_or_else(|_| model.graph.clone());
        let graph = sized(model);
        let mut made = summary(&graph, parts);
        if let (Some(original), Some(before)) = (original, before) {
            beside::add(&mut made, (&graph, parts), (&sized(original), before));
        }
        let total = |of: &dyn Fn(&Part) -> &[Kernel]| EngineTime {
            against_ms: before.map(|parts| parts.iter().flat_map(of).map(|k| k.ms).sum()),
            ..engine_time(parts.iter().flat_map(of))
        };
        Ok(Self { parts: made, totals: [total(&|p| &p.ours), total(&|p| &p.theirs)] })
    }

    /// Adds to `layers` what computes each, and how long that takes.
    pub fn tell(&self, layers: &mut [LayerFacts]) {
        let parts = self.parts.iter().flat_map(|part| part.nodes.iter().map(move |node| (&node[..], part)));
        let parts: HashMap<&str, &ExplainedPart> = parts.collect();
        for layer in layers {
            let Some(part) = parts.get(&layer.node[..]) else { continue };
            // Several layers may have one kernel: its time counts once.
            let is_main = part.node == layer.node;
            let told = |work: &Work| LayerKernel {
                kernel: work.names().join(", "),
                ms: is_main.then_some(work.ms),
                int8: work.int8,
            };
            layer.kernel = part.ours.as_ref().map(told);
            layer.deployed = part.onnxruntime.as_ref().map(told);
            layer.float_because = part.float_because.clone();
        }
    }
}

impl EngineTime {
    fn named(&self, engine: String) -> Self {
        Self { engine, ..self.clone() }
    }
}

fn engine_time<'a>(kernels: impl Iterator<Item = &'a Kernel>) -> EngineTime {
    let (mut ms, mut int8, mut conversions) = (0.0, 0.0, 0.0);
    for kernel in kernels {
        ms += kernel.ms;
        int8 += if kernel.on_codes { kernel.ms } else { 0.0 };
        conversions += if kernel.converts { kernel.ms } else { 0.0 };
    }
    let share = |part: f64| if ms > 0.0 { part / ms } else { 0.0 };
    EngineTime { engine: String::new(), ms, int8: share(int8), conversions: share(conversions), against_ms: None }
}

fn summary(graph: &Graph, parts: &[Part]) -> Vec<ExplainedPart> {
    let sum = |of: &dyn Fn(&Part) -> &[Kernel]| parts.iter().flat_map(of).map(|k| k.ms).sum::<f64>();
    let (ours, theirs) = (sum(&|p| &p.ours), sum(&|p| &p.theirs));
    let quantised = reasons::has_codes(graph);
    let one = |part: &Part| {
        let main = main_node(graph, part);
        let label = |n: NodeId| graph.node(n).display_name().to_string();
        let onnxruntime = work(&part.theirs, theirs);
        let layers = part.nodes.iter().filter(|n| graph.macs(**n) > 0);
        let in_floats = onnxruntime.as_ref().is_some_and(|w| !w.int8);
        ExplainedPart {
            node: main.map_or_else(|| part.nameless(), label),
            op: main.map_or_else(String::new, |n| graph.op(n).op_type().to_string()),
            macs: part.nodes.iter().map(|n| graph.macs(*n)).sum(),
            nodes: part.nodes.iter().map(|n| label(*n)).collect(),
            layers: layers.map(|n| graph.node(*n).name.clone()).filter(|name| !name.is_empty()).collect(),
            ours: work(&part.ours, ours),
            float_because: match quantised && in_floats {
                true => reasons::of_part(graph, main, &part.theirs),
                false => None,
            },
            onnxruntime,
            against_ms: None,
        }
    };
    parts.iter().map(one).collect()
}

/// The node with the most multiply-accumulates, or the last that is not a rounding step.
pub(crate) fn main_node(graph: &Graph, part: &Part) -> Option<NodeId> {
    // Of several that are as heavy the first.
    let heaviest = part.nodes.iter().rev().copied().filter(|n| graph.macs(*n) > 0).max_by_key(|n| graph.macs(*n));
    let rounds = |n: &NodeId| matches!(graph.op(*n), Op::Quantize(_) | Op::Dequantize(_));
    heaviest.or_else(|| part.nodes.iter().copied().rfind(|n| !rounds(n))).or_else(|| part.nodes.last().copied())
}

fn work(kernels: &[Kernel], total: f64) -> Option<Work> {
    let longest = kernels
        .iter()
        .max_by(|a, b| (!a.converts, a.ms).partial_cmp(&(!b.converts, b.ms)).unwrap_or(std::cmp::Ordering::Equal))?;
    let ms = kernels.iter().map(|k| k.ms).sum::<f64>();
    Some(Work {
        kernels: kernels
            .iter()
            .map(|k| KernelWork { kernel: k.name.clone(), node: k.node.clone(), value: k.value.clone(), ms: k.ms })
            .collect(),
        ms,
        share: if total > 0.0 { ms / total } else { 0.0 },
        int8: longest.on_codes,
        conversions_ms: kernels.iter().filter(|k| k.converts).map(|k| k.ms).sum(),
    })
}
