//! Matrices made of ones, zeros and diagonals: OneHot, EyeLike, Trilu.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// A new axis, on which the place that an index names holds the second of two values, and every
/// other place the first. Inputs: indices, depth, values.
#[derive(Debug, Clone, PartialEq)]
pub struct OneHot {
    /// Where the new axis goes, counted in the output; may count from the end.
    pub axis: i64,
}

impl OneHot {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.int("axis", -1)? })
    }
}

impl Operator for OneHot {
    fn op_type(&self) -> &str {
        "OneHot"
    }

    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into())]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(2).dtype;
        let Some(indices) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        let depth = match (&x.get(1).elems, &x.get(1).floats) {
            (Some(e), _) if e.len() == 1 => e[0].clone(),
            (_, Some(f)) if f.len() == 1 => Dim::Known(f[0] as i64),
            _ => Dim::Unknown,
        };
        if depth.known().is_some_and(|d| d < 0) {
            return Err(Error::malformed("a negative depth"));
        }
        let mut shape = indices.to_vec();
        shape.insert(value::axis(self.axis, indices.len() + 1)?, depth);
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn since(&self) -> i64 {
        9
    }

    fn inflates(&self) -> bool {
        true
    }
}

/// Ones on a diagonal of a matrix of the input's shape, zeros elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct EyeLike {
    /// The type of the output; that of the input when `None`.
    pub dtype: Option<DType>,
    /// The diagonal: above the main one when positive.
    pub k: i64,
}

impl EyeLike {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let dtype = r.opt_dtype("dtype")?;
        if dtype == Some(DType::String) {
            return Err(Error::unsupported("EyeLike of strings"));
        }
        Ok(Self { dtype, k: r.int("k", 0)? })
    }
}

impl Operator for EyeLike {
    fn op_type(&self) -> &str {
        "EyeLike"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if let Some(dtype) = self.dtype {
            a.push(("dtype", (dtype as i64).into()));
        }
        if self.k != 0 {
            a.push(("k", self.k.into()));
        }
        a
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if x.get(0).rank().is_some_and(|r| r != 2) {
            return Err(Error::malformed("the input of EyeLike is not a matrix"));
        }
        let shape = x.shape(0).clone().unwrap_or_else(|| vec![Dim::Unknown; 2]);
        Ok(vec![Fact::new(self.dtype.or(x.get(0).dtype), Some(shape))])
    }

    fn since(&self) -> i64 {
        9
    }

    fn inflates(&self) -> bool {
        true
    }
}

/// The upper or lower triangle of matrices, zeros elsewhere. Inputs: data, diagonal.
#[derive(Debug, Clone, PartialEq)]
pub struct Trilu {
    /// Whether the upper triangle is kept.
    pub upper: bool,
}

impl Trilu {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { upper: r.flag("upper", true)? })
    }
}

impl Operator for Trilu {
    fn op_type(&self) -> &str {
        "Trilu"
    }

    fn attrs(&self) -> Attrs {
        if self.upper { vec![] } else { vec![("upper", false.into())] }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if x.get(0).rank().is_some_and(|r| r < 2) {
            return Err(Error::malformed("the input of Trilu is not a matrix"));
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let rank = sides.inputs.get(0).rank().unwrap_or(0);
        sides.passes(at, "it takes a triangle of these", |axis| axis + 2 >= rank)
    }

    fn since(&self) -> i64 {
        14
    }
}
