//! Layer norms, and the sums that they normalise.

use super::{
    length,
    listing::{Listing, float, int, ints},
    range,
};
use crate::{
    tensor::{DType, Tensor},
    value,
};

/// The layer norm of a sum. Inputs: the two that are added, scale, shift, and a third that is added. Outputs: the
/// result, statistics, which the CPU's kernel does not make, and the sum.
pub(super) fn skip(list: &mut Listing) -> Option<()> {
    list.fits(5, 4)?;
    let epsilon = epsilon(list)?;
    let sum = added(list, 4)?;
    let y = layer_norm(list, &sum, 2, epsilon)?;
    list.result(0, &y);
    list.result(3, &sum);
    Some(())
}

/// The same without mean and shift.
pub(super) fn skip_simplified(list: &mut Listing) -> Option<()> {
    list.fits(4, 4)?;
    let epsilon = epsilon(list)?;
    let (dtype, scale) = (list.float(0)?, list.given(2)?);
    let sum = added(list, 3)?;
    let y = rms_norm(list, &sum, scale, &[-1], epsilon, dtype);
    list.result(0, &y);
    list.result(3, &sum);
    Some(())
}

/// RMSNormalization from before it was ONNX's. Inputs: X, scale. Outputs: the result and a statistic.
pub(super) fn simplified(list: &mut Listing) -> Option<()> {
    list.fits(2, 2)?;
    let mut r = list.reader()?;
    let axis = r.int("axis", -1).ok()?;
    let epsilon = r.float("epsilon", 1e-5).ok()?;
    let stash_type = r.int("stash_type", 1).ok()?;
    r.finish().ok()?;
    let (x, scale, dtype) = (list.given(0)?, list.given(1)?, list.float(0)?);
    if list.wants(1) || stash_type != 1 || list.float(1)? != dtype {
        return None;
    }
    let axes: Vec<i64> = match list.fact(0)?.rank() {
        Some(rank) => (value::axis(axis, rank).ok()? as i64..rank as i64).collect(),
        None if axis == -1 => vec![-1],
        None => return None,
    };
    let y = rms_norm(list, x, scale, &axes, epsilon, dtype);
    list.result(0, &y);
    Some(())
}

/// The layer norm of embeddings. Inputs: the numbers of words and segments, embeddings of words, positions and
/// segments, scale, shift, a mask, the numbers of positions. Outputs: the result, how long each text is, and the sum.
pub(super) fn embed(list: &mut Listing) -> Option<()> {
    list.fits(9, 3)?;
    let mut r = list.reader()?;
    let epsilon = r.float("epsilon", 1e-12).ok()?;
    // The kernel does not look at it.
    let mask_index_type = r.int("mask_index_type", 0).ok()?;
    r.finish().ok()?;
    if !(0..=1).contains(&mask_index_type) {
        return None;
    }
    let (ids, words, positions) = (list.given(0)?, list.given(2)?, list.given(3)?);
    let word = list.op("Gather", &[words, ids]);
    let position = match list.given(8) {
        Some(numbers) => list.op("Gather", &[positions, numbers]),
        // The first ones, as many as a text is long.
        None => {
            let length = length(list, ids, 1);
            let numbers = range(list, &length);
            list.op("Gather", &[positions, &numbers])
        }
    };
    let mut sum = list.op("Add", &[&word, &position]);
    match (list.given(1), list.given(4)) {
        (None, None) => {}
        (Some(numbers), Some(segments)) => {
            let segment = list.op("Gather", &[segments, numbers]);
            sum = list.op("Add", &[&sum, &segment]);
        }
        _ => return None,
    }
    let y = layer_norm(list, &sum, 5, epsilon)?;
    if list.wants(1) {
        let length = match list.given(7) {
            Some(mask) => {
                let one = list.constant(Tensor::ints(DType::I32, &[], &[1]));
                let is_word = list.op("Equal", &[mask, &one]);
                let counted = list.with("Cast", &[&is_word], vec![int("to", DType::I32 as i64)]);
                let axes = list.ints(&[1]);
                list.with("ReduceSum", &[&counted, &axes], vec![int("keepdims", 0)])
            }
            None => {
                let zero = list.constant(Tensor::ints(DType::I32, &[1], &[0]));
                let (shape, axis) = (list.op("Shape", &[ids]), list.ints(&[0]));
                let batch = list.op("Gather", &[&shape, &axis]);
                list.op("Expand", &[&zero, &batch])
            }
        };
        list.result(1, &length);
    }
    list.result(0, &y);
    list.result(2, &sum);
    Some(())
}

/// The only attribute of a node that makes no statistics.
fn epsilon(list: &Listing) -> Option<f32> {
    let mut r = list.reader()?;
    let epsilon = r.float("epsilon", 1e-12).ok()?;
    r.finish().ok()?;
    (!list.wants(1) && !list.wants(2)).then_some(epsilon)
}

/// The sum of the first two inputs, and of the one at `bias` if it is given.
fn added(list: &mut Listing, bias: usize) -> Option<String> {
    let (x, skip) = (list.given(0)?, list.given(1)?);
    let sum = list.op("Add", &[x, skip]);
    Some(match list.given(bias) {
        Some(bias) => list.op("Add", &[&sum, bias]),
        None => sum,
    })
}

/// The layer norm of `x`. The scale is in the slot `scale`, and the shift, if there is one, behind it.
fn layer_norm(list: &mut Listing, x: &str, scale: usize, epsilon: f32) -> Option<String> {
    let mut inputs = vec![x, list.given(scale)?];
    inputs.extend(list.given(scale + 1));
    let y = list.with("LayerNormalization", &inputs, vec![int("axis", -1), float("epsilon", epsilon)]);
    list.keeps_name();
    Some(y)
}

/// `x / sqrt(mean(x²) + epsilon) * scale`, computed in 32 bits at least. As RMSNormalization is of opset 23, to which
/// not all can move, this is its arithmetic: the pass "target" finds it.
fn rms_norm(list: &mut Listing, x: &str, scale: &str, axes: &[i64], epsilon: f32, dtype: DType) -> String {
    let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
    let (x, scale) = (cast(list, x, dtype, wide), cast(list, scale, dtype, wide));
    let square = list.op("Mul", &[&x, &x]);
    let mean = list.with("ReduceMean", &[&square], vec![ints("axes", axes), int("keepdims", 1)]);
    let epsilon = list.number(wide, epsilon);
    let sum = list.op("Add", &[&mean, &epsilon]);
    let root = list.op("Sqrt", &[&sum]);
    let quotient = list.op("Div", &[&x, &root]);
    let y = list.op("Mul", &[&quotient, &scale]);
    list.keeps_name();
    cast(list, &y, wide, dtype)
}

/// `x` of the type `from` in the type `to`.
fn cast(list: &mut Listing, x: &str, from: DType, to: DType) -> String {
    if from == to { x.into() } else { list.with("Cast", &[x], vec![int("to", to as i64)]) }
}
