//! Operators that only change the shape, one after another, are one Reshape.

use super::shared;
use crate::fold::reshape_target;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::reshape::Reshape,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::Tensor,
};

/// Two of Reshape, Flatten, Squeeze and Unsqueeze are one Reshape to the final shape.
pub(super) struct ReshapePair;

impl Rule for ReshapePair {
    fn name(&self) -> &'static str {
        "reshape-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Reshape", "Flatten", "Squeeze", "Unsqueeze"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        if !reshapes(graph.op(node)) || !reshapes(graph.op(middle.node)) {
            return Ok(Verdict::No);
        }
        let Some(x) = graph.operand(middle.node, 0) else { return Ok(Verdict::No) };
        let (Some(from), Some(to)) = (graph.fact(x).dims(), graph.fact(node.into()).dims()) else {
            return Ok(Verdict::No);
        };
        let Some(target) = reshape_target(from, to) else {
            return Ok(Verdict::Skip("too little is known of its result's shape".into()));
        };
        if graph.only_use(middle).is_none() {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let target = edit.constant("shape", Tensor::i64s(&target));
        let fused = edit.node(&graph.node(node).name, Reshape { allow_zero: false }, &[Some(x.into()), Some(target)]);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

fn reshapes(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Flatten(_) | Op::Squeeze(_) | Op::Unsqueeze(_))
}
