//! LRN: local response normalisation.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};

/// `Y = X / (bias + alpha / size * s)^beta`, where s is the sum of squares over `size`
/// neighbouring channels (axis 1).
#[derive(Debug, Clone, PartialEq)]
pub struct Lrn {
    /// How many channels are summed over.
    pub size: i64,
    /// Scales the sum.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// Added to the sum.
    pub bias: f32,
}

impl Lrn {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let size = r.opt_int("size")?.unwrap_or(0);
        if size < 1 {
            return Err(Error::malformed(format!("size {size} must be 1 or more")));
        }
        Ok(Self { size, alpha: r.float("alpha", 1e-4)?, beta: r.float("beta", 0.75)?, bias: r.float("bias", 1.0)? })
    }
}

impl Operator for Lrn {
    fn op_type(&self) -> &str {
        "LRN"
    }
    fn attrs(&self) -> Attrs {
        vec![
            ("size", self.size.into()),
            ("alpha", self.alpha.into()),
            ("beta", self.beta.into()),
            ("bias", self.bias.into()),
        ]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if x.dims(0).is_some_and(|d| d.len() < 2) {
            return Err(Error::malformed("an input without channels"));
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.passes(at, "it normalises over neighbours of these", |axis| axis == 1)
    }
}
