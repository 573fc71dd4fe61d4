//! The graphs inside a graph (If, Loop, Scan), taken out one by one and put back, for passes that change each.

use crate::bodies::drop_unread;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::control::Body,
    tensor::Tensor,
};

/// Where a graph is: from the outermost one in, the operator that runs it, and which of its bodies it is.
pub type Way = Vec<(NodeId, usize)>;

/// A graph inside another.
#[derive(Clone)]
pub struct Nested {
    /// Where it is.
    pub way: Way,
    /// The graph.
    pub graph: Graph,
}

/// The graphs that the operators of `graph` run, whatever their depth, each after the one around it.
pub fn take(graph: &Graph) -> Vec<Nested> {
    let inside = |way: &[(NodeId, usize)], g: &Graph| -> Vec<Nested> {
        let bodies = g.operators().flat_map(|n| g.op(n).bodies().into_iter().enumerate().map(move |(i, b)| (n, i, b)));
        bodies.map(|(n, i, b)| Nested { way: [way, &[(n, i)]].concat(), graph: b.graph().clone() }).collect()
    };
    let mut found = inside(&[], graph);
    let mut at = 0;
    while at < found.len() {
        let more = inside(&found[at].way, &found[at].graph);
        found.extend(more);
        at += 1;
    }
    found
}

/// Puts the graphs that [`take`] found back, after changes that kept their operators with bodies, and what those read.
/// What no body reads any more is no longer handed to them.
///
/// # Errors
/// What inference raises.
pub fn put_back(graph: &mut Graph, mut found: Vec<Nested>) -> Result<()> {
    // Inner graphs come after those around them, and the bodies of an operator one after the other.
    while let Some(Nested { way, graph: inner }) = found.pop() {
        let Some(((node, place), around)) = way.split_last() else { continue };
        let outer = match around {
            [] => &mut *graph,
            _ => found.iter_mut().find(|f| f.way == around).map(|f| &mut f.graph).ok_or_else(lost)?,
        };
        let mut op = outer.op(*node).clone();
        let mut bodies: Vec<Body> = op.bodies().into_iter().cloned().collect();
        bodies[*place] = Body::new(inner, bodies[*place].captures());
        op.set_bodies(bodies);
        outer.set_op(*node, op);
        if *place == 0 {
            drop_unread(outer, *node);
            outer.infer(*node)?;
        }
    }
    Ok(())
}

fn lost() -> Error {
    Error::bug("a graph inside another lost its way")
}

/// Gives the graph at `at` in `found` constants of its own for the weights and biases that its operators read from around
/// it, where these are constants.
pub fn own_weights(graph: &Graph, found: &mut [Nested], at: usize) {
    let part = &found[at];
    let mut read: Vec<(NodeId, Tensor)> = vec![];
    for n in part.graph.operators() {
        let slots = part.graph.op(n).weight().map_or(vec![], |axes| [Some(axes.slot), axes.bias].into());
        for port in slots.into_iter().flatten().filter_map(|slot| part.graph.operand(n, slot)) {
            let known = read.iter().any(|(input, _)| *input == port.node);
            if !known && let Some(tensor) = captured(graph, found, &part.way, port) {
                read.push((port.node, tensor));
            }
        }
    }
    let part = &mut found[at].graph;
    for (input, tensor) in read {
        let name = part.fresh(&part.value(input.into()).name.clone());
        let constant = part.add_constant(&name, tensor);
        part.redirect(input.into(), constant.into(), &[]);
    }
}

/// The constant around the graph at `way` that its input `port` stands for.
fn captured(graph: &Graph, found: &[Nested], way: &[(NodeId, usize)], port: Port) -> Option<Tensor> {
    let at = |way: &[(NodeId, usize)]| match way {
        [] => Some(graph),
        _ => found.iter().find(|f| f.way == way).map(|f| &f.graph),
    };
    let ((node, place), around) = way.split_last()?;
    let (inner, outer) = (at(way)?, at(around)?);
    let place_in = inner.inputs().iter().position(|i| Port::from(*i) == port)?;
    let formals = outer.op(*node).bodies().get(*place)?.formals();
    let operands = outer.operands(*node);
    let captures = inner.inputs().len() - formals;
    let from = (*operands.get(operands.len() - captures + place_in.checked_sub(formals)?)?)?;
    match outer.op(from.node) {
        Op::Constant(c) => Some(c.0.clone()),
        Op::Input(_) => captured(graph, found, around, from),
        _ => None,
    }
}
