//! ScatterElements, ScatterND and TensorScatter.

use super::{
    Args,
    index::{entries, from_front, joined, places},
    numbers::{Host, Numbers},
};
use crate::{
    burn::{
        host::{self, check_host},
        tensor::{Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::scatter::{Reduction, ScatterElements, ScatterNd, TensorScatter},
    tensor::DType,
    value,
};

/// `x` as rows of `width` elements, where row `places[n]` met row `n` of `updates`.
fn scatter(x: Value, updates: Value, places: &[usize], width: usize, how: Reduction, device: &Device) -> Result<Value> {
    if updates.dtype() != x.dtype() {
        return Err(Error::malformed(format!("updates of {} for {}", updates.dtype(), x.dtype())));
    }
    if places.is_empty() || width == 0 {
        return Ok(x);
    }
    let shape = x.shape().to_vec();
    if how == Reduction::Replace {
        // Rows of the tensor, then rows of the updates: the result picks from both.
        let rows = check_host(&[check_size(&shape)? / width])?;
        let mut from: Vec<i64> = (0..rows as i64).collect();
        for (n, row) in places.iter().enumerate() {
            from[*row] = (rows + n) as i64;
        }
        let all = joined(x.reshape(&[rows, width])?, updates.reshape(&[places.len(), width])?, device)?;
        return entries(all, 0, from)?.reshape(&shape);
    }
    let (mut x, updates) = (Host::of(x)?, Host::of(updates)?);
    let pairs =
        places.iter().enumerate().flat_map(|(n, row)| (0..width).map(move |i| (row * width + i, n * width + i)));
    match (&mut x.data, updates.data) {
        (Numbers::Floats(x), Numbers::Floats(u)) => {
            let f: fn(f64, f64) -> f64 = match how {
                Reduction::Add => |a, b| a + b,
                Reduction::Mul => |a, b| a * b,
                // NaN wins.
                Reduction::Max => |a, b| if b > a || b.is_nan() { b } else { a },
                Reduction::Min => |a, b| if b < a || b.is_nan() { b } else { a },
                Reduction::Replace => |_, b| b,
            };
            pairs.for_each(|(to, from)| x[to] = f(x[to], u[from]));
        }
        (Numbers::Ints(data), Numbers::Ints(u)) => {
            let unsigned = x.dtype == DType::U64;
            let less = |a: i64, b: i64| if unsigned { (a as u64) < b as u64 } else { a < b };
            let f = |a: i64, b: i64| match how {
                Reduction::Add => host::wrap(x.dtype, a.wrapping_add(b)),
                Reduction::Mul => host::wrap(x.dtype, a.wrapping_mul(b)),
                Reduction::Max => {
                    if less(a, b) {
                        b
                    } else {
                        a
                    }
                }
                Reduction::Min => {
                    if less(b, a) {
                        b
                    } else {
                        a
                    }
                }
                Reduction::Replace => b,
            };
            pairs.for_each(|(to, from)| data[to] = f(data[to], u[from]));
        }
        _ => return Err(Error::bug("values of one type are held in two ways")),
    }
    x.into_value(device)
}

/// A copy of input 0 in which the slices that indices address met the updates.
pub(super) fn scatter_nd(op: &ScatterNd, mut a: Args) -> Result<Value> {
    let (x, at, updates) = (a.take(0)?, a.take(1)?.into_ints()?, a.take(2)?);
    let shape = x.shape().to_vec();
    let depth = at.shape.last().copied().unwrap_or(0);
    if at.shape.is_empty() || depth == 0 || depth > shape.len() {
        return Err(Error::malformed(format!("indices of {:?} into a tensor of {shape:?}", at.shape)));
    }
    let expected = [&at.shape[..at.shape.len() - 1], &shape[depth..]].concat();
    if updates.shape() != expected {
        return Err(Error::malformed(format!("updates of {:?}, where {expected:?} is expected", updates.shape())));
    }
    let strides = host::strides(&shape[..depth]);
    let row = |index: &[i64]| -> Result<usize> {
        let parts = index.iter().zip(&shape).zip(&strides);
        parts.map(|((i, n), stride)| Ok(from_front(*i, *n)? as usize * *stride as usize)).sum()
    };
    let rows = at.data.chunks_exact(depth).map(row).collect::<Result<Vec<_>>>()?;
    scatter(x, updates, &rows, shape[depth..].iter().product(), op.reduction, a.device)
}

/// A copy of input 0 in which single elements met the updates.
pub(super) fn scatter_elements(op: &ScatterElements, mut a: Args) -> Result<Value> {
    let (x, at, updates) = (a.take(0)?, a.take(1)?.into_ints()?, a.take(2)?);
    let axis = value::axis(op.axis, x.shape().len())?;
    if at.shape != updates.shape() {
        return Err(Error::malformed(format!("indices of {:?} for updates of {:?}", at.shape, updates.shape())));
    }
    let places = places(x.shape(), axis, &at)?.into_iter().map(|p| p as usize).collect::<Vec<_>>();
    scatter(x, updates, &places, 1, op.reduction, a.device)
}

/// A cache into which new entries are written.
pub(super) fn tensor_scatter(op: &TensorScatter, mut a: Args) -> Result<Value> {
    let (x, updates, starts) = (a.take(0)?, a.take(1)?, a.opt_ints(2)?);
    let (shape, new) = (x.shape().to_vec(), updates.shape().to_vec());
    let axis = value::axis(op.axis, shape.len())?;
    let fits = new.len() == shape.len()
        && (0..shape.len()).all(|i| if i == axis { new[i] <= shape[i] } else { new[i] == shape[i] });
    if axis == 0 || !fits || starts.as_ref().is_some_and(|s| s.len() != shape[0]) {
        return Err(Error::malformed(format!("updates of {new:?} along axis {axis} of a cache of {shape:?}")));
    }
    let (room, count) = (shape[axis], new[axis]);
    let (prefixes, samples): (usize, usize) = (shape[..axis].iter().product(), shape[1..axis].iter().product());
    let mut rows = Vec::with_capacity(check_host(&[prefixes, count])?);
    for prefix in 0..prefixes {
        let start = starts.as_ref().map_or(0, |s| s[prefix / samples]);
        for i in 0..count as i64 {
            let at = start.saturating_add(i);
            let at = if op.circular { at.rem_euclid(room as i64) } else { at };
            if !(0..room as i64).contains(&at) {
                return Err(Error::malformed(format!("entry {at} of a cache of {room}")));
            }
            rows.push(prefix * room + at as usize);
        }
    }
    scatter(x, updates, &rows, shape[axis + 1..].iter().product(), Reduction::Replace, a.device)
}
