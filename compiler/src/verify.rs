//! Checks that a graph is one: the proof that the writer and the runtime ask for.

use crate::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    op::{Op, Operator},
};
use std::{collections::HashSet, ops::Deref};

/// A graph that was verified and has not changed since, with its topological order.
pub struct Verified<'a> {
    graph: &'a Graph,
    order: Vec<NodeId>,
}

impl Verified<'_> {
    /// Every node after the nodes it reads from.
    pub fn order(&self) -> &[NodeId] {
        &self.order
    }
}

impl Deref for Verified<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

/// Verifies `graph`: no cycle, inputs within each operator's arity, every read output made,
/// names unique, types and shapes agreeing with inference, at least one output.
///
/// # Errors
/// Malformed, naming the node.
pub fn verify(graph: &Graph) -> Result<Verified<'_>> {
    let order = graph.topological()?;
    let mut names = HashSet::new();
    for &id in &order {
        let node = graph.node(id);
        let at = |e: Error| e.at(node.label());
        for v in node.outputs.iter().filter(|v| !v.name.is_empty()) {
            if !names.insert(&v.name) {
                return Err(at(Error::malformed(format!("two values are called `{}`", v.name))));
            }
        }
        if matches!(node.op, Op::Input(_) | Op::Constant(_)) {
            continue;
        }
        let operands = graph.operands(id);
        let arity = node.op.arity();
        if !arity.contains(&operands.len()) || operands.iter().take(*arity.start()).any(Option::is_none) {
            return Err(at(Error::malformed(format!(
                "{} inputs, where {} takes {} to {}",
                operands.iter().flatten().count(),
                node.op.op_type(),
                arity.start(),
                arity.end()
            ))));
        }
        if node.outputs.len() > node.op.max_outputs() {
            return Err(at(Error::malformed(format!(
                "{} outputs, where {} makes at most {}",
                node.outputs.len(),
                node.op.op_type(),
                node.op.max_outputs()
            ))));
        }
        if operands.iter().flatten().any(|p| p.slot >= graph.node(p.node).outputs.len()) {
            return Err(at(Error::malformed("reads an output that its producer does not make")));
        }
        for (value, fact) in node.outputs.iter().zip(graph.infer_op(&node.op, &operands).map_err(at)?) {
            fact.agrees(&value.fact).map_err(|e| at(e).help("the file's value_info contradicts the operator"))?;
        }
    }
    if graph.outputs().is_empty() {
        return Err(Error::malformed("the graph has no outputs"));
    }
    if let Some(o) = graph.outputs().iter().find(|o| !graph.contains(o.port.node)) {
        return Err(Error::bug(format!("output `{}` lost its node", o.name)));
    }
    Ok(Verified { graph, order })
}
