//! The graph: operators as nodes, values as edges, over petgraph, which stays in here.
//!
//! Inputs and constants are nodes too. An edge from (node, output slot) to (node, input
//! slot) is the only truth about who uses what. A value with several readers is simply the
//! tail of several edges, so shared weights stay shared.

mod facets;

use crate::{
    error::{Error, Result},
    node::{Node, NodeId, Output, Port, Remarks, Use, Value},
    op::{Inputs, Op, Operator},
    tensor::Tensor,
    value::{self, Fact, Shape},
};
use petgraph::{
    Direction::{Incoming, Outgoing},
    stable_graph::{NodeIndex, StableDiGraph},
    visit::{EdgeRef, NodeIndexable},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

#[derive(Debug, Clone, Copy)]
struct Edge {
    from: usize,
    to: usize,
}

/// A computation graph. See the module's page.
#[derive(Clone, Default)]
pub struct Graph {
    /// The graph's ONNX name.
    pub name: String,
    inner: StableDiGraph<Node, Edge>,
    inputs: Vec<NodeId>,
    outputs: Vec<Output>,
    /// How many outputs each value is.
    output_counts: HashMap<Port, usize>,
    names: HashSet<String>,
    /// Shapes that the file declares of values for which there is no proof, by their names.
    declared: HashMap<String, Shape>,
}

fn ix(id: NodeId) -> NodeIndex {
    NodeIndex::new(id.0 as usize)
}

fn id(ix: NodeIndex) -> NodeId {
    NodeId(ix.index() as u32)
}

impl Graph {
    /// An empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    // --- reading ---

    /// The node `id`.
    ///
    /// # Panics
    /// When the node was removed: ids are never kept across a removal.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.inner[ix(id)]
    }

    /// Whether `id` is still in the graph.
    pub fn contains(&self, id: NodeId) -> bool {
        self.inner.contains_node(ix(id))
    }

    /// The operator of a node.
    pub fn op(&self, id: NodeId) -> &Op {
        &self.node(id).op
    }

    /// The value at `port`.
    pub fn value(&self, port: Port) -> &Value {
        &self.node(port.node).outputs[port.slot]
    }

    /// What is known of the value at `port`.
    pub fn fact(&self, port: Port) -> &Fact {
        &self.value(port).fact
    }

    /// The tensor at `port`, when a constant makes it.
    pub fn constant(&self, port: Port) -> Option<&Tensor> {
        match self.op(port.node) {
            Op::Constant(c) => Some(&c.0),
            _ => None,
        }
    }

    /// All nodes in order of their ids.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.inner.node_indices().map(id)
    }

    /// The nodes that compute: all but inputs and constants.
    pub fn operators(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.ids().filter(|n| !matches!(self.op(*n), Op::Input(_) | Op::Constant(_)))
    }

    /// This graph, and those that its operators run (If, Loop, Scan), whatever their depth.
    pub fn and_bodies(&self) -> Vec<&Graph> {
        let mut found = vec![self];
        let mut at = 0;
        while at < found.len() {
            let graph: &Graph = found[at];
            let bodies = graph.operators().flat_map(|n| graph.op(n).bodies());
            found.extend(bodies.map(|b| b.graph()));
            at += 1;
        }
        found
    }

    /// The input nodes, in the order of the model's signature.
    pub fn inputs(&self) -> &[NodeId] {
        &self.inputs
    }

    /// The graph's outputs, in the order of the model's signature.
    pub fn outputs(&self) -> &[Output] {
        &self.outputs
    }

    /// What node `id` reads, by input slot; `None` where an optional input is absent.
    pub fn operands(&self, id: NodeId) -> Vec<Option<Port>> {
        let mut out = vec![];
        for e in self.inner.edges_directed(ix(id), Incoming) {
            let w = e.weight();
            if out.len() <= w.to {
                out.resize(w.to + 1, None);
            }
            out[w.to] = Some(Port { node: NodeId(e.source().index() as u32), slot: w.from });
        }
        out
    }

    /// What node `id` reads at `slot`.
    pub fn operand(&self, id: NodeId, slot: usize) -> Option<Port> {
        self.inner
            .edges_directed(ix(id), Incoming)
            .find(|e| e.weight().to == slot)
            .map(|e| Port { node: NodeId(e.source().index() as u32), slot: e.weight().from })
    }

    /// The nodes that read the value at `port`, in a fixed order.
    pub fn uses(&self, port: Port) -> Vec<Use> {
        let mut out: Vec<Use> = self.readers(port).collect();
        out.sort();
        out
    }

    /// Whether the value at `port` is a graph output.
    pub fn is_output(&self, port: Port) -> bool {
        self.output_counts.contains_key(&port)
    }

    /// Whether an output of `id` is a graph output.
    fn makes_output(&self, id: NodeId) -> bool {
        (0..self.node(id).outputs.len()).any(|slot| self.is_output(Port { node: id, slot }))
    }

    /// The only reader of `port`, when there is exactly one and it is not a graph output.
    pub fn only_use(&self, port: Port) -> Option<Use> {
        // A constant may have thousands of readers: two are enough to know.
        let mut uses = self.readers(port);
        match (uses.next(), uses.next()) {
            (Some(u), None) if !self.is_output(port) => Some(u),
            _ => None,
        }
    }

    /// The readers of `port` that need its elements: Shape and Size don't. Of many, the first ones.
    pub fn element_uses(&self, port: Port) -> Vec<Use> {
        let reads = |u: &Use| !matches!(self.op(u.node), Op::Shape(_) | Op::Size(_));
        self.readers(port).filter(reads).take(3).collect()
    }

    /// Whether anybody reads the value at `port`, be it as a graph output.
    pub fn is_read(&self, port: Port) -> bool {
        self.readers(port).next().is_some() || self.is_output(port)
    }

    /// Whether nothing but `node` reads the value at `port`.
    pub fn is_read_only_by(&self, port: Port, node: NodeId) -> bool {
        !self.is_output(port) && self.readers(port).all(|u| u.node == node)
    }

    fn readers(&self, port: Port) -> impl Iterator<Item = Use> + '_ {
        let edges = self.inner.edges_directed(ix(port.node), Outgoing).filter(move |e| e.weight().from == port.slot);
        edges.map(|e| Use { node: id(e.target()), slot: e.weight().to })
    }

    /// Every node after the nodes it reads from: in the order of their ids, but what a node needs comes before it.
    ///
    /// # Errors
    /// Malformed when there is a cycle.
    pub fn topological(&self) -> Result<Vec<NodeId>> {
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            Unseen,
            /// What it needs is being visited.
            Open,
            Placed,
        }
        let nodes = self.inner.node_indices();
        let mut states = vec![State::Unseen; self.inner.node_bound()];
        let mut order = Vec::with_capacity(self.inner.node_count());
        let mut open: Vec<NodeIndex> = vec![];
        for start in nodes {
            open.push(start);
            while let Some(&n) = open.last() {
                if states[n.index()] == State::Unseen {
                    states[n.index()] = State::Open;
                    for m in self.inner.neighbors_directed(n, Incoming) {
                        match states[m.index()] {
                            State::Unseen => open.push(m),
                            State::Open => {
                                return Err(Error::malformed("the graph has a cycle").at(self.inner[m].label()));
                            }
                            State::Placed => {}
                        }
                    }
                } else {
                    open.pop();
                    if states[n.index()] == State::Open {
                        states[n.index()] = State::Placed;
                        order.push(id(n));
                    }
                }
            }
        }
        Ok(order)
    }

    // --- changing ---

    /// Adds a graph input.
    ///
    /// # Errors
    /// Malformed when the name is taken.
    pub fn add_input(&mut self, name: &str, fact: Fact, op: Op) -> Result<NodeId> {
        let n = self.insert(name, op, vec![Value::new(name, fact)])?;
        self.inputs.push(n);
        Ok(n)
    }

    /// Adds a constant called `name`, or like it when that is taken.
    pub fn add_constant(&mut self, name: &str, tensor: Tensor) -> NodeId {
        let name = self.fresh(name);
        let fact = Fact::of(&tensor);
        self.names.insert(name.clone());
        let outputs = vec![Value::new(name, fact)];
        id(self.inner.add_node(Node { name: String::new(), op: Op::constant(tensor), outputs, remarks: None }))
    }

    /// Adds an operator reading `operands`, with outputs called `outputs` (an empty name
    /// for an output nobody wants), and infers what it makes.
    ///
    /// # Errors
    /// Malformed when an output's name is taken or the operator refuses its inputs.
    pub fn add_node(&mut self, name: &str, op: Op, operands: &[Option<Port>], outputs: &[&str]) -> Result<NodeId> {
        let facts = self.infer_op(&op, operands)?;
        let values = outputs
            .iter()
            .enumerate()
            .map(|(i, n)| Value::new(*n, facts.get(i).cloned().unwrap_or_default()))
            .collect();
        let node = self.insert(name, op, values)?;
        for (slot, port) in operands.iter().enumerate() {
            self.set_operand(node, slot, *port);
        }
        Ok(node)
    }

    fn insert(&mut self, name: &str, op: Op, outputs: Vec<Value>) -> Result<NodeId> {
        for v in outputs.iter().filter(|v| !v.name.is_empty()) {
            if !self.names.insert(v.name.clone()) {
                return Err(Error::malformed(format!("two values are called `{}`", v.name)));
            }
        }
        Ok(id(self.inner.add_node(Node { name: name.into(), op, outputs, remarks: None })))
    }

    /// What `op` would make of `operands`.
    ///
    /// # Errors
    /// What the operator's inference says.
    pub fn infer_op(&self, op: &Op, operands: &[Option<Port>]) -> Result<Vec<Fact>> {
        let facts: Vec<Option<&Fact>> = operands.iter().map(|p| p.map(|p| self.fact(p))).collect();
        let made: Vec<Fact> = op.infer(&Inputs(&facts))?.into_iter().map(Fact::wrapped).collect();
        made.iter().filter_map(Fact::dims).try_for_each(|dims| value::sizes(dims).map(drop))?;
        Ok(made)
    }

    /// Makes node `id` read `port` at `slot`, or nothing.
    pub fn set_operand(&mut self, id: NodeId, slot: usize, port: Option<Port>) {
        let old = self.inner.edges_directed(ix(id), Incoming).find(|e| e.weight().to == slot).map(|e| e.id());
        if let Some(e) = old {
            self.inner.remove_edge(e);
        }
        if let Some(p) = port {
            self.inner.add_edge(ix(p.node), ix(id), Edge { from: p.slot, to: slot });
        }
    }

    /// Makes node `id` read `operands` and nothing else.
    pub fn set_operands(&mut self, id: NodeId, operands: &[Option<Port>]) {
        let old: Vec<_> = self.inner.edges_directed(ix(id), Incoming).map(|e| e.id()).collect();
        for e in old {
            self.inner.remove_edge(e);
        }
        for (slot, port) in operands.iter().enumerate() {
            self.set_operand(id, slot, *port);
        }
    }

    /// Removes a graph input that nobody reads: the signature gets shorter.
    ///
    /// # Panics
    /// When somebody does: that is a defect of the pass.
    pub fn remove_input(&mut self, id: NodeId) {
        self.inputs.retain(|n| *n != id);
        self.remove(id);
    }

    /// Replaces a node's operator; its operands and outputs stay.
    pub fn set_op(&mut self, id: NodeId, op: Op) {
        self.inner[ix(id)].op = op;
    }

    /// Sets what the file says of a node besides what it computes.
    pub fn set_remarks(&mut self, id: NodeId, remarks: Option<Remarks>) {
        self.inner[ix(id)].remarks = remarks.map(Box::new);
    }

    /// Replaces a constant's tensor.
    ///
    /// # Panics
    /// When `id` is not a constant: the caller found it as one.
    pub fn set_constant(&mut self, id: NodeId, tensor: Tensor) {
        let node = &mut self.inner[ix(id)];
        assert!(matches!(node.op, Op::Constant(_)), "{} is not a constant", node.label());
        node.outputs[0].fact = Fact::of(&tensor);
        node.op = Op::constant(tensor);
    }

    /// Replaces what is known of a value.
    pub fn set_fact(&mut self, port: Port, fact: Fact) {
        self.inner[ix(port.node)].outputs[port.slot].fact = fact;
    }

    /// Says by which scale the channels of a value were multiplied ([`Value::channel_scale`]).
    pub fn set_channel_scale(&mut self, port: Port, scale: Arc<[f32]>) {
        self.inner[ix(port.node)].outputs[port.slot].channel_scale = Some(scale);
    }

    /// Says what shape the file declares of the value or output `name`. Nothing is concluded from it.
    pub fn declare(&mut self, name: &str, shape: Shape) {
        self.declared.insert(name.into(), shape);
    }

    /// The fact at `port`, which is called `name` in the file, with what the file declares of it where that agrees.
    pub fn declared(&self, name: &str, port: Port) -> Fact {
        let fact = self.fact(port).clone();
        let declared = self.declared.get(name).map(|shape| Fact::new(None, shape.clone()));
        declared.and_then(|d| fact.clone().refined(&d).ok()).unwrap_or(fact)
    }

    /// Appends a graph output.
    pub fn add_output(&mut self, name: &str, port: Port) {
        self.outputs.push(Output { name: name.into(), port });
        *self.output_counts.entry(port).or_default() += 1;
    }

    /// Takes all graph outputs away, to give it others.
    pub fn remove_outputs(&mut self) {
        self.outputs.clear();
        self.output_counts.clear();
    }

    /// Makes every reader of `old` but those in `except`, and every graph output on it, take
    /// `new` instead.
    pub fn redirect(&mut self, old: Port, new: Port, except: &[NodeId]) {
        for u in self.uses(old) {
            if !except.contains(&u.node) {
                self.set_operand(u.node, u.slot, Some(new));
            }
        }
        if let Some(count) = self.output_counts.remove(&old) {
            self.outputs.iter_mut().filter(|o| o.port == old).for_each(|o| o.port = new);
            *self.output_counts.entry(new).or_default() += count;
        }
    }

    /// Gives the value at `to` the name of the one at `from`, which gets a fresh one, and the scale of its channels.
    pub fn take_name(&mut self, from: Port, to: Port) {
        if let Some(scale) = self.value(from).channel_scale.clone() {
            self.set_channel_scale(to, scale);
        }
        let name = self.value(from).name.clone();
        let fresh = self.fresh(&name);
        self.names.insert(fresh.clone());
        let old = std::mem::replace(&mut self.inner[ix(to.node)].outputs[to.slot].name, name);
        self.names.remove(&old);
        self.inner[ix(from.node)].outputs[from.slot].name = fresh;
    }

    /// Gives the value at `port` another name.
    ///
    /// # Errors
    /// Malformed when another value has it.
    pub fn rename(&mut self, port: Port, name: &str) -> Result<()> {
        let old = std::mem::take(&mut self.inner[ix(port.node)].outputs[port.slot].name);
        self.names.remove(&old);
        if !self.names.insert(name.into()) {
            return Err(Error::malformed(format!("two values are called `{name}`")));
        }
        self.inner[ix(port.node)].outputs[port.slot].name = name.into();
        Ok(())
    }

    /// Removes a node nobody reads.
    ///
    /// # Panics
    /// When somebody does: that is a defect of the pass.
    pub fn remove(&mut self, id: NodeId) {
        let read = self.inner.edges_directed(ix(id), Outgoing).next().is_some();
        assert!(!read && !self.makes_output(id), "{} is in use", self.node(id).label());
        if let Some(node) = self.inner.remove_node(ix(id)) {
            for v in node.outputs {
                self.names.remove(&v.name);
            }
        }
    }

    /// Whether nobody reads any output of `id`. Inputs are part of the signature: never dead.
    pub fn is_dead(&self, id: NodeId) -> bool {
        !matches!(self.op(id), Op::Input(_))
            && self.inner.edges_directed(ix(id), Outgoing).next().is_none()
            && !self.makes_output(id)
    }

    /// A value name not taken yet: `base`, or `base_1`, `base_2`, ...
    pub fn fresh(&self, base: &str) -> String {
        if !base.is_empty() && !self.names.contains(base) {
            return base.into();
        }
        // Doubling keeps this linear over many requests for one base.
        let name = |i: u64| format!("{base}_{i}");
        let mut step = 1;
        while self.names.contains(&name(step)) {
            step *= 2;
        }
        let (mut low, mut high) = (step / 2, step);
        while high - low > 1 {
            let mid = low + (high - low) / 2;
            if self.names.contains(&name(mid)) { low = mid } else { high = mid }
        }
        name(high)
    }

    /// Infers again what a node makes. What was known before (declared by the file) still
    /// holds where inference knows less.
    ///
    /// # Errors
    /// What the operator's inference says, naming the node.
    pub fn infer(&mut self, id: NodeId) -> Result<()> {
        if matches!(self.op(id), Op::Input(_) | Op::Constant(_)) {
            return Ok(());
        }
        let facts = self.infer_op(self.op(id), &self.operands(id)).map_err(|e| e.at(self.node(id).label()))?;
        for (value, new) in self.inner[ix(id)].outputs.iter_mut().zip(facts) {
            let declared = std::mem::replace(&mut value.fact, new);
            // Where the two contradict each other, what was inferred stays.
            let _ = value.fact.refine(&declared);
        }
        Ok(())
    }

    /// Puts the edges of each value in the order of its readers. petgraph finds an edge to remove by walking that
    /// list from the edge added last, and passes remove from the front: without this, a constant that thousands of
    /// nodes read would cost each of them all the others.
    pub(crate) fn sort_edges(&mut self) {
        let ids: Vec<NodeId> = self.ids().collect();
        let operands: Vec<Vec<Option<Port>>> = ids.iter().map(|n| self.operands(*n)).collect();
        self.inner.clear_edges();
        for (node, operands) in ids.iter().zip(&operands).rev() {
            for (slot, port) in operands.iter().enumerate().rev() {
                if let Some(p) = port {
                    self.inner.add_edge(ix(p.node), ix(*node), Edge { from: p.slot, to: slot });
                }
            }
        }
    }

    /// Infers again what every node makes, in topological order.
    ///
    /// # Errors
    /// As [`Graph::infer`].
    pub fn infer_all(&mut self) -> Result<()> {
        self.topological()?.into_iter().try_for_each(|n| self.infer(n))
    }
}
