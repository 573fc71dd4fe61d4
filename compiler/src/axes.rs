//! How channels flow through operators: what else has to go when indices of an axis go.
//!
//! Structured pruning removes indices of axes, and each operator says which indices of its other axes go with them
//! ([`Operator::axes_map`](crate::op::Operator::axes_map)), and what else changes in it
//! ([`Operator::channel_slice`](crate::op::Operator::channel_slice)). Followed from node to node this gives the groups of weights
//! that can only be pruned together (Fang et al. 2023, "DepGraph").

use crate::{
    op::{Inputs, Op},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// The longest axis whose indices are listed. A declared shape can claim any size.
const LONGEST: usize = 1 << 24;

/// Why an axis is closed whose size, or that of an axis that might go with it, is not known.
pub(crate) const UNKNOWN: &str = "a size that matters for these is not known";

/// An axis of an operand or of a result of a node: its slot, and which of the value's axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Of an operand.
    In(usize, usize),
    /// Of a result.
    Out(usize, usize),
}

/// A label for each index of an axis. Indices with the same label, of all axes that are tied, stand and fall together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Labels(Vec<usize>);

impl Labels {
    /// `n` indices, each on its own: 0, 1, 2 and so on.
    pub fn each(n: usize) -> Self {
        (0..n).collect()
    }

    /// The label of each index.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }
}

impl FromIterator<usize> for Labels {
    fn from_iter<I: IntoIterator<Item = usize>>(labels: I) -> Self {
        Self(labels.into_iter().collect())
    }
}

/// Axes of a node that lose the indices of the same labels.
///
/// If exactly the indices with some labels go from all of them, weights and data alike, then what is left of each
/// result is what it was in the model in which the weights that produce those indices and the weights that read them
/// are zero. Asked about any of its axes, a node answers with the same tie.
///
/// A tie of several operands and no result is a contraction, as over the inner axis of a matrix product. There this
/// holds only where one of the operands is a constant, the weights that read: of computed operands, none has to be zero
/// at the indices that go. An operator doesn't see which operands are constants, so its caller has to look.
pub type Tie = Vec<(Axis, Labels)>;

/// What removing indices of an axis means for a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Flow {
    /// These axes, the one that was asked for among them, lose indices together.
    Tied(Tie),
    /// One of these ties, each of which has the axis that was asked for: a Reshape's merged axis goes with any one of
    /// its factors. The caller takes the one that other nodes' ties ask for, else the first.
    Either(Vec<Tie>),
    /// Nothing may be removed, and why, to be shown after the node's name: "it normalises over these".
    Closed(String),
}

impl Flow {
    /// Nothing may be removed, for this reason.
    pub fn closed(why: impl Into<String>) -> Self {
        Flow::Closed(why.into())
    }
}

/// The facts of a node's operands and results, as [`Operator::axes_map`](crate::op::Operator::axes_map) sees them.
#[derive(Clone, Copy)]
pub struct Sides<'a> {
    /// Of the operands, by slot.
    pub inputs: Inputs<'a>,
    /// Of the results, by slot.
    pub outputs: &'a [&'a Fact],
}

impl<'a> Sides<'a> {
    /// The dimensions of the value that `axis` is of, if its rank is known.
    pub fn dims(&self, axis: Axis) -> Option<&'a [Dim]> {
        match axis {
            Axis::In(slot, _) => self.inputs.dims(slot),
            Axis::Out(slot, _) => self.outputs.get(slot)?.dims(),
        }
    }

    /// How many indices an axis has, if that is known, and few enough to list.
    pub fn size(&self, axis: Axis) -> Option<usize> {
        let (Axis::In(_, i) | Axis::Out(_, i)) = axis;
        usize::try_from(self.dims(axis)?.get(i)?.known()?).ok().filter(|n| *n <= LONGEST)
    }

    /// All axes of the operands that are there, and of the results; `None` where a rank is not known.
    fn axes(&self) -> Option<Vec<Axis>> {
        let inputs = self.inputs.0.iter().enumerate().filter_map(|(slot, fact)| Some((slot, (*fact)?)));
        let inputs = inputs.map(|(slot, fact)| Some((0..fact.rank()?).map(move |i| Axis::In(slot, i))));
        let outputs = self.outputs.iter().enumerate();
        let outputs = outputs.map(|(slot, fact)| Some((0..fact.rank()?).map(move |i| Axis::Out(slot, i))));
        let inputs: Vec<_> = inputs.collect::<Option<_>>()?;
        let outputs: Vec<_> = outputs.collect::<Option<_>>()?;
        Some(inputs.into_iter().flatten().chain(outputs.into_iter().flatten()).collect())
    }

    /// Whether a value is there at the slot of `axis`.
    fn present(&self, axis: Axis) -> bool {
        match axis {
            Axis::In(slot, _) => self.inputs.opt(slot).is_some(),
            Axis::Out(slot, _) => slot < self.outputs.len(),
        }
    }

    /// An operator whose axes have names, as in an Einsum: those of one name go together, index by index. Of several
    /// sizes under one name, 1 is broadcast: that index stands for all. `why` says what is the matter with axes that
    /// have no name.
    pub fn alike<N: PartialEq>(&self, at: Axis, why: &str, name: impl Fn(Axis) -> Option<N>) -> Flow {
        let Some(axes) = self.axes().filter(|axes| axes.contains(&at)) else { return Flow::closed(UNKNOWN) };
        let Some(wanted) = name(at) else { return Flow::closed(why) };
        let same = axes.into_iter().filter(|axis| name(*axis).as_ref() == Some(&wanted));
        let same: Option<Vec<(Axis, usize)>> = same.map(|axis| Some((axis, self.size(axis)?))).collect();
        let Some(mut same) = same else { return Flow::closed(UNKNOWN) };
        let longest = same.iter().map(|(_, n)| *n).max().unwrap_or(0);
        same.retain(|(_, n)| *n == longest || *n != 1);
        match same.iter().find(|(_, n)| *n != longest) {
            Some((_, n)) => Flow::closed(format!("{n} and {longest} of these do not fit each other")),
            None if same.iter().any(|(axis, _)| *axis == at) => {
                Flow::Tied(same.into_iter().map(|(axis, n)| (axis, Labels::each(n))).collect())
            }
            None => Flow::closed("one index stands for all of these"),
        }
    }

    /// An operator whose operands `slots` broadcast to each of its results, element by element.
    pub fn broadcast(&self, at: Axis, slots: std::ops::Range<usize>) -> Flow {
        self.alike(at, "an operand that is not data", |axis| match axis {
            Axis::In(slot, _) if !slots.contains(&slot) => None,
            Axis::In(_, i) | Axis::Out(_, i) => self.dims(axis)?.len().checked_sub(i),
        })
    }

    /// An operator that moves axes of its first operand: axis `i` of each result is the operand's axis `from[i]`, if
    /// any. `why` says what is the matter with the others.
    pub fn moves(&self, at: Axis, why: &str, from: &[Option<usize>]) -> Flow {
        self.alike(at, why, |axis| match axis {
            Axis::In(0, i) => from.contains(&Some(i)).then_some(i),
            Axis::In(..) => None,
            Axis::Out(_, i) => from.get(i).copied().flatten(),
        })
    }

    /// An operator that leaves the axes of its first operand where they are in each result, but for those that it
    /// `mixes`, of which `why` says what is the matter with them.
    pub fn passes(&self, at: Axis, why: &str, mixes: impl Fn(usize) -> bool) -> Flow {
        let rank = self.inputs.get(0).rank().unwrap_or(0);
        let from: Vec<Option<usize>> = (0..rank).map(|i| (!mixes(i)).then_some(i)).collect();
        self.moves(at, why, &from)
    }

    /// An operator that reduces its first operand over the axes `gone`, which stay with one index if `keepdims`.
    pub fn reduces(&self, at: Axis, why: &str, gone: &[usize], keepdims: bool) -> Flow {
        let rank = self.inputs.get(0).rank().unwrap_or(0);
        let from = (0..rank).map(|i| (!gone.contains(&i)).then_some(i));
        self.moves(at, why, &from.filter(|axis| keepdims || axis.is_some()).collect::<Vec<_>>())
    }

    /// The tie of these axes, each with the label that a function gives an index; absent operands are left out. `None`
    /// where a size is not known.
    pub fn tie<L: Fn(usize) -> usize>(&self, axes: impl IntoIterator<Item = (Axis, L)>) -> Option<Tie> {
        let axes = axes.into_iter().filter(|(axis, _)| self.present(*axis));
        axes.map(|(axis, label)| Some((axis, (0..self.size(axis)?).map(label).collect()))).collect()
    }

    /// The flow from `at`, one of these axes, to the others, as [`Sides::tie`] ties them.
    pub fn labelled<L: Fn(usize) -> usize>(&self, at: Axis, axes: impl IntoIterator<Item = (Axis, L)>) -> Flow {
        let tie = self.tie(axes).filter(|tie| tie.iter().any(|(axis, _)| *axis == at));
        tie.map_or_else(|| Flow::closed(UNKNOWN), Flow::Tied)
    }

    /// The flow from `at`, one of these axes, to the others, of each of which so many indices in turn go together.
    pub fn blocks(&self, at: Axis, axes: impl IntoIterator<Item = (Axis, usize)>) -> Flow {
        self.labelled(at, axes.into_iter().map(|(axis, block)| (axis, move |i: usize| i / block.max(1))))
    }

    /// The operand at `slot`, a vector of sizes or indices, with `elems` in it, unless it has them already.
    pub fn rewritten(&self, slot: usize, elems: &[i64]) -> Option<(usize, Tensor)> {
        let dtype = self.inputs.get(slot).dtype.filter(|t| t.int_range().is_some()).unwrap_or(DType::I64);
        let changed = self.inputs.ints(slot).as_deref() != Some(elems);
        changed.then(|| (slot, Tensor::ints(dtype, &[elems.len()], elems)))
    }
}

/// Which indices of a node's axes stay, of those axes that lose any.
#[derive(Debug, Clone, Default)]
pub struct Kept(BTreeMap<Axis, Vec<usize>>);

impl Kept {
    /// Says that of `axis` only `indices` stay, in ascending order.
    pub fn insert(&mut self, axis: Axis, indices: Vec<usize>) {
        self.0.insert(axis, indices);
    }

    /// The indices of `axis` that stay; `None` where all do.
    pub fn get(&self, axis: Axis) -> Option<&[usize]> {
        self.0.get(&axis).map(Vec::as_slice)
    }

    /// How many indices of `axis` stay; `None` where all do.
    pub fn count(&self, axis: Axis) -> Option<usize> {
        self.get(axis).map(<[usize]>::len)
    }

    /// How many indices `axis` has then, if that is known.
    pub fn size(&self, axis: Axis, sides: &Sides) -> Option<usize> {
        self.count(axis).or_else(|| sides.size(axis))
    }

    /// Whether no axis loses any.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What else changes in a node whose axes lose indices, beside the weights that it reads and the shapes of its results.
#[derive(Debug, Clone, Default)]
pub struct ChannelSlice {
    /// The operator, where its attributes change.
    pub op: Option<Op>,
    /// Operands that hold sizes or indices, by slot: what is read there from now on.
    pub operands: Vec<(usize, Tensor)>,
}

impl ChannelSlice {
    /// An operator whose attributes change.
    pub fn op(op: impl Into<Op>) -> Self {
        Self { op: Some(op.into()), operands: vec![] }
    }

    /// An operator of which these operands change.
    pub fn operands(operands: impl IntoIterator<Item = Option<(usize, Tensor)>>) -> Self {
        Self { op: None, operands: operands.into_iter().flatten().collect() }
    }
}
