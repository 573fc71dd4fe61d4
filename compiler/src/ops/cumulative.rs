//! CumSum and CumProd.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator},
    value::{self, Fact},
};
use std::ops::RangeInclusive;

/// The sum or product of all elements up to each along an axis. Inputs: x, axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Cumulative {
    /// Whether products are meant.
    pub product: bool,
    /// Whether the element itself does not count.
    pub exclusive: bool,
    /// Whether it starts at the end.
    pub reverse: bool,
}

impl Cumulative {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self {
            product: r.op_type == "CumProd",
            exclusive: r.flag("exclusive", false)?,
            reverse: r.flag("reverse", false)?,
        })
    }
}

impl Operator for Cumulative {
    fn op_type(&self) -> &str {
        if self.product { "CumProd" } else { "CumSum" }
    }
    fn attrs(&self) -> Attrs {
        vec![("exclusive", self.exclusive.into()), ("reverse", self.reverse.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let (Some(rank), Some([axis])) = (x.get(0).rank(), x.ints(1).as_deref()) {
            value::axis(*axis, rank)?;
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let why = "it adds up along these";
        match (sides.inputs.get(0).rank(), sides.inputs.ints(1).as_deref()) {
            (Some(rank), Some([along])) => {
                let along = value::axis(*along, rank).ok();
                sides.passes(at, why, |axis| along == Some(axis))
            }
            _ => Flow::closed(why),
        }
    }
    fn since(&self) -> i64 {
        if self.product { 26 } else { 11 }
    }
}
