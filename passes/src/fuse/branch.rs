//! Ifs without a Not before them, and two on one condition.

use crate::bodies::copy;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        control::{Body, If},
        unary::Unary,
    },
    pass::Context,
    rewrite::{Edit, Ref, Rule, Verdict},
};
use std::collections::{HashMap, HashSet};

/// So many other Ifs on a condition are looked at, and so many nodes before each.
const OTHERS: usize = 8;
const BEFORE: usize = 4096;

/// `If(Not(c))` is an If with its branches swapped.
pub(super) struct IfNot;

impl Rule for IfNot {
    fn name(&self) -> &'static str {
        "if-not"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["If"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let (Op::If(op), Some(not)) = (graph.op(node), graph.operand(node, 0)) else { return Ok(Verdict::No) };
        let (Op::Unary(Unary::Not), Some(c)) = (graph.op(not.node), graph.operand(not.node, 0)) else {
            return Ok(Verdict::No);
        };
        let op = If { then_branch: op.else_branch.clone(), else_branch: op.then_branch.clone() };
        let mut operands: Vec<Option<Ref>> = graph.operands(node).into_iter().map(|p| p.map(Into::into)).collect();
        operands[0] = Some(c.into());
        let count = graph.node(node).outputs.len();
        let mut edit = Edit::new();
        let made = edit.nodes(&graph.node(node).name, op, &operands, count);
        for (slot, new) in read(graph, node).into_iter().map(|slot| (slot, made[slot])) {
            edit.replace(Port { node, slot }, new);
        }
        Ok(Verdict::Apply(edit))
    }
}

/// Two Ifs on one condition, neither of which needs the other, are one.
pub(super) struct IfPair;

impl Rule for IfPair {
    fn name(&self) -> &'static str {
        "if-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["If"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(condition) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let other = graph
            .uses(condition)
            .into_iter()
            .filter(|u| u.slot == 0 && u.node != node && matches!(graph.op(u.node), Op::If(_)))
            .take(OTHERS)
            .find(|u| apart(graph, node, u.node) && apart(graph, u.node, node));
        Ok(match other {
            Some(u) => pair(graph, condition, [node.min(u.node), node.max(u.node)])?,
            None => Verdict::No,
        })
    }
}

/// Whether `node` surely does not depend on `other`.
fn apart(graph: &Graph, node: NodeId, other: NodeId) -> bool {
    let mut seen: HashSet<NodeId> = HashSet::new();
    let mut open = vec![node];
    while let Some(n) = open.pop() {
        if n == other || seen.len() > BEFORE {
            return false;
        }
        if seen.insert(n) {
            open.extend(graph.operands(n).into_iter().flatten().map(|p| p.node));
        }
    }
    true
}

/// The outputs that somebody reads.
fn read(graph: &Graph, node: NodeId) -> Vec<usize> {
    let asked = |port: Port| graph.is_read(port);
    (0..graph.node(node).outputs.len()).filter(|slot| asked(Port { node, slot: *slot })).collect()
}

fn pair(graph: &Graph, condition: Port, nodes: [NodeId; 2]) -> Result<Verdict> {
    let mut captured: Vec<Port> = vec![];
    let mut branches = [Graph::default(), Graph::default()];
    let mut joined = vec![];
    for n in nodes {
        let Op::If(op) = graph.op(n) else { return Ok(Verdict::No) };
        let operands: Option<Vec<Port>> = graph.operands(n).into_iter().skip(1).collect();
        let Some(operands) = operands else { return Ok(Verdict::No) };
        let slots = read(graph, n);
        joined.extend(slots.iter().map(|slot| Port { node: n, slot: *slot }));
        for (all, body) in branches.iter_mut().zip([&op.then_branch, &op.else_branch]) {
            // Both branches have the same captures, so the second finds those of the first.
            append(graph, all, body, &operands, &mut captured, &slots)?;
        }
    }
    let [a, b] = branches.map(|g| Body::new(g, captured.len()));
    let mut operands: Vec<Option<Ref>> = vec![Some(condition.into())];
    operands.extend(captured.iter().map(|p| Some((*p).into())));
    let mut edit = Edit::new();
    let op = If { then_branch: a, else_branch: b };
    let made = edit.nodes(&graph.node(nodes[0]).name, op, &operands, joined.len());
    joined.into_iter().zip(made).for_each(|(old, new)| edit.replace(old, new));
    Ok(Verdict::Apply(edit))
}

/// Puts what `body` computes behind what is in `all`. The inputs of `all` stand for the values `captured`.
fn append(
    graph: &Graph,
    all: &mut Graph,
    body: &Body,
    operands: &[Port],
    captured: &mut Vec<Port>,
    slots: &[usize],
) -> Result<()> {
    let inner = body.graph();
    if all.name.is_empty() {
        all.name = inner.name.clone();
    }
    let mut ports: HashMap<Port, Port> = HashMap::new();
    for (input, outer) in inner.inputs().iter().zip(operands) {
        let at = captured.iter().position(|p| p == outer).unwrap_or_else(|| {
            captured.push(*outer);
            captured.len() - 1
        });
        while all.inputs().len() <= at {
            let value = graph.value(captured[all.inputs().len()]);
            all.add_input(&all.fresh(&value.name), value.fact.clone(), inner.op(*input).clone())?;
        }
        ports.insert((*input).into(), all.inputs()[at].into());
    }
    copy(inner, all, &mut ports)?;
    for output in slots.iter().filter_map(|slot| inner.outputs().get(*slot)) {
        let mut name = output.name.clone();
        while all.outputs().iter().any(|o| o.name == name) {
            name += "_1";
        }
        if let Some(port) = ports.get(&output.port) {
            all.add_output(&name, *port);
        }
    }
    Ok(())
}
