//! Writes a quantisation plan into the graph as QuantizeLinear/DequantizeLinear pairs.

use super::{
    choices::{Choices, Rounded},
    params::{self, Affine},
    reduce_range::{Channels, Pairs},
    scheme::{Biases, Scheme, Weights},
    two_terms,
    values::QuantisedValues,
};
use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    ops::quantize::{Dequantize, Quantize},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    sync::Arc,
};

/// Applies `plan`: activations and weights pass through QuantizeLinear and DequantizeLinear, the latter
/// as floats still, and biases stay as they are. [`freeze`] does the rest.
pub(super) fn insert(
    g: &mut Graph,
    plan: &QuantisedValues,
    params: &HashMap<Port, Affine>,
    channels: &Channels,
    scheme: &Scheme,
    choices: &Choices,
) -> Result<()> {
    for l in &plan.layers {
        if let Some(added) = choices.biases.get(&l.node) {
            add_bias(g, l, added);
        }
    }
    let floors = least_scales(g, plan, params, channels, scheme, choices);
    let mut done: HashMap<(NodeId, usize), Port> = HashMap::new();
    for l in &plan.layers {
        let weight = match done.entry(place(l)) {
            Entry::Occupied(e) => *e.get(),
            Entry::Vacant(e) => {
                let own = is_read_by_layers_only(g, plan, l);
                let rounded = choices.rounded.get(&l.weight);
                *e.insert(quantize_weight(g, l, own, &floors, scheme.weights, rounded)?)
            }
        };
        g.set_operand(l.node, l.axes.slot, Some(weight));
    }
    let integer: BTreeSet<NodeId> = plan.layers.iter().map(|l| l.node).chain(plan.taken.iter().copied()).collect();
    let mut rests = vec![];
    for &port in &plan.wanted {
        let source = plan.before.get(&port).copied().unwrap_or(port);
        let dq = pair_named(g, &g.value(port).name.clone(), source, params[&port], scheme)?;
        if choices.two_terms.contains(&port) && !integer.contains(&source.node) {
            rests.push((port, dq));
        }
        let q = g.operand(dq.node, 0).map_or(dq.node, |q| q.node);
        if integer.contains(&source.node) {
            g.redirect(port, dq, &[q]);
        } else {
            // A float operator made it: float readers keep the exact value.
            for u in g.uses(port) {
                let takes = integer.contains(&u.node) || plan.sums.contains(&u.node);
                if u.node != q && takes && (u.slot == 0 || g.op(u.node).quant() != Quant::Weighted) {
                    g.set_operand(u.node, u.slot, Some(dq));
                }
            }
        }
        remove_dead(g, port.node);
    }
    for (port, dq) in rests {
        let reads = |l: &&Layer| g.operand(l.node, 0) == Some(dq) && !matches!(g.op(l.node), Op::Conv(_));
        let layers: Vec<Layer> = plan.layers.iter().filter(reads).copied().collect();
        two_terms::add(g, port, dq, &layers, params[&port], scheme)?;
    }
    Ok(())
}

/// A weight, and the axis that its scales run along. One shared by several layers is quantised once for each axis.
fn place(l: &Layer) -> (NodeId, usize) {
    (l.weight, l.axes.output)
}

/// The least scales of the weights of `plan`, one an output channel.
pub(super) type LeastScales = HashMap<(NodeId, usize), Vec<f32>>;

/// That of output channel `c` of a layer.
pub(super) fn least_scale(floors: &LeastScales, l: &Layer, c: usize) -> f32 {
    floors.get(&place(l)).map_or(0.0, |floor| floor[c])
}

/// The least scales with which every bias fits 32 bits and, where the scheme asks for that, sums of two products 16.
pub(super) fn least_scales(
    g: &Graph,
    plan: &QuantisedValues,
    params: &HashMap<Port, Affine>,
    channels: &Channels,
    scheme: &Scheme,
    choices: &Choices,
) -> LeastScales {
    let mut floors = LeastScales::new();
    let mut raise = |l: &Layer, least: Vec<f32>| {
        let floor = floors.entry(place(l)).or_insert_with(|| vec![0.0; least.len()]);
        floor.iter_mut().zip(least).for_each(|(f, least)| *f = f.max(least));
    };
    for l in &plan.layers {
        let Some(x) = g.operand(l.node, 0).map(|x| params[&x]) else { continue };
        if let Some((_, bias)) = bias(g, l) {
            // In units of the accumulator the bias must fit 32 bits, with a bit to spare.
            raise(l, bias.iter().map(|b| b.abs() / (x.scale * (1u32 << 30) as f32)).collect());
        }
        let stored = g.constant(l.weight.into()).and_then(Tensor::as_f32);
        if let (Some(pairs), Some(stored)) = (Pairs::of(g, l, params, channels, scheme, choices), stored) {
            raise(l, pairs.least_scales(&stored));
        }
    }
    floors
}

/// `port` through codes and back.
pub(super) fn pair(g: &mut Graph, port: Port, params: Affine, scheme: &Scheme) -> Result<Port> {
    pair_named(g, &g.value(port).name.clone(), port, params, scheme)
}

fn pair_named(g: &mut Graph, name: &str, x: Port, Affine { scale, zero }: Affine, scheme: &Scheme) -> Result<Port> {
    let codes = scheme.activations.codes();
    let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[], &[scale])).into();
    let zero = g.add_constant(&format!("{name}_zero_point"), Tensor::ints(codes.stored, &[], &[zero])).into();
    let q = add(g, &format!("{name}_QuantizeLinear"), Quantize::along(1), x, scale, zero)?;
    add(g, &format!("{name}_DequantizeLinear"), Dequantize::along(1), q.into(), scale, zero).map(Port::from)
}

fn add(g: &mut Graph, name: &str, op: impl Into<Op>, x: Port, scale: Port, zero: Port) -> Result<NodeId> {
    let output = g.fresh(&format!("{name}_Output"));
    g.add_node(name, op.into(), &[Some(x), Some(scale), Some(zero)], &[&output])
}

/// A layer's bias, one value a channel, and where it comes from.
pub(super) fn bias(g: &Graph, l: &Layer) -> Option<(Port, Vec<f32>)> {
    let port = g.operand(l.node, l.axes.bias?)?;
    let values = g.constant(port)?.as_f32()?.into_owned();
    let channels = g.constant(l.weight.into())?.shape()[l.axes.output];
    // Gemm lets one value stand for all channels.
    Some((port, if values.len() == 1 { vec![values[0]; channels] } else { values }))
}

/// Adds `values`, one a channel, to the bias of a layer that may have none yet.
fn add_bias(g: &mut Graph, l: &Layer, values: &[f32]) {
    let Some(slot) = l.axes.bias else { return };
    let name = format!("{}_bias", g.node(l.node).display_name());
    let (name, old) = match bias(g, l) {
        Some((port, old)) => (g.value(port).name.clone(), old),
        None => (name, vec![0.0; values.len()]),
    };
    let sum: Vec<f32> = old.iter().zip(values).map(|(a, b)| a + b).collect();
    let before = g.operand(l.node, slot);
    let new = g.add_constant(&name, Tensor::f32(&[sum.len()], &sum));
    g.set_operand(l.node, slot, Some(new.into()));
    if let Some(before) = before {
        remove_dead(g, before.node);
    }
}

/// Whether nothing reads the weight of a layer but layers of the plan, all along the same axis: others need it as it is.
pub(super) fn is_read_by_layers_only(g: &Graph, plan: &QuantisedValues, l: &Layer) -> bool {
    let weight = Port::from(l.weight);
    let alike = |o: &&Layer| o.weight == l.weight && o.axes.output == l.axes.output;
    let layers: BTreeSet<NodeId> = plan.layers.iter().filter(alike).map(|o| o.node).collect();
    !g.is_output(weight) && g.uses(weight).iter().all(|u| layers.contains(&u.node))
}

/// The floats of a layer's weight through codes. `own` says whether they may be rounded where they are.
fn quantize_weight(
    g: &mut Graph,
    l: &Layer,
    own: bool,
    floors: &LeastScales,
    weights: Weights,
    rounded: Option<&Arc<Rounded>>,
) -> Result<Port> {
    let name = g.value(l.weight.into()).name.clone();
    let tensor = g.constant(l.weight.into()).cloned().unwrap_or_else(|| Tensor::f32(&[0, 0], &[]));
    let (values, axis) = (tensor.as_f32().unwrap_or_default(), l.axes.output);
    let floor = |c: usize| least_scale(floors, l, c);
    let mut source = l.weight;
    let scales = match rounded {
        // What it was rounded to lies between the codes of other scales.
        Some(rounded) if rounded.scales.iter().enumerate().all(|(c, s)| *s >= floor(c)) => {
            let values = Tensor::f32(tensor.shape(), &rounded.values);
            match own {
                true => g.set_constant(l.weight, values),
                false => source = g.add_constant(&format!("{name}_rounded"), values),
            }
            rounded.scales.clone()
        }
        _ => params::weight_scales(&values, tensor.shape(), axis, weights, floor),
    };
    let n = scales.len();
    let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&[n], &scales)).into();
    let zero =
        g.add_constant(&format!("{name}_zero_point"), Tensor::ints(weights.codes.dtype, &[n], &vec![0; n])).into();
    let along = axis as i64;
    let q = add(g, &format!("{name}_QuantizeLinear"), Quantize::along(along), source.into(), scale, zero)?;
    add(g, &format!("{name}_DequantizeLinear"), Dequantize::along(along), q.into(), scale, zero).map(Port::from)
}

/// Makes codes of the weights that [`insert`] left in floats, and INT32 of the biases of their layers.
pub(super) fn freeze(g: &mut Graph, scheme: &Scheme) -> Result<()> {
    for node in g.topological()? {
        let axes = g.op(node).weight().filter(|_| g.op(node).quant() == Quant::Weighted);
        let Some(axes) = axes else { continue };
        let Some((scales, dequantize)) = dequantized(g, node, axes.slot) else { continue };
        freeze_weight(g, dequantize, axes.output, &scales, scheme.weights.codes.stored)?;
        let biased = axes.bias.filter(|_| scheme.biases == Biases::Int32);
        let Some(((x, _), slot)) = dequantized(g, node, 0).zip(biased) else { continue };
        let Some(port) = g.operand(node, slot).filter(|p| g.constant(*p).is_some()) else { continue };
        let bias = g.constant(port).and_then(|t| Some(t.as_f32()?.into_owned())).unwrap_or_default();
        // Gemm lets one value stand for all channels.
        let bias = if bias.len() == 1 { vec![bias[0]; scales.len()] } else { bias };
        // The product in f32, as kernels compute the accumulator's scale.
        let scales: Vec<f32> = scales.iter().map(|w| (x[0] * w).max(f32::MIN_POSITIVE)).collect();
        let name = g.value(port).name.clone();
        let values = g.add_constant(&format!("{name}_quantized"), params::bias(&bias, &scales)).into();
        let scale = g.add_constant(&format!("{name}_quantized_scale"), Tensor::f32(&[scales.len()], &scales)).into();
        let zeros = Tensor::ints(DType::I32, &[scales.len()], &vec![0; scales.len()]);
        let zero = g.add_constant(&format!("{name}_quantized_zero_point"), zeros).into();
        let dq = add(g, &format!("{name}_DequantizeLinear"), Dequantize::along(0), values, scale, zero)?;
        g.set_operand(node, slot, Some(dq.into()));
        remove_dead(g, port.node);
    }
    Ok(())
}

/// The scales of the DequantizeLinear that makes an operand, and that node.
pub(super) fn dequantized(g: &Graph, node: NodeId, slot: usize) -> Option<(Vec<f32>, NodeId)> {
    let made = g.operand(node, slot)?.node;
    let scales = matches!(g.op(made), Op::Dequantize(_)).then(|| g.operand(made, 1))??;
    Some((g.constant(scales)?.as_f32()?.into_owned(), made))
}

/// Makes codes of what a DequantizeLinear reads through a QuantizeLinear.
fn freeze_weight(g: &mut Graph, dequantize: NodeId, axis: usize, scales: &[f32], stored: DType) -> Result<()> {
    let quantize = g.operand(dequantize, 0).map(|p| p.node).filter(|n| matches!(g.op(*n), Op::Quantize(_)));
    let Some(quantize) = quantize else { return Ok(()) };
    let (weight, zero) = (g.operand(quantize, 0), g.operand(quantize, 2));
    let (Some(weight), Some(zero)) = (weight, zero) else { return Ok(()) };
    let Some(tensor) = g.constant(weight).cloned() else { return Ok(()) };
    let range = g.constant(zero).and_then(|z| z.dtype().int_range());
    let range = range.ok_or_else(|| Error::bug("a zero point that is not an integer"))?;
    let values = tensor.as_f32().unwrap_or_default();
    let codes = params::codes(&values, tensor.shape(), axis, scales, range);
    let (name, n) = (g.value(weight).name.clone(), scales.len());
    let codes = g.add_constant(&format!("{name}_quantized"), Tensor::ints(stored, tensor.shape(), &codes));
    if let Some(t) = g.constant(zero).filter(|t| t.dtype() != stored) {
        let zeros = Tensor::ints(stored, t.shape(), &vec![0; n]);
        g.set_constant(zero.node, zeros);
    }
    g.set_operand(dequantize, 0, Some(codes.into()));
    remove_dead(g, quantize);
    Ok(())
}
