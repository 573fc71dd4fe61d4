//! Writes a quantisation plan into the graph as QuantizeLinear/DequantizeLinear pairs.

use super::{
    params::{self, Affine},
    ptq::Plan,
};
use crate::layers::Layer;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    ops::quantize::{Dequantize, Quantize},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
};
use std::collections::{BTreeSet, HashMap, hash_map::Entry};

/// Applies `plan`.
pub(super) fn insert(g: &mut Graph, plan: &Plan, params: &HashMap<Port, Affine>) -> Result<()> {
    let mut weights = HashMap::new();
    for l in &plan.layers {
        if let Some(x) = g.operand(l.node, 0) {
            quantize_layer(g, l, params[&x], &mut weights)?;
        }
    }
    let integer: BTreeSet<NodeId> = plan.layers.iter().map(|l| l.node).chain(plan.taken.iter().copied()).collect();
    for &port in &plan.wanted {
        let source = plan.before.get(&port).copied().unwrap_or(port);
        let name = g.value(port).name.clone();
        let Affine { scale, zero } = params[&port];
        let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[], &[scale])).into();
        let zero = g.add_constant(&format!("{name}_zero_point"), Tensor::ints(DType::U8, &[], &[zero.into()])).into();
        let q = add(g, &format!("{name}_QuantizeLinear"), Quantize { axis: 1 }, source, scale, zero)?;
        let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize { axis: 1 }, q.into(), scale, zero)?;
        if integer.contains(&source.node) {
            g.redirect(port, dq.into(), &[q]);
        } else {
            // A float operator made it: float readers keep the exact value.
            for u in g.uses(port) {
                let reads = u.node != q
                    && integer.contains(&u.node)
                    && (u.slot == 0 || g.op(u.node).quant() != Quant::Weighted);
                if reads {
                    g.set_operand(u.node, u.slot, Some(dq.into()));
                }
            }
        }
        remove_dead(g, port.node);
    }
    Ok(())
}

fn add(g: &mut Graph, name: &str, op: impl Into<Op>, x: Port, scale: Port, zero: Port) -> Result<NodeId> {
    let output = g.fresh(&format!("{name}_Output"));
    g.add_node(name, op.into(), &[Some(x), Some(scale), Some(zero)], &[&output])
}

/// Makes a layer read its weight and bias through DequantizeLinear.
fn quantize_layer(g: &mut Graph, l: &Layer, x: Affine, done: &mut HashMap<NodeId, (Port, Vec<f32>)>) -> Result<()> {
    let bias_port = l.axes.bias.and_then(|slot| g.operand(l.node, slot));
    let bias: Option<Vec<f32>> = bias_port.and_then(|p| g.constant(p)?.as_f32().map(|b| b.into_owned()));
    let (weight, scales) = match done.entry(l.weight) {
        // A shared weight is shared again: quantised once, with the first reader's floor.
        Entry::Occupied(e) => e.into_mut(),
        Entry::Vacant(e) => e.insert(quantize_weight(g, l, x, bias.as_deref())?),
    };
    g.set_operand(l.node, l.axes.slot, Some(*weight));
    if let (Some(slot), Some(port), Some(bias)) = (l.axes.bias, bias_port, bias) {
        let name = g.value(port).name.clone();
        // The product in f32, as kernels compute the accumulator's scale.
        let scales: Vec<f32> = scales.iter().map(|w| (x.scale * w).max(f32::MIN_POSITIVE)).collect();
        let values = g.add_constant(&format!("{name}_quantized"), params::bias(&bias, &scales)).into();
        let scale = g.add_constant(&format!("{name}_quantized_scale"), Tensor::f32(&[scales.len()], &scales)).into();
        let zeros = vec![0; scales.len()];
        let zero = g
            .add_constant(&format!("{name}_quantized_zero_point"), Tensor::ints(DType::I32, &[zeros.len()], &zeros))
            .into();
        let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize { axis: 0 }, values, scale, zero)?;
        g.set_operand(l.node, slot, Some(dq.into()));
        remove_dead(g, port.node);
    }
    remove_dead(g, l.weight);
    Ok(())
}

fn quantize_weight(g: &mut Graph, l: &Layer, x: Affine, bias: Option<&[f32]>) -> Result<(Port, Vec<f32>)> {
    let name = g.value(l.weight.into()).name.clone();
    let tensor = g.constant(l.weight.into()).cloned().unwrap_or_else(|| Tensor::f32(&[0, 0], &[]));
    let values = tensor.as_f32().unwrap_or_default();
    let axis = l.axes.output;
    // The bias in units of the accumulator must fit 32 bits, with a bit to spare.
    let floor = |c: usize| bias.map_or(0.0, |b| b[c].abs() / (x.scale * (1u32 << 30) as f32));
    let q = params::weight(&values, tensor.shape(), axis, floor);
    let n = q.scales.len();
    let values = g.add_constant(&format!("{name}_quantized"), q.values).into();
    let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[n], &q.scales)).into();
    let zero = g.add_constant(&format!("{name}_zero_point"), Tensor::ints(DType::I8, &[n], &vec![0; n])).into();
    let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize { axis: axis as i64 }, values, scale, zero)?;
    Ok((dq.into(), q.scales))
}
