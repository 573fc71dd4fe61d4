//! Split.

use crate::{
    attr::{Attrs, Reader},
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
        let sizes = match (data[axis].known(), x.opt(1), x.ints(1)) {
            (Some(n), None, _) => Some(self.sizes(None, n)?),
            (Some(n), Some(_), Some(given)) => Some(self.sizes(Some(&given), n)?),
            _ => None,
        };
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
}
