//! Softmax and reductions.

use super::Args;
use crate::burn::{
    host::{self, IntArray, wrap},
    tensor::Value,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        reduce::{Reduce, ReduceKind},
        softmax::Softmax,
    },
    tensor::DType,
    value,
};

/// Softmax or its logarithm.
pub(super) fn softmax(op: &Softmax, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    let axis = value::axis(op.axis, x.shape().len())?;
    Ok(Value::Float(x.softmax(axis, op.log)))
}

/// ReduceMean and its kin.
pub(super) fn reduce(op: &Reduce, mut a: Args) -> Result<Value> {
    let axes = a.opt_ints(1)?;
    let x = a.take(0)?;
    let axes = op.axes(axes.as_deref().map(Vec::as_slice), x.shape().len())?;
    match x {
        Value::Float(x) if x.dtype().is_float() => x.reduce(op.kind, &axes, op.keepdims).map(Value::Float),
        other => ints(op, other.into_ints()?.computable()?, &axes).map(Value::Int),
    }
}

fn ints(op: &Reduce, x: IntArray, axes: &[usize]) -> Result<IntArray> {
    let dtype = x.dtype;
    let shape = host::reduced_shape(&x.shape, axes, op.keepdims);
    let unsigned = dtype == DType::U64;
    let (least, most) = if unsigned { (0, -1) } else { dtype.int_range().unwrap_or((i64::MIN, i64::MAX)) };
    let f: &dyn Fn(i64, i64) -> i64 = match op.kind {
        ReduceKind::Sum => &|p, q| p.wrapping_add(q),
        ReduceKind::Prod => &|p, q| p.wrapping_mul(q),
        ReduceKind::Max if unsigned => &|p, q| (p as u64).max(q as u64) as i64,
        ReduceKind::Min if unsigned => &|p, q| (p as u64).min(q as u64) as i64,
        ReduceKind::Max => &|p, q| p.max(q),
        ReduceKind::Min => &|p, q| p.min(q),
        ReduceKind::Mean => return Err(Error::unsupported(format!("ReduceMean of {dtype} values"))),
    };
    let kept: Vec<usize> = (0..x.shape.len()).filter(|i| !axes.contains(i)).collect();
    let count: usize = axes.iter().map(|i| x.shape[*i]).product();
    let rows: usize = kept.iter().map(|i| x.shape[*i]).product();
    let x = x.permute(&[&kept, axes].concat())?;
    let data = (0..rows).map(|r| {
        let row = &x.data[r * count..(r + 1) * count];
        match (row.iter().copied().reduce(f), op.kind) {
            (Some(v), _) => wrap(dtype, v),
            (None, ReduceKind::Sum) => 0,
            (None, ReduceKind::Prod) => 1,
            (None, ReduceKind::Max) => least,
            (None, ReduceKind::Min | ReduceKind::Mean) => most,
        }
    });
    Ok(IntArray::new(dtype, shape, data.collect()))
}
