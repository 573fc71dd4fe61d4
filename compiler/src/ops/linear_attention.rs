//! LinearAttention, and the causal convolution that stands before it in such models.

use super::conv::size;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Attention as a recurrence on a state of `[batch, kv heads, key size, value size]`.
/// Inputs: query, key, value (each `[batch, length, heads * size]`), past_state, decay, beta.
/// Outputs: output, present_state.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearAttention {
    /// The heads of the queries.
    pub q_num_heads: i64,
    /// The heads of keys and values.
    pub kv_num_heads: i64,
    /// Scales the output; 0 is 1 / sqrt(key size).
    pub scale: f32,
    /// Whether the state decays: rules `gated` and `gated_delta`.
    pub gated: bool,
    /// Whether a value is corrected by what the state holds: rules `delta` and `gated_delta`.
    pub delta: bool,
    /// A hint for speed, which changes nothing.
    pub chunk_size: i64,
}

impl LinearAttention {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let (gated, delta) = match r.string("update_rule", "gated_delta")?.as_str() {
            "linear" => (false, false),
            "gated" => (true, false),
            "delta" => (false, true),
            "gated_delta" => (true, true),
            other => return Err(Error::malformed(format!("update_rule={other}"))),
        };
        let mut heads = |name| Ok::<_, Error>(r.opt_int(name)?.unwrap_or(0));
        let (q_num_heads, kv_num_heads) = (heads("q_num_heads")?, heads("kv_num_heads")?);
        if q_num_heads < 1 || kv_num_heads < 1 || q_num_heads % kv_num_heads != 0 {
            return Err(Error::malformed(format!("{q_num_heads} heads of queries for {kv_num_heads} of keys")));
        }
        let (scale, chunk_size) = (r.float("scale", 0.0)?, r.int("chunk_size", 64)?);
        Ok(Self { q_num_heads, kv_num_heads, scale, gated, delta, chunk_size })
    }

    fn update_rule(&self) -> &'static str {
        match (self.gated, self.delta) {
            (false, false) => "linear",
            (true, false) => "gated",
            (false, true) => "delta",
            (true, true) => "gated_delta",
        }
    }
}

/// The axes of an input of three, if known.
fn three<'a>(x: &Inputs<'a>, slot: usize) -> Result<Option<&'a [Dim; 3]>> {
    let Some(dims) = x.dims(slot) else { return Ok(None) };
    let three = dims.try_into();
    three.map(Some).map_err(|_| Error::malformed(format!("input {slot} of rank {}, not 3", dims.len())))
}

impl Operator for LinearAttention {
    fn op_type(&self) -> &str {
        "LinearAttention"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![
            ("q_num_heads", self.q_num_heads.into()),
            ("kv_num_heads", self.kv_num_heads.into()),
            ("update_rule", self.update_rule().into()),
        ];
        if self.scale != 0.0 {
            a.push(("scale", self.scale.into()));
        }
        if self.chunk_size != 64 {
            a.push(("chunk_size", self.chunk_size.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=6
    }

    fn max_outputs(&self) -> usize {
        2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let (q, k, v) = (three(x, 0)?, three(x, 1)?, three(x, 2)?);
        let part = |hidden: Option<&Dim>, heads: i64| match hidden.and_then(Dim::known) {
            Some(n) if n % heads != 0 => Err(Error::malformed(format!("{n} features in {heads} heads"))),
            n => Ok(n.map_or(Dim::Unknown, |n| Dim::Known(n / heads))),
        };
        let key = match part(q.map(|d| &d[2]), self.q_num_heads)? {
            Dim::Unknown => part(k.map(|d| &d[2]), self.kv_num_heads)?,
            known => known,
        };
        let value = part(v.map(|d| &d[2]), self.kv_num_heads)?;
        let axis = |i: usize| q.or(k).or(v).map_or(Dim::Unknown, |d| d[i].clone());
        let output = value.known().and_then(|d| d.checked_mul(self.q_num_heads)).map_or(Dim::Unknown, Dim::Known);
        let state = vec![axis(0), Dim::Known(self.kv_num_heads), key, value];
        let dtype = x.get(0).dtype;
        let state_type = x.opt(3).map_or(dtype, |past| past.dtype);
        Ok(vec![Fact::new(dtype, Some(vec![axis(0), axis(1), output])), Fact::new(state_type, Some(state))])
    }

    fn since(&self) -> i64 {
        27
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        // A step reads the state for each query, and writes it once.
        let key = x.dims(0).and_then(|d| d.get(2)).and_then(Dim::known).unwrap_or(0) / self.q_num_heads;
        size(outputs[0].dims()).saturating_mul(key.max(0) as u64).saturating_mul(2)
    }
}

/// A depthwise convolution over the past and present of a sequence. Inputs: input
/// `[batch, channels, length]`, weight `[channels, 1, k]`, bias, past_state
/// `[batch, channels, k - 1]`. Outputs: output, present_state.
#[derive(Debug, Clone, PartialEq)]
pub struct CausalConv {
    /// Whether SiLU follows.
    pub silu: bool,
}

impl CausalConv {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        match r.string("activation", "none")?.as_str() {
            "none" => Ok(Self { silu: false }),
            "silu" | "swish" => Ok(Self { silu: true }),
            other => Err(Error::malformed(format!("activation={other}"))),
        }
    }
}

impl Operator for CausalConv {
    fn op_type(&self) -> &str {
        "CausalConvWithState"
    }

    fn attrs(&self) -> Attrs {
        if self.silu { vec![("activation", "silu".into())] } else { vec![] }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=4
    }

    fn max_outputs(&self) -> usize {
        2
    }

    fn parameters(&self) -> &'static [usize] {
        &[1, 2]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let (input, weight) = (three(x, 0)?, three(x, 1)?);
        let kept = weight.and_then(|w| w[2].known()).map_or(Dim::Unknown, |k| Dim::Known((k - 1).max(0)));
        let axis = |i: usize| input.map_or(Dim::Unknown, |d| d[i].clone());
        let dtype = x.get(0).dtype;
        Ok(vec![Fact::new(dtype, x.shape(0).clone()), Fact::new(dtype, Some(vec![axis(0), axis(1), kept]))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.alike(at, "its window slides over these", |axis| match axis {
            Axis::In(0 | 3, 0) | Axis::Out(_, 0) => Some("batch"),
            Axis::In(0 | 3, 1) | Axis::In(1 | 2, 0) | Axis::Out(_, 1) => Some("channel"),
            _ => None,
        })
    }

    fn since(&self) -> i64 {
        27
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        size(outputs[0].dims()).saturating_mul(size(x.dims(1).and_then(|w| w.get(2..))))
    }
}
