//! What operators say of themselves where they stand: their facets, asked with what is known around a node.

use super::Graph;
use crate::{
    axes::{Axis, ChannelSlice, Flow, Kept, Sides},
    error::Result,
    node::NodeId,
    op::{Inputs, Operator},
    value::Fact,
};

impl Graph {
    /// Multiply-accumulates of a node for one sample; sizes that are not known count as 1.
    pub fn macs(&self, id: NodeId) -> u64 {
        self.with_sides(id, |sides| self.op(id).macs(&sides.inputs, sides.outputs))
    }

    /// Those of a node and of the graphs inside it: of If those of the larger branch, of Loop and Scan those of one turn.
    pub fn macs_with_bodies(&self, id: NodeId) -> u64 {
        let all = |g: &Graph| g.operators().map(|n| g.macs_with_bodies(n)).fold(0, u64::saturating_add);
        let inside = self.op(id).bodies().into_iter().map(|body| all(body.graph())).max().unwrap_or(0);
        self.macs(id).saturating_add(inside)
    }

    /// Whether the first output of a node surely is its first input.
    pub fn is_unchanged(&self, id: NodeId) -> bool {
        self.with_sides(id, |s| s.outputs.first().is_some_and(|y| self.op(id).is_unchanged(&s.inputs, y)))
    }

    /// Between which bounds a node puts its first input, if it does that and they are known.
    pub fn clamps(&self, id: NodeId) -> Option<(f32, f32)> {
        self.with_sides(id, |sides| self.op(id).clamps(&sides.inputs))
    }

    /// Between which values of its first input the result of a node changes, if it is constant beyond.
    pub fn heeds(&self, id: NodeId) -> Option<(f32, f32)> {
        self.with_sides(id, |sides| self.op(id).heeds(&sides.inputs))
    }

    /// What goes with indices of `at`, an axis of an operand or of a result of a node.
    pub fn axes_map(&self, id: NodeId, at: Axis) -> Flow {
        self.with_sides(id, |sides| self.op(id).axes_map(at, sides))
    }

    /// What else changes in a node of which only the indices `kept` stay.
    ///
    /// # Errors
    /// Malformed, where inference says so too.
    pub fn channel_slice(&self, id: NodeId, kept: &Kept) -> Result<ChannelSlice> {
        self.with_sides(id, |sides| self.op(id).channel_slice(kept, sides)).map_err(|e| e.at(self.node(id).label()))
    }

    /// `f` of what is known around a node.
    fn with_sides<T>(&self, id: NodeId, f: impl FnOnce(&Sides) -> T) -> T {
        let operands = self.operands(id);
        let inputs: Vec<Option<&Fact>> = operands.iter().map(|p| p.map(|p| self.fact(p))).collect();
        let outputs: Vec<&Fact> = self.node(id).outputs.iter().map(|v| &v.fact).collect();
        f(&Sides { inputs: Inputs(&inputs), outputs: &outputs })
    }
}
