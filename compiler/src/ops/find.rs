//! Operators whose output is as large as what they find: NonZero, Compress, Unique.

use crate::{
    attr::{Attrs, Reader},
    error::Result,
    op::{Inputs, Operator},
    tensor::DType,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// The coordinates of the elements that are not zero, one column each.
#[derive(Debug, Clone, PartialEq)]
pub struct NonZero;

impl Operator for NonZero {
    fn op_type(&self) -> &str {
        "NonZero"
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let rank = x.get(0).rank().map_or(Dim::Unknown, Dim::from);
        Ok(vec![Fact::new(Some(DType::I64), Some(vec![rank, Dim::Unknown]))])
    }
    fn since(&self) -> i64 {
        9
    }
}

/// The shape after some entries along `axis`, or some elements of all, were taken.
fn some_of(axis: Option<i64>, x: &Inputs) -> Result<Option<Vec<Dim>>> {
    let Some(axis) = axis else { return Ok(Some(vec![Dim::Unknown])) };
    let Some(data) = x.dims(0) else { return Ok(None) };
    let mut shape = data.to_vec();
    shape[value::axis(axis, data.len())?] = Dim::Unknown;
    Ok(Some(shape))
}

/// The entries along `axis` for which input 1 is true.
#[derive(Debug, Clone, PartialEq)]
pub struct Compress {
    /// The axis; may count from the end. `None` takes elements of all.
    pub axis: Option<i64>,
}

impl Compress {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.opt_int("axis")? })
    }
}

impl Operator for Compress {
    fn op_type(&self) -> &str {
        "Compress"
    }
    fn attrs(&self) -> Attrs {
        self.axis.map(|a| ("axis", a.into())).into_iter().collect()
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, some_of(self.axis, x)?)])
    }
    fn since(&self) -> i64 {
        9
    }
}

/// The different elements of a tensor, or the different slices along `axis`. Further outputs:
/// where each occurs first, which of them each element is, and how often each occurs.
#[derive(Debug, Clone, PartialEq)]
pub struct Unique {
    /// The axis; may count from the end. `None` compares elements.
    pub axis: Option<i64>,
    /// Whether they come in ascending order, rather than in that of their first occurrence.
    pub sorted: bool,
}

impl Unique {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.opt_int("axis")?, sorted: r.flag("sorted", true)? })
    }
}

impl Operator for Unique {
    fn op_type(&self) -> &str {
        "Unique"
    }
    fn attrs(&self) -> Attrs {
        let mut a: Attrs = self.axis.map(|a| ("axis", a.into())).into_iter().collect();
        if !self.sorted {
            a.push(("sorted", false.into()));
        }
        a
    }
    fn max_outputs(&self) -> usize {
        4
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let list = |n: Dim| Fact::new(Some(DType::I64), Some(vec![n]));
        let total = match (self.axis, x.dims(0)) {
            (None, Some(d)) => d.iter().fold(Dim::Known(1), |n, d| n.times(d)),
            (Some(a), Some(d)) => d[value::axis(a, d.len())?].clone(),
            _ => Dim::Unknown,
        };
        let values = Fact::new(x.get(0).dtype, some_of(self.axis, x)?);
        Ok(vec![values, list(Dim::Unknown), list(total), list(Dim::Unknown)])
    }
    fn since(&self) -> i64 {
        11
    }
}
