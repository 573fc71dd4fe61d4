//! MatMul and Add of a bias are one Gemm.

use super::shared;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, gemm::Gemm},
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::DType,
    value::Dim,
};

/// `MatMul(A, W) + b` for a matrix A, a constant matrix W and a bias by column is
/// `Gemm(A, W, b)`. For an A of higher rank Gemm would need a Reshape on either side.
pub(super) struct MatMulAdd;

impl Rule for MatMulAdd {
    fn name(&self) -> &'static str {
        "matmul-add"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Add"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let (Op::Binary(Binary::Add), Some(a), Some(b)) =
            (graph.op(node), graph.operand(node, 0), graph.operand(node, 1))
        else {
            return Ok(Verdict::No);
        };
        Ok(match (graph.constant(a).is_some(), graph.constant(b).is_some()) {
            (false, true) => fuse(graph, node, a, b),
            (true, false) => fuse(graph, node, b, a),
            _ => Verdict::No,
        })
    }
}

fn fuse(graph: &Graph, node: NodeId, product: Port, bias: Port) -> Verdict {
    let Op::MatMul(_) = graph.op(product.node) else { return Verdict::No };
    let (Some(a), Some(w)) = (graph.operand(product.node, 0), graph.operand(product.node, 1)) else {
        return Verdict::No;
    };
    let (Some([_, _]), Some([_, Dim::Known(columns)])) = (graph.fact(a).dims(), graph.fact(w).dims()) else {
        return Verdict::No;
    };
    let Some(tensor) = graph.constant(bias) else { return Verdict::No };
    let by_column = match tensor.shape() {
        [] | [1] | [1, 1] => true,
        [n] | [1, n] => *n as i64 == *columns,
        _ => false,
    };
    // Gemm's other types are of no use here: integers would be shape arithmetic.
    if !by_column || !matches!(tensor.dtype(), DType::F32 | DType::F16) {
        return Verdict::No;
    }
    if graph.constant(w).is_none() {
        return Verdict::Skip(format!("the weight `{}` is not constant", graph.value(w).name));
    }
    if graph.only_use(product).is_none() {
        return shared(graph, product);
    }
    let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false };
    let mut edit = Edit::new();
    let operands = [a, w, bias].map(|p| Some(p.into()));
    let fused = edit.node(&graph.node(product.node).name, gemm, &operands);
    edit.replace(node.into(), fused);
    Verdict::Apply(edit)
}
