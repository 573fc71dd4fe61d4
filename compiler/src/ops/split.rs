//! Split.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    tensor::Tensor,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// Cuts input 0 along one axis into the sizes in input 1, or into equal parts (the last
/// one smaller when they don't divide).
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// The axis; may count from the end.
    pub axis: i64,
    /// The number of outputs.
    pub parts: usize,
    /// Whether the node says the number of parts itself (opset 18).
    pub num_outputs: bool,
}

impl Split {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 13
            && let Some(sizes) = r.opt_ints("split")?
        {
            r.lift(1, Tensor::i64s(&sizes));
        }
        let n = r.opt_int("num_outputs")?;
        if n.is_some_and(|n| n != r.outputs as i64) {
            return Err(Error::malformed(format!("num_outputs is not the number of outputs, {}", r.outputs)));
        }
        Ok(Self { axis: r.int("axis", 0)?, parts: r.outputs, num_outputs: n.is_some() })
    }

    /// The sizes of the parts of an axis of `size`.
    ///
    /// # Errors
    /// Malformed when the given sizes don't fill the axis.
    pub fn sizes(&self, given: Option<&[i64]>, size: i64) -> Result<Vec<i64>> {
        let parts = self.parts as i64;
        match given {
            Some(s)
                if s.len() == self.parts
                    && s.iter().all(|v| *v >= 0)
                    && s.iter().try_fold(0i64, |n, v| n.checked_add(*v)) == Some(size) =>
            {
                Ok(s.to_vec())
            }
            Some(s) => Err(Error::malformed(format!("parts {s:?} do not fill an axis of {size}"))),
            None => {
                let each = size.saturating_add(parts - 1) / parts.max(1);
                Ok((0..parts).map(|i| each.min(size.saturating_sub(i.saturating_mul(each))).max(0)).collect())
            }
        }
    }

    /// The sizes of the parts along `axis`, if they are known.
    fn known(&self, x: &Inputs, axis: usize) -> Result<Option<Vec<i64>>> {
        match (x.dims(0).and_then(|data| data[axis].known()), x.opt(1), x.ints(1)) {
            (Some(n), None, _) => self.sizes(None, n).map(Some),
            (Some(n), Some(_), Some(given)) => self.sizes(Some(&given), n).map(Some),
            _ => Ok(None),
        }
    }
}

impl Operator for Split {
    fn op_type(&self) -> &str {
        "Split"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("axis", self.axis.into())];
        if self.num_outputs {
            a.push(("num_outputs", (self.parts as i64).into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=2
    }

    fn max_outputs(&self) -> usize {
        self.parts
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None); self.parts]) };
        let axis = value::axis(self.axis, data.len())?;
        let sizes = self.known(x, axis)?;
        let elems = x.get(0).elems.as_ref().filter(|_| data.len() == 1);
        let mut start = 0;
        Ok((0..self.parts)
            .map(|i| {
                let mut shape = data.to_vec();
                shape[axis] = sizes.as_ref().map_or(Dim::Unknown, |s| Dim::Known(s[i]));
                let mut fact = Fact::new(dtype, Some(shape));
                if let (Some(elems), Some(sizes)) = (elems, &sizes) {
                    let end = start + sizes[i] as usize;
                    fact.elems = elems.get(start..end).map(<[Dim]>::to_vec);
                    start = end;
                }
                fact
            })
            .collect())
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let Some(axis) = sides.inputs.get(0).rank().and_then(|rank| value::axis(self.axis, rank).ok()) else {
            return Flow::closed(UNKNOWN);
        };
        if !matches!(at, Axis::In(0, i) | Axis::Out(_, i) if i == axis) {
            return sides.passes(at, "", |_| false);
        }
        let Ok(Some(sizes)) = self.known(&sides.inputs, axis) else { return Flow::closed(UNKNOWN) };
        let starts = sizes.iter().scan(0, |start, n| Some(std::mem::replace(start, *start + *n as usize)));
        let parts = starts.enumerate().map(|(slot, start)| (Axis::Out(slot, axis), start));
        sides.labelled(at, parts.chain([(Axis::In(0, axis), 0)]).map(|(axis, start)| (axis, move |i| start + i)))
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let axis = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0))?;
        let Some(n) = kept.count(Axis::In(0, axis)) else { return Ok(ChannelSlice::default()) };
        let sizes = (0..self.parts).map(|slot| kept.size(Axis::Out(slot, axis), sides).map(|n| n as i64));
        let Some(sizes) = sizes.collect::<Option<Vec<_>>>() else { return Ok(ChannelSlice::default()) };
        if sides.inputs.opt(1).is_none() && self.sizes(None, n as i64)? == sizes {
            return Ok(ChannelSlice::default());
        }
        let op = self.num_outputs.then(|| Self { num_outputs: false, ..self.clone() }.into());
        Ok(ChannelSlice { op, operands: vec![(1, Tensor::i64s(&sizes))] })
    }

    fn since(&self) -> i64 {
        // The axis may count from the end from opset 11 on.
        if self.num_outputs { 18 } else { 11 }
    }

    fn lower(&self, opset: i64) -> Option<(usize, &'static str)> {
        (opset < 13).then_some((1, "split"))
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn is_unchanged(&self, _: &Inputs, _: &Fact) -> bool {
        self.parts == 1
    }
}
