//! The part of a graph that can be run, where some operators are not known.

use crate::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
};
use std::collections::{BTreeSet, HashMap};

/// The nodes that can't be run, each with the node that is why: itself, where its operator is not known or one inside it,
/// or the first such node on which it depends.
///
/// # Errors
/// Malformed for a graph with a cycle.
pub fn unreached(graph: &Graph) -> Result<HashMap<NodeId, NodeId>> {
    let mut cause: HashMap<NodeId, NodeId> = HashMap::new();
    for node in graph.topological()? {
        let before = graph.operands(node).into_iter().flatten().find_map(|p| cause.get(&p.node).copied());
        if let Some(first) = before.or(is_unknown(graph.op(node)).then_some(node)) {
            cause.insert(node, first);
        }
    }
    Ok(cause)
}

fn is_unknown(op: &Op) -> bool {
    let inside = |g: &Graph| g.operators().any(|n| is_unknown(g.op(n)));
    matches!(op, Op::Opaque(_)) || op.bodies().iter().any(|b| inside(b.graph()))
}

/// `graph` without the nodes that can't be run; its outputs are then the values that those read, and the outputs that are
/// left. Nodes keep their numbers.
///
/// # Errors
/// Malformed for a graph with a cycle.
pub fn runnable(graph: &Graph) -> Result<Graph> {
    let cause = unreached(graph)?;
    let mut part = graph.clone();
    if cause.is_empty() {
        return Ok(part);
    }
    let is_left = |p: &Port| !cause.contains_key(&p.node) && graph.constant(*p).is_none();
    let ends = graph.outputs().iter().map(|o| o.port).filter(is_left);
    let read = cause.keys().flat_map(|n| graph.operands(*n)).flatten().filter(is_left);
    let outputs: BTreeSet<Port> = ends.chain(read).collect();
    part.remove_outputs();
    for node in graph.topological()?.into_iter().rev().filter(|n| cause.contains_key(n)) {
        part.remove(node);
    }
    for port in outputs {
        part.add_output(&graph.value(port).name.clone(), port);
    }
    Ok(part)
}

/// The graph with these values as its only outputs.
pub fn only(g: &Graph, ports: &[Port]) -> Graph {
    let mut only = g.clone();
    only.remove_outputs();
    ports.iter().enumerate().for_each(|(i, port)| only.add_output(&format!("{i}"), *port));
    only
}
