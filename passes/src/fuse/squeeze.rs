//! Two operators that insert axes are one; so are two that drop axes; one of each on the
//! same axes is none.

use super::{ints, shared, succeed};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::squeeze::Unsqueeze,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::Tensor,
    value,
};

/// `Unsqueeze(Unsqueeze(x))` and `Squeeze(Squeeze(x))` are one operator,
/// `Squeeze(Unsqueeze(x))` and the reverse on the same axes are `x`.
pub(super) struct SqueezePair;

impl Rule for SqueezePair {
    fn name(&self) -> &'static str {
        "squeeze-pair"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Squeeze", "Unsqueeze"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(middle) = graph.operand(node, 0) else { return Ok(Verdict::No) };
        let (Some((inner, small)), Some((outer, _))) = (axes(graph, middle.node)?, axes(graph, node)?) else {
            return Ok(Verdict::No);
        };
        let Some(x) = graph.operand(middle.node, 0) else { return Ok(Verdict::No) };
        // Every axis of `inner` and `outer`, counted in the larger shape.
        let merged = match (graph.op(middle.node), graph.op(node)) {
            (Op::Unsqueeze(_), Op::Unsqueeze(_)) => merge(&outer, &inner, small + inner.len() + outer.len()),
            (Op::Squeeze(_), Op::Squeeze(_)) => merge(&inner, &outer, small + inner.len()),
            _ if inner == outer => return Ok(Verdict::Apply(Edit::swap(node.into(), x))),
            _ => return Ok(Verdict::No),
        };
        if graph.only_use(middle).is_none() {
            return Ok(shared(graph, middle));
        }
        let Some(old) = graph.operand(node, 1) else { return Ok(Verdict::No) };
        let mut edit = Edit::new();
        let merged = succeed(graph, &mut edit, old, Tensor::i64s(&merged));
        let fused = edit.node(&graph.node(node).name, graph.op(node).clone(), &[Some(x.into()), Some(merged)]);
        edit.replace(node.into(), fused);
        Ok(Verdict::Apply(edit))
    }
}

/// The axes that a Squeeze or Unsqueeze drops or inserts, ascending, counted in the larger
/// shape, and the rank of the smaller one. `None` when they are not known, or `node` is neither.
fn axes(graph: &Graph, node: NodeId) -> Result<Option<(Vec<usize>, usize)>> {
    let (Some(x), Some(list)) = (graph.operand(node, 0), graph.operand(node, 1)) else { return Ok(None) };
    let (Some(rank), Some(list)) = (graph.fact(x).rank(), ints(graph, list)) else { return Ok(None) };
    Ok(match graph.op(node) {
        Op::Unsqueeze(_) => Some((Unsqueeze::axes(&list, rank)?, rank)),
        Op::Squeeze(_) => {
            let mut axes = list.iter().map(|a| value::axis(*a, rank)).collect::<Result<Vec<_>>>()?;
            axes.sort_unstable();
            axes.dedup();
            let small = rank - axes.len();
            Some((axes, small))
        }
        _ => None,
    })
}

/// `large`, and with it `small`, which counts only the axes that are not in `large`.
fn merge(large: &[usize], small: &[usize], rank: usize) -> Vec<i64> {
    let between: Vec<usize> = (0..rank).filter(|a| !large.contains(a)).collect();
    let mut all: Vec<i64> = large.iter().copied().chain(small.iter().map(|a| between[*a])).map(|a| a as i64).collect();
    all.sort_unstable();
    all
}
