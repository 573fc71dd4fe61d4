//! Reductions over axes that lie next to each other, and the greatest of each image.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::View,
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
    op::Op,
    ops::{pool::PoolKind, reduce::ReduceKind},
    tensor::DType,
};
use compress_kernels::{self as kernels, ReduceOp};
use std::ops::Range;

/// The float value `port`, where it is a reduction of successive axes.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let x = g.operand(port.node, 0)?;
    let rank = s.rank(x)?;
    if !s.has(port.node) || g.fact(x).dtype != Some(DType::F32) {
        return None;
    }
    let (kind, axes) = match g.op(port.node) {
        Op::GlobalPool(op) if op.kind == PoolKind::Max => (ReduceOp::Max, (2..rank).collect()),
        Op::Reduce(op) => {
            let axes = match g.operand(port.node, 1) {
                Some(p) => Some(g.constant(p)?.as_i64()?),
                None => None,
            };
            (kind(op.kind)?, op.axes(axes.as_deref(), rank).ok()?)
        }
        _ => return None,
    };
    next_to_each_other(&axes)?;
    Some(Lowering::of(vec![Want::float(x)], Reduced { kind, axes }))
}

fn kind(kind: ReduceKind) -> Option<ReduceOp> {
    Some(match kind {
        ReduceKind::Sum => ReduceOp::Sum,
        ReduceKind::Mean => ReduceOp::Mean,
        ReduceKind::Max => ReduceOp::Max,
        ReduceKind::Min => ReduceOp::Min,
        ReduceKind::L2 => ReduceOp::Norm,
        ReduceKind::SumSquare => ReduceOp::Squares,
        _ => return None,
    })
}

/// The range that some axes are, if they are one.
fn next_to_each_other(axes: &[usize]) -> Option<Range<usize>> {
    let first = *axes.first()?;
    axes.iter().copied().eq(first..first + axes.len()).then_some(first..first + axes.len())
}

struct Reduced {
    kind: ReduceOp,
    /// In order.
    axes: Vec<usize>,
}

impl Lowered for Reduced {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        !self.axes.contains(&0) && inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let dims = p.dims(inputs[0]).to_vec();
        // Where it lies, if its axes are next to each other there; what is left then lies as ONNX has it.
        let place = |layout: Layout| {
            let mut places: Vec<usize> = self.axes.iter().map(|axis| layout.place_of(*axis, dims.len())).collect();
            places.sort_unstable();
            next_to_each_other(&places)
        };
        let whole = self.axes.iter().copied().eq(2..dims.len()) || self.axes == [1];
        let has = p.layout(inputs[0]);
        let layout = if whole && place(has).is_some() { has } else { Layout::Plain };
        let at = place(layout).ok_or_else(|| Error::bug("axes apart"))?;
        let storage = layout.storage(&dims);
        let (rows, along, width): (usize, usize, usize) = (
            storage[..at.start].iter().product(),
            storage[at.clone()].iter().product(),
            storage[at.end..].iter().product(),
        );
        let x = p.read(inputs[0], layout);
        let x = p.gathered(inputs[0], x);
        let made = p.fresh(output, Layout::Plain);
        let y = View { rows, width, stride: width, ..made };
        let (isa, kind) = (p.isa(), self.kind);
        p.step("reduce", output, &[x], y, 0, cost::bytes(4 * x.len()), move |o| {
            kernels::reduce(isa, kind, o.slice(0), along, o.out(), o.parts);
        });
        Ok(())
    }
}
