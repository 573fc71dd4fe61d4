//! XNNPACK, by ONNX Runtime's provider of that name, as its sources say (1.27): it was not run.
//!
//! It convolves by signed weights, with a scale for each channel, where activations are signed too, and leaves other codes to ONNX
//! Runtime's own kernels. On 64-bit ARM these take signed activations and others equally well: no sum is cut off there.

use super::Capabilities;
use crate::quant::scheme::{Activations, Granularity, S8_ANY_ZERO, Scheme};
use compress_compiler::tensor::DType;

/// XNNPACK.
pub const TARGET: Capabilities = Capabilities {
    name: "xnnpack",
    means: "XNNPACK, as on phones: signed INT8 with a zero point",
    channels: None,
    codes: &[DType::I8],
    adapt: |scheme| Scheme { activations: Activations::Static(S8_ANY_ZERO), ..scheme },
    slow_depthwise: false,
    dynamic: false,
    looks_up_codes: true,
    small_weights: true,
    lstm_by_codes: false,
    by_bits: false,
    granularities: &[Granularity::Tensor, Granularity::Channel],
    lower: None,
};
