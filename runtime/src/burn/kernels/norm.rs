//! Normalisations: batch, layer, RMS, group, instance, local response.

use super::Args;
use crate::burn::{
    host,
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{
        batch_norm::BatchNorm,
        group_norm::{GroupNorm, InstanceNorm},
        layer_norm::{LayerNorm, RmsNorm},
        lrn::Lrn,
        reduce::ReduceKind,
    },
    tensor::DType,
    value,
};

/// A vector with an entry a channel, shaped to broadcast along axis 1 of `rank` axes.
fn along_channels(a: &mut Args, slot: usize, entries: usize, rank: usize) -> Result<Float> {
    let p = a.float(slot)?;
    if p.shape() != [entries] {
        return Err(Error::malformed(format!("input {slot} has shape {:?}, not [{entries}]", p.shape())));
    }
    let mut shape = vec![1; rank.max(1)];
    shape[usize::from(rank > 1)] = entries;
    p.reshape(&shape)
}

/// One scale and one shift a channel, from the statistics given or, in training, from X's own.
pub(super) fn batch(op: &BatchNorm, mut a: Args) -> Result<Vec<Value>> {
    let x = a.float(0)?;
    let rank = x.shape().len();
    // Without an axis of channels there is one channel.
    let channels = x.shape().get(1).copied().unwrap_or(1);
    let moved = |old: Float, new: Float| {
        let new = new.reshape(old.shape())?.mul_scalar(1.0 - op.momentum);
        old.mul_scalar(op.momentum).add(new)?.reshape(&[channels])
    };
    if op.training
        && let (Some(Value::Float(scale)), Some(Value::Float(bias))) = (a.peek(1), a.peek(2))
        && [scale, bias].iter().all(|p| p.shape() == [channels])
        && let Some([y, mean, variance]) = x.batch_norm(scale, bias, op.epsilon, a.rectified)
    {
        let (old_mean, old_variance) = (a.float(3)?, a.float(4)?);
        return Ok([y, moved(old_mean, mean)?, moved(old_variance, variance)?].map(Value::Float).into());
    }
    let mut parameter = |slot| along_channels(&mut a, slot, channels, rank);
    let (scale, bias, mean, var) = (parameter(1)?, parameter(2)?, parameter(3)?, parameter(4)?);
    if !op.training {
        let scale = scale.div(var.add_scalar(op.epsilon).sqrt())?;
        let shift = bias.sub(mean.mul(scale.clone())?)?;
        return Ok(vec![Value::Float(x.mul(scale)?.add(shift)?)]);
    }
    let others: Vec<usize> = (0..rank).filter(|axis| *axis != 1).collect();
    let current = x.clone().reduce(ReduceKind::Mean, &others, true)?;
    let centred = x.sub(current.clone())?;
    let spread = centred.clone().mul(centred.clone())?.reduce(ReduceKind::Mean, &others, true)?;
    let y = centred.div(spread.clone().add_scalar(op.epsilon).sqrt())?.mul(scale)?.add(bias)?;
    let y = if a.rectified { y.relu() } else { y };
    let (mean, var) = (moved(mean, current.detached())?, moved(var, spread.detached())?);
    Ok([y, mean, var].map(Value::Float).into())
}

/// The rows of a matrix with mean 0 and variance 1; the mean and the inverse of the standard
/// deviation, a column each.
fn standardised(x: Float, epsilon: f32) -> Result<(Float, Float, Float)> {
    let mean = x.clone().reduce(ReduceKind::Mean, &[1], true)?;
    let centred = x.sub(mean.clone())?;
    let var = centred.clone().mul(centred.clone())?.reduce(ReduceKind::Mean, &[1], true)?;
    let inverse = var.add_scalar(epsilon).sqrt().recip();
    Ok((centred.mul(inverse.clone())?, mean, inverse))
}

/// Checks that a scale or shift broadcasts to `shape` without changing it.
fn check_broadcast(p: &Float, shape: &[usize]) -> Result<()> {
    if host::broadcast(p.shape(), shape)? != shape {
        return Err(Error::malformed(format!("{:?} does not broadcast to {shape:?}", p.shape())));
    }
    Ok(())
}

/// The sizes before and from `axis` on.
fn halves(shape: &[usize], axis: i64) -> Result<(usize, [usize; 2])> {
    let axis = value::axis(axis, shape.len())?;
    Ok((axis, [shape[..axis].iter().product(), shape[axis..].iter().product()]))
}

/// `x` in the type to compute with: narrower ones are held in a wider one anyway.
fn stashed(x: Float, stash_type: DType) -> Float {
    if stash_type == DType::F64 { x.with_dtype(stash_type) } else { x }
}

/// Normalisation over the last axes.
pub(super) fn layer(op: &LayerNorm, mut a: Args) -> Result<Vec<Value>> {
    let (x, scale, bias) = (a.float(0)?, a.float(1)?, a.opt_float(2)?);
    let (shape, dtype) = (x.shape().to_vec(), x.dtype());
    let (axis, matrix) = halves(&shape, op.axis)?;
    let x = stashed(x, op.stash_type).reshape(&matrix)?;
    let whole = |p: &Float| p.shape() == &shape[axis..];
    if !op.statistics && whole(&scale) && bias.as_ref().is_none_or(whole) {
        let flat = |p: Float| p.reshape(&matrix[1..]);
        let y = x.layer_norm(flat(scale)?, bias.map(flat).transpose()?, op.epsilon);
        return Ok(vec![Value::Float(y.reshape(&shape)?.with_dtype(dtype))]);
    }
    std::iter::once(&scale).chain(&bias).try_for_each(|p| check_broadcast(p, &shape))?;
    let (y, mean, inverse) = standardised(x, op.epsilon)?;
    let y = y.reshape(&shape)?.mul(scale)?;
    let y = if let Some(b) = bias { y.add(b)? } else { y }.with_dtype(dtype);
    let mut reduced = shape;
    reduced[axis..].fill(1);
    let statistic = |t: Float| Ok(Value::Float(t.reshape(&reduced)?.with_dtype(op.stash_type)));
    Ok(vec![Value::Float(y), statistic(mean)?, statistic(inverse)?])
}

/// Division by the root mean square over the last axes.
pub(super) fn rms(op: &RmsNorm, mut a: Args) -> Result<Value> {
    let (x, scale) = (a.float(0)?, a.float(1)?);
    let shape = x.shape().to_vec();
    check_broadcast(&scale, &shape)?;
    let (dtype, scale_dtype) = (x.dtype(), scale.dtype());
    let x = stashed(x, op.stash_type).reshape(&halves(&shape, op.axis)?.1)?;
    let square = x.clone().mul(x.clone())?.reduce(ReduceKind::Mean, &[1], true)?;
    let y = x.mul(square.add_scalar(op.epsilon).sqrt().recip())?.reshape(&shape)?;
    Ok(Value::Float(y.rounded_to(dtype).mul(scale)?.with_dtype(scale_dtype)))
}

/// Normalisation of groups of channels.
pub(super) fn group(op: &GroupNorm, a: Args) -> Result<Value> {
    grouped(a, usize::try_from(op.num_groups).ok(), op.per_group, op.epsilon, op.stash_type)
}

/// Normalisation of each channel.
pub(super) fn instance(op: &InstanceNorm, a: Args) -> Result<Value> {
    grouped(a, None, false, op.epsilon, DType::F32)
}

/// Normalises groups of channels, one a channel if `groups` isn't given.
fn grouped(mut a: Args, groups: Option<usize>, per_group: bool, epsilon: f32, stash_type: DType) -> Result<Value> {
    let x = a.float(0)?;
    let dtype = x.dtype();
    let x = stashed(x, stash_type);
    let shape = x.shape().to_vec();
    let &[batch, channels, ..] = &shape[..] else {
        return Err(Error::malformed(format!("an input of {shape:?} has no channels")));
    };
    let groups = groups.unwrap_or(channels);
    if groups == 0 || channels % groups != 0 {
        return Err(Error::malformed(format!("{channels} channels in {groups} groups")));
    }
    let columns = x.elements() / (batch * groups).max(1);
    let entries = if per_group { groups } else { channels };
    let (scale, bias) = (along_channels(&mut a, 1, entries, 3)?, along_channels(&mut a, 2, entries, 3)?);
    let (y, ..) = standardised(x.reshape(&[batch * groups, columns])?, epsilon)?;
    let y = y.reshape(&[batch, entries, columns * groups / entries])?;
    Ok(Value::Float(y.mul(scale)?.add(bias)?.reshape(&shape)?.with_dtype(dtype)))
}

/// Division by a power of the sum of squares over neighbouring channels.
pub(super) fn local_response(op: &Lrn, mut a: Args) -> Result<Value> {
    let x = a.float(0)?;
    let shape = x.shape().to_vec();
    let Some(&channels) = shape.get(1) else {
        return Err(Error::malformed(format!("an input of {shape:?} has no channels")));
    };
    let x = x.reshape(&[shape[0], channels, shape[2..].iter().product()])?;
    // Beyond the first and the last channel there is nothing to add.
    let reach = |n: i64| usize::try_from(n).unwrap_or(0).min(channels - 1);
    let (before, after) = (reach((op.size - 1) / 2), reach(op.size / 2));
    let padded = x.clone().mul(x.clone())?.pad(&[(0, 0), (before, after), (0, 0)], 0.0)?;
    let mut sum = padded.clone().slice(1, 0, channels, 1)?;
    for start in 1..=before + after {
        sum = sum.add(padded.clone().slice(1, start, channels, 1)?)?;
    }
    let divisor = sum.mul_scalar(op.alpha / op.size as f32).add_scalar(op.bias);
    x.div(divisor.pow_scalar(op.beta, a.device)?)?.reshape(&shape).map(Value::Float)
}
