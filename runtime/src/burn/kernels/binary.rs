//! Functions of two tensors, element by element, broadcast.

use super::{Args, elementwise::order};
use crate::{
    burn::{
        host::{self, IntArray, wrap},
        tensor::{Float, Value},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        binary::{Binary, BitShift, Mod},
        variadic::Variadic,
    },
    tensor::DType,
};

/// Add, Pow, Less, ...
pub(super) fn binary(op: Binary, mut a: Args) -> Result<Value> {
    let (x, y) = (a.take(0)?, a.take(1)?);
    match (x, y) {
        // Pow alone may mix types; the result has that of the base.
        (Value::Float(x), Value::Float(y)) if x.dtype().is_float() && y.dtype().is_float() => {
            let dtype = x.dtype();
            match floats(op, x, y, a.device)? {
                Value::Float(z) if op == Binary::Pow => Ok(Value::Float(z.with_dtype(dtype))),
                z => Ok(z),
            }
        }
        (Value::Float(x), y) if op == Binary::Pow && x.dtype().is_float() => {
            let y = y.into_ints()?;
            match y.data[..] {
                [v] if y.shape.len() <= x.shape().len() => x.pow_scalar(v as f64, a.device).map(Value::Float),
                _ => {
                    let data = y.data.iter().map(|v| *v as f64).collect();
                    let dtype = x.dtype();
                    x.powf(Float::from_f64s(data, &y.shape, dtype, a.device)?).map(Value::Float)
                }
            }
        }
        (x, Value::Float(y)) if op == Binary::Pow && y.dtype().is_float() => {
            let x = x.into_ints()?;
            let (shape, exponent) = (host::broadcast(&x.shape, y.shape())?, y.shape().to_vec());
            let exponents = y.into_f64s()?;
            let pow = |b: i64, e: f64| Ok(wrap(x.dtype, (b as f64).powf(e) as i64));
            let data = host::zip((&x.data, &x.shape), (&exponents, &exponent), &shape, pow)?;
            Ok(Value::Int(IntArray::new(x.dtype, shape, data)))
        }
        (x, y) => ints(op, x.into_ints()?, y.into_ints()?).map(Value::Int),
    }
}

fn floats(op: Binary, x: Float, y: Float, device: &Device) -> Result<Value> {
    if op.is_logical() {
        return compare(op, x, y).map(Value::Int);
    }
    // A constant scalar needs no broadcasting, unless its axes are more than the other's.
    if y.shape().len() <= x.shape().len()
        && let Some(v) = y.known_scalar()
    {
        match op {
            Binary::Add => return Ok(Value::Float(x.add_scalar(v))),
            Binary::Sub => return Ok(Value::Float(x.sub_scalar(v))),
            Binary::Mul => return Ok(Value::Float(x.mul_scalar(v))),
            Binary::Div => return Ok(Value::Float(x.div_scalar(v))),
            Binary::Pow => return x.pow_scalar(v, device).map(Value::Float),
            Binary::Max if !v.is_nan() => return Ok(Value::Float(x.clamp_min(v))),
            Binary::Min if !v.is_nan() => return Ok(Value::Float(x.clamp_max(v))),
            _ => {}
        }
    }
    if x.shape().len() <= y.shape().len()
        && let (Binary::Add | Binary::Mul, Some(v)) = (op, x.known_scalar())
    {
        return Ok(Value::Float(if op == Binary::Add { y.add_scalar(v) } else { y.mul_scalar(v) }));
    }
    Ok(Value::Float(match op {
        Binary::Add => x.add(y)?,
        Binary::Sub => x.sub(y)?,
        Binary::Mul => x.mul(y)?,
        Binary::Div => x.div(y)?,
        Binary::Pow => x.powf(y)?,
        Binary::Max => x.extremum(y, true)?,
        Binary::Min => x.extremum(y, false)?,
        Binary::PRelu => {
            if host::broadcast(x.shape(), y.shape())? != x.shape() {
                return Err(Error::malformed(format!("a slope of {:?} on an input of {:?}", y.shape(), x.shape())));
            }
            x.prelu(y)?
        }
        Binary::Equal | Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual => {
            return Err(Error::bug("a comparison is done on the host"));
        }
        Binary::And | Binary::Or | Binary::Xor | Binary::BitwiseAnd | Binary::BitwiseOr | Binary::BitwiseXor => {
            return Err(Error::malformed("a truth function of floats"));
        }
    }))
}

/// Conditions live on the host, so floats are compared there.
fn compare(op: Binary, x: Float, y: Float) -> Result<IntArray> {
    let f: fn(f64, f64) -> bool = match op {
        Binary::Equal => |p, q| p == q,
        Binary::Less => |p, q| p < q,
        Binary::LessOrEqual => |p, q| p <= q,
        Binary::Greater => |p, q| p > q,
        Binary::GreaterOrEqual => |p, q| p >= q,
        _ => return Err(Error::malformed("a truth function of floats")),
    };
    let shape = host::broadcast(x.shape(), y.shape())?;
    let (xs, ys) = (x.shape().to_vec(), y.shape().to_vec());
    let (x, y) = (x.detached().into_f64s()?, y.detached().into_f64s()?);
    let data = host::zip((&x, &xs), (&y, &ys), &shape, |p, q| Ok(f(p, q) as i64))?;
    Ok(IntArray::new(DType::Bool, shape, data))
}

fn ints(op: Binary, x: IntArray, y: IntArray) -> Result<IntArray> {
    let dtype = x.dtype;
    if dtype != y.dtype && op != Binary::Pow {
        return Err(Error::malformed(format!("inputs of types {dtype} and {}", y.dtype)));
    }
    if matches!(op, Binary::And | Binary::Or | Binary::Xor) && dtype != DType::Bool {
        return Err(Error::malformed(format!("a truth function of {dtype} values")));
    }
    let shape = host::broadcast(&x.shape, &y.shape)?;
    let unsigned = dtype == DType::U64;
    let order = |p: i64, q: i64| order(dtype, p, q);
    let f = |p: i64, q: i64| -> Result<i64> {
        Ok(match op {
            Binary::Add => p.wrapping_add(q),
            Binary::Sub => p.wrapping_sub(q),
            Binary::Mul => p.wrapping_mul(q),
            Binary::Div if q == 0 => return Err(Error::malformed("integer division by zero")),
            Binary::Div if unsigned => (p as u64 / q as u64) as i64,
            Binary::Div => p.wrapping_div(q),
            Binary::Pow => pow(p, q)?,
            Binary::Min => {
                if order(p, q).is_le() {
                    p
                } else {
                    q
                }
            }
            Binary::Max => {
                if order(p, q).is_ge() {
                    p
                } else {
                    q
                }
            }
            Binary::PRelu => {
                if p < 0 && !unsigned {
                    p.wrapping_mul(q)
                } else {
                    p
                }
            }
            Binary::Equal => i64::from(p == q),
            Binary::Less => order(p, q).is_lt() as i64,
            Binary::LessOrEqual => order(p, q).is_le() as i64,
            Binary::Greater => order(p, q).is_gt() as i64,
            Binary::GreaterOrEqual => order(p, q).is_ge() as i64,
            Binary::And | Binary::BitwiseAnd => p & q,
            Binary::Or | Binary::BitwiseOr => p | q,
            Binary::Xor | Binary::BitwiseXor => p ^ q,
        })
    };
    let out = if op.is_logical() { DType::Bool } else { dtype };
    let (x, y) = ((&x.data[..], &x.shape[..]), (&y.data[..], &y.shape[..]));
    let data = match op {
        // Models tell tokens apart by it, in large tables: one loop of its own.
        Binary::Equal => host::zip(x, y, &shape, |p, q| Ok(i64::from(p == q)))?,
        _ => host::zip(x, y, &shape, |p, q| Ok(wrap(out, f(p, q)?)))?,
    };
    Ok(IntArray::new(out, shape, data))
}

fn pow(mut base: i64, exponent: i64) -> Result<i64> {
    if exponent < 0 {
        return match base {
            0 => Err(Error::malformed("zero to a negative power")),
            1 => Ok(1),
            -1 => Ok(if exponent % 2 == 0 { 1 } else { -1 }),
            _ => Ok(0),
        };
    }
    let (mut left, mut out) = (exponent, 1i64);
    while left > 0 {
        if left & 1 == 1 {
            out = out.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        left >>= 1;
    }
    Ok(out)
}

/// Mod.
pub(super) fn modulo(op: &Mod, mut a: Args) -> Result<Value> {
    match (a.take(0)?, a.take(1)?) {
        (Value::Float(x), Value::Float(y)) if x.dtype().is_float() && y.dtype().is_float() => {
            let (dtype, shape) = (x.dtype(), host::broadcast(x.shape(), y.shape())?);
            let (x, y) = (x.expand(&shape)?.into_f64s()?, y.expand(&shape)?.into_f64s()?);
            // Exact in `f64`, so that rounding comes once.
            let rest = |(x, y): (f64, f64)| {
                let rest = x % y;
                match (op.fmod, rest == 0.0) {
                    (true, _) => rest,
                    (false, true) => rest.copysign(y),
                    (false, false) if (rest < 0.0) != (y < 0.0) => rest + y,
                    (false, false) => rest,
                }
            };
            let data = x.into_iter().zip(y).map(rest).collect();
            Float::from_f64s(data, &shape, dtype, a.device).map(Value::Float)
        }
        (x, y) => {
            let rest = |dtype: DType, x: i64, y: i64| match y {
                0 => Err(Error::malformed("the remainder of a division by zero")),
                _ if dtype == DType::U64 => Ok((x as u64 % y as u64) as i64),
                _ => {
                    let rest = x.wrapping_rem(y);
                    Ok(if !op.fmod && rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest })
                }
            };
            of_ints(x, y, rest)
        }
    }
}

/// BitShift.
pub(super) fn bit_shift(op: &BitShift, mut a: Args) -> Result<Value> {
    let shift = |dtype: DType, x: i64, by: i64| {
        // By more than there are bits, what is left is the sign of what moves right.
        let far = usize::try_from(by).map_or(true, |by| by >= dtype.bits());
        Ok(match (op.right, far) {
            (true, false) if dtype == DType::U64 => ((x as u64) >> by) as i64,
            (true, false) => x >> by,
            (true, true) if x < 0 && dtype != DType::U64 => -1,
            (false, false) => wrap(dtype, x << by),
            _ => 0,
        })
    };
    of_ints(a.take(0)?, a.take(1)?, shift)
}

/// `f` of two integer tensors of one type, which is that of the result.
fn of_ints(x: Value, y: Value, f: impl Fn(DType, i64, i64) -> Result<i64>) -> Result<Value> {
    let (x, y) = (x.into_ints()?, y.into_ints()?);
    if x.dtype != y.dtype {
        return Err(Error::malformed(format!("inputs of types {} and {}", x.dtype, y.dtype)));
    }
    let shape = host::broadcast(&x.shape, &y.shape)?;
    let data = host::zip((&x.data, &x.shape), (&y.data, &y.shape), &shape, |p, q| f(x.dtype, p, q))?;
    Ok(Value::Int(IntArray::new(x.dtype, shape, data)))
}

/// Sum, Mean, Max, Min of any number of inputs.
pub(super) fn variadic(op: Variadic, mut a: Args) -> Result<Value> {
    let by = match op {
        Variadic::Sum | Variadic::Mean => Binary::Add,
        Variadic::Max => Binary::Max,
        Variadic::Min => Binary::Min,
    };
    let mut out = a.take(0)?;
    let count = a.count();
    for slot in 1..count {
        let next = a.take(slot)?;
        out = binary(by, Args::new(vec![Some(out), Some(next)], a.device))?;
    }
    match out {
        Value::Float(x) if op == Variadic::Mean => Ok(Value::Float(x.div_scalar(count as f64))),
        out => Ok(out),
    }
}
