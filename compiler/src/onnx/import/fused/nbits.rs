//! Matrices and tables of codes in blocks: MatMulNBits and GatherBlockQuantized.

use super::listing::{Listing, int};
use crate::{
    forms::packed_rows::numbers,
    narrow,
    ops::matmul_nbits::MatMulNBits,
    tensor::{DType, Tensor},
};

/// `A * B`, with B in codes. Inputs: A; B; scales; zero points, an order of the inputs and a bias, which are optional.
pub(super) fn matmul(list: &mut Listing) -> Option<()> {
    list.fits(6, 1)?;
    let mut r = list.reader()?;
    let [inputs, outputs, block] = ["K", "N", "block_size"].map(|name| r.opt_int(name).ok().flatten());
    let bits = r.int("bits", 4).ok()?;
    // How it is multiplied is the runtime's affair.
    let accuracy_level = r.int("accuracy_level", 0).ok()?;
    r.int("weight_prepacked", 0).ok().filter(|packed| *packed == 0)?;
    r.finish().ok()?;
    let [inputs, outputs] = [inputs?, outputs?].map(|n| usize::try_from(n).ok().filter(|n| *n > 0));
    let op = MatMulNBits { inputs: inputs?, outputs: outputs?, bits, block: block?, accuracy_level };
    if list.float(0)? != DType::F32 || list.float(2)? != DType::F32 || list.given(4).is_some() {
        return None;
    }
    let zeros = match list.given(3) {
        Some(_) => Some(list.tensor(3)?),
        None => None,
    };
    let b = op.blocks(list.tensor(1)?, list.tensor(2)?, zeros)?;
    let mut read = vec![list.constant(b.codes), list.constant(b.scales)];
    read.extend(b.zeros.map(|zeros| list.constant(zeros)));
    let read: Vec<&str> = read.iter().map(|name| &name[..]).collect();
    let weight = list.with("DequantizeLinear", &read, vec![int("axis", 0), int("block_size", op.block)]);
    let a = list.given(0)?;
    let mut y = list.op("MatMul", &[a, &weight]);
    list.keeps_name();
    if let Some(bias) = list.given(5) {
        y = list.op("Add", &[&y, bias]);
    }
    list.result(0, &y);
    Some(())
}

/// Entries of a table that is in codes. Inputs: the table; indices; scales; zero points, which are optional.
pub(super) fn gather(list: &mut Listing) -> Option<()> {
    list.fits(4, 1)?;
    let mut r = list.reader()?;
    let (block, bits) = (r.int("block_size", 128).ok()?, r.int("bits", 4).ok()?);
    let [gathered, quantised] = [("gather_axis", 0), ("quantize_axis", 1)].map(|(name, usual)| r.int(name, usual).ok());
    r.finish().ok()?;
    let bits = usize::try_from(bits).ok().filter(|bits| matches!(bits, 4 | 8))?;
    let size = usize::try_from(block).ok().filter(|n| n.is_power_of_two() && *n >= 16)?;
    let (table, scales) = (list.tensor(0)?, list.tensor(2)?);
    let rank = table.shape().len() as i64;
    let axis = |axis: i64| Some(if axis < 0 { axis + rank } else { axis }).filter(|axis| (0..rank).contains(axis));
    let (gathered, quantised) = (axis(gathered?)?, axis(quantised?)?);
    if scales.dtype() != DType::F32 {
        return None;
    }
    let (codes, zeros) = match list.given(3) {
        Some(_) => (with_zeros(table, bits)?, Some(with_zeros(list.tensor(3)?, bits)?)),
        // The code in the middle is zero where bytes are codes; elsewhere it is zero itself.
        None if table.dtype() == DType::U8 => (around_zero(table, bits)?, None),
        None => (table.clone(), None),
    };
    let blocks = |n: &usize| n.div_ceil(size);
    let parts: Vec<usize> =
        codes.shape().iter().enumerate().map(|(i, n)| if i as i64 == quantised { blocks(n) } else { *n }).collect();
    // Rows of zero points that are packed may have one too many.
    let zeros = match zeros {
        Some(zeros) => Some(cut(&zeros, &parts)?),
        None => None,
    };
    if scales.shape() != parts || zeros.as_ref().is_some_and(|zeros| zeros.dtype() != codes.dtype()) {
        return None;
    }
    let ids = list.given(1)?;
    let y = match (codes.dtype(), &parts[..], gathered, quantised) {
        (DType::I4 | DType::U4, [_, parts], 0, 1) if codes.shape()[1] == parts * size => {
            pairs(list, ids, (&codes, zeros.as_ref(), scales), size)?
        }
        _ => {
            let mut read = vec![list.constant(codes), list.constant(scales.clone())];
            read.extend(zeros.map(|zeros| list.constant(zeros)));
            let read: Vec<&str> = read.iter().map(|name| &name[..]).collect();
            let table = list.with("DequantizeLinear", &read, vec![int("axis", quantised), int("block_size", block)]);
            list.with("Gather", &[&table, ids], vec![int("axis", gathered)])
        }
    };
    list.keeps_name();
    list.result(0, &y);
    Some(())
}

/// Lists the lookup of rows of codes of 4 bits that every runtime has ([`PackedRows`](crate::forms::packed_rows::PackedRows)), and says how
/// its result is called.
fn pairs(
    list: &mut Listing,
    ids: &str,
    (codes, zeros, scales): (&Tensor, Option<&Tensor>, &Tensor),
    block: usize,
) -> Option<String> {
    let (rank, rows) = (list.dims(1)?.len(), codes.shape()[0]);
    let (half, parts) = (codes.shape()[1] / 2, scales.shape()[1]);
    // The levels are those around 8, and so are zero points.
    let (sign, middle) = if codes.dtype() == DType::I4 { (0x88, 0) } else { (0, 8) };
    let bytes: Vec<u8> = codes.bytes().iter().map(|byte| byte ^ sign).collect();
    let zeros: Option<Vec<i64>> = match zeros {
        Some(zeros) => Some(zeros.as_i64()?.iter().map(|zero| zero - middle).collect()),
        None if middle == 0 => None,
        None => Some(vec![-middle; rows * parts]),
    };
    let zeros = zeros.map(|zeros| list.constant(Tensor::ints(DType::I8, &[rows, parts], &zeros)));
    let bytes = list.constant(Tensor::new(DType::U8, vec![rows, half], bytes).ok()?);
    let (scales, levels) = (list.constant(scales.clone()), list.constant(numbers()));
    let shape =
        |last: &[usize]| -> Vec<i64> { std::iter::repeat_n(0, rank).chain(last.iter().map(|n| *n as i64)).collect() };
    let [by_block, of_blocks, whole] =
        [&[parts, block][..], &[parts, 1], &[2 * half]].map(|last| list.ints(&shape(last)));
    let bytes = list.op("Gather", &[&bytes, ids]);
    let bytes = list.with("Cast", &[&bytes], vec![int("to", DType::I32 as i64)]);
    let values = list.op("Gather", &[&levels, &bytes]);
    let mut values = list.op("Reshape", &[&values, &by_block]);
    if let Some(zeros) = zeros {
        let zeros = list.op("Gather", &[&zeros, ids]);
        let zeros = list.with("Cast", &[&zeros], vec![int("to", DType::F32 as i64)]);
        let zeros = list.op("Reshape", &[&zeros, &of_blocks]);
        values = list.op("Sub", &[&values, &zeros]);
    }
    let scales = list.op("Gather", &[&scales, ids]);
    let scales = list.op("Reshape", &[&scales, &of_blocks]);
    let values = list.op("Mul", &[&values, &scales]);
    Some(list.op("Reshape", &[&values, &whole]))
}

/// Codes of `bits` bits that stand for what is above a zero point: those of a byte, if `table` has bytes of several.
fn with_zeros(table: &Tensor, bits: usize) -> Option<Tensor> {
    if table.dtype() != DType::U8 || bits == 8 {
        return Some(table.clone());
    }
    let (last, before) = table.shape().split_last()?;
    Tensor::new(DType::U4, [before, &[last.checked_mul(2)?]].concat(), table.bytes().to_vec()).ok()
}

/// Codes whose zero is in the middle, as signed ones.
fn around_zero(table: &Tensor, bits: usize) -> Option<Tensor> {
    let codes = with_zeros(table, bits)?;
    let (dtype, sign) = if bits == 4 { (DType::I4, 0x88) } else { (DType::I8, 0x80) };
    Tensor::new(dtype, codes.shape().to_vec(), codes.bytes().iter().map(|byte| byte ^ sign).collect::<Vec<u8>>()).ok()
}

/// The first elements along the last axis, as many as `shape` has.
fn cut(codes: &Tensor, shape: &[usize]) -> Option<Tensor> {
    let ((all, before), (some, same)) = (codes.shape().split_last()?, shape.split_last()?);
    if before != same || all < some {
        return None;
    }
    let bits = codes.dtype().bits();
    let unpacked: Vec<u8> = narrow::unpack(bits, codes.bytes(), codes.len()).collect();
    let kept: Vec<u8> = unpacked.chunks((*all).max(1)).flat_map(|row| row[..*some].iter().copied()).collect();
    Tensor::new(codes.dtype(), shape.to_vec(), narrow::pack(bits, kept.into_iter())).ok()
}
