//! What a pass is, what it is given, and what a pass may ask of the runtime.

use crate::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::Port,
    op::Op,
    tensor::Tensor,
    verify::Verified,
};
use serde::Serialize;
use std::{
    cell::{Cell, RefCell},
    time::Instant,
};

/// Runs operators: what folding asks of the runtime.
pub trait Evaluator {
    /// Runs `op` on host tensors.
    ///
    /// # Errors
    /// Unsupported when the operator has no kernel; malformed when it refuses its inputs.
    fn eval(&self, op: &Op, inputs: &[Option<Tensor>]) -> Result<Vec<Tensor>>;
}

/// Runs a graph over calibration data: what quantisation asks of the runtime.
pub trait Calibrator {
    /// Feeds every calibration batch through `graph` and hands each value in `watch`, by its
    /// place in that list, to `sink`. Streams: one batch is in memory at a time.
    ///
    /// # Errors
    /// Whatever running or reading the data can raise.
    fn observe(
        &self,
        graph: &Verified,
        watch: &[Port],
        sink: &mut dyn FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()>;
}

/// What a pass is given besides the graph.
pub struct Context<'a> {
    /// Runs single operators.
    pub evaluator: &'a dyn Evaluator,
    /// Runs the graph over calibration data, where there is any.
    pub calibrator: Option<&'a dyn Calibrator>,
    /// Whether the user asked to stop; long passes look now and then.
    pub stopped: &'a dyn Fn() -> bool,
    /// Counts the changes, and says when there were enough.
    pub edits: Edits,
}

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
    /// A context with an evaluator only, and nobody to stop it.
    pub fn new(evaluator: &'a dyn Evaluator) -> Self {
        Self { evaluator, calibrator: None, stopped: &|| false, edits: Edits::default() }
    }

    /// # Errors
    /// Interrupted when the user asked to stop.
    pub fn check(&self) -> Result<()> {
        if (self.stopped)() { Err(Error::interrupted()) } else { Ok(()) }
    }
}

/// Something a pass could have done and didn't, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// The rule, or the pass itself.
    pub rule: String,
    /// The node.
    pub node: String,
    /// Why, in words a user understands.
    pub reason: String,
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
}

impl Outcome {
    /// Takes what another run did along.
    pub fn add(&mut self, other: Outcome) {
        self.edits += other.edits;
        self.skipped.extend(other.skipped);
        self.warnings.extend(other.warnings);
    }
}

/// One step of the pipeline.
pub trait Pass {
    /// Its name, as in the pipeline's table, `--stop-after` and the report.
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
#[derive(Debug, Clone, Serialize)]
pub struct PassReport {
    /// The pass.
    pub name: &'static str,
    /// Wall time.
    pub seconds: f64,
    /// How many changes it made.
    pub edits: usize,
    /// What it left alone.
    pub skipped: Vec<Skipped>,
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
    /// What a pass raises; a bug, naming the pass, when one leaves a broken graph.
    pub fn run(
        &self,
        graph: &mut Graph,
        cx: &Context,
        after: &mut dyn FnMut(&PassReport, &Graph) -> Result<()>,
    ) -> Result<(Vec<PassReport>, Vec<String>)> {
        let mut reports = vec![];
        let mut warnings = vec![];
        for pass in &self.passes {
            cx.check()?;
            let start = Instant::now();
            let done = pass.run(graph, cx)?;
            // What the file declared and inference now contradicts was wrong.
            graph
                .infer_all()
                .and_then(|()| crate::verify::verify(graph).map(drop))
                .map_err(|e| Error::new(Kind::Bug, format!("pass `{}` left a broken graph: {e}", pass.name())))?;
            let report = PassReport {
                name: pass.name(),
                seconds: start.elapsed().as_secs_f64(),
                edits: done.edits,
                skipped: done.skipped,
            };
            tracing::debug!(pass = report.name, edits = report.edits, seconds = report.seconds);
            after(&report, graph)?;
            warnings.extend(done.warnings);
            reports.push(report);
        }
        Ok((reports, warnings))
    }
}
