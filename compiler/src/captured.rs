//! What graphs inside a graph read from around them.

use crate::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::control::Body,
    rewrite::remove_dead,
    tensor::Tensor,
};

/// `graph` with constants from around inside the graphs that read them: these then know their weights. `None` where none reads any. All
/// nodes stay, with their ids; an input for a constant stays one that nobody reads.
///
/// # Errors
/// What inference raises.
pub fn moved_in(graph: &Graph) -> Result<Option<Graph>> {
    let mut made: Option<Graph> = None;
    for n in graph.operators() {
        let bodies = graph.op(n).bodies();
        let Some(captures) = bodies.first().map(|b| b.captures()) else { continue };
        let operands = graph.operands(n);
        let constant = |port: &Option<Port>| port.and_then(|port| graph.constant(port));
        let constants: Vec<Option<&Tensor>> = operands[operands.len() - captures..].iter().map(constant).collect();
        let of = |body: &&Body| inside(body, &constants);
        let changed: Vec<Option<Graph>> = bodies.iter().map(of).collect::<Result<_>>()?;
        if changed.iter().all(Option::is_none) {
            continue;
        }
        let old = bodies.iter().map(|b| b.graph());
        let bodies =
            old.zip(changed).map(|(old, new)| Body::new(new.unwrap_or_else(|| old.clone()), captures)).collect();
        let mut op: Op = graph.op(n).clone();
        op.set_bodies(bodies);
        made.get_or_insert_with(|| graph.clone()).set_op(n, op);
    }
    Ok(made)
}

/// The graph of a body whose last inputs are `constants`, where that changes it.
fn inside(body: &Body, constants: &[Option<&Tensor>]) -> Result<Option<Graph>> {
    let mut made: Option<Graph> = None;
    let inputs: &[NodeId] = &body.graph().inputs()[body.formals()..];
    for (input, tensor) in inputs.iter().zip(constants) {
        let Some(tensor) = tensor.filter(|_| body.graph().is_read((*input).into())) else { continue };
        let inner = made.get_or_insert_with(|| body.graph().clone());
        let constant = inner.add_constant("", tensor.clone());
        inner.redirect((*input).into(), constant.into(), &[]);
    }
    if let Some(inner) = &mut made {
        inner.infer_all()?;
    }
    let deeper = moved_in(made.as_ref().unwrap_or_else(|| body.graph()))?;
    Ok(deeper.or(made))
}

/// Takes captures that no body of `n` reads any more from it; says of each capture whether it stayed.
pub fn drop_unread(graph: &mut Graph, n: NodeId) -> Vec<bool> {
    let bodies = graph.op(n).bodies();
    let captures = bodies.first().map_or(0, |b| b.captures());
    let is_read = |body: &&Body, i: usize| body.graph().is_read(body.graph().inputs()[body.formals() + i].into());
    let kept: Vec<bool> = (0..captures).map(|i| bodies.iter().any(|body| is_read(body, i))).collect();
    if kept.iter().all(|k| *k) {
        return kept;
    }
    let mut inner: Vec<Graph> = bodies.into_iter().map(|b| b.graph().clone()).collect();
    let inputs = |g: &Graph| g.inputs()[g.inputs().len() - captures..].to_vec();
    for g in &mut inner {
        inputs(g).iter().zip(&kept).filter(|(_, kept)| !**kept).for_each(|(input, _)| g.remove_input(*input));
    }
    let count = kept.iter().filter(|k| **k).count();
    let mut op = graph.op(n).clone();
    op.set_bodies(inner.into_iter().map(|g| Body::new(g, count)).collect());
    graph.set_op(n, op);
    let operands = graph.operands(n);
    let own = operands.len() - captures;
    let left = operands.iter().enumerate().filter(|(slot, _)| *slot < own || kept[*slot - own]).map(|(_, p)| *p);
    graph.set_operands(n, &left.collect::<Vec<_>>());
    operands[own..].iter().flatten().for_each(|p| drop(remove_dead(graph, p.node)));
    kept
}
