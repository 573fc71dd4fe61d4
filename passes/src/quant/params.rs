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

/// A weight in S8, symmetric, one scale an output channel (Krishnamoorthi, 2018).
pub(super) struct Quantized {
    pub values: Tensor,
    pub scales: Vec<f32>,
}

/// Quantises `weight` along `axis`. A channel's scale never falls below `floor` of it, which
/// keeps the INT32 bias that shares it in range.
pub(super) fn weight(weight: &[f32], shape: &[usize], axis: usize, floor: impl Fn(usize) -> f32) -> Quantized {
    let channels = shape[axis];
    let inner: usize = shape[axis + 1..].iter().product();
    let channel = |i: usize| i / inner % channels;
    let mut largest = vec![0f32; channels];
    for (i, v) in weight.iter().enumerate() {
        let m = &mut largest[channel(i)];
        *m = m.max(v.abs());
    }
    let scales: Vec<f32> = largest
        .iter()
        .enumerate()
        .map(|(c, m)| match (m / 127.0).max(floor(c)) {
            s if s.is_normal() => s,
            // A channel of zeros without a bias: any scale is exact.
            _ => 1.0,
        })
        .collect();
    let values: Vec<i64> = weight
        .iter()
        .enumerate()
        .map(|(i, v)| (v / scales[channel(i)]).round_ties_even().clamp(-127.0, 127.0) as i64)
        .collect();
    Quantized { values: Tensor::ints(DType::I8, shape, &values), scales }
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
        let q = weight(&[1.27, -0.635, 0.0, 0.0, 254.0, 127.0], &[3, 2], 0, |_| 0.0);
        assert_eq!(q.scales, [0.01, 1.0, 2.0]);
        assert_eq!(q.values.as_i64().unwrap(), [127, -64, 0, 0, 127, 64]);
        let q = weight(&[1.0, 2.0, 3.0, 4.0], &[2, 2], 1, |_| 0.0);
        assert_eq!(q.values.as_i64().unwrap(), [42, 64, 127, 127]);
    }
}
