//! Operators that move elements and don't look at them.

use super::{Args, empty_value};
use crate::{
    burn::{
        host::IntArray,
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        concat::Concat,
        reshape::{Flatten, Reshape},
        slice::{Slice, Taken},
        split::Split,
        squeeze::Unsqueeze,
        transpose::Transpose,
    },
    value::{self, Dim},
};

/// Reshape to the shape in input 1.
pub(super) fn reshape(op: &Reshape, mut a: Args) -> Result<Value> {
    let target: Vec<Dim> = a.ints(1)?.iter().map(|v| Dim::Known(*v)).collect();
    let x = a.take(0)?;
    let dims: Vec<Dim> = x.shape().iter().map(|d| Dim::from(*d)).collect();
    let shape = op.resolve(Some(&dims), &target)?;
    let shape: Option<Vec<usize>> = shape.iter().map(|d| d.known().and_then(|n| usize::try_from(n).ok())).collect();
    let shape = shape.ok_or_else(|| Error::malformed(format!("{:?} cannot become {target:?}", x.shape())))?;
    x.reshape(&shape)
}

/// Flatten to a matrix.
pub(super) fn flatten(op: &Flatten, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    let rank = x.shape().len() as i64;
    let at = if op.axis < 0 { op.axis + rank } else { op.axis };
    if !(0..=rank).contains(&at) {
        return Err(Error::malformed(format!("axis {} is out of range for rank {rank}", op.axis)));
    }
    let (rows, columns) = x.shape().split_at(at as usize);
    let shape = [rows.iter().product(), columns.iter().product()];
    x.reshape(&shape)
}

/// Drops axes of size 1.
pub(super) fn squeeze(mut a: Args) -> Result<Value> {
    let axes = a.opt_ints(1)?;
    let x = a.take(0)?;
    let rank = x.shape().len();
    let drop: Vec<usize> = match axes {
        Some(axes) => axes.iter().map(|i| value::axis(*i, rank)).collect::<Result<_>>()?,
        None => (0..rank).filter(|i| x.shape()[*i] == 1).collect(),
    };
    if let Some(i) = drop.iter().find(|i| x.shape()[**i] != 1) {
        return Err(Error::malformed(format!("axis {i} has size {}, not 1", x.shape()[*i])));
    }
    let shape: Vec<usize> = (0..rank).filter(|i| !drop.contains(i)).map(|i| x.shape()[i]).collect();
    x.reshape(&shape)
}

/// Inserts axes of size 1.
pub(super) fn unsqueeze(mut a: Args) -> Result<Value> {
    let axes = a.ints(1)?;
    let x = a.take(0)?;
    let mut shape = x.shape().to_vec();
    for i in Unsqueeze::axes(&axes, shape.len())? {
        shape.insert(i, 1);
    }
    x.reshape(&shape)
}

/// Reorders axes.
pub(super) fn transpose(op: &Transpose, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    let axes = op.resolve(x.shape().len())?;
    Ok(match x {
        Value::Float(f) => Value::Float(f.permute(&axes)),
        Value::Int(i) => Value::Int(i.permute(&axes)?),
    })
}

/// Joins tensors.
pub(super) fn concat(op: &Concat, a: Args) -> Result<Value> {
    let device = a.device;
    let parts: Vec<Value> = a.values.into_iter().flatten().collect();
    let first = parts.first().ok_or_else(|| Error::malformed("nothing to join"))?;
    let (axis, dtype) = (value::axis(op.axis, first.shape().len())?, first.dtype());
    if let Some(p) = parts.iter().find(|p| p.dtype() != dtype) {
        return Err(Error::malformed(format!("inputs of types {dtype} and {}", p.dtype())));
    }
    if parts.iter().any(|p| matches!(p, Value::Float(_))) {
        let parts = parts.into_iter().map(|p| p.into_device(device)).collect::<Result<Vec<_>>>()?;
        return Float::cat(parts, axis).map(Value::Float);
    }
    let parts = parts.into_iter().map(Value::into_ints).collect::<Result<Vec<_>>>()?;
    IntArray::cat(&parts, axis).map(Value::Int)
}

/// Takes what `taken` says, at most once an axis.
pub(super) fn take(x: Value, taken: &[Taken], device: &Device) -> Result<Value> {
    match x {
        Value::Int(i) => i.slice(taken).map(Value::Int),
        Value::Float(f) if taken.iter().any(|t| t.count == 0) => {
            let mut shape = f.shape().to_vec();
            taken.iter().for_each(|t| shape[t.axis] = t.count as usize);
            match empty_value(f.dtype(), &shape, device)? {
                Value::Int(i) => i.reshape(&shape).map(Value::Int),
                empty => Ok(empty),
            }
        }
        Value::Float(mut f) => {
            for t in taken {
                f = f.slice(t.axis, t.start as usize, t.count as usize, t.step)?;
            }
            Ok(Value::Float(f))
        }
    }
}

/// Slice with steps, which may be negative.
pub(super) fn slice(mut a: Args) -> Result<Value> {
    let (starts, ends) = (a.ints(1)?, a.ints(2)?);
    let (axes, steps) = (a.opt_ints(3)?, a.opt_ints(4)?);
    let x = a.take(0)?;
    let shape: Vec<i64> = x.shape().iter().map(|d| *d as i64).collect();
    let list = |l: &Option<std::sync::Arc<Vec<i64>>>| l.as_ref().map(|l| l.to_vec());
    let taken = Slice::resolve(&shape, &starts, &ends, list(&axes).as_deref(), list(&steps).as_deref())?;
    if (1..taken.len()).any(|i| taken[..i].iter().any(|t| t.axis == taken[i].axis)) {
        return Err(Error::malformed("a slice names an axis twice"));
    }
    take(x, &taken, a.device)
}

/// Cuts along one axis.
pub(super) fn split(op: &Split, mut a: Args) -> Result<Vec<Value>> {
    let given = a.opt_ints(1)?;
    let x = a.take(0)?;
    let axis = value::axis(op.axis, x.shape().len())?;
    let sizes = op.sizes(given.as_deref().map(Vec::as_slice), x.shape()[axis] as i64)?;
    let mut start = 0;
    sizes
        .iter()
        .map(|&count| {
            let part = take(x.clone(), &[Taken { axis, start, step: 1, count }], a.device);
            start += count;
            part
        })
        .collect()
}
