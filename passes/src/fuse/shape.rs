//! A part of a shape is a Shape with limits.

use super::{ints, layout::freed, shared, slice::plain_range};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::shape::Shape,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
};

/// A Gather of adjacent entries, or a Slice, of `Shape(x)` is a Shape from one axis to another.
pub(super) struct ShapePart {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

impl Rule for ShapePart {
    fn name(&self) -> &'static str {
        "shape-part"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Gather", "Slice"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let (Op::Shape(Shape { start: 0, end: None }), Some(x)) =
            (graph.op(middle.node), graph.operand(middle.node, 0))
        else {
            return Ok(Verdict::No);
        };
        let Some((start, end)) = range(graph, node).filter(|_| self.newest >= 15) else { return Ok(Verdict::No) };
        if !freed(graph, middle, |u| u.slot == 0 && range(graph, u.node).is_some()) {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let part = edit.node(&graph.node(node).name, Shape { start, end }, &[Some(x.into())]);
        edit.replace(node.into(), part);
        Ok(Verdict::Apply(edit))
    }
}

/// The entries that `node` takes of a vector, from one to before another.
fn range(graph: &Graph, node: NodeId) -> Option<(i64, Option<i64>)> {
    match graph.op(node) {
        Op::Gather(_) => {
            let port = graph.operand(node, 1)?;
            // A single number would give a single number, which a Shape never is.
            let list = ints(graph, port).filter(|_| graph.fact(port).rank() == Some(1))?;
            let (first, last) = (*list.first()?, *list.last()?);
            let adjacent = list.windows(2).all(|w| w[0].checked_add(1) == Some(w[1]));
            // From the last entry to the first is not a range.
            (adjacent && (first < 0) == (last < 0)).then(|| (first, last.checked_add(1).filter(|e| *e != 0)))
        }
        _ => plain_range(graph, node),
    }
}
