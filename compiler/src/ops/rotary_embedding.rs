//! RotaryEmbedding.

use super::attention::Heads;
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};
use std::ops::RangeInclusive;

/// Turns pairs of features by angles that depend on the position. Inputs: X as
/// `[batch, heads, length, size]` or `[batch, length, heads * size]`, cos_cache, sin_cache,
/// position_ids.
#[derive(Debug, Clone, PartialEq)]
pub struct RotaryEmbedding {
    /// Whether pairs are neighbours; otherwise they are half the features apart.
    pub interleaved: bool,
    /// How many features of a head are turned; 0 is all.
    pub rotary_embedding_dim: i64,
    /// The heads, which X of three axes needs.
    pub num_heads: i64,
}

impl RotaryEmbedding {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self {
            interleaved: r.flag("interleaved", false)?,
            rotary_embedding_dim: r.int("rotary_embedding_dim", 0)?,
            num_heads: r.int("num_heads", 0)?,
        };
        if op.rotary_embedding_dim < 0 || op.rotary_embedding_dim % 2 != 0 || op.num_heads < 0 {
            return Err(Error::malformed(format!(
                "rotary_embedding_dim={}, num_heads={}",
                op.rotary_embedding_dim, op.num_heads
            )));
        }
        Ok(op)
    }
}

impl Operator for RotaryEmbedding {
    fn op_type(&self) -> &str {
        "RotaryEmbedding"
    }
    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.interleaved {
            a.push(("interleaved", true.into()));
        }
        for (name, n) in [("rotary_embedding_dim", self.rotary_embedding_dim), ("num_heads", self.num_heads)] {
            a.extend((n != 0).then(|| (name, n.into())));
        }
        a
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=4
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        match x.dims(0) {
            Some([_, _, _]) if self.num_heads == 0 => Err(Error::malformed("an input of three axes without num_heads")),
            None | Some([_, _, _] | [_, _, _, _]) => Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())]),
            Some(dims) => Err(Error::malformed(format!("an input of rank {}, not 3 or 4", dims.len()))),
        }
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let batch = |axis: Axis| match axis {
            Axis::In(1 | 2, 0) => (sides.dims(axis)?.len() == 3).then_some(()),
            Axis::In(_, 0) | Axis::Out(_, 0) => Some(()),
            _ => None,
        };
        let heads = Some(self.num_heads);
        match (Heads::of(Axis::In(0, 0), heads, sides), Heads::of(Axis::Out(0, 0), heads, sides)) {
            (Some(x), Some(y)) if at == x.axis || at == y.axis => {
                sides.blocks(at, [(x.axis, x.size), (y.axis, y.size)])
            }
            _ => sides.alike(at, "only whole heads can go", batch),
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let heads = Heads::of(Axis::In(0, 0), Some(self.num_heads), sides);
        let left =
            heads.and_then(|x| Some((kept.count(x.axis)? / x.size.max(1)) as i64)).filter(|_| self.num_heads != 0);
        Ok(left.map_or_else(ChannelSlice::default, |num_heads| ChannelSlice::op(Self { num_heads, ..self.clone() })))
    }
    fn since(&self) -> i64 {
        23
    }
}
