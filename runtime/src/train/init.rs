//! Weights to begin with, where a model is trained from nothing.

use super::{
    form::origins,
    random::{Purpose, Random},
    untie::untie,
};
use compress_compiler::{
    forms::decoder::Decoder,
    graph::Graph,
    node::NodeId,
    op::{Op, Operator},
    tensor::{DType, Tensor},
};
use std::collections::BTreeSet;

/// Gives all weights of layers values drawn by `seed`: uniform within `1 / sqrt(fan-in)` around zero, and so their
/// biases (LeCun 1998; what PyTorch does). Scales of normalisations become 1, shifts and running means 0, running
/// variances 1. A table of words is drawn within `1 / sqrt(width)`. Other constants stay: a table of places may hold angles.
pub fn from_nothing(graph: &mut Graph, seed: u64) {
    untie(graph);
    let nodes: Vec<NodeId> = graph.operators().collect();
    let decoder = Decoder::of(graph);
    let is_place = |node: NodeId| decoder.as_ref().is_some_and(|d| d.makes(node));
    // Numbers that the data gives.
    let reads_words = |n: &NodeId| {
        let mut ids = graph.operand(*n, 1).map(|p| p.node);
        while let Some(from) = ids.filter(|n| matches!(graph.op(*n), Op::Cast(_) | Op::Reshape(_) | Op::Identity(_))) {
            ids = graph.operand(from, 0).map(|p| p.node);
        }
        ids.is_some_and(|ids| matches!(graph.op(ids), Op::Input(_)) && !is_place(ids))
    };
    let of_words: BTreeSet<NodeId> = nodes.iter().copied().filter(reads_words).collect();
    let is_of_words = |node: NodeId| of_words.contains(&node);
    for (place, node) in nodes.into_iter().enumerate() {
        let operands = graph.operands(node);
        let constant = |slot: usize| operands.get(slot).copied().flatten().filter(|p| graph.constant(*p).is_some());
        match graph.op(node) {
            Op::BatchNorm(_) => {
                let fills = [(1, 1.0), (2, 0.0), (3, 0.0), (4, 1.0)];
                for (port, v) in fills.map(|(slot, v)| (constant(slot), v)) {
                    port.into_iter().for_each(|p| fill(graph, p.node, |_| v));
                }
            }
            Op::LayerNorm(_) | Op::GroupNorm(_) | Op::InstanceNorm(_) | Op::RmsNorm(_) => {
                for (port, v) in [(1, 1.0), (2, 0.0)].map(|(slot, v)| (constant(slot), v)) {
                    port.into_iter().for_each(|p| fill(graph, p.node, |_| v));
                }
            }
            Op::Gather(_) if is_of_words(node) => {
                let Some(table) = constant(0) else { continue };
                let width = graph.fact(table).fixed().and_then(|shape| shape.last().copied()).unwrap_or(1);
                let mut random = Random::new(seed, Purpose::Weights, place as u64, 0);
                let bound = 1.0 / (width.max(1) as f32).sqrt();
                fill(graph, table.node, |_| (random.unit() as f32 * 2.0 - 1.0) * bound);
            }
            op => {
                let Some(axes) = op.weight() else { continue };
                let read = |slot: usize| operands.get(slot).copied().flatten();
                let Some(weight) = read(axes.slot) else { continue };
                // What is transposed before it is multiplied by is a weight too.
                let Some(shape) = graph.fact(weight).fixed() else { continue };
                let inputs = shape.iter().product::<usize>() / shape.get(axes.output).copied().unwrap_or(1).max(1);
                let bound = 1.0 / (inputs.max(1) as f32).sqrt();
                let parts = [Some(weight), axes.bias.and_then(read)].map(|port| port.map(|p| origins(graph, p)));
                for (part, constants) in parts.into_iter().enumerate() {
                    let mut random = Random::new(seed, Purpose::Weights, place as u64, part);
                    for constant in constants.unwrap_or_default() {
                        fill(graph, constant, |_| (random.unit() as f32 * 2.0 - 1.0) * bound);
                    }
                }
            }
        }
    }
}

fn fill(graph: &mut Graph, node: NodeId, mut v: impl FnMut(usize) -> f32) {
    let Some(t) = graph.constant(node.into()).filter(|t| t.dtype().is_float() && t.dtype() != DType::F64) else {
        return;
    };
    let data: Vec<f32> = (0..t.len()).map(&mut v).collect();
    let made = Tensor::floats(t.dtype(), t.shape(), &data);
    graph.set_constant(node, made);
}
