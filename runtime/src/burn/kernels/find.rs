//! NonZero, Compress, Unique and TopK.

use super::{
    Args, empty_value,
    index::{entries, permute, pick},
    numbers::{Host, Numbers, whole},
};
use crate::burn::{
    host::{IntArray, check_host},
    tensor::Value,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        find::{Compress, Unique},
        top_k::TopK,
    },
    tensor::DType,
    value,
};
use std::cmp::Reverse;

fn list(data: Vec<i64>) -> Value {
    Value::Int(IntArray::new(DType::I64, vec![data.len()], data))
}

/// The coordinates of what is not zero.
pub(super) fn non_zero(mut a: Args) -> Result<Value> {
    let x = Host::of(a.take(0)?.detached())?;
    let found: Vec<usize> = match &x.data {
        Numbers::Floats(data) => (0..data.len()).filter(|i| data[*i] != 0.0).collect(),
        Numbers::Ints(data) => (0..data.len()).filter(|i| data[*i] != 0).collect(),
    };
    let shape = vec![x.shape.len(), found.len()];
    let mut out = Vec::with_capacity(check_host(&shape)?);
    for axis in 0..x.shape.len() {
        let after: usize = x.shape[axis + 1..].iter().product();
        out.extend(found.iter().map(|at| (at / after % x.shape[axis]) as i64));
    }
    Ok(Value::Int(IntArray::new(DType::I64, shape, out)))
}

/// The entries for which a condition holds.
pub(super) fn compress(op: &Compress, mut a: Args) -> Result<Value> {
    let (x, condition) = (a.take(0)?, a.ints(1)?);
    let (x, axis) = match op.axis {
        Some(axis) => {
            let axis = value::axis(axis, x.shape().len())?;
            (x, axis)
        }
        None => {
            let n = x.shape().iter().product();
            (x.reshape(&[n])?, 0)
        }
    };
    let found: Vec<i64> = (0..condition.len()).filter(|i| condition[*i] != 0).map(|i| i as i64).collect();
    some(x, axis, found, a.device)
}

/// The entries `found` along `axis`, perhaps none.
fn some(x: Value, axis: usize, found: Vec<i64>, device: &crate::device::Device) -> Result<Value> {
    let mut shape = x.shape().to_vec();
    let size = shape[axis] as i64;
    if let Some(i) = found.iter().find(|i| !(0..size).contains(i)) {
        return Err(Error::malformed(format!("entry {i} of an axis of {size}")));
    }
    shape[axis] = found.len();
    if shape.contains(&0) { empty_value(x.dtype(), &shape, device) } else { entries(x, axis, found) }
}

/// The different elements or slices.
pub(super) fn unique(op: &Unique, mut a: Args) -> Result<Vec<Value>> {
    let x = a.take(0)?;
    let (x, axis) = match op.axis {
        Some(axis) => {
            let axis = value::axis(axis, x.shape().len())?;
            (x, axis)
        }
        None => {
            let n = x.shape().iter().product();
            (x.reshape(&[n])?, 0)
        }
    };
    let count = x.shape()[axis];
    let order: Vec<usize> = std::iter::once(axis).chain((0..x.shape().len()).filter(|i| *i != axis)).collect();
    let whole: usize = x.shape().iter().product();
    let keys = if whole == 0 { vec![] } else { Host::of(permute(x.clone().detached(), &order)?)?.into_keys() };
    let width = whole / count.max(1);
    let row = |i: usize| &keys[i * width..(i + 1) * width];
    let mut rows: Vec<usize> = (0..count).collect();
    rows.sort_by(|i, j| row(*i).cmp(row(*j)));
    // Equal rows follow each other, in their order: the first of them comes first.
    let mut groups: Vec<Vec<usize>> = vec![];
    for i in rows {
        match groups.last_mut() {
            Some(g) if row(g[0]) == row(i) => g.push(i),
            _ => groups.push(vec![i]),
        }
    }
    if !op.sorted {
        groups.sort_by_key(|g| g[0]);
    }
    let mut inverse = vec![0; count];
    for (n, group) in groups.iter().enumerate() {
        group.iter().for_each(|i| inverse[*i] = n as i64);
    }
    let first: Vec<i64> = groups.iter().map(|g| g[0] as i64).collect();
    let counts = groups.iter().map(|g| g.len() as i64).collect();
    Ok(vec![some(x, axis, first.clone(), a.device)?, list(first), list(inverse), list(counts)])
}

/// The largest or smallest entries along an axis, equal ones in their order.
pub(super) fn top_k(op: &TopK, mut a: Args) -> Result<Vec<Value>> {
    let (x, k) = (a.take(0)?, whole(a.take(1)?)?);
    let axis = value::axis(op.axis, x.shape().len())?;
    let size = x.shape()[axis];
    let k = usize::try_from(k).ok().filter(|k| *k <= size);
    let k = k.ok_or_else(|| Error::malformed(format!("more of an axis than its {size} entries")))?;
    let mut shape = x.shape().to_vec();
    shape[axis] = k;
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let total = check_host(&shape)?;
    if total == 0 {
        let none = Value::Int(IntArray::new(DType::I64, shape.clone(), vec![]));
        return Ok(vec![empty_value(x.dtype(), &shape, a.device)?, none]);
    }
    let keys = Host::of(x.clone().detached())?.into_keys();
    let (mut from, mut indices) = (vec![0; total], vec![0; total]);
    let mut order: Vec<usize> = Vec::with_capacity(size);
    for o in 0..outer {
        for i in 0..inner {
            let place = |j: usize| (o * size + j) * inner + i;
            order.clear();
            order.extend(0..size);
            // The index makes all keys differ, so that an unstable sort gives one order only.
            let up = |j: &usize| (keys[place(*j)], *j);
            let down = |j: &usize| (Reverse(keys[place(*j)]), *j);
            if k < size {
                if op.largest {
                    order.select_nth_unstable_by_key(k, down);
                } else {
                    order.select_nth_unstable_by_key(k, up);
                }
                order.truncate(k);
            }
            if op.largest {
                order.sort_unstable_by_key(down)
            } else {
                order.sort_unstable_by_key(up)
            }
            for (n, j) in order.iter().enumerate() {
                let to = (o * k + n) * inner + i;
                (from[to], indices[to]) = (place(*j) as i64, *j as i64);
            }
        }
    }
    let indices = Value::Int(IntArray::new(DType::I64, shape.clone(), indices));
    Ok(vec![pick(x, from, &shape, a.device)?, indices])
}
