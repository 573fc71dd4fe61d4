//! QuantizeLinear and DequantizeLinear.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::Fact,
};
use std::ops::RangeInclusive;

/// `y = saturate(round_half_even(x / scale) + zero_point)`. Inputs: x, scale, zero point;
/// scale is a scalar, or a vector along `axis`.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantize {
    /// The channel axis when scale is a vector; may count from the end.
    pub axis: i64,
}

/// `y = (x - zero_point) * scale`. Inputs as for [`Quantize`].
#[derive(Debug, Clone, PartialEq)]
pub struct Dequantize {
    /// The channel axis when scale is a vector; may count from the end.
    pub axis: i64,
}

fn read_axis(r: &mut Reader) -> Result<i64> {
    if r.int("block_size", 0)? != 0 {
        return Err(Error::unsupported(format!("{} in blocks", r.op_type)));
    }
    if r.int("output_dtype", 0)? != 0 || r.int("precision", 0)? != 0 {
        return Err(Error::unsupported(format!("{} with a type of its own", r.op_type)));
    }
    // Saturation concerns 8-bit floats only, which have no DType.
    r.flag("saturate", true)?;
    r.int("axis", 1)
}

impl Quantize {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: read_axis(r)? })
    }
}

impl Dequantize {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: read_axis(r)? })
    }
}

fn attrs(axis: i64) -> Attrs {
    if axis == 1 { vec![] } else { vec![("axis", axis.into())] }
}

impl Operator for Quantize {
    fn op_type(&self) -> &str {
        "QuantizeLinear"
    }
    fn attrs(&self) -> Attrs {
        attrs(self.axis)
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.opt(2).map_or(Some(DType::U8), |z| z.dtype);
        Ok(vec![Fact::new(dtype, x.shape(0).clone())])
    }
    fn since(&self) -> i64 {
        // Scales per channel came with 13.
        13
    }
}

impl Operator for Dequantize {
    fn op_type(&self) -> &str {
        "DequantizeLinear"
    }
    fn attrs(&self) -> Attrs {
        attrs(self.axis)
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(1).dtype, x.shape(0).clone())])
    }
    fn since(&self) -> i64 {
        13
    }
}
