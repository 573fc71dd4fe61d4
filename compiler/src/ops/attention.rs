//! Attention: scaled dot products of queries and keys, softmax, weighted sums of values.

use super::conv::size;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Inputs: Q, K, V, attn_mask, past_key, past_value, nonpad_kv_seqlen.
/// Outputs: Y, present_key, present_value, qk_matmul_output.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// Whether a query sees no key after its own position.
    pub is_causal: bool,
    /// The heads of Q, which Q of three axes needs.
    pub q_num_heads: Option<i64>,
    /// The heads of K and V, which K and V of three axes need.
    pub kv_num_heads: Option<i64>,
    /// Scales the products; 1 / sqrt(head size) unless given.
    pub scale: Option<f32>,
    /// Squeezes the products into `-softcap..softcap`, where above 0.
    pub softcap: f32,
    /// The type in which the softmax is computed.
    pub softmax_precision: Option<DType>,
    /// At which stage the fourth output is taken: 0 products, 1 after softcap, 2 after the
    /// masks, 3 after softmax.
    pub qk_matmul_output_mode: i64,
    /// How many keys before its own position a query sees; all if negative.
    pub left_window_size: i64,
    /// How many keys after its own position a query sees; all if negative.
    pub right_window_size: i64,
}

impl Attention {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self {
            is_causal: r.flag("is_causal", false)?,
            q_num_heads: r.opt_int("q_num_heads")?,
            kv_num_heads: r.opt_int("kv_num_heads")?,
            scale: r.opt_float("scale")?,
            softcap: r.float("softcap", 0.0)?,
            softmax_precision: r.opt_dtype("softmax_precision")?,
            qk_matmul_output_mode: r.int("qk_matmul_output_mode", 0)?,
            left_window_size: r.int("left_window_size", -1)?,
            right_window_size: r.int("right_window_size", -1)?,
        };
        if op.q_num_heads.into_iter().chain(op.kv_num_heads).any(|n| n < 1) {
            return Err(Error::malformed(format!("{:?} and {:?} heads", op.q_num_heads, op.kv_num_heads)));
        }
        if !(0..=3).contains(&op.qk_matmul_output_mode) {
            return Err(Error::malformed(format!("qk_matmul_output_mode={}", op.qk_matmul_output_mode)));
        }
        if op.softmax_precision.is_some_and(|t| !t.is_float()) {
            return Err(Error::malformed("a softmax_precision that is not a float type"));
        }
        Ok(op)
    }

    /// Whether the keys that a query sees are limited by their distance.
    pub fn has_window(&self) -> bool {
        self.left_window_size >= 0 || self.right_window_size >= 0
    }
}

/// Batch, heads, length, size of a head; of an input with three axes, given its heads.
fn heads(x: &Inputs, slot: usize, heads: Option<i64>) -> Result<Option<[Dim; 4]>> {
    let Some(dims) = x.dims(slot) else { return Ok(None) };
    match (dims, heads) {
        ([b, h, s, d], _) => Ok(Some([b.clone(), h.clone(), s.clone(), d.clone()])),
        ([b, s, hidden], Some(n)) => {
            if hidden.known().is_some_and(|h| h % n != 0) {
                return Err(Error::malformed(format!("input {slot}: {hidden} features in {n} heads")));
            }
            let size = hidden.known().map_or(Dim::Unknown, |h| Dim::Known(h / n));
            Ok(Some([b.clone(), Dim::Known(n), s.clone(), size]))
        }
        ([_, _, _], None) => Err(Error::malformed("inputs of three axes without q_num_heads and kv_num_heads")),
        _ => Err(Error::malformed(format!("input {slot} of rank {}, not 3 or 4", dims.len()))),
    }
}

/// The axis of a value along which heads lie, how many there are, and how many of its indices are one head's.
pub(super) struct Heads {
    pub(super) axis: Axis,
    pub(super) heads: usize,
    pub(super) size: usize,
}

impl Heads {
    /// Of the value that `first` is an axis of, which has `heads` heads if it has three axes.
    pub(super) fn of(first: Axis, heads: Option<i64>, sides: &Sides) -> Option<Self> {
        let axis = |i| match first {
            Axis::In(slot, _) => Axis::In(slot, i),
            Axis::Out(slot, _) => Axis::Out(slot, i),
        };
        let (axis, heads) = match sides.dims(first)?.len() {
            4 => (axis(1), sides.size(axis(1))?),
            _ => (axis(2), usize::try_from(heads?).ok()?),
        };
        let size = sides.size(axis)?.checked_div(heads)?;
        Some(Self { axis, heads, size })
    }
}

/// A dimension that two inputs have in common: what says more of it.
fn shared(a: &Dim, b: &Dim, what: &str) -> Result<Dim> {
    match (a.known(), b.known()) {
        (Some(x), Some(y)) if x != y => {
            Err(Error::malformed(format!("{x} is the {what} of one input and {y} that of another")))
        }
        (Some(_), _) => Ok(a.clone()),
        _ if *b == Dim::Unknown => Ok(a.clone()),
        _ => Ok(b.clone()),
    }
}

impl Operator for Attention {
    fn op_type(&self) -> &str {
        "Attention"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.is_causal {
            a.push(("is_causal", true.into()));
        }
        a.extend(self.q_num_heads.map(|n| ("q_num_heads", n.into())));
        a.extend(self.kv_num_heads.map(|n| ("kv_num_heads", n.into())));
        a.extend(self.scale.map(|s| ("scale", s.into())));
        if self.softcap != 0.0 {
            a.push(("softcap", self.softcap.into()));
        }
        a.extend(self.softmax_precision.map(|t| ("softmax_precision", (t as i64).into())));
        if self.qk_matmul_output_mode != 0 {
            a.push(("qk_matmul_output_mode", self.qk_matmul_output_mode.into()));
        }
        for (name, n) in [("left_window_size", self.left_window_size), ("right_window_size", self.right_window_size)] {
            a.extend((n >= 0).then(|| (name, n.into())));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=7
    }

    fn max_outputs(&self) -> usize {
        4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let q = heads(x, 0, self.q_num_heads)?;
        let k = heads(x, 1, self.kv_num_heads)?;
        let v = heads(x, 2, self.kv_num_heads)?;
        let unknown = || [const { Dim::Unknown }; 4];
        let flat = x.dims(0).map(|d| d.len() == 3);
        let ([qb, qh, length, _], [kb, kh, kl, kd], [vb, vh, vl, vd]) =
            (q.unwrap_or_else(unknown), k.unwrap_or_else(unknown), v.unwrap_or_else(unknown));
        let batch = shared(&qb, &shared(&kb, &vb, "batch")?, "batch")?;
        let (groups, length_k) = (shared(&kh, &vh, "number of heads")?, shared(&kl, &vl, "length")?);
        if qh.zip(&groups, |q, k| Some((k == 0 || q % k != 0) as i64)) == Dim::Known(1) {
            return Err(Error::malformed(format!("{qh} heads of queries don't divide among {groups} of keys")));
        }
        let past = |slot| heads(x, slot, None);
        let total = match (x.opt(4), past(4)?, past(5)?) {
            (None, ..) => length_k,
            (Some(_), Some([_, _, n, _]), _) | (Some(_), None, Some([_, _, n, _])) => {
                n.zip(&length_k, |a, b| a.checked_add(b))
            }
            _ => Dim::Unknown,
        };
        let y = match flat {
            None => None,
            Some(true) => Some(vec![batch.clone(), length.clone(), qh.zip(&vd, |a, b| a.checked_mul(b))]),
            Some(false) => Some(vec![batch.clone(), qh.clone(), length.clone(), vd.clone()]),
        };
        let (dtype, vtype) = (x.get(0).dtype, x.get(2).dtype);
        Ok(vec![
            Fact::new(dtype, y),
            Fact::new(dtype, Some(vec![batch.clone(), groups.clone(), total.clone(), kd])),
            Fact::new(vtype, Some(vec![batch.clone(), groups, total.clone(), vd])),
            Fact::new(dtype, Some(vec![batch, qh, length, total])),
        ])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        use Axis::{In, Out};
        let batch = |axis: Axis| match axis {
            In(3, 0) => (sides.dims(axis)?.len() == 4).then_some(()),
            In(_, 0) | Out(_, 0) => Some(()),
            _ => None,
        };
        if batch(at).is_some() {
            return sides.alike(at, UNKNOWN, batch);
        }
        let (Some(q), Some(k), Some(v), Some(y)) = (
            Heads::of(In(0, 0), self.q_num_heads, sides),
            Heads::of(In(1, 0), self.kv_num_heads, sides),
            Heads::of(In(2, 0), self.kv_num_heads, sides),
            Heads::of(Out(0, 0), self.q_num_heads, sides),
        ) else {
            return Flow::closed(UNKNOWN);
        };
        // So many heads of queries share one of keys and values.
        let shared = q.heads.checked_div(k.heads).unwrap_or(1).max(1);
        let mut axes = vec![(q.axis, q.size * shared), (k.axis, k.size), (v.axis, v.size), (y.axis, y.size * shared)];
        axes.extend([(In(4, 1), 1), (In(5, 1), 1), (Out(1, 1), 1), (Out(2, 1), 1), (Out(3, 1), shared)]);
        // The mask broadcasts to batch, heads, queries and keys.
        let mask = sides.dims(In(3, 0)).and_then(|mask| mask.len().checked_sub(3)).map(|axis| In(3, axis));
        axes.extend(mask.filter(|axis| sides.size(*axis) != Some(1)).map(|axis| (axis, shared)));
        if !axes.iter().any(|(axis, _)| *axis == at) {
            return Flow::closed("only whole heads can go");
        }
        sides.blocks(at, axes)
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let left = |slot, heads| {
            let all = Heads::of(Axis::In(slot, 0), heads, sides)?;
            Some((kept.count(all.axis)? / all.size.max(1)) as i64)
        };
        let (q, kv) = (left(0, self.q_num_heads), left(1, self.kv_num_heads));
        Ok(ChannelSlice::op(Self {
            q_num_heads: self.q_num_heads.map(|n| q.unwrap_or(n)),
            kv_num_heads: self.kv_num_heads.map(|n| kv.unwrap_or(n)),
            ..self.clone()
        }))
    }

    fn since(&self) -> i64 {
        if self.has_window() { 25 } else { 23 }
    }

    fn macs(&self, x: &Inputs, _outputs: &[&Fact]) -> u64 {
        let (Ok(facts), Ok(Some([.., k]))) = (self.infer(x), heads(x, 1, self.kv_num_heads)) else { return 0 };
        let v = facts[2].dims().and_then(|d| d.last()).cloned().unwrap_or(Dim::Unknown);
        size(facts[3].dims()).saturating_mul(size(Some(&[k])).saturating_add(size(Some(&[v]))))
    }
}

#[cfg(test)]
mod tests {
    use crate::text;

    #[test]
    fn keys_and_values_fit_each_other_and_the_queries() {
        let error = |k: &str, v: &str| {
            let source = format!(
                r#"graph "g" {{
                    input %q: f32[2,6,4,8]
                    input %k: f32{k}
                    input %v: f32{v}
                    %y = Attention(%q, %k, %v)
                    output %y
                }}"#
            );
            text::parse(&source).err().map(|e| e.message().to_owned()).unwrap_or_default()
        };
        assert_eq!(error("[2,3,5,8]", "[2,3,5,7]"), "");
        assert_eq!(error("[?,3,N,8]", "[2,?,5,7]"), "");
        for (k, v, expected) in [
            ("[2,3,5,8]", "[2,2,5,7]", "3 is the number of heads of one input and 2 that of another"),
            ("[2,3,5,8]", "[2,3,4,7]", "5 is the length of one input and 4 that of another"),
            ("[2,3,5,8]", "[1,3,5,7]", "2 is the batch of one input and 1 that of another"),
            ("[?,4,?,8]", "[1,?,?,7]", "2 is the batch of one input and 1 that of another"),
            ("[2,4,5,8]", "[2,4,5,7]", "6 heads of queries don't divide among 4 of keys"),
        ] {
            assert!(error(k, v).contains(expected), "{k} {v}: {}", error(k, v));
        }
    }
}
