//! A node becomes an operator that is known here, or is kept as it came.

use super::{Declared, Importer};
use crate::{
    attr::{Attr, NewInputs, Reader},
    error::{Error, Kind, Result},
    node::{NodeId, Port},
    onnx::{arity, attribute, opset, order::captured, remarks},
    op::{Op, Operator},
    ops::opaque::Opaque,
};
use onnx_protobuf::NodeProto;
use std::collections::HashSet;

/// The values that a node reads.
struct Reads {
    operands: Vec<Option<Port>>,
    /// The outer values that its subgraphs read, by name.
    captures: Vec<(String, Port)>,
}

impl Importer<'_> {
    pub(super) fn labelled(&mut self, node: &NodeProto, declared: &Declared) -> Result<()> {
        self.node(node, declared).map_err(|e| {
            let name = if node.name.is_empty() { node.output.first().map_or("", |o| o) } else { &node.name };
            e.at(format!("`{}{name}` ({})", self.prefix, node.op_type))
        })
    }

    /// Imports a node; `declared` is what the file says of its outputs.
    pub(super) fn node(&mut self, node: &NodeProto, declared: &Declared) -> Result<()> {
        if let Some(function) = self.functions.of(node) {
            return self.call(function, node);
        }
        if self.quantised(node, declared)? || self.fused(node, declared)? || self.tensor(node)? {
            return Ok(());
        }
        let reads = self.reads(node)?;
        // Trailing outputs that nobody named are not asked for.
        let wanted = node.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        let known = match opset::operator_name(node) {
            Some(name) => self.understand(&name, node, &reads, wanted),
            None => Err(opset::unknown(node)),
        };
        let id = match known {
            Ok((op, inputs)) => self.known(node, op, inputs, reads, wanted)?,
            Err(e) if e.kind() == Kind::Unsupported => self.opaque(node, e.message(), reads)?,
            Err(e) => return Err(e),
        };
        self.results(node, id, declared)
    }

    /// Adds the constant that a Constant makes. Says whether it did: a value without a tensor type here (strings, sparse)
    /// stays opaque.
    fn tensor(&mut self, node: &NodeProto) -> Result<bool> {
        if !opset::is_default(&node.domain) || node.op_type != "Constant" {
            return Ok(false);
        }
        let ([], [name]) = (&node.input[..], &node.output[..]) else {
            return Err(Error::malformed(format!(
                "{} inputs and {} outputs; a Constant has no input and one output",
                node.input.len(),
                node.output.len()
            )));
        };
        match attribute::constant(node, self.source) {
            Ok(t) => self.constant(name, t).map(|()| true),
            Err(e) if e.kind() == Kind::Unsupported => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn reads(&self, node: &NodeProto) -> Result<Reads> {
        let mut operands = node.input.iter().map(|n| self.operand(n)).collect::<Result<Vec<_>>>()?;
        while operands.last() == Some(&None) {
            operands.pop();
        }
        // A name that is not known here is the subgraph's own affair.
        let outer = |n: String| self.values.get(&n).copied().flatten().map(|port| (n, port));
        Ok(Reads { operands, captures: captured(node).into_iter().filter_map(outer).collect() })
    }

    /// The operator that a node of the default domain stands for, and its inputs there.
    fn understand(
        &mut self,
        name: &str,
        node: &NodeProto,
        Reads { operands, captures }: &Reads,
        outputs: usize,
    ) -> Result<(Op, NewInputs)> {
        if outputs == 0 {
            return Err(Error::malformed("the node has no outputs"));
        }
        let mut attrs = vec![];
        let mut seen = HashSet::new();
        for a in &node.attribute {
            if !seen.insert(&a.name) {
                return Err(Error::malformed(format!("attribute `{}` is given twice", a.name)));
            }
            attrs.push(match a.g.as_ref() {
                Some(g) if matches!(&node.op_type[..], "If" | "Loop" | "Scan" | "FlexAttention") => {
                    (a.name.clone(), Attr::Graph(self.body(&node.op_type, g.clone(), operands, captures)?))
                }
                _ => attribute::read(a.clone(), self.source)?,
            });
        }
        let fact = |slot: usize| operands.get(slot).copied().flatten().map(|p| self.graph.fact(p).clone());
        let first = fact(0).unwrap_or_default();
        let mut reader = Reader::new(name, self.opset, operands.len(), outputs, first, attrs);
        reader.second = fact(1).unwrap_or_default();
        let op = Op::read(&mut reader)?;
        if op.since() > self.newest {
            return Err(Error::unsupported(format!(
                "{} as it is understood is of opset {}, to which an operator that is kept as it is can't move",
                node.op_type,
                op.since()
            )));
        }
        arity::check_given(&op, self.opset, operands.len(), outputs)?;
        Ok((op, reader.finish()?))
    }

    /// Adds an operator that is known, whose inputs are where the newest opset has them.
    fn known(&mut self, node: &NodeProto, op: Op, inputs: NewInputs, reads: Reads, wanted: usize) -> Result<NodeId> {
        let Reads { mut operands, captures } = reads;
        for (from, to) in inputs.moved {
            let port = operands.get_mut(from).and_then(Option::take);
            operands.resize(operands.len().max(to + 1), None);
            operands[to] = port;
        }
        for (slot, t) in inputs.lifted {
            if operands.get(slot).copied().flatten().is_some() {
                return Err(Error::malformed(format!(
                    "input {slot} is given, which opset {} has as an attribute",
                    self.opset
                )));
            }
            let base = node.output.first().map_or("", |o| o);
            let id = self.graph.add_constant(&self.value_name(&format!("{base}_in{slot}")), t);
            operands.resize(operands.len().max(slot + 1), None);
            operands[slot] = Some(id.into());
        }
        if !op.bodies().is_empty() {
            operands.resize(arity::own_operands(&op).unwrap_or(operands.len()), None);
            operands.extend(captures.iter().map(|(_, port)| Some(*port)));
        }
        arity::check_needed(&op, &operands)?;
        let id = self.add(node, op, &operands, wanted)?;
        self.narrow_caches(id);
        // Many calls of a function would say the same many times.
        if self.calls.is_empty() {
            self.graph.set_remarks(id, remarks::of_node(node));
        }
        Ok(id)
    }

    /// Fills in the heads of a cache that the model takes, and their size, which ONNX Runtime GenAI's builder leaves open.
    fn narrow_caches(&mut self, id: NodeId) {
        let Op::GroupQueryAttention(_) = self.graph.op(id) else { return };
        for slot in [3, 4] {
            let Some(past) = self.graph.operand(id, slot) else { continue };
            let mut fact = self.graph.fact(past).clone();
            let present = self.graph.node(id).outputs.get(slot - 2).and_then(|value| value.fact.dims());
            let (Op::Input(_), Some(dims), Some(present)) = (self.graph.op(past.node), &mut fact.shape, present) else {
                continue;
            };
            for axis in [1, 3] {
                if let (Some(dim), Some(known)) =
                    (dims.get_mut(axis), present.get(axis).filter(|d| d.known().is_some()))
                    && dim.known().is_none()
                {
                    *dim = known.clone();
                }
            }
            self.graph.set_fact(past, fact);
        }
    }

    /// Adds a node that is kept as it came, for a reason.
    fn opaque(&mut self, node: &NodeProto, reason: &str, reads: Reads) -> Result<NodeId> {
        let Reads { mut operands, captures } = reads;
        // Explicit inputs that are absent at the end must not shift the captures.
        operands.resize(node.input.len(), None);
        operands.extend(captures.iter().map(|(_, port)| Some(*port)));
        let captures = captures.into_iter().map(|(name, _)| name).collect();
        let op = Opaque { captures, reason: reason.into(), opset: self.opset, proto: Box::new(node.clone()) };
        self.add(node, Op::Opaque(op), &operands, node.output.len())
    }

    fn add(&mut self, node: &NodeProto, op: Op, operands: &[Option<Port>], outputs: usize) -> Result<NodeId> {
        let name = if node.name.is_empty() { String::new() } else { format!("{}{}", self.prefix, node.name) };
        let values: Vec<String> = node.output[..outputs].iter().map(|o| self.value_name(o)).collect();
        self.graph.add_node(&name, op, operands, &values.iter().map(|v| &v[..]).collect::<Vec<_>>())
    }

    /// Makes the outputs known by their names, and compares with what the file declares of them.
    fn results(&mut self, node: &NodeProto, id: NodeId, declared: &Declared) -> Result<()> {
        for (slot, name) in node.output.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
            let port = Port { node: id, slot };
            self.declare(name, port, declared)?;
            self.define(name, port)?;
        }
        Ok(())
    }

    fn declare(&mut self, name: &str, port: Port, declared: &Declared) -> Result<()> {
        let Some(d) = declared.facts.get(name) else { return Ok(()) };
        let mut fact = self.graph.fact(port).clone();
        // Of shapes runtimes believe what they infer: so do we, and say so.
        let types = d.dtype.zip(fact.dtype);
        match fact.agrees(d) {
            Ok(()) => {
                // Nobody checks a shape that can't be inferred, and exporters leave those they traced with:
                // it is handed on, but nothing is concluded from it.
                let opaque = matches!(self.graph.op(port.node), Op::Opaque(_));
                if (opaque || declared.outputs.contains(name)) && d.shape.is_some() && fact.fixed().is_none() {
                    self.graph.declare(&self.graph.value(port).name.clone(), d.shape.clone());
                }
                fact.dtype = fact.dtype.or(d.dtype);
                self.graph.set_fact(port, fact);
            }
            Err(e) if types.is_none_or(|(theirs, ours)| theirs == ours) => {
                let kind = if declared.outputs.contains(name) { "graph output" } else { "value" };
                self.contradictions.push(format!("{kind} `{name}`: {}", e.message()));
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }
}
