//! Finds the change that makes a model compute something else: the pass, the rule, the node.
//!
//! Every pass is run on the graph and both are run on the same inputs. When their outputs
//! differ, the pass is run again with fewer changes, halving, until the first bad one is left.

use compress_compiler::{
    error::Result,
    graph::Graph,
    pass::{Context, Edits, Pass},
    tensor::Tensor,
    verify::verify,
};

/// Outputs may differ by this much of their largest element: what reordered sums in `f32` do.
const TOLERANCE: f64 = 1e-3;

/// The change that is wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Culprit {
    /// The pass that made it.
    pub pass: &'static str,
    /// Its place among the changes of that pass, counted from 1.
    pub edit: usize,
    /// The rule.
    pub rule: String,
    /// The node at which the rule applied.
    pub node: String,
    /// What is different since.
    pub difference: String,
}

/// What a pass did to the outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct PassEffect {
    /// The pass.
    pub pass: &'static str,
    /// How many changes it made.
    pub edits: usize,
    /// The largest difference of an output, in parts of its largest element; `None` for a pass that means to change
    /// them and is not judged.
    pub difference: Option<f64>,
}

/// Runs a graph on each of some samples: the outputs of each.
type Run<'a> = &'a dyn Fn(&Graph) -> Result<Vec<Vec<Tensor>>>;

/// Runs `passes` one after the other and looks for the first change after which `run` gives
/// other outputs; `seen` is told of each pass. Passes that are not exact are taken as they are, and
/// what comes after is compared with what they left.
///
/// # Errors
/// What a pass raises, and what `run` raises for the graph as it came.
pub fn bisect(
    graph: &Graph,
    passes: &[Box<dyn Pass>],
    cx: &Context,
    run: Run,
    seen: &mut dyn FnMut(PassEffect),
) -> Result<Option<Culprit>> {
    let mut expected = run(graph)?;
    let mut before = graph.clone();
    for pass in passes {
        let attempt = |limit: usize| -> Result<(Graph, Edits)> {
            let mut after = before.clone();
            let cx = Context {
                interpreter: cx.interpreter,
                original: cx.original,
                calibrator: cx.calibrator,
                trainer: cx.trainer,
                stopwatch: cx.stopwatch,
                judges: cx.judges,
                stopped: cx.stopped,
                progress: cx.progress,
                note: cx.note,
                found: cx.found,
                spill: cx.spill,
                memo: cx.memo,
                edits: Edits::up_to(limit),
            };
            pass.run(&mut after, &cx)?;
            Ok((after, cx.edits))
        };
        let (after, edits) = attempt(usize::MAX)?;
        if !pass.is_exact() {
            expected = run(&after)?;
            seen(PassEffect { pass: pass.name(), edits: edits.made(), difference: None });
            before = after;
            continue;
        }
        match difference(&expected, &after, run) {
            Ok(d) => seen(PassEffect { pass: pass.name(), edits: edits.made(), difference: Some(d) }),
            Err(_) => {
                // After `low` changes all is well, after `high` it isn't.
                let (mut low, mut high) = (0, edits.made().max(1));
                while high - low > 1 {
                    let middle = low + (high - low) / 2;
                    let (graph, _) = attempt(middle)?;
                    if difference(&expected, &graph, run).is_ok() { low = middle } else { high = middle }
                }
                let (graph, edits) = attempt(high)?;
                let (rule, node) = edits.last().unwrap_or_default();
                let difference = difference(&expected, &graph, run).err().unwrap_or_default();
                return Ok(Some(Culprit { pass: pass.name(), edit: high, rule, node, difference }));
            }
        }
        before = after;
    }
    Ok(None)
}

/// How far the outputs of `graph` are from what is expected, or what is wrong with them.
fn difference(expected: &[Vec<Tensor>], graph: &Graph, run: Run) -> std::result::Result<f64, String> {
    verify(graph).map_err(|e| format!("the graph is broken: {e}"))?;
    let got = run(graph).map_err(|e| format!("the graph does not run: {e}"))?;
    let mut largest = 0f64;
    for (expected, got) in expected.iter().zip(&got) {
        if got.len() != expected.len() {
            return Err(format!("there are {} outputs instead of {}", got.len(), expected.len()));
        }
        for (output, (a, b)) in graph.outputs().iter().zip(expected.iter().zip(got)) {
            let d = apart(a, b).map_err(|why| format!("output `{}` {why}", output.name))?;
            if d > TOLERANCE {
                return Err(format!("output `{}` differs by {d:.2e} of its largest element", output.name));
            }
            largest = largest.max(d);
        }
    }
    Ok(largest)
}

/// The largest difference of two tensors in parts of the largest element.
fn apart(a: &Tensor, b: &Tensor) -> std::result::Result<f64, String> {
    if (a.dtype(), a.shape()) != (b.dtype(), b.shape()) {
        return Err(format!("is {b:?} instead of {a:?}"));
    }
    let (Some(x), Some(y)) = (a.as_f32(), b.as_f32()) else {
        return if a.bytes() == b.bytes() { Ok(0.0) } else { Err("has other elements".into()) };
    };
    let scale = x.iter().filter(|v| v.is_finite()).fold(0f64, |m, v| m.max(f64::from(v.abs())));
    let mut largest = 0f64;
    for (x, y) in x.iter().zip(y.iter()) {
        if x == y || (x.is_nan() && y.is_nan()) {
            continue;
        }
        let d = (f64::from(*x) - f64::from(*y)).abs() / scale.max(f64::MIN_POSITIVE);
        if !d.is_finite() {
            return Err(format!("has {y} instead of {x}"));
        }
        largest = largest.max(d);
    }
    Ok(largest)
}
