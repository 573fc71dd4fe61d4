//! What a pass is, what it is given, and what a pass may ask of the runtime.

use crate::{
    clipping::Clipping,
    error::{Error, Kind, Result},
    graph::Graph,
    judge::{Judges, Trial},
    node::{NodeId, Port, Site},
    op::Op,
    spill::Spill,
    tensor::Tensor,
    value::Fact,
    verify::{Verified, verify},
    words::{Unit, counted},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// Runs operators: what folding asks of the runtime.
pub trait Interpreter {
    /// Runs `op` on host tensors.
    ///
    /// # Errors
    /// Unsupported when the operator has no kernel; malformed when it refuses its inputs.
    fn eval(&self, op: &Op, inputs: &[Option<Tensor>]) -> Result<Vec<Tensor>>;
}

/// Runs a graph over calibration data: what quantisation and pruning ask of the runtime.
pub trait Calibrator {
    /// Feeds every calibration batch through `graph` and hands each value in `watch`, by its
    /// place in that list, to `sink`: in any order, and by several threads at once. A value of a
    /// graph inside is handed over each time that this one runs. Streams: each thread has one batch
    /// in memory at a time.
    ///
    /// # Errors
    /// Whatever running or reading the data can raise.
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &(dyn Fn(usize, &[f32]) -> Result<()> + Sync),
    ) -> Result<()>;

    /// The same, one batch after the other: sums of floats that `sink` makes do not depend on threads.
    ///
    /// # Errors
    /// As for [`Calibrator::observe`].
    fn observe_in_turn(
        &self,
        graph: &Verified,
        watch: &[Site],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()>;

    /// Feeds `samples` calibration samples, or all if there are fewer, batch by batch to each of `graphs`, which have the
    /// same inputs, and hands their outputs, graph by graph, to `sink`: one batch after the other, in order.
    ///
    /// # Errors
    /// Whatever running or reading the data can raise.
    fn run(
        &self,
        graphs: &[&Verified],
        samples: usize,
        sink: &mut dyn FnMut(&[Vec<Tensor>]) -> Result<()>,
    ) -> Result<()>;

    /// How many samples these are.
    fn samples(&self) -> usize;

    /// `graph` at the sizes of one of them.
    ///
    /// # Errors
    /// Whatever reading the data can raise; malformed where the graph can't have these sizes.
    fn sized(&self, graph: &Graph) -> Result<Graph>;
}

/// Trains the weights of a graph on data: what pruning with recovery and quantisation-aware training
/// ask of the runtime.
pub trait Trainer {
    /// Trains `graph` to answer as the model did before it was compressed.
    ///
    /// # Errors
    /// Whatever running, reading the data and writing can raise; interrupted.
    fn train(&self, graph: &mut Graph, training: Training) -> Result<Trained>;

    /// Trains weights of `graph` so that it answers as another graph does. Returns the epochs and the samples of each.
    ///
    /// # Errors
    /// As for [`Trainer::train`].
    fn tune(&self, graph: &mut Graph, tuning: Tuning) -> Result<(u64, usize)>;

    /// The saliency of each element of the trainable ones among `constants`, without training them:
    /// [`Weight::saliency`], as a mean over samples, of the loss on labels.
    ///
    /// # Errors
    /// Data without labels; whatever running and reading the data can raise; interrupted.
    fn saliency(&self, graph: &Graph, constants: &[NodeId]) -> Result<Vec<Weight>>;
}

/// Times graphs: what pruning of channels asks of the runtime.
pub trait Stopwatch {
    /// Milliseconds of a run of each of two graphs with the same inputs, timed by turns: the sum of the least that each of its
    /// steps took, as other work on the machine only adds to it.
    ///
    /// # Errors
    /// Whatever running them can raise; interrupted.
    fn compare(&self, graphs: [&Verified; 2]) -> Result<[f64; 2]>;
}

/// What a training has to keep, and what it changes besides weights.
pub struct Training<'a> {
    /// What it is for, in a word or two, as progress shows it.
    pub name: &'static str,
    /// The share of the planned epochs that it gets: less than 1 when others follow.
    pub share: f64,
    /// The constants whose zeros stay.
    pub masked: Vec<NodeId>,
    /// Makes more of their elements zero as the training goes on.
    pub masking: Option<Masking<'a>>,
    /// Whether the scales of QuantizeLinear are learnt too (LSQ, Esser et al. 2020).
    pub scales: bool,
    /// Makes of a copy of the graph what will run: that is what is scored.
    pub deploy: &'a dyn Fn(&mut Graph) -> Result<()>,
}

/// Weights that are trained until values of one graph are like those of another.
pub struct Tuning<'a> {
    /// The graph that is learnt from.
    pub teacher: &'a Graph,
    /// The constants that are trained, and how far a code is from the next.
    pub constants: BTreeMap<NodeId, f32>,
    /// Names of the values that both graphs have, and that have to be alike.
    pub places: Vec<String>,
    /// Multiply-accumulates of a sample.
    pub macs: u64,
    /// After so long it ends.
    pub time: Option<Duration>,
    /// How near the answers of a graph are, in decibels: the best of the epochs is kept.
    pub score: &'a dyn Fn(&Graph) -> Result<f64>,
}

/// Given how much of the time for it is over, from 0 to 1, and the weights: which elements of each stay.
pub type Choose<'a> = dyn FnMut(f64, &[Weight]) -> Result<Vec<Vec<bool>>> + 'a;

/// Chooses masks while weights are trained (gradual pruning, Zhu and Gupta 2018).
pub struct Masking<'a> {
    /// How.
    pub choose: Box<Choose<'a>>,
    /// Whether it looks at saliencies.
    pub by_saliency: bool,
}

/// A weight in training.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// The constant.
    pub node: NodeId,
    /// Its elements.
    pub values: Vec<f32>,
    /// The saliency of each element: a running mean of |gradient * element| (Molchanov et al. 2017). Empty
    /// unless asked for.
    pub saliency: Vec<f32>,
}

/// What a training did.
#[derive(Debug, Clone, Default, PartialEq, JsonSchema, Serialize)]
pub struct Trained {
    /// What it was for.
    pub name: &'static str,
    /// Epochs that were done.
    pub epochs: u64,
    /// Epochs that were planned.
    pub planned: u64,
    /// Samples of an epoch.
    pub samples: usize,
    /// Steps that were done.
    pub steps: u64,
    /// Wall time.
    pub seconds: f64,
    /// What it was scored by on what was held out: `top1`, `agreement` or `sqnr`.
    pub metric: &'static str,
    /// How that is read.
    #[serde(skip)]
    pub unit: Unit,
    /// Samples that it was scored on, which chose the best epoch: neither trained on nor evaluated on.
    pub validated: usize,
    /// The score of what was trained before the first step, which is the model as it was pruned or rounded. Absent where
    /// weights go while it is trained, as it then has yet to be pruned, and where the score is not a finite number.
    pub before: Option<f64>,
    /// The best score with all masks in place; absent as above.
    pub after: Option<f64>,
    /// Why it ended, in words.
    pub ended: &'static str,
    /// Its course, from before the first step on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub course: Vec<EpochScore>,
}

/// A model as it was scored after an epoch.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct EpochScore {
    /// The epoch, from 1, which the end of the time may have cut short; 0 before the first step.
    pub epoch: u64,
    /// The mean loss of the epoch; absent before the first step.
    pub loss: Option<f64>,
    /// The score on what was held out; absent where it is not a finite number.
    pub score: Option<f64>,
}

/// Whether the user asked to stop.
pub type Stopped<'a> = dyn Fn() -> bool + Sync + 'a;

/// What a pass is given besides the graph.
pub struct Context<'a> {
    /// Runs single operators.
    pub interpreter: &'a dyn Interpreter,
    /// The model before any pass.
    pub original: Option<&'a Graph>,
    /// Runs the graph over calibration data, where there is any.
    pub calibrator: Option<&'a dyn Calibrator>,
    /// Trains the graph, where that was asked for.
    pub trainer: Option<&'a dyn Trainer>,
    /// Times graphs, where they can be run.
    pub stopwatch: Option<&'a dyn Stopwatch>,
    /// Compares graphs, where there are samples to do it on.
    pub judges: Option<&'a dyn Judges>,
    /// Whether the user asked to stop; long passes look now and then.
    pub stopped: &'a Stopped<'a>,
    /// Told of long work: what it is, how many of its steps are done, and of how many.
    pub progress: &'a dyn Fn(&str, usize, usize),
    /// Told a line about long work.
    pub note: &'a dyn Fn(&str),
    /// Told of results that are better than those before, in the middle of long work: makes of them what is kept if that
    /// is cut off.
    pub found: &'a Found<'a>,
    /// Counts the changes, and says when there were enough.
    pub edits: Edits,
    /// Where tensors of large models go.
    pub spill: Option<&'a Spill>,
}

/// Told of a result, with a way to make it.
pub type Found<'a> = dyn Fn(&dyn Fn() -> Result<Graph>) -> Result<()> + 'a;

/// Counts the changes that passes make. With a limit, the changes after it are not made:
/// that is how a search finds the one that is wrong.
#[derive(Debug, Default)]
pub struct Edits {
    made: Cell<usize>,
    limit: Option<usize>,
    last: RefCell<Option<(String, String)>>,
}

impl Edits {
    /// A count that ends at `limit`.
    pub fn up_to(limit: usize) -> Self {
        Self { limit: Some(limit), ..Self::default() }
    }

    /// Asks for one more change, by `rule` at the node called `node`.
    pub fn allow(&self, rule: &str, node: impl Fn() -> String) -> bool {
        if let Some(limit) = self.limit {
            if self.made.get() >= limit {
                return false;
            }
            *self.last.borrow_mut() = Some((rule.into(), node()));
        }
        self.made.set(self.made.get() + 1);
        tracing::trace!(rule, node = node());
        true
    }

    /// How many changes were made.
    pub fn made(&self) -> usize {
        self.made.get()
    }

    /// The rule and the node of the last change, where there is a limit.
    pub fn last(&self) -> Option<(String, String)> {
        self.last.borrow().clone()
    }
}

impl<'a> Context<'a> {
    /// A context with an interpreter only, and nobody to stop it.
    pub fn new(interpreter: &'a dyn Interpreter) -> Self {
        Self {
            interpreter,
            original: None,
            calibrator: None,
            trainer: None,
            stopwatch: None,
            judges: None,
            stopped: &|| false,
            progress: &|_, _, _| {},
            note: &|_| {},
            found: &|_| Ok(()),
            edits: Edits::default(),
            spill: None,
        }
    }

    /// A tensor that a pass made of a large model's weight, where it doesn't take memory.
    ///
    /// # Errors
    /// As for [`Spill::keep`].
    pub fn kept(&self, tensor: Tensor) -> Result<Tensor> {
        match self.spill {
            Some(spill) => spill.keep(tensor),
            None => Ok(tensor),
        }
    }

    /// # Errors
    /// Interrupted when the user asked to stop.
    pub fn check(&self) -> Result<()> {
        if (self.stopped)() { Err(Error::interrupted()) } else { Ok(()) }
    }
}

/// Something a pass could have done and didn't, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Skipped {
    /// The rule, or the pass itself.
    pub rule: String,
    /// The node.
    pub node: String,
    /// Why, in words a user understands.
    pub reason: String,
}

/// Why something was left alone, each reason once, with the number of nodes.
pub fn reasons(skipped: &[Skipped]) -> String {
    let mut counts: Vec<(&str, usize)> = vec![];
    for s in skipped {
        match counts.iter_mut().find(|(reason, _)| *reason == s.reason) {
            Some((_, n)) => *n += 1,
            None => counts.push((&s.reason, 1)),
        }
    }
    let each: Vec<String> =
        counts.into_iter().map(|(reason, n)| format!("{reason} ({})", counted(n, "layer"))).collect();
    if each.is_empty() { "the model has no layer with constant weights".into() } else { each.join("; ") }
}

/// What a pass did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Outcome {
    /// How many changes it made.
    pub edits: usize,
    /// What it left alone that it looked at.
    pub skipped: Vec<Skipped>,
    /// Sentences for the user that are not tied to one node.
    pub warnings: Vec<String>,
    /// What was asked for and not done, in sentences.
    pub undone: Vec<String>,
    /// Trainings that were part of it.
    pub trained: Vec<Trained>,
    /// What was tried, in order.
    pub tried: Vec<Trial>,
    /// What the ranges of activations cut off, where a pass chose them.
    pub clipping: Option<Clipping>,
}

impl Outcome {
    /// Takes what another run did along.
    pub fn add(&mut self, other: Outcome) {
        self.edits += other.edits;
        self.skipped.extend(other.skipped);
        self.warnings.extend(other.warnings);
        self.undone.extend(other.undone);
        self.trained.extend(other.trained);
        self.tried.extend(other.tried);
        self.clipping = other.clipping.or(self.clipping.take());
    }
}

/// One step of the pipeline.
pub trait Pass {
    /// Its name, as in the pipeline's table, messages and the report.
    fn name(&self) -> &'static str;

    /// Whether the outputs stay the same. Compression means to change them.
    fn is_exact(&self) -> bool {
        true
    }

    /// Changes the graph.
    ///
    /// # Errors
    /// Whatever the pass computes can raise. The graph is then in no defined state.
    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome>;
}

/// What one pass of a pipeline did, and how long it took.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct PassReport {
    /// The pass.
    pub name: &'static str,
    /// Wall time.
    pub seconds: f64,
    /// How many changes it made.
    pub edits: usize,
    /// What it left alone.
    pub skipped: Vec<Skipped>,
    /// What was asked for and not done, in sentences: the report has them in one list.
    #[serde(skip)]
    pub undone: Vec<String>,
    /// Trainings that were part of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<Trained>,
    /// What was tried, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tried: Vec<Trial>,
    /// What the ranges of activations cut off, where the pass chose them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clipping: Option<Clipping>,
}

/// The passes to run, in order.
#[derive(Default)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<Box<dyn Pass>>,
}

impl Pipeline {
    /// Runs every pass and verifies the graph after each. `after` sees each result.
    /// Returns the reports and all warnings.
    ///
    /// # Errors
    /// What a pass raises; a bug, naming the pass, when one leaves a broken graph; malformed when
    /// what it shows of the graph contradicts the graph itself.
    pub fn run(
        &self,
        graph: &mut Graph,
        cx: &Context,
        after: &mut dyn FnMut(&PassReport, &Graph) -> Result<()>,
    ) -> Result<(Vec<PassReport>, Vec<String>)> {
        let mut reports = vec![];
        let mut warnings = vec![];
        // Tensors are shared: this copies names and edges.
        let original = graph.clone();
        for pass in &self.passes {
            cx.check()?;
            let start = Instant::now();
            let done = pass.run(graph, cx)?;
            // What the file declared and inference now contradicts was wrong.
            graph
                .infer_all()
                .and_then(|()| verify(graph).map(drop))
                .map_err(|e| contradiction(&original, graph).unwrap_or_else(|| broken(pass.name(), &e)))?;
            let report = PassReport {
                name: pass.name(),
                seconds: start.elapsed().as_secs_f64(),
                edits: done.edits,
                skipped: done.skipped,
                undone: done.undone,
                trained: done.trained,
                tried: done.tried,
                clipping: done.clipping,
            };
            tracing::debug!(pass = report.name, edits = report.edits, seconds = report.seconds);
            after(&report, graph)?;
            warnings.extend(done.warnings);
            reports.push(report);
        }
        Ok((reports, warnings))
    }
}

/// The error of a pass that broke the graph.
fn broken(pass: &str, e: &Error) -> Error {
    Error::bug(format!("pass `{pass}` left a broken graph: {e}"))
}

/// How a model contradicts itself, if it does: its own operators refuse what passes found out of its
/// values. A file may declare the shape of a copy, say, that readers of what is copied can't take:
/// nothing shows it while the copy is there.
fn contradiction(original: &Graph, after: &Graph) -> Option<Error> {
    let mut original = original.clone();
    let values = after.ids().flat_map(|n| &after.node(n).outputs);
    // Values keep their names for as long as they mean the same.
    let known: HashMap<&str, &Fact> =
        values.filter(|v| !v.name.is_empty()).map(|v| (v.name.as_str(), &v.fact)).collect();
    for node in original.topological().ok()? {
        if let Err(e) = original.infer(node) {
            let help = "shapes that the file declares (value_info, outputs) contradict each other: \
                        remove them, or infer them again";
            return (e.kind() == Kind::Malformed).then(|| e.help(help));
        }
        for slot in 0..original.node(node).outputs.len() {
            let port = Port { node, slot };
            let value = original.value(port);
            // What differs was changed by a pass: that proves nothing against the model.
            if let Some(fact) = known.get(value.name.as_str())
                && let Ok(fact) = value.fact.clone().refined(fact)
            {
                original.set_fact(port, fact);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    struct NoInterpreter;

    impl Interpreter for NoInterpreter {
        fn eval(&self, _: &Op, _: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
            Err(Error::unsupported("nothing runs here"))
        }
    }

    /// A pass that does this.
    struct Does(fn(&mut Graph));

    impl Pass for Does {
        fn name(&self) -> &'static str {
            "test"
        }

        fn run(&self, graph: &mut Graph, _: &Context) -> Result<Outcome> {
            (self.0)(graph);
            Ok(Outcome::default())
        }
    }

    /// The error of a pass that does `what` to a graph in which %a has no known shape, and its copy %b has one.
    fn error(copy: &str, what: fn(&mut Graph)) -> String {
        let graph = format!(
            r#"graph "g" {{
                input %x: f32[*]
                const %w: f32[4,5] = zeros
                %a = Relu(%x) : f32[*]
                %b = Identity(%a) : {copy}
                %y = MatMul(%a, %w) "product"
                output %b
                output %y
            }}"#
        );
        let mut graph = text::parse(&graph).unwrap();
        let pipeline = Pipeline { passes: vec![Box::new(Does(what))] };
        let e = pipeline.run(&mut graph, &Context::new(&NoInterpreter), &mut |_, _| Ok(())).unwrap_err();
        format!("{}: {e}", e.kind())
    }

    fn named(graph: &Graph, name: &str) -> NodeId {
        graph.ids().find(|n| graph.value((*n).into()).name == name).unwrap()
    }

    /// What is known of the copy holds for what is copied.
    fn merge(graph: &mut Graph) {
        let (a, b) = (named(graph, "a").into(), named(graph, "b").into());
        graph.set_fact(a, graph.fact(b).clone());
        graph.redirect(b, a, &[]);
        graph.remove(b.node);
    }

    #[test]
    fn a_model_that_contradicts_itself_is_malformed() {
        let e = error("f32[2,3]", merge);
        assert!(e.starts_with("malformed model: node `product` (MatMul): inner dimensions 3 and 4 differ"), "{e}");
    }

    #[test]
    fn a_pass_that_breaks_a_graph_is_to_blame() {
        let e = error("f32[2,4]", |graph| {
            merge(graph);
            graph.set_constant(named(graph, "w"), Tensor::f32(&[3, 5], &[0.0; 15]));
        });
        let bug = "internal error: pass `test` left a broken graph: node `product` (MatMul): inner";
        assert!(e.starts_with(bug), "{e}");
    }
}
