//! Cast among all element types.

use super::Args;
use crate::burn::{
    host::{IntArray, wrap},
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
};

/// Floats become integers by truncation and saturate; integers are cut to the width.
pub(super) fn cast(to: DType, mut a: Args) -> Result<Value> {
    if to == DType::String {
        return Err(Error::unsupported("Cast to strings"));
    }
    let on_device = matches!(to, DType::F32 | DType::F16 | DType::BF16);
    match a.take(0)? {
        Value::Float(x) if on_device => Ok(Value::Float(x.rounded_to(to))),
        Value::Float(x) if x.dtype().is_float() => {
            let shape = x.shape().to_vec();
            let data = x.into_vec()?.into_iter().map(|v| from_f64(f64::from(v), to)).collect();
            Ok(Value::Int(IntArray::new(to, shape, data)))
        }
        other => {
            let x = other.into_ints()?;
            if x.dtype == to {
                return Ok(Value::Int(x));
            }
            if on_device {
                let data = x.data.iter().map(|v| as_f64(*v, x.dtype) as f32).collect();
                return Ok(Value::Float(Float::from_vec(data, &x.shape, a.device)?.rounded_to(to)));
            }
            let convert = |v: &i64| match x.dtype {
                DType::F64 => from_f64(as_f64(*v, DType::F64), to),
                _ if to == DType::F64 => as_f64(*v, x.dtype).to_bits() as i64,
                _ => wrap(to, *v),
            };
            let data = x.data.iter().map(convert).collect();
            Ok(Value::Int(IntArray::new(to, x.shape, data)))
        }
    }
}

/// The number behind a host element.
fn as_f64(v: i64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::from_bits(v as u64),
        DType::U64 => v as u64 as f64,
        _ => v as f64,
    }
}

/// The host element for a number.
fn from_f64(v: f64, to: DType) -> i64 {
    match to {
        DType::F64 => v.to_bits() as i64,
        DType::Bool => (v != 0.0) as i64,
        DType::U64 => v as u64 as i64,
        _ => {
            // `as` truncates, saturates, and makes NaN 0.
            let (low, high) = to.int_range().unwrap_or((i64::MIN, i64::MAX));
            (v as i64).clamp(low, high)
        }
    }
}
