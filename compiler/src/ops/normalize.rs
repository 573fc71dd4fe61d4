//! Normalisations without learnt parameters: LpNormalization, MeanVarianceNormalization.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{self, Fact},
};

/// `x / norm(x)` along an axis; zero where the norm is.
#[derive(Debug, Clone, PartialEq)]
pub struct LpNorm {
    /// The axis; may count from the end.
    pub axis: i64,
    /// 1 or 2.
    pub p: i64,
}

impl LpNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let p = r.int("p", 2)?;
        if !(1..=2).contains(&p) {
            return Err(Error::malformed(format!("LpNormalization with p={p}")));
        }
        Ok(Self { axis: r.int("axis", -1)?, p })
    }
}

impl Operator for LpNorm {
    fn op_type(&self) -> &str {
        "LpNormalization"
    }
    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into()), ("p", self.p.into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            value::axis(self.axis, rank)?;
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let over = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0)).ok();
        sides.passes(at, "it normalises over these", |axis| over == Some(axis))
    }
}

/// `(x - mean) / deviation` over some axes.
#[derive(Debug, Clone, PartialEq)]
pub struct MeanVarianceNorm {
    /// The axes; may count from the end.
    pub axes: Vec<i64>,
}

impl MeanVarianceNorm {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axes: r.opt_ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]) })
    }

    /// The axes counted from the front, ascending.
    ///
    /// # Errors
    /// Malformed when one is out of range.
    pub fn axes(&self, rank: usize) -> Result<Vec<usize>> {
        let mut axes = self.axes.iter().map(|a| value::axis(*a, rank)).collect::<Result<Vec<_>>>()?;
        axes.sort_unstable();
        axes.dedup();
        Ok(axes)
    }
}

impl Operator for MeanVarianceNorm {
    fn op_type(&self) -> &str {
        "MeanVarianceNormalization"
    }
    fn attrs(&self) -> Attrs {
        vec![("axes", self.axes.as_slice().into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            self.axes(rank)?;
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let over = self.axes(sides.inputs.get(0).rank().unwrap_or(0)).unwrap_or_default();
        sides.passes(at, "it normalises over these", |axis| over.contains(&axis))
    }
    fn since(&self) -> i64 {
        9
    }
}
