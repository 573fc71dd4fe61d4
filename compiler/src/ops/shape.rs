//! Shape and Size.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator},
    tensor::DType,
    value::{Dim, Fact},
};

/// The shape of its input as an `i64` vector, from axis `start` to before `end`.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    /// The first axis; may count from the end.
    pub start: i64,
    /// The axis after the last; `None` takes all.
    pub end: Option<i64>,
}

impl Shape {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { start: r.int("start", 0)?, end: r.opt_int("end")? })
    }

    /// The axes that are taken of an input of `rank`.
    pub fn axes(&self, rank: usize) -> std::ops::Range<usize> {
        let r = rank as i64;
        let clamp = |v: i64| (if v < 0 { v.saturating_add(r) } else { v }).clamp(0, r) as usize;
        let (start, end) = (clamp(self.start), clamp(self.end.unwrap_or(r)));
        start..end.max(start)
    }
}

impl Operator for Shape {
    fn op_type(&self) -> &str {
        "Shape"
    }
    fn attrs(&self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.start != 0 {
            a.push(("start", self.start.into()));
        }
        if let Some(end) = self.end {
            a.push(("end", end.into()));
        }
        a
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![match x.dims(0) {
            Some(d) => Fact::elems(d[self.axes(d.len())].to_vec(), false),
            None => Fact::new(Some(DType::I64), Some(vec![Dim::Unknown])),
        }])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let read = self.axes(sides.inputs.get(0).rank().unwrap_or(0));
        sides.alike(at, "their number is read", |axis| match axis {
            Axis::In(_, i) => (!read.contains(&i)).then_some(i),
            Axis::Out(..) => None,
        })
    }
    fn since(&self) -> i64 {
        if self.start != 0 || self.end.is_some() { 15 } else { 1 }
    }
}

/// The number of elements of its input.
#[derive(Debug, Clone, PartialEq)]
pub struct Size;

impl Operator for Size {
    fn op_type(&self) -> &str {
        "Size"
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let size = x.dims(0).map_or(Dim::Unknown, |d| d.iter().fold(Dim::Known(1), |n, d| n.times(d)));
        Ok(vec![Fact::elems(vec![size], true)])
    }
    fn axes_map(&self, _: Axis, _: &Sides) -> Flow {
        Flow::closed("their number is read")
    }
}
