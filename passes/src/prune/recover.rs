//! Training after pruning, or pruning step by step while the model is trained (Zhu and Gupta, 2018).

use super::{choice::Choice, mask::Scope, reconstruct::Budget, unstructured::Prune};
use compress_compiler::{
    choice,
    error::{Error, Kind, Result},
    graph::Graph,
    node::NodeId,
    pass::{Context, Masking, Outcome, Pass, Training, Weight},
};

/// What decides which weights go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightSaliency {
    /// [`Prune`], before the training.
    Obs,
    /// Their magnitude, meanwhile.
    Magnitude,
    /// Their effect on the loss, during training.
    Taylor,
}

choice!(WeightSaliency, "saliency of weights", [
    Magnitude "magnitude" "the smallest weights are removed",
    Taylor "taylor" "the weights with the least effect on the loss are removed (needs labels and training)",
    Obs "reconstruct" "the weights are removed for which the others compensate best, on data",
]);

/// Trains a pruned model to answer as it did.
#[derive(Debug)]
pub struct Recover {
    /// How many weights are zero in the end.
    pub budget: Budget,
    /// Of which layers.
    pub scope: Scope,
    /// Which.
    pub by: WeightSaliency,
    /// Whether a model that can't be trained, or not on this data, is an error, rather than pruned without.
    pub must: bool,
    /// Whether a pass before left it to this one to train.
    pub deferred: bool,
}

impl Pass for Recover {
    fn name(&self) -> &'static str {
        "recover"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let choice = Choice::new(g, &self.scope, self.budget, self.name())?;
        let mut out = Outcome::default();
        let gradual = self.by != WeightSaliency::Obs;
        // It prunes what could not be trained, and says what is zero.
        let prune = Prune { budget: self.budget, scope: self.scope.clone(), reconstruct: false };
        if choice.weights.is_empty() {
            if gradual {
                out.add(prune.run(g, cx)?);
            }
            if self.deferred {
                out.add(train(g, (self.name(), 1.0), vec![], None, self.must, cx)?);
            }
            return Ok(out);
        }
        let choose = |done: f64, weights: &[Weight]| {
            // Fast at first, when there is much that nothing needs. What a magnitude leaves of a pattern is known from the
            // start; saliencies are not.
            let at_once = matches!(self.budget, Budget::Pattern(_)) && self.by != WeightSaliency::Taylor;
            let done = if at_once { 1.0 } else { 1.0 - (1.0 - done).powi(3) };
            let keep = choice.keep(weights.iter().map(|w| (w.node, self.scores(w))).collect(), done);
            // What is zero already stays zero, whether or not the budget asks for it.
            let both =
                |(w, keep): (&Weight, Vec<bool>)| w.values.iter().zip(keep).map(|(v, k)| k && *v != 0.0).collect();
            Ok(weights.iter().zip(keep).map(both).collect())
        };
        let masking =
            gradual.then(|| Masking { choose: Box::new(choose), by_saliency: self.by == WeightSaliency::Taylor });
        out.add(train(g, (self.name(), 1.0), choice.weights.clone(), masking, self.must, cx)?);
        if gradual {
            out.add(prune.run(g, cx)?);
        }
        Ok(out)
    }
}

/// Trains a graph, by a name for the report and for a share of the planned epochs, to answer as the model did, with the zeros of `masked` kept. Where it can't
/// be trained that is an error if it `must` be, and a warning if not.
///
/// # Errors
/// Whatever running and reading the data can raise; interrupted.
pub fn train(
    g: &mut Graph,
    (name, share): (&'static str, f64),
    masked: Vec<NodeId>,
    masking: Option<Masking>,
    must: bool,
    cx: &Context,
) -> Result<Outcome> {
    let trainer = cx.trainer.ok_or_else(|| Error::bug("recovery was planned without data"))?;
    let mut out = Outcome::default();
    let edits = masked.len().max(1);
    let training = Training { name, share, masked, masking, scales: false, deploy: &|_| Ok(()) };
    match trainer.train(g, training) {
        Ok(trained) => {
            out.edits = edits;
            out.trained.push(trained);
        }
        Err(e) if matches!(e.kind(), Kind::Unsupported | Kind::Data) && !must => {
            out.warnings.push(format!("no training won accuracy back: {e}"));
        }
        Err(e) => return Err(e),
    }
    Ok(out)
}

impl Recover {
    fn scores(&self, w: &Weight) -> Vec<f32> {
        // What is zero already goes first.
        let zero = |score: f32, value: f32| if value == 0.0 { -1.0 } else { score };
        match w.saliency.len() == w.values.len() {
            true => w.saliency.iter().zip(&w.values).map(|(f, v)| zero(*f, *v)).collect(),
            false => w.values.iter().map(|v| zero(v.abs(), *v)).collect(),
        }
    }
}
