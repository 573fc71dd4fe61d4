//! Where values come from: graph inputs and constants.

use crate::{
    axes::{Axis, Flow, Sides},
    error::Result,
    forms::decoder::Decoder,
    graph::Graph,
    node::NodeId,
    op::{Inputs, Op, Operator},
    tensor::Tensor,
    value::Fact,
};
use std::ops::RangeInclusive;

/// A graph input.
#[derive(Debug, Clone, PartialEq)]
pub struct Input {
    /// The initializer that stands in when the caller gives nothing (ONNX: an initializer
    /// that is also a graph input). A caller may replace it, so nothing folds it.
    pub default: Option<Tensor>,
}

/// The inputs for which there must be data, in order: those without a default, and of a [`Decoder`] none that follows from
/// the runs before.
pub fn fed(graph: &Graph) -> impl Iterator<Item = NodeId> {
    let decoder = Decoder::of(graph);
    given(graph).filter(move |n| decoder.as_ref().is_none_or(|d| !d.makes(*n)))
}

/// The inputs without a default, in order.
pub fn given(graph: &Graph) -> impl Iterator<Item = NodeId> {
    graph.inputs().iter().copied().filter(|n| !matches!(graph.op(*n), Op::Input(i) if i.default.is_some()))
}

impl Operator for Input {
    fn op_type(&self) -> &str {
        "Input"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        0..=0
    }
    fn infer(&self, _: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::default()])
    }
    fn axes_map(&self, _: Axis, _: &Sides) -> Flow {
        Flow::closed("it is an input of the model")
    }
}

/// A constant: an initializer, or the result of folding.
#[derive(Debug, Clone, PartialEq)]
pub struct Constant(pub Tensor);

impl Operator for Constant {
    fn op_type(&self) -> &str {
        "Constant"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        0..=0
    }
    fn infer(&self, _: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::of(&self.0)])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.alike(at, "", Some)
    }
}
