//! ScatterElements, ScatterND and TensorScatter.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// What becomes of an element that an update meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduction {
    Replace,
    Add,
    Mul,
    Max,
    Min,
}

impl Reduction {
    fn read(r: &mut Reader) -> Result<Self> {
        Ok(match r.string("reduction", "none")?.as_str() {
            "none" => Self::Replace,
            "add" => Self::Add,
            "mul" => Self::Mul,
            "max" => Self::Max,
            "min" => Self::Min,
            other => return Err(Error::malformed(format!("reduction={other}"))),
        })
    }

    fn attr(self, out: &mut Attrs) {
        let name = match self {
            Self::Replace => return,
            Self::Add => "add",
            Self::Mul => "mul",
            Self::Max => "max",
            Self::Min => "min",
        };
        out.push(("reduction", name.into()));
    }

    fn since(self) -> i64 {
        match self {
            Self::Replace => 11,
            Self::Add | Self::Mul => 16,
            Self::Max | Self::Min => 18,
        }
    }

    fn of(self, old: &Dim, new: &Dim) -> Dim {
        match self {
            Self::Replace => new.clone(),
            Self::Add => old.zip(new, i64::checked_add),
            Self::Mul => old.zip(new, i64::checked_mul),
            Self::Max => old.zip(new, |a, b| Some(a.max(b))),
            Self::Min => old.zip(new, |a, b| Some(a.min(b))),
        }
    }

    /// The elements of a vector after an update, as far as they are known.
    fn elems(self, x: &Inputs) -> Result<Option<Vec<Dim>>> {
        let Some(mut elems) = x.get(0).elems.clone().filter(|_| x.get(0).rank() == Some(1)) else { return Ok(None) };
        let Some(at) = x.ints(1) else { return Ok(Some(vec![Dim::Unknown; elems.len()])) };
        let n = elems.len() as i64;
        for (k, i) in at.into_iter().enumerate() {
            let place = usize::try_from(if i < 0 { i.saturating_add(n) } else { i }).ok();
            let Some(old) = place.and_then(|p| elems.get_mut(p)) else {
                return Err(Error::malformed(format!("index {i} is out of range for an axis of {n}")));
            };
            let new = x.get(2).elems.as_ref().and_then(|e| e.get(k)).unwrap_or(&Dim::Unknown);
            *old = self.of(old, new);
        }
        Ok(Some(elems))
    }
}

/// A copy of input 0 in which the slices that the rows of input 1 address meet those of input 2.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterNd {
    /// What becomes of an element that an update meets.
    pub reduction: Reduction,
}

impl ScatterNd {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { reduction: Reduction::read(r)? })
    }
}

impl Operator for ScatterNd {
    fn op_type(&self) -> &str {
        "ScatterND"
    }

    fn attrs(&self) -> Attrs {
        let mut a = vec![];
        self.reduction.attr(&mut a);
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let mut fact = Fact::new(x.get(0).dtype, x.shape(0).clone());
        fact.elems = self.reduction.elems(x)?;
        Ok(vec![fact])
    }

    fn since(&self) -> i64 {
        self.reduction.since()
    }
}

/// A copy of input 0 in which each element of input 2 meets the one whose coordinates are its own,
/// but for that along `axis`, which input 1 holds.
#[derive(Debug, Clone, PartialEq)]
pub struct ScatterElements {
    /// The axis; may count from the end.
    pub axis: i64,
    /// What becomes of an element that an update meets.
    pub reduction: Reduction,
}

impl ScatterElements {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.int("axis", 0)?, reduction: Reduction::read(r)? })
    }
}

impl Operator for ScatterElements {
    fn op_type(&self) -> &str {
        "ScatterElements"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("axis", self.axis.into())];
        self.reduction.attr(&mut a);
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            value::axis(self.axis, rank)?;
        }
        let mut fact = Fact::new(x.get(0).dtype, x.shape(0).clone());
        fact.elems = self.reduction.elems(x)?;
        Ok(vec![fact])
    }

    fn since(&self) -> i64 {
        self.reduction.since()
    }
}

/// A cache (input 0) in which the entries along `axis`, from the index on that input 2 holds for
/// each sample of the batch, are those of input 1.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorScatter {
    /// The axis; may count from the end, and is not the first.
    pub axis: i64,
    /// Whether indices past the end start again at the front.
    pub circular: bool,
}

impl TensorScatter {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let circular = match r.string("mode", "linear")?.as_str() {
            "linear" => false,
            "circular" => true,
            other => return Err(Error::malformed(format!("mode={other}"))),
        };
        Ok(Self { axis: r.int("axis", -2)?, circular })
    }
}

impl Operator for TensorScatter {
    fn op_type(&self) -> &str {
        "TensorScatter"
    }

    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![("axis", self.axis.into())];
        if self.circular {
            a.push(("mode", "circular".into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        if let Some(rank) = x.get(0).rank() {
            value::axis(self.axis, rank)?;
        }
        Ok(vec![Fact::new(x.get(0).dtype, x.shape(0).clone())])
    }

    fn since(&self) -> i64 {
        24
    }
}
