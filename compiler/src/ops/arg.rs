//! ArgMax and ArgMin.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator},
    tensor::DType,
    value::{self, Dim, Fact},
};

/// Where along an axis the largest or smallest element is.
#[derive(Debug, Clone, PartialEq)]
pub struct Arg {
    /// Whether the largest is meant.
    pub max: bool,
    /// The axis; may count from the end.
    pub axis: i64,
    /// Whether the axis stays, with size 1.
    pub keepdims: bool,
    /// Whether the last of equal elements is taken, and not the first.
    pub select_last_index: bool,
}

impl Arg {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self {
            max: r.op_type == "ArgMax",
            axis: r.int("axis", 0)?,
            keepdims: r.flag("keepdims", true)?,
            select_last_index: r.flag("select_last_index", false)?,
        })
    }
}

impl Operator for Arg {
    fn op_type(&self) -> &str {
        if self.max { "ArgMax" } else { "ArgMin" }
    }
    fn attrs(&self) -> Attrs {
        let mut attrs: Attrs = vec![("axis", self.axis.into()), ("keepdims", self.keepdims.into())];
        if self.select_last_index {
            attrs.push(("select_last_index", true.into()));
        }
        attrs
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let Some(dims) = x.dims(0) else { return Ok(vec![Fact::new(Some(DType::I64), None)]) };
        let axis = value::axis(self.axis, dims.len())?;
        let mut shape = dims.to_vec();
        if self.keepdims {
            shape[axis] = Dim::Known(1);
        } else {
            shape.remove(axis);
        }
        Ok(vec![Fact::new(Some(DType::I64), Some(shape))])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let over = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0)).unwrap_or(0);
        sides.reduces(at, "it looks for one among these", &[over], self.keepdims)
    }
    fn since(&self) -> i64 {
        match (self.select_last_index, self.axis) {
            (true, _) => 12,
            (false, ..0) => 11,
            _ => 1,
        }
    }
}
