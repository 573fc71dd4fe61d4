//! How the suite compares: `|a - b| <= atol + rtol * |b|`, and NaN is NaN.

use compress_compiler::tensor::{DType, Tensor};

/// Two units in the last place, which the suite's own runner allows bfloat16.
const BF16_RTOL: f64 = 1.0 / 64.0;

/// Whether `got` is what is `expected`.
pub fn agree(got: &Tensor, expected: &Tensor, rtol: f64, atol: f64) -> Result<(), String> {
    if (got.dtype(), got.shape()) != (expected.dtype(), expected.shape()) {
        return Err(format!("{got:?} instead of {expected:?}"));
    }
    let rtol = if expected.dtype() == DType::BF16 { rtol.max(BF16_RTOL) } else { rtol };
    let near = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= atol + rtol * b.abs();
    let differ = match (floats(got), floats(expected)) {
        (Some(a), Some(b)) => first(&a, &b, |a, b| near(*a, *b)),
        _ => match (got.as_i64(), expected.as_i64()) {
            (Some(a), Some(b)) => first(&a, &b, |a, b| a == b),
            _ => return Err(format!("{} cannot be compared", expected.dtype())),
        },
    };
    differ.map_or(Ok(()), Err)
}

fn first<T: std::fmt::Display>(a: &[T], b: &[T], near: impl Fn(&T, &T) -> bool) -> Option<String> {
    let wrong = || a.iter().zip(b).enumerate().filter(|(_, (a, b))| !near(a, b));
    let (i, (x, y)) = wrong().next()?;
    Some(format!("{} of {} elements are wrong: element {i} is {x} instead of {y}", wrong().count(), b.len()))
}

/// The elements of a float tensor.
fn floats(t: &Tensor) -> Option<Vec<f64>> {
    if t.dtype() == DType::F64 {
        return Some(t.bytes().as_chunks::<8>().0.iter().map(|c| f64::from_le_bytes(*c)).collect());
    }
    Some(t.as_f32()?.iter().map(|v| f64::from(*v)).collect())
}
