//! Layers of which the smallest weights are zero.

use super::{Answers, Without};
use crate::prune::mask::{Scope, highest};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::NodeId,
    pass::Context,
    tensor::Tensor,
};
use std::collections::HashMap;

/// The fractions that are tried.
const FRACTIONS: [f64; 3] = [0.5, 0.8, 0.9];

/// What is left when the smallest elements of a weight alone are zero, by the weight.
pub(super) fn of(g: &Graph, scope: &Scope, answers: &Answers, cx: &Context) -> Result<HashMap<NodeId, Vec<Without>>> {
    let (weights, _) = scope.prunable(g, "zeros")?;
    let mut found = HashMap::new();
    for (i, weight) in weights.iter().enumerate() {
        (cx.progress)("zeros", i, weights.len());
        let tensor = g.constant((*weight).into()).ok_or_else(|| Error::bug("a weight is not a constant"))?;
        let values = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?;
        let scores = [values.iter().map(|v| v.abs()).collect()];
        let mut pruned = g.clone();
        let mut left = |fraction| {
            let keep = highest(&scores, fraction).concat();
            let kept: Vec<f32> = values.iter().zip(keep).map(|(v, keep)| if keep { *v } else { 0.0 }).collect();
            pruned.set_constant(*weight, Tensor::f32(tensor.shape(), &kept));
            Ok(Without { fraction, left: answers.left(&pruned, cx)? })
        };
        found.insert(*weight, FRACTIONS.into_iter().map(&mut left).collect::<Result<_>>()?);
    }
    (cx.progress)("zeros", weights.len(), weights.len());
    Ok(found)
}
