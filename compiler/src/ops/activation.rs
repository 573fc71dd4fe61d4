//! Activations with parameters.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Width},
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
    /// `gamma * (x < 0 ? alpha * (exp(x) - 1) : x)`
    Selu {
        /// The limit below zero, negated, before scaling.
        alpha: f32,
        /// The scale.
        gamma: f32,
    },
    /// `max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`
    Celu {
        /// The limit below zero, negated.
        alpha: f32,
    },
    /// `x > alpha ? x : 0`
    ThresholdedRelu {
        /// The threshold.
        alpha: f32,
    },
    /// `x * sigmoid(alpha * x)`
    Swish {
        /// The slope inside the sigmoid.
        alpha: f32,
    },
    /// `x < -lambd ? x + bias : x > lambd ? x - bias : 0`
    Shrink {
        /// By how much what remains shrinks.
        bias: f32,
        /// Up to where nothing remains.
        lambd: f32,
    },
}

impl Activation {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(match r.op_type.as_str() {
            "LeakyRelu" => Self::LeakyRelu { alpha: r.float("alpha", 0.01)? },
            "Elu" => Self::Elu { alpha: r.float("alpha", 1.0)? },
            "HardSigmoid" => Self::HardSigmoid { alpha: r.float("alpha", 0.2)?, beta: r.float("beta", 0.5)? },
            "Selu" => Self::Selu { alpha: r.float("alpha", 1.673_263_2)?, gamma: r.float("gamma", 1.050_701)? },
            "Celu" => Self::Celu { alpha: r.float("alpha", 1.0)? },
            "ThresholdedRelu" => Self::ThresholdedRelu { alpha: r.float("alpha", 1.0)? },
            "Swish" => Self::Swish { alpha: r.float("alpha", 1.0)? },
            "Shrink" => Self::Shrink { bias: r.float("bias", 0.0)?, lambd: r.float("lambd", 0.5)? },
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
            Self::Selu { .. } => "Selu",
            Self::Celu { .. } => "Celu",
            Self::ThresholdedRelu { .. } => "ThresholdedRelu",
            Self::Swish { .. } => "Swish",
            Self::Shrink { .. } => "Shrink",
        }
    }

    fn attrs(&self) -> Attrs {
        match *self {
            Self::LeakyRelu { alpha }
            | Self::Elu { alpha }
            | Self::Celu { alpha }
            | Self::ThresholdedRelu { alpha }
            | Self::Swish { alpha } => vec![("alpha", alpha.into())],
            Self::Selu { alpha, gamma } => vec![("alpha", alpha.into()), ("gamma", gamma.into())],
            Self::Shrink { bias, lambd } => vec![("bias", bias.into()), ("lambd", lambd.into())],
            Self::HardSigmoid { alpha, beta } => vec![("alpha", alpha.into()), ("beta", beta.into())],
            Self::Gelu { tanh } => vec![("approximate", if tanh { "tanh" } else { "none" }.into())],
        }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..1)
    }

    fn heeds(&self, _: &Inputs) -> Option<(f32, f32)> {
        match *self {
            Self::HardSigmoid { alpha, beta } if alpha > 0.0 => Some((-beta / alpha, (1.0 - beta) / alpha)),
            Self::Gelu { .. } => Some((-5.0, f32::MAX)),
            Self::Swish { alpha } if alpha > 0.0 => Some((-8.0 / alpha, f32::MAX)),
            Self::Elu { alpha } | Self::Selu { alpha, .. } if alpha > 0.0 => Some((-6.0, f32::MAX)),
            _ => None,
        }
    }

    fn since(&self) -> i64 {
        match self {
            Self::LeakyRelu { .. } | Self::Elu { .. } | Self::HardSigmoid { .. } | Self::Selu { .. } => 6,
            Self::Shrink { .. } => 9,
            Self::ThresholdedRelu { .. } => 10,
            Self::Celu { .. } => 12,
            Self::Gelu { .. } => 20,
            Self::Swish { .. } => 24,
        }
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}
