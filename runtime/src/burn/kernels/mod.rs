//! What each operator computes: one file a family, and the one match that finds it.

mod binary;
mod cast;
mod conv;
mod elementwise;
mod empty;
mod fill;
mod index;
mod matmul;
mod movement;
mod norm;
mod pool;
mod quantize;
mod reduce;
mod resize;

pub(super) use quantize::dequantize_constant;

use super::tensor::{Float, Value};
use crate::device::Device;
use compress_compiler::{
    error::{Error, Result},
    op::{Op, Operator},
    tensor::DType,
};
use std::sync::Arc;

/// An operator's inputs by slot. Taken out rather than borrowed: a value nobody else holds
/// is overwritten in place by Burn.
pub struct Args<'a> {
    values: Vec<Option<Value>>,
    /// Where new values go.
    pub device: &'a Device,
}

impl<'a> Args<'a> {
    /// Inputs by slot.
    pub fn new(values: Vec<Option<Value>>, device: &'a Device) -> Self {
        Self { values, device }
    }

    /// Looks at the input at `slot`.
    pub fn peek(&self, slot: usize) -> Option<&Value> {
        self.values.get(slot)?.as_ref()
    }

    /// Takes the input at `slot`, if present.
    pub fn opt(&mut self, slot: usize) -> Option<Value> {
        self.values.get_mut(slot)?.take()
    }

    /// Takes the input at `slot`.
    ///
    /// # Errors
    /// Malformed when it is absent.
    pub fn take(&mut self, slot: usize) -> Result<Value> {
        self.opt(slot).ok_or_else(|| Error::malformed(format!("input {slot} is missing")))
    }

    /// Takes a floating-point input.
    ///
    /// # Errors
    /// Malformed when absent, unsupported when of another type.
    pub fn float(&mut self, slot: usize) -> Result<Float> {
        as_float(self.take(slot)?)
    }

    /// Takes a floating-point input, if present.
    ///
    /// # Errors
    /// Unsupported when of another type.
    pub fn opt_float(&mut self, slot: usize) -> Result<Option<Float>> {
        self.opt(slot).map(as_float).transpose()
    }

    /// Takes the elements of an integer input.
    ///
    /// # Errors
    /// Malformed when absent or of another type.
    pub fn ints(&mut self, slot: usize) -> Result<Arc<Vec<i64>>> {
        Ok(self.take(slot)?.into_ints()?.computable()?.data)
    }

    /// Takes the elements of an integer input, if present.
    ///
    /// # Errors
    /// Malformed when of another type.
    pub fn opt_ints(&mut self, slot: usize) -> Result<Option<Arc<Vec<i64>>>> {
        if self.peek(slot).is_some() { self.ints(slot).map(Some) } else { Ok(None) }
    }
}

fn as_float(v: Value) -> Result<Float> {
    match v {
        Value::Float(f) if f.dtype().is_float() => Ok(f),
        v => Err(Error::unsupported(format!("this operator on {} values", v.dtype()))),
    }
}

/// Runs `op`. As many values come back as the operator makes.
///
/// # Errors
/// Unsupported where there is no kernel, malformed when the inputs break the specification,
/// limit when a result would be too large.
pub fn eval(op: &Op, mut a: Args) -> Result<Vec<Value>> {
    if !op.arity().contains(&a.values.len()) {
        return Err(Error::malformed(format!("{} does not take {} inputs", op.op_type(), a.values.len())));
    }
    // Burn's kernels don't all accept tensors without elements. To Resize they are lists that
    // are not given.
    let data = if let Op::Resize(_) = op { 1 } else { a.values.len() };
    if a.values[..data].iter().flatten().any(|v| v.shape().contains(&0) && matches!(v, Value::Float(_))) {
        return empty::eval(op, a);
    }
    let one = match op {
        Op::Input(_) | Op::Constant(_) => return Err(Error::bug("a source has nothing to compute")),
        Op::Opaque(o) => return Err(Error::unsupported(o.reason.clone())),
        Op::Conv(op) => conv::conv(op, a)?,
        Op::ConvTranspose(op) => conv::conv_transpose(op, a)?,
        Op::Pool(op) => pool::pool(op, a)?,
        Op::GlobalPool(op) => pool::global(op, a)?,
        Op::BatchNorm(op) => norm::batch(op, a)?,
        Op::LayerNorm(op) => norm::layer(op, a)?,
        Op::Gemm(op) => matmul::gemm(op, a)?,
        Op::MatMul(_) => matmul::matmul(a)?,
        Op::Unary(op) => elementwise::unary(*op, a)?,
        Op::Activation(op) => elementwise::activation(op, a)?,
        Op::Binary(op) => binary::binary(*op, a)?,
        Op::Clip(_) => elementwise::clip(a)?,
        Op::Softmax(op) => reduce::softmax(op, a)?,
        Op::Reduce(op) => reduce::reduce(op, a)?,
        Op::Identity(_) | Op::Dropout(_) => a.take(0)?,
        Op::Cast(op) => cast::cast(op.to, a)?,
        Op::Where(_) => index::select(a)?,
        Op::Reshape(op) => movement::reshape(op, a)?,
        Op::Flatten(op) => movement::flatten(op, a)?,
        Op::Squeeze(_) => movement::squeeze(a)?,
        Op::Unsqueeze(_) => movement::unsqueeze(a)?,
        Op::Transpose(op) => movement::transpose(op, a)?,
        Op::Concat(op) => movement::concat(op, a)?,
        Op::Split(op) => return movement::split(op, a),
        Op::Slice(_) => movement::slice(a)?,
        Op::Gather(op) => index::gather(op, a)?,
        Op::ScatterNd(_) => index::scatter_nd(a)?,
        Op::Pad(op) => fill::pad(op, a)?,
        Op::Expand(_) => fill::expand(a)?,
        Op::ConstantOfShape(op) => fill::constant_of_shape(op, a)?,
        Op::Range(_) => fill::range(a)?,
        Op::Resize(op) => resize::resize(op, a)?,
        Op::Shape(op) => fill::shape(op, a)?,
        Op::Quantize(op) => quantize::quantize(op, a)?,
        Op::Dequantize(op) => quantize::dequantize(op, a)?,
    };
    Ok(vec![one])
}

/// A value without elements.
fn empty_value(dtype: DType, shape: &[usize], device: &Device) -> Result<Value> {
    let floats = matches!(dtype, DType::F32 | DType::F16 | DType::BF16);
    Ok(if floats {
        Value::Float(Float::from_vec(vec![], shape, device)?.with_dtype(dtype))
    } else {
        Value::Int(super::host::IntArray::new(dtype, shape.to_vec(), vec![]))
    })
}
