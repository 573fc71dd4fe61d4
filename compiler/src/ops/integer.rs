//! Products of quantised tensors: ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul, and
//! DynamicQuantizeLinear, which feeds them.

use super::{
    conv::{Conv, size},
    matmul,
};
use crate::{
    attr::{Attrs, Reader},
    error::Result,
    op::{Inputs, Operator},
    tensor::DType,
    value::Fact,
};
use std::ops::RangeInclusive;

/// What becomes of the exact product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accumulator {
    /// It is the output, of 32 bits. Inputs: x, w, the zero point of x, that of w.
    Kept,
    /// It is scaled and quantised. Inputs: x, its scale and zero point, w, its scale and zero
    /// point, the output's scale and zero point, and for a convolution a bias of 32 bits.
    Scaled,
}

impl Accumulator {
    /// The input slot of w.
    pub fn weight(self) -> usize {
        match self {
            Accumulator::Kept => 1,
            Accumulator::Scaled => 3,
        }
    }

    fn dtype(self, x: &Inputs) -> Option<DType> {
        match self {
            Accumulator::Kept => Some(DType::I32),
            Accumulator::Scaled => x.get(7).dtype,
        }
    }
}

/// A convolution of quantised tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct IntegerConv {
    /// The convolution.
    pub conv: Conv,
    /// What becomes of its result.
    pub result: Accumulator,
}

impl IntegerConv {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let result = if r.op_type == "ConvInteger" { Accumulator::Kept } else { Accumulator::Scaled };
        Ok(Self { conv: Conv::read(r)?, result })
    }
}

impl Operator for IntegerConv {
    fn op_type(&self) -> &str {
        match self.result {
            Accumulator::Kept => "ConvInteger",
            Accumulator::Scaled => "QLinearConv",
        }
    }

    fn attrs(&self) -> Attrs {
        self.conv.attrs()
    }

    fn arity(&self) -> RangeInclusive<usize> {
        match self.result {
            Accumulator::Kept => 2..=4,
            Accumulator::Scaled => 8..=9,
        }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = self.conv.output(x.dims(0), x.dims(self.result.weight()))?;
        Ok(vec![Fact::new(self.result.dtype(x), shape)])
    }

    fn since(&self) -> i64 {
        10
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        size(x.dims(self.result.weight()).map(|w| &w[1..])).saturating_mul(size(outputs[0].dims()))
    }
}

/// A matrix product of quantised tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct IntegerMatMul {
    /// What becomes of its result.
    pub result: Accumulator,
}

impl IntegerMatMul {
    pub(super) fn read(r: &mut Reader) -> Self {
        Self { result: if r.op_type == "MatMulInteger" { Accumulator::Kept } else { Accumulator::Scaled } }
    }
}

impl Operator for IntegerMatMul {
    fn op_type(&self) -> &str {
        match self.result {
            Accumulator::Kept => "MatMulInteger",
            Accumulator::Scaled => "QLinearMatMul",
        }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        match self.result {
            Accumulator::Kept => 2..=4,
            Accumulator::Scaled => 8..=8,
        }
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = matmul::output(x.dims(0), x.dims(self.result.weight()))?;
        Ok(vec![Fact::new(self.result.dtype(x), shape)])
    }

    fn since(&self) -> i64 {
        10
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        let inner = x.dims(0).and_then(|a| a.last()).map(std::slice::from_ref);
        size(inner).saturating_mul(size(outputs[0].dims()))
    }

    fn neutral_element(&self) -> Option<f32> {
        (self.result == Accumulator::Kept).then_some(0.0)
    }
}

/// Quantises to U8 with the range of the data itself. Outputs: the quantised tensor, scale, zero
/// point.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicQuantize;

impl Operator for DynamicQuantize {
    fn op_type(&self) -> &str {
        "DynamicQuantizeLinear"
    }

    fn max_outputs(&self) -> usize {
        3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let scalar = |dtype| Fact::new(Some(dtype), Some(vec![]));
        Ok(vec![Fact::new(Some(DType::U8), x.shape(0).clone()), scalar(DType::F32), scalar(DType::U8)])
    }

    fn since(&self) -> i64 {
        11
    }
}
