//! OpenVINO (low precision transformations of 2026.4, on processors).
//!
//! It keeps codes between layers by itself, and rounds twice where a value that no layer reads has codes of its own. It adds
//! what a convolution makes to what comes past it before it rounds. Codes of a signed activation that pass a Concat are wrong
//! there, and convolutions by weights with a zero point, or of fewer than 8 bits, run in floats.

use super::Capabilities;
use crate::quant::scheme::{Granularity, Placement, Scheme};
use compress_compiler::tensor::DType;

/// OpenVINO.
pub const TARGET: Capabilities = Capabilities {
    name: "openvino",
    means: "OpenVINO: codes only where layers read them",
    channels: None,
    codes: &[DType::U8, DType::I8],
    adapt: |scheme| Scheme { placement: Placement::LayerInputs, ..scheme },
    slow_depthwise: false,
    dynamic: true,
    looks_up_codes: true,
    small_weights: true,
    lstm_by_codes: false,
    by_bits: false,
    granularities: &[Granularity::Tensor, Granularity::Channel],
    lower: None,
};
