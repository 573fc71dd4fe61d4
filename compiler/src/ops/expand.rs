//! Expand and ConstantOfShape.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Width},
    tensor::Tensor,
    value::{self, Dim, Fact, MAX_ELEMS, broadcast},
};
use std::ops::RangeInclusive;

/// Broadcasts input 0 to the shape in input 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Expand;

impl Operator for Expand {
    fn op_type(&self) -> &str {
        "Expand"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let target = match (&x.get(1).elems, x.get(1).fixed().as_deref()) {
            (Some(target), _) => Some(value::sizes(target)?.to_vec()),
            (None, Some(&[rank])) if rank <= 64 => Some(vec![Dim::Unknown; rank]),
            _ => None,
        };
        let mut fact = Fact::new(x.get(0).dtype, broadcast(x.shape(0), &target)?);
        if let (Some(&[n]), Some([elem])) = (fact.fixed().as_deref(), x.get(0).elems.as_deref())
            && n <= MAX_ELEMS
        {
            fact.elems = Some(vec![elem.clone(); n]);
        }
        Ok(vec![fact])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        match sides.inputs.ints(1) {
            Some(_) => sides.broadcast(at, 0..1),
            None => Flow::closed(UNKNOWN),
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let (Some(mut target), Some(made)) = (sides.inputs.ints(1), sides.dims(Axis::Out(0, 0))) else {
            return Ok(ChannelSlice::default());
        };
        let before = made.len().saturating_sub(target.len());
        for (i, size) in target.iter_mut().enumerate().filter(|(_, size)| **size != 1) {
            *size = kept.count(Axis::Out(0, before + i)).map_or(*size, |n| n as i64);
        }
        Ok(ChannelSlice::operands([sides.rewritten(1, &target)]))
    }
    fn inflates(&self) -> bool {
        true
    }
    fn since(&self) -> i64 {
        8
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn is_unchanged(&self, x: &Inputs, y: &Fact) -> bool {
        x.get(0).has_shape_of(y)
    }
}

/// A tensor of the shape in input 0, filled with one value.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstantOfShape {
    /// The value: one element of the output's type.
    pub value: Tensor,
}

impl ConstantOfShape {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let value = r.opt_tensor("value")?.unwrap_or_else(|| Tensor::f32(&[1], &[0.0]));
        if value.len() != 1 {
            return Err(Error::malformed(format!("value has {} elements, not one", value.len())));
        }
        Ok(Self { value })
    }
}

impl Operator for ConstantOfShape {
    fn op_type(&self) -> &str {
        "ConstantOfShape"
    }
    fn attrs(&self) -> Attrs {
        vec![("value", self.value.clone().into())]
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match (&x.get(0).elems, x.get(0).fixed().as_deref()) {
            (Some(e), _) => Some(value::sizes(e)?.to_vec()),
            (None, Some(&[rank])) if rank <= 64 => Some(vec![Dim::Unknown; rank]),
            _ => None,
        };
        let mut fact = Fact::new(Some(self.value.dtype()), shape);
        if let (Some(&[n]), Some(v)) = (fact.fixed().as_deref(), self.value.as_i64())
            && n <= MAX_ELEMS
        {
            fact.elems = Some(vec![Dim::Known(v[0]); n]);
        }
        Ok(vec![fact])
    }
    fn inflates(&self) -> bool {
        true
    }
    fn since(&self) -> i64 {
        9
    }
}
