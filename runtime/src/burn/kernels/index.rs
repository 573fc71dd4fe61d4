//! Operators that pick elements by index, and Where.

use super::{Args, empty_value};
use crate::{
    burn::{
        host::{self, IntArray},
        tensor::{Float, Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        gather::{Gather, GatherElements, GatherNd},
        gather_blocks::GatherBlocks,
    },
    tensor::{DType, Tensor},
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

/// The elements of `x` at the places `at`, in row-major order, as a value of `shape`.
pub(super) fn pick(x: Value, at: Vec<i64>, shape: &[usize], device: &Device) -> Result<Value> {
    if at.is_empty() {
        return empty_value(x.dtype(), shape, device);
    }
    let n = x.shape().iter().product();
    entries(x.reshape(&[n])?, 0, at)?.reshape(shape)
}

/// Two values of one type, joined along their first axis.
pub(super) fn joined(x: Value, y: Value, device: &Device) -> Result<Value> {
    match (x, y) {
        (Value::Int(x), Value::Int(y)) => IntArray::cat(&[x, y], 0).map(Value::Int),
        (x, y) => Float::cat(vec![x.into_device(device)?, y.into_device(device)?], 0).map(Value::Float),
    }
}

/// `x` with its axes reordered, by a permutation.
pub(super) fn permute(x: Value, axes: &[usize]) -> Result<Value> {
    Ok(match x {
        Value::Float(f) => Value::Float(f.permute(axes)),
        Value::Int(i) => Value::Int(i.permute(axes)?),
    })
}

/// Mixes entries of an axis: each new one is a sum of old ones, and how much each counts.
pub(super) fn mixed(x: Float, axis: usize, all: &[Vec<(i64, f64)>], device: &Device) -> Result<Float> {
    let most = all.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut shape = vec![1; x.shape().len()];
    shape[axis] = all.len();
    let dtype = if x.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let part = |n: usize| {
        // Where fewer entries count, the first one counts several times, in parts: to count
        // another one 0 times would make NaN of infinity.
        let part = |t: &Vec<(i64, f64)>| match t.len() {
            len if n > 0 && n < len => t[n],
            len => t.first().map_or((0, 0.0), |(entry, weight)| (*entry, weight / (most - len.max(1) + 1) as f64)),
        };
        let (entries, weights) = all.iter().map(part).unzip();
        x.clone().select(axis, entries)?.mul(Float::from_f64s(weights, &shape, dtype, device)?)
    };
    (1..most).try_fold(part(0)?, |sum, n| sum.add(part(n)?))
}

/// `index`, counted from the front.
pub(super) fn from_front(index: i64, size: usize) -> Result<i64> {
    let at = if index < 0 { index + size as i64 } else { index };
    if (0..size as i64).contains(&at) {
        return Ok(at);
    }
    Err(Error::malformed(format!("index {index} is out of range for an axis of {size}")))
}

/// The entries that input 1 lists.
pub(super) fn gather(op: &Gather, mut a: Args) -> Result<Value> {
    let (x, at) = (a.take(0)?, a.take(1)?.into_ints()?);
    let axis = value::axis(op.axis, x.shape().len())?;
    let size = x.shape()[axis];
    let shape = [&x.shape()[..axis], &at.shape, &x.shape()[axis + 1..]].concat();
    check_size(&shape)?;
    if shape.contains(&0) {
        return empty_value(x.dtype(), &shape, a.device);
    }
    let indices = at.data.iter().map(|i| from_front(*i, size)).collect::<Result<_>>()?;
    entries(x, axis, indices)?.reshape(&shape)
}

/// The rows that input 1 lists of a table in codes of 4 bits, in floats.
pub(super) fn gather_blocks(op: &GatherBlocks, mut a: Args) -> Result<Value> {
    let (codes, at, scales) = (a.take(0)?.download()?, a.take(1)?.into_ints()?, a.take(2)?.download()?);
    let odd = || Error::malformed("codes or scales of other sizes or types");
    let (columns, block) = (op.columns, usize::try_from(op.block).ok().filter(|n| *n > 0).ok_or_else(odd)?);
    let (rows, parts) = (codes.shape().first().copied().unwrap_or(0), columns.div_ceil(block));
    let by = scales.as_f32().filter(|by| by.len() == rows * parts).ok_or_else(odd)?;
    if codes.dtype() != DType::U8 || codes.shape() != [rows, columns / 2] || !columns.is_multiple_of(2) {
        return Err(odd());
    }
    let of_row = parts.div_ceil(2);
    let zeros = a.opt(3).map(Value::download).transpose()?;
    if zeros.as_ref().is_some_and(|zeros| zeros.dtype() != DType::U8 || zeros.shape() != [rows, of_row]) {
        return Err(odd());
    }
    let zero = |row: usize, block: usize| match &zeros {
        Some(zeros) => i32::from(zeros.bytes()[row * of_row + block / 2] >> (block % 2 * 4) & 15),
        None => 8,
    };
    let shape = [&at.shape[..], &[columns]].concat();
    check_size(&shape)?;
    let mut made = Vec::with_capacity(at.len() * columns);
    for index in at.data.iter() {
        let row = from_front(*index, rows)? as usize;
        let code = |i: usize| i32::from(codes.bytes()[(row * columns + i) / 2] >> (i % 2 * 4) & 15);
        made.extend((0..columns).map(|i| (code(i) - zero(row, i / block)) as f32 * by[row * parts + i / block]));
    }
    Float::upload(&Tensor::f32(&shape, &made), a.device).map(Value::Float)
}

/// The place in `x`, of `shape`, that each index along `axis` means; its other coordinates are its own.
pub(super) fn places(shape: &[usize], axis: usize, at: &IntArray) -> Result<Vec<i64>> {
    let fits = at.shape.len() == shape.len() && (0..shape.len()).all(|i| i == axis || at.shape[i] <= shape[i]);
    if !fits {
        return Err(Error::malformed(format!("indices of {:?} into a tensor of {shape:?}", at.shape)));
    }
    let mut strides = host::strides(shape);
    let along = std::mem::replace(&mut strides[axis], 0) as i64;
    let mut out = Vec::with_capacity(at.len());
    host::each_offset(&at.shape, &strides, 0, |offset| out.push(offset as i64));
    for (place, index) in out.iter_mut().zip(at.data.iter()) {
        *place += from_front(*index, shape[axis])? * along;
    }
    Ok(out)
}

/// Single elements, by their index along one axis.
pub(super) fn gather_elements(op: &GatherElements, mut a: Args) -> Result<Value> {
    let (x, at) = (a.take(0)?, a.take(1)?.into_ints()?);
    let axis = value::axis(op.axis, x.shape().len())?;
    let from = places(x.shape(), axis, &at)?;
    pick(x, from, &at.shape, a.device)
}

/// The slices that the rows of input 1 address.
pub(super) fn gather_nd(op: &GatherNd, mut a: Args) -> Result<Value> {
    let (x, at) = (a.take(0)?, a.take(1)?.into_ints()?);
    let (shape, b) = (x.shape().to_vec(), op.batch_dims);
    let depth = at.shape.last().copied().unwrap_or(0);
    let fits = depth > 0 && b < at.shape.len() && b + depth <= shape.len() && shape[..b] == at.shape[..b];
    if !fits {
        return Err(Error::malformed(format!("indices of {:?} into a tensor of {shape:?}", at.shape)));
    }
    let out = [&at.shape[..at.shape.len() - 1], &shape[b + depth..]].concat();
    check_size(&out)?;
    if out.contains(&0) {
        return empty_value(x.dtype(), &out, a.device);
    }
    let slices: usize = shape[b..b + depth].iter().product();
    let strides = host::strides(&shape[b..b + depth]);
    let a_batch: usize = at.shape[b..at.shape.len() - 1].iter().product();
    let mut from = Vec::with_capacity(at.len() / depth);
    for (n, index) in at.data.chunks_exact(depth).enumerate() {
        let mut row = (n / a_batch * slices) as i64;
        for (i, v) in index.iter().enumerate() {
            row += from_front(*v, shape[b + i])? * strides[i] as i64;
        }
        from.push(row);
    }
    let rows: usize = shape[..b + depth].iter().product();
    let width = shape[b + depth..].iter().product();
    entries(x.reshape(&[rows, width])?, 0, from)?.reshape(&out)
}

/// `condition ? x : y`.
pub(super) fn select(mut a: Args) -> Result<Value> {
    let condition = a.take(0)?.into_ints()?;
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
