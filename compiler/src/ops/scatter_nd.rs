//! ScatterND without reduction.

use crate::{
    attr::Reader,
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};
use std::ops::RangeInclusive;

/// A copy of input 0 in which the slices that input 1 addresses are those of input 2.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterNd;

impl ScatterNd {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        match r.string("reduction", "none")?.as_str() {
            "none" => Ok(Self),
            other => Err(Error::unsupported(format!("ScatterND with reduction={other}"))),
        }
    }
}

impl Operator for ScatterNd {
    fn op_type(&self) -> &str {
        "ScatterND"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn since(&self) -> i64 {
        11
    }
}
