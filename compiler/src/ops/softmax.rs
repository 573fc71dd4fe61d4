//! Softmax, LogSoftmax and Hardmax.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator, Width},
    value::{self, Fact},
};

/// What is made of the elements along the axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SoftmaxKind {
    /// `exp(x) / sum(exp(x))`
    Soft,
    /// Its logarithm.
    Log,
    /// 1 for the first of the largest elements, 0 for the others.
    Hard,
}

/// Softmax and its kin, along one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// What is computed.
    pub kind: SoftmaxKind,
    /// The axis; may count from the end.
    pub axis: i64,
    /// Whether all axes from `axis` on are one, as before opset 13.
    pub coerced: bool,
}

impl Softmax {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let kind = match r.op_type.as_str() {
            "Softmax" => SoftmaxKind::Soft,
            "LogSoftmax" => SoftmaxKind::Log,
            _ => SoftmaxKind::Hard,
        };
        if r.opset >= 13 {
            return Ok(Self { kind, axis: r.int("axis", -1)?, coerced: false });
        }
        // Of the last axis alone, the old form and the new one make the same.
        let axis = r.int("axis", 1)?;
        let last =
            axis == -1 || r.first.rank().is_some_and(|rank| value::axis(axis, rank).is_ok_and(|a| a + 1 == rank));
        Ok(Self { kind, axis: if last { -1 } else { axis }, coerced: !last })
    }
}

impl Operator for Softmax {
    fn op_type(&self) -> &str {
        match self.kind {
            SoftmaxKind::Soft => "Softmax",
            SoftmaxKind::Log => "LogSoftmax",
            SoftmaxKind::Hard => "Hardmax",
        }
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
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let first = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0)).unwrap_or(0);
        sides.passes(at, "it normalises over these", |axis| axis == first || self.coerced && axis > first)
    }
    fn since(&self) -> i64 {
        match (self.coerced, self.axis) {
            (true, _) => 1,
            // Of the last axis alone, the old form makes the same; it may count from the end from opset 11 on.
            (false, -1) => 11,
            (false, _) => 13,
        }
    }
    fn until(&self) -> Option<i64> {
        self.coerced.then_some(12)
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}
