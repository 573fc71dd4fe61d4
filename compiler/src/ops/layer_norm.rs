//! LayerNormalization.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{self, Fact},
};
use std::ops::RangeInclusive;

/// Normalises over the axes from `axis` on, then scales and shifts. Inputs: X, scale, bias.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// The first normalised axis; may count from the end.
    pub axis: i64,
    /// Added to the variance.
    pub epsilon: f32,
}

impl LayerNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.outputs > 1 {
            return Err(Error::unsupported("LayerNormalization with outputs of statistics"));
        }
        if r.int("stash_type", 1)? != 1 {
            return Err(Error::unsupported("LayerNormalization with a stash_type other than float"));
        }
        Ok(Self { axis: r.int("axis", -1)?, epsilon: r.float("epsilon", 1e-5)? })
    }
}

impl Operator for LayerNorm {
    fn op_type(&self) -> &str {
        "LayerNormalization"
    }
    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into()), ("epsilon", self.epsilon.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            value::axis(self.axis, rank)?;
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn since(&self) -> i64 {
        17
    }
}
