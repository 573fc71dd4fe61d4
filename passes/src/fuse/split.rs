//! Slices that together are all of a value are a Split, and what all parts of a Split meet comes
//! before it.

use super::{
    layout::{reshapes, same_axis, scalar},
    reshape::reshape,
    slice::span,
};
use crate::fold::reshape_target;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port, Use},
    op::Op,
    ops::split::Split,
    pass::Context,
    rewrite::{Edit, Ref, Rule, Verdict},
    tensor::Tensor,
    value::{self, Dim},
};
use std::collections::BTreeMap;

/// A value with more readers than this is not looked at, as each of them looks at the others.
const READERS: usize = 64;

/// Slices that cut one axis into adjacent parts are one Split.
pub(super) struct SplitSlices {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

impl Rule for SplitSlices {
    fn name(&self) -> &'static str {
        "split-slices"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Slice"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        if self.newest < 13 {
            return Ok(Verdict::No);
        }
        Ok(split(graph, node)?.map_or(Verdict::No, Verdict::Apply))
    }
}

fn split(graph: &Graph, node: NodeId) -> Result<Option<Edit>> {
    let (Some(x), Some(own)) = (graph.operand(node, 0), span(graph, node)?) else { return Ok(None) };
    let uses = graph.uses(x);
    if uses.len() < 2 || uses.len() > READERS {
        return Ok(None);
    }
    let mut spans: BTreeMap<i64, (i64, NodeId)> = BTreeMap::new();
    for u in uses {
        match span(graph, u.node)? {
            Some(s) if u.slot == 0 && s.axis == own.axis && s.end > s.start => {
                spans.entry(s.start).or_insert((s.end, u.node));
            }
            _ => {}
        }
    }
    let (mut at, mut parts, mut sizes) = (0, vec![], vec![]);
    while let Some(&(end, n)) = spans.get(&at) {
        parts.push(n);
        sizes.push(end - at);
        at = end;
    }
    if at != own.size || parts.len() < 2 || !parts.contains(&node) {
        return Ok(None);
    }
    let mut edit = Edit::new();
    let sizes = edit.constant("split", Tensor::i64s(&sizes));
    let op = Split { axis: own.axis as i64, parts: parts.len(), num_outputs: false };
    let made = edit.nodes(&graph.node(parts[0]).name, op, &[Some(x.into()), Some(sizes)], parts.len());
    parts.into_iter().zip(made).for_each(|(n, part)| edit.replace(n.into(), part));
    Ok(Some(edit))
}

/// What every part of a Split is given to, one to one, comes before it once: operators on single
/// elements, and reshapes that leave the cut axis.
pub(super) struct BeforeSplit;

impl Rule for BeforeSplit {
    fn name(&self) -> &'static str {
        "before-split"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Split"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Op::Split(op) = graph.op(node) else { return Ok(Verdict::No) };
        let mut readers: Vec<(usize, Use)> = vec![];
        for slot in 0..graph.node(node).outputs.len() {
            let part = Port { node, slot };
            match graph.uses(part)[..] {
                _ if graph.is_output(part) => return Ok(Verdict::No),
                [] => {}
                [u] => readers.push((slot, u)),
                _ => return Ok(Verdict::No),
            }
        }
        if readers.len() < 2 {
            return Ok(Verdict::No);
        }
        let edit = elements(graph, node, op, &readers).or_else(|| reshaped(graph, node, op, &readers));
        Ok(edit.map_or(Verdict::No, Verdict::Apply))
    }
}

/// For readers that are one operator on single elements.
fn elements(graph: &Graph, node: NodeId, op: &Split, readers: &[(usize, Use)]) -> Option<Edit> {
    let x = graph.operand(node, 0)?;
    let (_, first) = *readers.first()?;
    let without = |u: &Use| {
        let mut operands = graph.operands(u.node);
        operands[u.slot] = None;
        operands
    };
    let others = without(&first);
    let alike = |u: &Use| {
        scalar(graph, u.node) == Some(first.slot)
            && u.slot == first.slot
            && graph.op(u.node) == graph.op(first.node)
            && without(u) == others
    };
    // A part that nobody reads would be computed for nothing.
    if readers.len() != op.parts || !readers.iter().all(|(_, u)| alike(u)) {
        return None;
    }
    let mut operands: Vec<Option<Ref>> = others.iter().map(|p| p.map(Into::into)).collect();
    operands[first.slot] = Some(x.into());
    let mut edit = Edit::new();
    let whole = edit.node(&graph.node(first.node).name, graph.op(first.node).clone(), &operands);
    cut(graph, node, op.clone(), whole, readers, &mut edit);
    Some(edit)
}

/// For readers that reshape alike.
fn reshaped(graph: &Graph, node: NodeId, op: &Split, readers: &[(usize, Use)]) -> Option<Edit> {
    let x = graph.operand(node, 0)?;
    let whole = graph.fact(x).dims()?;
    let from = value::axis(op.axis, whole.len()).ok()?;
    let made = |u: &Use| graph.fact(u.node.into()).dims().filter(|_| u.slot == 0 && reshapes(graph, u.node));
    let (slot, first) = readers.first()?;
    let shape = made(first)?;
    let axis = same_axis(graph.fact(Port { node, slot: *slot }).dims()?, from, shape)?;
    let alike = |(slot, u): &(usize, Use)| {
        let (Some(part), Some(dims)) = (graph.fact(Port { node, slot: *slot }).dims(), made(u)) else { return false };
        let others = |i: usize| i == axis || dims[i].same(&shape[i]);
        dims.len() == shape.len() && (0..dims.len()).all(others) && dims[axis].same(&part[from])
    };
    if !readers.iter().all(alike) {
        return None;
    }
    let mut target: Vec<Dim> = shape.to_vec();
    target[axis] = whole[from].clone();
    let mut edit = Edit::new();
    let target = reshape_target(whole, &target)?;
    let whole = reshape(&mut edit, &graph.node(first.node).name, x.into(), &target);
    cut(graph, node, Split { axis: axis as i64, ..op.clone() }, whole, readers, &mut edit);
    Some(edit)
}

/// Cuts `whole` as `node` does, in the place of its readers.
fn cut(graph: &Graph, node: NodeId, op: Split, whole: Ref, readers: &[(usize, Use)], edit: &mut Edit) {
    let mut operands: Vec<Option<Ref>> = graph.operands(node).into_iter().map(|p| p.map(Into::into)).collect();
    operands[0] = Some(whole);
    let count = graph.node(node).outputs.len();
    let parts = edit.nodes(&graph.node(node).name, op, &operands, count);
    readers.iter().for_each(|(slot, u)| edit.replace(u.node.into(), parts[*slot]));
}
