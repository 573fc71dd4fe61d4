//! A profile beside what the machine can do: the roofline of Williams, Waterman and Patterson (2009).

use super::{ceiling::Ceilings, load::RunningGpu};
use crate::{
    data::Samples,
    events::Monitor,
    explain::{Engines, Part, main_node},
    measure,
};
use compress_compiler::{
    bound,
    error::{Kind, Result},
    graph::Graph,
    node::{NodeId, Port},
    onnx::Model,
    op::{Op, Operator},
    tensor::Tensor,
};
use compress_runtime::{
    memory,
    session::{Backend, Engine, Session},
};
use schemars::JsonSchema;
use serde::Serialize;
use std::{
    collections::{BTreeSet, HashSet},
    time::Duration,
};

/// For how long models are run for the profile, and for each size of a batch.
const TIME: Duration = Duration::from_secs(2);
const BATCH_TIME: Duration = Duration::from_millis(400);
/// Sizes of batches that are tried.
const BATCHES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Milliseconds of a batch after which no larger one is tried.
const LONGEST_MS: f64 = 1000.0;
/// The share of the most samples in a second that is as good.
const NEARLY: f64 = 0.98;
/// The largest batch, by the bytes of its activations.
const MOST_BYTES: u64 = 2 << 30;

/// Where the time went, beside what the machine can do.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Profile {
    /// What the machine was seen to do at most.
    pub ceilings: Ceilings,
    /// Milliseconds of all kernels of a run.
    pub ms: f64,
    /// The share of the ceiling that all of them reach together.
    pub of_ceiling: f64,
    /// The parts of the model, the longest first: nodes that kernels compute together.
    pub parts: Vec<ProfiledPart>,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// The most bytes that values of a run take at once.
    pub activation_bytes: u64,
    /// The most memory that this process has had, in bytes; absent where the system doesn't say.
    pub process_peak_bytes: Option<u64>,
    /// Bytes of a GPU's memory that this process holds; absent on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_bytes: Option<u64>,
    /// The share of a run of which a GPU computes, node by node; the rest is handing work over, and the way of inputs and outputs. Absent on
    /// the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_busy: Option<f64>,
    /// The GPU while it runs the model for some seconds; absent on the CPU, and where the driver says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<RunningGpu>,
    /// How fast batches of several sizes are.
    pub batches: Vec<BatchTime>,
    /// The smallest batch with the most samples in a second, or within 2% of that.
    pub best_batch: usize,
}

/// Nodes that kernels compute together.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ProfiledPart {
    /// The node with the most multiply-accumulates, or the last.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// The kernels, in the order in which they run.
    pub kernels: Vec<String>,
    /// Milliseconds.
    pub ms: f64,
    /// The share of the model's time.
    pub share: f64,
    /// Multiplications and additions in a second, in 10⁹; absent where it multiplies no matrices.
    pub gflops: Option<f64>,
    /// Bytes of operands, weights and results in a second, in 10⁹.
    pub gbs: f64,
    /// Which ceiling it meets first.
    pub bound: Bound,
    /// The time that it would take at that ceiling, as a share of the time that it takes; absent where it is not known what has to
    /// be done, between nodes.
    pub of_ceiling: Option<f64>,
}

/// A ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    /// Multiplications.
    Compute,
    /// Bytes.
    Memory,
}

/// How fast a batch is.
#[derive(Debug, Clone, Copy, JsonSchema, Serialize)]
pub struct BatchTime {
    /// Samples.
    pub batch: usize,
    /// The median of all runs, in milliseconds.
    pub median_ms: f64,
    /// Samples in a second.
    pub samples_per_second: f64,
}

impl Profile {
    /// Profiles `model` on a batch of `samples`.
    ///
    /// # Errors
    /// Whatever running it can raise; interrupted.
    pub(crate) fn of(
        model: &Model,
        backend: &Backend,
        samples: &Samples,
        batch: usize,
        monitor: &Monitor,
    ) -> Result<Self> {
        let (ours, provider) = match backend.engine {
            Engine::OnnxRuntime(provider) => (None, Some(provider)),
            Engine::Cpu(_) | Engine::Burn => (Some(backend.clone()), None),
        };
        let engines = Engines { ours, provider, warnings: vec![] };
        let parts = engines.parts(&[model], samples, (batch, TIME), monitor)?.concat();
        let timed = measure::timing_batch(samples, batch)?;
        let sized = measure::sized(&model.graph, &timed.inputs)?;
        // Before the ceilings take more of it.
        let gpu_bytes = backend.device.held_bytes();
        let gpu = match backend.device.is_cpu() {
            true => None,
            false => {
                let session = Session::of_model(model, backend)?;
                RunningGpu::of(&session, (&timed.inputs, timed.len), &backend.device, monitor)?
            }
        };
        let ceilings = Ceilings::measure(backend, monitor)?;
        let sum = |of_nodes: bool| {
            let some = parts.iter().filter(|p| p.nodes.is_empty() != of_nodes).flat_map(Part::kernels);
            some.map(|k| k.ms).fold(0.0, |a, b| a + b)
        };
        let (ms, whole) = (sum(true), sum(true) + sum(false));
        let busy = ms / whole.max(1e-9);
        let mut parts: Vec<ProfiledPart> = parts.iter().map(|p| profiled(&sized, p, &ceilings, whole)).collect();
        parts.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        let batches = batches(model, backend, samples, &sized, monitor)?;
        let most = batches.iter().map(|b| b.samples_per_second).fold(0.0, f64::max);
        let best = batches.iter().find(|b| b.samples_per_second >= most * NEARLY);
        Ok(Self {
            of_ceiling: reached(&parts),
            ceilings,
            ms,
            parts,
            weight_bytes: bound::weight_bytes(&model.graph),
            activation_bytes: bound::live_bytes(&sized)?,
            process_peak_bytes: memory::peak().map(|bytes| bytes as u64),
            gpu_bytes,
            gpu,
            gpu_busy: (!backend.device.is_cpu()).then_some(busy),
            best_batch: best.map_or(1, |b| b.batch),
            batches,
        })
    }
}

/// The share of the ceilings that parts reach together, as far as it is known.
fn reached(parts: &[ProfiledPart]) -> f64 {
    let known = || parts.iter().filter_map(|p| Some((p.ms, p.of_ceiling?)));
    let ms = known().map(|(ms, _)| ms).fold(0.0, |a, b| a + b);
    if ms > 0.0 { known().map(|(ms, share)| ms * share).sum::<f64>() / ms } else { 0.0 }
}

fn profiled(graph: &Graph, part: &Part, ceilings: &Ceilings, whole: f64) -> ProfiledPart {
    let ms = part.kernels().map(|k| k.ms).sum::<f64>();
    let seconds = (ms / 1e3).max(1e-9);
    let operations = 2.0 * part.nodes.iter().map(|n| graph.macs(*n)).sum::<u64>() as f64;
    let on_codes = part.kernels().any(|k| k.on_codes);
    let bytes = bytes(graph, &part.nodes);
    let compute = operations / (1e9 * if on_codes { ceilings.int8_gops } else { ceilings.gflops });
    let memory = bytes as f64 / (1e9 * ceilings.gbs(bytes));
    let main = main_node(graph, part);
    ProfiledPart {
        node: main.map_or_else(|| part.nameless(), |n| graph.node(n).display_name().into()),
        op: main.map_or_else(String::new, |n| graph.op(n).op_type().to_string()),
        kernels: part.kernels().map(|k| k.name.clone()).collect(),
        ms,
        share: if whole > 0.0 { ms / whole } else { 0.0 },
        gflops: (operations > 0.0).then_some(operations / seconds / 1e9),
        gbs: bytes as f64 / seconds / 1e9,
        bound: if compute > memory { Bound::Compute } else { Bound::Memory },
        of_ceiling: (bytes > 0).then_some(compute.max(memory) / seconds),
    }
}

/// Bytes that have to be read and written for some nodes: what they read of others, and what others read of them.
fn bytes(graph: &Graph, nodes: &[NodeId]) -> u64 {
    let inside: HashSet<NodeId> = nodes.iter().copied().collect();
    let of =
        |port: Port| graph.constant(port).map_or_else(|| bound::bytes(graph.fact(port)), |t| t.bytes().len() as u64);
    let operands = nodes.iter().flat_map(|n| graph.operands(*n)).flatten();
    let mut read: BTreeSet<Port> = BTreeSet::new();
    for port in operands.filter(|p| !inside.contains(&p.node)) {
        match graph.op(port.node) {
            // Of weights in codes these are what is read.
            Op::Dequantize(_) if graph.operand(port.node, 0).is_some_and(|p| graph.constant(p).is_some()) => {
                read.extend(graph.operand(port.node, 0));
            }
            _ => drop(read.insert(port)),
        }
    }
    let made = nodes.iter().flat_map(|n| (0..graph.node(*n).outputs.len()).map(|slot| Port { node: *n, slot }));
    let outside = |p: &Port| graph.is_output(*p) || graph.uses(*p).iter().any(|u| !inside.contains(&u.node));
    read.into_iter().chain(made.filter(outside)).map(of).fold(0, u64::saturating_add)
}

/// How fast batches of several sizes are, as far as the model takes them, and they fit in memory.
fn batches(
    model: &Model,
    backend: &Backend,
    samples: &Samples,
    sized: &Graph,
    monitor: &Monitor,
) -> Result<Vec<BatchTime>> {
    let session = Session::of_model(model, backend)?;
    let each = bound::live_bytes(sized)? / samples.timed(1).max(1) as u64;
    let mut all: Vec<BatchTime> = vec![];
    for size in BATCHES {
        if size > 1 && each.saturating_mul(size as u64) > MOST_BYTES {
            break;
        }
        let batch = measure::timing_batch(samples, size)?;
        // It may take batches of one size alone.
        if all.iter().any(|known| known.batch == batch.len) {
            continue;
        }
        match timed(&session, &batch.inputs, monitor) {
            Ok(median_ms) => {
                let samples_per_second = batch.len as f64 * 1e3 / median_ms.max(1e-9);
                all.push(BatchTime { batch: batch.len, median_ms, samples_per_second });
                if median_ms > LONGEST_MS {
                    break;
                }
            }
            Err(e) if e.kind() == Kind::Interrupted || all.is_empty() => return Err(e),
            // A model may leave the batch open, and take one sample all the same.
            Err(_) => break,
        }
    }
    Ok(all)
}

fn timed(session: &Session, inputs: &[Tensor], monitor: &Monitor) -> Result<f64> {
    let began = std::time::Instant::now();
    let one = compress_runtime::bench::time(session, inputs, 1, &|| monitor.stopped())?.median_ms;
    let left = BATCH_TIME.saturating_sub(began.elapsed()).as_secs_f64() * 1e3;
    let runs = (left / one.max(1e-6)).clamp(2.0, 1e4) as usize;
    Ok(compress_runtime::bench::time(session, inputs, runs, &|| monitor.stopped())?.median_ms)
}
