//! What happens inside If, Loop and Scan: a branch that is always taken moves out, what is
//! constant outside moves in, and the graphs inside are simplified like the one around them.

use crate::{loops, simplify_at};
use compress_compiler::{
    captured::drop_unread,
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::control::Body,
    pass::{Context, Outcome},
    rewrite::remove_dead,
    tensor::Tensor,
    value::Fact,
};
use std::collections::HashMap;

/// Constants up to this size are copied into the bodies that read them; larger ones move in
/// when one body alone reads them.
pub(crate) const SMALL: usize = 1 << 10;

/// Bodies inside each other are simplified down to this depth.
const DEPTH: usize = 8;

/// What was known around a body when it was simplified: as long as that stays, so does it.
#[derive(Default)]
pub struct Seen(HashMap<NodeId, (Vec<Body>, Vec<Fact>)>);

/// Looks at every operator of `graph` that has bodies; `depth` counts the graphs around it.
///
/// # Errors
/// What simplifying can raise.
pub fn run(graph: &mut Graph, cx: &Context, depth: usize, seen: &mut Seen) -> Result<Outcome> {
    let mut done = Outcome::default();
    let nodes: Vec<NodeId> = graph.operators().filter(|n| !graph.op(*n).bodies().is_empty()).collect();
    for n in nodes {
        cx.check()?;
        // What was done before may have taken this node along, or reused its id.
        if !graph.contains(n) || graph.op(n).bodies().is_empty() {
            continue;
        }
        let same = loops::unchanged(graph, n);
        if !same.is_empty() && cx.edits.allow("unchanged state", || graph.node(n).label()) {
            // The next round looks at the node in its place.
            loops::capture(graph, n, &same)?;
            seen.0.remove(&n);
            done.edits += 1;
            continue;
        }
        if let Some(branch) = taken(graph, n).filter(|_| cx.edits.allow("taken branch", || graph.node(n).label())) {
            inline(graph, n, &branch)?;
            seen.0.remove(&n);
            done.edits += 1;
        } else if depth < DEPTH {
            inside(graph, n, cx, depth, seen, &mut done)?;
        }
    }
    Ok(done)
}

/// The branch that an If always takes.
fn taken(graph: &Graph, n: NodeId) -> Option<Body> {
    let Op::If(op) = graph.op(n) else { return None };
    match graph.fact(graph.operand(n, 0)?).known_elems()?[..] {
        [v] => Some(if v != 0 { &op.then_branch } else { &op.else_branch }.clone()),
        _ => None,
    }
}

/// Puts a branch in the place of its If.
fn inline(graph: &mut Graph, n: NodeId, branch: &Body) -> Result<()> {
    let inner = branch.graph();
    let captured = graph.operands(n).into_iter().skip(1);
    let mut ports: HashMap<Port, Port> = HashMap::new();
    for (input, port) in inner.inputs().iter().zip(captured) {
        ports.extend(port.map(|p| (Port::from(*input), p)));
    }
    copy(inner, graph, &mut ports)?;
    for (slot, output) in inner.outputs().iter().enumerate().take(graph.node(n).outputs.len()) {
        let (old, new) = (Port { node: n, slot }, ports[&output.port]);
        graph.redirect(old, new, &[]);
        let first = inner.outputs().iter().position(|o| o.port == output.port) == Some(slot);
        if first && !matches!(inner.op(output.port.node), Op::Input(_)) {
            graph.take_name(old, new);
        }
    }
    remove_dead(graph, n);
    Ok(())
}

/// Adds all that `inner` computes to `graph`, where `ports` says what stands for its inputs; then
/// it says what stands for every value.
pub(crate) fn copy(inner: &Graph, graph: &mut Graph, ports: &mut HashMap<Port, Port>) -> Result<()> {
    for m in inner.topological()? {
        let node = inner.node(m);
        let made = match &node.op {
            Op::Input(_) => continue,
            Op::Constant(c) => graph.add_constant(&node.outputs[0].name, c.0.clone()),
            op => {
                let operands: Vec<Option<Port>> =
                    inner.operands(m).into_iter().map(|p| p.and_then(|p| ports.get(&p).copied())).collect();
                let mut names: Vec<String> = vec![];
                for v in &node.outputs {
                    names.push(if v.name.is_empty() { String::new() } else { graph.fresh(&v.name) });
                }
                let names: Vec<&str> = names.iter().map(|s| &s[..]).collect();
                let made = graph.add_node(&node.name, op.clone(), &operands, &names)?;
                graph.set_remarks(made, node.remarks.as_deref().cloned());
                made
            }
        };
        for (slot, value) in node.outputs.iter().enumerate() {
            let port = Port { node: made, slot };
            if let Ok(fact) = graph.fact(port).clone().refined(&value.fact) {
                graph.set_fact(port, fact);
            }
            ports.insert(Port { node: m, slot }, port);
        }
    }
    Ok(())
}

/// Simplifies the bodies of `n`, knowing what is known outside.
fn inside(graph: &mut Graph, n: NodeId, cx: &Context, depth: usize, seen: &mut Seen, done: &mut Outcome) -> Result<()> {
    let bodies: Vec<Body> = graph.op(n).bodies().into_iter().cloned().collect();
    let operands = graph.operands(n);
    let captures = bodies[0].captures();
    let own = operands.len() - captures;
    let outer: Vec<Port> = operands[own..].iter().copied().flatten().collect();
    let facts: Vec<Fact> = outer.iter().map(|p| graph.fact(*p).clone()).collect();
    if seen.0.get(&n).is_some_and(|(b, f)| *b == bodies && *f == facts) {
        return Ok(());
    }
    let mut inner: Vec<Graph> = bodies.iter().map(|b| b.graph().clone()).collect();
    let capture = |g: &Graph, i: usize| Port::from(g.inputs()[g.inputs().len() - captures + i]);
    let readers = |i: usize| inner.iter().filter(|g| g.is_read(capture(g, i))).count();
    let constants: Vec<Option<Tensor>> =
        outer.iter().enumerate().map(|(i, p)| moves_in(graph, *p, readers(i)).cloned()).collect();
    let mut edits = constants.iter().flatten().count();
    for g in &mut inner {
        let inputs = g.inputs()[g.inputs().len() - captures..].to_vec();
        for ((input, fact), constant) in inputs.iter().zip(&facts).zip(&constants) {
            match constant {
                Some(t) => {
                    let name = g.value((*input).into()).name.clone();
                    let constant = g.add_constant(&name, t.clone());
                    g.redirect((*input).into(), constant.into(), &[]);
                }
                None => {
                    let known = fact.clone().refined(g.fact((*input).into())).unwrap_or_else(|_| fact.clone());
                    g.set_fact((*input).into(), known);
                }
            }
        }
        g.infer_all()?;
        let result = simplify_at(g, cx, depth + 1)?;
        edits += result.edits;
        done.skipped.extend(result.skipped);
        done.warnings.extend(result.warnings);
    }
    let mut op = graph.op(n).clone();
    op.set_bodies(inner.into_iter().map(|g| Body::new(g, captures)).collect());
    graph.set_op(n, op);
    let kept = drop_unread(graph, n);
    edits += kept.iter().filter(|k| !**k).count();
    let bodies = graph.op(n).bodies().into_iter().cloned().collect();
    let before = graph.node(n).outputs.clone();
    graph.infer(n)?;
    // Where results are known better, so may be what reads them: the next round infers that.
    edits += usize::from(graph.node(n).outputs != before);
    let facts = facts.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|(f, _)| f).collect();
    seen.0.insert(n, (bodies, facts));
    done.edits += edits;
    Ok(())
}

/// The constant at `port`, if the bodies of its only reader, of which `readers` read it, should have it.
fn moves_in(graph: &Graph, port: Port, readers: usize) -> Option<&Tensor> {
    let t = graph.constant(port)?;
    (t.bytes().len() <= SMALL || readers <= 1 && graph.only_use(port).is_some()).then_some(t)
}
