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
    // A weight shared by several layers is quantised once, so that all their biases fit.
    let mut floors: HashMap<NodeId, Vec<f32>> = HashMap::new();
    let inputs: Vec<Option<Affine>> = plan.layers.iter().map(|l| g.operand(l.node, 0).map(|x| params[&x])).collect();
    for (l, x) in plan.layers.iter().zip(&inputs) {
        let (Some(x), Some((_, bias))) = (x, bias(g, l)) else { continue };
        let floor = floors.entry(l.weight).or_insert_with(|| vec![0.0; bias.len()]);
        for (f, b) in floor.iter_mut().zip(&bias) {
            // In units of the accumulator the bias must fit 32 bits, with a bit to spare.
            *f = f.max(b.abs() / (x.scale * (1u32 << 30) as f32));
        }
    }
    let mut weights = HashMap::new();
    for (l, x) in plan.layers.iter().zip(inputs) {
        if let Some(x) = x {
            quantize_layer(g, l, x, &floors, &mut weights)?;
        }
    }
    let integer: BTreeSet<NodeId> = plan.layers.iter().map(|l| l.node).chain(plan.taken.iter().copied()).collect();
    for &port in &plan.wanted {
        let source = plan.before.get(&port).copied().unwrap_or(port);
        let name = g.value(port).name.clone();
        let Affine { scale, zero } = params[&port];
        let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[], &[scale])).into();
        let zero = g.add_constant(&format!("{name}_zero_point"), Tensor::ints(DType::U8, &[], &[zero.into()])).into();
        let q = add(g, &format!("{name}_QuantizeLinear"), Quantize::along(1), source, scale, zero)?;
        let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize::along(1), q.into(), scale, zero)?;
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

/// A layer's bias, one value a channel, and where it comes from.
fn bias(g: &Graph, l: &Layer) -> Option<(Port, Vec<f32>)> {
    let port = g.operand(l.node, l.axes.bias?)?;
    let values = g.constant(port)?.as_f32()?.into_owned();
    let channels = g.constant(l.weight.into())?.shape()[l.axes.output];
    // Gemm lets one value stand for all channels.
    Some((port, if values.len() == 1 { vec![values[0]; channels] } else { values }))
}

/// Makes a layer read its weight and bias through DequantizeLinear.
fn quantize_layer(
    g: &mut Graph,
    l: &Layer,
    x: Affine,
    floors: &HashMap<NodeId, Vec<f32>>,
    done: &mut HashMap<NodeId, (Port, Vec<f32>)>,
) -> Result<()> {
    let bias = bias(g, l);
    let (weight, scales) = match done.entry(l.weight) {
        Entry::Occupied(e) => e.into_mut(),
        Entry::Vacant(e) => e.insert(quantize_weight(g, l, floors.get(&l.weight))?),
    };
    g.set_operand(l.node, l.axes.slot, Some(*weight));
    if let (Some(slot), Some((port, bias))) = (l.axes.bias, bias) {
        let name = g.value(port).name.clone();
        // The product in f32, as kernels compute the accumulator's scale.
        let scales: Vec<f32> = scales.iter().map(|w| (x.scale * w).max(f32::MIN_POSITIVE)).collect();
        let values = g.add_constant(&format!("{name}_quantized"), params::bias(&bias, &scales)).into();
        let scale = g.add_constant(&format!("{name}_quantized_scale"), Tensor::f32(&[scales.len()], &scales)).into();
        let zeros = vec![0; scales.len()];
        let zero = g
            .add_constant(&format!("{name}_quantized_zero_point"), Tensor::ints(DType::I32, &[zeros.len()], &zeros))
            .into();
        let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize::along(0), values, scale, zero)?;
        g.set_operand(l.node, slot, Some(dq.into()));
        remove_dead(g, port.node);
    }
    remove_dead(g, l.weight);
    Ok(())
}

fn quantize_weight(g: &mut Graph, l: &Layer, floor: Option<&Vec<f32>>) -> Result<(Port, Vec<f32>)> {
    let name = g.value(l.weight.into()).name.clone();
    let tensor = g.constant(l.weight.into()).cloned().unwrap_or_else(|| Tensor::f32(&[0, 0], &[]));
    let values = tensor.as_f32().unwrap_or_default();
    let axis = l.axes.output;
    let q = params::weight(&values, tensor.shape(), axis, |c| floor.map_or(0.0, |f| f[c]));
    let n = q.scales.len();
    let values = g.add_constant(&format!("{name}_quantized"), q.values).into();
    let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[n], &q.scales)).into();
    let zero = g.add_constant(&format!("{name}_zero_point"), Tensor::ints(DType::I8, &[n], &vec![0; n])).into();
    let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize::along(axis as i64), values, scale, zero)?;
    Ok((dq.into(), q.scales))
}
