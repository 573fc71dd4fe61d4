//! Products of quantised tensors. Whole numbers are exact in `f32` up to 24 bits, and in `f64` up
//! to 53: the narrower type is taken where no sum can leave it.

use super::{
    Args, conv,
    matmul::product,
    quantize::{numbers, saturated},
};
use crate::burn::{
    host::{self, IntArray, wrap},
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::integer::{Accumulator, IntegerConv, IntegerMatMul},
    tensor::DType,
};

/// A product's operands without their zero points.
struct Operands {
    x: Float,
    w: Float,
}

/// How a parameter of a vector broadcasts over its tensor, whose rank is given.
type Along = fn(&[usize], usize) -> Option<Vec<usize>>;

/// One for each filter, the first axis of a weight.
fn filters(shape: &[usize], rank: usize) -> Option<Vec<usize>> {
    let mut out = vec![1; rank];
    *out.first_mut()? = *shape.first()?;
    Some(out)
}

/// One for each row, the last axis but one of a matrix.
fn rows(shape: &[usize], rank: usize) -> Option<Vec<usize>> {
    (rank > 1).then(|| vec![shape[0], 1])
}

/// As the shape is: one for each column of a matrix.
fn columns(_: &[usize], _: usize) -> Option<Vec<usize>> {
    None
}

/// A parameter, broadcast as `along` has it where it is a vector.
fn parameter(a: &mut Args, slot: usize, rank: usize, along: Along) -> Result<Option<Float>> {
    let Some(v) = a.opt(slot) else { return Ok(None) };
    let p = numbers(v, a.device)?;
    let shape = match p.shape() {
        [1] => vec![],
        [n] => along(&[*n], rank).unwrap_or_else(|| vec![*n]),
        other => other.to_vec(),
    };
    p.reshape(&shape).map(Some)
}

/// `v` without its zero point. What has one by itself (floats of 8 bits) stays as it is.
fn centred(v: Value, zero: Option<Float>, a: &Args) -> Result<Float> {
    let x = v.into_device(a.device)?;
    let Some(zero) = zero.filter(|z| !z.dtype().is_float()) else { return Ok(x.with_dtype(DType::F32)) };
    if host::broadcast(x.shape(), zero.shape())? != x.shape() {
        return Err(Error::malformed(format!("zero points of {:?} for {:?}", zero.shape(), x.shape())));
    }
    x.with_dtype(DType::F32).sub(zero.with_dtype(DType::F32))
}

impl Operands {
    fn take(a: &mut Args, result: Accumulator, x_along: Along, w_along: Along) -> Result<Self> {
        let w_at = result.weight();
        let (x, w) = (a.take(0)?, a.take(w_at)?);
        let (x_rank, w_rank) = (x.shape().len(), w.shape().len());
        let (x_zero, w_zero) = match result {
            Accumulator::Kept => (2, 3),
            Accumulator::Scaled => (2, 5),
        };
        let zero = parameter(a, x_zero, x_rank, x_along)?;
        let x = centred(x, zero, a)?;
        let zero = parameter(a, w_zero, w_rank, w_along)?;
        let w = centred(w, zero, a)?;
        Ok(Self { x, w })
    }

    /// The operands in a type that holds every sum of `terms` products, `inner` elements of the
    /// weight lying between two terms.
    fn exact(mut self, terms: usize, inner: usize) -> Result<Self> {
        let largest = |data: &[f32]| Ok(data.iter().fold(0f64, |m, v| m.max(f64::from(v.abs()))));
        let x = self.x.view(largest)?;
        let sums = self.w.view(|data| {
            let mut most = 0f64;
            for matrix in data.chunks(terms.saturating_mul(inner).max(1)) {
                let mut sums = vec![0f64; inner];
                for row in matrix.chunks(inner.max(1)) {
                    sums.iter_mut().zip(row).for_each(|(s, v)| *s += f64::from(v.abs()));
                }
                most = sums.into_iter().fold(most, f64::max);
            }
            Ok(most)
        })?;
        if x * sums > f64::from(1 << 24) {
            (self.x, self.w) = (self.x.with_dtype(DType::F64), self.w.with_dtype(DType::F64));
        }
        Ok(self)
    }
}

/// The exact product as integers of 32 bits.
fn kept(product: Float) -> Result<Value> {
    let shape = product.shape().to_vec();
    let data = product.into_f64s()?.into_iter().map(|v| wrap(DType::I32, v as i64)).collect();
    Ok(Value::Int(IntArray::new(DType::I32, shape, data)))
}

/// The product scaled and quantised.
fn scaled(product: Float, scale: Float, zero: Value, a: &Args) -> Result<Value> {
    let shape = product.shape().to_vec();
    let y = product.mul(scale)?;
    let dtype = zero.dtype();
    let y = match numbers(zero, a.device)? {
        zero if dtype.is_float() => y.add(zero)?,
        zero => y.round().add(zero)?,
    };
    if y.shape() != shape {
        return Err(Error::malformed(format!("scales or a zero point that make {:?} of {shape:?}", y.shape())));
    }
    saturated(y, dtype, true, a.device).map(Value::Float)
}

/// ConvInteger and QLinearConv.
pub(super) fn convolve(op: &IntegerConv, mut a: Args) -> Result<Value> {
    let no: Along = |_, _| None;
    let w_shape = a.peek(op.result.weight()).map(|w| w.shape().to_vec()).unwrap_or_default();
    let o = Operands::take(&mut a, op.result, no, filters)?;
    let o = o.exact(w_shape.iter().skip(1).product(), 1)?;
    let rank = w_shape.len();
    // A shape that the convolution is about to refuse may have no second axis.
    let channels: Along = |shape, rank| {
        let mut out = vec![1; rank.max(2)];
        out[1] = *shape.first()?;
        Some(out)
    };
    if op.result == Accumulator::Kept {
        return kept(conv::convolve(&op.conv, o.x, o.w, None)?);
    }
    let bias = a.opt(8).map(|b| numbers(b, a.device)).transpose()?;
    let product = conv::convolve(&op.conv, o.x, o.w, bias)?;
    let scale = scales(&mut a, no, channels, rank)?;
    let zero = a.take(7)?;
    scaled(product, scale, zero, &a)
}

/// The scale of a product over that of its output.
fn scales(a: &mut Args, x_along: Along, w_along: Along, rank: usize) -> Result<Float> {
    let missing = || Error::malformed("a scale is missing");
    let x = parameter(a, 1, rank, x_along)?.ok_or_else(missing)?.with_dtype(DType::F32);
    let w = parameter(a, 4, rank, w_along)?.ok_or_else(missing)?.with_dtype(DType::F32);
    let y = parameter(a, 6, rank, x_along)?.ok_or_else(missing)?.with_dtype(DType::F32);
    x.mul(w)?.div(y)
}

/// MatMulInteger and QLinearMatMul.
pub(super) fn matmul(op: &IntegerMatMul, mut a: Args) -> Result<Value> {
    let o = Operands::take(&mut a, op.result, rows, columns)?;
    let (terms, inner) = match *o.w.shape() {
        [.., k, n] => (k, n),
        [k] => (k, 1),
        [] => (1, 1),
    };
    let rank = o.x.shape().len();
    let o = o.exact(terms, inner)?;
    let product = product(o.x, o.w)?;
    if op.result == Accumulator::Kept {
        return kept(product);
    }
    let scale = scales(&mut a, rows, columns, rank)?;
    let zero = a.take(7)?;
    scaled(product, scale, zero, &a)
}
