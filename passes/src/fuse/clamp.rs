//! Relu and Clip, one after another, are one.

use super::shared;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{clip::Clip, unary::Unary},
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::{DType, Tensor},
};

/// Two of Relu and Clip, with constant bounds, are one.
pub(super) struct ClampPair;

impl Rule for ClampPair {
    fn name(&self) -> &'static str {
        "clamp-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Relu", "Clip"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let Some(x) = graph.operand(middle.node, 0) else { return Ok(Verdict::No) };
        if graph.fact(x).dtype != Some(DType::F32) {
            return Ok(Verdict::No);
        }
        let (Some(inner), Some(outer)) = (bounds(graph, middle.node), bounds(graph, node)) else {
            return Ok(Verdict::No);
        };
        let both = (inner.0.clamp(outer.0, outer.1), inner.1.clamp(outer.0, outer.1));
        if both == inner {
            return Ok(Verdict::Apply(Edit::swap(node.into(), middle)));
        }
        if graph.only_use(middle).is_none() {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let name = &graph.node(node).name;
        let fused = if both == (0.0, f32::INFINITY) {
            edit.node(name, Unary::Relu, &[Some(x.into())])
        } else {
            let low = edit.constant("min", Tensor::f32(&[], &[both.0]));
            let high = edit.constant("max", Tensor::f32(&[], &[both.1]));
            edit.node(name, Clip, &[Some(x.into()), Some(low), Some(high)])
        };
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

/// The interval that a Relu or Clip maps to, if it is constant and not empty.
fn bounds(graph: &Graph, node: NodeId) -> Option<(f32, f32)> {
    match graph.op(node) {
        Op::Unary(Unary::Relu) => Some((0.0, f32::INFINITY)),
        Op::Clip(_) => {
            let bound = |slot, absent| graph.operand(node, slot).map_or(Some(absent), |p| scalar(graph, p));
            let (low, high) = (bound(1, f32::NEG_INFINITY)?, bound(2, f32::INFINITY)?);
            (low <= high).then_some((low, high))
        }
        _ => None,
    }
}

fn scalar(graph: &Graph, port: Port) -> Option<f32> {
    match graph.constant(port)?.as_f32()?.as_ref() {
        [v] => Some(*v),
        _ => None,
    }
}
