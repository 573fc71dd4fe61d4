//! Two transposes are one, or none; and matrices are transposed as they lie.

use super::shared;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::{Op, Operator},
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

/// `Reshape(Transpose(Reshape(x)))` that joins the axes before those of matrices, swaps these and parts the others again is
/// one Transpose: as PyTorch's newer exporter writes it for keys.
pub(super) struct TransposeMatrices;

impl Rule for TransposeMatrices {
    fn name(&self) -> &'static str {
        "transpose-matrices"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Reshape"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(transpose_matrices(graph, node).unwrap_or(Verdict::No))
    }
}

fn transpose_matrices(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let turned = graph.operand(node, 0)?;
    let Op::Transpose(op) = graph.op(turned.node) else { return None };
    let joined = graph.operand(turned.node, 0)?;
    let x = graph.operand(joined.node, 0).filter(|_| graph.op(joined.node).reshapes())?;
    let dims = |port| graph.fact(port).dims();
    let (from, between, to) = (dims(x)?, dims(joined)?, dims(node.into())?);
    let (rank, front) = (from.len(), from.len().checked_sub(2)?);
    let swapped = |rank: usize| (0..rank - 2).chain([rank - 1, rank - 2]);
    let perm = op.resolve(between.len()).ok().filter(|perm| perm.len() >= 2)?;
    let are_matrices = perm.into_iter().eq(swapped(between.len()))
        && to.len() == rank
        && from[front..].iter().rev().zip(between.iter().rev()).all(|(a, b)| a.same(b))
        && swapped(rank).zip(to).all(|(axis, to)| from[axis].same(to));
    if !are_matrices || front == 0 {
        return None;
    }
    if let Some(read) = [turned, joined].into_iter().find(|port| graph.only_use(*port).is_none()) {
        return Some(shared(graph, read));
    }
    let mut edit = Edit::new();
    let perm = swapped(rank).map(|axis| axis as i64).collect();
    let fused = edit.node(&graph.node(turned.node).name, Transpose { perm }, &[Some(x.into())]);
    edit.replace(node.into(), fused);
    Some(Verdict::Apply(edit))
}
