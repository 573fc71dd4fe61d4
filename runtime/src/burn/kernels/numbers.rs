//! Elements on the host, for operators that compute there.

use super::cast::to_int;
use crate::{
    burn::{
        host::{IntArray, check_host, wrap},
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
};
use std::sync::Arc;

/// Numbers in an arithmetic that holds all of their type.
pub(super) enum Numbers {
    Floats(Vec<f64>),
    /// As [`IntArray`] has them.
    Ints(Vec<i64>),
}

/// A tensor on the host.
pub(super) struct Host {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub data: Numbers,
}

impl Host {
    /// The elements of `v`.
    pub fn of(v: Value) -> Result<Self> {
        check_host(v.shape())?;
        let (dtype, shape) = (v.dtype(), v.shape().to_vec());
        let data = match v {
            Value::Float(f) if dtype.is_float() => Numbers::Floats(f.into_f64s()?),
            v => Numbers::Ints(Arc::unwrap_or_clone(v.into_ints()?.data)),
        };
        Ok(Self { dtype, shape, data })
    }

    /// The value, its elements rounded or cut to its type.
    pub fn into_value(self, device: &Device) -> Result<Value> {
        match self.data {
            Numbers::Floats(data) => of_floats(data, &self.shape, self.dtype, device),
            Numbers::Ints(mut data) => {
                data.iter_mut().for_each(|v| *v = wrap(self.dtype, *v));
                Ok(Value::Int(IntArray::new(self.dtype, self.shape, data)))
            }
        }
    }

    /// The elements as floats.
    pub fn into_floats(self) -> Vec<f64> {
        let unsigned = self.dtype == DType::U64;
        match self.data {
            Numbers::Floats(data) => data,
            Numbers::Ints(data) => {
                data.into_iter().map(|v| if unsigned { v as u64 as f64 } else { v as f64 }).collect()
            }
        }
    }

    /// Whole numbers in the order of the elements. NaN is above all others.
    pub fn into_keys(self) -> Vec<i64> {
        let unsigned = self.dtype == DType::U64;
        match self.data {
            Numbers::Ints(data) if unsigned => data.into_iter().map(|v| v ^ i64::MIN).collect(),
            Numbers::Ints(data) => data,
            Numbers::Floats(data) => data
                .into_iter()
                .map(|v| match v {
                    _ if v.is_nan() => i64::MAX,
                    // Both zeros are one.
                    0.0 => 0,
                    _ => {
                        let bits = v.to_bits() as i64;
                        bits ^ (((bits >> 63) as u64) >> 1) as i64
                    }
                })
                .collect(),
        }
    }
}

/// The elements of `v`, whatever its type.
pub(super) fn floats(v: Value) -> Result<Vec<f64>> {
    Ok(Host::of(v)?.into_floats())
}

/// The only element of `v`.
pub(super) fn number(v: Value) -> Result<f64> {
    let shape = v.shape().to_vec();
    match floats(v)?[..] {
        [v] => Ok(v),
        _ => Err(Error::malformed(format!("an input of shape {shape:?}, where one element is expected"))),
    }
}

/// The only element of `v`, a whole number.
pub(super) fn whole(v: Value) -> Result<i64> {
    if v.dtype().is_float() {
        return Ok(number(v)? as i64);
    }
    match v.into_ints()?.data[..] {
        [v] => Ok(v),
        _ => Err(Error::malformed("an input has several elements, where one is expected")),
    }
}

/// A value of `dtype` from floats, which are rounded or cut to it.
pub(super) fn of_floats(data: Vec<f64>, shape: &[usize], dtype: DType, device: &Device) -> Result<Value> {
    if dtype.is_float() {
        return Float::from_f64s(data, shape, dtype, device).map(Value::Float);
    }
    check_host(shape)?;
    Ok(Value::Int(IntArray::new(dtype, shape.to_vec(), data.into_iter().map(|v| to_int(v, dtype)).collect())))
}
