//! Gather.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// Takes the entries of input 0 along `axis` that input 1 lists; negative ones count from
/// the end.
#[derive(Debug, Clone, PartialEq)]
pub struct Gather {
    /// The axis; may count from the end.
    pub axis: i64,
}

impl Gather {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.int("axis", 0)? })
    }
}

impl Operator for Gather {
    fn op_type(&self) -> &str {
        "Gather"
    }

    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into())]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (Some(data), Some(indices)) = (x.dims(0), x.dims(1)) else { return Ok(vec![Fact::new(dtype, None)]) };
        let axis = value::axis(self.axis, data.len())?;
        if let (Some(n), Some(at)) = (data[axis].known(), x.ints(1))
            && let Some(i) = at.iter().find(|i| !(-n..n).contains(i))
        {
            return Err(Error::malformed(format!("index {i} is out of range for an axis of {n}")));
        }
        let shape = [&data[..axis], indices, &data[axis + 1..]].concat();
        let mut fact = Fact::new(dtype, Some(shape));
        if let (Some(elems), Some(at)) = (&x.get(0).elems, x.ints(1))
            && data.len() == 1
            && indices.len() <= 1
        {
            let n = elems.len() as i64;
            fact.elems = at
                .iter()
                .map(|i| elems.get(usize::try_from(if *i < 0 { i + n } else { *i }).ok()?).cloned())
                .collect::<Option<Vec<Dim>>>();
        }
        Ok(vec![fact])
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }
}
