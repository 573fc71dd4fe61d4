//! Which weights are pruned, and which of their elements go under a budget.

use super::{
    mask::{Groups, Scope, highest, lowest},
    reconstruct::Budget,
};
use crate::{layers::layers, weight_matrix::WeightMatrix};
use compress_compiler::{error::Result, graph::Graph, node::NodeId, pass::Skipped};

/// A budget for the weights of a graph.
pub struct Choice {
    /// The weights.
    pub weights: Vec<NodeId>,
    /// Layers that are left alone, and why.
    pub skipped: Vec<Skipped>,
    budget: Budget,
    /// Of a pattern: how the elements of each weight lie, and their groups.
    groups: Vec<(WeightMatrix, Groups)>,
}

impl Choice {
    /// The weights within `scope`; of a pattern, those whose channels fill its groups.
    ///
    /// # Errors
    /// Malformed when the graph has a cycle.
    pub fn new(g: &Graph, scope: &Scope, budget: Budget, rule: &str) -> Result<Self> {
        let (mut weights, mut skipped) = scope.prunable(g, rule)?;
        let mut groups = vec![];
        if let Budget::Pattern(pattern) = budget {
            let all = layers(g)?;
            weights.retain(|w| {
                let Some((l, layout)) =
                    all.iter().find_map(|l| Some((l, WeightMatrix::of(g, l)?)).filter(|_| l.weight == *w))
                else {
                    return false;
                };
                if let Some(of) = layout.groups(pattern) {
                    groups.push((layout, Groups { zeros: pattern.zeros, of }));
                    return true;
                }
                let reason = format!("its {} input channels are not a multiple of {}", layout.channels, pattern.of);
                let node = g.node(l.node).display_name().into();
                skipped.push(Skipped { rule: rule.into(), node, reason });
                false
            });
        }
        Ok(Self { weights, skipped, budget, groups })
    }

    /// Which elements stay when the share `done` of the budget is spent, those of the lowest scores having gone: of each
    /// of the weights that are given with their scores.
    pub fn keep(&self, scores: Vec<(NodeId, Vec<f32>)>, done: f64) -> Vec<Vec<bool>> {
        let (nodes, scores): (Vec<NodeId>, Vec<Vec<f32>>) = scores.into_iter().unzip();
        match self.budget {
            Budget::Fraction(fraction) => highest(&scores, fraction * done),
            Budget::Layers(fraction) => {
                scores.iter().flat_map(|s| highest(std::slice::from_ref(s), fraction * done)).collect()
            }
            Budget::Pattern(_) => nodes.iter().zip(&scores).map(|(w, s)| self.grouped(*w, s, done)).collect(),
        }
    }

    fn grouped(&self, weight: NodeId, scores: &[f32], done: f64) -> Vec<bool> {
        let place = self.weights.iter().position(|w| *w == weight);
        let Some((layout, groups)) = place.and_then(|i| self.groups.get(i)) else { return vec![true; scores.len()] };
        let scores: Vec<f64> = layout.matrix(scores).into_iter().map(f64::from).collect();
        let zeros = (groups.total() as f64 * done).round() as usize;
        layout.stored(&lowest(&scores, zeros, Some(groups)))
    }
}
