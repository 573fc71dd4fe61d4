//! Parts of a value that are written one after another, as caches are.
//!
//! Where the indices of a ScatterND are constant and say "all entries from one to another along an
//! axis", what reads other entries need not wait for it, and writes that are all of the value
//! together need neither indices nor the value before.

use super::slice::span;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{concat::Concat, gather::Gather, scatter::Reduction},
    pass::Context,
    rewrite::{Edit, Ref, Rule, Verdict},
    tensor::Tensor,
    value,
};

/// Longer lists of indices are not looked at.
const INDICES: usize = 1 << 17;

/// So many writes, one after another, are looked at.
const WRITES: usize = 64;

/// A ScatterND that writes the entries from `start` to before `end` along `axis`.
struct Write {
    axis: usize,
    start: i64,
    end: i64,
    /// How many entries there are.
    size: i64,
    /// What is there otherwise.
    before: Port,
    /// What is written, in the shape of what it takes the place of.
    new: Port,
}

impl Write {
    fn new(graph: &Graph, node: NodeId) -> Option<Self> {
        let Op::ScatterNd(op) = graph.op(node) else { return None };
        let (before, at, new) = (graph.operand(node, 0)?, graph.operand(node, 1)?, graph.operand(node, 2)?);
        let indices = graph.constant(at).filter(|t| op.reduction == Reduction::Replace && t.len() <= INDICES)?;
        let (depth, rows) = indices.shape().split_last()?;
        let dims = graph.fact(before).dims()?;
        let sizes: Vec<i64> = dims.get(..*depth)?.iter().map(|d| d.known()).collect::<Option<_>>()?;
        let indices = indices.as_i64()?;
        let place = |row: &[i64]| -> Vec<i64> {
            row.iter().zip(&sizes).map(|(i, n)| if *i < 0 { i.saturating_add(*n) } else { *i }).collect()
        };
        let (first, last) = (place(indices.get(..*depth)?), place(&indices[indices.len().checked_sub(*depth)?..]));
        let partial = |a: &usize| first[*a] != 0 || last[*a].checked_add(1) != Some(sizes[*a]);
        let axis = (0..*depth).find(partial).unwrap_or(0);
        let whole = (0..*depth).filter(|a| *a != axis).all(|a| !partial(&a));
        let (start, end) = (*first.get(axis)?, last.get(axis)?.checked_add(1)?);
        if !whole || start < 0 || end <= start || end > sizes[axis] {
            return None;
        }
        // The rows must be all places of that block in their order.
        let mut block = sizes.clone();
        block[axis] = end - start;
        if rows.len() != block.len() || rows.iter().zip(&block).any(|(r, b)| *r as i64 != *b) {
            return None;
        }
        let mut expected = vec![0; *depth];
        expected[axis] = start;
        for row in indices.chunks_exact(*depth) {
            if place(row) != expected {
                return None;
            }
            for a in (0..*depth).rev() {
                let low = if a == axis { start } else { 0 };
                expected[a] += 1;
                if expected[a] < low + block[a] {
                    break;
                }
                expected[a] = low;
            }
        }
        let written = graph.fact(new).dims()?;
        let fits =
            |a: usize| if a == axis { written[a].known() == Some(end - start) } else { written[a].same(&dims[a]) };
        let fits = written.len() == dims.len() && (0..dims.len()).all(fits);
        fits.then_some(Self { axis, start, end, size: sizes[axis], before, new })
    }

    fn is_apart(&self, start: i64, end: i64) -> bool {
        end <= self.start || start >= self.end
    }
}

/// What reads a part of a value looks past a write to other parts, and into a write of it.
pub(super) struct ReadPastWrite;

impl Rule for ReadPastWrite {
    fn name(&self) -> &'static str {
        "read-past-write"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Slice", "Gather"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(write) = graph.operand(node, 0).and_then(|x| Write::new(graph, x.node)) else {
            return Ok(Verdict::No);
        };
        Ok(match graph.op(node) {
            Op::Gather(g) => gather(graph, node, g, &write).map_or(Verdict::No, Verdict::Apply),
            _ => slice(graph, node, &write)?.map_or(Verdict::No, Verdict::Apply),
        })
    }
}

fn slice(graph: &Graph, node: NodeId, write: &Write) -> Result<Option<Edit>> {
    let Some(read) = span(graph, node)?.filter(|s| s.axis == write.axis) else { return Ok(None) };
    if (read.start, read.end) == (write.start, write.end) {
        return Ok(Some(Edit::swap(node.into(), write.new)));
    }
    Ok(write.is_apart(read.start, read.end).then(|| again(graph, node, write.before.into(), None)))
}

fn gather(graph: &Graph, node: NodeId, op: &Gather, write: &Write) -> Option<Edit> {
    let at = graph.operand(node, 1)?;
    let list = graph.constant(at).filter(|t| t.len() <= INDICES)?;
    let rank = graph.fact(write.before).rank()?;
    let places = list.as_i64()?.into_iter().map(|i| if i < 0 { i.saturating_add(write.size) } else { i });
    let places: Vec<i64> = places.collect();
    if value::axis(op.axis, rank).ok()? != write.axis {
        return None;
    }
    if places.iter().all(|i| write.is_apart(*i, i.saturating_add(1))) {
        return Some(again(graph, node, write.before.into(), None));
    }
    let inside = places.iter().all(|i| !write.is_apart(*i, i.saturating_add(1)));
    let shifted: Vec<i64> = places.iter().map(|i| i.saturating_sub(write.start)).collect();
    inside.then(|| again(graph, node, write.new.into(), Some(Tensor::ints(list.dtype(), list.shape(), &shifted))))
}

/// `node` once more, reading `x`, and at other indices if there are some.
fn again(graph: &Graph, node: NodeId, x: Ref, indices: Option<Tensor>) -> Edit {
    let mut operands: Vec<Option<Ref>> = graph.operands(node).into_iter().map(|p| p.map(Into::into)).collect();
    let mut edit = Edit::new();
    operands[0] = Some(x);
    if let Some(t) = indices {
        operands[1] = Some(edit.constant("indices", t));
    }
    let read = edit.node(&graph.node(node).name, graph.op(node).clone(), &operands);
    edit.replace(node.into(), read);
    edit
}

/// Writes that are all of a value together are a Concat of what is written.
pub(super) struct WriteAll;

impl Rule for WriteAll {
    fn name(&self) -> &'static str {
        "write-all"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["ScatterND"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(last) = Write::new(graph, node) else { return Ok(Verdict::No) };
        let (axis, size) = (last.axis, last.size);
        let (mut at, mut writes) = (last.before, vec![last]);
        let mut left = size - writes.iter().map(|w| w.end - w.start).sum::<i64>();
        while left > 0 && writes.len() < WRITES {
            let earlier = graph.only_use(at).and_then(|_| Write::new(graph, at.node));
            match earlier {
                Some(w) if w.axis == axis && writes.iter().all(|o| o.is_apart(w.start, w.end)) => {
                    at = w.before;
                    left -= w.end - w.start;
                    writes.push(w);
                }
                _ => return Ok(Verdict::No),
            }
        }
        if left > 0 {
            return Ok(Verdict::No);
        }
        writes.sort_by_key(|w| w.start);
        if let [one] = &writes[..] {
            return Ok(Verdict::Apply(Edit::swap(node.into(), one.new)));
        }
        let mut edit = Edit::new();
        let parts: Vec<Option<Ref>> = writes.iter().map(|w| Some(w.new.into())).collect();
        let joined = edit.node(&graph.node(node).name, Concat { axis: axis as i64 }, &parts);
        edit.replace(node.into(), joined);
        Ok(Verdict::Apply(edit))
    }
}
