//! The graphs inside a graph (If, Loop, Scan), taken out one by one and put back, for passes that change each.

use crate::bodies::drop_unread;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator},
    ops::control::Body,
};
use std::collections::HashMap;

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
    let places: HashMap<Way, usize> = found.iter().enumerate().map(|(at, f)| (f.way.clone(), at)).collect();
    // Inner graphs come after those around them, and the bodies of an operator one after the other.
    while let Some(Nested { way, graph: inner }) = found.pop() {
        let Some(((node, place), around)) = way.split_last() else { continue };
        let outer = match around {
            [] => &mut *graph,
            _ => places.get(around).and_then(|at| found.get_mut(*at)).map(|f| &mut f.graph).ok_or_else(lost)?,
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

/// A constant: where its graph is, and its node.
pub type ConstantRef = (Way, NodeId);

/// An operator that reads a weight or a bias from around the graph that it is in.
pub struct Reader {
    /// The place of its graph in the list.
    pub at: usize,
    /// The operator.
    pub node: NodeId,
    /// The constant.
    pub source: ConstantRef,
}

/// The operators in `found`, which are the graphs inside `graph`, that read weights or biases from around them, where
/// these are constants that nothing around reads.
pub(crate) fn outer_weights(graph: &Graph, found: &[Nested]) -> Vec<Reader> {
    let (mut readers, graphs) = (readers(graph, found), Graphs::new(graph, found));
    // A constant may have thousands of readers.
    let mut alone: HashMap<ConstantRef, bool> = HashMap::new();
    readers.retain(|r| *alone.entry(r.source.clone()).or_insert_with(|| graphs.is_captured_alone(&r.source)));
    readers
}

/// The operators in `found`, which are the graphs inside `graph`, that read weights or biases from around them.
pub fn readers(graph: &Graph, found: &[Nested]) -> Vec<Reader> {
    let graphs = Graphs::new(graph, found);
    let mut readers = vec![];
    for (at, part) in found.iter().enumerate() {
        for node in part.graph.operators() {
            let slots = part.graph.op(node).weight().map_or(vec![], |axes| [Some(axes.slot), axes.bias].into());
            for port in slots.into_iter().flatten().filter_map(|slot| part.graph.operand(node, slot)) {
                let source = graphs.source(&part.way, port);
                readers.extend(source.map(|source| Reader { at, node, source }));
            }
        }
    }
    readers
}

/// Gives the graph of each of `readers` a constant of its own in place of the one that it reads.
pub(crate) fn own_weights(graph: &Graph, found: &mut [Nested], readers: &[&Reader]) {
    let whole = found.to_vec();
    let graphs = Graphs::new(graph, &whole);
    for Reader { at, node, source } in readers {
        let Some(tensor) = graphs.at(&source.0).and_then(|g| g.constant(source.1.into())).cloned() else { continue };
        let (way, part) = (&whole[*at].way, &mut found[*at].graph);
        let inputs = part.operands(*node).into_iter().flatten().filter(|p| matches!(part.op(p.node), Op::Input(_)));
        let input = inputs.into_iter().find(|p| graphs.source(way, *p).as_ref() == Some(source));
        if let Some(input) = input {
            let name = part.fresh(&part.value(input).name.clone());
            let constant = part.add_constant(&name, tensor);
            part.redirect(input, constant.into(), &[]);
        }
    }
}

/// A graph and those inside it, by where they are.
struct Graphs<'a>(HashMap<&'a [(NodeId, usize)], &'a Graph>);

impl<'a> Graphs<'a> {
    fn new(graph: &'a Graph, found: &'a [Nested]) -> Self {
        Self(found.iter().map(|f| (&f.way[..], &f.graph)).chain([(&[][..], graph)]).collect())
    }

    fn at(&self, way: &[(NodeId, usize)]) -> Option<&'a Graph> {
        self.0.get(way).copied()
    }

    /// The constant around the graph at `way` that its input `port` stands for.
    fn source(&self, way: &[(NodeId, usize)], port: Port) -> Option<ConstantRef> {
        let ((node, place), around) = way.split_last()?;
        let (inner, outer) = (self.at(way)?, self.at(around)?);
        let input = inner.inputs().iter().position(|i| Port::from(*i) == port)?;
        let formals = outer.op(*node).bodies().get(*place)?.formals();
        let operands = outer.operands(*node);
        let captures = inner.inputs().len() - formals;
        let from = (*operands.get(operands.len() - captures + input.checked_sub(formals)?)?)?;
        match outer.op(from.node) {
            Op::Constant(_) => Some((around.to_vec(), from.node)),
            Op::Input(_) => self.source(around, from),
            _ => None,
        }
    }

    /// Whether only operators with bodies read a constant, for these.
    fn is_captured_alone(&self, (way, node): &ConstantRef) -> bool {
        let Some(outer) = self.at(way) else { return false };
        let captures = |u: &Use| {
            let captured = outer.op(u.node).bodies().first().map_or(0, |b| b.captures());
            u.slot >= outer.operands(u.node).len() - captured
        };
        !outer.is_output((*node).into()) && outer.uses((*node).into()).iter().all(captures)
    }
}
