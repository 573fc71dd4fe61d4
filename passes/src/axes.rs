//! Where the elements of a value go when Reshape and Transpose move them.
//!
//! Exporters split features into heads, merge heads with batches, and transpose, in many orders.
//! What an axis holds in the end is a run of elements of the axes in the beginning: that is followed
//! here, and compared, so no spelling has to be matched.

use compress_compiler::{
    graph::Graph,
    node::NodeId,
    op::{Op, Operator},
    value::Dim,
};
use std::collections::VecDeque;

/// A run of elements of one axis that the value had in the beginning.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisRun {
    /// The axis.
    pub axis: usize,
    /// How far its elements are apart there.
    pub stride: i64,
    /// How many they are.
    pub size: Dim,
}

/// For each axis of a value, what it runs over, the slowest first; nothing where its size is 1.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisRuns(pub Vec<Vec<AxisRun>>);

impl AxisRuns {
    /// A value in the beginning.
    pub fn of(dims: &[Dim]) -> Self {
        let part = |(axis, size): (usize, &Dim)| match size {
            Dim::Known(1) => vec![],
            _ => vec![AxisRun { axis, stride: 1, size: size.clone() }],
        };
        Self(dims.iter().enumerate().map(part).collect())
    }

    /// Whether `axis` runs over any elements of `of`.
    pub fn has(&self, axis: usize, of: usize) -> bool {
        self.0.get(axis).is_some_and(|parts| parts.iter().any(|p| p.axis == of))
    }

    /// Whether `axis` runs over all elements of `of` in their order, and over nothing else.
    pub fn is_whole(&self, axis: usize, of: usize, size: &Dim) -> bool {
        match self.0.get(axis).map(Vec::as_slice) {
            Some([]) => *size == Dim::Known(1),
            Some([p]) => p.axis == of && p.stride == 1 && p.size == *size,
            _ => false,
        }
    }

    /// The runs after `node` has moved the value, if it does no more than that and enough is known.
    pub fn through(&self, graph: &Graph, node: NodeId) -> Option<Self> {
        match graph.op(node) {
            Op::Transpose(t) => {
                let perm = t.resolve(self.0.len()).ok()?;
                Some(Self(perm.into_iter().map(|axis| self.0[axis].clone()).collect()))
            }
            op if op.reshapes() => self.reshaped(graph.fact(node.into()).dims()?),
            _ => None,
        }
    }

    /// The same elements under another shape.
    fn reshaped(&self, to: &[Dim]) -> Option<Self> {
        let mut parts: VecDeque<AxisRun> = self.0.iter().flatten().cloned().collect();
        let mut open: VecDeque<usize> = (0..to.len()).filter(|i| to[*i] != Dim::Known(1)).collect();
        let mut out = vec![vec![]; to.len()];
        // Sizes that are known, or surely equal, are matched from both ends. One axis may be left, which takes the rest.
        while open.len() > 1 {
            let (first, last) = (*open.front()?, *open.back()?);
            if let Some(taken) = take(&mut parts, &to[last], true) {
                out[last] = taken;
                open.pop_back();
            } else {
                out[first] = take(&mut parts, &to[first], false)?;
                open.pop_front();
            }
        }
        match open.front() {
            Some(i) => out[*i] = parts.into(),
            None if parts.is_empty() => {}
            None => return None,
        }
        out.iter_mut().for_each(join);
        Some(Self(out))
    }
}

/// Takes parts of `size` elements together from one end, dividing one if need be.
fn take(parts: &mut VecDeque<AxisRun>, size: &Dim, back: bool) -> Option<Vec<AxisRun>> {
    let mut rest = parts.clone();
    let mut next = || if back { rest.pop_back() } else { rest.pop_front() };
    let mut taken: Vec<AxisRun> = vec![];
    let mut divided = None;
    match size {
        Dim::Known(n) if *n > 0 => {
            let mut need = *n;
            while need > 1 {
                let part = next()?;
                let size = part.size.known().filter(|s| *s > 0)?;
                if need % size == 0 {
                    need /= size;
                    taken.push(part);
                    continue;
                }
                if size % need != 0 {
                    return None;
                }
                let other = size / need;
                let outer = |size| AxisRun {
                    stride: part.stride * (part.size.known().unwrap_or(1) / size),
                    size: Dim::Known(size),
                    ..part.clone()
                };
                let inner = |size| AxisRun { size: Dim::Known(size), ..part.clone() };
                let (mine, theirs) = if back { (inner(need), outer(other)) } else { (outer(need), inner(other)) };
                taken.push(mine);
                divided = Some(theirs);
                need = 1;
            }
        }
        size => taken.push(next().filter(|p| p.size.same(size))?),
    }
    if back {
        taken.reverse();
        rest.extend(divided);
    } else if let Some(part) = divided {
        rest.push_front(part);
    }
    *parts = rest;
    Some(taken)
}

/// Makes one part of neighbours that follow each other in the beginning too.
fn join(parts: &mut Vec<AxisRun>) {
    let mut joined: Vec<AxisRun> = vec![];
    for part in parts.drain(..) {
        match (joined.last_mut(), &part.size) {
            (Some(p), Dim::Known(n)) if p.axis == part.axis && Some(p.stride) == part.stride.checked_mul(*n) => {
                p.size = p.size.zip(&part.size, i64::checked_mul);
                p.stride = part.stride;
            }
            _ => joined.push(part),
        }
    }
    *parts = joined;
}
