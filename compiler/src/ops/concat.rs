//! Concat.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    value::{self, Dim, Fact, MAX_ELEMS},
};
use std::ops::RangeInclusive;

/// Joins its inputs along one axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Concat {
    /// The axis; may count from the end.
    pub axis: i64,
}

impl Concat {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let axis = r.opt_int("axis")?.ok_or_else(|| Error::malformed("attribute `axis` is missing"))?;
        Ok(Self { axis })
    }
}

impl Operator for Concat {
    fn op_type(&self) -> &str {
        "Concat"
    }

    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into())]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.present().find_map(|f| f.dtype);
        let Some(first) = x.present().find_map(|f| f.dims()) else {
            return Ok(vec![Fact::new(dtype, None)]);
        };
        let axis = value::axis(self.axis, first.len())?;
        let mut shape = first.to_vec();
        shape[axis] = Dim::Known(0);
        for f in x.present() {
            let Some(dims) = f.dims() else {
                shape[axis] = Dim::Unknown;
                continue;
            };
            if dims.len() != shape.len() {
                return Err(Error::malformed(format!("inputs of rank {} and {}", shape.len(), dims.len())));
            }
            for (i, (s, d)) in shape.iter_mut().zip(dims).enumerate() {
                if i == axis {
                    *s = if *s == Dim::Known(0) { d.clone() } else { s.zip(d, i64::checked_add) };
                } else if let (Some(a), Some(b)) = (s.known(), d.known())
                    && a != b
                {
                    return Err(Error::malformed(format!("axis {i} has sizes {a} and {b}")));
                } else if s.known().is_none() && *d != Dim::Unknown {
                    *s = d.clone();
                }
            }
        }
        let mut fact = Fact::new(dtype, Some(shape));
        if fact.rank() == Some(1) {
            let parts: Option<Vec<&Vec<Dim>>> = x.present().map(|f| f.elems.as_ref()).collect();
            fact.elems =
                parts.map(|p| p.into_iter().flatten().cloned().collect::<Vec<_>>()).filter(|e| e.len() <= MAX_ELEMS);
        }
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let Some(axis) = sides.dims(Axis::Out(0, 0)).and_then(|dims| value::axis(self.axis, dims.len()).ok()) else {
            return Flow::closed(UNKNOWN);
        };
        if !matches!(at, Axis::In(_, i) | Axis::Out(_, i) if i == axis) {
            return sides.alike(at, "", |axis| match axis {
                Axis::In(_, i) | Axis::Out(_, i) => Some(i),
            });
        }
        let mut start = 0;
        let mut axes = vec![(Axis::Out(0, axis), 0)];
        for slot in (0..sides.inputs.0.len()).filter(|slot| sides.inputs.opt(*slot).is_some()) {
            let Some(size) = sides.size(Axis::In(slot, axis)) else { return Flow::closed(UNKNOWN) };
            axes.push((Axis::In(slot, axis), start));
            start += size;
        }
        sides.labelled(at, axes.into_iter().map(|(axis, start)| (axis, move |i| start + i)))
    }

    fn since(&self) -> i64 {
        4
    }

    fn quant(&self) -> Quant {
        Quant::Tied
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn is_unchanged(&self, x: &Inputs, _: &Fact) -> bool {
        x.0.len() == 1
    }
}
