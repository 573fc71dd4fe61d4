//! QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear. Quantised activations are whole
//! numbers held as `f32` on the device, which is exact up to 24 bits.

use super::Args;
use crate::{
    burn::tensor::{Float, Value},
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    narrow::{RoundMode, decode, encode, is_narrow},
    op::Op,
    ops::quantize::{Dequantize, Grain, Quantize},
    tensor::{DType, Tensor},
    value,
};
use compress_kernels::{self as kernels, Isa, Rows};

/// Numbers on the device, integers of up to 32 bits among them: those of more than 16 as `f64`,
/// which holds them exactly.
pub(super) fn numbers(v: Value, device: &Device) -> Result<Float> {
    match v {
        Value::Int(a) if matches!(a.dtype, DType::I32 | DType::U32) => {
            Float::from_f64s(a.data.iter().map(|v| *v as f64).collect(), &a.shape, DType::F64, device)
        }
        other => other.into_device(device),
    }
}

/// Whether there is one parameter for all elements.
fn is_one(p: &Float) -> bool {
    p.elements() == 1 && p.shape().len() <= 1
}

/// Parameters as they broadcast over data of `shape`.
fn spread(p: Float, grain: Grain, shape: &[usize]) -> Result<Float> {
    if is_one(&p) {
        return Ok(p);
    }
    let axis = value::axis(grain.axis, shape.len())?;
    let mut expected = shape.to_vec();
    if grain.block == 0 {
        expected = vec![shape[axis]];
    } else {
        expected[axis] = shape[axis].div_ceil(grain.block as usize);
    }
    if p.shape() != expected {
        let (block, p) = (grain.block, p.shape());
        return Err(Error::malformed(format!(
            "scales or zero points of {p:?} along axis {axis} of {shape:?}, in blocks of {block}"
        )));
    }
    if grain.block == 0 {
        let mut along = vec![1; shape.len()];
        along[axis] = shape[axis];
        return p.reshape(&along);
    }
    p.select(axis, (0..shape[axis] as i64).map(|i| i / grain.block).collect())
}

/// The type of the zero points of `scale`, and themselves unless all are 0.
fn zero_point(a: &mut Args, scale: &Float, grain: Grain, shape: &[usize]) -> Result<(Option<DType>, Option<Float>)> {
    let Some(zero) = a.opt(2) else { return Ok((None, None)) };
    let dtype = zero.dtype();
    let (zeros, scales): (usize, _) = (zero.shape().iter().product(), scale.elements());
    if zeros != scales {
        return Err(Error::malformed(format!("{zeros} zero points for {scales} scales")));
    }
    // Weights are mostly quantised around 0, where nothing needs to be done.
    if matches!(&zero, Value::Int(z) if z.data.iter().all(|v| *v == 0)) {
        return Ok((Some(dtype), None));
    }
    let zero = numbers(zero, a.device)?;
    Ok((Some(dtype), Some(spread(zero, grain, shape)?)))
}

/// `x` by a scalar or tensor `y`.
fn by(x: Float, y: Float, one: fn(Float, f64) -> Float, all: fn(Float, Float) -> Result<Float>) -> Result<Float> {
    if is_one(&y) && !y.is_tracked() { Ok(one(x, y.scalar()?)) } else { all(x, y) }
}

/// Codes of `x`, of the zero point's type or of `dtype`, or (`back`) what they stand for, where a kernel of ours can do it
/// on the tape.
fn on_tape(a: &Args, x: &Float, scale: &Float, grain: Grain, dtype: DType, back: bool) -> Result<Option<Float>> {
    // Quotients of narrow scales are rounded to their type, which the kernel does not do.
    if !(x.is_tracked() || scale.is_tracked()) || scale.dtype() != DType::F32 {
        return Ok(None);
    }
    let blocks = match grain.block {
        0 => None,
        block => match Blocks::of(x.shape(), scale.shape(), grain.axis, block as usize)? {
            Some(blocks) => Some(blocks),
            None => return Ok(None),
        },
    };
    let (dtype, zero) = match a.peek(2) {
        Some(Value::Int(zero)) => {
            let zero = match &blocks {
                Some(blocks) => zero.clone().permute(&blocks.order)?,
                None => zero.clone(),
            };
            (zero.dtype, zero.data.iter().map(|v| *v as f32).collect())
        }
        Some(Value::Float(zero)) if blocks.is_none() => (zero.dtype(), zero.view(|v| Ok(v.to_vec()))?),
        Some(Value::Float(_)) => return Ok(None),
        None => (dtype, vec![0.0; scale.elements()]),
    };
    let Some((low, high)) = dtype.int_range().filter(|_| dtype.bits() <= 16) else { return Ok(None) };
    let range = (low as f32, high as f32);
    let y = match blocks {
        Some(blocks) => {
            let [rows, scales] = blocks.rows(x, scale)?;
            rows.quantised(&scales, 0, zero, range, back).map(|y| blocks.undone(y)).transpose()?
        }
        None => {
            let axis = if scale.elements() == 1 { 0 } else { value::axis(grain.axis, x.shape().len())? };
            x.quantised(scale, axis, zero, range, back)
        }
    };
    Ok(y.map(|y| if back { y } else { y.with_dtype(dtype) }))
}

/// Blocks along an axis as rows of a matrix, of which each has a scale.
struct Blocks {
    /// The axes, that of the blocks last.
    order: Vec<usize>,
    /// Sizes in this order.
    shape: Vec<usize>,
    block: usize,
}

impl Blocks {
    /// Those of data of `shape`; `None` where the last block is shorter, or scales are not one a block.
    fn of(shape: &[usize], scales: &[usize], axis: i64, block: usize) -> Result<Option<Self>> {
        let axis = value::axis(axis, shape.len())?;
        let mut expected = shape.to_vec();
        expected[axis] = shape[axis] / block.max(1);
        let fits = shape[axis].is_multiple_of(block.max(1)) && scales == expected && !shape.contains(&0);
        let order: Vec<usize> = (0..shape.len()).filter(|i| *i != axis).chain([axis]).collect();
        let shape = order.iter().map(|axis| shape[*axis]).collect();
        Ok(fits.then_some(Self { order, shape, block }))
    }

    /// The data and their scales.
    fn rows(&self, x: &Float, scale: &Float) -> Result<[Float; 2]> {
        let count = scale.elements();
        let x = x.clone().permute(&self.order).reshape(&[count, self.block])?;
        Ok([x, scale.clone().permute(&self.order).reshape(&[count])?])
    }

    /// What was made of the data, in their shape.
    fn undone(&self, y: Float) -> Result<Float> {
        let mut back = vec![0; self.order.len()];
        self.order.iter().enumerate().for_each(|(at, axis)| back[*axis] = at);
        Ok(y.reshape(&self.shape)?.permute(&back))
    }
}

/// Whole or fractional numbers as the nearest that `dtype` has.
pub(super) fn saturated(y: Float, dtype: DType, saturate: bool, device: &Device) -> Result<Float> {
    if is_narrow(dtype) {
        let shape = y.shape().to_vec();
        let nearest = |v: f64| decode(dtype, encode(dtype, v, saturate, RoundMode::Up));
        let data = y.into_f64s()?.into_iter().map(nearest).collect();
        return Ok(Float::from_vec(data, &shape, device)?.with_dtype(dtype));
    }
    match dtype.int_range().filter(|_| dtype != DType::Bool && dtype.bits() <= 16) {
        Some((low, high)) => Ok(y.clamp_min(low as f64).clamp_max(high as f64).with_dtype(dtype)),
        None => Err(Error::unsupported(format!("quantising to {dtype}"))),
    }
}

/// `saturate(round_half_even(x / scale) + zero_point)`. In training its gradient is that of what is not
/// rounded, and 0 where it saturates; with DequantizeLinear's this is "learned step size quantisation"
/// (Esser et al. 2020).
pub(super) fn quantize(op: &Quantize, mut a: Args) -> Result<Value> {
    let (x, scale) = (numbers(a.take(0)?, a.device)?, numbers(a.take(1)?, a.device)?);
    if op.precision.is_none()
        && let Some(y) = on_tape(&a, &x, &scale, op.grain, op.output.unwrap_or(DType::U8), false)?
    {
        return Ok(Value::Float(y));
    }
    let (typed, zero) = zero_point(&mut a, &scale, op.grain, x.shape())?;
    let dtype = typed.or(op.output).unwrap_or(DType::U8);
    // Where both are narrow, so is their quotient.
    let same = x.dtype() == scale.dtype();
    let precision = op.precision.or(same.then(|| scale.dtype())).filter(|d| matches!(d, DType::F16 | DType::BF16));
    let scale = spread(scale, op.grain, x.shape())?;
    let mut y = by(x, scale, Float::div_scalar, Float::div)?;
    if let Some(precision) = precision {
        y = y.rounded_to(precision);
    }
    if !is_narrow(dtype) {
        y = y.round_through()?;
    }
    y = match zero {
        Some(zero) => by(y, zero, Float::add_scalar, Float::add)?,
        // An integer has no -0.0, which rounding leaves of small negative numbers.
        None if !is_narrow(dtype) => y.add_scalar(0.0),
        None => y,
    };
    saturated(y, dtype, op.saturate, a.device).map(Value::Float)
}

/// `(x - zero_point) * scale`.
pub(super) fn dequantize(op: &Dequantize, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    if matches!(x.dtype(), DType::F32 | DType::F64 | DType::F16 | DType::BF16) {
        return Err(Error::malformed(format!("DequantizeLinear of {} values", x.dtype())));
    }
    let (mut x, scale) = (numbers(x, a.device)?, a.float(1)?);
    let dtype = op.output.unwrap_or(scale.dtype());
    if let Some(y) = on_tape(&a, &x, &scale, op.grain, x.dtype(), true)? {
        return Ok(Value::Float(y.with_dtype(dtype)));
    }
    let (_, zero) = zero_point(&mut a, &scale, op.grain, x.shape())?;
    if let Some(zero) = zero {
        x = by(x, zero, Float::sub_scalar, Float::sub)?;
    }
    let scale = spread(scale, op.grain, x.shape())?;
    let y = by(x.with_dtype(DType::F32), scale, Float::mul_scalar, Float::mul)?;
    Ok(Value::Float(y.with_dtype(dtype)))
}

/// DequantizeLinear of constants, done once when a model is loaded.
///
/// # Errors
/// Malformed when the shapes or types don't fit.
pub(crate) fn dequantize_constant(
    op: &Dequantize,
    x: &Tensor,
    scale: &Tensor,
    zero: Option<&Tensor>,
) -> Result<Tensor> {
    let device = Device::cpu();
    let value = |t: &Tensor| Value::upload(t, &device);
    let values = vec![Some(value(x)?), Some(value(scale)?), zero.map(value).transpose()?];
    let mut made = super::eval(&Op::Dequantize(op.clone()), Args::new(values, &device))?;
    made.pop().ok_or_else(|| Error::bug("DequantizeLinear made nothing"))?.download()
}

/// The scale and the zero point of all of `x`, as DynamicQuantizeLinear has them.
pub(super) fn own_range(x: &Float) -> Result<(f32, f32)> {
    x.view(|data| Ok(kernels::own_range(Isa::detect(), Rows::dense(data, 1, data.len()), 1)))
}

/// Quantises to U8 with the range of the data, in which 0 always is.
pub(super) fn dynamic(mut a: Args) -> Result<Vec<Value>> {
    let x = a.float(0)?;
    let (scale, zero) = own_range(&x)?;
    let y = saturated(x.div_scalar(scale).round().add_scalar(zero), DType::U8, true, a.device)?;
    let scale = Float::from_vec(vec![scale], &[], a.device)?;
    let zero = Float::from_vec(vec![zero], &[], a.device)?.with_dtype(DType::U8);
    Ok([y, scale, zero].map(Value::Float).into())
}
