//! NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};
use std::ops::RangeInclusive;

/// What becomes of the losses of all samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// They are the result.
    None,
    /// They are added up.
    Sum,
    /// They are averaged, by their weights.
    Mean,
}

/// Minus the logarithm of the probability of the right class. Inputs: scores `[N, C, ...]`,
/// classes `[N, ...]`, weights by class (optional).
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    /// Whether a softmax makes logarithms of probabilities of the scores, which they are already
    /// otherwise. Then they are the second output.
    pub softmax: bool,
    /// What becomes of the losses.
    pub reduction: Reduction,
    /// The class that does not count.
    pub ignore_index: Option<i64>,
}

impl Loss {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let reduction = match r.string("reduction", "mean")?.as_str() {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            other => return Err(Error::malformed(format!("reduction={other}"))),
        };
        let softmax = r.op_type == "SoftmaxCrossEntropyLoss";
        Ok(Self { softmax, reduction, ignore_index: r.opt_int("ignore_index")? })
    }
}

impl Operator for Loss {
    fn op_type(&self) -> &str {
        if self.softmax { "SoftmaxCrossEntropyLoss" } else { "NegativeLogLikelihoodLoss" }
    }
    fn attrs(&self) -> Attrs {
        let reduction = match self.reduction {
            Reduction::None => "none",
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
        };
        let mut attrs: Attrs = vec![("reduction", reduction.into())];
        attrs.extend(self.ignore_index.map(|i| ("ignore_index", i.into())));
        attrs
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn max_outputs(&self) -> usize {
        if self.softmax { 2 } else { 1 }
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let shape = match self.reduction {
            Reduction::None => x.shape(1).clone(),
            Reduction::Sum | Reduction::Mean => Some(vec![]),
        };
        let mut facts = vec![Fact::new(dtype, shape)];
        if self.softmax {
            facts.push(Fact::new(dtype, x.shape(0).clone()));
        }
        Ok(facts)
    }
    fn since(&self) -> i64 {
        12
    }
}
