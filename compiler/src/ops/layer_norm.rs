//! LayerNormalization and RMSNormalization.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Width},
    tensor::DType,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// Normalises over the axes from `axis` on, then scales and shifts. Inputs: X, scale, bias.
/// Outputs: Y, the mean, and the inverse of the standard deviation.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// The first normalised axis; may count from the end.
    pub axis: i64,
    /// Added to the variance.
    pub epsilon: f32,
    /// The type of the statistics, in which they are computed at least.
    pub stash_type: DType,
    /// Whether the statistics are asked for.
    pub statistics: bool,
}

/// Divides by the root mean square over the axes from `axis` on, then scales. Inputs: X, scale.
#[derive(Debug, Clone, PartialEq)]
pub struct RmsNorm {
    /// The first normalised axis; may count from the end.
    pub axis: i64,
    /// Added to the mean square.
    pub epsilon: f32,
    /// The type in which the root mean square is computed at least.
    pub stash_type: DType,
}

/// The type in which a normalisation computes.
pub(super) fn stash_type(r: &mut Reader) -> Result<DType> {
    match r.opt_dtype("stash_type")?.unwrap_or(DType::F32) {
        t @ (DType::F32 | DType::F64 | DType::F16 | DType::BF16) => Ok(t),
        other => Err(Error::malformed(format!("stash_type {other}"))),
    }
}

/// Axes before the one that is normalised first pass; scale and bias broadcast to X.
fn before(at: Axis, sides: &Sides, axis: i64) -> Flow {
    let rank = sides.inputs.get(0).rank().unwrap_or(0);
    let first = value::axis(axis, rank).unwrap_or(0);
    sides.alike(at, "it normalises over these", |axis| {
        let (Axis::In(_, i) | Axis::Out(_, i)) = axis;
        (i + rank).checked_sub(sides.dims(axis)?.len()).filter(|i| *i < first)
    })
}

fn attrs(axis: i64, epsilon: f32, stash_type: DType) -> Attrs {
    let mut a: Attrs = vec![("axis", axis.into()), ("epsilon", epsilon.into())];
    if stash_type != DType::F32 {
        a.push(("stash_type", (stash_type as i64).into()));
    }
    a
}

impl LayerNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self {
            axis: r.int("axis", -1)?,
            epsilon: r.float("epsilon", 1e-5)?,
            stash_type: stash_type(r)?,
            statistics: r.outputs > 1,
        })
    }
}

impl RmsNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.int("axis", -1)?, epsilon: r.float("epsilon", 1e-5)?, stash_type: stash_type(r)? })
    }
}

impl Operator for LayerNorm {
    fn op_type(&self) -> &str {
        "LayerNormalization"
    }
    fn attrs(&self) -> Attrs {
        attrs(self.axis, self.epsilon, self.stash_type)
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn parameters(&self) -> &'static [usize] {
        &[1, 2]
    }
    fn max_outputs(&self) -> usize {
        if self.statistics { 3 } else { 1 }
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let mut reduced = x.shape(0).clone();
        if let Some(dims) = &mut reduced {
            let axis = value::axis(self.axis, dims.len())?;
            dims[axis..].fill(Dim::Known(1));
        }
        let statistics = Fact::new(Some(self.stash_type), reduced);
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone()), statistics.clone(), statistics])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        before(at, sides, self.axis)
    }
    fn since(&self) -> i64 {
        17
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}

impl Operator for RmsNorm {
    fn op_type(&self) -> &str {
        "RMSNormalization"
    }
    fn attrs(&self) -> Attrs {
        attrs(self.axis, self.epsilon, self.stash_type)
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn parameters(&self) -> &'static [usize] {
        &[1]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            value::axis(self.axis, rank)?;
        }
        Ok(vec![Fact::new(x.get(1).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        before(at, sides, self.axis)
    }
    fn since(&self) -> i64 {
        23
    }

    fn width(&self) -> Width {
        Width::Bounded
    }
}
