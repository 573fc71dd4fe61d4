//! FlexAttention: attention with graphs that change its scores and probabilities.

use super::control::Body;
use crate::{
    attr::{Attr, Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// `Y = prob_mod(softmax(score_mod(scale * Q * K'))) * V`. Inputs: Q, K, V, each
/// `[batch, heads, length, size]`, then the captures.
#[derive(Debug, Clone, PartialEq)]
pub struct FlexAttention {
    /// Scales the products; 1 / sqrt(head size) unless given.
    pub scale: Option<f32>,
    /// The type in which scores and probabilities are computed.
    pub softmax_precision: Option<DType>,
    /// Takes and makes scores.
    pub score_mod: Option<Body>,
    /// Takes and makes probabilities.
    pub prob_mod: Option<Body>,
}

impl FlexAttention {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self {
            scale: r.opt_float("scale")?,
            softmax_precision: r.opt_dtype("softmax_precision")?,
            score_mod: r.opt_body("score_mod")?,
            prob_mod: r.opt_body("prob_mod")?,
        };
        if op.bodies().iter().any(|b| b.formals() != 1 || b.graph().outputs().len() != 1) {
            return Err(Error::malformed("a graph of FlexAttention takes one tensor and makes one"));
        }
        if op.softmax_precision.is_some_and(|t| !t.is_float()) {
            return Err(Error::malformed("a softmax_precision that is not a float type"));
        }
        Ok(op)
    }

    /// The type in which scores and probabilities are computed, for inputs of type `input`.
    pub fn precision(&self, input: DType) -> DType {
        self.softmax_precision.unwrap_or(if input == DType::F64 { input } else { DType::F32 })
    }

    fn captures(&self) -> usize {
        self.bodies().first().map_or(0, |b| b.captures())
    }
}

impl Operator for FlexAttention {
    fn op_type(&self) -> &str {
        "ai.onnx.preview.FlexAttention"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        a.extend(self.scale.map(|s| ("scale", s.into())));
        a.extend(self.softmax_precision.map(|t| ("softmax_precision", (t as i64).into())));
        a.extend(self.score_mod.clone().map(|b| ("score_mod", Attr::Graph(b))));
        a.extend(self.prob_mod.clone().map(|b| ("prob_mod", Attr::Graph(b))));
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        let n = 3 + self.captures();
        n..=n
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        for slot in 0..3 {
            if let Some(rank) = x.get(slot).rank().filter(|rank| *rank != 4) {
                return Err(Error::malformed(format!("input {slot} of rank {rank}, not 4")));
            }
        }
        let at = |slot: usize, axis: usize| x.dims(slot).map_or(Dim::Unknown, |d| d[axis].clone());
        let shape = vec![at(0, 0), at(0, 1), at(0, 2), at(2, 3)];
        Ok(vec![Fact::new(x.get(2).dtype, Some(shape))])
    }

    fn bodies(&self) -> Vec<&Body> {
        self.score_mod.iter().chain(&self.prob_mod).collect()
    }

    fn set_bodies(&mut self, bodies: Vec<Body>) {
        let places = self.score_mod.iter_mut().chain(&mut self.prob_mod);
        places.zip(bodies).for_each(|(place, body)| *place = body);
    }
}
