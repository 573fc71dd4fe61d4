//! Stores the weights of layers that stay in floats in 16 bits: a Cast makes 32 of them when the model is loaded.

use super::choices::Choices;
use crate::widen;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Operator,
    tensor::{DType, Tensor},
};
use std::collections::BTreeMap;

/// The most noise that 16 bits may add to an output channel of a weight, in parts of its signal: 60 dB below it.
const MOST_NOISE: f64 = 1e-6;

/// Stores the weights of the layers that `choices` leave in floats in 16 bits, where these are near enough.
///
/// # Errors
/// What inference raises.
pub(super) fn store(g: &mut Graph, choices: &Choices) -> Result<()> {
    for (constant, axis) in weights(g, choices) {
        if let Some(half) = g.constant(constant.into()).and_then(|tensor| near(tensor, axis)) {
            widen::store(g, constant, half)?;
        }
    }
    Ok(())
}

/// The bytes that [`store`] saves, if all weights are near enough.
pub(super) fn saved(g: &Graph, choices: &Choices) -> u64 {
    let bytes = |(constant, _): (NodeId, usize)| g.constant(constant.into()).map_or(0, |t| t.bytes().len() as u64 / 2);
    weights(g, choices).into_iter().map(bytes).sum()
}

/// The weights that only layers in floats read, and their axes of output channels.
fn weights(g: &Graph, choices: &Choices) -> BTreeMap<NodeId, usize> {
    let weight = |n: NodeId| g.operand(n, g.op(n).weight()?.slot);
    let of = |node: &NodeId| {
        let (port, axes) = (weight(*node)?, g.op(*node).weight()?);
        let by_them = g.uses(port).iter().all(|u| choices.float.contains_key(&u.node) && weight(u.node) == Some(port));
        let is_large = |t: &&Tensor| t.dtype() == DType::F32 && t.len() >= widen::SMALL;
        g.constant(port).filter(is_large).filter(|_| by_them && !g.is_output(port))?;
        Some((port.node, axes.output))
    };
    choices.float.keys().filter(|n| g.contains(**n)).filter_map(of).collect()
}

/// A weight in 16 bits, if that is near enough in each channel along `axis`.
fn near(tensor: &Tensor, axis: usize) -> Option<Tensor> {
    let values = tensor.as_f32()?;
    let half = Tensor::floats(DType::F16, tensor.shape(), &values);
    let (count, behind) = (tensor.shape()[axis], tensor.shape()[axis + 1..].iter().product::<usize>());
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
        assert_eq!(near(&weight, 0).map(|t| t.dtype()), Some(DType::F16));
    }

    #[test]
    fn a_channel_beyond_16_bits_keeps_32() {
        for far in [1e6, 1e-7] {
            assert_eq!(near(&Tensor::f32(&[2, 2], &[0.1, -3.0, far, far / 3.0]), 0), None, "{far}");
        }
    }
}
