//! Slices along different axes are one.

use super::{ints, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::Tensor,
    value,
};

/// `Slice(Slice(x))` is one Slice if no axis is cut twice.
pub(super) struct SlicePair;

impl Rule for SlicePair {
    fn name(&self) -> &'static str {
        "slice-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Slice"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let Some(x) = graph.operand(middle.node, 0) else { return Ok(Verdict::No) };
        let (Some(inner), Some(outer)) = (cuts(graph, middle.node)?, cuts(graph, node)?) else {
            return Ok(Verdict::No);
        };
        if outer.iter().any(|o| inner.iter().any(|i| i.axis == o.axis)) {
            return Ok(Verdict::No);
        }
        if graph.only_use(middle).is_none() {
            return Ok(shared(graph, middle));
        }
        let mut edit = Edit::new();
        let mut operands = vec![Some(x.into())];
        let list = |of: fn(&Cut) -> i64| Tensor::i64s(&inner.iter().chain(&outer).map(of).collect::<Vec<_>>());
        for (name, tensor) in [
            ("starts", list(|c| c.start)),
            ("ends", list(|c| c.end)),
            ("axes", list(|c| c.axis)),
            ("steps", list(|c| c.step)),
        ] {
            operands.push(Some(edit.constant(name, tensor)));
        }
        let fused = edit.node(&graph.node(node).name, graph.op(node).clone(), &operands);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

struct Cut {
    start: i64,
    end: i64,
    axis: i64,
    step: i64,
}

/// What a Slice cuts from each axis, if that is constant. Starts and ends may count from the
/// end of their axis, whose size a cut along other axes leaves alone.
fn cuts(graph: &Graph, node: NodeId) -> Result<Option<Vec<Cut>>> {
    let operands = graph.operands(node);
    let list = |slot: usize| operands.get(slot).copied().flatten().map(|p| ints(graph, p));
    let (Op::Slice(_), Some(Some(starts)), Some(Some(ends))) = (graph.op(node), list(1), list(2)) else {
        return Ok(None);
    };
    let n = starts.len();
    let axes = list(3).unwrap_or_else(|| Some((0..n as i64).collect()));
    let steps = list(4).unwrap_or_else(|| Some(vec![1; n]));
    let rank = operands[0].and_then(|p| graph.fact(p).rank());
    let (Some(axes), Some(steps), Some(rank)) = (axes, steps, rank) else { return Ok(None) };
    let cuts = starts
        .into_iter()
        .zip(ends)
        .zip(axes)
        .zip(steps)
        .map(|(((start, end), axis), step)| Ok(Cut { start, end, axis: value::axis(axis, rank)? as i64, step }));
    cuts.collect::<Result<_>>().map(Some)
}
