//! Activations with parameters.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};

/// An elementwise activation with parameters.
#[derive(Debug, Clone, PartialEq)]
pub enum Activation {
    /// `x < 0 ? alpha * x : x`
    LeakyRelu {
        /// The slope below zero.
        alpha: f32,
    },
    /// `x < 0 ? alpha * (exp(x) - 1) : x`
    Elu {
        /// The limit below zero, negated.
        alpha: f32,
    },
    /// `max(0, min(1, alpha * x + beta))`
    HardSigmoid {
        /// The slope.
        alpha: f32,
        /// The offset.
        beta: f32,
    },
    /// Gaussian error linear unit (Hendrycks and Gimpel, 2016).
    Gelu {
        /// Whether the tanh approximation is meant.
        tanh: bool,
    },
}

impl Activation {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(match r.op_type.as_str() {
            "LeakyRelu" => Self::LeakyRelu { alpha: r.float("alpha", 0.01)? },
            "Elu" => Self::Elu { alpha: r.float("alpha", 1.0)? },
            "HardSigmoid" => Self::HardSigmoid { alpha: r.float("alpha", 0.2)?, beta: r.float("beta", 0.5)? },
            _ => match r.string("approximate", "none")?.as_str() {
                "none" => Self::Gelu { tanh: false },
                "tanh" => Self::Gelu { tanh: true },
                other => return Err(Error::malformed(format!("approximate={other}"))),
            },
        })
    }
}

impl Operator for Activation {
    fn op_type(&self) -> &str {
        match self {
            Self::LeakyRelu { .. } => "LeakyRelu",
            Self::Elu { .. } => "Elu",
            Self::HardSigmoid { .. } => "HardSigmoid",
            Self::Gelu { .. } => "Gelu",
        }
    }

    fn attrs(&self) -> Attrs {
        match *self {
            Self::LeakyRelu { alpha } | Self::Elu { alpha } => vec![("alpha", alpha.into())],
            Self::HardSigmoid { alpha, beta } => vec![("alpha", alpha.into()), ("beta", beta.into())],
            Self::Gelu { tanh } => vec![("approximate", if tanh { "tanh" } else { "none" }.into())],
        }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }

    fn since(&self) -> i64 {
        if matches!(self, Self::Gelu { .. }) { 20 } else { 6 }
    }
}
