//! LinearAttention and CausalConvWithState, step by step as they are defined.

use super::{Args, empty_value};
use crate::burn::tensor::{Float, Value, check_size};
use compress_compiler::{
    error::{Error, Result},
    ops::linear_attention::{CausalConv, LinearAttention},
};

/// Attention as a recurrence.
pub(super) fn linear_attention(op: &LinearAttention, mut a: Args) -> Result<Vec<Value>> {
    let (q, k, v) = (a.float(0)?, a.float(1)?, a.float(2)?);
    let dtype = q.dtype();
    let heads = |n: i64| usize::try_from(n).unwrap_or(0).max(1);
    let (queries, groups) = (heads(op.q_num_heads), heads(op.kv_num_heads));
    let (&[batch, length, q_hidden], &[_, _, v_hidden]) = (q.shape(), v.shape()) else {
        return Err(Error::malformed(format!("a query of {:?} and a value of {:?}", q.shape(), v.shape())));
    };
    if q_hidden % queries != 0 || v_hidden % groups != 0 {
        return Err(Error::malformed(format!("{q_hidden} and {v_hidden} features don't divide into heads")));
    }
    let (key, value) = (q_hidden / queries, v_hidden / groups);
    let (k_shape, v_shape) = ([batch, length, groups * key], [batch, length, groups * value]);
    if k.shape() != k_shape || v.shape() != v_shape {
        let shapes = (q.shape(), k.shape(), v.shape());
        return Err(Error::malformed(format!("query, key and value of {shapes:?} don't fit together")));
    }
    let state_shape = [batch, groups, key, value];
    check_size(&state_shape)?;
    let past = a.opt_float(3)?;
    let state_type = past.as_ref().map_or(dtype, Float::dtype);
    let mut state = match past {
        Some(p) if p.shape() == state_shape => p,
        Some(p) => return Err(Error::malformed(format!("past_state of {:?}, not {state_shape:?}", p.shape()))),
        None => Float::full(&state_shape, 0.0, a.device)?,
    };
    // Both have an entry a head or more; the last axis says how many.
    let decay = gate(&mut a, 4, op.gated, [batch, length], &[groups, groups * key])?;
    let beta = gate(&mut a, 5, op.delta, [batch, length], &[groups, 1])?;
    let scale = if op.scale == 0.0 { 1.0 / (key as f32).sqrt() } else { op.scale };

    let mut outputs = Vec::with_capacity(length);
    for t in 0..length {
        let at = |x: &Float, shape: [usize; 4]| x.clone().slice(1, t, 1, 1)?.reshape(&shape);
        if let Some(g) = &decay {
            let each = if g.shape()[2] == groups { 1 } else { key };
            state = state.mul(at(g, [batch, groups, each, 1])?.exp())?;
        }
        let mut new = at(&v, [batch, groups, 1, value])?;
        if let Some(b) = &beta {
            let known = at(&k, [batch, groups, 1, key])?.matmul(state.clone())?;
            new = new.sub(known)?.mul(at(b, [batch, b.shape()[2], 1, 1])?)?;
        }
        state = state.add(at(&k, [batch, groups, key, 1])?.mul(new)?)?;
        let y = at(&q, [batch, groups, queries / groups, key])?.matmul(state.clone())?;
        outputs.push(y.mul_scalar(scale).reshape(&[batch, 1, queries * value])?);
    }
    let output = Float::cat(outputs, 1)?.with_dtype(dtype);
    Ok(vec![Value::Float(output), Value::Float(state.with_dtype(state_type))])
}

/// An input that the rule needs, or must not have.
fn gate(a: &mut Args, slot: usize, needed: bool, leading: [usize; 2], last: &[usize]) -> Result<Option<Float>> {
    let g = a.opt_float(slot)?;
    let fits = |g: &Float| matches!(*g.shape(), [b, t, n] if [b, t] == leading && last.contains(&n));
    match g {
        None if !needed => Ok(None),
        Some(g) if needed && fits(&g) => Ok(Some(g)),
        Some(g) if needed => Err(Error::malformed(format!("input {slot} has shape {:?}", g.shape()))),
        Some(_) => Err(Error::malformed(format!("input {slot} is not for this update_rule"))),
        None => Err(Error::malformed(format!("this update_rule needs input {slot}"))),
    }
}

/// Depthwise convolution over what came before and what comes now.
pub(super) fn causal_conv(op: &CausalConv, mut a: Args) -> Result<Vec<Value>> {
    let (x, w, bias) = (a.float(0)?, a.float(1)?, a.opt_float(2)?);
    let (&[batch, channels, length], &[wc, 1, k]) = (x.shape(), w.shape()) else {
        return Err(Error::malformed(format!("an input of {:?} and a weight of {:?}", x.shape(), w.shape())));
    };
    let dtype = x.dtype();
    let past_shape = [batch, channels, k.saturating_sub(1)];
    let past = a.opt_float(3)?;
    let misfit = past.as_ref().is_some_and(|p| p.shape() != past_shape);
    if wc != channels || k == 0 || misfit || bias.as_ref().is_some_and(|b| b.shape() != [channels]) {
        return Err(Error::malformed(format!("{wc} filters of {k} with this state for an input of {:?}", x.shape())));
    }
    let padded = match past.filter(|p| p.elements() > 0) {
        Some(past) => Float::cat(vec![past.with_dtype(dtype), x], 2)?,
        None => x.pad(&[(0, 0), (0, 0), (k - 1, 0)], 0.0)?,
    };
    let tap = |i: usize| {
        let w = w.clone().slice(2, i, 1, 1)?.reshape(&[1, channels, 1])?;
        padded.clone().slice(2, i, length, 1)?.mul(w)
    };
    let mut y = tap(0)?;
    for i in 1..k {
        y = y.add(tap(i)?)?;
    }
    if let Some(b) = bias {
        y = y.add(b.reshape(&[1, channels, 1])?)?;
    }
    y = y.rounded_to(dtype);
    if op.silu {
        y = y.clone().sigmoid().mul(y)?;
    }
    let state = if k == 1 {
        empty_value(dtype, &past_shape, a.device)?
    } else {
        Value::Float(padded.slice(2, length, k - 1, 1)?)
    };
    Ok(vec![Value::Float(y), state])
}
