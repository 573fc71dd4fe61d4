//! Scales and zero points: from real numbers to INT8.

use compress_compiler::tensor::{DType, Tensor};

/// Parameters of a U8 activation: `real = scale * (q - zero)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub zero: u8,
}

impl Affine {
    /// Covers `low..=high`, which includes zero, with 256 steps such that zero is one of them.
    pub fn covering(low: f32, high: f32) -> Self {
        let scale = (high - low) / 255.0;
        if scale <= 0.0 || !scale.is_normal() {
            return Self { scale: 1.0, zero: 0 };
        }
        Self { scale, zero: (-low / scale).round_ties_even().clamp(0.0, 255.0) as u8 }
    }
}

/// The scales of a weight with symmetric codes up to `most`, one an output channel along `axis`
/// (Krishnamoorthi, 2018). A channel's scale never falls below `floor` of it, which keeps the INT32
/// bias that shares it in range.
pub(super) fn weight_scales(
    weight: &[f32],
    shape: &[usize],
    axis: usize,
    most: i64,
    floor: impl Fn(usize) -> f32,
) -> Vec<f32> {
    let channel = channels(shape, axis);
    let mut largest = vec![0f32; shape[axis]];
    for (i, v) in weight.iter().enumerate() {
        let m = &mut largest[channel(i)];
        *m = m.max(v.abs());
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

    #[test]
    fn zero_is_exact_and_the_ends_are_covered() {
        for (low, high) in [(-1.0, 2.0), (0.0, 6.0), (-3.0, 0.0), (-0.001, 1000.0)] {
            let a = Affine::covering(low, high);
            let real = |q: f32| a.scale * (q - f32::from(a.zero));
            assert!(real(0.0) <= low + a.scale && real(255.0) >= high - a.scale, "{low} {high} {a:?}");
        }
        assert_eq!(Affine::covering(0.0, 0.0), Affine { scale: 1.0, zero: 0 });
    }

    #[test]
    fn channels_have_their_own_scale() {
        let weight = [1.27, -0.635, 0.0, 0.0, 254.0, 127.0];
        let scales = weight_scales(&weight, &[3, 2], 0, 127, |_| 0.0);
        assert_eq!(scales, [0.01, 1.0, 2.0]);
        assert_eq!(codes(&weight, &[3, 2], 0, &scales, (-128, 127)), [127, -64, 0, 0, 127, 64]);
        let weight = [1.0, 2.0, 3.0, 4.0];
        let scales = weight_scales(&weight, &[2, 2], 1, 127, |_| 0.0);
        assert_eq!(codes(&weight, &[2, 2], 1, &scales, (-128, 127)), [42, 64, 127, 127]);
        let weight = [1.2, 2.0, -3.0, 4.0];
        let scales = weight_scales(&weight, &[2, 2], 0, 7, |_| 0.0);
        assert_eq!(codes(&weight, &[2, 2], 0, &scales, (-8, 7)), [4, 7, -5, 7]);
    }
}
