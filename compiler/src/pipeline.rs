//! The passes in order, with a check after each; and what pipelines that begin alike share.

use crate::{
    clipping::Clipping,
    error::{Error, Kind, Result},
    graph::Graph,
    judge::Trial,
    node::Port,
    pass::{Context, Pass, Skipped, Trained},
    value::Fact,
    verify::verify,
};
use schemars::JsonSchema;
use serde::Serialize;
use std::{
    collections::{HashMap, VecDeque},
    time::Instant,
};

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
#[derive(Debug, Default)]
pub struct Pipeline {
    /// The passes.
    pub passes: Vec<Box<dyn Pass>>,
}

/// What passes did, and all warnings.
pub type Done = (Vec<PassReport>, Vec<String>);

impl Pipeline {
    /// Runs every pass and verifies the graph after each. `after` sees each result.
    ///
    /// # Errors
    /// What a pass raises; a bug, naming the pass, when one leaves a broken graph; malformed when
    /// what it shows of the graph contradicts the graph itself.
    pub fn run(
        &self,
        graph: &mut Graph,
        cx: &Context,
        after: &mut dyn FnMut(&PassReport, &Graph) -> Result<()>,
    ) -> Result<Done> {
        let mut done = Done::default();
        // Tensors are shared: this copies names and edges.
        let original = graph.clone();
        run(&self.passes, (graph, &original), cx, &mut done, after)?;
        Ok(done)
    }

    /// [`Pipeline::run`], where the first passes, so many, are run by `beginnings`, which may know what comes of them.
    ///
    /// # Errors
    /// As for [`Pipeline::run`].
    pub fn run_from(&self, first: usize, beginnings: &mut Beginnings, graph: &mut Graph, cx: &Context) -> Result<Done> {
        let (first, rest) = self.passes.split_at(first.min(self.passes.len()));
        let original = graph.clone();
        let mut done = beginnings.run(first, graph, &original, cx)?;
        run(rest, (graph, &original), cx, &mut done, &mut |_, _| Ok(()))?;
        Ok(done)
    }
}

fn run(
    passes: &[Box<dyn Pass>],
    (graph, original): (&mut Graph, &Graph),
    cx: &Context,
    (reports, warnings): &mut Done,
    after: &mut dyn FnMut(&PassReport, &Graph) -> Result<()>,
) -> Result<()> {
    for pass in passes {
        let (report, said) = step(&**pass, graph, original, cx)?;
        after(&report, graph)?;
        warnings.extend(said);
        reports.push(report);
    }
    Ok(())
}

/// One pass, and its warnings.
fn step(pass: &dyn Pass, graph: &mut Graph, original: &Graph, cx: &Context) -> Result<(PassReport, Vec<String>)> {
    cx.check()?;
    let start = Instant::now();
    let done = pass.run(graph, cx)?;
    // What the file declared and inference now contradicts was wrong.
    graph
        .infer_all()
        .and_then(|()| verify(graph).map(drop))
        .map_err(|e| contradiction(original, graph).unwrap_or_else(|| broken(pass.name(), &e)))?;
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
    Ok((report, done.warnings))
}

/// Graphs of one model as passes left them: pipelines that begin alike do the same work once.
#[derive(Debug)]
pub struct Beginnings {
    most: usize,
    /// What else decides what passes do: the data, say.
    given: String,
    /// The steps that are known, the last used one last.
    known: VecDeque<Known>,
    seconds: f64,
}

/// A pass that was run.
#[derive(Debug)]
struct Known {
    /// The passes before it that changed something, and the pass.
    key: (String, String),
    /// What it made, unless it changed nothing.
    graph: Option<Graph>,
    report: PassReport,
    warnings: Vec<String>,
}

impl Beginnings {
    /// At most so many graphs are kept.
    pub fn up_to(most: usize) -> Self {
        Self { most, given: String::new(), known: VecDeque::new(), seconds: 0.0 }
    }

    /// Says what else decides what the next passes do.
    pub fn given(&mut self, what: impl Into<String>) {
        self.given = what.into();
    }

    /// Seconds that passes took in the last run, without those of which it was known what comes of them.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    fn run(&mut self, passes: &[Box<dyn Pass>], graph: &mut Graph, original: &Graph, cx: &Context) -> Result<Done> {
        let (mut reports, mut warnings) = Done::default();
        let mut before = self.given.clone();
        self.seconds = 0.0;
        for pass in passes {
            let key = (before.clone(), format!("{pass:?}"));
            let known = match self.known.iter().position(|k| k.key == key).and_then(|at| self.known.remove(at)) {
                Some(known) => known,
                None => {
                    let (report, warnings) = step(&**pass, graph, original, cx)?;
                    self.seconds += report.seconds;
                    Known { graph: (report.edits > 0).then(|| graph.clone()), key, report, warnings }
                }
            };
            if let Some(made) = &known.graph {
                *graph = made.clone();
                before = format!("{before}\n{}", known.key.1);
            }
            reports.push(known.report.clone());
            warnings.extend(known.warnings.clone());
            self.known.push_back(known);
        }
        while self.known.iter().filter(|k| k.graph.is_some()).count() > self.most {
            self.known.pop_front();
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
    use crate::{
        node::NodeId,
        op::Op,
        pass::{Interpreter, Outcome},
        tensor::Tensor,
        text,
    };
    use std::cell::Cell;

    struct NoInterpreter;

    impl Interpreter for NoInterpreter {
        fn eval(&self, _: &Op, _: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
            Err(Error::unsupported("nothing runs here"))
        }
    }

    /// A pass that does this.
    #[derive(Debug)]
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

    /// A pass that adds one to the second constant, or to none, and counts how often it ran.
    #[derive(Debug)]
    struct Adds(bool, Counter);

    struct Counter(std::rc::Rc<Cell<usize>>);

    impl std::fmt::Debug for Counter {
        fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("a counter")
        }
    }

    impl Pass for Adds {
        fn name(&self) -> &'static str {
            "adds"
        }

        fn run(&self, graph: &mut Graph, _: &Context) -> Result<Outcome> {
            self.1.0.set(self.1.0.get() + 1);
            if self.0 {
                let w = named(graph, "w");
                let value = graph.constant(w.into()).unwrap().as_f32().unwrap()[0] + 1.0;
                graph.set_constant(w, Tensor::f32(&[1], &[value]));
            }
            Ok(Outcome { edits: usize::from(self.0), warnings: vec!["said".into()], ..Outcome::default() })
        }
    }

    #[test]
    fn pipelines_that_begin_alike_do_the_same_work_once() {
        let start = text::parse(
            "graph \"g\" {\n input %x: f32[1]\n const %w: f32[1] = zeros\n %y = Add(%x, %w)\n output %y\n}",
        );
        let (start, ran) = (start.unwrap(), std::rc::Rc::new(Cell::new(0)));
        let mut beginnings = Beginnings::up_to(2);
        let mut run = |adds: &[bool], first: usize, given: &str| {
            let pass = |adds: &bool| Box::new(Adds(*adds, Counter(ran.clone()))) as Box<dyn Pass>;
            let (mut graph, pipeline) = (start.clone(), Pipeline { passes: adds.iter().map(pass).collect() });
            beginnings.given(given);
            ran.set(0);
            let (reports, warnings) =
                pipeline.run_from(first, &mut beginnings, &mut graph, &Context::new(&NoInterpreter)).unwrap();
            assert_eq!((reports.len(), warnings.len()), (adds.len(), adds.len()));
            (graph.constant(named(&graph, "w").into()).unwrap().as_f32().unwrap()[0], ran.get())
        };
        assert_eq!(run(&[true, true, true], 2, "a"), (3.0, 3));
        assert_eq!(run(&[true, true, true, false], 2, "a"), (3.0, 2), "two are known");
        assert_eq!(
            run(&[false, true, true], 3, "a"),
            (2.0, 1),
            "what changes nothing leads back to where it was found"
        );
        assert_eq!(run(&[true], 1, "b"), (1.0, 1), "of other data nothing is known");
        assert_eq!(run(&[true, true], 2, "a"), (2.0, 1), "the one that was used longest ago is forgotten");
    }
}
