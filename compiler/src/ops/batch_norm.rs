//! BatchNormalization.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Width},
    value::Fact,
};
use std::ops::RangeInclusive;

/// `Y = (X - mean) / sqrt(var + epsilon) * scale + bias` along axis 1.
/// Inputs: X, scale, bias, mean, var. Outputs: Y, and in training the running mean and variance.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// How slowly training moves the running statistics.
    pub momentum: f32,
    /// Whether X is normalised by its own mean and variance, not by those given.
    pub training: bool,
}

impl BatchNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let training = r.opset >= 14 && r.flag("training_mode", false)?;
        if r.opset < 7 && !r.flag("is_test", false)? {
            return Err(Error::unsupported("BatchNormalization in training"));
        }
        let statistics = if r.opset >= 14 { 2..=3 } else { 2..=5 };
        if statistics.contains(&r.outputs) && !training {
            return Err(Error::unsupported("BatchNormalization with outputs of statistics outside of training"));
        }
        if r.opset < 9 && !r.flag("spatial", true)? {
            return Err(Error::unsupported("BatchNormalization with spatial=0"));
        }
        Ok(Self { epsilon: r.float("epsilon", 1e-5)?, momentum: r.float("momentum", 0.9)?, training })
    }
}

impl Operator for BatchNorm {
    fn op_type(&self) -> &str {
        "BatchNormalization"
    }
    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("epsilon", self.epsilon.into()), ("momentum", self.momentum.into())];
        if self.training {
            a.push(("training_mode", true.into()));
        }
        a
    }
    fn arity(&self) -> RangeInclusive<usize> {
        5..=5
    }
    fn parameters(&self) -> &'static [usize] {
        &[1, 2]
    }
    fn max_outputs(&self) -> usize {
        if self.training { 3 } else { 1 }
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let (Some(data), Some(scale)) = (x.dims(0), x.dims(1)) {
            let channels = data.get(1).and_then(|d| d.known());
            let have = scale.first().and_then(|d| d.known());
            if scale.len() != 1 || matches!((channels, have), (Some(c), Some(h)) if c != h) {
                return Err(Error::malformed(format!("scale of {scale:?} does not fit an input of {data:?}")));
            }
        }
        let mut facts = vec![Fact::new(x.get(0).dtype, x.shape(0).clone())];
        if self.training {
            facts.extend([3, 4].map(|slot| Fact::new(x.get(slot).dtype, x.shape(slot).clone())));
        }
        Ok(facts)
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.alike(at, "it normalises over these", |axis| match axis {
            Axis::In(0, 1) | Axis::In(1..=4, 0) | Axis::Out(0, 1) | Axis::Out(1.., 0) => Some(1),
            Axis::In(0, i) | Axis::Out(0, i) if !self.training => Some(i),
            _ => None,
        })
    }
    fn since(&self) -> i64 {
        if self.training { 14 } else { 7 }
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}
