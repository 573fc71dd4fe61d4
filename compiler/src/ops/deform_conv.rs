//! DeformConv: a convolution whose taps are moved by computed offsets.

use super::conv::{Conv, size};
use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::Fact,
};
use std::ops::RangeInclusive;

/// Inputs: X `[N, C, ...]`, W `[M, C / group, ...]`, offset `[N, offset_group * taps * axes, ...]`,
/// B `[M]`, mask `[N, offset_group * taps, ...]`. Between its elements X is interpolated linearly.
#[derive(Debug, Clone, PartialEq)]
pub struct DeformConv {
    /// The convolution whose taps are moved.
    pub conv: Conv,
    /// Channels are split into this many groups with offsets of their own.
    pub offset_group: i64,
}

impl DeformConv {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let op = Self { conv: Conv::read(r)?, offset_group: r.int("offset_group", 1)? };
        if op.offset_group < 1 {
            return Err(Error::malformed(format!("offset_group {} must be 1 or more", op.offset_group)));
        }
        Ok(op)
    }
}

impl Operator for DeformConv {
    fn op_type(&self) -> &str {
        "DeformConv"
    }

    fn attrs(&self) -> Attrs {
        let mut a = self.conv.attrs();
        if self.offset_group != 1 {
            a.push(("offset_group", self.offset_group.into()));
        }
        a
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=5
    }

    fn parameters(&self) -> &'static [usize] {
        &[1, 3]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, self.conv.output(x.dims(0), x.dims(1))?)])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        use Axis::{In, Out};
        let why = if self.conv.group == 1 && self.offset_group == 1 {
            "its window slides over these"
        } else {
            "its groups of channels have offsets of their own"
        };
        sides.alike(at, why, |axis| match axis {
            In(0 | 2 | 4, 0) | Out(0, 0) => Some("batch"),
            In(0 | 1, 1) if self.conv.group == 1 && self.offset_group == 1 => Some("data"),
            In(1 | 3, 0) | Out(0, 1) if self.conv.group == 1 => Some("result"),
            _ => None,
        })
    }

    fn since(&self) -> i64 {
        19
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        size(x.dims(1).map(|w| &w[1..])).saturating_mul(size(outputs[0].dims()))
    }
}
