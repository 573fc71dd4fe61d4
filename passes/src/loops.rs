//! What a Loop hands on as it is from one repetition to the next is a value from around it: its body then knows the
//! weights that exporters hand on like that.

use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        control::{Body, Loop},
        source::Input,
    },
    rewrite::remove_dead,
};

/// The states of `n`, if it is a Loop, that its body hands on as they are.
pub fn unchanged(graph: &Graph, n: NodeId) -> Vec<usize> {
    let Op::Loop(op) = graph.op(n) else { return vec![] };
    let body = op.body.graph();
    let stays = |state: &usize| body.outputs()[1 + state].port == Port::from(body.inputs()[2 + state]);
    (0..op.states()).filter(stays).collect()
}

/// Makes captures of such states, `same`, of the Loop `n`, which another node replaces.
///
/// # Errors
/// What inference raises.
pub fn capture(graph: &mut Graph, n: NodeId, same: &[usize]) -> Result<()> {
    let Op::Loop(op) = graph.op(n) else { return Ok(()) };
    let body = op.body.graph();
    let is_same = |output: usize, first: usize| output >= first && same.contains(&(output - first));
    let captures = op.body.captures() + same.len();
    let body = without(body, same)?;
    let op = Op::Loop(Loop { body: Body::new(body, captures) });
    let old = graph.operands(n);
    let kept = old.iter().enumerate().filter(|(slot, _)| !is_same(*slot, 2)).map(|(_, p)| *p);
    let operands: Vec<_> = kept.chain(same.iter().map(|state| old[2 + state])).collect();
    let node = graph.node(n).clone();
    let slots: Vec<usize> = (0..node.outputs.len()).filter(|slot| !is_same(*slot, 0)).collect();
    let mut names = vec![];
    for slot in &slots {
        let name = &node.outputs[*slot].name;
        names.push(if name.is_empty() { String::new() } else { graph.fresh(name) });
    }
    let made = graph.add_node(&node.name, op, &operands, &names.iter().map(|n| &n[..]).collect::<Vec<_>>())?;
    graph.set_remarks(made, node.remarks.as_deref().cloned());
    for (slot, from) in slots.into_iter().enumerate() {
        let (from, to) = (Port { node: n, slot: from }, Port { node: made, slot });
        let known = graph.fact(to).clone().refined(graph.fact(from));
        known.into_iter().for_each(|fact| graph.set_fact(to, fact));
        graph.redirect(from, to, &[]);
        if !graph.value(from).name.is_empty() {
            graph.take_name(from, to);
        }
    }
    for state in same.iter().filter(|state| **state < node.outputs.len()) {
        if let Some(first) = old[2 + state] {
            graph.redirect(Port { node: n, slot: *state }, first, &[]);
        }
    }
    remove_dead(graph, n);
    Ok(())
}

/// `body` with these states as captures.
fn without(body: &Graph, states: &[usize]) -> Result<Graph> {
    let mut inner = body.clone();
    let handed: Vec<NodeId> = states.iter().map(|state| inner.inputs()[2 + state]).collect();
    let outputs = inner.outputs().to_vec();
    inner.remove_outputs();
    for (_, o) in outputs.into_iter().enumerate().filter(|(i, _)| *i == 0 || !states.contains(&(i - 1))) {
        inner.add_output(&o.name, o.port);
    }
    for old in handed {
        let value = inner.value(old.into()).clone();
        let name = inner.fresh(&value.name);
        let new = inner.add_input(&name, value.fact, Op::Input(Input { default: None }))?;
        inner.redirect(old.into(), new.into(), &[]);
        inner.remove_input(old);
    }
    Ok(inner)
}
