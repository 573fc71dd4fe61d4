//! GroupQueryAttention of ONNX Runtime's domain: attention with rotary embedding and a cache, as decoders made for ONNX Runtime
//! GenAI have it (onnxruntime's docs/ContribOperators.md).

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Inputs: query, or queries, keys and values side by side; key; value, `[batch, length, heads * size]`; past_key and past_value,
/// `[batch, heads, past, size]`; seqlens_k, for each sample the number of keys less one, `[batch]`; total_sequence_length, the most
/// keys of a sample; cos_cache and sin_cache, `[places, pairs]`; position_ids, `[batch, length]`; attention_bias, which is added to
/// the products. Outputs: the result, `[batch, length, heads * size]`; present_key and present_value, which are as long as there are
/// keys, or as the past where that is longer.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupQueryAttention {
    /// The heads of queries.
    pub num_heads: i64,
    /// The heads of keys and values, each of which several heads of queries share.
    pub kv_num_heads: i64,
    /// Scales the products; 1 / sqrt(head size) unless given.
    pub scale: Option<f32>,
    /// Squeezes the products into `-softcap..softcap`, where above 0.
    pub softcap: f32,
    /// How many keys a query sees, its own place counted; all before it if negative.
    pub local_window_size: i64,
    /// Whether queries and keys are turned by the angles of their places.
    pub do_rotary: bool,
    /// Whether the pairs that are turned are neighbours; otherwise they are half the features apart.
    pub rotary_interleaved: bool,
}

impl GroupQueryAttention {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self {
            num_heads: r.int("num_heads", 0)?,
            kv_num_heads: r.int("kv_num_heads", 0)?,
            scale: r.opt_float("scale")?.filter(|scale| *scale != 0.0),
            softcap: r.float("softcap", 0.0)?,
            local_window_size: r.int("local_window_size", -1)?,
            do_rotary: r.flag("do_rotary", false)?,
            rotary_interleaved: r.flag("rotary_interleaved", false)?,
        };
        let causal = r.int("causal", 1)?;
        let newer = ["smooth_softmax", "kv_cache_bit_width", "sliding_window_cache", "qk_output"];
        let newer = newer.into_iter().map(|name| Ok(r.int(name, 0)? > 0)).collect::<Result<Vec<_>>>()?;
        // Newer forms, whose caches are codes, or that normalise queries and keys, are kept as they came.
        if causal != 1 || newer.contains(&true) || r.inputs > 11 || r.outputs > 3 {
            return Err(Error::unsupported("GroupQueryAttention in a form that is not known here"));
        }
        let (q, kv) = (op.num_heads, op.kv_num_heads);
        let side_by_side = kv.checked_mul(2).and_then(|kv| kv.checked_add(q));
        if q < 1 || kv < 1 || q % kv != 0 || side_by_side.is_none() {
            return Err(Error::malformed(format!("{q} heads of queries and {kv} of keys and values")));
        }
        Ok(op)
    }

    /// The features of a head, of a query of so many; with keys and values side by side if it is `packed`.
    pub fn size(&self, features: i64, packed: bool) -> Option<i64> {
        let heads = if packed { self.num_heads + 2 * self.kv_num_heads } else { self.num_heads };
        (features % heads == 0).then(|| features / heads)
    }
}

impl Operator for GroupQueryAttention {
    fn op_type(&self) -> &str {
        "com.microsoft.GroupQueryAttention"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("num_heads", self.num_heads.into()), ("kv_num_heads", self.kv_num_heads.into())];
        a.extend(self.scale.map(|s| ("scale", s.into())));
        if self.softcap != 0.0 {
            a.push(("softcap", self.softcap.into()));
        }
        if self.local_window_size >= 0 {
            a.push(("local_window_size", self.local_window_size.into()));
        }
        for (name, flag) in [("do_rotary", self.do_rotary), ("rotary_interleaved", self.rotary_interleaved)] {
            a.extend(flag.then(|| (name, true.into())));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=11
    }

    fn max_outputs(&self) -> usize {
        3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        for slot in [5, 6] {
            if x.opt(slot).is_none() {
                return Err(Error::malformed(format!("input {slot}, which says how many keys there are, is missing")));
            }
        }
        let rank = |slot: usize, ranks: &[usize]| match x.dims(slot).filter(|_| x.opt(slot).is_some()) {
            Some(dims) if !ranks.contains(&dims.len()) => {
                Err(Error::malformed(format!("input {slot} of rank {}, not {}", dims.len(), ranks[0])))
            }
            _ => Ok(()),
        };
        for (slot, ranks) in [(0, &[3][..]), (1, &[3]), (2, &[3]), (3, &[4]), (4, &[4]), (5, &[1])] {
            rank(slot, ranks)?;
        }
        for (slot, ranks) in [(6, &[0, 1][..]), (7, &[2]), (8, &[2]), (9, &[2]), (10, &[4])] {
            rank(slot, ranks)?;
        }
        let of_type = |slot: usize, fits: &dyn Fn(DType) -> bool| match x.opt(slot).and_then(|fact| fact.dtype) {
            Some(dtype) if !fits(dtype) => Err(Error::malformed(format!("input {slot} of type {dtype}"))),
            _ => Ok(()),
        };
        [5, 6].into_iter().try_for_each(|slot| of_type(slot, &|dtype| dtype == DType::I32))?;
        of_type(9, &|dtype| dtype == DType::I64)?;
        let own = x.get(0).dtype;
        [1, 2, 3, 4, 7, 8, 10]
            .into_iter()
            .try_for_each(|slot| of_type(slot, &|dtype| own.is_none_or(|own| own == dtype)))?;
        for (slot, axis) in [(1, 0), (2, 0), (1, 1), (2, 1), (3, 0), (4, 0), (5, 0)] {
            let (Some(a), Some(b)) = (x.dims(0), x.opt(slot).and_then(|fact| fact.dims())) else { continue };
            if let (Some(a), Some(b)) = (a[axis].known(), b[axis].known())
                && a != b
            {
                return Err(Error::malformed(format!("{b} along axis {axis} of input {slot}, where queries have {a}")));
            }
        }
        if let (Some(cos), Some(sin)) = (x.opt(7).and_then(|c| c.fixed()), x.opt(8).and_then(|s| s.fixed()))
            && cos != sin
        {
            return Err(Error::malformed(format!("cosines of {cos:?} and sines of {sin:?}")));
        }
        let packed = x.opt(1).is_none();
        if packed != x.opt(2).is_none() || x.opt(3).is_none() != x.opt(4).is_none() {
            return Err(Error::malformed("keys without values, or values without keys"));
        }
        let (batch, length, size) = match x.dims(0) {
            Some([batch, length, features]) => {
                let size = |n: i64| {
                    let whole = || Error::malformed(format!("{n} features don't divide into heads"));
                    self.size(n, packed).ok_or_else(whole)
                };
                let size = features.known().map(size).transpose()?;
                (batch.clone(), length.clone(), size.map_or(Dim::Unknown, Dim::Known))
            }
            Some(dims) => return Err(Error::malformed(format!("queries of rank {}, not 3", dims.len()))),
            None => (Dim::Unknown, Dim::Unknown, Dim::Unknown),
        };
        let past = match x.opt(3).map(|past| past.dims()) {
            None => Dim::Known(0),
            Some(Some([_, _, past, _])) => past.clone(),
            Some(Some(dims)) => return Err(Error::malformed(format!("past keys of rank {}, not 4", dims.len()))),
            Some(None) => Dim::Unknown,
        };
        let all = match x.get(6).elems.as_deref() {
            Some([all]) => all.clone(),
            _ => Dim::Unknown,
        };
        if let (Some(all), Some(length)) = (all.known(), length.known())
            && all < length
        {
            return Err(Error::malformed(format!("total_sequence_length is {all}, below {length} queries")));
        }
        let total = match (past.known(), all.known()) {
            (Some(past), Some(all)) => Dim::Known(past.max(all)),
            _ => Dim::Unknown,
        };
        let dtype = x.get(0).dtype;
        let heads = |n: i64| Dim::Known(n).zip(&size, |n, size| n.checked_mul(size));
        let present = vec![batch.clone(), Dim::Known(self.kv_num_heads), total, size.clone()];
        Ok(vec![
            Fact::new(dtype, Some(vec![batch, length, heads(self.num_heads)])),
            Fact::new(dtype, Some(present.clone())),
            Fact::new(dtype, Some(present)),
        ])
    }

    fn macs(&self, _: &Inputs, outputs: &[&Fact]) -> u64 {
        let keys = outputs.get(1).and_then(|k| k.dims()?[2].known()).and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
        super::conv::size(outputs[0].dims()).saturating_mul(keys).saturating_mul(2)
    }
}
