//! A reduction drops or keeps its axes itself.

use super::{ints, layout::reshapes, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{arg::Arg, reduce::Reduce},
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
};

/// A reduction and an operator that brings its axes back, or drops them, are one reduction.
pub(super) struct KeepDims;

impl Rule for KeepDims {
    fn name(&self) -> &'static str {
        "keep-dims"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Squeeze", "Unsqueeze", "Reshape", "Flatten"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let (keeps, op): (bool, Op) = match graph.op(middle.node) {
            Op::Reduce(r) => (r.keepdims, Reduce { keepdims: !r.keepdims, ..r.clone() }.into()),
            Op::Arg(a) => (a.keepdims, Arg { keepdims: !a.keepdims, ..a.clone() }.into()),
            _ => return Ok(Verdict::No),
        };
        let operands = graph.operands(middle.node);
        let inferred = graph.infer_op(&op, &operands)?;
        let flipped = inferred.first().is_some_and(|f| f.has_shape_of(graph.fact(node.into())));
        if !reshapes(graph, node) || !(flipped || same_axes(graph, middle.node, node, keeps)) {
            return Ok(Verdict::No);
        }
        if graph.only_use(middle).is_none() {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let operands: Vec<_> = operands.into_iter().map(|p| p.map(Into::into)).collect();
        let reduced = edit.node(&graph.node(node).name, op, &operands);
        edit.replace(node.into(), reduced);
        Ok(Verdict::Apply(edit))
    }
}

/// Whether `node` names the axes that the reduction named: both count them in the larger shape,
/// whatever its rank.
fn same_axes(graph: &Graph, reduction: NodeId, node: NodeId, keeps: bool) -> bool {
    if !matches!((keeps, graph.op(node)), (true, Op::Squeeze(_)) | (false, Op::Unsqueeze(_))) {
        return false;
    }
    let list = |n: NodeId| {
        let mut axes = ints(graph, graph.operand(n, 1)?)?;
        axes.sort_unstable();
        Some(axes)
    };
    let reduced = match graph.op(reduction) {
        Op::Arg(a) => Some(vec![a.axis]),
        _ => list(reduction),
    };
    reduced.is_some_and(|axes| !axes.is_empty() && list(node) == Some(axes))
}
