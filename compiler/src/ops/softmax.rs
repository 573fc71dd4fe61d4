//! Softmax and LogSoftmax.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{self, Fact},
};

/// `exp(x) / sum(exp(x))` along one axis, or its logarithm.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// The axis; may count from the end.
    pub axis: i64,
    /// Whether the logarithm is meant.
    pub log: bool,
}

impl Softmax {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let log = r.op_type == "LogSoftmax";
        if r.opset >= 13 {
            return Ok(Self { axis: r.int("axis", -1)?, log });
        }
        // Before opset 13 all axes from `axis` on were one; that is the same for the last.
        let axis = r.int("axis", 1)?;
        let last =
            axis == -1 || r.first.rank().is_some_and(|rank| value::axis(axis, rank).is_ok_and(|a| a + 1 == rank));
        if !last {
            return Err(Error::unsupported(format!(
                "{} over several axes (opset {}, axis {axis})",
                r.op_type, r.opset
            )));
        }
        Ok(Self { axis: -1, log })
    }
}

impl Operator for Softmax {
    fn op_type(&self) -> &str {
        if self.log { "LogSoftmax" } else { "Softmax" }
    }
    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            value::axis(self.axis, rank)?;
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn since(&self) -> i64 {
        13
    }
}
