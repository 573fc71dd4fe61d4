//! Clip.

use crate::{
    attr::Reader,
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator, Width},
    value::Fact,
};
use std::ops::RangeInclusive;

/// `min(max(x, low), high)`. Inputs: x, low, high; both bounds optional scalars.
#[derive(Debug, Clone, PartialEq)]
pub struct Clip;

impl Clip {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 11 {
            let (low, high) = (r.float("min", f32::MIN)?, r.float("max", f32::MAX)?);
            r.lift_scalar(1, low);
            r.lift_scalar(2, high);
        }
        Ok(Self)
    }
}

impl Operator for Clip {
    fn op_type(&self) -> &str {
        "Clip"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        1..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn since(&self) -> i64 {
        11
    }

    fn width(&self) -> Width {
        Width::Bounded
    }

    fn clamps(&self, x: &Inputs) -> Option<(f32, f32)> {
        let bound = |slot: usize, absent: f32| match x.opt(slot) {
            None => Some(absent),
            Some(fact) => fact.floats.as_ref()?.first().copied(),
        };
        Some((bound(1, f32::MIN)?, bound(2, f32::MAX)?))
    }
}
