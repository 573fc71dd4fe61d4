//! A result beside its original: how long the same work takes there.

use super::{ExplainedPart, join::Part, main_node};
use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
};
use std::collections::{HashMap, HashSet};

/// Gives each part of a result the time of the same work in the original, on the engine by which parts are ordered. A part of
/// the original counts once: where the layer is that it computes, else where its value is, or what becomes of that.
pub fn add(made: &mut [ExplainedPart], after: (&Graph, &[Part]), before: (&Graph, &[Part])) {
    let (mut values, mut names) = (HashMap::new(), HashMap::new());
    for (i, part) in after.1.iter().enumerate() {
        for n in &part.nodes {
            let node = after.0.node(*n);
            // Other tools give the value of a layer's node to the rounding step behind it.
            if !matches!(after.0.op(*n), Op::Quantize(_) | Op::Dequantize(_)) {
                values.extend(node.outputs.iter().map(|v| (&v.name[..], i)));
            }
            names.insert(&node.name[..], i);
            names.extend(node.name.strip_suffix("_quant").map(|name| (name, i)));
        }
    }
    names.remove("");
    let here = |n: NodeId| {
        let node = before.0.node(n);
        let by_name = names.get(&node.name[..]);
        by_name.or_else(|| node.outputs.iter().find_map(|v| values.get(&v.name[..]))).copied()
    };
    for part in before.1 {
        let kernels = if part.theirs.is_empty() { &part.ours } else { &part.theirs };
        let ms: f64 = kernels.iter().map(|k| k.ms).sum();
        let place = main_node(before.0, part).and_then(|main| first(before.0, main, &here));
        if let Some(place) = place {
            *made[place].against_ms.get_or_insert(0.0) += ms;
        }
    }
}

/// What `found` gives for a node, or for the nearest of those that depend on it.
fn first(graph: &Graph, node: NodeId, found: &dyn Fn(NodeId) -> Option<usize>) -> Option<usize> {
    let (mut seen, mut layer) = (HashSet::from([node]), vec![node]);
    while !layer.is_empty() {
        if let Some(place) = layer.iter().find_map(|n| found(*n)) {
            return Some(place);
        }
        let made = layer.iter().flat_map(|n| (0..graph.node(*n).outputs.len()).map(|slot| Port { node: *n, slot }));
        let readers: Vec<NodeId> = made.flat_map(|port| graph.uses(port)).map(|u| u.node).collect();
        layer = readers.into_iter().filter(|n| seen.insert(*n)).collect();
    }
    None
}
