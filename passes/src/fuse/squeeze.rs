//! Two operators that insert axes are one; so are two that drop axes; one of each on the
//! same axes is none.

use super::{ints, shared, succeed};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::{binary::Binary, squeeze::Unsqueeze},
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

/// `Squeeze(conv(x)) + bias` is `Squeeze(conv(x) + bias)`, whose bias the convolution takes: convolutions along one axis are often
/// written as such of two.
pub(super) struct BiasPastSqueeze;

impl Rule for BiasPastSqueeze {
    fn name(&self) -> &'static str {
        "bias-past-squeeze"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Add"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let operands = graph.operands(node);
        let [Some(a), Some(b)] = operands[..] else { return Ok(Verdict::No) };
        let (squeezed, bias) = if graph.constant(b).is_some() { (a, b) } else { (b, a) };
        let (Op::Squeeze(_), Some(tensor)) = (graph.op(squeezed.node), graph.constant(bias)) else {
            return Ok(Verdict::No);
        };
        let (Some((dropped, small)), Some(x)) = (axes(graph, squeezed.node)?, graph.operand(squeezed.node, 0)) else {
            return Ok(Verdict::No);
        };
        let takes_bias = matches!(graph.op(x.node), Op::Conv(_)) && graph.only_use(x).is_some();
        if !takes_bias || tensor.shape().len() > small || graph.fact(node.into()).rank() != Some(small) {
            return Ok(Verdict::No);
        }
        let mut shape = vec![1; small - tensor.shape().len()];
        shape.extend(tensor.shape());
        dropped.iter().for_each(|axis| shape.insert(*axis, 1));
        if shape.iter().enumerate().any(|(axis, size)| axis != 1 && *size != 1) {
            return Ok(Verdict::No);
        }
        if graph.only_use(squeezed).is_none() {
            return Ok(shared(graph, squeezed));
        }
        let mut edit = Edit::new();
        let shaped = succeed(graph, &mut edit, bias, tensor.clone().reshaped(shape)?);
        let sum = edit.node(&graph.node(node).name, Binary::Add, &[Some(x.into()), Some(shaped)]);
        let list = graph.operand(squeezed.node, 1).map(Into::into);
        let moved = edit.node(&graph.node(squeezed.node).name, graph.op(squeezed.node).clone(), &[Some(sum), list]);
        edit.replace(node.into(), moved);
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
