//! Operators that only change the shape, one after another, are one Reshape.

use super::{
    layout::{elementwise, freed, reshapes, same_axis},
    shared,
};
use crate::fold::reshape_target;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{gather::Gather, reshape::Reshape, softmax::Softmax},
    pass::Context,
    rewrite::{Edit, Ref, Rule, Verdict},
    tensor::Tensor,
    value::{self, Dim},
};

/// Names of the operators that may be reshapes.
const RESHAPES: &[&str] = &["Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Gather"];

/// So many operators between two reshapes are looked at.
const BETWEEN: usize = 8;

/// Two of Reshape, Flatten, Squeeze, Unsqueeze, and of Transposes and Gathers that move nothing,
/// are one Reshape to the final shape.
pub(super) struct ReshapePair;

impl Rule for ReshapePair {
    fn name(&self) -> &'static str {
        "reshape-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        RESHAPES
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        if !reshapes(graph, node) || !reshapes(graph, middle.node) {
            return Ok(Verdict::No);
        }
        let Some(x) = graph.operand(middle.node, 0) else { return Ok(Verdict::No) };
        let (Some(from), Some(to)) = (graph.fact(x).dims(), graph.fact(node.into()).dims()) else {
            return Ok(Verdict::No);
        };
        let Some(target) = reshape_target(from, to) else {
            return Ok(Verdict::Skip("too little is known of its result's shape".into()));
        };
        let follows = |reader: NodeId| {
            let to = graph.fact(reader.into()).dims();
            reshapes(graph, reader) && to.is_some_and(|to| reshape_target(from, to).is_some())
        };
        if !freed(graph, middle, |u| u.slot == 0 && follows(u.node)) {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let fused = reshape(&mut edit, &graph.node(node).name, x.into(), &target);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

/// Adds a Reshape of `x` to `target`.
pub(super) fn reshape(edit: &mut Edit, name: &str, x: Ref, target: &[i64]) -> Ref {
    let target = edit.constant("shape", Tensor::i64s(target));
    edit.node(name, Reshape { allow_zero: false }, &[Some(x), Some(target)])
}

/// A reshape moves behind the operators that don't mind it, where another one follows them.
pub(super) struct ReshapePast;

impl Rule for ReshapePast {
    fn name(&self) -> &'static str {
        "reshape-past"
    }

    fn roots(&self) -> &'static [&'static str] {
        RESHAPES
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(past(graph, node).map_or(Verdict::No, Verdict::Apply))
    }
}

fn past(graph: &Graph, node: NodeId) -> Option<Edit> {
    if !reshapes(graph, node) {
        return None;
    }
    // From the last reshape back to the first.
    let mut between: Vec<(NodeId, usize)> = vec![];
    let mut at = graph.operand(node, 0)?;
    while !reshapes(graph, at.node) {
        let slot = data(graph, at.node)?;
        graph.only_use(at).filter(|_| at.slot == 0 && between.len() < BETWEEN)?;
        between.push((at.node, slot));
        at = graph.operand(at.node, slot)?;
    }
    graph.only_use(at).filter(|_| !between.is_empty())?;
    let x = graph.operand(at.node, 0)?;
    let mut edit = Edit::new();
    let (mut value, mut old, mut new): (Ref, Port, Vec<Dim>) = (x.into(), at, graph.fact(x).dims()?.to_vec());
    for (n, slot) in between.into_iter().rev() {
        let (op, shape) = moved(graph, n, graph.fact(old).dims()?, &new)?;
        let mut operands: Vec<Option<Ref>> = graph.operands(n).into_iter().map(|p| p.map(Into::into)).collect();
        operands[slot] = Some(value);
        value = edit.node(&graph.node(n).name, op, &operands);
        (old, new) = (n.into(), shape);
    }
    let target = reshape_target(&new, graph.fact(node.into()).dims()?)?;
    let last = reshape(&mut edit, &graph.node(node).name, value, &target);
    edit.replace(node.into(), last);
    Some(edit)
}

/// The slot of the operand that `node` could take in another shape.
fn data(graph: &Graph, node: NodeId) -> Option<usize> {
    let constant = |slot| graph.operand(node, slot).and_then(|p| graph.constant(p));
    match graph.op(node) {
        Op::MatMul(_) => (constant(0).is_none() && constant(1)?.shape().len() == 2).then_some(0),
        Op::Gather(_) => constant(1).map(|_| 0),
        Op::Softmax(s) => (!s.coerced).then_some(0),
        _ => elementwise(graph, node).map(|(slot, _)| slot),
    }
}

/// What `node` is when its data have the shape `new` instead of `old`, and what it makes then.
fn moved(graph: &Graph, node: NodeId, old: &[Dim], new: &[Dim]) -> Option<(Op, Vec<Dim>)> {
    let result = graph.fact(node.into()).dims()?;
    let op = graph.op(node);
    // With the last axes as they were, the result has its last ones as they were.
    let trailing = |n: usize| -> Option<Vec<Dim>> {
        let (a, b) = (old.len().checked_sub(n)?, new.len().checked_sub(n)?);
        let kept = old[a..].iter().zip(&new[b..]).all(|(x, y)| x.same(y));
        Some([&new[..b], &result[result.len().checked_sub(n).filter(|_| kept)?..]].concat())
    };
    match op {
        Op::MatMul(_) => trailing(1).map(|shape| (op.clone(), shape)),
        Op::Gather(g) => {
            let axis = same_axis(old, value::axis(g.axis, old.len()).ok()?, new)?;
            let at = graph.fact(graph.operand(node, 1)?).dims()?;
            let shape = [&new[..axis], at, &new[axis + 1..]].concat();
            Some((Gather { axis: axis as i64 }.into(), shape))
        }
        Op::Softmax(s) => {
            let axis = same_axis(old, value::axis(s.axis, old.len()).ok()?, new)?;
            let axis = if axis + 1 == new.len() { -1 } else { axis as i64 };
            Some((Softmax { axis, ..s.clone() }.into(), new.to_vec()))
        }
        _ => {
            let (slot, axes) = elementwise(graph, node)?;
            let other = graph.operand(node, 1 - slot.min(1)).and_then(|p| graph.constant(p));
            let fits = !matches!(op, Op::Binary(_)) || other.is_some_and(|c| c.shape().len() <= new.len());
            trailing(axes).filter(|_| fits).map(|shape| (op.clone(), shape))
        }
    }
}
