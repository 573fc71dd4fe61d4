//! Processors that take activations of 16 bits and weights of 8, as Qualcomm's do through ONNX Runtime's QNN provider
//! (“A16W8”): it was not run on one. Elsewhere such a file computes in floats.

use super::Capabilities;
use crate::quant::scheme::{Activations, Granularity, Scheme, U16};
use compress_compiler::tensor::DType;

/// Qualcomm's AI Engine Direct.
pub const TARGET: Capabilities = Capabilities {
    name: "qnn",
    means: "processors for activations of 16 bits and weights of 8; elsewhere no faster than floats",
    channels: None,
    codes: &[DType::U16, DType::I8],
    adapt: |scheme| Scheme { activations: Activations::Static(U16), ..scheme },
    slow_depthwise: false,
    dynamic: false,
    looks_up_codes: true,
    small_weights: false,
    lstm_by_codes: false,
    by_bits: false,
    granularities: &[Granularity::Tensor, Granularity::Channel],
    lower: None,
};
