//! Products of integers that are scaled to floats: DynamicQuantizeMatMul and MatMulIntegerToFloat.

use super::listing::{Listing, int};
use crate::{tensor::DType, value::Dim};

/// A matrix of floats, which is quantised by its own range, times one of codes. Inputs: A, B, the scale and the zero
/// point of B, a bias; the last two optional.
pub(super) fn dynamic(list: &mut Listing) -> Option<()> {
    list.fits(5, 1)?;
    if list.float(0)? != DType::F32 {
        return None;
    }
    let a = list.given(0)?;
    let [codes, scale, zero] = list.many("DynamicQuantizeLinear", &[a], vec![]);
    scaled(list, [&codes, &scale, &zero], [2, 3], 4)
}

/// A product of codes. Inputs: A, B, their scales, their zero points, a bias; the last three optional.
pub(super) fn to_float(list: &mut Listing) -> Option<()> {
    list.fits(7, 1)?;
    let one = |slot| list.dims(slot).is_some_and(|d| d.iter().all(|d| *d == Dim::Known(1)) && d.len() <= 1);
    if !one(2) || list.given(4).is_some() && !one(4) {
        return None;
    }
    let (a, scale, zero) = (list.given(0)?, list.given(2)?, list.given(4).unwrap_or_default());
    scaled(list, [a, scale, zero], [3, 5], 6)
}

/// The product of codes, which have a scale and a zero point, and the matrix at slot 1, whose scale and zero point are
/// in the slots `by`; and the bias added to it.
fn scaled(list: &mut Listing, [codes, scale, zero]: [&str; 3], by: [usize; 2], bias: usize) -> Option<()> {
    list.reader()?.finish().ok()?;
    // One for all columns, or one for each.
    let vector = |slot| list.dims(slot).is_some_and(|d| d.len() <= 1);
    let zeros = list.given(by[1]);
    if list.dims(1)?.len() != 2 || !vector(by[0]) || zeros.is_some() && !vector(by[1]) {
        return None;
    }
    if list.float(by[0])? != DType::F32 {
        return None;
    }
    let mut inputs = vec![codes, list.given(1)?, zero];
    inputs.extend(zeros);
    let product = list.op("MatMulInteger", &inputs);
    list.keeps_name();
    let product = list.with("Cast", &[&product], vec![int("to", DType::F32 as i64)]);
    let scales = list.given(by[0])?;
    let scale = list.op("Mul", &[scale, scales]);
    let mut y = list.op("Mul", &[&product, &scale]);
    if let Some(bias) = list.given(bias) {
        y = list.op("Add", &[&y, bias]);
    }
    list.result(0, &y);
    Some(())
}
