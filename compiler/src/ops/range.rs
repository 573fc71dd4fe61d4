//! Range.

use crate::{
    error::Result,
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// `start, start + delta, ...` up to before `limit`. Inputs: three scalars of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct Range;

impl Operator for Range {
    fn op_type(&self) -> &str {
        "Range"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, Some(vec![Dim::Unknown]))])
    }
    fn inflates(&self) -> bool {
        true
    }
    fn since(&self) -> i64 {
        11
    }
}
