//! Kinds of operators that stay in floats together.

use super::{Best, Proposal, Search};
use compress_compiler::{error::Result, node::NodeId, op::Op, words::counted};

/// Why depthwise convolutions stay in floats.
const DEPTHWISE: &str = "depthwise convolutions are no faster on codes here";

/// Depthwise convolutions in floats: their integer kernels are no faster, and functions around them need no codes then.
pub(super) fn ways(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let g = &best.variant.graph;
    let layers = search.values(&best.variant)?.layers;
    let is_depthwise = |n: NodeId| matches!(g.op(n), Op::Conv(conv) if conv.group > 1);
    let depthwise: Vec<NodeId> = layers.iter().map(|l| l.node).filter(|n| is_depthwise(*n)).collect();
    if depthwise.is_empty() || depthwise.len() == layers.len() {
        return Ok(vec![]);
    }
    let mut variant = best.variant.clone();
    variant.choices.float.extend(depthwise.iter().map(|n| (*n, DEPTHWISE)));
    Ok(vec![Proposal { what: format!("{} in floats", counted(depthwise.len(), "depthwise convolution")), variant }])
}
