//! A Concat of reshaped values, as stacking is written, is a reshaped Concat.

use super::{
    layout::{reshapes, same_count},
    reshape::reshape,
};
use crate::fold::reshape_target;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::concat::Concat,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    value::{self, Dim},
};

/// `Concat(Unsqueeze(a), Unsqueeze(b))` is `Reshape(Concat(a, b))`, where `a` and `b` have an axis
/// before which there is as much as before the joined one.
pub(super) struct ReshapedConcat;

impl Rule for ReshapedConcat {
    fn name(&self) -> &'static str {
        "reshaped-concat"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Concat"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(fuse(graph, node).map_or(Verdict::No, Verdict::Apply))
    }
}

fn fuse(graph: &Graph, node: NodeId) -> Option<Edit> {
    let Op::Concat(op) = graph.op(node) else { return None };
    let parts: Vec<Port> = graph.operands(node).into_iter().collect::<Option<_>>()?;
    // Each that goes counts, and one comes.
    let gone = parts.iter().filter(|p| graph.only_use(**p).is_some()).count();
    if gone < 2 || !parts.iter().all(|p| reshapes(graph, p.node)) {
        return None;
    }
    let sources: Vec<Port> = parts.iter().map(|p| graph.operand(p.node, 0)).collect::<Option<_>>()?;
    let shapes: Vec<&[Dim]> = sources.iter().map(|p| graph.fact(*p).dims()).collect::<Option<_>>()?;
    let (first, part) = (*shapes.first()?, graph.fact(*parts.first()?).dims()?);
    let before = &part[..value::axis(op.axis, part.len()).ok()?];
    let axis = (0..first.len()).find(|axis| {
        let others = |dims: &[Dim]| dims.iter().enumerate().all(|(i, d)| i == *axis || d.same(&first[i]));
        same_count(before, &first[..*axis]) && shapes.iter().all(|s| s.len() == first.len() && others(s))
    })?;
    let mut joined = first.to_vec();
    joined[axis] = shapes.iter().fold(Dim::Known(0), |n, s| n.zip(&s[axis], i64::checked_add));
    let target = reshape_target(&joined, graph.fact(node.into()).dims()?)?;
    let mut edit = Edit::new();
    let name = &graph.node(node).name;
    let operands: Vec<_> = sources.into_iter().map(|p| Some(p.into())).collect();
    let concat = edit.node(name, Concat { axis: axis as i64 }, &operands);
    let reshaped = reshape(&mut edit, "", concat, &target);
    edit.replace(node.into(), reshaped);
    Some(edit)
}
