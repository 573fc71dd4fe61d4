//! Sampling at given places: GridSample, AffineGrid.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// How values between pixels are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Sampling {
    Nearest,
    Linear,
    Cubic,
}

/// What lies outside of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// Samples input 0 (`[N, C, ...]`) at the places in input 1, which run from -1 to 1.
#[derive(Debug, Clone, PartialEq)]
pub struct GridSample {
    /// How values between pixels are found.
    pub mode: Sampling,
    /// What lies outside of the picture.
    pub outside: Outside,
    /// Whether -1 and 1 are the centres of the outermost pixels, rather than their edges.
    pub align_corners: bool,
}

impl GridSample {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let mode = match r.string("mode", "linear")?.as_str() {
            "nearest" => Sampling::Nearest,
            "linear" | "bilinear" => Sampling::Linear,
            "cubic" | "bicubic" => Sampling::Cubic,
            other => return Err(Error::malformed(format!("mode={other}"))),
        };
        let outside = match r.string("padding_mode", "zeros")?.as_str() {
            "zeros" => Outside::Zeros,
            "border" => Outside::Border,
            "reflection" => Outside::Reflection,
            other => return Err(Error::malformed(format!("padding_mode={other}"))),
        };
        Ok(Self { mode, outside, align_corners: r.flag("align_corners", false)? })
    }
}

impl Operator for GridSample {
    fn op_type(&self) -> &str {
        "GridSample"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.align_corners {
            a.push(("align_corners", true.into()));
        }
        match self.mode {
            // The default, under the names of old opsets and new ones.
            Sampling::Linear => {}
            Sampling::Nearest => a.push(("mode", "nearest".into())),
            Sampling::Cubic => a.push(("mode", "cubic".into())),
        }
        match self.outside {
            Outside::Zeros => {}
            Outside::Border => a.push(("padding_mode", "border".into())),
            Outside::Reflection => a.push(("padding_mode", "reflection".into())),
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let rank = match (x.dims(0), x.dims(1)) {
            (Some(data), Some(grid)) if data.len() != grid.len() || data.len() < 3 => {
                return Err(Error::malformed(format!("a grid of rank {} on rank {}", grid.len(), data.len())));
            }
            (Some(d), _) | (None, Some(d)) => d.len(),
            (None, None) => return Ok(vec![Fact::new(dtype, None)]),
        };
        if rank < 3 {
            return Err(Error::malformed(format!("rank {rank} has no axes to sample")));
        }
        let mut shape = match x.dims(0) {
            Some(data) => data[..2].to_vec(),
            None => vec![Dim::Unknown; 2],
        };
        match x.dims(1) {
            Some(grid) => shape.extend_from_slice(&grid[1..rank - 1]),
            None => shape.resize(rank, Dim::Unknown),
        }
        Ok(vec![Fact::new(dtype, Some(shape))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.alike(at, "it samples these", |axis| match axis {
            Axis::In(_, 0) | Axis::Out(_, 0) => Some("batch"),
            Axis::In(0, 1) | Axis::Out(_, 1) => Some("channel"),
            _ => None,
        })
    }

    fn since(&self) -> i64 {
        if self.mode == Sampling::Cubic { 20 } else { 16 }
    }
}

/// The grid, for GridSample, of affine transforms. Inputs: matrices, the size of the picture.
#[derive(Debug, Clone, PartialEq)]
pub struct AffineGrid {
    /// Whether -1 and 1 are the centres of the outermost pixels, rather than their edges.
    pub align_corners: bool,
}

impl AffineGrid {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { align_corners: r.flag("align_corners", false)? })
    }
}

impl Operator for AffineGrid {
    fn op_type(&self) -> &str {
        "AffineGrid"
    }

    fn attrs(&self) -> Attrs {
        if self.align_corners { vec![("align_corners", true.into())] } else { vec![] }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match x.get(1).elems.as_deref().map(value::sizes).transpose()? {
            Some([n, _, space @ ..]) if matches!(space.len(), 2 | 3) => {
                Some([std::slice::from_ref(n), space, &[Dim::from(space.len())]].concat())
            }
            Some(_) => return Err(Error::malformed("the size of AffineGrid has 4 or 5 elements")),
            None => None,
        };
        Ok(vec![Fact::new(x.get(0).dtype, shape)])
    }

    fn since(&self) -> i64 {
        20
    }

    fn inflates(&self) -> bool {
        true
    }
}
