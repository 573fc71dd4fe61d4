//! Slices of everything are none, and Slices one after another are one.

use super::{ints, layout::freed, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::slice::Slice,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::Tensor,
    value::{self, Dim},
};

/// A Slice that takes all of every axis is its operand.
pub(super) struct SliceAll;

impl Rule for SliceAll {
    fn name(&self) -> &'static str {
        "slice-all"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Slice"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(x) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let all = cuts(graph, node)?.is_some_and(|c| c.is_empty());
        Ok(if all { Verdict::Apply(Edit::swap(node.into(), x)) } else { Verdict::No })
    }
}

/// `Slice(Slice(x))` is one Slice, if an axis that both cut is cut from the front, without steps.
pub(super) struct SlicePair;

impl Rule for SlicePair {
    fn name(&self) -> &'static str {
        "slice-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Slice"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let Some(x) = graph.operand(middle.node, 0) else { return Ok(Verdict::No) };
        let (Some(inner), Some(outer)) = (cuts(graph, middle.node)?, cuts(graph, node)?) else {
            return Ok(Verdict::No);
        };
        let Some(both) = join(&inner, &outer).filter(|b| !b.is_empty()) else { return Ok(Verdict::No) };
        let joins = |outer: Vec<Cut>| join(&inner, &outer).is_some();
        if !freed(graph, middle, |u| u.slot == 0 && cuts(graph, u.node).is_ok_and(|c| c.is_some_and(joins))) {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let mut operands = vec![Some(x.into())];
        let list = |of: fn(&Cut) -> i64| Tensor::i64s(&both.iter().map(of).collect::<Vec<_>>());
        for (name, tensor) in [
            ("starts", list(|c| c.start)),
            ("ends", list(|c| c.end)),
            ("axes", list(|c| c.axis)),
            ("steps", list(|c| c.step)),
        ] {
            operands.push(Some(edit.constant(name, tensor)));
        }
        let fused = edit.node(&graph.node(node).name, graph.op(node).clone(), &operands);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

/// Bytes that no machine's memory has: a program's addresses have 47 bits.
const MEMORY: i64 = 1 << 47;

/// What a Slice takes of one axis.
#[derive(Clone)]
pub(crate) struct Cut {
    start: i64,
    end: i64,
    axis: i64,
    step: i64,
}

impl Cut {
    /// Whether it counts from the front only, one by one. Then the size of the axis doesn't matter.
    fn is_plain(&self) -> bool {
        self.start >= 0 && self.end >= 0 && self.step == 1
    }
}

/// Both cuts, one after the other, if they are one.
fn join(inner: &[Cut], outer: &[Cut]) -> Option<Vec<Cut>> {
    let mut both = inner.to_vec();
    for o in outer {
        match both.iter_mut().find(|i| i.axis == o.axis) {
            None => both.push(o.clone()),
            Some(i) if i.is_plain() && o.is_plain() => {
                i.end = i.end.min(i.start.saturating_add(o.end));
                i.start = i.start.saturating_add(o.start);
            }
            Some(_) => return None,
        }
    }
    Some(both)
}

/// A Slice of one axis: the entries from `start` to before `end`, of `size`.
pub(super) struct Span {
    pub(super) axis: usize,
    pub(super) start: i64,
    pub(super) end: i64,
    pub(super) size: i64,
}

/// What a Slice takes if it cuts a single axis of known size without steps.
pub(super) fn span(graph: &Graph, node: NodeId) -> Result<Option<Span>> {
    let Some([cut]) = cuts(graph, node)?.and_then(|c| <[Cut; 1]>::try_from(c).ok()) else { return Ok(None) };
    let axis = cut.axis as usize;
    let size = graph.operand(node, 0).and_then(|x| graph.fact(x).dims()).and_then(|d| d.get(axis)?.known());
    let Some(size) = size.filter(|_| cut.step == 1) else { return Ok(None) };
    let taken = Slice::take(axis, size, cut.start, cut.end, 1)?;
    Ok(Some(Span { axis, start: taken.start, end: taken.start + taken.count, size }))
}

/// What a Slice cuts from each axis, if that is constant. Axes that it takes whole are left out.
/// Starts and ends may count from the end of their axis, whose size a cut along other axes leaves
/// alone.
pub(crate) fn cuts(graph: &Graph, node: NodeId) -> Result<Option<Vec<Cut>>> {
    let operands = graph.operands(node);
    let list = |slot: usize| operands.get(slot).copied().flatten().map(|p| ints(graph, p));
    let (Op::Slice(_), Some(Some(starts)), Some(Some(ends))) = (graph.op(node), list(1), list(2)) else {
        return Ok(None);
    };
    let n = starts.len();
    let axes = list(3).unwrap_or_else(|| Some((0..n as i64).collect()));
    let steps = list(4).unwrap_or_else(|| Some(vec![1; n]));
    let fact = operands[0].map(|p| graph.fact(p));
    let dims = fact.and_then(|f| f.dims());
    let (Some(axes), Some(steps), Some(dims)) = (axes, steps, dims) else { return Ok(None) };
    let rank = dims.len();
    let cuts = starts
        .into_iter()
        .zip(ends)
        .zip(axes)
        .zip(steps)
        .map(|(((start, end), axis), step)| Ok(Cut { start, end, axis: value::axis(axis, rank)? as i64, step }));
    let bytes = fact.and_then(|f| f.dtype).map_or(1, |t| t.size() as i64);
    // Some exporters write a thousand million for the end of any axis: more entries than memory holds of this value.
    let others = |axis: i64| dims.iter().zip(0..).filter(move |(_, i)| *i != axis).filter_map(|(d, _)| d.known());
    let beyond = |c: &Cut| match dims.get(c.axis as usize).and_then(Dim::known) {
        Some(size) => c.end >= size,
        None => others(c.axis).fold(c.end.saturating_mul(bytes), i64::saturating_mul) >= MEMORY,
    };
    let whole = |c: &Cut| c.start == 0 && c.step == 1 && (c.end >= i32::MAX.into() || beyond(c));
    let cuts = cuts.filter(|c| !c.as_ref().is_ok_and(whole)).collect::<Result<Vec<_>>>()?;
    // An axis that is named twice is nothing for us to understand.
    let twice = cuts.iter().enumerate().any(|(i, c)| cuts[..i].iter().any(|d| d.axis == c.axis));
    Ok((!twice).then_some(cuts))
}

/// What a Slice takes of a vector, from one entry to before another, if it has no steps.
pub(super) fn plain_range(graph: &Graph, node: NodeId) -> Option<(i64, Option<i64>)> {
    match &cuts(graph, node).ok()??[..] {
        [c] if c.axis == 0 && c.step == 1 => Some((c.start, (c.end < i32::MAX.into()).then_some(c.end))),
        _ => None,
    }
}
