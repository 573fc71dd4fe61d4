//! QuantizeLinear and DequantizeLinear. Quantised activations are whole numbers held as
//! `f32` on the device, which is exact up to 24 bits.

use super::Args;
use crate::burn::{
    host::IntArray,
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::quantize::{Dequantize, Quantize},
    tensor::{DType, Tensor},
    value,
};

/// Scale and zero point, and the shape by which they broadcast.
struct Parameters {
    scale: Float,
    zero: Option<IntArray>,
    /// Empty when there is one scale for all.
    shape: Vec<usize>,
}

impl Parameters {
    fn take(a: &mut Args, axis: i64, shape: &[usize]) -> Result<Self> {
        let scale = a.float(1)?;
        let zero = a.opt(2).map(|z| z.into_ints()?.computable()).transpose()?;
        let n = scale.elements();
        if let Some(z) = zero.as_ref().filter(|z| z.len() != n) {
            return Err(Error::malformed(format!("{} zero points for {n} scales", z.len())));
        }
        let shape = along(scale.shape(), axis, shape)?;
        Ok(Self { scale, zero, shape })
    }

    /// The zero point when it is one for all.
    fn one_zero(&self) -> Option<f32> {
        match &self.zero {
            None => Some(0.0),
            Some(z) if z.data.iter().all(|v| *v == z.data[0]) => Some(z.data[0] as f32),
            Some(_) => None,
        }
    }

    fn zeros(&self, a: &Args) -> Result<Float> {
        let data = self.zero.iter().flat_map(|z| z.data.iter()).map(|v| *v as f32).collect();
        Float::from_vec(data, &self.shape, a.device)
    }
}

/// The shape by which a scale of shape `scale` broadcasts over `shape`.
fn along(scale: &[usize], axis: i64, shape: &[usize]) -> Result<Vec<usize>> {
    let n: usize = scale.iter().product();
    if n == 1 && scale.len() <= 1 {
        return Ok(vec![]);
    }
    let axis = value::axis(axis, shape.len())?;
    if scale.len() != 1 || shape[axis] != n {
        return Err(Error::malformed(format!("scales of {scale:?} along axis {axis} of {shape:?}")));
    }
    let mut out = vec![1; shape.len()];
    out[axis] = n;
    Ok(out)
}

/// `saturate(round_half_even(x / scale) + zero_point)`.
pub(super) fn quantize(op: &Quantize, mut a: Args) -> Result<Value> {
    let x = match a.take(0)? {
        Value::Float(f) if f.dtype().is_float() => f,
        other => {
            let x = other.into_ints()?.computable()?;
            Float::from_vec(x.data.iter().map(|v| *v as f32).collect(), &x.shape, a.device)?
        }
    };
    let p = Parameters::take(&mut a, op.axis, x.shape())?;
    let dtype = p.zero.as_ref().map_or(DType::U8, |z| z.dtype);
    if !matches!(dtype, DType::U8 | DType::I8 | DType::U16 | DType::I16) {
        return Err(Error::unsupported(format!("QuantizeLinear to {dtype}")));
    }
    let (low, high) = dtype.int_range().unwrap_or((0, 0));
    let one = p.one_zero();
    let mut y = if p.shape.is_empty() {
        x.div_scalar(p.scale.clone().scalar()?)
    } else {
        x.div(p.scale.clone().reshape(&p.shape)?)?
    };
    y = match one {
        Some(0.0) => y.round(),
        Some(z) => y.round().add_scalar(z),
        None => y.round().add(p.zeros(&a)?)?,
    };
    Ok(Value::Float(y.clamp_min(low as f32).clamp_max(high as f32).with_dtype(dtype)))
}

/// `(x - zero_point) * scale`.
pub(super) fn dequantize(op: &Dequantize, mut a: Args) -> Result<Value> {
    let mut x = match a.take(0)? {
        Value::Float(f) if !f.dtype().is_float() => f,
        Value::Float(f) => return Err(Error::malformed(format!("DequantizeLinear of {} values", f.dtype()))),
        Value::Int(x) if matches!(x.dtype, DType::U8 | DType::I8 | DType::U16 | DType::I16) => {
            Value::Int(x).into_device(a.device)?
        }
        // Wider integers are exact only on the host.
        Value::Int(x) => {
            let scale = a.float(1)?;
            let (dtype, shape) = (scale.dtype(), scale.shape().to_vec());
            let zero = a.opt_ints(2)?;
            let data = host(&x, &scale.into_vec()?, &shape, zero.as_deref().map(Vec::as_slice), op.axis)?;
            return Ok(Value::Float(Float::from_vec(data, &x.shape, a.device)?.with_dtype(dtype)));
        }
    };
    let p = Parameters::take(&mut a, op.axis, x.shape())?;
    let dtype = p.scale.dtype();
    x = match p.one_zero() {
        Some(0.0) => x,
        Some(z) => x.sub_scalar(z),
        None => x.sub(p.zeros(&a)?)?,
    };
    x = match p.shape.is_empty() {
        true => x.mul_scalar(p.scale.scalar()?),
        false => x.mul(p.scale.reshape(&p.shape)?)?,
    };
    Ok(Value::Float(x.with_dtype(dtype)))
}

/// DequantizeLinear of constants, on the host: done once when a model is loaded.
///
/// # Errors
/// Malformed when the shapes or types don't fit.
pub(in crate::burn) fn dequantize_constant(
    op: &Dequantize,
    x: &Tensor,
    scale: &Tensor,
    zero: Option<&Tensor>,
) -> Result<Tensor> {
    let ints = |t: &Tensor| IntArray::from_tensor(t)?.computable();
    let scales = scale.as_f32().filter(|_| scale.dtype() != DType::F64);
    let scales = scales.ok_or_else(|| Error::unsupported(format!("scales of type {}", scale.dtype())))?;
    let zero = zero.map(ints).transpose()?;
    let data = host(&ints(x)?, &scales, scale.shape(), zero.as_ref().map(|z| z.data.as_slice()), op.axis)?;
    Ok(Tensor::floats(scale.dtype(), x.shape(), &data))
}

fn host(x: &IntArray, scale: &[f32], scale_shape: &[usize], zero: Option<&[i64]>, axis: i64) -> Result<Vec<f32>> {
    let shape = along(scale_shape, axis, &x.shape)?;
    if let Some(z) = zero.filter(|z| z.len() != scale.len()) {
        return Err(Error::malformed(format!("{} zero points for {} scales", z.len(), scale.len())));
    }
    // Elements behind one scale before the next one begins.
    let inner: usize = match shape.iter().rposition(|n| *n > 1) {
        Some(axis) => x.shape[axis + 1..].iter().product(),
        None => usize::MAX,
    };
    let one = |(i, v): (usize, &i64)| {
        let c = if scale.len() == 1 { 0 } else { i / inner % scale.len() };
        v.wrapping_sub(zero.map_or(0, |z| z[c])) as f32 * scale[c]
    };
    Ok(x.data.iter().enumerate().map(one).collect())
}
