//! Element types: f64 keeps its digits, narrow ones round, mixtures do not panic.

use super::*;
use compress_compiler::ops::{
    arg::Arg,
    binary::{Binary, BitShift, Mod},
    cast::{BitCast, Cast, Rounding},
    concat::Concat,
    cumulative::Cumulative,
    gemm::Gemm,
    identity::Dropout,
    layer_norm::LayerNorm,
    loss::{Loss, Reduction},
    matmul::MatMul,
    reduce::{Reduce, ReduceKind},
    select::Where,
    softmax::{Softmax, SoftmaxKind},
    unary::Unary,
    variadic::Variadic,
};

fn f64s(data: &[f64]) -> Tensor {
    Tensor::new(DType::F64, vec![data.len()], data.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap()
}

#[track_caller]
fn exactly(t: &Tensor, expected: &[f64]) {
    assert_eq!(t.as_f64().unwrap(), expected);
}

/// What `f32` cannot tell from 1.
const NEAR: f64 = 1.0 + 1e-12;

#[test]
fn f64_keeps_its_digits() {
    let (x, y) = (f64s(&[NEAR, 2.0]), f64s(&[1.0, 1e-300]));
    exactly(&run(Binary::Sub, &[&x, &y]), &[NEAR - 1.0, 2.0]);
    exactly(&run(Binary::Mul, &[&x, &y]), &[NEAR, 2e-300]);
    exactly(&run(Binary::Add, &[&x, &f64s(&[1e-13])]), &[NEAR + 1e-13, 2.0 + 1e-13]);
    exactly(&run(Binary::Pow, &[&x, &ints(DType::I64, &[2])]), &[NEAR * NEAR, 4.0]);
    exactly(&run(Binary::Max, &[&x, &f64s(&[NEAR, NEAR])]), &[NEAR, 2.0]);
    same_ints(&run(Binary::Greater, &[&x, &f64s(&[1.0, NEAR])]), &[2], &[1, 1]);
    exactly(&run(Unary::Neg, &[&x]), &[-NEAR, -2.0]);
    exactly(&run(Unary::Sqrt, &[&x]), &[NEAR.sqrt(), 2f64.sqrt()]);
    exactly(&run(Variadic::Mean, &[&x, &x, &x]), &[NEAR, 2.0]);
    exactly(&run(Mod { fmod: false }, &[&f64s(&[-NEAR]), &f64s(&[1.0])]), &[-NEAR % 1.0 + 1.0]);
    let all = |kind| Reduce { kind, keepdims: false, noop_with_empty_axes: false };
    exactly(&run(all(ReduceKind::Sum), &[&x]), &[NEAR + 2.0]);
    exactly(&run(all(ReduceKind::Min), &[&x]), &[NEAR]);
    let huge = run(all(ReduceKind::LogSumExp), &[&f64s(&[1e300, 1e300])]);
    exactly(&huge, &[1e300]);
    let axis = Tensor::ints(DType::I64, &[], &[0]);
    let sum = |reverse| Cumulative { product: false, exclusive: true, reverse };
    exactly(&run(sum(false), &[&x, &axis]), &[0.0, NEAR]);
    exactly(&run(sum(true), &[&x, &axis]), &[2.0, 0.0]);
    exactly(&run(Where, &[&ints(DType::Bool, &[1, 0]), &x, &y]), &[NEAR, 1e-300]);
    exactly(&run(Concat { axis: 0 }, &[&x, &y]), &[NEAR, 2.0, 1.0, 1e-300]);
    exactly(&run(Softmax { kind: SoftmaxKind::Soft, axis: 0, coerced: false }, &[&f64s(&[7.0])]), &[1.0]);
    let column = x.clone().reshaped(vec![2, 1]).unwrap();
    exactly(&run(MatMul, &[&f64s(&[1.0, 1e-13]), &column]), &[NEAR + 2e-13]);
    exactly(&run(Cast::new(DType::F64), &[&ints(DType::I64, &[(1 << 53) - 1])]), &[9_007_199_254_740_991.0]);
    same_ints(&run(BitCast { to: DType::I64 }, &[&f64s(&[1.0])]), &[1], &[0x3ff0_0000_0000_0000]);
}

#[test]
fn mixtures_are_no_panic() {
    let (x, y) = (f32s(&[1.0, 2.0]), f64s(&[3.0, 4.0]));
    assert_eq!(run(Binary::Pow, &[&x, &y]).dtype(), DType::F32);
    let evaluate = |op: Op, inputs: &[&Tensor]| {
        let inputs: Vec<Option<Tensor>> = inputs.iter().map(|t| Some((*t).clone())).collect();
        // Any answer will do.
        let _ = BurnInterpreter { device: Device::of_tests() }.eval(&op, &inputs);
    };
    let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: true };
    let square = |t: &Tensor| t.clone().reshaped(vec![1, 2]).unwrap();
    for (p, q) in [(&x, &y), (&y, &x)] {
        for op in [Binary::Add, Binary::Max, Binary::Less, Binary::PRelu] {
            evaluate(op.into(), &[p, q]);
        }
        evaluate(MatMul.into(), &[p, q]);
        evaluate(gemm.clone().into(), &[&square(p), &square(q), p]);
        evaluate(Where.into(), &[&ints(DType::Bool, &[1, 0]), p, q]);
        evaluate(LayerNorm { axis: 0, epsilon: 1e-5, stash_type: DType::F32, statistics: false }.into(), &[p, q, p]);
        for wrong in [DType::I64, DType::U4, DType::F8E5M2, DType::F8E8M0] {
            let t = run(Cast::new(wrong), &[q]);
            for op in [Unary::Exp, Unary::Not, Unary::BitwiseNot, Unary::IsNaN] {
                evaluate(op.into(), &[&t]);
            }
            evaluate(Binary::Add.into(), &[p, &t]);
            evaluate(BitShift { right: true }.into(), &[&t, &t]);
        }
    }
}

#[test]
fn narrow_types_round() {
    let x = f32s(&[1.1, -300.0, 0.3]);
    let f8 = run(Cast::new(DType::F8E4M3FN), &[&x]);
    assert_eq!((f8.dtype(), f8.bytes().len()), (DType::F8E4M3FN, 3));
    close(&f8, &[3], &[1.125, -288.0, 0.3125]);
    let rounding = Rounding { saturate: false, ..Rounding::default() };
    close(&run(Cast { to: DType::F8E5M2, rounding }, &[&f32s(&[1e9])]), &[1], &[f32::INFINITY]);
    let f4 = run(Cast::new(DType::F4E2M1), &[&x]);
    assert_eq!(f4.bytes().len(), 2);
    close(&f4, &[3], &[1.0, -6.0, 0.5]);
    let i4 = run(Cast::new(DType::I4), &[&ints(DType::I32, &[7, -8, 9])]);
    assert_eq!(i4.bytes(), [0x87, 0x09]);
    same_ints(&i4, &[3], &[7, -8, -7]);
    same_ints(&run(Concat { axis: 0 }, &[&i4, &i4]), &[6], &[7, -8, -7, 7, -8, -7]);
    same_ints(&run(Cast::new(DType::I32), &[&run(Cast::new(DType::U2), &[&f32s(&[3.0, 1.9])])]), &[2], &[3, 1]);
}

#[test]
fn integers_at_their_edges() {
    let shift = |right, x: &[i64], by: &[i64]| run(BitShift { right }, &[&ints(DType::I8, x), &ints(DType::I8, by)]);
    same_ints(&shift(true, &[-128, -1, 64], &[3, 9, 9]), &[3], &[-16, -1, 0]);
    same_ints(&shift(false, &[1, 64, 1], &[7, 1, -1]), &[3], &[-128, -128, 0]);
    let rest = |fmod| run(Mod { fmod }, &[&ints(DType::I32, &[-7, 7, -6]), &ints(DType::I32, &[3, -3, 3])]);
    same_ints(&rest(false), &[3], &[2, -2, 0]);
    same_ints(&rest(true), &[3], &[-1, 1, 0]);
    assert_eq!(
        fails(Mod { fmod: true }, &[&ints(DType::I32, &[1]), &ints(DType::I32, &[0])]),
        compress_compiler::error::Kind::Malformed
    );
    let (x, y) = (Tensor::ints(DType::I64, &[2, 2], &[1, 2, 3, 4]), Tensor::ints(DType::I64, &[2, 2], &[5, 6, 7, 8]));
    same_ints(&run(MatMul, &[&x, &y]), &[2, 2], &[19, 22, 43, 50]);
    let arg = |select_last_index| Arg { max: true, axis: 0, keepdims: false, select_last_index };
    same_ints(&run(arg(false), &[&ints(DType::U64, &[3, -1, -1])]), &[], &[1]);
    same_ints(&run(arg(true), &[&ints(DType::U64, &[3, -1, -1])]), &[], &[2]);
    same_ints(&run(arg(false), &[&f32s(&[3.0, f32::NAN, 5.0])]), &[], &[1]);
}

#[test]
fn classes_outside_are_an_error() {
    let scores = noise(&[2, 3], 1);
    let loss = Loss { softmax: true, reduction: Reduction::Mean, ignore_index: Some(-1) };
    for bad in [3, -2, i64::MIN] {
        fails(loss.clone(), &[&scores, &ints(DType::I64, &[0, bad])]);
    }
    let made = try_run(loss, &[Some(scores), Some(ints(DType::I64, &[0, -1]))], 2).unwrap();
    assert_eq!((made[0].shape(), made[1].shape()), (&[][..], &[2, 3][..]));
}

#[test]
fn dropout_in_training_is_left_to_chance() {
    let op = Dropout { ratio: 0.5, mask: true, trains: true };
    let (x, on) = (f32s(&[1.0, 2.0]), Tensor::ints(DType::Bool, &[], &[1]));
    let given = |ratio| [Some(x.clone()), Some(scalar(ratio)), Some(on.clone())];
    let kept = try_run(op.clone(), &given(0.0), 2).unwrap();
    same_ints(&kept[1], &[2], &[1, 1]);
    assert!(BurnInterpreter { device: Device::of_tests() }.eval(&op.into(), &given(0.5)).is_err());
}
