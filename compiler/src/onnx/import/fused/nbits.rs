//! Products with matrices of codes in blocks: MatMulNBits.

use super::listing::{Listing, int};
use crate::{ops::matmul_nbits::MatMulNBits, tensor::DType};

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
