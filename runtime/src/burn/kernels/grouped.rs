//! GroupQueryAttention.

use super::{
    Args,
    attention::{attention, rotary, split_heads},
};
use crate::burn::{
    host::{IntArray, check_host},
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    ops::{attention::Attention, group_query_attention::GroupQueryAttention, rotary_embedding::RotaryEmbedding},
    tensor::DType,
};

/// Attention of queries that are turned by their places, over a cache that new keys and values are put into.
pub(super) fn attend(op: &GroupQueryAttention, mut a: Args) -> Result<Vec<Value>> {
    let device = a.device;
    let query = a.float(0)?;
    let (heads, groups) = (op.num_heads as usize, op.kv_num_heads as usize);
    let (q, k, v) = match (a.opt_float(1)?, a.opt_float(2)?) {
        (Some(k), Some(v)) => (
            split_heads(query, Some(op.num_heads))?,
            split_heads(k, Some(op.kv_num_heads))?,
            split_heads(v, Some(op.kv_num_heads))?,
        ),
        (None, None) => {
            let all = split_heads(query, Some(op.num_heads + 2 * op.kv_num_heads))?;
            let part = |from, count| all.clone().slice(1, from, count, 1);
            (part(0, heads)?, part(heads, groups)?, part(heads + groups, groups)?)
        }
        _ => return Err(Error::malformed("keys without values, or values without keys")),
    };
    let [batch, _, length, size] = *q.shape() else { return Err(Error::malformed("queries of another rank")) };
    if k.shape() != [batch, groups, length, size] || v.shape() != k.shape() {
        let shapes = (q.shape(), k.shape(), v.shape());
        return Err(Error::malformed(format!("queries, keys and values of {shapes:?} don't fit together")));
    }
    let (past_k, past_v) = (a.opt_float(3)?, a.opt_float(4)?);
    let before = past_k.as_ref().map_or(0, |past| past.shape().get(2).copied().unwrap_or(0));
    for past in [&past_k, &past_v].into_iter().flatten() {
        if past.shape() != [batch, groups, before, size] {
            return Err(Error::malformed(format!("a cache of {:?} for keys of {:?}", past.shape(), k.shape())));
        }
    }
    let (lasts, all) = (a.ints(5)?, a.ints(6)?);
    let all = all.first().and_then(|n| usize::try_from(*n).ok()).filter(|n| *n >= length);
    let all = all.ok_or_else(|| Error::malformed("total_sequence_length below the number of queries"))?;
    let total = all.max(before);
    let ends: Option<Vec<usize>> = lasts.iter().map(|n| usize::try_from(n + 1).ok().filter(|n| *n <= total)).collect();
    let ends = ends.filter(|ends| ends.len() == batch);
    let ends =
        ends.ok_or_else(|| Error::malformed(format!("seqlens_k of {lasts:?} for {batch} samples and {total} keys")))?;
    // Of a prompt none come before; what lies behind its end is padding.
    let begins: Vec<usize> = ends.iter().map(|end| end.saturating_sub(length)).collect();
    if begins.iter().any(|begin| *begin > before) {
        return Err(Error::malformed(format!("seqlens_k of {lasts:?} behind a cache of {before}")));
    }
    let (cos, sin) = (a.opt(7), a.opt(8));
    let is_prompt = all == length && begins.iter().all(|begin| *begin == 0);
    let places = match a.opt(9) {
        // Of a prompt, ONNX Runtime's kernel heeds the first alone.
        Some(places) if is_prompt => {
            let first = places.into_ints()?.data.first().copied().unwrap_or(0);
            let places = (0..length as i64).map(|i| first.saturating_add(i)).collect::<Vec<_>>().repeat(batch);
            Value::Int(IntArray::new(DType::I64, vec![batch, length], places))
        }
        Some(places) => places,
        None => {
            let places = begins.iter().flat_map(|begin| (0..length).map(move |i| (begin + i) as i64)).collect();
            Value::Int(IntArray::new(DType::I64, vec![batch, length], places))
        }
    };
    let (q, k) = match (op.do_rotary, cos, sin) {
        (false, ..) => (q, k),
        (true, Some(cos), Some(sin)) => {
            let pairs = cos.shape().last().copied().unwrap_or(0);
            let turn = RotaryEmbedding {
                interleaved: op.rotary_interleaved,
                rotary_embedding_dim: 2 * pairs as i64,
                num_heads: 0,
            };
            let turned = |x: Float| {
                let operands = [Value::Float(x), cos.clone(), sin.clone(), places.clone()];
                float(rotary(&turn, Args::new(operands.map(Some).into(), device))?)
            };
            (turned(q)?, turned(k)?)
        }
        _ => return Err(Error::malformed("do_rotary without cos_cache and sin_cache")),
    };
    let (k, v) = (present(k, past_k, &begins, total, device)?, present(v, past_v, &begins, total, device)?);

    let shape = [batch, 1, length, total];
    let mut seen = Vec::with_capacity(check_host(&shape)?);
    let window = usize::try_from(op.local_window_size).unwrap_or(usize::MAX);
    for begin in &begins {
        let rows = (0..length).map(|i| begin + i);
        seen.extend(rows.flat_map(|at| (0..total).map(move |j| j <= at && at - j < window)));
    }
    let mask =
        Float::from_vec(seen.iter().map(|seen| if *seen { 0.0 } else { f32::NEG_INFINITY }).collect(), &shape, device)?;
    let mask = match a.opt_float(10)? {
        Some(bias) => bias.add(mask)?,
        None => mask,
    };
    let over = Attention {
        is_causal: false,
        q_num_heads: None,
        kv_num_heads: None,
        scale: op.scale,
        softcap: op.softcap,
        softmax_precision: None,
        qk_matmul_output_mode: 0,
        left_window_size: -1,
        right_window_size: -1,
    };
    let operands = [q, k.clone(), v.clone(), mask].map(|x| Some(Value::Float(x)));
    let y = attention(&over, Args::new(operands.into(), device))?;
    let y = float(y.into_iter().next().ok_or_else(|| Error::bug("attention without a result"))?)?;
    let y = y.permute(&[0, 2, 1, 3]).reshape(&[batch, length, heads * size])?;
    Ok([y, k, v].map(Value::Float).into())
}

fn float(x: Value) -> Result<Float> {
    match x {
        Value::Float(x) => Ok(x),
        Value::Int(_) => Err(Error::bug("integers where floats are made")),
    }
}

/// `past` with `new` from the places `begins` on, `total` long: what lies behind is 0, as where ONNX Runtime has a place of its own
/// for it.
fn present(
    new: Float,
    past: Option<Float>,
    begins: &[usize],
    total: usize,
    device: &crate::device::Device,
) -> Result<Float> {
    let [_, groups, length, size] = *new.shape() else { return Err(Error::bug("keys of another rank")) };
    let dtype = new.dtype();
    let sample = |b: usize, begin: usize| -> Result<Float> {
        let past = past.clone().filter(|_| begin > 0);
        let past = past.map(|past| past.slice(0, b, 1, 1)?.slice(2, 0, begin, 1)).transpose()?;
        let mut parts: Vec<Float> = past.into_iter().collect();
        parts.push(new.clone().slice(0, b, 1, 1)?);
        let behind = total.saturating_sub(begin + length);
        if behind > 0 {
            parts.push(Float::filled(&[1, groups, behind, size], 0.0, dtype, device)?);
        }
        let parts = parts.into_iter().map(|part| part.with_dtype(dtype)).collect();
        Float::cat(parts, 2)
    };
    let samples = begins.iter().enumerate().map(|(b, begin)| sample(b, *begin)).collect::<Result<Vec<_>>>()?;
    Float::cat(samples, 0)
}
