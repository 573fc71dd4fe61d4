//! Reductions over axes.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::Result,
    op::{Inputs, Operator, Width},
    tensor::Tensor,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// What a reduction computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReduceKind {
    Mean,
    Sum,
    Max,
    Min,
    Prod,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

/// Reduces over the axes in input 1, or over all when it is absent or empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Reduce {
    /// What is computed.
    pub kind: ReduceKind,
    /// Whether reduced axes stay, with size 1.
    pub keepdims: bool,
    /// Whether no axes means that nothing is reduced.
    pub noop_with_empty_axes: bool,
}

impl Reduce {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let kind = match r.op_type.as_str() {
            "ReduceMean" => ReduceKind::Mean,
            "ReduceSum" => ReduceKind::Sum,
            "ReduceMax" => ReduceKind::Max,
            "ReduceMin" => ReduceKind::Min,
            "ReduceProd" => ReduceKind::Prod,
            "ReduceL1" => ReduceKind::L1,
            "ReduceL2" => ReduceKind::L2,
            "ReduceLogSum" => ReduceKind::LogSum,
            "ReduceLogSumExp" => ReduceKind::LogSumExp,
            _ => ReduceKind::SumSquare,
        };
        if let Some(axes) = r.opt_ints("axes")? {
            r.lift(1, Tensor::i64s(&axes));
        }
        Ok(Self {
            kind,
            keepdims: r.flag("keepdims", true)?,
            noop_with_empty_axes: r.flag("noop_with_empty_axes", false)?,
        })
    }

    /// The opset that made an input of the axes.
    fn axes_are_input(&self) -> i64 {
        if self.kind == ReduceKind::Sum { 13 } else { 18 }
    }

    /// Which axes of an input of `rank` are reduced, given the elements of input 1.
    ///
    /// # Errors
    /// Malformed when an axis is out of range.
    pub fn axes(&self, axes: Option<&[i64]>, rank: usize) -> Result<Vec<usize>> {
        let axes = axes.unwrap_or(&[]);
        if axes.is_empty() && !self.noop_with_empty_axes {
            return Ok((0..rank).collect());
        }
        let mut out = axes.iter().map(|a| value::axis(*a, rank)).collect::<Result<Vec<_>>>()?;
        out.sort_unstable();
        out.dedup();
        Ok(out)
    }
}

impl Operator for Reduce {
    fn op_type(&self) -> &str {
        match self.kind {
            ReduceKind::Mean => "ReduceMean",
            ReduceKind::Sum => "ReduceSum",
            ReduceKind::Max => "ReduceMax",
            ReduceKind::Min => "ReduceMin",
            ReduceKind::Prod => "ReduceProd",
            ReduceKind::L1 => "ReduceL1",
            ReduceKind::L2 => "ReduceL2",
            ReduceKind::LogSum => "ReduceLogSum",
            ReduceKind::LogSumExp => "ReduceLogSumExp",
            ReduceKind::SumSquare => "ReduceSumSquare",
        }
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("keepdims", self.keepdims.into())];
        if self.noop_with_empty_axes {
            a.push(("noop_with_empty_axes", true.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let known = x.opt(1).is_none() || x.ints(1).is_some();
        let data = match (x.dims(0), known) {
            (Some(data), true) => data,
            // Which axes become 1 is open.
            (Some(data), false) if self.keepdims => {
                return Ok(vec![Fact::new(dtype, Some(vec![Dim::Unknown; data.len()]))]);
            }
            _ => return Ok(vec![Fact::new(dtype, None)]),
        };
        let axes = self.axes(x.ints(1).as_deref(), data.len())?;
        let shape = data.iter().enumerate().filter_map(|(i, d)| match (axes.contains(&i), self.keepdims) {
            (false, _) => Some(d.clone()),
            (true, true) => Some(Dim::Known(1)),
            (true, false) => None,
        });
        Ok(vec![Fact::new(dtype, Some(shape.collect()))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let axes = sides.inputs.ints(1);
        match sides.inputs.get(0).rank().map(|rank| self.axes(axes.as_deref(), rank)) {
            Some(Ok(gone)) if axes.is_some() || sides.inputs.opt(1).is_none() => {
                sides.reduces(at, "it reduces over these", &gone, self.keepdims)
            }
            _ => Flow::closed(UNKNOWN),
        }
    }

    fn since(&self) -> i64 {
        if self.noop_with_empty_axes { self.axes_are_input() } else { 1 }
    }

    fn lower(&self, opset: i64) -> Option<(usize, &'static str)> {
        (opset < self.axes_are_input()).then_some((1, "axes"))
    }

    fn width(&self) -> Width {
        let bounded = matches!(self.kind, ReduceKind::Mean | ReduceKind::Max | ReduceKind::Min);
        if bounded { Width::Bounded } else { Width::Wide }
    }

    /// The mean of no elements is undefined; ONNX Runtime makes it 0.
    fn neutral_element(&self) -> Option<f32> {
        Some(match self.kind {
            ReduceKind::Sum | ReduceKind::L1 | ReduceKind::L2 | ReduceKind::SumSquare | ReduceKind::Mean => 0.0,
            ReduceKind::Prod => 1.0,
            ReduceKind::Max | ReduceKind::LogSum | ReduceKind::LogSumExp => f32::NEG_INFINITY,
            ReduceKind::Min => f32::INFINITY,
        })
    }
}
