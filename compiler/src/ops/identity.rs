//! Operators that do nothing at inference: Identity and Dropout.

use crate::{
    attr::Reader,
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::Fact,
};
use std::ops::RangeInclusive;

/// `y = x`.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity;

impl Operator for Identity {
    fn op_type(&self) -> &str {
        "Identity"
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![x.get(0).clone()])
    }
    fn quant(&self) -> Quant {
        Quant::Same
    }
}

/// Dropout at inference: `y = x`. Inputs: x, ratio, training_mode; the last two are kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout;

impl Dropout {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.outputs > 1 {
            return Err(Error::unsupported("Dropout with an output of its mask"));
        }
        if r.inputs > 2 {
            return Err(Error::unsupported("Dropout with a training_mode"));
        }
        // The ratio and the seed mean nothing at inference.
        r.float("ratio", 0.5)?;
        r.int("seed", 0)?;
        Ok(Self)
    }
}

impl Operator for Dropout {
    fn op_type(&self) -> &str {
        "Dropout"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        1..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![x.get(0).clone()])
    }
    fn since(&self) -> i64 {
        12
    }
}
