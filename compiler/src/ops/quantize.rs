//! QuantizeLinear and DequantizeLinear.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator},
    tensor::DType,
    value::{self, Fact},
};
use std::ops::RangeInclusive;

/// Which elements share a scale: all when it is a scalar; otherwise those of one entry along
/// `axis`, or of `block` successive ones when that is not 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grain {
    /// The axis along which scales differ; may count from the end.
    pub axis: i64,
    /// How many entries share a scale whose rank is that of the data; 0 where scales are a vector.
    pub block: i64,
}

impl Default for Grain {
    fn default() -> Self {
        Self { axis: 1, block: 0 }
    }
}

impl Grain {
    fn read(r: &mut Reader) -> Result<Self> {
        let grain = Self { axis: r.int("axis", 1)?, block: r.int("block_size", 0)? };
        if grain.block < 0 {
            return Err(Error::malformed(format!("block_size {} must not be negative", grain.block)));
        }
        Ok(grain)
    }

    fn attrs(self) -> Attrs {
        let mut a: Attrs = vec![];
        if self.axis != 1 {
            a.push(("axis", self.axis.into()));
        }
        if self.block != 0 {
            a.push(("block_size", self.block.into()));
        }
        a
    }

    /// Data passes, and takes the scales and zero points along with it.
    fn axes_map(self, at: Axis, sides: &Sides) -> Flow {
        if self.block != 0 {
            return Flow::closed("blocks of these share a scale");
        }
        let along = value::axis(self.axis, sides.inputs.get(0).rank().unwrap_or(0)).ok();
        sides.alike(at, UNKNOWN, |axis| match axis {
            Axis::In(0, i) | Axis::Out(_, i) => Some(i),
            Axis::In(..) => along,
        })
    }
}

/// A type named by an attribute in which 0 stands for none.
fn named(r: &mut Reader, name: &str) -> Result<Option<DType>> {
    match r.opt_int(name)?.filter(|code| *code != 0) {
        None => Ok(None),
        Some(code) => i32::try_from(code)
            .ok()
            .and_then(DType::from_onnx)
            .map(Some)
            .ok_or_else(|| Error::unsupported(format!("element type {code} in `{name}`"))),
    }
}

fn name(a: &mut Attrs, attr: &'static str, dtype: Option<DType>) {
    if let Some(d) = dtype {
        a.push((attr, (d as i64).into()));
    }
}

/// `y = saturate(round_half_even(x / scale) + zero_point)`. Inputs: x, scale, zero point.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantize {
    /// Which elements share a scale.
    pub grain: Grain,
    /// The type of y where no zero point tells it; U8 when absent.
    pub output: Option<DType>,
    /// The type in which is divided; that of scale when absent.
    pub precision: Option<DType>,
    /// Whether an 8-bit float that is too large becomes the largest one.
    pub saturate: bool,
}

impl Default for Quantize {
    fn default() -> Self {
        Self { grain: Grain::default(), output: None, precision: None, saturate: true }
    }
}

impl Quantize {
    /// Quantises by scales along `axis`, or by one.
    pub fn along(axis: i64) -> Self {
        Self { grain: Grain { axis, block: 0 }, ..Self::default() }
    }

    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self {
            grain: Grain::read(r)?,
            output: named(r, "output_dtype")?,
            precision: named(r, "precision")?,
            saturate: r.flag("saturate", true)?,
        })
    }
}

impl Operator for Quantize {
    fn op_type(&self) -> &str {
        "QuantizeLinear"
    }
    fn attrs(&self) -> Attrs {
        let mut a = self.grain.attrs();
        name(&mut a, "output_dtype", self.output);
        name(&mut a, "precision", self.precision);
        if !self.saturate {
            a.push(("saturate", false.into()));
        }
        a
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.opt(2).map_or(self.output.or(Some(DType::U8)), |z| z.dtype.or(self.output));
        Ok(vec![Fact::new(dtype, x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        self.grain.axes_map(at, sides)
    }
    fn since(&self) -> i64 {
        match self {
            _ if self.precision.is_some() => 23,
            _ if self.output.is_some() || self.grain.block != 0 => 21,
            _ if !self.saturate => 19,
            // Scales per channel came with 13.
            _ => 13,
        }
    }
}

/// `y = (x - zero_point) * scale`. Inputs: x, scale, zero point.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dequantize {
    /// Which elements share a scale.
    pub grain: Grain,
    /// The type of y; that of scale when absent.
    pub output: Option<DType>,
}

impl Dequantize {
    /// Dequantises by scales along `axis`, or by one.
    pub fn along(axis: i64) -> Self {
        Self { grain: Grain { axis, block: 0 }, output: None }
    }

    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { grain: Grain::read(r)?, output: named(r, "output_dtype")? })
    }
}

impl Operator for Dequantize {
    fn op_type(&self) -> &str {
        "DequantizeLinear"
    }
    fn attrs(&self) -> Attrs {
        let mut a = self.grain.attrs();
        name(&mut a, "output_dtype", self.output);
        a
    }
    fn arity(&self) -> RangeInclusive<usize> {
        2..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(self.output.or(x.get(1).dtype), x.shape(0).clone())])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        self.grain.axes_map(at, sides)
    }
    fn since(&self) -> i64 {
        match self {
            _ if self.output.is_some() => 23,
            _ if self.grain.block != 0 => 21,
            _ => 13,
        }
    }
}
