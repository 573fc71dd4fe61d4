//! Functions of one tensor, element by element.

use super::Args;
use crate::burn::{
    host::{IntArray, wrap},
    tensor::Value,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{activation::Activation, unary::Unary},
    tensor::DType,
};

/// Relu, Sigmoid, Neg, ...
pub(super) fn unary(op: Unary, mut a: Args) -> Result<Value> {
    let x = match a.take(0)? {
        Value::Float(f) if f.dtype().is_float() => f,
        other => return ints(op, other.into_ints()?.computable()?).map(Value::Int),
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
        // log(1 + exp(x)) overflows; this is the same and doesn't.
        Unary::Softplus => x.neg().log_sigmoid().neg(),
        Unary::HardSwish => x.clone().mul(x.hard_sigmoid(1.0 / 6.0, 0.5))?,
        Unary::Not => return Err(Error::malformed(format!("Not of {} values", x.dtype()))),
    }))
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
        // Whole numbers are already rounded.
        Unary::Ceil | Unary::Floor | Unary::Round => |v, _| v,
        _ => return Err(Error::unsupported(format!("this operator on {dtype} values"))),
    };
    let data = x.data.iter().map(|v| wrap(dtype, f(*v, signed))).collect();
    Ok(IntArray::new(dtype, x.shape, data))
}

/// LeakyRelu, Elu, HardSigmoid, Gelu.
pub(super) fn activation(op: &Activation, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    Ok(Value::Float(match *op {
        Activation::LeakyRelu { alpha } => x.leaky_relu(alpha),
        Activation::Elu { alpha } => {
            let below = x.clone().clamp_max(0.0).exp().sub_scalar(1.0).mul_scalar(alpha);
            x.clamp_min(0.0).add(below)?
        }
        Activation::HardSigmoid { alpha, beta } => x.hard_sigmoid(alpha, beta),
        Activation::Gelu { tanh: false } => x.gelu(),
        Activation::Gelu { tanh: true } => {
            let cube = x.clone().mul(x.clone())?.mul(x.clone())?.mul_scalar(0.044715);
            let inner = cube.add(x.clone())?.mul_scalar((2.0 / std::f32::consts::PI).sqrt());
            inner.tanh().add_scalar(1.0).mul(x)?.mul_scalar(0.5)
        }
    }))
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
            let x = other.into_ints()?.computable()?;
            let bound = |v: Option<std::sync::Arc<Vec<i64>>>, default| match v.as_deref().map(Vec::as_slice) {
                None => Ok(default),
                Some([v]) => Ok(*v),
                Some(_) => Err(Error::malformed("a bound of Clip is no scalar")),
            };
            // u64 is held in the bits of i64, which order differently.
            if x.dtype == DType::U64 {
                return Err(Error::unsupported("Clip of u64 values"));
            }
            let (low, high) = (bound(a.opt_ints(1)?, i64::MIN)?, bound(a.opt_ints(2)?, i64::MAX)?);
            let data = x.data.iter().map(|v| (*v).max(low).min(high)).collect();
            Ok(Value::Int(IntArray::new(x.dtype, x.shape, data)))
        }
    }
}
