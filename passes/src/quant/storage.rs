//! How the weights of layers that stay in floats are stored: as codes that a Cast and a Mul by their scales make floats of, or in
//! 16 bits that a Cast makes floats of. Runtimes compute that once, when they load the model.

use super::{choices::Choices, params, scheme::INT8};
use crate::{layers::weight_slots, widen};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Use},
    op::{Op, Operator},
    ops::{binary::Binary, cast::Cast},
    tensor::{DType, Tensor},
};
use std::collections::BTreeMap;

/// The most noise that 16 bits may add to an output channel of a weight, in parts of its signal: 60 dB below it.
const MOST_NOISE: f64 = 1e-6;

/// Stores the weights of the layers that `choices` leave in floats: in codes where they were rounded to such, and in 16 bits where
/// these are near enough. Returns how many.
///
/// # Errors
/// What inference raises.
pub(super) fn store(g: &mut Graph, choices: &Choices) -> Result<usize> {
    let mut stored = 0;
    for (constant, channels) in weights(g, choices) {
        let Some(tensor) = g.constant(constant.into()) else { continue };
        match choices.stored.as_ref().and_then(|stored| stored.get(&constant)) {
            Some(rounded) => as_codes(g, constant, &channels, &rounded.scales)?,
            None => match near(tensor, &channels) {
                Some(half) => widen::store(g, constant, half)?,
                None => continue,
            },
        }
        stored += 1;
    }
    Ok(stored)
}

/// Rounds the weights that are stored as codes, which stay floats until [`store`].
pub(super) fn round(g: &mut Graph, choices: &Choices) {
    let Some(stored) = choices.stored.as_ref().filter(|stored| !stored.is_empty()) else { return };
    for constant in weights(g, choices).into_keys() {
        if let (Some(rounded), Some(t)) = (stored.get(&constant), g.constant(constant.into())) {
            let values = Tensor::f32(t.shape(), &rounded.values);
            g.set_constant(constant, values);
        }
    }
}

/// The bytes that [`store`] saves, if all weights are near enough to numbers of 16 bits, or, as long as that was not decided, to
/// codes.
pub(super) fn saved(g: &Graph, choices: &Choices) -> u64 {
    let of = |constant: NodeId| {
        let is_coded = choices.stored.as_ref().is_none_or(|stored| stored.contains_key(&constant));
        let elements = g.constant(constant.into()).map_or(0, |t| t.len() as u64);
        elements * if is_coded { 3 } else { 2 }
    };
    weights(g, choices).into_keys().map(of).sum()
}

/// What of a weight shares a scale: the weight seen with these sizes, of which one axis is that of the channels.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Channels {
    /// The sizes.
    pub shape: Vec<usize>,
    /// The axis.
    pub axis: usize,
    /// The shape of the scales beside the weight itself.
    scales: Vec<usize>,
}

impl Channels {
    /// Those of a layer's weight.
    fn of(shape: &[usize], axis: usize) -> Self {
        let scales = shape.iter().enumerate().map(|(i, n)| if i == axis { *n } else { 1 }).collect();
        Self { shape: shape.to_vec(), axis, scales }
    }

    /// The rows of all directions of a recurrent layer.
    fn of_recurrent(shape: &[usize]) -> Option<Self> {
        let [directions, rows, inner] = *shape else { return None };
        Some(Self { shape: vec![directions * rows, inner], axis: 0, scales: vec![directions, rows, 1] })
    }
}

/// The weights that only layers in floats read.
pub(super) fn weights(g: &Graph, choices: &Choices) -> BTreeMap<NodeId, Channels> {
    let is_weight = |u: &Use| choices.float.contains_key(&u.node) && weight_slots(g.op(u.node)).contains(&u.slot);
    let of = |node: NodeId, slot: usize| {
        let port = g.operand(node, slot)?;
        let is_large = |t: &&Tensor| t.dtype() == DType::F32 && t.len() >= widen::SMALL;
        let t = g.constant(port).filter(is_large)?;
        let channels = match g.op(node) {
            Op::Recurrent(_) => Channels::of_recurrent(t.shape())?,
            op => Channels::of(t.shape(), op.weight()?.output),
        };
        (g.uses(port).iter().all(is_weight) && !g.is_output(port)).then_some((port.node, channels))
    };
    let nodes = choices.float.keys().filter(|n| g.contains(**n));
    nodes.flat_map(|n| weight_slots(g.op(*n)).into_iter().filter_map(|slot| of(*n, slot)).collect::<Vec<_>>()).collect()
}

/// A weight whose values lie on codes, as these and their scales.
fn as_codes(g: &mut Graph, constant: NodeId, channels: &Channels, scales: &[f32]) -> Result<()> {
    let Some(tensor) = g.constant(constant.into()).cloned() else { return Ok(()) };
    let values = tensor.as_f32().unwrap_or_default();
    let codes = params::codes(&values, &channels.shape, channels.axis, scales, INT8.weights.codes.range());
    let name = g.value(constant.into()).name.clone();
    let readers = g.uses(constant.into());
    g.set_constant(constant, Tensor::ints(DType::I8, tensor.shape(), &codes));
    let widened = g.fresh(&format!("{name}_widened"));
    let cast = Op::from(Cast { to: DType::F32, rounding: Default::default() });
    let widened = g.add_node("", cast, &[Some(constant.into())], &[&widened])?;
    let scale = g.add_constant(&format!("{name}_scale"), Tensor::f32(&channels.scales, scales));
    let scaled = g.fresh(&format!("{name}_scaled"));
    let scaled = g.add_node("", Binary::Mul.into(), &[Some(widened.into()), Some(scale.into())], &[&scaled])?;
    readers.iter().for_each(|u| g.set_operand(u.node, u.slot, Some(scaled.into())));
    Ok(())
}

/// A weight in 16 bits, if that is near enough in each channel.
fn near(tensor: &Tensor, Channels { shape, axis, .. }: &Channels) -> Option<Tensor> {
    let values = tensor.as_f32()?;
    let half = Tensor::floats(DType::F16, tensor.shape(), &values);
    let (count, behind) = (shape[*axis], shape[axis + 1..].iter().product::<usize>());
    let mut sums = vec![(0f64, 0f64); count];
    for (i, (a, b)) in values.iter().zip(half.as_f32()?.iter()).enumerate() {
        let (signal, noise) = &mut sums[i / behind % count];
        *signal += f64::from(*a).powi(2);
        *noise += f64::from(a - b).powi(2);
    }
    sums.iter().all(|(signal, noise)| *noise <= signal * MOST_NOISE).then_some(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_near_numbers_of_16_bits_are_stored_so() {
        let weight = Tensor::f32(&[2, 2], &[0.1, -3.0, 1e-3, 2e-3]);
        assert_eq!(near(&weight, &Channels::of(&[2, 2], 0)).map(|t| t.dtype()), Some(DType::F16));
    }

    #[test]
    fn a_channel_beyond_16_bits_keeps_32() {
        for far in [1e6, 1e-7] {
            let weight = Tensor::f32(&[2, 2], &[0.1, -3.0, far, far / 3.0]);
            assert_eq!(near(&weight, &Channels::of(&[2, 2], 0)), None, "{far}");
        }
    }
}
