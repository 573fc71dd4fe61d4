//! Attention and RotaryEmbedding.
//!
//! Results are rounded to the inputs' type at each step, as the operators' definitions by
//! smaller operators have it.

use super::Args;
use crate::{
    burn::{
        host::{self, IntArray, check_host},
        tensor::{Float, Value, check_size},
    },
    device::Device,
};
use compress_compiler::{
    error::{Error, Result},
    ops::{attention::Attention, flex_attention::FlexAttention, reduce::ReduceKind, rotary_embedding::RotaryEmbedding},
    tensor::DType,
};

/// `[batch, heads, length, size]` of an input that has these axes, or `[batch, length,
/// heads * size]`.
pub(super) fn split_heads(x: Float, heads: Option<i64>) -> Result<Float> {
    match *x.shape() {
        [_, _, _, _] => Ok(x),
        [batch, length, hidden] => {
            let heads = heads.and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0 && hidden % n == 0);
            let heads = heads.ok_or_else(|| Error::malformed(format!("{hidden} features don't divide into heads")))?;
            Ok(x.reshape(&[batch, length, heads, hidden / heads])?.permute(&[0, 2, 1, 3]))
        }
        _ => Err(Error::malformed(format!("an input of shape {:?}, where 3 or 4 axes are due", x.shape()))),
    }
}

/// The sizes of `[batch, heads, length, size]`, `[batch, groups, total, size]` and `[batch,
/// groups, total, value size]`, where each group of heads shares keys and values.
struct Sizes {
    batch: usize,
    heads: usize,
    groups: usize,
    length: usize,
    total: usize,
    size: usize,
    value_size: usize,
}

impl Sizes {
    fn new(q: &Float, k: &Float, v: &Float) -> Result<Self> {
        if let (&[batch, heads, length, size], &[kb, groups, total, ks], &[vb, vg, vt, value_size]) =
            (q.shape(), k.shape(), v.shape())
            && (kb, vb, ks, vg, vt) == (batch, batch, size, groups, total)
            && groups > 0
            && heads % groups == 0
        {
            return Ok(Self { batch, heads, groups, length, total, size, value_size });
        }
        let shapes = (q.shape(), k.shape(), v.shape());
        Err(Error::malformed(format!("Q, K, V of {shapes:?} don't fit together")))
    }

    /// `scale * Q * K'`, `[batch, heads, length, total]`.
    fn products(&self, q: Float, k: Float, scale: Option<f32>, device: &Device) -> Result<Float> {
        let dtype = q.dtype();
        let scale = scale.map_or(1.0 / (self.size.max(1) as f64).sqrt(), f64::from);
        let root = scale.abs().sqrt();
        let scaled =
            |x: Float, by: f64| Ok::<_, Error>(x.mul(Float::filled(&[], by, dtype, device)?)?.rounded_to(dtype));
        let y =
            self.rows(scaled(q, root * scale.signum())?, self.size)?.matmul(scaled(k, root)?.permute(&[0, 1, 3, 2]))?;
        Ok(y.reshape(&[self.batch, self.heads, self.length, self.total])?.rounded_to(dtype))
    }

    /// Weighted sums of V, `[batch, heads, length, value size]`.
    fn sums(&self, weights: Float, v: Float) -> Result<Float> {
        let y = self.rows(weights, self.total)?.matmul(v)?;
        y.reshape(&[self.batch, self.heads, self.length, self.value_size])
    }

    /// The heads of a group as rows of one matrix, since they share keys and values.
    fn rows(&self, x: Float, columns: usize) -> Result<Float> {
        x.reshape(&[self.batch, self.groups, self.heads / self.groups * self.length, columns])
    }
}

/// What a body of FlexAttention makes of scores (0) or of probabilities (1).
pub type Modify<'a> = dyn FnMut(usize, Value) -> Result<Value> + 'a;

/// Attention whose scores and probabilities go through graphs of their own.
pub fn flex(op: &FlexAttention, mut a: Args, modify: &mut Modify) -> Result<Vec<Value>> {
    let (q, k, v) = (a.float(0)?, a.float(1)?, a.float(2)?);
    let sizes = Sizes::new(&q, &k, &v)?;
    let (dtype, device) = (v.dtype(), a.device);
    let precision = op.precision(q.dtype());
    let shape = [sizes.batch, sizes.heads, sizes.length, sizes.total];
    if check_size(&shape)? == 0 || sizes.size == 0 || sizes.value_size == 0 {
        return Err(Error::unsupported("FlexAttention over nothing"));
    }
    let mut through = |present: bool, stage: usize, x: Float| {
        if !present {
            return Ok(x);
        }
        match modify(stage, Value::Float(x))? {
            Value::Float(y) if y.shape() == shape && y.dtype() == precision => Ok(y),
            y => Err(Error::malformed(format!("{}{:?}, where {precision}{shape:?} is due", y.dtype(), y.shape()))),
        }
    };
    let scores = sizes.products(q, k, op.scale, device)?.rounded_to(precision);
    let weights = softmax(through(op.score_mod.is_some(), 0, scores)?)?;
    let weights = through(op.prob_mod.is_some(), 1, weights)?;
    let y = sizes.sums(weights, v.with_dtype(precision))?.with_dtype(dtype);
    Ok(vec![Value::Float(y)])
}

/// Softmax of `scale * Q * K' + masks`, times V.
pub(super) fn attention(op: &Attention, mut a: Args) -> Result<Vec<Value>> {
    let (q, k, v) = (a.float(0)?, a.float(1)?, a.float(2)?);
    let dtype = q.dtype();
    let flat = q.shape().len() == 3;
    let q = split_heads(q, op.q_num_heads)?;
    let (k, v) = (split_heads(k, op.kv_num_heads)?, split_heads(v, op.kv_num_heads)?);
    let mut past = |slot| Ok::<_, Error>(a.opt_float(slot)?.filter(|p| p.elements() > 0));
    let (past_k, past_v) = (past(4)?, past(5)?);
    let before = past_k.as_ref().and_then(|p| p.shape().get(2)).copied().unwrap_or(0);
    let joined = |past: Option<Float>, new: Float| match past {
        Some(p) => Float::cat(vec![p.with_dtype(new.dtype()), new], 2),
        None => Ok(new),
    };
    let (k, v) = (joined(past_k, k)?, joined(past_v, v)?);
    let sizes = Sizes::new(&q, &k, &v)?;
    let Sizes { batch, heads, length, total, .. } = sizes;
    let lengths = a.opt_ints(6)?;
    if lengths.as_ref().is_some_and(|n| n.len() != batch) {
        return Err(Error::malformed(format!("nonpad_kv_seqlen for a batch of {batch}: {lengths:?}")));
    }
    let frame = Frame { op, length, total, before, lengths: lengths.as_deref().map(Vec::as_slice) };
    let masks = [mask(&mut a, total, dtype)?, frame.bias(&a)?];
    let bias = match masks {
        [Some(x), Some(y)] => Some(x.add(y)?.rounded_to(dtype)),
        [x, y] => x.or(y),
    };

    let shape = [batch, heads, length, total];
    let products = sizes.products(q, k.clone(), op.scale, a.device)?;
    let mut stages = vec![products.clone()];
    let capped = if op.softcap > 0.0 {
        let squeezed = products.div_scalar(op.softcap).rounded_to(dtype).tanh().rounded_to(dtype);
        squeezed.mul_scalar(op.softcap).rounded_to(dtype)
    } else {
        products
    };
    stages.push(capped.clone());
    let masked = match &bias {
        Some(b) if host::broadcast(b.shape(), &shape)? != shape => {
            return Err(Error::malformed(format!("a mask of {:?} for products of {shape:?}", b.shape())));
        }
        Some(b) => capped.add(b.clone())?.rounded_to(dtype),
        None => capped,
    };
    stages.push(masked.clone());
    let precision = op.softmax_precision.unwrap_or(dtype);
    // Queries that see no key would have NaN for weights, and for gradients.
    let seeing = bias.map(seeing).transpose()?.flatten();
    let zero_where_blind = |x: Float| match &seeing {
        Some(seeing) => x.select_where(seeing, Float::full(&[], 0.0, a.device)?),
        None => Ok(x),
    };
    let weights = zero_where_blind(softmax(zero_where_blind(masked.rounded_to(precision))?)?)?;
    let weights = weights.rounded_to(dtype);
    stages.push(weights.clone());
    let mut y = sizes.sums(weights, v.clone())?.with_dtype(dtype);
    if flat {
        y = y.permute(&[0, 2, 1, 3]).reshape(&[batch, length, heads * sizes.value_size])?;
    }
    let mode = usize::try_from(op.qk_matmul_output_mode).unwrap_or(0).min(3);
    Ok([y, k, v, stages.swap_remove(mode)].map(Value::Float).into())
}

/// attn_mask as what is added to the products; keys that it doesn't reach are not seen.
fn mask(a: &mut Args, total: usize, dtype: DType) -> Result<Option<Float>> {
    let mask = match a.opt(3) {
        None => return Ok(None),
        Some(Value::Float(mask)) => mask,
        Some(Value::Int(m)) => {
            let truth = m.dtype == DType::Bool;
            let bias = |v: &i64| match (truth, *v) {
                (true, 0) => f32::NEG_INFINITY,
                (true, _) => 0.0,
                (false, v) => v as f32,
            };
            Float::from_vec(m.data.iter().map(bias).collect(), &m.shape, a.device)?
        }
    };
    let Some(&last) = mask.shape().last() else { return Err(Error::malformed("a mask without axes")) };
    let mut border = vec![(0, 0); mask.shape().len()];
    if let Some(b) = border.last_mut() {
        b.1 = total.saturating_sub(last);
    }
    Ok(Some(mask.pad(&border, f32::NEG_INFINITY)?.with_dtype(dtype)))
}

/// What decides which keys a query sees by their places.
struct Frame<'a> {
    op: &'a Attention,
    length: usize,
    total: usize,
    /// The number of keys of the past.
    before: usize,
    /// For each sample, how many keys are not padding.
    lengths: Option<&'a [i64]>,
}

impl Frame<'_> {
    /// 0 where a query sees a key and minus infinity elsewhere, `[batch or 1, 1, length, total]`.
    fn bias(&self, a: &Args) -> Result<Option<Float>> {
        let op = self.op;
        if !op.is_causal && !op.has_window() && self.lengths.is_none() {
            return Ok(None);
        }
        let (length, total) = (self.length as i64, self.total as i64);
        let samples: Vec<(i64, i64)> = match self.lengths {
            // With keys of the past, the sample's own length says nothing about the queries' places.
            Some(lengths) if self.before == 0 => lengths.iter().map(|n| (n.saturating_sub(length), *n)).collect(),
            Some(lengths) => lengths.iter().map(|n| (self.before as i64, *n)).collect(),
            None => vec![(self.before as i64, total)],
        };
        let shape = [samples.len(), 1, self.length, self.total];
        let mut bias = Vec::with_capacity(check_host(&shape)?);
        for (offset, valid) in samples {
            for i in 0..length {
                let at = offset.saturating_add(i);
                for j in 0..total {
                    let ahead = j.saturating_sub(at);
                    let seen = j < valid
                        && (!op.is_causal || ahead <= 0)
                        && (op.left_window_size < 0 || ahead.saturating_neg() <= op.left_window_size)
                        && (op.right_window_size < 0 || ahead <= op.right_window_size);
                    bias.push(if seen { 0.0 } else { f32::NEG_INFINITY });
                }
            }
        }
        Float::from_vec(bias, &shape, a.device).map(Some)
    }
}

/// Softmax along the last of four axes, for types of 16 bits with all their roundings.
fn softmax(x: Float) -> Result<Float> {
    let dtype = x.dtype();
    if !matches!(dtype, DType::F16 | DType::BF16) {
        return Ok(x.softmax(3, false));
    }
    let most = x.clone().reduce(ReduceKind::Max, &[3], true)?;
    let powers = x.sub(most)?.rounded_to(dtype).exp().rounded_to(dtype);
    let sum = powers.clone().reduce(ReduceKind::Sum, &[3], true)?.rounded_to(dtype);
    Ok(powers.div(sum)?.rounded_to(dtype))
}

/// The queries that see some key, if there are others.
fn seeing(bias: Float) -> Result<Option<IntArray>> {
    let last = bias.shape().len() - 1;
    let best = bias.detached().reduce(ReduceKind::Max, &[last], true)?;
    let seeing: Vec<i64> = best.view(|v| Ok(v.iter().map(|v| (*v != f32::NEG_INFINITY) as i64).collect()))?;
    let blind = seeing.contains(&0);
    Ok(blind.then(|| IntArray::new(DType::Bool, best.shape().to_vec(), seeing)))
}

/// Turns pairs of features by the angles whose cosines and sines are given.
pub(super) fn rotary(op: &RotaryEmbedding, mut a: Args) -> Result<Value> {
    let (x, cos, sin) = (a.float(0)?, a.float(1)?, a.float(2)?);
    let (shape, dtype) = (x.shape().to_vec(), x.dtype());
    let heads_first = shape.len() == 4;
    let x = match shape[..] {
        [_, _, _, _] => x,
        [batch, length, hidden] => {
            let heads = usize::try_from(op.num_heads).ok().filter(|n| *n > 0 && hidden % n == 0);
            let heads = heads.ok_or_else(|| Error::malformed(format!("{hidden} features don't divide into heads")))?;
            x.reshape(&[batch, length, heads, hidden / heads])?
        }
        _ => return Err(Error::malformed(format!("an input of shape {shape:?}, where 3 or 4 axes are due"))),
    };
    let whole = x.shape().to_vec();
    let size = whole[3];
    let turned = match usize::try_from(op.rotary_embedding_dim).unwrap_or(0) {
        0 => size,
        n => n,
    };
    if turned > size || turned % 2 != 0 {
        return Err(Error::malformed(format!("{turned} of {size} features cannot be turned")));
    }
    let half = turned / 2;
    let places = a.opt(3).map(Value::into_ints).transpose()?;
    let angles = |table: Float| -> Result<Float> {
        let table = match &places {
            None => table,
            Some(p) => {
                let &[_, width] = table.shape() else {
                    return Err(Error::malformed(format!("a table of shape {:?}, not a matrix", table.shape())));
                };
                let picked = [&p.shape[..], &[width]].concat();
                check_size(&picked)?;
                table.select(0, p.data.to_vec())?.reshape(&picked)?
            }
        };
        let &[batch, length, width] = table.shape() else {
            return Err(Error::malformed(format!("cosines or sines of shape {:?}", table.shape())));
        };
        if width != half {
            return Err(Error::malformed(format!("{width} angles for {half} pairs of features")));
        }
        let broadcast = if heads_first { [batch, 1, length, half] } else { [batch, length, 1, half] };
        let mut pairs = whole.clone();
        pairs[3] = half;
        if host::broadcast(&broadcast, &pairs)? != pairs {
            return Err(Error::malformed(format!("angles of {:?} for an input of {shape:?}", table.shape())));
        }
        table.reshape(&broadcast)
    };
    let (cos, sin) = (angles(cos)?, angles(sin)?);
    let (first, second) = if op.interleaved {
        (x.clone().slice(3, 0, half, 2)?, x.clone().slice(3, 1, half, 2)?)
    } else {
        (x.clone().slice(3, 0, half, 1)?, x.clone().slice(3, half, half, 1)?)
    };
    let product = |a: &Float, b: &Float| Ok::<_, Error>(a.clone().mul(b.clone())?.rounded_to(dtype));
    let real = product(&first, &cos)?.sub(product(&second, &sin)?)?;
    let imaginary = product(&first, &sin)?.add(product(&second, &cos)?)?;
    let mut parts = if op.interleaved {
        let column = [whole[0], whole[1], whole[2], half, 1];
        let pairs = Float::cat(vec![real.reshape(&column)?, imaginary.reshape(&column)?], 4)?;
        vec![pairs.reshape(&[whole[0], whole[1], whole[2], turned])?]
    } else {
        vec![real, imaginary]
    };
    if turned < size {
        parts.push(x.slice(3, turned, size - turned, 1)?);
    }
    Float::cat(parts, 3)?.reshape(&shape).map(Value::Float)
}
