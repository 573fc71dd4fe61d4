//! Unstructured pruning by global magnitude (Han et al., 2015): the smallest weights of all
//! layers together become zero.

use crate::layers::{Layer, ends, excluded, layers, obstacle};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Context, Outcome, Pass, Skipped},
    tensor::Tensor,
};
use regex::Regex;
use std::collections::BTreeSet;

/// Zeroes a fraction of the weights of Conv, Gemm and MatMul; never biases or norms.
pub struct Prune {
    /// The fraction of the prunable weights, in `0..1`.
    pub fraction: f64,
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
    /// Whether the first and last layers are pruned too.
    pub ends: bool,
}

impl Pass for Prune {
    fn name(&self) -> &'static str {
        "prune"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, _: &Context) -> Result<Outcome> {
        let all = layers(g)?;
        let guarded = if self.ends { Default::default() } else { ends(g, &all) };
        let mut out = Outcome::default();
        // A weight shared by several layers is one weight; it is left alone if any of them is.
        let mut spared: BTreeSet<NodeId> = BTreeSet::new();
        for l in &all {
            let reason = match obstacle(g, l, &all) {
                _ if excluded(g, l, &self.exclude) => "excluded by --exclude".into(),
                Some(o) => o,
                None if guarded.contains(&l.node) => "first or last layer; --prune-ends prunes it too".into(),
                None => continue,
            };
            spared.insert(l.weight);
            out.skipped.push(Skipped { rule: self.name().into(), node: g.node(l.node).display_name().into(), reason });
        }
        let weights: BTreeSet<NodeId> = all.iter().map(|l: &Layer| l.weight).filter(|w| !spared.contains(w)).collect();
        if weights.is_empty() {
            out.warnings.push("--prune found no weight it may touch; the report lists why".into());
            return Ok(out);
        }
        let magnitudes: Vec<f32> = weights.iter().flat_map(|w| floats(g, *w)).map(f32::abs).collect();
        let count = magnitudes.len();
        let mut left = (self.fraction * count as f64).round() as usize;
        let threshold = match left.checked_sub(1) {
            None => return Ok(out),
            Some(k) => {
                let mut m = magnitudes;
                *m.select_nth_unstable_by(k, f32::total_cmp).1
            }
        };
        out.warnings.push(format!(
            "--prune {} zeroed {left} of the {count} weights of {} layers; {} layers were left alone (see `passes` in the report)",
            self.fraction,
            weights.len(),
            out.skipped.len()
        ));
        // First what lies below the threshold, then equal values in order until the count is met.
        let below: usize = weights.iter().flat_map(|w| floats(g, *w)).filter(|v| v.abs() < threshold).count();
        left -= below;
        for w in weights {
            let mut values = floats(g, w);
            for v in &mut values {
                let zero = v.abs() < threshold || (v.abs() == threshold && left > 0);
                if v.abs() == threshold && left > 0 {
                    left -= 1;
                }
                if zero {
                    *v = 0.0;
                }
            }
            if values.iter().all(|v| *v == 0.0) {
                out.warnings.push(format!(
                    "--prune {} zeroes all of `{}`: the layer computes a constant now; --exclude it or prune less",
                    self.fraction,
                    g.value(w.into()).name
                ));
            }
            let shape = g.constant(w.into()).map(|t| t.shape().to_vec()).unwrap_or_default();
            g.set_constant(w, Tensor::f32(&shape, &values));
            out.edits += 1;
        }
        Ok(out)
    }
}

fn floats(g: &Graph, constant: NodeId) -> Vec<f32> {
    g.constant(constant.into()).and_then(|t| t.as_f32().map(|c| c.into_owned())).unwrap_or_default()
}
