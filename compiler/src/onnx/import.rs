//! From ONNX's nodes to a graph: names become edges, subgraphs become bodies, functions are
//! replaced by what they stand for.

mod fused;
mod listing;
mod node;
mod quantised;
mod states;

use super::{functions, functions::Functions, limits, opset, order::sorted, source::Source, tensor};
use crate::{
    captured::drop_unread,
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{control::Body, source::Input},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
    words::option::KEEP_INITIALIZER_INPUTS,
};
use onnx_protobuf::{GraphProto, NodeProto, TypeProto};
use std::collections::{HashMap, HashSet};

/// Builds one graph.
pub struct Importer<'a> {
    /// What was built so far.
    pub graph: Graph,
    /// Sentences about the file that its user should know.
    pub warnings: Vec<String>,
    values: Values,
    /// The inputs of a body that stand for constants around it.
    outer: HashMap<Port, Tensor>,
    /// Constants that nodes read for which others stand.
    spent: Vec<NodeId>,
    /// Declared shapes that are not what the operators give.
    contradictions: Vec<String>,
    opset: i64,
    /// What needs a newer opset than this is kept as it came.
    newest: i64,
    /// What becomes of initializers that are also inputs.
    listed: Listed,
    functions: &'a Functions,
    /// Where the bytes of weights are.
    source: &'a Source,
    /// The functions that are being replaced, each called by the one before.
    calls: Vec<functions::Key>,
    /// What stands before the names of values inside those functions.
    prefix: String,
    /// Whether symbols in declared shapes mean one size: in a loop's body they may mean
    /// another one each time.
    symbols: bool,
}

/// What an initializer that is listed among the graph's inputs is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listed {
    /// An input with a default.
    Inputs,
    /// A weight, though the file lets callers replace it.
    Weights,
    /// A weight: up to IR version 3 every initializer had to be listed.
    OldWeights,
}

/// The value that a name stands for; `None` where a function's caller left an input out.
type Values = HashMap<String, Option<Port>>;

/// What an attribute's graph is given from around it.
#[derive(Default)]
struct Around {
    /// What is known of each formal input.
    formals: Vec<Fact>,
    /// The outer values that it reads, what is known of them, and which constants they are.
    captures: Vec<(String, Fact, Option<Tensor>)>,
}

impl<'a> Importer<'a> {
    /// An importer of a model's main graph.
    pub fn new(name: &str, opset: i64, listed: Listed, functions: &'a Functions, source: &'a Source) -> Self {
        let newest = opset::NEWEST;
        Self {
            graph: Graph::new(name),
            warnings: vec![],
            values: HashMap::new(),
            outer: HashMap::new(),
            spent: vec![],
            contradictions: vec![],
            opset,
            newest,
            listed,
            functions,
            source,
            calls: vec![],
            prefix: String::new(),
            symbols: true,
        }
    }

    /// This importer, but what needs a newer opset than `newest` it keeps as it came.
    pub fn up_to(self, newest: i64) -> Self {
        Self { newest, ..self }
    }

    /// Imports a model's main graph.
    ///
    /// # Errors
    /// Malformed, limit or unsupported for what is wrong inside, naming the node.
    pub fn model(&mut self, g: GraphProto) -> Result<()> {
        self.build(g, None)
    }

    fn build(&mut self, mut g: GraphProto, around: Option<Around>) -> Result<()> {
        if g.node.len() > limits::MAX_NODES {
            return Err(Error::limit(format!("{} nodes; at most {} are read", g.node.len(), limits::MAX_NODES)));
        }
        if !g.sparse_initializer.is_empty() {
            return Err(Error::unsupported("sparse initializers"));
        }
        let mut declared = HashMap::new();
        for v in g.value_info.iter().chain(&g.output) {
            if let Some(t) = v.type_.as_ref() {
                declared.insert(v.name.clone(), self.declared(t)?);
            }
        }
        let declared = Declared { facts: declared, outputs: g.output.iter().map(|o| o.name.clone()).collect() };
        match around {
            None => self.sources(&mut g)?,
            Some(around) => self.formals(&mut g, around)?,
        }
        for node in sorted(std::mem::take(&mut g.node))? {
            self.labelled(&node, &declared)?;
        }
        for o in &g.output {
            let port = self.values.get(&o.name).copied().flatten();
            let port = port.ok_or_else(|| Error::malformed(format!("no node makes the graph output `{}`", o.name)))?;
            self.graph.add_output(&o.name, port);
        }
        if g.output.is_empty() {
            return Err(Error::malformed("the graph has no outputs"));
        }
        self.drop_spent();
        self.graph.sort_edges();
        self.say_contradictions();
        Ok(())
    }

    /// Removes the constants that were only read by nodes for which others stand now.
    fn drop_spent(&mut self) {
        let outer = self.graph.operators().filter(|n| !self.graph.op(*n).bodies().is_empty());
        for node in outer.collect::<Vec<_>>() {
            drop_unread(&mut self.graph, node);
        }
        for node in std::mem::take(&mut self.spent) {
            remove_dead(&mut self.graph, node);
        }
    }

    /// Warns of declared shapes that are wrong: of the first, and of how many more there are.
    fn say_contradictions(&mut self) {
        let more = self.contradictions.len().saturating_sub(1);
        if let Some(first) = self.contradictions.drain(..).next() {
            let more = if more == 0 { String::new() } else { format!(" ({more} more declared shapes are wrong)") };
            self.warnings.push(format!("{first}{more}"));
        }
    }

    /// What a declared type says here.
    fn declared(&self, t: &TypeProto) -> Result<Fact> {
        let mut fact = tensor::read_type(t)?;
        if !self.symbols {
            let dims = fact.shape.iter_mut().flatten();
            dims.filter(|d| matches!(d, Dim::Sym(_))).for_each(|d| *d = Dim::Unknown);
        }
        Ok(fact)
    }

    /// The main graph's inputs and initializers.
    fn sources(&mut self, g: &mut GraphProto) -> Result<()> {
        let mut initializers: HashMap<String, Tensor> = HashMap::new();
        let mut order = vec![];
        for t in std::mem::take(&mut g.initializer) {
            let name = t.name.clone();
            order.push(name.clone());
            if initializers.insert(name.clone(), tensor::read(t, self.source)?).is_some() {
                return Err(Error::malformed(format!("two initializers are called `{name}`")));
            }
        }
        let mut listed = 0;
        for input in &g.input {
            let mut fact = input.type_.as_ref().map(|t| self.declared(t)).transpose()?.unwrap_or_default();
            if let Some(t) = initializers.get(&input.name) {
                // The caller may give another value, so only type and shape are known.
                let given = Fact::new(Some(t.dtype()), Fact::of(t).shape);
                fact =
                    given.refined(&fact).map_err(|e| e.about(format_args!("the default of input `{}`", input.name)))?;
                if self.listed != Listed::Inputs {
                    listed += 1;
                    continue;
                }
            }
            let default = initializers.remove(&input.name);
            let node = self.graph.add_input(&input.name, fact, Op::Input(Input { default }))?;
            self.values.insert(input.name.clone(), Some(node.into()));
        }
        if listed > 0 && self.listed == Listed::Weights {
            self.warnings.push(format!(
                "{} also listed as graph inputs: they are weights here, and the result does not list them \
                 ({KEEP_INITIALIZER_INPUTS} leaves them to be replaced by callers)",
                if listed == 1 { "1 initializer is".into() } else { format!("{listed} initializers are") }
            ));
        }
        for name in order {
            if let Some(t) = initializers.remove(&name) {
                self.constant(&name, t)?;
            }
        }
        Ok(())
    }

    /// A body's inputs, the outer values that it reads, and its initializers.
    fn formals(&mut self, g: &mut GraphProto, around: Around) -> Result<()> {
        for (i, input) in g.input.iter().enumerate() {
            let declared = input.type_.as_ref().map(|t| self.declared(t)).transpose()?.unwrap_or_default();
            let given = around.formals.get(i).cloned().unwrap_or_default();
            let node =
                self.graph.add_input(&input.name, declared.refined(&given)?, Op::Input(Input { default: None }))?;
            self.values.insert(input.name.clone(), Some(node.into()));
        }
        for (name, fact, constant) in around.captures {
            let node = self.graph.add_input(&name, fact, Op::Input(Input { default: None }))?;
            self.outer.extend(constant.map(|tensor| (node.into(), tensor)));
            self.values.insert(name, Some(node.into()));
        }
        for t in std::mem::take(&mut g.initializer) {
            let name = t.name.clone();
            // A caller always gives a formal input, so its default means nothing.
            if !g.input.iter().any(|i| i.name == name) {
                self.constant(&name, tensor::read(t, self.source)?)?;
            }
        }
        Ok(())
    }

    fn constant(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        let node = self.graph.add_constant(&self.value_name(name), tensor);
        self.define(name, node.into())
    }

    /// The name in the graph of a value called `name` here.
    fn value_name(&self, name: &str) -> String {
        if name.is_empty() { String::new() } else { self.graph.fresh(&format!("{}{name}", self.prefix)) }
    }

    fn define(&mut self, name: &str, port: Port) -> Result<()> {
        match self.values.insert(name.into(), Some(port)) {
            None => Ok(()),
            Some(_) => Err(Error::malformed(format!("two nodes make `{name}`"))),
        }
    }

    /// The constant that a value is, in this graph or around it.
    fn constant_at(&self, port: Port) -> Option<&Tensor> {
        self.graph.constant(port).or_else(|| self.outer.get(&port))
    }

    fn operand(&self, name: &str) -> Result<Option<Port>> {
        if name.is_empty() {
            return Ok(None);
        }
        let port = self.values.get(name);
        port.copied().ok_or_else(|| Error::malformed(format!("reads `{name}`, which nothing makes")))
    }

    /// Imports the graph in an attribute of an If, Loop or Scan.
    fn body(
        &mut self,
        op_type: &str,
        mut g: GraphProto,
        operands: &[Option<Port>],
        captures: &[(String, Port)],
    ) -> Result<Body> {
        let given = |i: usize| {
            let port = operands.get(i).copied().flatten();
            port.map_or_else(Fact::default, |p| self.graph.fact(p).clone())
        };
        if op_type == "Loop" {
            states::forget_shapes(&mut g, &given);
        }
        let formals = (0..g.input.len()).map(|i| match (op_type, i) {
            ("Loop", 0) => Fact::new(Some(DType::I64), None),
            ("Loop", 1) => Fact::new(Some(DType::Bool), None),
            ("FlexAttention", _) => Fact::default(),
            // What is handed on may change its shape, but not its type.
            _ => Fact::new(given(i).dtype, None),
        });
        let around = Around {
            formals: formals.collect(),
            captures: captures
                .iter()
                .map(|(n, p)| (n.clone(), self.graph.fact(*p).clone(), self.constant_at(*p).cloned()))
                .collect(),
        };
        let mut inner = Importer {
            graph: Graph::new(&g.name),
            warnings: vec![],
            values: HashMap::new(),
            outer: HashMap::new(),
            spent: vec![],
            contradictions: vec![],
            prefix: self.prefix.clone(),
            calls: self.calls.clone(),
            symbols: self.symbols && op_type == "If",
            ..*self
        };
        inner.build(g, Some(around))?;
        self.warnings.append(&mut inner.warnings);
        Ok(Body::new(inner.graph, captures.len()))
    }

    /// Puts the nodes of a function where it is called.
    fn call(&mut self, function: &functions::Function, node: &NodeProto) -> Result<()> {
        let operands = node.input.iter().map(|n| self.operand(n)).collect::<Result<Vec<_>>>()?;
        if self.calls.contains(&function.key) {
            return Err(Error::malformed(format!("function `{}` calls itself", function.proto.name)));
        }
        if operands.len() > function.proto.input.len() || node.output.len() > function.proto.output.len() {
            return Err(Error::malformed(format!(
                "{} inputs and {} outputs, where the function has {} and {}",
                operands.len(),
                node.output.len(),
                function.proto.input.len(),
                function.proto.output.len()
            )));
        }
        let given = operands.into_iter().chain(std::iter::repeat(None));
        let inner = function.proto.input.iter().cloned().zip(given).collect();
        let label = if node.name.is_empty() { node.output.first().map_or("", |o| o) } else { &node.name };
        let prefix = format!("{}{label}/", self.prefix);
        let opset = function.opset.unwrap_or(self.opset);
        let outer = (
            std::mem::replace(&mut self.values, inner),
            std::mem::replace(&mut self.prefix, prefix),
            std::mem::replace(&mut self.opset, opset),
        );
        self.calls.push(function.key.clone());
        let nothing = Declared::default();
        for inner in sorted(function.nodes(&node.attribute, self.functions)?)? {
            self.labelled(&inner, &nothing)?;
        }
        self.calls.pop();
        let inner = std::mem::replace(&mut self.values, outer.0);
        (self.prefix, self.opset) = (outer.1, outer.2);
        for (name, result) in node.output.iter().zip(&function.proto.output).filter(|(n, _)| !n.is_empty()) {
            let port = inner.get(result).copied().flatten();
            let port =
                port.ok_or_else(|| Error::malformed(format!("the function does not make its output `{result}`")))?;
            self.define(name, port)?;
        }
        Ok(())
    }
}

/// What a graph says of its values.
#[derive(Default)]
struct Declared {
    facts: HashMap<String, Fact>,
    outputs: HashSet<String>,
}
