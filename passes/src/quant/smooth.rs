//! Moves the range of an input's channels into the weights that multiply them (SmoothQuant, Xiao et al. 2023).
//!
//! `x W = (x / s) (s W)`: with a factor for each input channel, the channels of `x` come to like ranges, so that one scale
//! suits all of them. Where a normalisation makes `x` for these layers alone, it divides; otherwise a Mul does.

use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::binary::Binary,
    tensor::Tensor,
};

/// Divides the channels of `x`, its last axis, by `factors` for these layers, which all of its integer readers are. Returns
/// the value that they read now.
///
/// # Errors
/// What inference raises.
pub(super) fn smooth(g: &mut Graph, x: Port, layers: &[Layer], factors: &[f32]) -> Result<Port> {
    for l in layers {
        let tensor = g.constant(l.weight.into()).cloned().ok_or_else(|| Error::bug("a weight is not a constant"))?;
        let mut values = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?.into_owned();
        let axis = l.axes.input;
        let behind: usize = tensor.shape()[axis + 1..].iter().product();
        values.iter_mut().enumerate().for_each(|(i, w)| *w *= factors[i / behind % factors.len()]);
        g.set_constant(l.weight, Tensor::f32(tensor.shape(), &values));
    }
    let inverse: Vec<f32> = factors.iter().map(|s| 1.0 / s).collect();
    if divides(g, x, layers) {
        for slot in [1, 2] {
            let Some((port, values)) = scale(g, x.node, slot) else { continue };
            let values: Vec<f32> = values.iter().zip(&inverse).map(|(v, i)| v * i).collect();
            let name = g.value(port).name.clone();
            let new = g.add_constant(&name, Tensor::f32(&[values.len()], &values));
            g.set_operand(x.node, slot, Some(new.into()));
            compress_compiler::rewrite::remove_dead(g, port.node);
        }
        return Ok(x);
    }
    let name = format!("{}_smooth", g.value(x).name);
    let inverse = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[inverse.len()], &inverse));
    let output = g.fresh(&name);
    let smooth = g.add_node(&name, Binary::Mul.into(), &[Some(x), Some(inverse.into())], &[&output])?;
    layers.iter().for_each(|l| g.set_operand(l.node, 0, Some(smooth.into())));
    Ok(smooth.into())
}

/// Whether a LayerNormalization makes `x`, for these layers alone, and can divide it.
fn divides(g: &Graph, x: Port, layers: &[Layer]) -> bool {
    let alone = !g.is_output(x) && g.uses(x).iter().all(|u| u.slot == 0 && layers.iter().any(|l| l.node == u.node));
    let normalises = matches!(g.op(x.node), Op::LayerNorm(_)) && x.slot == 0;
    let constant = |slot: usize| g.operand(x.node, slot).is_none() || scale(g, x.node, slot).is_some();
    alone && normalises && constant(1) && constant(2)
}

/// A constant vector that a node reads.
fn scale(g: &Graph, node: NodeId, slot: usize) -> Option<(Port, Vec<f32>)> {
    let port = g.operand(node, slot)?;
    let tensor = g.constant(port).filter(|t| t.shape().len() == 1)?;
    Some((port, tensor.as_f32()?.into_owned()))
}

/// The factors that share the ranges between inputs and weights: `max|x|^alpha / max|w|^(1 - alpha)` of each channel.
pub(super) fn factors(g: &Graph, layers: &[Layer], widest: &[f32], alpha: f32) -> Option<Vec<f32>> {
    let mut weights = vec![0f32; widest.len()];
    for l in layers {
        let tensor = g.constant(l.weight.into())?;
        let behind: usize = tensor.shape()[l.axes.input + 1..].iter().product();
        for (i, w) in tensor.as_f32()?.iter().enumerate() {
            let most = &mut weights[i / behind % widest.len()];
            *most = most.max(w.abs());
        }
    }
    let of = |(x, w): (&f32, &f32)| match x.powf(alpha) / w.powf(1.0 - alpha) {
        s if s.is_normal() => s,
        // A channel that is always zero, or whose weights are.
        _ => 1.0,
    };
    let factors: Vec<f32> = widest.iter().zip(&weights).map(of).collect();
    // Only their ratios matter: around 1 the values keep about their size.
    let logs: f32 = factors.iter().map(|s| s.ln()).sum::<f32>() / factors.len().max(1) as f32;
    Some(factors.iter().map(|s| s / logs.exp()).collect())
}
