//! SwiGLU.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// `a * sigmoid(alpha * a) * b`, of equal shapes. Inputs: a (the gate), b.
#[derive(Debug, Clone, PartialEq)]
pub struct SwiGlu {
    /// The slope inside the sigmoid.
    pub alpha: f32,
}

impl SwiGlu {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { alpha: r.float("alpha", 1.0)? })
    }
}

impl Operator for SwiGlu {
    fn op_type(&self) -> &str {
        "SwiGLU"
    }
    fn attrs(&self) -> Attrs {
        vec![("alpha", self.alpha.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let differ = |(a, b): (&Dim, &Dim)| a.zip(b, |a, b| Some((a != b).into())) == Dim::Known(1);
        if let (Some(a), Some(b)) = (x.dims(0), x.dims(1))
            && (a.len() != b.len() || a.iter().zip(b).any(differ))
        {
            return Err(Error::malformed("the inputs of SwiGLU differ in shape"));
        }
        let shape = x.shape(0).clone().or_else(|| x.shape(1).clone());
        Ok(vec![Fact::new(x.get(0).dtype.or(x.get(1).dtype), shape)])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..2)
    }
    fn since(&self) -> i64 {
        28
    }
}
