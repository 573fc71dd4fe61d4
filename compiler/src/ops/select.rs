//! Where.

use crate::{
    error::Result,
    op::{Inputs, Operator},
    value::{Fact, broadcast},
};
use std::ops::RangeInclusive;

/// `condition ? x : y`, elementwise, broadcast. Inputs: condition, x, y.
#[derive(Debug, Clone, PartialEq)]
pub struct Where;

impl Operator for Where {
    fn op_type(&self) -> &str {
        "Where"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = broadcast(&broadcast(x.shape(0), x.shape(1))?, x.shape(2))?;
        Ok(vec![Fact::new(x.get(1).dtype.or(x.get(2).dtype), shape)])
    }
    fn since(&self) -> i64 {
        9
    }
}
