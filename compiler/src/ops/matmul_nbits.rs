//! MatMulNBits of ONNX Runtime's domain: a product with a matrix of codes, which its kernels read as they lie.

use crate::{
    attr::Attrs,
    error::Result,
    narrow,
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

/// B of a [`MatMulNBits`] as its inputs have it.
pub struct Packed {
    /// Its codes, `[outputs, blocks, bytes of a block]`.
    pub codes: Tensor,
    /// Their scales, `[outputs, blocks]`.
    pub scales: Tensor,
    /// Their zero points, `[outputs, bytes of a row]`.
    pub zeros: Option<Tensor>,
}

impl MatMulNBits {
    /// The accuracy level in which rows of A become codes of 8 bits.
    pub const IN_CODES: i64 = 4;

    /// The operator, and its inputs, for what DequantizeLinear makes of `codes`, `[inputs, outputs]`, by a scale and perhaps a zero point
    /// for each `block` along axis 0: what [`Self::blocks`] undoes. `None` where it can't have these.
    pub fn of(codes: &Tensor, scales: &Tensor, zeros: Option<&Tensor>, block: i64) -> Option<(Self, Packed)> {
        // A number below zero has the bits of what is as far above the middle.
        let (bits, sign) = match codes.dtype() {
            DType::I4 => (4, 8),
            DType::U4 => (4, 0),
            DType::I8 => (8, 128),
            DType::U8 => (8, 0),
            _ => return None,
        };
        let [inputs, outputs] = *codes.shape() else { return None };
        let size = usize::try_from(block).ok().filter(|n| n.is_power_of_two() && *n >= 16)?;
        let blocks = inputs.div_ceil(size);
        // Signed codes have their zero in the middle, unsigned ones where they say.
        let fits = inputs > 0
            && outputs > 0
            && scales.shape() == [blocks, outputs]
            && zeros.is_none_or(|zeros| zeros.shape() == [blocks, outputs] && zeros.dtype() == codes.dtype())
            && (zeros.is_some() || sign != 0);
        if !fits {
            return None;
        }
        // Columns become rows, each filled to `padded` codes.
        let rows = |t: &Tensor, padded: usize| -> Vec<u8> {
            let (all, each) = (narrow::unpack(bits, t.bytes(), t.len()).collect::<Vec<u8>>(), t.shape()[0]);
            let code = |i: usize| match (i % padded, i / padded) {
                (at, row) if at < each => all[at * outputs + row] ^ sign,
                _ => 0,
            };
            narrow::pack(bits, (0..outputs * padded).map(code))
        };
        let packed = Tensor::new(DType::U8, vec![outputs, blocks, size * bits / 8], rows(codes, blocks * size)).ok()?;
        let of_row = (blocks * bits).div_ceil(8);
        let zeros = match zeros {
            Some(zeros) => Some(Tensor::new(DType::U8, vec![outputs, of_row], rows(zeros, of_row * 8 / bits)).ok()?),
            None => None,
        };
        let by = scales.as_f32()?;
        let by: Vec<f32> = (0..outputs).flat_map(|i| by.iter().skip(i).step_by(outputs).copied()).collect();
        let op = Self { inputs, outputs, bits: bits as i64, block, accuracy_level: Self::IN_CODES };
        Some((op, Packed { codes: packed, scales: Tensor::f32(&[outputs, blocks], &by), zeros }))
    }

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
        // Without zero points zero is in the middle: a number below zero has the bits of what is as far above it.
        let (dtype, sign) = if zeros.is_some() { (unsigned, 0) } else { (signed, 1 << (self.bits - 1)) };
        // Rows of codes begin at whole bytes. What is made has an output in each column.
        let codes = |t: &Tensor, each: usize, columns: usize| -> Option<Tensor> {
            let width = (each.checked_mul(unsigned.bits())?).div_ceil(8);
            let fits = t.dtype() == DType::U8 && Some(t.len()) == outputs.checked_mul(width) && width > 0;
            let rows = fits.then(|| t.bytes())?;
            let code = |row: &[u8], i: usize| match unsigned.bits() {
                4 => row[i / 2] >> (i % 2 * 4) & 15,
                _ => row[i],
            };
            let turned = (0..columns).flat_map(|i| rows.chunks_exact(width).map(move |row| code(row, i) ^ sign));
            let mut made = Vec::with_capacity(columns.checked_mul(outputs)?);
            made.extend(turned);
            let packed = narrow::pack(unsigned.bits(), made.into_iter());
            Tensor::new(dtype, vec![columns, outputs], packed).ok()
        };
        let made = codes(packed, blocks.checked_mul(block)?, inputs)?;
        let zeros = match zeros {
            Some(zeros) => Some(codes(zeros, blocks, blocks)?),
            None => None,
        };
        let by = scales.as_f32().filter(|by| Some(by.len()) == outputs.checked_mul(blocks))?;
        let by: Vec<f32> = (0..blocks).flat_map(|i| by.iter().skip(i).step_by(blocks).copied()).collect();
        Some(Blocks { codes: made, scales: Tensor::f32(&[blocks, outputs], &by), zeros })
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked() {
        for dtype in [DType::I4, DType::U4, DType::I8, DType::U8] {
            // The last block of each column is a part of one, and rows of zero points have an odd number.
            let (inputs, outputs, block) = (40, 3, 16);
            let (low, high) = dtype.int_range().unwrap();
            let number = |i: i64| low + (i * 37) % (high - low + 1);
            let codes = Tensor::ints(dtype, &[inputs, outputs], &(0..120).map(number).collect::<Vec<_>>());
            let scales = Tensor::f32(&[3, 3], &[0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
            let zeros = Tensor::ints(dtype, &[3, 3], &(0..9).map(number).collect::<Vec<_>>());
            let zeros = matches!(dtype, DType::U4 | DType::U8).then_some(zeros);
            let (op, packed) = MatMulNBits::of(&codes, &scales, zeros.as_ref(), block).unwrap();
            let made = op.blocks(&packed.codes, &packed.scales, packed.zeros.as_ref()).unwrap();
            assert_eq!((made.codes, made.scales, made.zeros), (codes, scales, zeros), "{dtype}");
        }
    }

    #[test]
    fn codes_without_a_middle_and_other_blocks_stay() {
        let (codes, scales) = (Tensor::ints(DType::U8, &[32, 1], &[1; 32]), Tensor::f32(&[2, 1], &[1.0, 1.0]));
        assert!(MatMulNBits::of(&codes, &scales, None, 16).is_none());
        let codes = Tensor::ints(DType::I8, &[32, 1], &[1; 32]);
        assert!(MatMulNBits::of(&codes, &scales, None, 16).is_some());
        assert!(MatMulNBits::of(&codes, &Tensor::f32(&[4, 1], &[1.0; 4]), None, 8).is_none());
        assert!(MatMulNBits::of(&codes, &Tensor::f32(&[1, 1], &[1.0]), None, 16).is_none());
    }
}
