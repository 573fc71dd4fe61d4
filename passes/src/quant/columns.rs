//! Multiplies the widest channels of a product's input in floats (LLM.int8(), Dettmers et al. 2022).
//!
//! `x W = x W' + x_C W_C`, with `C` the widest channels and `W'` the weight without their rows. The first product becomes
//! integer, and its input needs no range for the channels in `C`.

use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, gather::Gather, matmul::MatMul},
    tensor::Tensor,
};

/// Multiplies the `channels` of `x` in floats for these layers. Returns, for each, the float product, and the sum that stands for
/// what the layer made.
///
/// # Errors
/// What inference raises.
pub(super) fn split(g: &mut Graph, x: Port, layers: &[Layer], channels: &[usize]) -> Result<Vec<(NodeId, NodeId)>> {
    let name = format!("{}_wide", g.value(x).name);
    let indices: Vec<i64> = channels.iter().map(|c| *c as i64).collect();
    let indices = g.add_constant(&format!("{name}_channels"), Tensor::i64s(&indices));
    let output = g.fresh(&name);
    let wide = g.add_node(&name, Gather { axis: -1 }.into(), &[Some(x), Some(indices.into())], &[&output])?;
    let mut added = vec![];
    for l in layers {
        let tensor = g.constant(l.weight.into()).cloned().ok_or_else(|| Error::bug("a weight is not a constant"))?;
        let mut values = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?.into_owned();
        let (shape, transposed) = (tensor.shape(), l.axes.input == 1);
        let outputs = shape[l.axes.output];
        let at = |c: usize, o: usize| if transposed { o * shape[1] + c } else { c * outputs + o };
        let mut taken = Vec::with_capacity(channels.len() * outputs);
        for c in channels {
            taken.extend((0..outputs).map(|o| std::mem::take(&mut values[at(*c, o)])));
        }
        g.set_constant(l.weight, Tensor::f32(shape, &values));
        let base = g.node(l.node).display_name().to_string();
        let weight = g.add_constant(
            &format!("{}_wide", g.value(l.weight.into()).name.clone()),
            Tensor::f32(&[channels.len(), outputs], &taken),
        );
        let output = g.fresh(&format!("{base}_wide"));
        let op = Op::from(MatMul);
        let product = g.add_node(&format!("{base}_wide"), op, &[Some(wide.into()), Some(weight.into())], &[&output])?;
        let output = g.fresh(&format!("{base}_sum"));
        let operands = [Some(l.node.into()), Some(product.into())];
        let sum = g.add_node(&format!("{base}_sum"), Binary::Add.into(), &operands, &[&output])?;
        g.redirect(l.node.into(), sum.into(), &[sum]);
        added.push((product, sum));
    }
    Ok(added)
}
