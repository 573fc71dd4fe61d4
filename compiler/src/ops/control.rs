//! Control flow: If, Loop and Scan, operators that run graphs of their own.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    graph::Graph,
    op::{Inputs, Operator},
    value::{self, Dim, Fact, Shape},
};
use std::{fmt, ops::RangeInclusive, sync::Arc};

/// A graph that an operator runs: a branch, or what a loop repeats.
///
/// Its inputs are the formal ones, then one for every outer value that it reads. ONNX lets a
/// subgraph read outer values by name; here the operator has them as operands behind its own,
/// in the same order, so that edges stay the only truth about who uses what. All bodies of
/// one operator have the same captures.
#[derive(Clone)]
pub struct Body {
    graph: Arc<Graph>,
    captures: usize,
}

impl Body {
    /// A body whose last `captures` inputs are outer values.
    pub fn new(graph: Graph, captures: usize) -> Self {
        debug_assert!(captures <= graph.inputs().len());
        Self { graph: Arc::new(graph), captures }
    }

    /// What is run.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// How many inputs are outer values.
    pub fn captures(&self) -> usize {
        self.captures
    }

    /// How many inputs the operator feeds itself.
    pub fn formals(&self) -> usize {
        self.graph.inputs().len() - self.captures
    }

    /// What is known of its outputs.
    fn results(&self) -> Vec<&Fact> {
        self.graph.outputs().iter().map(|o| self.graph.fact(o.port)).collect()
    }
}

/// The same graph in memory: two that only look alike are told apart.
impl PartialEq for Body {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.graph, &other.graph) && self.captures == other.captures
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "graph {:?}", self.graph.name)
    }
}

/// What holds of a value that is one of two.
fn either(a: &Fact, b: &Fact) -> Fact {
    let dims = match (a.dims(), b.dims()) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            Some(a.iter().zip(b).map(|(x, y)| if x.same(y) { x.clone() } else { Dim::Unknown }).collect())
        }
        _ => None,
    };
    Fact::new(a.dtype.or(b.dtype), dims)
}

/// As [`either`], where ONNX asks for one type.
fn same_type(a: &Fact, b: &Fact, what: &str) -> Result<Fact> {
    match (a.dtype, b.dtype) {
        (Some(x), Some(y)) if x != y => Err(Error::malformed(format!("{what} is {x} here and {y} there"))),
        _ => Ok(either(a, b)),
    }
}

/// Checks that a body has an input for each of `x`, all of which are there but for the first few.
fn check_operands(body: &Body, x: &Inputs, optional: usize) -> Result<()> {
    let (takes, given) = (body.graph().inputs().len(), x.0.len());
    if given == takes && x.0.iter().skip(optional).all(Option::is_some) {
        return Ok(());
    }
    Err(Error::malformed(format!("{} operands for a body of {takes} inputs", x.present().count())))
}

/// Runs one of two graphs. Inputs: the condition, then the captures.
#[derive(Debug, Clone, PartialEq)]
pub struct If {
    /// Run when the condition holds.
    pub then_branch: Body,
    /// Run when it doesn't.
    pub else_branch: Body,
}

impl If {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let this = Self { then_branch: r.body("then_branch")?, else_branch: r.body("else_branch")? };
        if this.then_branch.formals() + this.else_branch.formals() > 0 {
            return Err(Error::malformed("a branch of an If takes inputs"));
        }
        Ok(this)
    }
}

impl Operator for If {
    fn op_type(&self) -> &str {
        "If"
    }
    fn attrs(&self) -> Attrs {
        vec![("then_branch", self.then_branch.clone().into()), ("else_branch", self.else_branch.clone().into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }
    fn max_outputs(&self) -> usize {
        self.then_branch.graph().outputs().len()
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let captured = Inputs(x.0.get(1..).unwrap_or_default());
        check_operands(&self.then_branch, &captured, 0)?;
        check_operands(&self.else_branch, &captured, 0)?;
        let (a, b) = (self.then_branch.results(), self.else_branch.results());
        if a.len() != b.len() {
            return Err(Error::malformed(format!("one branch makes {} values, the other {}", a.len(), b.len())));
        }
        a.iter().zip(b).enumerate().map(|(i, (a, b))| same_type(a, b, &format!("output {i} of the branches"))).collect()
    }
    fn since(&self) -> i64 {
        1
    }
    fn bodies(&self) -> Vec<&Body> {
        vec![&self.then_branch, &self.else_branch]
    }
    fn set_bodies(&mut self, bodies: Vec<Body>) {
        if let Ok([a, b]) = <[Body; 2]>::try_from(bodies) {
            (self.then_branch, self.else_branch) = (a, b);
        }
    }
}

/// Repeats a graph. Inputs: the most repetitions, the condition, the states, the captures.
/// Outputs: the states at the end, then for each scan the values of all repetitions, stacked.
#[derive(Debug, Clone, PartialEq)]
pub struct Loop {
    /// Takes the number of the repetition, the condition and the states; makes the condition
    /// for the next one, the states, and the scanned values.
    pub body: Body,
}

impl Loop {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let this = Self { body: r.body("body")? };
        let (formals, outputs) = (this.body.formals(), this.body.graph().outputs().len());
        if formals < 2 || outputs + 1 < formals {
            return Err(Error::malformed(format!("the body of a Loop has {formals} inputs and {outputs} outputs")));
        }
        Ok(this)
    }

    /// How many values are handed from one repetition to the next.
    pub fn states(&self) -> usize {
        self.body.formals() - 2
    }
}

impl Operator for Loop {
    fn op_type(&self) -> &str {
        "Loop"
    }
    fn attrs(&self) -> Attrs {
        vec![("body", self.body.clone().into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        0..=usize::MAX
    }
    fn max_outputs(&self) -> usize {
        self.body.graph().outputs().len() - 1
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        // Both of a Loop's own inputs may be absent.
        if x.0.len().max(self.body.graph().inputs().len()) > 2 {
            check_operands(&self.body, x, 2)?;
        }
        let results = self.body.results();
        let states = (0..self.states()).map(|i| same_type(x.get(i + 2), results[i + 1], &format!("state {i}")));
        let scans = results[1 + self.states()..].iter().map(|f| Ok(stacked(f, 0, Dim::Unknown)));
        states.chain(scans).collect()
    }
    fn since(&self) -> i64 {
        1
    }
    fn bodies(&self) -> Vec<&Body> {
        vec![&self.body]
    }
    fn set_bodies(&mut self, bodies: Vec<Body>) {
        bodies.into_iter().for_each(|b| self.body = b);
    }
}

/// What is known of values like `one` along a new axis of size `n`.
fn stacked(one: &Fact, axis: usize, n: Dim) -> Fact {
    let shape: Shape = one.dims().filter(|d| axis <= d.len()).map(|d| {
        let mut dims = d.to_vec();
        dims.insert(axis, n);
        dims
    });
    Fact::new(one.dtype, shape)
}

/// Walks along an axis of its inputs. Inputs: the states, the sequences, the captures.
/// Outputs: the states at the end, then the stacked results.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Takes the states and a slice of each sequence; makes the states and the results.
    pub body: Body,
    /// How many inputs are sequences.
    pub sequences: usize,
    /// The axis of each sequence; empty for all 0.
    pub input_axes: Vec<i64>,
    /// 1 for each sequence that is walked backwards; empty for none.
    pub input_directions: Vec<i64>,
    /// The axis along which each result is stacked; empty for all 0.
    pub output_axes: Vec<i64>,
    /// 1 for each result that is stacked backwards; empty for none.
    pub output_directions: Vec<i64>,
}

impl Scan {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 9 {
            return Err(Error::unsupported("Scan of opset 8, which has a batch axis"));
        }
        let sequences = r.int("num_scan_inputs", 0)?;
        let this = Self {
            body: r.body("body")?,
            sequences: usize::try_from(sequences).unwrap_or(0),
            input_axes: r.opt_ints("scan_input_axes")?.unwrap_or_default(),
            input_directions: r.opt_ints("scan_input_directions")?.unwrap_or_default(),
            output_axes: r.opt_ints("scan_output_axes")?.unwrap_or_default(),
            output_directions: r.opt_ints("scan_output_directions")?.unwrap_or_default(),
        };
        let (formals, outputs) = (this.body.formals(), this.body.graph().outputs().len());
        let fits = |list: &[i64], n: usize| list.is_empty() || list.len() == n;
        let counts = this.sequences >= 1 && this.sequences <= formals && formals - this.sequences <= outputs;
        if !counts {
            return Err(Error::malformed(format!(
                "a Scan over {sequences} sequences with a body of {formals} inputs and {outputs} outputs"
            )));
        }
        let (n, k) = (this.sequences, outputs - this.states());
        let lists = fits(&this.input_axes, n) && fits(&this.input_directions, n);
        if !(lists && fits(&this.output_axes, k) && fits(&this.output_directions, k)) {
            return Err(Error::malformed("a Scan with a list of axes or directions of the wrong length"));
        }
        Ok(this)
    }

    /// How many values are handed from one step to the next.
    pub fn states(&self) -> usize {
        self.body.formals() - self.sequences
    }
}

impl Operator for Scan {
    fn op_type(&self) -> &str {
        "Scan"
    }
    fn attrs(&self) -> Attrs {
        let mut attrs: Attrs =
            vec![("body", self.body.clone().into()), ("num_scan_inputs", (self.sequences as i64).into())];
        let lists = [
            ("scan_input_axes", &self.input_axes),
            ("scan_input_directions", &self.input_directions),
            ("scan_output_axes", &self.output_axes),
            ("scan_output_directions", &self.output_directions),
        ];
        attrs.extend(lists.into_iter().filter(|(_, l)| !l.is_empty()).map(|(name, l)| (name, l[..].into())));
        attrs
    }
    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }
    fn max_outputs(&self) -> usize {
        self.body.graph().outputs().len()
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        check_operands(&self.body, x, 0)?;
        let results = self.body.results();
        let mut length = Dim::Unknown;
        for i in 0..self.sequences {
            if let Some(dims) = x.dims(self.states() + i) {
                let axis = value::axis(self.input_axes.get(i).copied().unwrap_or(0), dims.len())?;
                length = if length == Dim::Unknown { dims[axis].clone() } else { length };
            }
        }
        let states = (0..self.states()).map(|i| same_type(x.get(i), results[i], &format!("state {i}")));
        let scans = results[self.states()..].iter().enumerate().map(|(i, f)| {
            let Some(rank) = f.rank() else { return Ok(Fact::new(f.dtype, None)) };
            let axis = value::axis(self.output_axes.get(i).copied().unwrap_or(0), rank + 1)?;
            Ok(stacked(f, axis, length.clone()))
        });
        states.chain(scans).collect()
    }
    fn since(&self) -> i64 {
        9
    }
    fn bodies(&self) -> Vec<&Body> {
        vec![&self.body]
    }
    fn set_bodies(&mut self, bodies: Vec<Body>) {
        bodies.into_iter().for_each(|b| self.body = b);
    }
}
