//! What processors make of a model that add two products of 8-bit codes in 16 bits, and cut off what is beyond.
//!
//! AVX2 multiplies U8 by S8 with `vpmaddubsw`. Where a processor has no VNNI, ONNX Runtime and oneDNN use it. The instruction
//! set `saturating` computes as they do: each layer runs so on what it reads in an exact run.

use crate::{data::Samples, events::Monitor, measure, shown};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port, Site},
    op::{Op, Operator},
    ops::source::Input,
    part::only,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
    verify::verify,
    words::option::{INT8, REDUCE_RANGE},
};
use compress_kernels::Isa;
use compress_runtime::{
    device::Device,
    metrics::Sqnr,
    session::{Backend, Engine, Session},
};
use schemars::JsonSchema;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Samples that are looked at, at most.
const SAMPLES: usize = 4;
/// When it took longer, no further sample is looked at, and then no further layer.
const TIME: Duration = Duration::from_secs(3);
const MOST_TIME: Duration = Duration::from_secs(8);
/// Multiply-accumulates of a sample above which it would take too long.
const MOST_MACS: u64 = 4_000_000_000;
/// The sum of two products that fits, and the largest code of U8.
const FITS: i32 = i16::MAX as i32;
const LARGEST: i32 = 255;
/// The least share that is told as a number.
const LEAST: f64 = 1e-4;
/// Layers that are named.
const NAMED: usize = 3;

/// What is cut off.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Saturation {
    /// Samples that were looked at.
    pub samples: usize,
    /// The layers in which a value changes by more than a step of its codes, those that change most first.
    pub layers: Vec<CutOff>,
    /// Signal to noise of the worst output beside an exact run, in decibels; absent where all are equal.
    pub sqnr_db: Option<f64>,
}

/// A layer whose sums are cut off.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct CutOff {
    /// Its node.
    pub node: String,
    /// The share of its values that change by more than a step.
    pub share: f64,
    /// By how many steps one changes, at most.
    pub most_steps: f64,
}

impl Saturation {
    /// What to tell, if anything is cut off.
    pub fn warning(&self) -> Option<String> {
        let named: Vec<String> = self
            .layers
            .iter()
            .take(NAMED)
            .map(|l| {
                let share = if l.share < LEAST { format!("under {}%", 100.0 * LEAST) } else { shown::percent(l.share) };
                format!("`{}` ({share} of the values, by {:.0} steps at most)", l.node, l.most_steps)
            })
            .collect();
        let more = match self.layers.len().saturating_sub(NAMED) {
            0 => String::new(),
            n => format!(" and {n} more layers"),
        };
        let outputs = self.sqnr_db.map_or("the outputs stay".into(), |db| format!("the outputs keep {db:.1} dB"));
        (!self.layers.is_empty()).then(|| {
            format!(
                "WARNING: processors with AVX2 and without VNNI cut off sums of two products at 16 bits, which changes values \
                 by more than a step in {}{more}; {outputs}, beside exact sums. {INT8} with {REDUCE_RANGE} auto leaves room for them",
                named.join(", ")
            )
        })
    }
}

/// A layer that multiplies U8 by S8.
struct Coded {
    node: NodeId,
    /// What rounds its input.
    rounds: NodeId,
    /// What it reads.
    input: Port,
    /// What it makes, with Relu or Clip behind it.
    output: Port,
    /// The step of its result's codes, where that is rounded.
    step: Option<f32>,
}

/// Looks at what is cut off on some samples; `None` where nothing can be, or it would take too long.
///
/// # Errors
/// Whatever running the model can raise; interrupted.
pub fn find(graph: &Graph, samples: &Samples, monitor: &Monitor) -> Result<Option<Saturation>> {
    let layers: Vec<Coded> = graph.operators().filter_map(|n| coded(graph, n)).collect();
    if layers.is_empty() || samples.indices.is_empty() {
        return Ok(None);
    }
    let first = samples.set.batch(&samples.indices[..samples.timed(1).min(samples.indices.len())])?.inputs;
    let sized = measure::sized(graph, &first)?;
    if sized.operators().map(|n| sized.macs(n)).fold(0, u64::saturating_add) > MOST_MACS {
        return Ok(None);
    }
    let exact = Backend::cpu();
    let cut = Backend::new(Device::cpu(), Engine::Cpu(Isa::Saturating));
    let watch: Vec<Site> = layers.iter().map(|l| l.input.into()).collect();
    let watching = Session::new(&verify(graph)?, &exact, &watch)?;
    let whole = Session::new(&verify(graph)?, &cut, &[])?;
    let mut found: Vec<(usize, usize, f32)> = vec![(0, 0, 0.0); layers.len()];
    let mut noise = vec![Sqnr::default(); graph.outputs().len()];
    let (began, mut seen) = (Instant::now(), 0);
    for indices in samples.few(SAMPLES) {
        if seen > 0 && began.elapsed() > TIME {
            break;
        }
        seen += indices.len();
        let batch = samples.set.batch(indices)?.inputs;
        let mut read: Vec<Vec<f32>> = vec![vec![]; layers.len()];
        let outputs = watching.observe(&batch, &mut |i, values| {
            read[i] = values.to_vec();
            Ok(())
        })?;
        for (noise, (a, b)) in noise.iter_mut().zip(outputs.iter().zip(&whole.run(&batch)?)) {
            if let (Some(a), Some(b)) = (a.as_f32(), b.as_f32()) {
                noise.add(&a, &b);
            }
        }
        let sized = measure::sized(graph, &batch)?;
        for (i, (layer, values)) in layers.iter().zip(read).enumerate() {
            monitor.check()?;
            if began.elapsed() > MOST_TIME {
                break;
            }
            let Some(shape) = sized.fact(layer.input).fixed() else { continue };
            if shape.iter().product::<usize>() != values.len() {
                continue;
            }
            let alone = layer.alone(graph, &sized)?;
            let inputs: Vec<Tensor> =
                batch.iter().cloned().chain([Tensor::floats(DType::F32, &shape, &values)]).collect();
            let made = |on: &Backend| Session::new(&verify(&alone)?, on, &[])?.run(&inputs);
            let (a, b) = (made(&exact)?, made(&cut)?);
            if let (Some(a), Some(b)) = (a[0].as_f32(), b[0].as_f32()) {
                layer.count(&a, &b, &mut found[i]);
            }
        }
    }
    let mut cut_off: Vec<CutOff> = layers
        .iter()
        .zip(found)
        .filter(|(_, (changed, ..))| *changed > 0)
        .map(|(layer, (changed, all, most))| CutOff {
            node: graph.node(layer.node).display_name().into(),
            share: changed as f64 / all as f64,
            most_steps: f64::from(most),
        })
        .collect();
    cut_off.sort_by(|a, b| b.share.total_cmp(&a.share));
    let sqnr_db = noise.iter().filter_map(Sqnr::db).filter(|db| db.is_finite()).reduce(f64::min);
    Ok(Some(Saturation { samples: seen, layers: cut_off, sqnr_db }))
}

/// The layer that `node` is, if it multiplies U8 by S8 codes of which a pair may be too large.
fn coded(graph: &Graph, node: NodeId) -> Option<Coded> {
    let slot = graph.op(node).weight()?.slot;
    let input = graph.operand(node, 0)?;
    let dequantizes = |port: Port| match graph.op(port.node) {
        Op::Dequantize(_) => graph.operand(port.node, 0),
        _ => None,
    };
    let codes = dequantizes(input)?;
    let weight = graph.constant(dequantizes(graph.operand(node, slot)?)?)?;
    let is_large = |w: &u8| (*w as i8).unsigned_abs() as i32 * 2 * LARGEST > FITS;
    let rounds = matches!(graph.op(codes.node), Op::Quantize(_)) && graph.fact(codes).dtype == Some(DType::U8);
    if !rounds || weight.dtype() != DType::I8 || !weight.bytes().iter().any(is_large) {
        return None;
    }
    let mut output = Port::from(node);
    let step = loop {
        let Some(reader) = graph.only_use(output) else { break None };
        match graph.op(reader.node) {
            Op::Quantize(_) => {
                let scale = graph.operand(reader.node, 1).and_then(|s| graph.constant(s)?.as_f32().map(|s| s.to_vec()));
                break scale.and_then(|s| s.iter().copied().reduce(f32::max));
            }
            op if matches!(op.op_type(), "Relu" | "Clip") => output = reader.node.into(),
            _ => break None,
        }
    };
    Some(Coded { node, rounds: codes.node, input, output, step })
}

impl Coded {
    /// The layer alone: what it reads is one more input of the graph.
    fn alone(&self, graph: &Graph, sized: &Graph) -> Result<Graph> {
        let mut alone = only(graph, &[self.output]);
        let open = sized.fact(self.input).dims().map(|dims| vec![Dim::Unknown; dims.len()]);
        let name = alone.fresh("read");
        let fact = Fact::new(Some(DType::F32), open);
        let read = alone.add_input(&name, fact, Op::Input(Input { default: None }))?;
        alone.set_operand(self.rounds, 0, Some(read.into()));
        for n in alone.topological()?.into_iter().rev() {
            if alone.is_dead(n) {
                alone.remove(n);
            }
        }
        Ok(alone)
    }

    /// Counts values that differ by more than a step; where the result is not rounded, by more than a 255th of its range.
    fn count(&self, exact: &[f32], cut: &[f32], (changed, all, most): &mut (usize, usize, f32)) {
        let range = || {
            let (low, high) = exact.iter().fold((f32::MAX, f32::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
            (high - low) / LARGEST as f32
        };
        let step = self.step.unwrap_or_else(range).max(f32::MIN_POSITIVE);
        for (a, b) in exact.iter().zip(cut) {
            let steps = (a - b).abs() / step;
            *changed += usize::from(steps > 1.0);
            *most = most.max(steps);
        }
        *all += exact.len();
    }
}
