//! Why ONNX Runtime runs a layer in floats, and sentences for the costliest parts.

use super::{ExplainedPart, Work, join::Kernel};
use crate::shown::{milliseconds, shortened};
use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    words::counted,
};

/// Letters of a name.
const NAME: usize = 60;
/// Operators that ONNX Runtime's CPU provider multiplies in integers, if they stand between rounding steps.
const INTEGER: &[&str] = &["Conv", "MatMul", "Gemm"];
/// Those of them whose result may be read in floats.
const TO_FLOAT: &[&str] = &["MatMul", "Gemm"];
/// ONNX Runtime's product with a weight in codes of a few bits.
const BY_BITS: &str = "MatMulNBits";
/// The share of a part's time in what it makes of constants that is told.
const UNFOLDED: f64 = 0.05;

/// Whether a graph has values in codes: layers may run on these, or not.
pub fn has_codes(graph: &Graph) -> bool {
    graph.operators().any(|n| match graph.op(n) {
        Op::Quantize(_) | Op::Dequantize(_) | Op::DynamicQuantize(_) | Op::DynamicLstm(_) => true,
        Op::IntegerMatMul(_) | Op::IntegerConv(_) => true,
        Op::Opaque(op) => op.op_type() == BY_BITS,
        op => op.bodies().iter().any(|body| has_codes(body.graph())),
    })
}

/// Why a part, of which `node` is the main one, runs in floats in these kernels, as far as the graph tells.
pub fn of_part(graph: &Graph, node: Option<NodeId>, kernels: &[Kernel]) -> Option<String> {
    let why = match kernels.iter().any(|k| k.name == BY_BITS && !k.on_codes) {
        true => Some(format!(
            "{BY_BITS} makes floats of the codes of its weight as it multiplies: its accuracy_level is not 4, which multiplies in \
             integers"
        )),
        false => node.and_then(|n| why_float(graph, n)),
    };
    let sentences: Vec<String> = why.into_iter().chain(of_constants(kernels)).collect();
    Some(sentences.join("; ")).filter(|text| !text.is_empty())
}

/// What a part makes of constants in each run, where that costs something.
fn of_constants(kernels: &[Kernel]) -> Option<String> {
    let ms = |kernels: &[&Kernel]| kernels.iter().map(|k| k.ms).sum::<f64>();
    let made: Vec<&Kernel> = kernels.iter().filter(|k| k.of_constants && k.name == "DequantizeLinear").collect();
    if made.is_empty() || ms(&made) < UNFOLDED * ms(&kernels.iter().collect::<Vec<_>>()) {
        return None;
    }
    let named = made.iter().max_by(|a, b| a.ms.total_cmp(&b.ms)).map(|k| k.value.as_ref().unwrap_or(&k.node))?;
    let more = match made.len() {
        1 => String::new(),
        n => format!(" and {} more", n - 1),
    };
    Some(format!("in each run ONNX Runtime makes floats of constant codes anew (`{}`{more})", shortened(named, NAME)))
}

/// Why the layer `node` runs in floats, as far as the graph around it tells. `None` where it multiplies nothing, and makes
/// neither codes of floats nor floats of what layers on codes made.
fn why_float(graph: &Graph, node: NodeId) -> Option<String> {
    let label = |n: NodeId| format!("`{}` ({})", shortened(graph.node(n).display_name(), NAME), graph.op(n).op_type());
    match graph.op(node) {
        Op::DynamicQuantize(_) => {
            let x = graph.operand(node, 0)?;
            let of = shortened(&graph.value(x).name, NAME);
            return Some(format!("it finds the range of `{of}` in each run, and rounds the values to codes"));
        }
        Op::IntegerMatMul(_) | Op::IntegerConv(_) => {
            return Some(format!("{} multiplies codes, and the steps in floats around it take longer", label(node)));
        }
        op if !op.bodies().is_empty() => {
            let bodies: Vec<&Graph> = op.bodies().into_iter().map(|body| body.graph()).collect();
            let layers = bodies.iter().flat_map(|graph| graph.operators().map(move |n| (graph.macs(n), *graph, n)));
            let (_, body, layer) = layers.max_by_key(|(macs, ..)| *macs)?;
            let name = body.node(layer).display_name();
            return why_float(body, layer).map(|why| format!("of `{}` inside it: {why}", shortened(name, NAME)));
        }
        _ => {}
    }
    if let Some(layer) = integer_layer(graph, node) {
        return Some(format!("it makes floats of the sums of {}", label(layer)));
    }
    let op = graph.op(node);
    let kind = op.op_type();
    // Behind an operator that we don't know no sizes are known.
    if graph.macs(node) == 0 && !INTEGER.contains(&kind) {
        return None;
    }
    if !INTEGER.contains(&kind) {
        return Some(format!("ONNX Runtime has no kernel that multiplies {kind} in integers between rounding steps"));
    }
    let rounded = |port: Port| matches!(graph.op(port.node), Op::Dequantize(_));
    let name = |port: Port| format!("`{}`", shortened(&graph.value(port).name, NAME));
    let weight = op.weight().map(|axes| axes.slot);
    let factors: Vec<(usize, Port)> = (0..2).filter_map(|slot| Some((slot, graph.operand(node, slot)?))).collect();
    let rounds_weight = factors.iter().any(|(slot, port)| Some(*slot) == weight && rounded(*port));
    if let Some((slot, port)) = factors.iter().find(|(_, port)| !rounded(*port)) {
        return Some(match Some(*slot) == weight {
            true => format!("the file does not round its weight {}", name(*port)),
            false if rounds_weight => format!("the file does not round its input {}, only its weight", name(*port)),
            false => format!("the file does not round its input {}", name(*port)),
        });
    }
    match TO_FLOAT.contains(&kind) {
        true => None,
        false => float_reader(graph, node.into()).map(|reader| {
            let reader = label(reader);
            format!("{reader} reads its result in floats, and ONNX Runtime multiplies {kind} in integers only where the result is rounded")
        }),
    }
    .or_else(|| Some("the file rounds all that it multiplies, and ONNX Runtime ran it in floats all the same".into()))
}

/// The layer on codes whose sums `node` makes floats of: Cast, and the Mul behind it.
fn integer_layer(graph: &Graph, node: NodeId) -> Option<NodeId> {
    let before = |n: NodeId| graph.operand(n, 0).map(|p| p.node);
    let cast = match graph.op(node) {
        Op::Cast(_) => node,
        Op::Binary(_) => before(node).filter(|n| matches!(graph.op(*n), Op::Cast(_)))?,
        _ => return None,
    };
    before(cast).filter(|n| matches!(graph.op(*n), Op::IntegerMatMul(_) | Op::IntegerConv(_)))
}

/// A node that reads a value, or what Relu or Clip makes of it, and does not round it.
fn float_reader(graph: &Graph, port: Port) -> Option<NodeId> {
    graph.uses(port).into_iter().find_map(|reader| match graph.op(reader.node) {
        Op::Quantize(_) => None,
        op if matches!(op.op_type(), "Relu" | "Clip") => float_reader(graph, reader.node.into()),
        _ => Some(reader.node),
    })
}

/// Parts that the same kernels compute in about the same time, the costliest first.
struct Alike<'a> {
    first: &'a ExplainedPart,
    others: usize,
    ms: f64,
    share: f64,
    against_ms: Option<f64>,
    ours_ms: Option<f64>,
}

/// A sentence for each of the `most` costliest parts, where those that are alike count as one.
pub fn costliest(parts: &[ExplainedPart], most: usize) -> Vec<String> {
    let mut groups: Vec<Alike> = vec![];
    let theirs = parts.iter().any(|p| p.onnxruntime.is_some());
    // What one engine alone computes has no place among the shares of the other.
    for part in parts.iter().filter(|p| p.onnxruntime.is_some() == theirs) {
        let Some(work) = work(part) else { continue };
        let sum = |a: Option<f64>, b: Option<f64>| a.zip(b).map(|(a, b)| a + b);
        let ours_ms = part.ours.as_ref().map(|w| w.ms);
        let alike = |g: &&mut Alike| {
            let of = self::work(g.first);
            let same = |w: &Work| w.is_like(work) && w.ms < work.ms * SAME && work.ms < w.ms * SAME;
            g.first.op == part.op && of.is_some_and(same)
        };
        match groups.iter_mut().find(alike) {
            Some(g) => {
                g.others += 1;
                (g.ms, g.share) = (g.ms + work.ms, g.share + work.share);
                (g.against_ms, g.ours_ms) = (sum(g.against_ms, part.against_ms), sum(g.ours_ms, ours_ms));
            }
            None => groups.push(Alike {
                first: part,
                others: 0,
                ms: work.ms,
                share: work.share,
                against_ms: part.against_ms,
                ours_ms,
            }),
        }
    }
    groups.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    groups.iter().take(most).filter_map(sentence).collect()
}

/// The kernels by which a part is judged.
fn work(part: &ExplainedPart) -> Option<&Work> {
    part.onnxruntime.as_ref().or(part.ours.as_ref())
}

fn sentence(alike: &Alike) -> Option<String> {
    let (part, work) = (alike.first, work(alike.first)?);
    let engine = if part.onnxruntime.is_some() { "ONNX Runtime" } else { "our runtime" };
    let (others, verb) = match (alike.others, part.layers.len()) {
        (0, 0 | 1) => (String::new(), "takes"),
        (0, n) => (format!(", in one part with {},", counted(n - 1, "other layer")), "takes"),
        (n, _) => (format!(" and {n} more like it"), "take"),
    };
    let mut text = format!(
        "`{}`{}{others} {verb} {}, {:.0}% of the time on {engine}, in {} ({})",
        shortened(&part.node, NAME),
        if part.op.is_empty() { String::new() } else { format!(" ({})", part.op) },
        milliseconds(alike.ms),
        100.0 * alike.share,
        if work.int8 { "integers" } else { "floats" },
        work.names().join(", ")
    );
    if let Some(why) = &part.float_because {
        text += &format!(": {why}");
    }
    if work.conversions_ms > CONVERSIONS * work.ms {
        text += &format!("; {:.0}% of that converts types or layouts", 100.0 * work.conversions_ms / work.ms);
    }
    match alike.against_ms {
        Some(before) if alike.ms > before * NOTABLE => {
            text += &format!("; the original takes {}", milliseconds(before))
        }
        Some(before) if before > alike.ms * NOTABLE => {
            text += &format!("; {:.1}x as fast as in the original", before / alike.ms);
        }
        Some(_) => text += "; about as long as in the original",
        None => {}
    }
    if let Some((ours, ms)) = part.ours.as_ref().zip(alike.ours_ms).filter(|_| part.onnxruntime.is_some())
        && ms * NOTABLE < alike.ms
    {
        text += &format!("; our runtime takes {} ({})", milliseconds(ms), ours.names().join(", "));
    }
    Some(text)
}

/// By how much the times of parts that are alike may differ.
const SAME: f64 = 1.25;
/// The share of conversions that is told.
const CONVERSIONS: f64 = 0.15;
/// By how much two times have to differ to be told.
const NOTABLE: f64 = 1.1;
