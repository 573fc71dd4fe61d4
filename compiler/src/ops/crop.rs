//! CenterCropPad and ReverseSequence.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// Cuts or pads (with zeros) on both sides, so that `axes` get the sizes in input 1.
#[derive(Debug, Clone, PartialEq)]
pub struct CenterCropPad {
    /// The axes; may count from the end. `None` is all.
    pub axes: Option<Vec<i64>>,
}

impl CenterCropPad {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axes: r.opt_ints("axes")? })
    }

    /// The axes that `sizes` sizes are for, in an input of `rank`.
    ///
    /// # Errors
    /// Malformed when there are more or fewer, or one is named wrongly.
    pub fn axes(&self, rank: usize, sizes: usize) -> Result<Vec<usize>> {
        let axes = match &self.axes {
            Some(axes) => axes.iter().map(|a| value::axis(*a, rank)).collect::<Result<Vec<_>>>()?,
            None => (0..rank).collect(),
        };
        if axes.len() != sizes {
            return Err(Error::malformed(format!("{sizes} sizes for {} axes", axes.len())));
        }
        if (1..axes.len()).any(|i| axes[..i].contains(&axes[i])) {
            return Err(Error::malformed(format!("axes {axes:?} repeat one")));
        }
        Ok(axes)
    }
}

impl Operator for CenterCropPad {
    fn op_type(&self) -> &str {
        "CenterCropPad"
    }

    fn attrs(&self) -> Attrs {
        self.axes.clone().map(|a| ("axes", a.into())).into_iter().collect()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        let mut shape = data.to_vec();
        match &x.get(1).elems {
            Some(sizes) => {
                for (axis, size) in self.axes(data.len(), sizes.len())?.into_iter().zip(value::sizes(sizes)?) {
                    shape[axis] = size.clone();
                }
            }
            None => shape.iter_mut().for_each(|d| *d = Dim::Unknown),
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let rank = sides.inputs.get(0).rank().unwrap_or(0);
        let cut = self.axes.as_ref().map(|axes| axes.iter().map(|a| value::axis(*a, rank)).collect::<Result<Vec<_>>>());
        sides.passes(at, "it cuts or pads these", |axis| !matches!(&cut, Some(Ok(cut)) if !cut.contains(&axis)))
    }

    fn since(&self) -> i64 {
        18
    }

    fn inflates(&self) -> bool {
        true
    }
}

/// Turns round the front of each sequence of a batch; input 1 says how much of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ReverseSequence {
    /// The axis of the batch, 0 or 1.
    pub batch_axis: usize,
    /// The axis of time: the other one.
    pub time_axis: usize,
}

impl ReverseSequence {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        match (r.int("batch_axis", 1)?, r.int("time_axis", 0)?) {
            (1, 0) => Ok(Self { batch_axis: 1, time_axis: 0 }),
            (0, 1) => Ok(Self { batch_axis: 0, time_axis: 1 }),
            (b, t) => Err(Error::malformed(format!("batch_axis {b} and time_axis {t} are not 0 and 1"))),
        }
    }
}

impl Operator for ReverseSequence {
    fn op_type(&self) -> &str {
        "ReverseSequence"
    }
    fn attrs(&self) -> Attrs {
        vec![("batch_axis", (self.batch_axis as i64).into()), ("time_axis", (self.time_axis as i64).into())]
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if x.get(0).rank().is_some_and(|r| r < 2) {
            return Err(Error::malformed("sequences have 2 axes or more"));
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.alike(at, "it turns these round", |axis| match axis {
            Axis::In(0, i) | Axis::Out(_, i) => (i != self.time_axis).then_some(i),
            Axis::In(..) => Some(self.batch_axis),
        })
    }
    fn since(&self) -> i64 {
        10
    }
}
