//! Cast among all element types, and BitCast.

use super::Args;
use crate::{
    burn::{
        host::{IntArray, wrap},
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    narrow::{decode, encode, is_narrow},
    ops::cast::{BitCast, Rounding},
    tensor::{DType, Tensor},
};

/// Floats become integers by truncation and saturate; integers are cut to the width.
pub(super) fn cast(to: DType, how: Rounding, mut a: Args) -> Result<Value> {
    if to == DType::String {
        return Err(Error::unsupported("Cast to strings"));
    }
    match a.take(0)? {
        Value::Float(x) if x.dtype().is_float() => from_float(x, to, how, a.device),
        other => from_ints(other.into_ints()?, to, how, a.device),
    }
}

/// Cast to the type of the second input.
pub(super) fn cast_like(how: Rounding, mut a: Args) -> Result<Value> {
    cast(a.take(1)?.dtype(), how, a)
}

fn from_float(x: Float, to: DType, how: Rounding, device: &Device) -> Result<Value> {
    if x.dtype() == to {
        return Ok(Value::Float(x));
    }
    let shape = x.shape().to_vec();
    // Burn's own cast rounds to f16 and bf16 from f32 only.
    if to.is_float() && !is_narrow(to) && x.dtype() != DType::F64 {
        return Ok(Value::Float(x.rounded_to(to)));
    }
    let data = if to.is_float() { x } else { x.detached() }.into_f64s()?;
    if to.is_float() {
        let data = if is_narrow(to) { data.into_iter().map(|v| narrow(v, to, how)).collect() } else { data };
        return Float::from_f64s(data, &shape, to, device).map(Value::Float);
    }
    let data = data.into_iter().map(|v| to_int(v, to)).collect();
    Ok(Value::Int(IntArray::new(to, shape, data)))
}

fn from_ints(x: IntArray, to: DType, how: Rounding, device: &Device) -> Result<Value> {
    let number = |v: &i64| if x.dtype == DType::U64 { *v as u64 as f64 } else { *v as f64 };
    match to {
        // Rounded once: a wide integer through `f64` could be rounded up twice.
        DType::F32 => {
            let number = |v: &i64| if x.dtype == DType::U64 { *v as u64 as f32 } else { *v as f32 };
            Float::from_vec(x.data.iter().map(number).collect(), &x.shape, device).map(Value::Float)
        }
        _ if to.is_float() => {
            let one = |v: &i64| if is_narrow(to) { narrow(number(v), to, how) } else { number(v) };
            Float::from_f64s(x.data.iter().map(one).collect(), &x.shape, to, device).map(Value::Float)
        }
        _ => {
            let data = x.data.iter().map(|v| wrap(to, *v)).collect();
            Ok(Value::Int(IntArray::new(to, x.shape, data)))
        }
    }
}

fn narrow(v: f64, to: DType, how: Rounding) -> f64 {
    decode(to, encode(to, v, how.saturate, how.mode)).into()
}

/// The host element for a number.
pub(super) fn to_int(v: f64, to: DType) -> i64 {
    match to {
        DType::Bool => (v != 0.0) as i64,
        DType::U64 => v as u64 as i64,
        // Types that share a byte are cut as integers are.
        _ if to.bits() < 8 => wrap(to, v as i64),
        _ => {
            // `as` truncates, saturates, and makes NaN 0.
            let (low, high) = to.int_range().unwrap_or((i64::MIN, i64::MAX));
            (v as i64).clamp(low, high)
        }
    }
}

/// The same bits as elements of another type.
pub(super) fn bit_cast(op: &BitCast, mut a: Args) -> Result<Value> {
    let x = a.take(0)?.download()?;
    if x.dtype().bits() != op.to.bits() {
        return Err(Error::malformed(format!("the bits of {} are not those of {}", x.dtype(), op.to)));
    }
    Value::upload(&Tensor::new(op.to, x.shape().to_vec(), x.bytes().to_vec())?, a.device)
}
