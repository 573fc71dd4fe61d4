//! MatMulNBits of ONNX Runtime's domain: a product with a matrix of codes, which its kernels read as they lie.

use crate::{
    attr::Attrs,
    error::Result,
    op::{Inputs, Operator},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// `Y = A * B`. Inputs: A; the codes of B, `[outputs, blocks, bytes of a block]`, of 4 bits the even ones in the low halves; scales,
/// `[outputs, blocks]`; zero points, `[outputs, bytes of a row]`, 8 or 128 when absent. Files that have it are read as
/// DequantizeLinear and MatMul.
#[derive(Debug, Clone, PartialEq)]
pub struct MatMulNBits {
    /// Rows of B.
    pub inputs: usize,
    /// Columns of B.
    pub outputs: usize,
    /// Bits of a code: 4 or 8.
    pub bits: i64,
    /// Codes of a column that share a scale.
    pub block: i64,
    /// In what is multiplied at least: 1 for floats of 32 bits, 4 for codes of 8 bits, which A becomes by its own ranges.
    pub accuracy_level: i64,
}

/// B of a [`MatMulNBits`] as DequantizeLinear takes it, along axis 0.
pub struct Blocks {
    /// Its codes, `[inputs, outputs]`: signed without zero points, unsigned with them.
    pub codes: Tensor,
    /// Their scales, `[blocks, outputs]`.
    pub scales: Tensor,
    /// Their zero points, of the same shape.
    pub zeros: Option<Tensor>,
}

impl MatMulNBits {
    /// What the inputs for B stand for; `None` where their sizes or types are others.
    pub fn blocks(&self, packed: &Tensor, scales: &Tensor, zeros: Option<&Tensor>) -> Option<Blocks> {
        let (signed, unsigned) = match self.bits {
            4 => (DType::I4, DType::U4),
            8 => (DType::I8, DType::U8),
            _ => return None,
        };
        let (inputs, outputs) = (self.inputs, self.outputs);
        let block = usize::try_from(self.block).ok().filter(|n| *n > 0 && n % 2 == 0)?;
        let blocks = inputs.div_ceil(block);
        // Rows of codes begin at whole bytes.
        let rows = |t: &Tensor, each: usize| -> Option<Vec<i64>> {
            let whole = (each * unsigned.bits()).next_multiple_of(8) / unsigned.bits();
            let shape = vec![outputs, whole];
            let fits = t.dtype() == DType::U8 && Some(t.len()) == unsigned.bytes(&shape);
            let codes = Tensor::new(unsigned, shape, fits.then(|| t.bytes().to_vec())?).ok()?.as_i64()?;
            Some(codes.chunks(whole.max(1)).flat_map(|row| row[..each].to_vec()).collect())
        };
        let codes = rows(packed, blocks.checked_mul(block)?)?;
        let points = match zeros {
            Some(zeros) => Some(rows(zeros, blocks)?),
            None => None,
        };
        let by = scales.as_f32().filter(|by| Some(by.len()) == outputs.checked_mul(blocks))?;
        // Without zero points zero is in the middle.
        let (dtype, middle) = if points.is_some() { (unsigned, 0) } else { (signed, 1 << (self.bits - 1)) };
        let codes: Vec<i64> = turned(&codes, blocks * block, inputs).map(|code| code - middle).collect();
        let shape = [blocks, outputs];
        let zeros = points.map(|p| Tensor::ints(dtype, &shape, &turned(&p, blocks, blocks).collect::<Vec<_>>()));
        Some(Blocks {
            codes: Tensor::ints(dtype, &[inputs, outputs], &codes),
            scales: Tensor::f32(&shape, &turned(&by, blocks, blocks).collect::<Vec<_>>()),
            zeros,
        })
    }
}

/// The first `columns` columns of rows of `width`, one after the other.
fn turned<T: Copy>(rows: &[T], width: usize, columns: usize) -> impl Iterator<Item = T> {
    (0..columns).flat_map(move |c| rows.iter().skip(c).step_by(width.max(1)).copied())
}

impl Operator for MatMulNBits {
    fn op_type(&self) -> &str {
        "com.microsoft.MatMulNBits"
    }

    fn attrs(&self) -> Attrs {
        vec![
            ("K", (self.inputs as i64).into()),
            ("N", (self.outputs as i64).into()),
            ("accuracy_level", self.accuracy_level.into()),
            ("bits", self.bits.into()),
            ("block_size", self.block.into()),
        ]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=4
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dims = x.dims(0).map(|dims| {
            let rows = dims[..dims.len().saturating_sub(1)].iter().cloned();
            rows.chain([Dim::from(self.outputs)]).collect()
        });
        Ok(vec![Fact::new(x.get(0).dtype, dims)])
    }

    fn macs(&self, _: &Inputs, outputs: &[&Fact]) -> u64 {
        super::conv::size(outputs[0].dims()).saturating_mul(self.inputs as u64)
    }
}
