//! Kinds of operators that stay in floats together.

use super::{Best, Search, remedies::Proposal};
use crate::layers::Layer;
use compress_compiler::{error::Result, graph::Graph, node::NodeId, op::Op, ops::unary::Unary, words::counted};

/// Why depthwise convolutions stay in floats.
const DEPTHWISE: &str = "depthwise convolutions are no faster on codes here";

/// Depthwise convolutions in floats: their integer kernels are no faster, and functions around them need no codes then.
pub(super) fn ways(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    if !search.int8.target.capabilities().slow_depthwise {
        return Ok(vec![]);
    }
    let g = &best.variant.graph;
    let layers = search.values(&best.variant)?.layers;
    let inputs = |l: &Layer| g.constant(l.weight.into()).map_or(0, |t| t.shape()[l.axes.input]);
    let is_depthwise = |l: &&Layer| matches!(g.op(l.node), Op::Conv(conv) if conv.group > 1) && inputs(l) == 1;
    let depthwise: Vec<NodeId> = layers.iter().filter(is_depthwise).map(|l| l.node).collect();
    if depthwise.is_empty() || depthwise.len() == layers.len() {
        return Ok(vec![]);
    }
    let mut variant = best.variant.clone();
    variant.choices.float.extend(depthwise.iter().map(|n| (*n, DEPTHWISE)));
    Ok(vec![Proposal::of(format!("{} in floats", counted(depthwise.len(), "depthwise convolution")), variant)])
}

/// Why the first convolutions stay in floats.
const FIRST: &str = "the first convolutions have few channels: codes cost much accuracy there, and gain little time";

/// Lengths of stems to try.
const STEMS: [usize; 6] = [1, 2, 4, 6, 10, 16];

/// The first convolutions in floats, more and more: they have the most positions and the fewest channels, and what codes change
/// there all other layers read.
pub(super) fn stems(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let (g, layers) = (&best.variant.graph, search.values(&best.variant)?.layers);
    let is_conv = |n: &NodeId| matches!(g.op(*n), Op::Conv(_)) && layers.iter().any(|l| l.node == *n);
    let convs: Vec<NodeId> = g.topological()?.into_iter().filter(is_conv).collect();
    let with = |count: usize| {
        let mut variant = best.variant.clone();
        variant.choices.float.extend(convs[..count].iter().map(|n| (*n, FIRST)));
        let first = if count == 1 { "convolution".into() } else { format!("{count} convolutions") };
        Proposal::of(format!("the first {first} in floats"), variant)
    };
    // More than half of several is not a stem.
    let is_stem = |count: &usize| *count <= convs.len().div_ceil(2);
    Ok(STEMS.into_iter().filter(is_stem).map(with).collect())
}

/// Whether a layer in floats stands alone between codes. ONNX Runtime quantises such a one by itself, with one scale for the
/// whole weight (its WeightBiasQuantization), which costs far more accuracy than it gains.
pub(super) fn is_lone(g: &Graph, n: NodeId) -> bool {
    let is_constant = |slot: usize| g.operand(n, slot).is_none_or(|p| g.constant(p).is_some());
    let takes = matches!(g.op(n), Op::Conv(_) | Op::ConvTranspose(_) | Op::Gemm(_)) && is_constant(1) && is_constant(2);
    let reads = g.operand(n, 0).is_some_and(|p| matches!(g.op(p.node), Op::Dequantize(_)));
    let reader = |n: NodeId| g.only_use(n.into()).map(|u| u.node);
    let is_code = |n: Option<NodeId>| n.is_some_and(|n| matches!(g.op(n), Op::Quantize(_)));
    let next = reader(n);
    let clamped = next.filter(|n| matches!(g.op(*n), Op::Unary(Unary::Relu) | Op::Clip(_))).and_then(reader);
    takes && reads && (is_code(next) || is_code(clamped))
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::text;

    /// Whether a convolution is lone that reads and makes these values.
    fn lone(before: &str, after: &str) -> bool {
        let graph = format!(
            r#"graph "g" {{
                input %q: u8[1,2,4,4]
                input %f: f32[1,2,4,4]
                const %s: f32[] = [0.1]
                const %z: u8[] = [0]
                const %w: f32[2,2,1,1] = [1, 2, 3, 4]
                %d = DequantizeLinear(%q, %s, %z)
                %c = Conv({before}, %w) "conv"
                %r = Relu(%c)
                %t = Tanh(%c)
                %y = QuantizeLinear({after}, %s, %z)
                output %y
            }}"#
        );
        let mut g = text::parse(&graph).unwrap();
        let conv = g.operators().find(|n| matches!(g.op(*n), Op::Conv(_))).unwrap();
        for n in g.operators().collect::<Vec<_>>() {
            if g.is_dead(n) {
                g.remove(n);
            }
        }
        is_lone(&g, conv)
    }

    #[test]
    fn a_layer_between_codes_is_lone() {
        assert!(lone("%d", "%c"));
        assert!(lone("%d", "%r"), "a Relu goes with it");
        assert!(!lone("%d", "%t"), "another function stands between");
        assert!(!lone("%f", "%c"), "it reads floats");
    }
}
