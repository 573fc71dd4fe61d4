//! BatchNormalization in inference mode.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};
use std::ops::RangeInclusive;

/// `Y = (X - mean) / sqrt(var + epsilon) * scale + bias` along axis 1.
/// Inputs: X, scale, bias, mean, var.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// How fast training moves the running statistics; of no use to inference, but kept.
    pub momentum: f32,
}

impl BatchNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self { epsilon: r.float("epsilon", 1e-5)?, momentum: r.float("momentum", 0.9)? };
        let training = if r.opset >= 14 { r.flag("training_mode", false)? } else { false };
        if training || r.outputs > 1 {
            return Err(Error::unsupported("BatchNormalization in training mode"));
        }
        if r.opset < 9 && !r.flag("spatial", true)? {
            return Err(Error::unsupported("BatchNormalization with spatial=0"));
        }
        Ok(op)
    }
}

impl Operator for BatchNorm {
    fn op_type(&self) -> &str {
        "BatchNormalization"
    }
    fn attrs(&self) -> Attrs {
        vec![("epsilon", self.epsilon.into()), ("momentum", self.momentum.into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        5..=5
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let (Some(data), Some(scale)) = (x.dims(0), x.dims(1)) {
            let channels = data.get(1).and_then(|d| d.known());
            let have = scale.first().and_then(|d| d.known());
            if scale.len() != 1 || matches!((channels, have), (Some(c), Some(h)) if c != h) {
                return Err(Error::malformed(format!("scale of {scale:?} does not fit an input of {data:?}")));
            }
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
}
