//! Pad.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::Tensor,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// What fills the border.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum PadMode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

/// Adds a border; negative pads cut. Inputs: data, pads (begins, then ends), value, axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Pad {
    /// What fills the border.
    pub mode: PadMode,
}

impl Pad {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let mode = match r.string("mode", "constant")?.as_str() {
            "constant" => PadMode::Constant,
            "reflect" => PadMode::Reflect,
            "edge" => PadMode::Edge,
            "wrap" => PadMode::Wrap,
            other => return Err(Error::unsupported(format!("Pad with mode={other}"))),
        };
        if r.opset < 11 {
            let pads = r.opt_ints("pads")?.ok_or_else(|| Error::malformed("attribute `pads` is missing"))?;
            r.lift(1, Tensor::i64s(&pads));
            let value = r.float("value", 0.0)?;
            r.lift_scalar(2, value);
        }
        Ok(Self { mode })
    }

    /// (begin, end) for every axis of an input of `rank`.
    ///
    /// # Errors
    /// Malformed when the lists don't fit.
    pub fn resolve(rank: usize, pads: &[i64], axes: Option<&[i64]>) -> Result<Vec<(i64, i64)>> {
        let n = axes.map_or(rank, <[i64]>::len);
        if pads.len() != 2 * n {
            return Err(Error::malformed(format!("{} pads for {n} axes", pads.len())));
        }
        let mut out = vec![(0, 0); rank];
        for i in 0..n {
            let axis = value::axis(axes.map_or(i as i64, |a| a[i]), rank)?;
            out[axis] = (pads[i], pads[n + i]);
        }
        Ok(out)
    }
}

impl Operator for Pad {
    fn op_type(&self) -> &str {
        "Pad"
    }

    fn attrs(&self) -> Attrs {
        match self.mode {
            PadMode::Constant => vec![],
            PadMode::Reflect => vec![("mode", "reflect".into())],
            PadMode::Edge => vec![("mode", "edge".into())],
            PadMode::Wrap => vec![("mode", "wrap".into())],
        }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        let axes = x.opt(3).map(|f| f.known_elems());
        let (Some(pads), false) = (x.ints(1), axes == Some(None)) else {
            return Ok(vec![Fact::new(dtype, Some(vec![Dim::Unknown; data.len()]))]);
        };
        let pads = Self::resolve(data.len(), &pads, axes.flatten().as_deref())?;
        let mut shape = vec![];
        for (d, (b, e)) in data.iter().zip(pads) {
            let padded = match (b, e) {
                (0, 0) => d.clone(),
                _ => d.zip(&Dim::Known(0), |n, _| n.checked_add(b)?.checked_add(e)),
            };
            if padded.known().is_some_and(|n| n < 0) {
                return Err(Error::malformed(format!("pads {b} and {e} cut more than an axis of {d} has")));
            }
            shape.push(padded);
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let Some(rank) = sides.inputs.get(0).rank() else { return Flow::closed(UNKNOWN) };
        let axes = sides.inputs.ints(3);
        let known = axes.is_some() || sides.inputs.opt(3).is_none();
        let pads = sides.inputs.ints(1).filter(|_| known).map(|pads| Self::resolve(rank, &pads, axes.as_deref()));
        let Some(Ok(pads)) = pads else { return Flow::closed(UNKNOWN) };
        sides.passes(at, "it pads these", |axis| pads[axis] != (0, 0))
    }

    fn since(&self) -> i64 {
        if self.mode == PadMode::Wrap { 19 } else { 11 }
    }

    fn inflates(&self) -> bool {
        true
    }
}
