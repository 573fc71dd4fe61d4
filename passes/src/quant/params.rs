//! Scales and zero points: from real numbers to INT8.

use super::scheme::{Codes, Granularity, Symmetry, Weights};
use compress_compiler::tensor::{DType, Tensor};

/// Parameters of an activation: `real = scale * (q - zero)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub zero: i64,
}

impl Affine {
    /// Covers `low..=high`, which includes zero, with all codes, such that zero is one of them.
    pub fn covering(low: f32, high: f32, codes: Codes) -> Self {
        let (least, most) = codes.range();
        let (scale, zero) = match codes.symmetry {
            Symmetry::Asymmetric => {
                let (scale, steps) = ((high - low) / codes.steps() as f32, codes.steps() as f32);
                (scale, least + (-low / scale).round_ties_even().clamp(0.0, steps) as i64)
            }
            Symmetry::Symmetric => (high.max(-low) / most as f32, 0),
        };
        if scale <= 0.0 || !scale.is_normal() {
            // No code stands for less than zero where a range with a zero point does what a Relu did.
            let zero = if codes.symmetry == Symmetry::Asymmetric { least } else { 0 };
            return Self { scale: 1.0, zero };
        }
        Self { scale, zero }
    }
}

/// The scales of a weight with symmetric codes, one an output channel along `axis` (Krishnamoorthi, 2018), which are
/// all the same where the whole tensor shares one. A channel's scale never falls below `floor` of it, which keeps what is
/// computed with it in range.
pub(super) fn weight_scales(
    weight: &[f32],
    shape: &[usize],
    axis: usize,
    Weights { codes, granularity }: Weights,
    floor: impl Fn(usize) -> f32,
) -> Vec<f32> {
    let (_, most) = codes.range();
    let channel = channels(shape, axis);
    let mut largest = vec![0f32; shape[axis]];
    for (i, v) in weight.iter().enumerate() {
        let m = &mut largest[channel(i)];
        *m = m.max(v.abs());
    }
    if granularity == Granularity::Tensor {
        let all = largest.iter().copied().fold(0.0, f32::max);
        largest.fill(all);
    }
    let scale = |(c, m): (usize, &f32)| match (m / most as f32).max(floor(c)) {
        s if s.is_normal() => s,
        // A channel of zeros without a bias: any scale is exact.
        _ => 1.0,
    };
    largest.iter().enumerate().map(scale).collect()
}

/// What QuantizeLinear makes of a weight under symmetric scales along `axis`, between the least and
/// the largest code.
pub(super) fn codes(weight: &[f32], shape: &[usize], axis: usize, scales: &[f32], (low, high): (i64, i64)) -> Vec<i64> {
    let channel = channels(shape, axis);
    let code = |(i, v): (usize, &f32)| (v / scales[channel(i)]).round_ties_even().clamp(low as f32, high as f32) as i64;
    weight.iter().enumerate().map(code).collect()
}

/// What the codes of a weight stand for, rounded to the nearest.
pub(super) fn rounded(
    weight: &[f32],
    shape: &[usize],
    axis: usize,
    weights: Weights,
    floor: impl Fn(usize) -> f32,
) -> Vec<f32> {
    nearest(weight, shape, axis, &weight_scales(weight, shape, axis, weights, floor), weights.codes.range())
}

/// The same under given scales, between the least and the largest code.
pub(super) fn nearest(weight: &[f32], shape: &[usize], axis: usize, scales: &[f32], range: (i64, i64)) -> Vec<f32> {
    let channel = channels(shape, axis);
    let codes = codes(weight, shape, axis, scales, range);
    codes.into_iter().enumerate().map(|(i, code)| code as f32 * scales[channel(i)]).collect()
}

/// The channel along `axis` of an element.
fn channels(shape: &[usize], axis: usize) -> impl Fn(usize) -> usize {
    let (count, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    move |i| i / inner % count
}

/// A bias in INT32 under the scales of the accumulator.
pub(super) fn bias(bias: &[f32], scales: &[f32]) -> Tensor {
    let q: Vec<i64> = bias
        .iter()
        .zip(scales)
        .map(|(b, s)| (f64::from(*b) / f64::from(*s)).round_ties_even() as i64)
        .map(|q| q.clamp(i64::from(i32::MIN), i64::from(i32::MAX)))
        .collect();
    Tensor::ints(DType::I32, &[q.len()], &q)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::scheme::{INT8, INT8_W4, S8_ANY_ZERO};

    #[test]
    fn zero_is_exact_and_the_ends_are_covered() {
        for (low, high) in [(-1.0, 2.0), (0.0, 6.0), (-3.0, 0.0), (-0.001, 1000.0)] {
            let a = Affine::covering(low, high, INT8.activations.codes());
            let real = |q: f32| a.scale * (q - a.zero as f32);
            assert!(real(0.0) <= low + a.scale && real(255.0) >= high - a.scale, "{low} {high} {a:?}");
        }
        assert_eq!(Affine::covering(0.0, 0.0, INT8.activations.codes()), Affine { scale: 1.0, zero: 0 });
        assert_eq!(Affine::covering(0.0, 0.0, S8_ANY_ZERO), Affine { scale: 1.0, zero: -128 });
        assert_eq!(Affine::covering(0.0, 5.1, S8_ANY_ZERO), Affine { scale: 0.02, zero: -128 });
        let signed = Affine::covering(-1.0, 2.54, INT8.weights.codes);
        assert_eq!(signed, Affine { scale: 0.02, zero: 0 });
    }

    #[test]
    fn channels_have_their_own_scale() {
        let weight = [1.27, -0.635, 0.0, 0.0, 254.0, 127.0];
        let scales = weight_scales(&weight, &[3, 2], 0, INT8.weights, |_| 0.0);
        assert_eq!(scales, [0.01, 1.0, 2.0]);
        assert_eq!(codes(&weight, &[3, 2], 0, &scales, (-128, 127)), [127, -64, 0, 0, 127, 64]);
        let weight = [1.0, 2.0, 3.0, 4.0];
        let scales = weight_scales(&weight, &[2, 2], 1, INT8.weights, |_| 0.0);
        assert_eq!(codes(&weight, &[2, 2], 1, &scales, (-128, 127)), [42, 64, 127, 127]);
        let weight = [1.2, 2.0, -3.0, 4.0];
        let scales = weight_scales(&weight, &[2, 2], 0, INT8_W4.weights, |_| 0.0);
        assert_eq!(codes(&weight, &[2, 2], 0, &scales, (-8, 7)), [4, 7, -5, 7]);
        let whole = Weights { granularity: Granularity::Tensor, ..INT8.weights };
        assert_eq!(weight_scales(&[1.27, 2.54], &[2, 1], 0, whole, |_| 0.0), [0.02, 0.02]);
    }
}
