//! Attention and MultiHeadAttention: `softmax(Q * K' * scale + mask) * V`, with projections or without.

use super::{
    length,
    listing::{Listing, int, ints},
    range,
};
use crate::{
    tensor::{DType, Tensor},
    value::Dim,
};

/// What is added where a mask hides a key, unless the node says.
const FILTER: f32 = -10000.0;

/// What queries meet.
struct Heads {
    /// How many there are.
    heads: i64,
    /// The size of one of queries and keys, and of one of values.
    sizes: [i64; 2],
    /// What the products are multiplied by, if it is not 0.
    scale: f32,
    /// What is added where a mask hides a key.
    filter: f32,
    /// Whether a query sees no key behind its own position.
    causal: bool,
    /// The slots of the mask and of what is added to the products.
    slots: [usize; 2],
    /// Keys and values from before, `[batch, heads, length, size]`.
    past: Option<[String; 2]>,
    /// Whether keys and values come as `[batch, heads, length, size]`.
    apart: bool,
    /// Whether keys and values are asked for in that form.
    present: bool,
}

/// Projections of one input are queries, keys and values. Inputs: X, weights and bias of the projections, mask, keys
/// and values from before, what is added to the products, their length. Outputs: the result, and keys and values.
pub(super) fn packed(list: &mut Listing) -> Option<()> {
    list.fits(7, 2)?;
    let mut r = list.reader()?;
    let heads = r.opt_int("num_heads").ok()??;
    let sizes = r.opt_ints("qkv_hidden_sizes").ok()?.filter(|sizes| !sizes.is_empty());
    let (scale, filter) = (r.float("scale", 0.0).ok()?, r.float("mask_filter_value", FILTER).ok()?);
    let causal = r.flag("unidirectional", false).ok()?;
    let other = r.flag("do_rotary", false).ok()? || r.flag("past_present_share_buffer", false).ok()?;
    r.int("rotary_embedding_dim", 0).ok()?;
    r.finish().ok()?;
    let ([_, _, _], [_, Dim::Known(total)]) = (list.dims(0)?, list.dims(1)?) else { return None };
    let [q, k, v] = match sizes {
        Some(sizes) => <[i64; 3]>::try_from(sizes).ok()?,
        None => [*total / 3; 3],
    };
    let sum = q.checked_add(k)?.checked_add(v)?;
    if other || list.given(6).is_some() || q != k || sum != *total {
        return None;
    }
    let sizes = [size(q, heads)?, size(v, heads)?];
    let (x, weights, past, present) = (list.given(0)?, list.given(1)?, list.given(4), list.wants(1));
    // Both are one tensor, and the kernel wants them handed on.
    if present && q != v || past.is_some() && !present {
        return None;
    }
    let past = past.map(|past| {
        [0, 1].map(|i| {
            let i = list.int(i);
            list.op("Gather", &[past, &i])
        })
    });
    let mut all = list.op("MatMul", &[x, weights]);
    list.keeps_name();
    if let Some(bias) = list.given(2) {
        all = list.op("Add", &[&all, bias]);
    }
    let parts = list.ints(&[q, k, v]);
    let [q, k, v] = list.many("Split", &[&all, &parts], vec![int("axis", 2)]);
    let heads = Heads { heads, sizes, scale, filter, causal, slots: [3, 5], past, apart: false, present };
    let (y, now) = heads.attend(list, [&q, &k, &v], [x, x])?;
    if let Some(now) = now {
        let axis = list.ints(&[0]);
        let [keys, values] = now.map(|x| list.op("Unsqueeze", &[&x, &axis]));
        let both = list.with("Concat", &[&keys, &values], vec![int("axis", 0)]);
        list.result(1, &both);
    }
    list.result(0, &y);
    Some(())
}

/// Queries, keys and values are given. Inputs: these, a bias of all three, mask, what is added to the products, keys
/// and values from before. Outputs: the result, keys, values.
pub(super) fn apart(list: &mut Listing) -> Option<()> {
    list.fits(8, 3)?;
    let mut r = list.reader()?;
    let heads = r.opt_int("num_heads").ok()??;
    let (scale, filter) = (r.float("scale", 0.0).ok()?, r.float("mask_filter_value", FILTER).ok()?);
    let causal = r.flag("unidirectional", false).ok()?;
    r.finish().ok()?;
    let (query, key, value) = (list.given(0)?, list.given(1)?, list.given(2)?);
    let present = list.wants(1);
    let past: Option<[String; 2]> = match (list.given(6), list.given(7)) {
        (None, None) => None,
        // The kernel wants them handed on.
        (Some(keys), Some(values)) if present => Some([keys.into(), values.into()]),
        _ => return None,
    };
    let [_, queries, Dim::Known(q)] = list.dims(0)? else { return None };
    let (apart, keys, k, v) = match (list.dims(1)?, list.dims(2)?) {
        ([_, keys, Dim::Known(k)], [_, _, Dim::Known(v)]) => (false, keys, *k, *v),
        ([_, Dim::Known(n), keys, Dim::Known(k)], [_, Dim::Known(m), _, Dim::Known(v)]) => {
            // The kernel takes nothing else with keys and values of this form.
            if [*n, *m] != [heads; 2] || list.given(3).is_some() || past.is_some() || present {
                return None;
            }
            (true, keys, n.checked_mul(*k)?, m.checked_mul(*v)?)
        }
        _ => return None,
    };
    let q = *q;
    // Where there may be more queries than keys, or fewer, the kernel hides other keys than those that come later.
    if q != k || list.wants(2) != present || causal && !queries.same(keys) {
        return None;
    }
    let sizes = [size(q, heads)?, size(v, heads)?];
    let mut operands = [query, key, value].map(String::from);
    if let Some(bias) = list.given(3) {
        let sum = q.checked_add(k)?.checked_add(v)?;
        if list.dims(3)? != [Dim::Known(sum)] {
            return None;
        }
        let parts = list.ints(&[q, k, v]);
        let biases: [String; 3] = list.many("Split", &[bias, &parts], vec![int("axis", 0)]);
        for (x, bias) in operands.iter_mut().zip(&biases) {
            *x = list.op("Add", &[x, bias]);
        }
    }
    let heads = Heads { heads, sizes, scale, filter, causal, slots: [4, 5], past, apart, present };
    let [q, k, v] = &operands;
    let (y, now) = heads.attend(list, [q, k, v], [query, key])?;
    if let Some([keys, values]) = now {
        list.result(1, &keys);
        list.result(2, &values);
    }
    list.result(0, &y);
    Some(())
}

/// The size of one of so many heads.
fn size(features: i64, heads: i64) -> Option<i64> {
    (heads > 0 && features > 0 && features % heads == 0).then(|| features / heads)
}

impl Heads {
    /// What is made of queries, keys and values, and the keys and values if they are asked for. Queries and keys are as
    /// long as the two values that follow.
    fn attend(
        &self,
        list: &mut Listing,
        [q, k, v]: [&str; 3],
        [queries, source]: [&str; 2],
    ) -> Option<(String, Option<[String; 2]>)> {
        let [size, value_size] = self.sizes;
        let dtype = list.float(0).filter(|t| *t == DType::F32)?;
        let mut now = None;
        let (keys, values, (longest, axis)) = if self.past.is_some() || self.apart || self.present {
            let mut both = if self.apart {
                [k, v].map(String::from)
            } else {
                [self.parted(list, k, size, [0, 2, 1, 3]), self.parted(list, v, value_size, [0, 2, 1, 3])]
            };
            if let Some(past) = &self.past {
                for (x, past) in both.iter_mut().zip(past) {
                    *x = list.with("Concat", &[past, x], vec![int("axis", 2)]);
                }
            }
            let [k, v] = both;
            let keys = list.with("Transpose", &[&k], vec![ints("perm", &[0, 1, 3, 2])]);
            now = self.present.then(|| [k.clone(), v.clone()]);
            (keys, v, (k, 2))
        } else {
            let keys = self.parted(list, k, size, [0, 2, 3, 1]);
            (keys, self.parted(list, v, value_size, [0, 2, 1, 3]), (source.to_owned(), 1))
        };
        let q = self.parted(list, q, size, [0, 2, 1, 3]);
        let products = list.op("MatMul", &[&q, &keys]);
        let scale = if self.scale == 0.0 { (size as f32).sqrt().recip() } else { self.scale };
        let scale = list.number(dtype, scale);
        let mut scores = list.op("Mul", &[&products, &scale]);
        if let Some(mask) = self.mask(list, queries, (longest.as_str(), axis))? {
            scores = list.op("Add", &[&scores, &mask]);
        }
        let weights = list.with("Softmax", &[&scores], vec![int("axis", -1)]);
        let sums = list.op("MatMul", &[&weights, &values]);
        let sums = list.with("Transpose", &[&sums], vec![ints("perm", &[0, 2, 1, 3])]);
        let shape = list.ints(&[0, 0, self.heads.checked_mul(value_size)?]);
        Some((list.op("Reshape", &[&sums, &shape]), now))
    }

    /// `x`, `[batch, length, heads * size]`, as `[batch, length, heads, size]` in the order of `perm`.
    fn parted(&self, list: &mut Listing, x: &str, size: i64, perm: [i64; 4]) -> String {
        let shape = list.ints(&[0, 0, self.heads, size]);
        let parts = list.op("Reshape", &[x, &shape]);
        list.with("Transpose", &[&parts], vec![ints("perm", &perm)])
    }

    /// All that is added to the products, if anything is. The keys lie along an axis of a value.
    fn mask(&self, list: &mut Listing, queries: &str, keys: (&str, i64)) -> Option<Option<String>> {
        let [mask, bias] = self.slots;
        let mut sum = None;
        if list.given(mask).is_some() {
            let seen = seen(list, mask, keys)?;
            let (zero, filter) = (list.number(DType::F32, 0.0), list.number(DType::F32, self.filter));
            sum = Some(list.op("Where", &[&seen, &zero, &filter]));
        }
        if self.causal {
            let end = length(list, queries, 1);
            let mut rows = range(list, &end);
            if let Some([past, _]) = &self.past {
                let before = length(list, past, 2);
                rows = list.op("Add", &[&rows, &before]);
            }
            let axis = list.ints(&[1]);
            let rows = list.op("Unsqueeze", &[&rows, &axis]);
            let end = length(list, keys.0, keys.1);
            let columns = range(list, &end);
            let hidden = list.op("Greater", &[&columns, &rows]);
            let lowest = list.number(DType::F32, f32::MIN);
            let others = sum.unwrap_or_else(|| list.number(DType::F32, 0.0));
            sum = Some(list.op("Where", &[&hidden, &lowest, &others]));
        }
        if let Some(bias) = list.given(bias) {
            sum = Some(match sum {
                Some(sum) => list.op("Add", &[&sum, bias]),
                None => bias.into(),
            });
        }
        Some(sum)
    }
}

/// Which keys the mask at `slot` lets be seen, `[batch, 1, queries or 1, keys]`.
fn seen(list: &mut Listing, slot: usize, keys: (&str, i64)) -> Option<String> {
    let (mask, fact) = (list.given(slot)?, list.fact(slot)?);
    if fact.dtype != Some(DType::I32) {
        return None;
    }
    let batch = list.dims(0)?.first()?;
    let axes = match fact.dims()? {
        // The kernel does not look at one element for all keys.
        [_, Dim::Known(1)] => return None,
        [_, _] => list.ints(&[1, 2]),
        [_, _, _] => list.ints(&[1]),
        [n] => return ends(list, mask, (n, batch), keys),
        _ => return None,
    };
    let mask = list.op("Unsqueeze", &[mask, &axes]);
    let zero = list.constant(Tensor::ints(DType::I32, &[], &[0]));
    Some(list.op("Greater", &[&mask, &zero]))
}

/// Which keys are seen where `mask` has `n` elements: before which key each of a batch ends, and perhaps behind all of
/// these, with which it begins.
fn ends(list: &mut Listing, mask: &str, (n, batch): (&Dim, &Dim), keys: (&str, i64)) -> Option<String> {
    let (end, start) = if n.same(batch) {
        (mask.to_owned(), None)
    } else {
        let batch = batch.known().filter(|b| *b > 0 && b.checked_mul(2) == n.known())?;
        let parts = list.ints(&[batch, batch]);
        let [end, start] = list.many("Split", &[mask, &parts], vec![int("axis", 0)]);
        (end, Some(start))
    };
    let count = length(list, keys.0, keys.1);
    let columns = range(list, &count);
    let end = bound(list, &end);
    let seen = list.op("Less", &[&columns, &end]);
    let Some(start) = start else { return Some(seen) };
    let start = bound(list, &start);
    let begun = list.op("GreaterOrEqual", &[&columns, &start]);
    Some(list.op("And", &[&seen, &begun]))
}

/// One number for each of a batch, `[batch, 1, 1, 1]`.
fn bound(list: &mut Listing, x: &str) -> String {
    let x = list.with("Cast", &[x], vec![int("to", DType::I64 as i64)]);
    let axes = list.ints(&[1, 2, 3]);
    list.op("Unsqueeze", &[&x, &axes])
}
