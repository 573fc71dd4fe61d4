//! Operators whose output may be larger than their inputs, and Shape.

use super::{
    Args, empty_value,
    index::entries,
    movement::take,
    numbers::{number, of_floats},
};
use crate::burn::{
    host::{self, IntArray},
    tensor::{Float, Value, check_size},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        expand::ConstantOfShape,
        pad::{Pad, PadMode},
        range::Range,
        shape::Shape,
        slice::Taken,
    },
    tensor::DType,
};

fn dims(list: &[i64]) -> Result<Vec<usize>> {
    let dim = |n: &i64| usize::try_from(*n).map_err(|_| Error::malformed(format!("a dimension of {n}")));
    list.iter().map(dim).collect()
}

/// The shape of the input, as integers.
pub(super) fn shape(op: &Shape, a: Args) -> Result<Value> {
    let x = a.peek(0).ok_or_else(|| Error::malformed("input 0 is missing"))?;
    let data: Vec<i64> = x.shape()[op.axes(x.shape().len())].iter().map(|d| *d as i64).collect();
    Ok(Value::Int(IntArray::new(DType::I64, vec![data.len()], data)))
}

/// Broadcasts input 0 to the shape in input 1, or the other way round.
pub(super) fn expand(mut a: Args) -> Result<Value> {
    let target = dims(&a.ints(1)?)?;
    let x = a.take(0)?;
    let shape = host::broadcast(x.shape(), &target)?;
    check_size(&shape)?;
    if shape.contains(&0) {
        return empty_value(x.dtype(), &shape, a.device);
    }
    Ok(match x {
        Value::Float(f) => Value::Float(f.expand(&shape)?),
        Value::Int(i) => Value::Int(i.expand(&shape)?),
    })
}

/// A tensor filled with one value.
pub(super) fn constant_of_shape(op: &ConstantOfShape, mut a: Args) -> Result<Value> {
    let shape = dims(&a.ints(0)?)?;
    check_size(&shape)?;
    let dtype = op.value.dtype();
    if shape.contains(&0) {
        return empty_value(dtype, &shape, a.device);
    }
    let one = Value::upload(&op.value, a.device)?;
    Ok(match one {
        Value::Float(f) => Value::Float(Float::filled(&shape, f.scalar()?, dtype, a.device)?),
        Value::Int(i) => {
            let v = *i.data.first().ok_or_else(|| Error::malformed("a value without an element"))?;
            Value::Int(IntArray::new(dtype, shape.clone(), vec![v; host::check_host(&shape)?]))
        }
    })
}

/// `start, start + delta, ...` up to before `limit`.
pub(super) fn range(mut a: Args) -> Result<Value> {
    let mut at = |slot| a.take(slot);
    let (start, limit, delta) = (at(0)?, at(1)?, at(2)?);
    let count = |n: f64| -> Result<usize> {
        // NaN, as of a zero step, compares false.
        let n = if n > 0.0 { n.ceil() } else { 0.0 };
        host::check_host(&[n.min(1e18) as usize])
    };
    match (start, limit, delta) {
        (Value::Float(s), Value::Float(l), Value::Float(d)) => {
            let dtype = s.dtype();
            let (s, l, d) = (s.scalar()?, l.scalar()?, d.scalar()?);
            if d == 0.0 {
                return Err(Error::malformed("a range with step 0"));
            }
            let n = count((l - s) / d)?;
            let data = (0..n).map(|i| s + i as f64 * d).collect();
            Ok(Value::Float(Float::from_f64s(data, &[n], dtype, a.device)?))
        }
        (s, l, d) => {
            let dtype = s.dtype();
            let one = |v: Value| match v.into_ints()?.data[..] {
                [v] => Ok(v),
                _ => Err(Error::malformed("an input of Range is not a scalar")),
            };
            let (s, l, d) = (one(s)?, one(l)?, one(d)?);
            let n = host::check_host(&[usize::try_from(Range::count(s, l, d)?).unwrap_or(usize::MAX)])?;
            let data = (0..n as i64).map(|i| s.wrapping_add(i.wrapping_mul(d))).collect();
            Ok(Value::Int(IntArray::new(dtype, vec![n], data)))
        }
    }
}

/// Adds a border; negative pads cut.
pub(super) fn pad(op: &Pad, mut a: Args) -> Result<Value> {
    let (pads, axes) = (a.ints(1)?, a.opt_ints(3)?);
    let value = a.opt(2);
    let mut x = a.take(0)?;
    let pads = Pad::resolve(x.shape().len(), &pads, axes.as_deref().map(Vec::as_slice))?;
    let (mut cut, mut border, mut shape) = (vec![], vec![], vec![]);
    for (axis, (begin, end)) in pads.into_iter().enumerate() {
        let size = x.shape()[axis] as i64;
        let (low, high) = (begin.min(0).unsigned_abs() as i64, end.min(0).unsigned_abs() as i64);
        let kept = low.checked_add(high).and_then(|cut| size.checked_sub(cut)).filter(|n| *n >= 0);
        let kept = kept
            .ok_or_else(|| Error::malformed(format!("pads {begin} and {end} cut more than an axis of {size} has")))?;
        cut.push(Taken { axis, start: low, step: 1, count: kept });
        border.push((begin.max(0) as usize, end.max(0) as usize));
        let add = begin.max(0).saturating_add(end.max(0)) as usize;
        shape.push((kept as usize).saturating_add(add));
    }
    check_size(&shape)?;
    if shape.contains(&0) {
        return empty_value(x.dtype(), &shape, a.device);
    }
    if cut.iter().any(|t| t.count < x.shape()[t.axis] as i64) {
        x = take(x, &cut, a.device)?;
    }
    if x.shape().contains(&0) && op.mode == PadMode::Constant {
        let border = value.map(number).transpose()?.unwrap_or(0.0);
        return of_floats(vec![border; host::check_host(&shape)?], &shape, x.dtype(), a.device);
    }
    match op.mode {
        PadMode::Constant => constant(x, &border, value),
        PadMode::Edge | PadMode::Reflect | PadMode::Wrap => {
            for (axis, &(begin, end)) in border.iter().enumerate() {
                let size = x.shape()[axis] as i64;
                if (begin, end) == (0, 0) {
                    continue;
                }
                if size == 0 {
                    return Err(Error::malformed("an empty axis has no edge to repeat"));
                }
                let index = |i: i64| match op.mode {
                    PadMode::Reflect => reflect(i, size),
                    PadMode::Wrap => i.rem_euclid(size),
                    _ => i.clamp(0, size - 1),
                };
                let indices = (-(begin as i64)..size + end as i64).map(index).collect();
                x = entries(x, axis, indices)?;
            }
            Ok(x)
        }
    }
}

/// `x` in a border of one value, 0 where none is given.
pub(super) fn constant(x: Value, border: &[(usize, usize)], value: Option<Value>) -> Result<Value> {
    let mismatch = |d: DType| Error::malformed(format!("a border of type {d} on values of another"));
    match x {
        Value::Int(x) => {
            let v = match value {
                None => 0,
                Some(v) if v.dtype() != x.dtype => return Err(mismatch(v.dtype())),
                Some(v) => match v.into_ints()?.data[..] {
                    [v] => v,
                    _ => return Err(Error::malformed("the value of Pad is not a scalar")),
                },
            };
            x.pad(border, v).map(Value::Int)
        }
        Value::Float(x) => {
            let v = match value {
                None => 0.0,
                Some(Value::Float(v)) => v.scalar()? as f32,
                Some(Value::Int(v)) if v.dtype == x.dtype() && v.len() == 1 => v.data[0] as f32,
                Some(Value::Int(v)) => return Err(mismatch(v.dtype)),
            };
            x.pad(border, v).map(Value::Float)
        }
    }
}

/// The index that `i` mirrors to, the edges not repeated.
fn reflect(i: i64, size: i64) -> i64 {
    if size == 1 {
        return 0;
    }
    let period = 2 * (size - 1);
    let at = i.rem_euclid(period);
    if at < size { at } else { period - at }
}
