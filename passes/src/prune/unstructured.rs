//! Pruning without training: by magnitude (Han et al., 2015), or such that layers answer as before.

use super::{
    choice::Choice,
    mask::Scope,
    reconstruct::{Budget, reconstruct},
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Context, Outcome, Pass, reasons},
    tensor::Tensor,
    words::{
        counted,
        option::{PRUNE, PRUNE_BUDGET, PRUNE_PATTERN},
    },
};

/// Zeroes weights of Conv, Gemm and MatMul.
#[derive(Debug)]
pub struct Prune {
    /// How many.
    pub budget: Budget,
    /// Of which layers.
    pub scope: Scope,
    /// Whether calibration data decides which go and what the others become, or magnitude alone.
    pub reconstruct: bool,
}

/// Layers that are named one by one; of more, only the extremes.
const NAMED: usize = 8;

/// Which weights go where layers are solved.
const LEAST: &str = "which change the outputs of their layers least on";

impl Pass for Prune {
    fn name(&self) -> &'static str {
        "prune"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let choice = Choice::new(g, &self.scope, self.budget, self.name())?;
        let mut out = Outcome { skipped: choice.skipped.clone(), ..Outcome::default() };
        let weights = &choice.weights;
        if weights.is_empty() {
            out.warnings.push(format!("{}: nothing was pruned: {}", self.flag(), reasons(&out.skipped)));
            return Ok(out);
        }
        let before: Vec<Vec<f32>> = weights.iter().map(|w| floats(g, *w)).collect();
        let magnitudes = |(w, v): (&NodeId, &Vec<f32>)| (*w, v.iter().map(|v| v.abs()).collect());
        let masks = choice.keep(weights.iter().zip(&before).map(magnitudes).collect(), 1.0);
        let goes = before.iter().flatten().zip(masks.iter().flatten()).filter(|(v, keep)| **v != 0.0 && !**keep);
        // What was pruned under training is not to be solved for once more; folding may have moved one or the other.
        let pruned_already = goes.count() <= weights.len();
        let mut by_magnitude = vec![];
        let how = match cx.calibrator.filter(|_| self.reconstruct && !pruned_already) {
            Some(calibrator) => {
                let done = reconstruct(g, weights, self.budget, calibrator, cx)?;
                by_magnitude = done.into_iter().filter(|d| d.by_magnitude.is_some() && d.zeros > 0).collect();
                let samples = counted(calibrator.samples(), "sample");
                match by_magnitude.len() {
                    0 => format!(", {LEAST} {samples}, and adjusted the other weights"),
                    n if n == weights.len() => ", the smallest".into(),
                    n => format!(
                        "; of {}, {LEAST} {samples}, and adjusted the other weights",
                        counted(weights.len() - n, "layer")
                    ),
                }
            }
            None => {
                zero(g, weights, &before, &masks);
                let unable = self.reconstruct && !pruned_already;
                if unable { ", the smallest, as the model can't be run here".into() } else { String::new() }
            }
        };
        let after: Vec<Vec<f32>> = weights.iter().map(|w| floats(g, *w)).collect();
        out.edits = before.iter().zip(&after).filter(|(a, b)| a != b).count();
        let left: Vec<(NodeId, &Vec<f32>)> =
            weights.iter().copied().zip(&after).filter(|(w, _)| by_magnitude.iter().all(|d| d.weight != *w)).collect();
        out.warnings.push(format!(
            "{} zeroed {} of the {} weights of {}{how}{}{}; {} left alone (see `passes` in the report)",
            self.flag(),
            after.iter().flatten().filter(|v| **v == 0.0).count(),
            after.iter().map(Vec::len).sum::<usize>(),
            counted(weights.len(), "layer"),
            if left.is_empty() { "" } else { ": " },
            shares(g, &left),
            match out.skipped.len() {
                1 => "1 layer was".into(),
                n => format!("{n} layers were"),
            }
        ));
        for d in &by_magnitude {
            let reason = d.by_magnitude.as_deref().unwrap_or_default();
            let share = 100.0 * d.zeros as f64 / d.elements.max(1) as f64;
            out.warnings.push(format!(
                "`{}` was pruned by magnitude, {share:.1}%, and what stays of it is as it was: {reason}",
                g.value(d.weight.into()).name
            ));
        }
        Ok(out)
    }
}

impl Prune {
    fn flag(&self) -> String {
        match self.budget {
            Budget::Fraction(f) => format!("{PRUNE} {f}"),
            Budget::Layers(f) => format!("{PRUNE} {f} {PRUNE_BUDGET} layer"),
            Budget::Pattern(p) => format!("{PRUNE_PATTERN} {p}"),
        }
    }
}

/// Leaves of each weight what its mask keeps.
fn zero(g: &mut Graph, weights: &[NodeId], values: &[Vec<f32>], masks: &[Vec<bool>]) {
    for ((w, values), keep) in weights.iter().zip(values).zip(masks) {
        let pruned: Vec<f32> = values.iter().zip(keep).map(|(v, keep)| if *keep { *v } else { 0.0 }).collect();
        if pruned != *values {
            let shape = g.constant((*w).into()).map(|t| t.shape().to_vec()).unwrap_or_default();
            g.set_constant(*w, Tensor::f32(&shape, &pruned));
        }
    }
}

/// The shares of zeros, in words.
fn shares(g: &Graph, weights: &[(NodeId, &Vec<f32>)]) -> String {
    let share = |v: &Vec<f32>| 100.0 * v.iter().filter(|v| **v == 0.0).count() as f64 / v.len().max(1) as f64;
    let each = weights.iter().map(|(w, v)| (share(v), &g.value((*w).into()).name));
    if weights.len() <= NAMED {
        let named: Vec<String> = each.map(|(share, name)| format!("{name} {share:.1}%")).collect();
        return named.join(", ");
    }
    let (least, most) = each.fold((f64::MAX, 0.0), |(least, most), (s, _)| (s.min(least), s.max(most)));
    format!("from {least:.1}% to {most:.1}% of each")
}

fn floats(g: &Graph, constant: NodeId) -> Vec<f32> {
    g.constant(constant.into()).and_then(|t| t.as_f32().map(|c| c.into_owned())).unwrap_or_default()
}
