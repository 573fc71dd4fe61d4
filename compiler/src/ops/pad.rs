//! Pad.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
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

impl Pad {
    /// (begin, end) for every axis, if known.
    fn border(sides: &Sides) -> Option<Vec<(i64, i64)>> {
        let axes = sides.inputs.ints(3);
        let known = axes.is_some() || sides.inputs.opt(3).is_none();
        let pads = sides.inputs.ints(1).filter(|_| known)?;
        Self::resolve(sides.inputs.get(0).rank()?, &pads, axes.as_deref()).ok()
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
        let Some(pads) = Self::border(sides) else { return Flow::closed(UNKNOWN) };
        if let Axis::In(0, i) | Axis::Out(0, i) = at
            && let Some((before @ 0.., 0..)) = pads.get(i).filter(|p| self.mode == PadMode::Constant && **p != (0, 0))
        {
            // What is added goes and stays on its own.
            let begins = |axis| if axis == Axis::In(0, i) { *before as usize } else { 0 };
            return sides.labelled(at, [Axis::In(0, i), Axis::Out(0, i)].map(|axis| (axis, move |j| j + begins(axis))));
        }
        sides.passes(at, "it pads these", |axis| pads[axis] != (0, 0))
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let (Some(border), Some(mut pads)) = (Self::border(sides), sides.inputs.ints(1)) else {
            return Ok(ChannelSlice::default());
        };
        let axes = sides.inputs.ints(3).unwrap_or_else(|| (0..border.len() as i64).collect());
        for (at, axis) in axes.iter().enumerate() {
            let i = value::axis(*axis, border.len())?;
            if let (Some(left), Some(n)) = (kept.get(Axis::Out(0, i)), sides.size(Axis::In(0, i))) {
                let before = border[i].0;
                let inside = before..before + n as i64;
                pads[at] = left.iter().filter(|j| (**j as i64) < inside.start).count() as i64;
                pads[axes.len() + at] = left.iter().filter(|j| (**j as i64) >= inside.end).count() as i64;
            }
        }
        Ok(ChannelSlice::operands([sides.rewritten(1, &pads)]))
    }

    fn since(&self) -> i64 {
        if self.mode == PadMode::Wrap { 19 } else { 11 }
    }

    fn inflates(&self) -> bool {
        true
    }

    fn is_unchanged(&self, x: &Inputs, _: &Fact) -> bool {
        x.ints(1).is_some_and(|pads| pads.into_iter().all(|n| n == 0))
    }
}
