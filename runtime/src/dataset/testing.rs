//! What the tests of several kinds of sets share.

use super::InputSpec;
use compress_compiler::{tensor::DType, value::Dim};

/// A float input.
pub(super) fn spec(name: &str, shape: &[Option<usize>]) -> InputSpec {
    let shape = shape.iter().map(|n| n.map_or(Dim::Unknown, Dim::from)).collect();
    InputSpec::new(name, DType::F32, shape)
}

/// A float input whose axes are written as in `B, 3, ?`.
pub(super) fn named(name: &str, shape: &str) -> InputSpec {
    let axis = |text: &str| match text.parse::<usize>() {
        Ok(n) => Dim::from(n),
        Err(_) if text == "?" => Dim::Unknown,
        Err(_) => Dim::Sym(text.into()),
    };
    let shape = shape.split(", ").filter(|text| !text.is_empty()).map(axis).collect();
    InputSpec::new(name, DType::F32, shape)
}
