//! Where this program was built for no GPU.

use super::Prim;
use ::burn::backend::TensorData;
use compress_compiler::tensor::Tensor;

/// None is.
pub fn on_gpu(_: &Prim) -> bool {
    false
}

/// Nothing is sent.
pub fn borrowed(_: &Tensor) -> Option<TensorData> {
    None
}

/// The CPU doesn't.
pub fn drops_nan(_: &Prim) -> bool {
    false
}
