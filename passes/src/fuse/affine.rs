//! A constant added to, or multiplied with, the output channels of a layer moves into the
//! layer's weight and bias.

use super::{
    constants::rounds,
    layer::{ConstantLayer, is_layer},
    shared,
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::binary::Binary,
    pass::Context,
    rewrite::{Rule, Verdict},
};

/// `Conv(x) * a + b` is one Conv; so with ConvTranspose and Gemm, and `MatMul(x) * a`.
pub(super) struct LayerAffine;

impl Rule for LayerAffine {
    fn name(&self) -> &'static str {
        "layer-affine"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Add", "Sub", "Mul", "Div"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(fuse(graph, node).unwrap_or_else(|verdict| verdict))
    }
}

fn fuse(graph: &Graph, node: NodeId) -> Result<Verdict, Verdict> {
    let (Op::Binary(op), Some(a), Some(b)) = (graph.op(node), graph.operand(node, 0), graph.operand(node, 1)) else {
        return Err(Verdict::No);
    };
    let (x, constant, swapped) = match (graph.constant(a), graph.constant(b)) {
        (None, Some(t)) => (a, t, false),
        (Some(t), None) => (b, t, true),
        _ => return Err(Verdict::No),
    };
    if !is_layer(graph.op(x.node))
        || (matches!(graph.op(x.node), Op::MatMul(_)) && matches!(op, Binary::Add | Binary::Sub))
    {
        return Err(Verdict::No);
    }
    let layer = ConstantLayer::new(graph, x.node)?;
    let values = layer.per_channel(constant).ok_or(Verdict::No)?;
    let zeros = vec![0.0; values.len()];
    let each = |f: fn(&f64) -> f64| values.iter().map(f).collect::<Vec<_>>();
    let (scale, shift) = match (op, swapped) {
        (Binary::Add, _) => (each(|_| 1.0), values),
        (Binary::Sub, false) => (each(|_| 1.0), each(|v| -v)),
        (Binary::Sub, true) => (each(|_| -1.0), values),
        (Binary::Mul, _) => (values, zeros),
        (Binary::Div, false) => (each(|v| 1.0 / v), zeros),
        _ => return Err(Verdict::No),
    };
    if shift.iter().any(|v| rounds(*v)) {
        return Err(Verdict::Skip("a constant this large rounds its other operand".into()));
    }
    if graph.only_use(x).is_none() {
        return Err(shared(graph, x));
    }
    Ok(layer.absorb(node.into(), &scale, &shift))
}
