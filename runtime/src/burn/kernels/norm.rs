//! BatchNormalization and LayerNormalization.

use super::Args;
use crate::burn::{
    host,
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{batch_norm::BatchNorm, layer_norm::LayerNorm, reduce::ReduceKind},
    value,
};

/// Inference form: one scale and one shift a channel.
pub(super) fn batch(op: &BatchNorm, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    let Some(&channels) = x.shape().get(1) else {
        return Err(Error::malformed(format!("an input of {:?} has no channels", x.shape())));
    };
    let mut shape = vec![1; x.shape().len()];
    shape[1] = channels;
    let mut parameter = |slot| -> Result<Float> {
        let p = a.float(slot)?;
        if p.shape() != [channels] {
            return Err(Error::malformed(format!("input {slot} has shape {:?}, not [{channels}]", p.shape())));
        }
        p.reshape(&shape)
    };
    let (scale, bias, mean, var) = (parameter(1)?, parameter(2)?, parameter(3)?, parameter(4)?);
    let scale = scale.div(var.add_scalar(op.epsilon).sqrt())?;
    let shift = bias.sub(mean.mul(scale.clone())?)?;
    x.mul(scale)?.add(shift).map(Value::Float)
}

/// Normalisation over the last axes.
pub(super) fn layer(op: &LayerNorm, mut a: Args) -> Result<Value> {
    let (x, scale, bias) = (a.float(0)?, a.float(1)?, a.opt_float(2)?);
    let shape = x.shape().to_vec();
    let axis = value::axis(op.axis, shape.len())?;
    let (rows, columns) = (shape[..axis].iter().product(), shape[axis..].iter().product());
    let whole = |p: &Float| p.shape() == &shape[axis..];
    if whole(&scale) && bias.as_ref().is_none_or(whole) {
        let flat = |p: Float| p.reshape(&[columns]);
        let y = x.reshape(&[rows, columns])?.layer_norm(flat(scale)?, bias.map(flat).transpose()?, op.epsilon);
        return y.reshape(&shape).map(Value::Float);
    }
    // Scale and bias may be anything that broadcasts to the input.
    for p in std::iter::once(&scale).chain(&bias) {
        if host::broadcast(p.shape(), &shape)? != shape {
            return Err(Error::malformed(format!("{:?} does not broadcast to {shape:?}", p.shape())));
        }
    }
    let x = x.reshape(&[rows, columns])?;
    let mean = x.clone().reduce(ReduceKind::Mean, &[1], true)?;
    let centred = x.sub(mean)?;
    let var = centred.clone().mul(centred.clone())?.reduce(ReduceKind::Mean, &[1], true)?;
    let y = centred.div(var.add_scalar(op.epsilon).sqrt())?.reshape(&shape)?.mul(scale)?;
    match bias {
        Some(b) => y.add(b),
        None => Ok(y),
    }
    .map(Value::Float)
}
