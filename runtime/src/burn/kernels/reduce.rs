//! Reductions, and what runs along one axis: ArgMax, softmax, sums of all elements so far.

use super::{Args, elementwise::order};
use crate::burn::{
    host::{self, IntArray, wrap},
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        arg::Arg,
        cumulative::Cumulative,
        reduce::{Reduce, ReduceKind},
        softmax::{Softmax, SoftmaxKind},
    },
    tensor::DType,
    value,
};
use std::cmp::Ordering;

/// Softmax, its logarithm, or Hardmax.
pub(super) fn softmax(op: &Softmax, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    let (shape, dtype) = (x.shape().to_vec(), x.dtype());
    let mut axis = value::axis(op.axis, shape.len())?;
    let mut x = x;
    if op.coerced {
        x = x.reshape(&[shape[..axis].iter().product(), shape[axis..].iter().product()])?;
        axis = 1;
    }
    let y = match op.kind {
        SoftmaxKind::Soft => x.softmax(axis, false),
        SoftmaxKind::Log => x.softmax(axis, true),
        SoftmaxKind::Hard => {
            let along = Along::new(x.shape(), axis);
            let flat = x.shape().to_vec();
            let places = along.best(&x.detached().into_f64s()?, |new, old| beats(new, old, true, false));
            let mut data = vec![0.0; along.outer * along.size * along.inner];
            for (i, place) in places.into_iter().enumerate() {
                data[along.at(i, place)] = 1.0;
            }
            Float::from_f64s(data, &flat, dtype, a.device)?
        }
    };
    y.reshape(&shape).map(Value::Float)
}

/// An axis among others: those before it are `outer`, those after it `inner`.
struct Along {
    outer: usize,
    size: usize,
    inner: usize,
}

impl Along {
    /// The axis `axis` of `shape`.
    fn new(shape: &[usize], axis: usize) -> Self {
        let product = |s: &[usize]| s.iter().product();
        Self { outer: product(&shape[..axis]), size: shape[axis], inner: product(&shape[axis + 1..]) }
    }

    /// Where the element `place` of line `line` is.
    fn at(&self, line: usize, place: usize) -> usize {
        (line / self.inner * self.size + place) * self.inner + line % self.inner
    }

    /// Where in each line the element is that no other one beats.
    fn best<T: Copy>(&self, data: &[T], beats: impl Fn(T, T) -> bool) -> Vec<usize> {
        let one = |line: usize| {
            (1..self.size)
                .fold(0, |best, i| if beats(data[self.at(line, i)], data[self.at(line, best)]) { i } else { best })
        };
        (0..self.outer * self.inner).map(one).collect()
    }
}

/// Whether `new` is to be taken for `old`, which comes before it. NaN beats all, as in numpy.
fn beats(new: f64, old: f64, max: bool, last: bool) -> bool {
    match new.partial_cmp(&old) {
        Some(order) => wins(order, max, last),
        None => new.is_nan() && (last || !old.is_nan()),
    }
}

fn wins(order: Ordering, max: bool, last: bool) -> bool {
    match order {
        Ordering::Equal => last,
        Ordering::Greater => max,
        Ordering::Less => !max,
    }
}

/// ArgMax and ArgMin.
pub(super) fn arg(op: &Arg, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    let axis = value::axis(op.axis, x.shape().len())?;
    let along = Along::new(x.shape(), axis);
    if along.size == 0 {
        return Err(Error::malformed(format!("{:?} has no element along axis {axis}", x.shape())));
    }
    let shape = host::reduced_shape(x.shape(), &[axis], op.keepdims);
    host::check_host(&shape)?;
    let places = match x {
        Value::Float(x) => {
            along.best(&x.detached().into_f64s()?, |new, old| beats(new, old, op.max, op.select_last_index))
        }
        Value::Int(x) => along.best(&x.data, |new, old| wins(order(x.dtype, new, old), op.max, op.select_last_index)),
    };
    Ok(Value::Int(IntArray::new(DType::I64, shape, places.into_iter().map(|p| p as i64).collect())))
}

/// CumSum and CumProd.
pub(super) fn cumulative(op: &Cumulative, mut a: Args) -> Result<Value> {
    let x = a.take(0)?;
    let axis = match a.ints(1)?[..] {
        [axis] => value::axis(axis, x.shape().len())?,
        _ => return Err(Error::malformed("the axis is not a scalar")),
    };
    match x {
        Value::Float(x) if x.dtype().is_float() => so_far(op, x, axis, &a).map(Value::Float),
        other => {
            let x = other.into_ints()?;
            let along = Along::new(&x.shape, axis);
            let mut data = x.data.to_vec();
            for line in 0..along.outer * along.inner {
                let mut sum = i64::from(op.product);
                for i in 0..along.size {
                    let at = along.at(line, if op.reverse { along.size - 1 - i } else { i });
                    let v = data[at];
                    let next = wrap(x.dtype, if op.product { sum.wrapping_mul(v) } else { sum.wrapping_add(v) });
                    data[at] = if op.exclusive { sum } else { next };
                    sum = next;
                }
            }
            Ok(Value::Int(IntArray::new(x.dtype, x.shape, data)))
        }
    }
}

fn so_far(op: &Cumulative, x: Float, axis: usize, a: &Args) -> Result<Float> {
    let (shape, size, dtype) = (x.shape().to_vec(), x.shape()[axis], x.dtype());
    let turn = |x: Float| if op.reverse { x.slice(axis, size - 1, size, -1) } else { Ok(x) };
    let mut x = turn(x)?;
    if op.exclusive {
        let mut first = shape.clone();
        first[axis] = 1;
        let first = Float::filled(&first, f64::from(u8::from(op.product)), dtype, a.device)?;
        x = if size == 1 { first } else { Float::cat(vec![first, x.slice(axis, 0, size - 1, 1)?], axis)? };
    }
    turn(if op.product { x.cumprod(axis) } else { x.cumsum(axis) })
}

/// ReduceMean and its kin.
pub(super) fn reduce(op: &Reduce, mut a: Args) -> Result<Value> {
    let axes = a.opt_ints(1)?;
    let x = a.take(0)?;
    let axes = op.axes(axes.as_deref().map(Vec::as_slice), x.shape().len())?;
    match x {
        Value::Float(x) if x.dtype().is_float() => x.reduce(op.kind, &axes, op.keepdims).map(Value::Float),
        other => ints(op, other.into_ints()?, &axes).map(Value::Int),
    }
}

fn ints(op: &Reduce, x: IntArray, axes: &[usize]) -> Result<IntArray> {
    let dtype = x.dtype;
    let shape = host::reduced_shape(&x.shape, axes, op.keepdims);
    let kept: Vec<usize> = (0..x.shape.len()).filter(|i| !axes.contains(i)).collect();
    let count: usize = axes.iter().map(|i| x.shape[*i]).product();
    let rows: usize = kept.iter().map(|i| x.shape[*i]).product();
    let x = x.permute(&[&kept, axes].concat())?;
    let data = (0..rows).map(|r| row(op.kind, dtype, &x.data[r * count..(r + 1) * count]));
    Ok(IntArray::new(dtype, shape, data.collect()))
}

fn row(kind: ReduceKind, dtype: DType, row: &[i64]) -> i64 {
    let unsigned = dtype == DType::U64;
    let (least, most) = if unsigned { (0, -1) } else { dtype.int_range().unwrap_or((i64::MIN, i64::MAX)) };
    let values = row.iter().copied();
    let number = |v: i64| if unsigned { v as u64 as f64 } else { v as f64 };
    let sum = || values.clone().fold(0, i64::wrapping_add);
    let squares = || values.clone().fold(0i64, |sum, v| sum.wrapping_add(v.wrapping_mul(v)));
    let whole = |v: f64| if unsigned { v as u64 as i64 } else { (v as i64).clamp(least, most) };
    let out = match kind {
        ReduceKind::Sum => sum(),
        ReduceKind::Prod => values.fold(1, i64::wrapping_mul),
        ReduceKind::Max => values.max_by(|p, q| order(dtype, *p, *q)).unwrap_or(least),
        ReduceKind::Min => values.min_by(|p, q| order(dtype, *p, *q)).unwrap_or(most),
        ReduceKind::Mean if row.is_empty() => 0,
        ReduceKind::Mean if unsigned => (sum() as u64 / row.len() as u64) as i64,
        ReduceKind::Mean => sum() / row.len() as i64,
        ReduceKind::L1 if unsigned => sum(),
        ReduceKind::L1 => values.fold(0, |sum: i64, v| sum.wrapping_add(v.wrapping_abs())),
        ReduceKind::SumSquare => squares(),
        ReduceKind::L2 => whole(values.map(|v| number(v) * number(v)).sum::<f64>().sqrt()),
        ReduceKind::LogSum => whole(number(sum()).ln()),
        ReduceKind::LogSumExp => {
            let largest = values.clone().max_by(|p, q| order(dtype, *p, *q)).map_or(0.0, number);
            whole(largest + values.map(|v| (number(v) - largest).exp()).sum::<f64>().ln())
        }
    };
    wrap(dtype, out)
}
