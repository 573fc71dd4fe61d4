//! MatMul and Gemm.

use super::{Args, int_matmul, quantize::dequantize_constant};
use crate::burn::{
    host,
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        gemm::Gemm,
        matmul_nbits::MatMulNBits,
        quantize::{Dequantize, Grain},
    },
};

/// The product as numpy has it: operands of one axis are rows and columns, batches broadcast.
pub(super) fn matmul(mut a: Args) -> Result<Value> {
    if int_matmul::applies(&a) {
        return int_matmul::matmul(a);
    }
    product(a.float(0)?, a.float(1)?).map(Value::Float)
}

/// The product by a matrix of codes in blocks, in floats.
pub(super) fn by_bits(op: &MatMulNBits, mut a: Args) -> Result<Value> {
    let (x, packed, scales) = (a.float(0)?, a.take(1)?.download()?, a.take(2)?.download()?);
    let zeros = a.opt(3).map(Value::download).transpose()?;
    let b = op.blocks(&packed, &scales, zeros.as_ref());
    let b = b.ok_or_else(|| Error::malformed("codes, scales or zero points of other sizes or types"))?;
    let by_blocks = Dequantize { grain: Grain { axis: 0, block: op.block }, output: None };
    let b = dequantize_constant(&by_blocks, &b.codes, &b.scales, b.zeros.as_ref())?;
    let b = Float::upload(&b, a.device)?;
    product(x, b).map(Value::Float)
}

/// The product of what is on the device.
pub(super) fn product(x: Float, y: Float) -> Result<Float> {
    let (xs, ys) = (x.shape().to_vec(), y.shape().to_vec());
    let (Some(&k), Some(_)) = (xs.last(), ys.last()) else {
        return Err(Error::malformed("a product of scalars"));
    };
    if ys[ys.len().saturating_sub(2)] != k {
        return Err(Error::malformed(format!("the inner sizes of {xs:?} and {ys:?} differ")));
    }
    let mut out = host::broadcast(&xs[..xs.len().saturating_sub(2)], &ys[..ys.len().saturating_sub(2)])?;
    out.extend((xs.len() > 1).then(|| xs[xs.len() - 2]));
    out.extend((ys.len() > 1).then(|| ys[ys.len() - 1]));
    let y = if ys.len() == 1 { y.reshape(&[k, 1])? } else { y };
    let x = match xs.len() {
        1 => x.reshape(&[1, k])?,
        // All rows of all batches against one matrix are one product.
        _ if ys.len() <= 2 => x.reshape(&[xs[..xs.len() - 1].iter().product(), k])?,
        _ => x,
    };
    x.matmul(y)?.reshape(&out)
}

/// `alpha * A' * B' + beta * C`.
pub(super) fn gemm(op: &Gemm, mut a: Args) -> Result<Value> {
    if int_matmul::applies(&a) {
        return int_matmul::gemm(op, a);
    }
    let (x, y, c) = (a.float(0)?, a.float(1)?, a.opt_float(2)?);
    if x.shape().len() != 2 || y.shape().len() != 2 {
        return Err(Error::malformed(format!("operands of {:?} and {:?} should be matrices", x.shape(), y.shape())));
    }
    let turn = |m: Float, turned| if turned { m.permute(&[1, 0]) } else { m };
    let (x, y) = (turn(x, op.trans_a), turn(y, op.trans_b));
    if x.shape()[1] != y.shape()[0] {
        return Err(Error::malformed(format!("the inner sizes of {:?} and {:?} differ", x.shape(), y.shape())));
    }
    biased(op, x.matmul(y)?, c).map(Value::Float)
}

/// `alpha * product + beta * C`.
pub(super) fn biased(op: &Gemm, product: Float, c: Option<Float>) -> Result<Float> {
    let mut out = product;
    if op.alpha != 1.0 {
        out = out.mul_scalar(op.alpha);
    }
    let Some(mut c) = c.filter(|_| op.beta != 0.0) else { return Ok(out) };
    if host::broadcast(out.shape(), c.shape())? != out.shape() {
        return Err(Error::malformed(format!("C of {:?} does not broadcast to {:?}", c.shape(), out.shape())));
    }
    if op.beta != 1.0 {
        c = c.mul_scalar(op.beta);
    }
    out.add(c)
}
