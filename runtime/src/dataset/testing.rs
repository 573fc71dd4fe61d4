//! What the tests of several kinds of sets share.

use super::InputSpec;
use compress_compiler::tensor::DType;

/// A float input.
pub(super) fn spec(name: &str, shape: &[Option<usize>]) -> InputSpec {
    InputSpec { name: name.to_owned(), dtype: DType::F32, shape: shape.to_vec() }
}
