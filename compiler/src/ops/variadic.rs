//! Sum, Mean, Max and Min of any number of inputs, elementwise, broadcast as numpy does.

use crate::{
    attr::Reader,
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Op, Operator},
    ops::{binary::Binary, identity::Identity},
    value::{Fact, broadcast},
};
use std::ops::RangeInclusive;

/// A function of any number of inputs. One input is an Identity, and two are a [`Binary`] where
/// there is one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Variadic {
    Sum,
    Mean,
    Max,
    Min,
}

impl Variadic {
    pub(super) fn read(r: &mut Reader) -> Result<Op> {
        Ok(match (r.op_type.as_str(), r.inputs) {
            (_, 1) => Identity.into(),
            ("Sum", 2) => Binary::Add.into(),
            ("Max", 2) => Binary::Max.into(),
            ("Min", 2) => Binary::Min.into(),
            ("Sum", _) => Self::Sum.into(),
            ("Max", _) => Self::Max.into(),
            ("Min", _) => Self::Min.into(),
            _ => Self::Mean.into(),
        })
    }
}

impl Operator for Variadic {
    fn op_type(&self) -> &str {
        match self {
            Self::Sum => "Sum",
            Self::Mean => "Mean",
            Self::Max => "Max",
            Self::Min => "Min",
        }
    }
    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.present().find_map(|f| f.dtype);
        let shape = x.present().try_fold(Some(vec![]), |shape, f| broadcast(&shape, &f.shape))?;
        Ok(vec![Fact::new(dtype, shape)])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..sides.inputs.0.len())
    }
    fn since(&self) -> i64 {
        8
    }
}
