//! Any runtime.

use super::Capabilities;
use crate::quant::scheme::Granularity;
use compress_compiler::tensor::DType;

/// Any runtime: no operator of an opset above 20 is brought in.
pub const TARGET: Capabilities = Capabilities {
    name: "portable",
    means: "any runtime",
    channels: None,
    codes: &[DType::U8, DType::I8],
    adapt: |scheme| scheme,
    slow_depthwise: true,
    dynamic: true,
    looks_up_codes: true,
    small_weights: true,
    lstm_by_codes: false,
    by_bits: false,
    granularities: &[Granularity::Tensor, Granularity::Channel],
    lower: None,
};
