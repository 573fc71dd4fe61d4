//! The layers of a graph: operators that multiply activations by a constant weight. What
//! pruning and quantisation agree on.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator, WeightAxes},
    tensor::DType,
    words::option::EXCLUDE,
};
use regex::Regex;
use std::collections::HashSet;

/// A layer and its weight.
#[derive(Debug, Clone, Copy)]
pub struct Layer {
    /// The operator.
    pub node: NodeId,
    /// The constant that holds the weight.
    pub weight: NodeId,
    /// The weight's channel axes.
    pub axes: WeightAxes,
}

/// All layers in topological order.
///
/// # Errors
/// Malformed when the graph has a cycle.
pub fn layers(g: &Graph) -> compress_compiler::error::Result<Vec<Layer>> {
    let order = g.topological()?;
    Ok(order.into_iter().filter_map(|n| layer(g, n)).collect())
}

/// The layer that an operator is, if it is one.
pub(crate) fn layer(g: &Graph, node: NodeId) -> Option<Layer> {
    let axes = g.op(node).weight()?;
    let port = g.operand(node, axes.slot)?;
    let tensor = g.constant(port)?;
    let rank = tensor.shape().len();
    // A MatMul by a vector or a stack of matrices has no output channels in our sense.
    let has_channels = rank >= 2 && axes.output < rank && axes.rank.is_none_or(|wanted| wanted == rank);
    (tensor.dtype().is_float() && !tensor.is_empty() && has_channels).then_some(Layer { node, weight: port.node, axes })
}

/// The layers with no layer before them, and those with none after: the ends of the network,
/// which compress badly.
pub fn ends(g: &Graph, layers: &[Layer]) -> HashSet<NodeId> {
    let nodes: HashSet<NodeId> = layers.iter().map(|l| l.node).collect();
    let Ok(order) = g.topological() else { return HashSet::new() };
    let mut seen: HashSet<NodeId> = HashSet::new();
    let mut ends = HashSet::new();
    for &n in &order {
        let after = g.operands(n).into_iter().flatten().any(|p| nodes.contains(&p.node) || seen.contains(&p.node));
        if after {
            seen.insert(n);
        } else if nodes.contains(&n) {
            ends.insert(n);
        }
    }
    let mut before: HashSet<NodeId> = HashSet::new();
    for &n in order.iter().rev() {
        let readers = (0..g.node(n).outputs.len()).flat_map(|slot| g.uses(Port { node: n, slot }));
        let ahead = readers.into_iter().any(|u| nodes.contains(&u.node) || before.contains(&u.node));
        if ahead {
            before.insert(n);
        } else if nodes.contains(&n) {
            ends.insert(n);
        }
    }
    ends
}

/// Why this layer is left alone if the user excluded it, by the node's name or its weight's.
pub(crate) fn excluded(g: &Graph, layer: &Layer, exclude: &[Regex]) -> Option<String> {
    let weight = &g.value(layer.weight.into()).name;
    is_excluded(g, layer.node, weight, exclude).then(|| format!("excluded by {EXCLUDE}"))
}

/// Whether the user excluded a node with this weight, by the name of either.
pub(crate) fn is_excluded(g: &Graph, node: NodeId, weight: &str, exclude: &[Regex]) -> bool {
    exclude.iter().any(|r| r.is_match(g.node(node).display_name()) || r.is_match(weight))
}

/// The slots of an operator's weights: that of a layer, or W and R of a recurrent one.
pub fn weight_slots(op: &Op) -> Vec<usize> {
    match op {
        Op::Recurrent(_) | Op::DynamicLstm(_) => vec![1, 2],
        Op::IntegerMatMul(op) => vec![op.result.weight()],
        Op::IntegerConv(op) => vec![op.result.weight()],
        op => op.weight().map(|w| w.slot).into_iter().collect(),
    }
}

/// Whether the user excluded a node, by its name or that of one of its weights.
pub(crate) fn is_left_out(g: &Graph, node: NodeId, exclude: &[Regex]) -> bool {
    let names = weight_slots(g.op(node)).into_iter().filter_map(|slot| Some(&g.value(g.operand(node, slot)?).name));
    names.into_iter().any(|name| is_excluded(g, node, name, exclude))
}

/// Why a weight can't be touched, if so.
pub fn obstacle(g: &Graph, layer: &Layer) -> Option<String> {
    let tensor = g.constant(layer.weight.into())?;
    if tensor.dtype() != DType::F32 {
        return Some(format!("its weight is {}, only f32 is handled", tensor.dtype()));
    }
    if !tensor.is_finite()? {
        return Some("its weight has NaN or infinite values".into());
    }
    if g.is_output(layer.weight.into()) {
        return Some("its weight is a graph output".into());
    }
    let reads = |u: &Use| self::layer(g, u.node).is_some_and(|l| l.axes.slot == u.slot);
    let other = g.uses(layer.weight.into()).into_iter().find(|u| !reads(u));
    other.map(|u| format!("its weight is shared with {}", g.node(u.node).label()))
}
