//! Taps that are zero in all filters, but for every second or third, are left to dilation.

use super::succeed;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    ops::window::AutoPad,
    pass::Context,
    rewrite::{Edit, Ref, Rule, Verdict},
    tensor::{DType, Tensor},
};

/// A Conv of 5 taps of which the second and the fourth are zero is one of 3 taps, dilated: how converters from TensorFlow write
/// a dilated convolution between SpaceToBatch and BatchToSpace.
pub(super) struct DilatedTaps;

impl Rule for DilatedTaps {
    fn name(&self) -> &'static str {
        "dilated-taps"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Conv"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(dilated(graph, node).unwrap_or(Verdict::No))
    }
}

fn dilated(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let Op::Conv(conv) = graph.op(node) else { return None };
    let old = graph.operand(node, 1)?;
    let weight = graph.constant(old).filter(|t| t.dtype() == DType::F32 && t.shape().len() > 2)?;
    let (filters, taps) = weight.shape().split_at(2);
    // The padding of the others follows from the number of taps.
    let told = matches!(conv.window.auto_pad, AutoPad::NotSet | AutoPad::Valid);
    if !told || taps.contains(&0) || taps.iter().all(|n| *n < 3) {
        return None;
    }
    let values = weight.as_f32()?;
    let steps = steps(&values, taps)?;
    let mut op = conv.clone();
    let left: Vec<usize> = taps.iter().zip(&steps).map(|(n, step)| (n - 1) / step + 1).collect();
    op.kernel = left.iter().map(|n| *n as i64).collect();
    let far = |(i, step): (usize, &usize)| {
        let taps = conv.window.dilation(i).checked_mul(*step as i64)?;
        i32::try_from(taps).is_ok().then_some(taps)
    };
    // Runtimes count taps in 32 bits.
    op.window.dilations = steps.iter().enumerate().map(far).collect::<Option<_>>()?;
    let per_filter: usize = taps.iter().product();
    let is_left = |tap: usize| place(tap, taps).zip(&steps).all(|(at, step)| at.is_multiple_of(*step));
    let kept: Vec<usize> = (0..per_filter).filter(|tap| is_left(*tap)).collect();
    let data: Vec<f32> = values.chunks_exact(per_filter).flat_map(|f| kept.iter().map(|tap| f[*tap])).collect();
    let mut edit = Edit::new();
    let weight = succeed(graph, &mut edit, old, Tensor::f32(&[filters, &left].concat(), &data));
    let mut operands: Vec<Option<Ref>> = graph.operands(node).into_iter().map(|p| p.map(Into::into)).collect();
    operands[1] = Some(weight);
    let new = edit.node(&graph.node(node).name, op, &operands);
    edit.replace(node.into(), new);
    Some(Verdict::Apply(edit))
}

/// Where a tap lies along each axis.
fn place(tap: usize, taps: &[usize]) -> impl Iterator<Item = usize> {
    (0..taps.len()).map(move |axis| tap / taps[axis + 1..].iter().product::<usize>() % taps[axis])
}

/// How far taps that are not zero are apart along each axis, the first and the last tap counted with them; none if they are next
/// to each other along all axes.
fn steps(values: &[f32], taps: &[usize]) -> Option<Vec<usize>> {
    let mut steps: Vec<usize> = taps.iter().map(|n| n - 1).collect();
    let per_filter: usize = taps.iter().product();
    for (i, _) in values.iter().enumerate().filter(|(_, v)| **v != 0.0) {
        for (step, at) in steps.iter_mut().zip(place(i % per_filter, taps)) {
            *step = common_divisor(*step, at);
        }
        if steps.iter().all(|step| *step <= 1) {
            return None;
        }
    }
    // An axis of one tap has no steps.
    Some(steps.into_iter().map(|step| step.max(1)).collect())
}

/// The greatest number that divides both; 0 is divided by all.
fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
