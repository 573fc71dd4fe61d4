//! A graph at known sizes of its inputs: how much a run computes, and what it needs in memory.

use crate::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::control::Body,
    tensor::Tensor,
    value::{self, Fact},
};
use std::collections::{HashMap, HashSet};

/// `graph` with everything inferred anew from the types and shapes of its inputs; those that are not given stay as they are.
///
/// # Errors
/// Malformed, naming the node, where an operator can't take such sizes.
pub fn bound(graph: &Graph, inputs: &[(NodeId, Fact)]) -> Result<Graph> {
    let mut bound = graph.clone();
    for (node, fact) in inputs {
        bound.set_fact((*node).into(), fact.clone());
    }
    for node in bound.topological()? {
        if matches!(bound.op(node), Op::Input(_) | Op::Constant(_)) {
            continue;
        }
        within(&mut bound, node);
        let facts =
            bound.infer_op(bound.op(node), &bound.operands(node)).map_err(|e| e.at(bound.node(node).label()))?;
        let outputs = bound.node(node).outputs.len();
        for (slot, mut fact) in facts.into_iter().take(outputs).enumerate() {
            let port = Port { node, slot };
            // What is declared of a value that can't be inferred is all that there is.
            if fact.dims().is_none() || fact.dtype.is_none() {
                let _ = fact.refine(graph.fact(port));
            }
            bound.set_fact(port, fact);
        }
    }
    Ok(bound)
}

/// Gives the graphs inside `node` the sizes that it hands them, as far as they can take those: of the states of a loop the
/// sizes with which it begins.
fn within(graph: &mut Graph, node: NodeId) {
    let mut op = graph.op(node).clone();
    if op.bodies().is_empty() {
        return;
    }
    let given: Vec<Fact> =
        graph.operands(node).into_iter().map(|p| p.map_or_else(Fact::default, |p| graph.fact(p).clone())).collect();
    let formal = |i: usize| match &op {
        Op::Loop(_) if i >= 2 => given.get(i).cloned(),
        Op::Scan(scan) if i < scan.states() => given.get(i).cloned(),
        Op::Scan(scan) => slice(given.get(i)?, scan.input_axes.get(i - scan.states()).copied().unwrap_or(0)),
        _ => None,
    };
    let sized = |body: &Body| {
        let (inner, formals) = (body.graph(), body.formals());
        let outer = given.len() - body.captures();
        let fact = |i: usize| if i < formals { formal(i) } else { given.get(outer + i - formals).cloned() };
        let inputs = inner.inputs().iter().enumerate();
        let inputs: Vec<(NodeId, Fact)> =
            inputs.filter_map(|(i, n)| Some((*n, fact(i).filter(|f| f.dims().is_some())?))).collect();
        bound(inner, &inputs).map_or_else(|_| body.clone(), |g| Body::new(g, body.captures()))
    };
    let bodies = op.bodies().into_iter().map(sized).collect();
    op.set_bodies(bodies);
    graph.set_op(node, op);
}

/// What is known of a slice of a sequence along an axis.
fn slice(sequence: &Fact, axis: i64) -> Option<Fact> {
    let mut dims = sequence.dims()?.to_vec();
    dims.remove(value::axis(axis, dims.len()).ok()?);
    Some(Fact::new(sequence.dtype, Some(dims)))
}

/// Bytes that a value takes; axes of no known size count as 1.
pub fn bytes(fact: &Fact) -> u64 {
    let elements = fact.dims().unwrap_or_default().iter().map(|d| d.known().unwrap_or(1).max(0) as u64);
    let each = fact.dtype.map_or(4, |d| d.size()) as u64;
    elements.fold(each, u64::saturating_mul)
}

/// Bytes of all constants, those inside nodes too.
pub fn weight_bytes(graph: &Graph) -> u64 {
    let constants = |g: &Graph| g.ids().filter_map(|n| g.constant(n.into())).map(tensor_bytes).sum::<u64>();
    graph.and_bodies().into_iter().map(constants).sum()
}

fn tensor_bytes(t: &Tensor) -> u64 {
    t.bytes().len() as u64
}

/// Bytes of all values that a run makes of its inputs, but for those inside If, Loop and Scan: training keeps about as many from its
/// forward pass for the backward pass.
///
/// # Errors
/// Malformed for a graph with a cycle.
pub fn made_bytes(graph: &Graph) -> Result<u64> {
    let mut made: HashSet<NodeId> = graph.inputs().iter().copied().collect();
    let mut sum = 0u64;
    for node in graph.topological()? {
        if graph.operands(node).iter().flatten().any(|port| made.contains(&port.node)) {
            made.insert(node);
            let ports = (0..graph.node(node).outputs.len()).map(|slot| Port { node, slot });
            sum = ports.map(|port| bytes(graph.fact(port))).fold(sum, u64::saturating_add);
        }
    }
    Ok(sum)
}

/// The most bytes that the values of a run take at once, where each is there from the node that makes it to the last that
/// reads it.
///
/// # Errors
/// Malformed for a graph with a cycle.
pub fn live_bytes(graph: &Graph) -> Result<u64> {
    let order = graph.topological()?;
    let place: HashMap<NodeId, usize> = order.iter().enumerate().map(|(i, n)| (*n, i)).collect();
    let mut freed: Vec<u64> = vec![0; order.len() + 1];
    let (mut live, mut most) = (0u64, 0u64);
    for (i, node) in order.iter().enumerate() {
        if matches!(graph.op(*node), Op::Constant(_)) {
            continue;
        }
        for slot in 0..graph.node(*node).outputs.len() {
            let port = Port { node: *node, slot };
            let size = bytes(graph.fact(port));
            let last = graph.uses(port).iter().filter_map(|u| place.get(&u.node)).max().copied().unwrap_or(i);
            let last = if graph.is_output(port) { order.len() } else { last };
            live = live.saturating_add(size);
            freed[last] = freed[last].saturating_add(size);
        }
        most = most.max(live);
        live = live.saturating_sub(freed[i]);
    }
    Ok(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tensor::DType, text, value::Dim};

    #[test]
    fn memory_of_a_chain_is_that_of_two_values() {
        let graph = text::parse(
            r#"graph "g" {
                input %x: f32[n,4]
                const %w: f32[4,100] = zeros
                %a = MatMul(%x, %w)
                %b = Relu(%a)
                %c = Relu(%b)
                %y = ReduceSum(%c) {keepdims=0}
                output %y
            }"#,
        )
        .unwrap();
        let x = graph.inputs()[0];
        let at = |n: usize| {
            let fact = Fact::new(Some(DType::F32), Some(vec![Dim::from(n), Dim::from(4)]));
            bound(&graph, &[(x, fact)]).unwrap()
        };
        assert_eq!(weight_bytes(&graph), 1600);
        assert_eq!((live_bytes(&at(1)).unwrap(), live_bytes(&at(5)).unwrap()), (800, 4000));
        assert_eq!((made_bytes(&at(1)).unwrap(), made_bytes(&at(5)).unwrap()), (1204, 6004));
        let macs = |g: &Graph| g.operators().map(|n| g.macs(n)).sum::<u64>();
        assert_eq!((macs(&graph), macs(&at(5))), (400, 2000));
        let narrow = Fact::new(Some(DType::F32), Some(vec![Dim::from(1), Dim::from(3)]));
        assert!(bound(&graph, &[(x, narrow)]).is_err());
    }
}
