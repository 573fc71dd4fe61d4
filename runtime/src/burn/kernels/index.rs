//! Gather, ScatterND and Where.

use super::{Args, empty_value, movement::relayout};
use crate::burn::{
    host::{self, IntArray},
    tensor::{Float, Value, check_size},
};
use compress_compiler::{
    error::{Error, Result},
    ops::gather::Gather,
    value,
};

/// The entries `indices` of `x` along `axis`, in range or an error.
pub(super) fn entries(x: Value, axis: usize, indices: Vec<i64>) -> Result<Value> {
    Ok(match x {
        Value::Int(a) => Value::Int(a.select(axis, &indices)?),
        Value::Float(f) => Value::Float(match indices[..] {
            // One entry is a slice, which needs no copy.
            [i] if (0..f.shape()[axis] as i64).contains(&i) => f.slice(axis, i as usize, 1, 1)?,
            _ => f.select(axis, indices)?,
        }),
    })
}

/// `index`, counted from the front.
fn from_front(index: i64, size: usize) -> Result<i64> {
    let at = if index < 0 { index + size as i64 } else { index };
    if (0..size as i64).contains(&at) {
        return Ok(at);
    }
    Err(Error::malformed(format!("index {index} is out of range for an axis of {size}")))
}

/// The entries that input 1 lists.
pub(super) fn gather(op: &Gather, mut a: Args) -> Result<Value> {
    let (x, at) = (a.take(0)?, a.take(1)?.into_ints()?.computable()?);
    let axis = value::axis(op.axis, x.shape().len())?;
    let size = x.shape()[axis];
    let shape = [&x.shape()[..axis], &at.shape, &x.shape()[axis + 1..]].concat();
    check_size(&shape)?;
    if shape.contains(&0) {
        return empty_value(x.dtype(), &shape, a.device);
    }
    let indices = at.data.iter().map(|i| from_front(*i, size)).collect::<Result<_>>()?;
    relayout(entries(x, axis, indices)?, &shape)
}

/// A copy of input 0 with some slices replaced.
pub(super) fn scatter_nd(mut a: Args) -> Result<Value> {
    let (x, at, updates) = (a.take(0)?, a.take(1)?.into_ints()?.computable()?, a.take(2)?);
    let shape = x.shape().to_vec();
    let depth = at.shape.last().copied().unwrap_or(0);
    if at.shape.is_empty() || depth == 0 || depth > shape.len() {
        return Err(Error::malformed(format!("indices of {:?} into a tensor of {shape:?}", at.shape)));
    }
    let expected = [&at.shape[..at.shape.len() - 1], &shape[depth..]].concat();
    if updates.shape() != expected || updates.dtype() != x.dtype() {
        return Err(Error::malformed(format!(
            "updates are {}{:?}, where {}{expected:?} is expected",
            updates.dtype(),
            updates.shape(),
            x.dtype()
        )));
    }
    // Rows of the tensor, then rows of the updates: the result picks from both.
    let rows: usize = shape[..depth].iter().product();
    let width: usize = shape[depth..].iter().product();
    let strides = host::strides(&shape[..depth]);
    let mut from: Vec<i64> = (0..rows as i64).collect();
    for (n, index) in at.data.chunks_exact(depth).enumerate() {
        let mut row = 0;
        for (i, v) in index.iter().enumerate() {
            row += from_front(*v, shape[i])? as usize * strides[i] as usize;
        }
        from[row] = (rows + n) as i64;
    }
    let count = at.data.len() / depth;
    if count == 0 || width == 0 {
        return Ok(x);
    }
    let parts = (relayout(x, &[rows, width])?, relayout(updates, &[count, width])?);
    let all = match parts {
        (Value::Int(x), Value::Int(u)) => Value::Int(IntArray::cat(&[x, u], 0)?),
        (x, u) => Value::Float(Float::cat(vec![x.into_device(a.device)?, u.into_device(a.device)?], 0)?),
    };
    relayout(entries(all, 0, from)?, &shape)
}

/// `condition ? x : y`.
pub(super) fn select(mut a: Args) -> Result<Value> {
    let condition = a.take(0)?.into_ints()?.computable()?;
    let (x, y) = (a.take(1)?, a.take(2)?);
    if x.dtype() != y.dtype() {
        return Err(Error::malformed(format!("inputs of types {} and {}", x.dtype(), y.dtype())));
    }
    if let (Value::Int(x), Value::Int(y)) = (&x, &y) {
        let shape = host::broadcast(&host::broadcast(&x.shape, &y.shape)?, &condition.shape)?;
        let (x, y, c) = (x.clone().expand(&shape)?, y.clone().expand(&shape)?, condition.expand(&shape)?);
        let pick = |((c, x), y): ((&i64, &i64), &i64)| if *c != 0 { *x } else { *y };
        let data = c.data.iter().zip(x.data.iter()).zip(y.data.iter()).map(pick).collect();
        return Ok(Value::Int(IntArray::new(x.dtype, shape, data)));
    }
    x.into_device(a.device)?.select_where(&condition, y.into_device(a.device)?).map(Value::Float)
}
