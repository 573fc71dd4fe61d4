//! MatMul and Gemm of integers, on the host; overflow wraps around.

use super::Args;
use crate::burn::{
    host::{self, IntArray, wrap},
    tensor::Value,
};
use compress_compiler::{
    error::{Error, Result},
    ops::gemm::Gemm,
};
use rayon::prelude::*;

/// Whether the operands of a product are integers.
pub(super) fn applies(a: &Args) -> bool {
    a.peek(0).is_some_and(|v| !v.dtype().is_float())
}

/// The product as numpy has it.
pub(super) fn matmul(mut a: Args) -> Result<Value> {
    let (x, y) = (a.take(0)?.into_ints()?, a.take(1)?.into_ints()?);
    if x.dtype != y.dtype {
        return Err(Error::malformed(format!("inputs of types {} and {}", x.dtype, y.dtype)));
    }
    product(x, y).map(Value::Int)
}

/// The product of two tensors, in the type of the first.
///
/// # Errors
/// Malformed when the shapes don't fit; limit when the result is too large.
pub(super) fn product(x: IntArray, y: IntArray) -> Result<IntArray> {
    let (xs, ys) = (x.shape.clone(), y.shape.clone());
    if xs.is_empty() || ys.is_empty() {
        return Err(Error::malformed("a product of scalars"));
    }
    // Operands of one axis are a row and a column.
    let matrix = |s: &[usize], row: bool| match s {
        [k] if row => vec![1, *k],
        [k] => vec![*k, 1],
        _ => s.to_vec(),
    };
    let (xm, ym) = (matrix(&xs, true), matrix(&ys, false));
    let (xb, yb) = (&xm[..xm.len() - 2], &ym[..ym.len() - 2]);
    let (m, k, n) = (xm[xm.len() - 2], xm[xm.len() - 1], ym[ym.len() - 1]);
    if ym[ym.len() - 2] != k {
        return Err(Error::malformed(format!("the inner sizes of {xs:?} and {ys:?} differ")));
    }
    let batch = host::broadcast(xb, yb)?;
    let x = x.reshape(&xm)?.expand(&[&batch[..], &[m, k]].concat())?;
    let y = y.reshape(&ym)?.expand(&[&batch[..], &[k, n]].concat())?;
    let mut data = vec![0i64; host::check_host(&[&batch[..], &[m, n]].concat())?];
    // A result without elements has no rows to cut.
    data.par_chunks_mut(n.max(1)).enumerate().for_each(|(row, out)| {
        let y = &y.data[row / m * k * n..][..k * n];
        for (p, y) in x.data[row * k..][..k].iter().zip(y.chunks_exact(n.max(1))) {
            for (out, q) in out.iter_mut().zip(y) {
                *out = out.wrapping_add(p.wrapping_mul(*q));
            }
        }
        for v in out {
            *v = wrap(x.dtype, *v);
        }
    });
    let mut shape = batch;
    shape.extend((xs.len() > 1).then_some(m));
    shape.extend((ys.len() > 1).then_some(n));
    Ok(IntArray::new(x.dtype, shape, data))
}

/// `alpha * A' * B' + beta * C`.
pub(super) fn gemm(op: &Gemm, mut a: Args) -> Result<Value> {
    let mut take = |slot: usize| a.take(slot)?.into_ints();
    let (x, y) = (take(0)?, take(1)?);
    let c = a.opt(2).map(Value::into_ints).transpose()?;
    if x.dtype != y.dtype || c.as_ref().is_some_and(|c| c.dtype != x.dtype) {
        return Err(Error::malformed("inputs of different types"));
    }
    if x.shape.len() != 2 || y.shape.len() != 2 {
        return Err(Error::malformed(format!("operands of {:?} and {:?} should be matrices", x.shape, y.shape)));
    }
    let turn = |m: IntArray, turned| if turned { m.permute(&[1, 0]) } else { Ok(m) };
    let out = product(turn(x, op.trans_a)?, turn(y, op.trans_b)?)?;
    let scaled = |v: i64, by: f32| if by == 1.0 { v } else { (v as f64 * f64::from(by)) as i64 };
    let (dtype, shape) = (out.dtype, out.shape.clone());
    let data = match c.filter(|_| op.beta != 0.0) {
        None => out.data.iter().map(|v| wrap(dtype, scaled(*v, op.alpha))).collect(),
        Some(c) => {
            let c = c.expand(&shape)?;
            let sum = |(v, c): (&i64, &i64)| wrap(dtype, scaled(*v, op.alpha).wrapping_add(scaled(*c, op.beta)));
            out.data.iter().zip(c.data.iter()).map(sum).collect()
        }
    };
    Ok(Value::Int(IntArray::new(dtype, shape, data)))
}
