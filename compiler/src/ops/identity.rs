//! Operators that do nothing at inference: Identity and Dropout.

use crate::{
    attr::Reader,
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    tensor::DType,
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
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn is_unchanged(&self, _: &Inputs, _: &Fact) -> bool {
        true
    }
}

/// Dropout. At inference `y = x`. Inputs: x, ratio, training_mode. With the last one true, only
/// a ratio of 0 can be computed, unless a seed is given: while a model is trained this is a fourth
/// input, which no file has.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropout {
    /// The share that is dropped where no input says it.
    pub ratio: f32,
    /// Whether the mask of what was kept is a second output.
    pub mask: bool,
    /// Whether there is a training_mode, so that it may not be at inference.
    pub trains: bool,
}

impl Dropout {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.inputs > 3 {
            return Err(Error::malformed(format!("Dropout takes 3 inputs at most, and has {}", r.inputs)));
        }
        let mask = r.outputs == 2;
        if mask && r.opset < 10 {
            return Err(Error::unsupported("Dropout with a mask that is not a truth value"));
        }
        if r.opset < 7 && !r.flag("is_test", false)? {
            return Err(Error::unsupported("Dropout in training"));
        }
        let ratio = r.float("ratio", 0.5)?;
        // The seed means nothing at inference.
        r.int("seed", 0)?;
        Ok(Self { ratio, mask, trains: r.inputs > 2 })
    }
}

impl Operator for Dropout {
    fn op_type(&self) -> &str {
        "Dropout"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        1..=4
    }
    fn max_outputs(&self) -> usize {
        2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let x = x.get(0);
        let mut facts = vec![if self.trains { Fact::new(x.dtype, x.shape.clone()) } else { x.clone() }];
        if self.mask {
            facts.push(Fact::new(Some(DType::Bool), x.shape.clone()));
        }
        Ok(facts)
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }
    fn since(&self) -> i64 {
        12
    }

    fn width(&self) -> Width {
        Width::Bounded
    }

    fn is_unchanged(&self, _: &Inputs, _: &Fact) -> bool {
        !self.trains
    }

    fn is_random(&self) -> bool {
        self.trains
    }
}
