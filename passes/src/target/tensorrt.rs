//! TensorRT, as its documentation says (explicit quantization, 10.x): it was not run.
//!
//! Codes are INT8 with zero point 0. Its parser takes neither UINT8 nor other zero points, nor INT32 biases behind a
//! DequantizeLinear. Pairs belong in front of layers and of what comes past a residual convolution, not behind layers: it
//! computes clamps and sums with the convolution. A range that ends at 0 does not replace a Relu, because codes reach below 0.

use super::Capabilities;
use crate::quant::scheme::{Activations, Biases, Granularity, Placement, S8, Scheme};
use compress_compiler::tensor::DType;

/// TensorRT.
pub const TARGET: Capabilities = Capabilities {
    name: "tensorrt",
    means: "TensorRT: symmetric INT8 without zero points, where layers read it; float biases",
    channels: None,
    codes: &[DType::I8],
    adapt: |scheme| Scheme {
        activations: Activations::Static(S8),
        placement: Placement::LayerInputs,
        biases: Biases::Float,
        ..scheme
    },
    slow_depthwise: false,
    dynamic: false,
    looks_up_codes: false,
    small_weights: false,
    lstm_by_codes: false,
    by_bits: false,
    granularities: &[Granularity::Tensor, Granularity::Channel],
    lower: None,
};
