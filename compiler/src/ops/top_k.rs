//! TopK.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::{DType, Tensor},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// The largest (or smallest) entries along `axis`, as many as input 1 says, and their indices.
#[derive(Debug, Clone, PartialEq)]
pub struct TopK {
    /// The axis; may count from the end.
    pub axis: i64,
    /// Whether the largest are taken.
    pub largest: bool,
    /// Whether they must come in order.
    pub sorted: bool,
}

impl TopK {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 10 {
            let k = r.opt_int("k")?.ok_or_else(|| Error::malformed("attribute `k` is missing"))?;
            r.lift(1, Tensor::i64s(&[k]));
        }
        Ok(Self { axis: r.int("axis", -1)?, largest: r.flag("largest", true)?, sorted: r.flag("sorted", true)? })
    }
}

impl Operator for TopK {
    fn op_type(&self) -> &str {
        "TopK"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("axis", self.axis.into())];
        if !self.largest {
            a.push(("largest", false.into()));
        }
        if !self.sorted {
            a.push(("sorted", false.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn max_outputs(&self) -> usize {
        2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let k = match x.get(1).elems.as_deref() {
            Some([k]) => k.clone(),
            _ => Dim::Unknown,
        };
        let shape = match x.dims(0) {
            Some(data) => {
                let axis = value::axis(self.axis, data.len())?;
                if let (Some(k), n) = (k.known(), data[axis].known())
                    && (k < 0 || n.is_some_and(|n| k > n))
                {
                    return Err(Error::malformed(format!("the top {k} of an axis of {}", data[axis])));
                }
                let mut shape = data.to_vec();
                shape[axis] = k;
                Some(shape)
            }
            None => None,
        };
        Ok(vec![Fact::new(x.get(0).dtype, shape.clone()), Fact::new(Some(DType::I64), shape)])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let along = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0)).ok();
        sides.passes(at, "it puts these in order", |axis| along == Some(axis))
    }

    fn since(&self) -> i64 {
        if self.largest && self.sorted { 10 } else { 11 }
    }
}
