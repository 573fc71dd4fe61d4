//! Functions of one tensor, element by element.

use super::{Args, as_float};
use crate::burn::{
    host::{IntArray, check_host, wrap},
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        activation::Activation,
        identity::Dropout,
        swiglu::SwiGlu,
        unary::{IsInf, Unary},
    },
    tensor::DType,
};
use rayon::prelude::*;
use std::cmp::Ordering;

/// Relu, Sigmoid, Neg, ...
pub(super) fn unary(op: Unary, mut a: Args) -> Result<Value> {
    let x = match a.take(0)? {
        Value::Float(f) if f.dtype().is_float() => f,
        other => return ints(op, other.into_ints()?).map(Value::Int),
    };
    Ok(Value::Float(match op {
        Unary::Relu => x.relu(),
        Unary::Sigmoid => x.sigmoid(),
        Unary::Tanh => x.tanh(),
        Unary::Exp => x.exp(),
        Unary::Log => x.log(),
        Unary::Sqrt => x.sqrt(),
        Unary::Erf => x.erf(),
        Unary::Neg => x.neg(),
        Unary::Abs => x.abs(),
        Unary::Sign => x.sign(),
        Unary::Ceil => x.ceil(),
        Unary::Floor => x.floor(),
        Unary::Round => x.round(),
        Unary::Reciprocal => x.recip(),
        Unary::Sin => x.sin(),
        Unary::Cos => x.cos(),
        Unary::Tan => x.tan(),
        Unary::Asin => x.asin(),
        Unary::Acos => x.acos(),
        Unary::Atan => x.atan(),
        Unary::Sinh => x.sinh(),
        Unary::Cosh => x.cosh(),
        Unary::Asinh => x.asinh(),
        Unary::Acosh => x.acosh(),
        Unary::Atanh => x.atanh(),
        Unary::Softplus => x.softplus(),
        Unary::Softsign => x.clone().div(x.abs().add_scalar(1.0))?,
        Unary::Mish => x.clone().mul(x.softplus().tanh())?,
        Unary::HardSwish => x.clone().mul(x.hard_sigmoid(1.0 / 6.0, 0.5))?,
        Unary::IsNaN => return truth(x, f64::is_nan).map(Value::Int),
        Unary::Not | Unary::BitwiseNot => {
            return Err(Error::malformed(format!("a truth function of {} values", x.dtype())));
        }
    }))
}

/// What `f` says of every element.
fn truth(x: Float, f: impl Fn(f64) -> bool) -> Result<IntArray> {
    let shape = x.shape().to_vec();
    check_host(&shape)?;
    let data = x.detached().into_f64s()?.into_iter().map(|v| f(v).into()).collect();
    Ok(IntArray::new(DType::Bool, shape, data))
}

/// IsInf.
pub(super) fn is_inf(op: &IsInf, mut a: Args) -> Result<Value> {
    let counts = |v: f64| (op.positive && v == f64::INFINITY) || (op.negative && v == f64::NEG_INFINITY);
    truth(a.float(0)?, counts).map(Value::Int)
}

fn ints(op: Unary, x: IntArray) -> Result<IntArray> {
    let dtype = x.dtype;
    let signed = dtype.int_range().is_some_and(|(low, _)| low < 0) && dtype != DType::U64;
    let f: fn(i64, bool) -> i64 = match op {
        Unary::Relu => |v, signed| if signed { v.max(0) } else { v },
        Unary::Neg => |v, _| v.wrapping_neg(),
        Unary::Abs => |v, signed| if signed { v.wrapping_abs() } else { v },
        Unary::Sign => |v, signed| if signed { v.signum() } else { (v != 0) as i64 },
        Unary::Not if dtype == DType::Bool => |v, _| (v == 0) as i64,
        Unary::BitwiseNot if dtype != DType::Bool => |v, _| !v,
        // Whole numbers are already rounded.
        Unary::Ceil | Unary::Floor | Unary::Round => |v, _| v,
        _ => return Err(Error::unsupported(format!("this operator on {dtype} values"))),
    };
    let data = x.data.iter().map(|v| wrap(dtype, f(*v, signed))).collect();
    Ok(IntArray::new(dtype, x.shape, data))
}

/// LeakyRelu, Elu, HardSigmoid, Gelu, ...
pub(super) fn activation(op: &Activation, mut a: Args) -> Result<Value> {
    let x = match (a.take(0)?, op) {
        (Value::Float(x), _) if x.dtype().is_float() => x,
        (other, Activation::Shrink { bias, lambd }) => {
            return shrink(other.into_ints()?, f64::from(*bias), f64::from(*lambd)).map(Value::Int);
        }
        (other, _) => return Err(Error::unsupported(format!("this operator on {} values", other.dtype()))),
    };
    // `alpha * (exp(x) - 1)` below zero. At 0 the derivative is that of this part: Relu's is 0 there.
    let below = |x: Float, alpha: f32| x.clamp_max(0.0).exp().sub_scalar(1.0).mul_scalar(alpha);
    Ok(Value::Float(match *op {
        Activation::LeakyRelu { alpha } => x.leaky_relu(alpha),
        Activation::Elu { alpha } => x.clone().relu().add(below(x, alpha))?,
        Activation::Selu { alpha, gamma } => x.clone().relu().add(below(x, alpha))?.mul_scalar(gamma),
        Activation::Celu { alpha } => {
            let low = x.clone().div_scalar(alpha).exp().sub_scalar(1.0).mul_scalar(alpha).clamp_max(0.0);
            x.relu().add(low)?
        }
        Activation::HardSigmoid { alpha, beta } => x.hard_sigmoid(alpha, beta),
        Activation::Gelu { tanh: false } => x.gelu(),
        Activation::Gelu { tanh: true } => {
            let cube = x.clone().mul(x.clone())?.mul(x.clone())?.mul_scalar(0.044715);
            let inner = cube.add(x.clone())?.mul_scalar((2.0 / std::f64::consts::PI).sqrt());
            inner.tanh().add_scalar(1.0).mul(x)?.mul_scalar(0.5)
        }
        Activation::ThresholdedRelu { alpha } => x.clone().where_above(alpha, x),
        Activation::Swish { alpha } => swish(x, alpha)?,
        Activation::Shrink { bias, lambd } => {
            let high = x.clone().where_above(lambd, x.clone().sub_scalar(bias));
            let low = x.clone().neg().where_above(lambd, x.add_scalar(bias));
            high.add(low)?
        }
    }))
}

fn swish(x: Float, alpha: f32) -> Result<Float> {
    x.clone().mul(x.mul_scalar(alpha).sigmoid())
}

fn shrink(x: IntArray, bias: f64, lambd: f64) -> Result<IntArray> {
    let unsigned = x.dtype == DType::U64;
    let one = |v: &i64| {
        let n = if unsigned { *v as u64 as f64 } else { *v as f64 };
        let y = if n < -lambd {
            n + bias
        } else if n > lambd {
            n - bias
        } else {
            0.0
        };
        if unsigned { y as u64 as i64 } else { wrap(x.dtype, y as i64) }
    };
    Ok(IntArray::new(x.dtype, x.shape, x.data.iter().map(one).collect()))
}

/// SwiGLU.
pub(super) fn swiglu(op: &SwiGlu, mut a: Args) -> Result<Value> {
    let (gate, x) = (a.float(0)?, a.float(1)?);
    if gate.shape() != x.shape() {
        return Err(Error::malformed(format!(
            "the inputs of SwiGLU have shapes {:?} and {:?}",
            gate.shape(),
            x.shape()
        )));
    }
    swish(gate, op.alpha)?.mul(x).map(Value::Float)
}

/// Dropout where nothing is dropped, and the mask that says so.
pub(super) fn dropout(op: &Dropout, mut a: Args) -> Result<Vec<Value>> {
    let x = a.take(0)?;
    let ratio = a.opt_float(1)?.map_or(Ok(f64::from(op.ratio)), Float::scalar)?;
    if let Some(seed) = a.opt_ints(3)? {
        let seed = seed.first().copied().unwrap_or_default() as u64;
        let x = as_float(x)?;
        let kept = Float::from_vec(kept(x.elements(), ratio, seed), x.shape(), a.device)?;
        return Ok(vec![Value::Float(x.mul(kept)?)]);
    }
    if a.opt_ints(2)?.is_some_and(|t| t.first() == Some(&1)) && ratio != 0.0 {
        return Err(Error::unsupported("Dropout in training: the elements that it drops are random"));
    }
    if !op.mask {
        return Ok(vec![x]);
    }
    let shape = x.shape().to_vec();
    let mask = IntArray::new(DType::Bool, shape.clone(), vec![1; check_host(&shape)?]);
    Ok(vec![x, Value::Int(mask)])
}

/// What each element is multiplied by when a share of `ratio` is dropped: 0, or what keeps the expectation.
/// An element's fate depends on the seed and its place alone.
fn kept(elements: usize, ratio: f64, seed: u64) -> Vec<f32> {
    let scale = if ratio < 1.0 { (1.0 / (1.0 - ratio)) as f32 } else { 0.0 };
    let bound = (ratio.clamp(0.0, 1.0) * 2f64.powi(53)) as u64;
    // SplitMix64 (Steele, Lea, Flood 2014), as a function of a counter.
    let mixed = |place: u64| {
        let mut z = seed.wrapping_add(place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut out = vec![0.0; elements];
    out.par_iter_mut().enumerate().for_each(|(i, v)| {
        if mixed(i as u64) >> 11 >= bound {
            *v = scale;
        }
    });
    out
}

/// Clip, whose bounds are optional.
pub(super) fn clip(mut a: Args) -> Result<Value> {
    match a.take(0)? {
        Value::Float(mut x) if x.dtype().is_float() => {
            // One after the other: where the bounds cross, ONNX gives the upper one.
            if let Some(low) = a.opt_float(1)? {
                x = x.clamp_min(low.scalar()?);
            }
            if let Some(high) = a.opt_float(2)? {
                x = x.clamp_max(high.scalar()?);
            }
            Ok(Value::Float(x))
        }
        other => {
            let x = other.into_ints()?;
            let bound = |v: Option<std::sync::Arc<Vec<i64>>>| match v.as_deref().map(Vec::as_slice) {
                None => Ok(None),
                Some([v]) => Ok(Some(*v)),
                Some(_) => Err(Error::malformed("a bound of Clip is not a scalar")),
            };
            let (low, high) = (bound(a.opt_ints(1)?)?, bound(a.opt_ints(2)?)?);
            let clip = |v: i64| {
                let v = low.map_or(v, |low| if order(x.dtype, v, low).is_lt() { low } else { v });
                high.map_or(v, |high| if order(x.dtype, v, high).is_gt() { high } else { v })
            };
            let data = x.data.iter().map(|v| clip(*v)).collect();
            Ok(Value::Int(IntArray::new(x.dtype, x.shape, data)))
        }
    }
}

/// How two host elements compare: `u64` is held in the bits of `i64`, which order differently.
pub(super) fn order(dtype: DType, p: i64, q: i64) -> Ordering {
    if dtype == DType::U64 { (p as u64).cmp(&(q as u64)) } else { p.cmp(&q) }
}
