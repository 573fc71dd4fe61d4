//! Stores the weights of layers that stay in floats in 16 bits: a Cast makes 32 of them when the model is loaded.

use super::choices::Choices;
use crate::widen;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::{Op, Operator},
    tensor::{DType, Tensor},
};

/// The most noise that 16 bits may add to an output channel of a weight, in parts of its signal: 60 dB below it.
const MOST_NOISE: f64 = 1e-6;

/// Stores the weights of the layers that `choices` leave in floats in 16 bits, where these are near enough.
///
/// # Errors
/// What inference raises.
pub(super) fn store(g: &mut Graph, choices: &Choices) -> Result<()> {
    let weight = |g: &Graph, n: NodeId| g.operand(n, g.op(n).weight()?.slot);
    for &node in choices.float.keys().filter(|n| g.contains(**n)).collect::<Vec<_>>() {
        let (Some(port), Some(axes)) = (weight(g, node), g.op(node).weight()) else { continue };
        let by_them =
            g.uses(port).iter().all(|u| choices.float.contains_key(&u.node) && weight(g, u.node) == Some(port));
        let Op::Constant(constant) = g.op(port.node) else { continue };
        let tensor = &constant.0;
        if by_them
            && tensor.dtype() == DType::F32
            && tensor.len() >= widen::SMALL
            && let Some(half) = near(tensor, axes.output)
        {
            widen::store(g, port.node, half)?;
        }
    }
    Ok(())
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
