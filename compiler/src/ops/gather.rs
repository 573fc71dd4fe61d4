//! Gather, GatherElements and GatherND.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
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

/// The elements at `at`, where negative places count from the end.
fn picked(elems: &[Dim], at: &[i64]) -> Option<Vec<Dim>> {
    let n = elems.len() as i64;
    at.iter().map(|i| elems.get(usize::try_from(if *i < 0 { i + n } else { *i }).ok()?).cloned()).collect()
}

/// The indices, counted from the front, that are taken along `axis`, if they are known.
fn taken(axis: usize, sides: &Sides) -> Option<Vec<usize>> {
    let n = sides.size(Axis::In(0, axis))?;
    let index = |i: i64| usize::try_from(if i < 0 { i + n as i64 } else { i }).ok().filter(|i| *i < n);
    sides.inputs.ints(1)?.into_iter().map(index).collect()
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

    fn parameters(&self) -> &'static [usize] {
        &[0]
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
            fact.elems = picked(elems, &at);
        }
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let (Some(data), Some(indices)) = (sides.inputs.get(0).rank(), sides.inputs.get(1).rank()) else {
            return Flow::closed(UNKNOWN);
        };
        let Ok(axis) = value::axis(self.axis, data) else { return Flow::closed(UNKNOWN) };
        let why = "it takes some of these by their number";
        match taken(axis, sides) {
            Some(taken) if indices == 1 && [Axis::In(0, axis), Axis::In(1, 0), Axis::Out(0, axis)].contains(&at) => {
                let taken = |i: usize| taken[i];
                let axes: [(Axis, &dyn Fn(usize) -> usize); 3] =
                    [(Axis::In(0, axis), &|i| i), (Axis::In(1, 0), &taken), (Axis::Out(0, axis), &taken)];
                sides.labelled(at, axes)
            }
            _ => sides.alike(at, why, |of| match of {
                Axis::In(0, i) => (i != axis).then_some((0, i)),
                Axis::In(_, i) => Some((1, i)),
                Axis::Out(_, i) if i < axis => Some((0, i)),
                Axis::Out(_, i) if i < axis + indices => Some((1, i - axis)),
                Axis::Out(_, i) => Some((0, i + 1 - indices)),
            }),
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let axis = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0))?;
        let (Some(left), Some(taken)) = (kept.get(Axis::In(0, axis)), taken(axis, sides)) else {
            return Ok(ChannelSlice::default());
        };
        // An index that is taken has become the number of those that stay before it.
        let now: Vec<i64> = taken.iter().filter_map(|i| left.binary_search(i).ok()).map(|i| i as i64).collect();
        Ok(ChannelSlice::operands([sides.rewritten(1, &now)]))
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }
}

/// Takes one element of input 0 for each element of input 1, which is its index along `axis`; the
/// other coordinates are those of the index itself.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherElements {
    /// The axis; may count from the end.
    pub axis: i64,
}

impl GatherElements {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.int("axis", 0)? })
    }
}

impl Operator for GatherElements {
    fn op_type(&self) -> &str {
        "GatherElements"
    }

    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into())]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let mut fact = Fact::new(x.get(0).dtype, x.shape(1).clone());
        if let (Some(data), Some(at)) = (x.dims(0), x.dims(1)) {
            value::axis(self.axis, data.len())?;
            if data.len() != at.len() {
                return Err(Error::malformed(format!("indices of rank {} into rank {}", at.len(), data.len())));
            }
            if let (1, Some(elems), Some(at)) = (data.len(), &x.get(0).elems, x.ints(1)) {
                fact.elems = picked(elems, &at);
            }
        }
        Ok(vec![fact])
    }

    fn since(&self) -> i64 {
        11
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }
}

/// Takes the slices of input 0 that the rows of input 1 address.
#[derive(Debug, Clone, PartialEq)]
pub struct GatherNd {
    /// How many leading axes both inputs share.
    pub batch_dims: usize,
}

impl GatherNd {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let batch_dims = r.int("batch_dims", 0)?;
        let batch_dims = usize::try_from(batch_dims).ok().filter(|b| *b <= 64);
        Ok(Self { batch_dims: batch_dims.ok_or_else(|| Error::malformed("batch_dims is out of range"))? })
    }
}

impl Operator for GatherNd {
    fn op_type(&self) -> &str {
        "GatherND"
    }

    fn attrs(&self) -> Attrs {
        if self.batch_dims == 0 { vec![] } else { vec![("batch_dims", (self.batch_dims as i64).into())] }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (Some(data), Some(at)) = (x.dims(0), x.dims(1)) else { return Ok(vec![Fact::new(dtype, None)]) };
        let Some(Dim::Known(depth)) = at.last() else {
            return if at.is_empty() {
                Err(Error::malformed("the indices of GatherND are a scalar"))
            } else {
                Ok(vec![Fact::new(dtype, None)])
            };
        };
        let (b, depth) = (self.batch_dims, usize::try_from(*depth).unwrap_or(0));
        if depth == 0 || b >= at.len() || b + depth > data.len() {
            return Err(Error::malformed(format!("{depth} indices a row, after {b} axes, into rank {}", data.len())));
        }
        let shape = [&at[..at.len() - 1], &data[b + depth..]].concat();
        let mut fact = Fact::new(dtype, Some(shape));
        if let (1, 0..=2, Some(elems), Some(at)) = (data.len(), at.len(), &x.get(0).elems, x.ints(1)) {
            fact.elems = picked(elems, &at);
        }
        Ok(vec![fact])
    }

    fn since(&self) -> i64 {
        if self.batch_dims == 0 { 11 } else { 12 }
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }
}
