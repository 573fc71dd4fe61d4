//! Two transposes are one, or none.

use super::shared;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::transpose::Transpose,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
};

/// `Transpose(Transpose(x))` is one Transpose, or `x` when the second undoes the first.
pub(super) struct TransposePair;

impl Rule for TransposePair {
    fn name(&self) -> &'static str {
        "transpose-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Transpose"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let (Op::Transpose(outer), Some(middle)) = (graph.op(node), graph.operand(node, 0)) else {
            return Ok(Verdict::No);
        };
        let (Op::Transpose(inner), Some(x)) = (graph.op(middle.node), graph.operand(middle.node, 0)) else {
            return Ok(Verdict::No);
        };
        let Some(rank) = graph.fact(x).rank() else { return Ok(Verdict::No) };
        let (inner, outer) = (inner.resolve(rank)?, outer.resolve(rank)?);
        let perm: Vec<usize> = outer.into_iter().map(|axis| inner[axis]).collect();
        if perm.is_sorted() {
            return Ok(Verdict::Apply(Edit::swap(node.into(), x)));
        }
        if graph.only_use(middle).is_none() {
            return Ok(shared(graph, middle));
        }
        let perm = perm.into_iter().map(|axis| axis as i64).collect();
        let mut edit = Edit::new();
        let fused = edit.node(&graph.node(node).name, Transpose { perm }, &[Some(x.into())]);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}
