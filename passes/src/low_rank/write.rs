//! Two layers in the place of one.

use super::factors::Factors;
use crate::{layers::Layer, weight_matrix::WeightMatrix};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{conv::Conv, gemm::Gemm, window::Window},
    pass::Context,
    rewrite::remove_dead,
    tensor::Tensor,
};

/// Lets all `readers` of a weight multiply by its `factors`: a new layer by the thin weight that reads their inputs, and the old one
/// by the other, with its name and its bias.
pub(super) fn replace(
    g: &mut Graph,
    readers: &[Layer],
    (layout, factors, rank): (&WeightMatrix, &Factors, usize),
    cx: &Context,
) -> Result<()> {
    let Some(Layer { weight, axes, .. }) = readers.first().copied() else { return Ok(()) };
    let name = g.value(weight.into()).name.clone();
    let shape = g.constant(weight.into()).map(|t| t.shape().to_vec()).unwrap_or_default();
    let sized = |outputs: usize, inputs: usize| {
        let mut shape = shape.clone();
        (shape[axes.output], shape[axes.input]) = (outputs, inputs);
        shape
    };
    let down = cx.kept(Tensor::f32(&sized(rank, layout.channels), &factors.down))?;
    let up = cx.kept(Tensor::f32(&sized(layout.rows, rank), &factors.up))?;
    let [down, up] = [("down", down), ("up", up)].map(|(of, t)| g.add_constant(&g.fresh(&format!("{name}_{of}")), t));
    for reader in readers {
        layer(g, reader.node, [down, up], axes.slot)?;
    }
    remove_dead(g, weight);
    Ok(())
}

fn layer(g: &mut Graph, node: NodeId, [down, up]: [NodeId; 2], slot: usize) -> Result<()> {
    let (first, second): (Op, Op) = match g.op(node).clone() {
        // What strides leave out need not be computed twice, and what pads is zero before as after.
        Op::Conv(conv) => (conv.clone().into(), Conv { window: Window::default(), ..conv }.into()),
        Op::Gemm(gemm) => (Gemm { alpha: 1.0, beta: 1.0, ..gemm.clone() }.into(), gemm.into()),
        op => (op.clone(), op),
    };
    let (label, output) = (g.node(node).name.clone(), g.value(node.into()).name.clone());
    let label = if label.is_empty() { label } else { format!("{label}_down") };
    let output = g.fresh(&format!("{output}_down"));
    let made = g.add_node(&label, first, &[g.operand(node, 0), Some(down.into())], &[&output])?;
    g.set_op(node, second);
    g.set_operand(node, 0, Some(made.into()));
    g.set_operand(node, slot, Some(up.into()));
    Ok(())
}
