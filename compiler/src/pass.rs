//! What a pass is, what it is given, and what a pass may ask of the runtime.

use crate::{
    clipping::Clipping,
    error::{Error, Result},
    graph::Graph,
    judge::{Judges, Trial},
    memo::Memo,
    node::{NodeId, Site},
    op::Op,
    spill::Spill,
    tensor::Tensor,
    verify::Verified,
    words::{Unit, counted},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt::Debug,
    rc::Rc,
    time::Duration,
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
#[derive(Debug, Clone, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Trained {
    /// What it was for.
    pub name: Cow<'static, str>,
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
    pub metric: Cow<'static, str>,
    /// How that is read.
    #[serde(default)]
    pub unit: Unit,
    /// Samples that it was scored on, which chose the best epoch: neither trained on nor evaluated on.
    pub validated: usize,
    /// The score of what was trained before the first step, which is the model as it was pruned or rounded. Absent where
    /// weights go while it is trained, as it then has yet to be pruned, and where the score is not a finite number.
    pub before: Option<f64>,
    /// The best score with all masks in place; absent as above.
    pub after: Option<f64>,
    /// Why it ended, in words.
    pub ended: Cow<'static, str>,
    /// The highest learning rate; `--qat` takes a tenth of one that is asked for. Absent in reports of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The short trainings that it was chosen by, lowest rate first; none where it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rate_trials: Vec<RateTrial>,
    /// Its course, from before the first step on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub course: Vec<EpochScore>,
}

/// A short training at one learning rate, which tells what longer ones at about this rate would come to.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RateTrial {
    /// The highest learning rate; zero stands for no training.
    pub rate: f64,
    /// Steps of the training.
    pub steps: u64,
    /// The loss after it on samples that validate; absent where it is not a finite number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
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
    /// What was found out about graphs by earlier pipelines.
    pub memo: Option<&'a Memo>,
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
            memo: None,
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

    /// What `find` finds out about `graph`, unless an earlier pipeline did; `what` says all else that decides it.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn known<T: 'static>(&self, graph: &Graph, what: String, find: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        match self.memo {
            Some(memo) => {
                let samples = self.calibrator.map_or(0, Calibrator::samples);
                memo.get_or(graph, format!("{what}, on {samples} samples"), find)
            }
            None => find().map(Rc::new),
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

/// One step of the pipeline. Two that are the same in `Debug` do the same.
pub trait Pass: Debug {
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
