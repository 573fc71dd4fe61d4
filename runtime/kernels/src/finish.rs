//! What the sums of an 8-bit convolution become.

/// What a convolution's 32-bit sums become, with one bias and one scale for each output channel.
///
/// A sum is that of `(x - input_zero) * w`.
#[derive(Debug, Clone, PartialEq)]
pub enum Finish8 {
    /// 8-bit: `clamp(round_half_even((sum + bias) as f32 * scale) + zero, min, max)`.
    Requantize {
        /// Added to the sum.
        bias: Vec<i32>,
        /// `input_scale * weight_scale / output_scale`, in this order in `f32`, as ONNX Runtime's
        /// QLinearConv has it.
        scale: Vec<f32>,
        /// The output's zero point.
        zero: u8,
        /// The least result: `zero` for a Relu.
        min: u8,
        /// The greatest result.
        max: u8,
    },
    /// Float: `clamp(sum as f32 * scale + bias, min, max)`.
    Scale {
        /// Added to the scaled sum.
        bias: Vec<f32>,
        /// `input_scale * weight_scale`.
        scale: Vec<f32>,
        /// The least result: 0 for a Relu.
        min: f32,
        /// The greatest result.
        max: f32,
    },
}

impl Finish8 {
    /// For how many output channels it is.
    ///
    /// # Panics
    /// When there are not as many biases as scales.
    pub fn channels(&self) -> usize {
        let (biases, scales) = match self {
            Finish8::Requantize { bias, scale, .. } => (bias.len(), scale.len()),
            Finish8::Scale { bias, scale, .. } => (bias.len(), scale.len()),
        };
        assert_eq!(biases, scales, "a bias for each scale");
        scales
    }
}
