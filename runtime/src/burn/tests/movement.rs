use super::*;
use compress_compiler::{
    error::Kind,
    ops::{
        concat::Concat,
        expand::{ConstantOfShape, Expand},
        gather::Gather,
        pad::{Pad, PadMode},
        range::Range,
        reshape::{Flatten, Reshape},
        resize::{Coordinates, Interpolation, Nearest, Resize},
        scatter::{Reduction, ScatterNd},
        shape::Shape,
        slice::Slice,
        split::Split,
        squeeze::{Squeeze, Unsqueeze},
        transpose::Transpose,
    },
};

/// 0, 1, 2, ... as floats, as 64-bit integers, and as bytes: all three move alike.
fn kinds(shape: &[usize]) -> [Tensor; 3] {
    let data: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
    let floats: Vec<f32> = data.iter().map(|v| *v as f32).collect();
    [Tensor::f32(shape, &floats), Tensor::ints(DType::I64, shape, &data), Tensor::ints(DType::U8, shape, &data)]
}

fn numbers(t: &Tensor) -> Vec<i64> {
    t.as_i64().unwrap_or_else(|| floats(t).iter().map(|v| *v as i64).collect())
}

/// All kinds of tensor of `shape`, moved by `op`, must come out as `expected`.
#[track_caller]
fn moves(op: impl Into<Op>, shape: &[usize], rest: &[Tensor], out: &[usize], expected: &[i64]) {
    let op = op.into();
    for x in kinds(shape) {
        let inputs: Vec<&Tensor> = std::iter::once(&x).chain(rest).collect();
        let y = run(op.clone(), &inputs);
        assert_eq!((y.dtype(), y.shape(), &numbers(&y)[..]), (x.dtype(), out, expected));
    }
}

#[test]
fn shapes() {
    let six: Vec<i64> = (0..6).collect();
    let list = |l: &[i64]| [Tensor::i64s(l)];
    moves(Reshape { allow_zero: false }, &[2, 3], &list(&[0, -1, 1]), &[2, 3, 1], &six);
    moves(Reshape { allow_zero: false }, &[1], &list(&[]), &[], &[0]);
    moves(Flatten { axis: -1 }, &[1, 2, 3], &[], &[2, 3], &six);
    moves(Flatten { axis: 0 }, &[2, 3], &[], &[1, 6], &six);
    moves(Squeeze, &[1, 2, 1, 3], &list(&[0, -2]), &[2, 3], &six);
    moves(Squeeze, &[1, 2, 1, 3], &[], &[2, 3], &six);
    moves(Unsqueeze, &[2, 3], &list(&[-1, 0]), &[1, 2, 3, 1], &six);
    moves(Transpose { perm: vec![1, 0] }, &[2, 3], &[], &[3, 2], &[0, 3, 1, 4, 2, 5]);
    moves(Transpose { perm: vec![] }, &[1, 2, 3], &[], &[3, 2, 1], &[0, 3, 1, 4, 2, 5]);
    let x = noise(&[2, 3], 1);
    assert_eq!(fails(Reshape { allow_zero: false }, &[&x, &Tensor::i64s(&[4, 2])]), Kind::Malformed);
    assert_eq!(fails(Reshape { allow_zero: false }, &[&x, &Tensor::i64s(&[4, -1])]), Kind::Malformed);
    assert_eq!(fails(Squeeze, &[&x, &Tensor::i64s(&[0])]), Kind::Malformed);
    assert_eq!(fails(Transpose { perm: vec![0, 0] }, &[&x]), Kind::Malformed);
    same_ints(&run(Shape { start: 0, end: None }, &[&x]), &[2], &[2, 3]);
    same_ints(&run(Shape { start: -1, end: None }, &[&Tensor::f32(&[4, 0], &[])]), &[1], &[0]);
}

#[test]
fn slices() {
    let l = |l: &[i64]| Tensor::i64s(l);
    moves(Slice, &[5], &[l(&[1]), l(&[4])], &[3], &[1, 2, 3]);
    moves(Slice, &[5], &[l(&[-1]), l(&[i64::MIN]), l(&[0]), l(&[-1])], &[5], &[4, 3, 2, 1, 0]);
    moves(Slice, &[6], &[l(&[4]), l(&[0]), l(&[0]), l(&[-3])], &[2], &[4, 1]);
    moves(Slice, &[7], &[l(&[0]), l(&[100]), l(&[0]), l(&[3])], &[3], &[0, 3, 6]);
    moves(Slice, &[3, 4], &[l(&[2, 1]), l(&[-100, i64::MAX]), l(&[0, 1]), l(&[-2, 2])], &[2, 2], &[9, 11, 1, 3]);
    moves(Slice, &[2, 3], &[l(&[2]), l(&[1]), l(&[-1])], &[2, 0], &[]);
    let x = noise(&[4], 1);
    assert_eq!(fails(Slice, &[&x, &l(&[0]), &l(&[2]), &l(&[0]), &l(&[0])]), Kind::Malformed);
    assert_eq!(fails(Slice, &[&x, &l(&[0, 1]), &l(&[2, 3]), &l(&[0, 0])]), Kind::Malformed);
    assert_eq!(fails(Slice, &[&x, &l(&[0]), &l(&[2]), &l(&[1])]), Kind::Malformed);
}

#[test]
fn joins_and_cuts() {
    for x in kinds(&[2, 2]) {
        let y = run(Concat { axis: -1 }, &[&x, &x, &x]);
        assert_eq!(
            (y.dtype(), y.shape(), numbers(&y)),
            (x.dtype(), &[2, 6][..], vec![0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3])
        );
    }
    let empty = Tensor::f32(&[2, 0], &[]);
    close(&run(Concat { axis: 1 }, &[&empty, &Tensor::f32(&[2, 1], &[1.0, 2.0]), &empty]), &[2, 1], &[1.0, 2.0]);
    assert_eq!(fails(Concat { axis: 0 }, &[&noise(&[2], 1), &noise(&[2, 1], 1)]), Kind::Malformed);
    assert_eq!(fails(Concat { axis: 0 }, &[&noise(&[2], 1), &Tensor::i64s(&[2])]), Kind::Malformed);
    for x in kinds(&[5]) {
        let op = Split { axis: 0, parts: 3, num_outputs: false };
        let y = try_run(op.clone(), &[Some(x.clone()), Some(Tensor::i64s(&[1, 0, 4]))], 3).unwrap();
        assert_eq!(y.iter().map(numbers).collect::<Vec<_>>(), [vec![0], vec![], vec![1, 2, 3, 4]]);
        let y = try_run(op, &[Some(x.clone())], 3).unwrap();
        assert_eq!(y.iter().map(numbers).collect::<Vec<_>>(), [vec![0, 1], vec![2, 3], vec![4]]);
        assert!(y.iter().all(|t| t.dtype() == x.dtype()));
    }
}

#[test]
fn picks_and_replaces() {
    let at = Tensor::ints(DType::I64, &[2, 1], &[-1, 0]);
    moves(Gather { axis: 1 }, &[2, 3], std::slice::from_ref(&at), &[2, 2, 1], &[2, 0, 5, 3]);
    moves(Gather { axis: 0 }, &[2, 3], &[Tensor::ints(DType::I32, &[], &[1])], &[3], &[3, 4, 5]);
    moves(Gather { axis: 0 }, &[3], &[Tensor::i64s(&[])], &[0], &[]);
    assert_eq!(fails(Gather { axis: 0 }, &[&noise(&[3], 1), &Tensor::i64s(&[3])]), Kind::Malformed);
    assert_eq!(fails(Gather { axis: 0 }, &[&noise(&[3], 1), &Tensor::i64s(&[-4])]), Kind::Malformed);
    for x in kinds(&[3, 2]) {
        let replacement = run(Slice, &[&x, &Tensor::i64s(&[0]), &Tensor::i64s(&[2])]);
        let y = run(
            ScatterNd { reduction: Reduction::Replace },
            &[&x, &Tensor::ints(DType::I64, &[2, 1], &[2, -2]), &replacement],
        );
        assert_eq!(numbers(&y), [0, 1, 2, 3, 0, 1]);
        let one = run(
            Slice,
            &[
                &run(Reshape { allow_zero: false }, &[&x, &Tensor::i64s(&[6])]),
                &Tensor::i64s(&[5]),
                &Tensor::i64s(&[6]),
            ],
        );
        let y =
            run(ScatterNd { reduction: Reduction::Replace }, &[&x, &Tensor::ints(DType::I64, &[1, 2], &[0, 1]), &one]);
        assert_eq!(numbers(&y), [0, 5, 2, 3, 4, 5]);
    }
    let (x, u) = (noise(&[3, 2], 1), noise(&[1, 2], 1));
    assert_eq!(
        fails(ScatterNd { reduction: Reduction::Replace }, &[&x, &Tensor::ints(DType::I64, &[1, 1], &[3]), &u]),
        Kind::Malformed
    );
    assert_eq!(
        fails(ScatterNd { reduction: Reduction::Replace }, &[&x, &Tensor::ints(DType::I64, &[1, 2], &[0, 0]), &u]),
        Kind::Malformed
    );
}

#[test]
fn borders() {
    let l = |l: &[i64]| Tensor::i64s(l);
    let pad = |mode| Pad { mode };
    moves(pad(PadMode::Constant), &[2, 2], &[l(&[0, 1, 1, 0])], &[3, 3], &[0, 0, 1, 0, 2, 3, 0, 0, 0]);
    moves(pad(PadMode::Edge), &[3], &[l(&[2, 1])], &[6], &[0, 0, 0, 1, 2, 2]);
    moves(pad(PadMode::Reflect), &[3], &[l(&[2, 3])], &[8], &[2, 1, 0, 1, 2, 1, 0, 1]);
    moves(pad(PadMode::Constant), &[5], &[l(&[-1, -2])], &[2], &[1, 2]);
    moves(pad(PadMode::Edge), &[5], &[l(&[-2, 2])], &[5], &[2, 3, 4, 4, 4]);
    let x = f32s(&[1.0, 2.0]);
    close(&run(pad(PadMode::Constant), &[&x, &l(&[1, 0]), &scalar(-7.5)]), &[3], &[-7.5, 1.0, 2.0]);
    let inputs = [Some(noise(&[1, 2], 1)), Some(l(&[1, 1])), None, Some(l(&[-2]))];
    assert_eq!(try_run(pad(PadMode::Constant), &inputs, 1).unwrap()[0].shape(), [3, 2]);
    assert_eq!(fails(pad(PadMode::Constant), &[&x, &l(&[-3, 0])]), Kind::Malformed);
    assert_eq!(fails(pad(PadMode::Constant), &[&x, &l(&[1 << 40, 0])]), Kind::Limit);
    assert_eq!(fails(pad(PadMode::Edge), &[&x, &l(&[1 << 40, 0])]), Kind::Limit);
    assert_eq!(fails(pad(PadMode::Constant), &[&x, &l(&[i64::MIN, i64::MIN])]), Kind::Malformed);
}

#[test]
fn growth() {
    moves(Expand, &[2, 1], &[Tensor::i64s(&[2, 1, 3])], &[2, 2, 3], &[0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1]);
    moves(Expand, &[3], &[Tensor::i64s(&[1])], &[3], &[0, 1, 2]);
    moves(Expand, &[1], &[Tensor::i64s(&[0])], &[0], &[]);
    assert_eq!(fails(Expand, &[&scalar(1.0), &Tensor::i64s(&[1 << 20, 1 << 20])]), Kind::Limit);
    assert_eq!(fails(Expand, &[&scalar(1.0), &Tensor::i64s(&[-2])]), Kind::Malformed);
    for value in kinds(&[1]) {
        let y = run(ConstantOfShape { value: value.clone() }, &[&Tensor::i64s(&[2, 2])]);
        assert_eq!((y.dtype(), y.shape(), numbers(&y)), (value.dtype(), &[2, 2][..], vec![0; 4]));
        let op = ConstantOfShape { value };
        assert_eq!(fails(op, &[&Tensor::i64s(&[i64::MAX, 2])]), Kind::Limit);
    }
    let one = |v| Tensor::ints(DType::I64, &[], &[v]);
    same_ints(&run(Range, &[&one(10), &one(3), &one(-3)]), &[3], &[10, 7, 4]);
    same_ints(&run(Range, &[&one(3), &one(3), &one(1)]), &[0], &[]);
    close(&run(Range, &[&scalar(0.0), &scalar(1.0), &scalar(0.3)]), &[4], &[0.0, 0.3, 0.6, 0.9]);
    assert_eq!(fails(Range, &[&one(0), &one(i64::MAX), &one(1)]), Kind::Limit);
    assert_eq!(fails(Range, &[&one(0), &one(1), &one(0)]), Kind::Malformed);
    assert_eq!(fails(Range, &[&scalar(0.0), &scalar(f32::INFINITY), &scalar(1.0)]), Kind::Limit);
}

fn resize(mode: Interpolation, coordinates: Coordinates, nearest: Nearest, x: &Tensor, scales: &[f32]) -> Tensor {
    let op = Resize { mode, coordinates, nearest, ..Resize::default() };
    try_run(op, &[Some(x.clone()), None, Some(f32s(scales))], 1).unwrap().remove(0)
}

#[test]
fn resizes() {
    use Coordinates::*;
    let x = Tensor::f32(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let up = [1.0, 1.0, 2.0, 2.0];
    // The examples of the ONNX specification.
    let y = resize(Interpolation::Nearest, HalfPixel, Nearest::RoundPreferFloor, &x, &[1.0, 1.0, 2.0, 3.0]);
    #[rustfmt::skip]
    close(&y, &[1, 1, 4, 6], &[
        1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0,
        3.0, 3.0, 3.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 4.0, 4.0, 4.0,
    ]);
    let y = resize(Interpolation::Linear, HalfPixel, Nearest::RoundPreferFloor, &x, &up);
    #[rustfmt::skip]
    close(&y, &[1, 1, 4, 4], &[
        1.0, 1.25, 1.75, 2.0, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3.0, 3.25, 3.75, 4.0,
    ]);
    let y = resize(Interpolation::Linear, AlignCorners, Nearest::RoundPreferFloor, &x, &up);
    #[rustfmt::skip]
    close(&y, &[1, 1, 4, 4], &[
        1.0, 1.333_333_4, 1.666_666_7, 2.0, 1.666_666_7, 2.0, 2.333_333_3, 2.666_666_7,
        2.333_333_3, 2.666_666_7, 3.0, 3.333_333_3, 3.0, 3.333_333_3, 3.666_666_7, 4.0,
    ]);
    let x = Tensor::f32(&[1, 1, 2, 4], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
    let down = [1.0, 1.0, 0.6, 0.6];
    let y = resize(Interpolation::Linear, HalfPixel, Nearest::RoundPreferFloor, &x, &down);
    close(&y, &[1, 1, 1, 2], &[2.666_666_5, 4.333_333_5]);
    let y = resize(Interpolation::Linear, AlignCorners, Nearest::RoundPreferFloor, &x, &down);
    close(&y, &[1, 1, 1, 2], &[1.0, 3.142_857]);
    let y = resize(Interpolation::Nearest, HalfPixel, Nearest::RoundPreferFloor, &x, &down);
    close(&y, &[1, 1, 1, 2], &[1.0, 3.0]);
    let y = resize(Interpolation::Linear, PytorchHalfPixel, Nearest::Floor, &x, &[1.0, 1.0, 0.5, 0.5]);
    close(&y, &[1, 1, 1, 2], &[1.5, 3.5]);
    // How ties are rounded: pixels 0.5, 1.5, ... of a line.
    let line = Tensor::f32(&[1, 1, 4], &[0.0, 1.0, 2.0, 3.0]);
    for (mode, expected) in [
        (Nearest::RoundPreferFloor, [0.0, 2.0]),
        (Nearest::RoundPreferCeil, [1.0, 3.0]),
        (Nearest::Floor, [0.0, 2.0]),
        (Nearest::Ceil, [1.0, 3.0]),
    ] {
        close(&resize(Interpolation::Nearest, HalfPixel, mode, &line, &[1.0, 1.0, 0.5]), &[1, 1, 2], &expected);
    }
    let y = resize(Interpolation::Nearest, Asymmetric, Nearest::Floor, &line, &[1.0, 1.0, 2.0]);
    close(&y, &[1, 1, 8], &[0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    // By sizes, and of bytes.
    let op = Resize { coordinates: Asymmetric, nearest: Nearest::Floor, ..Resize::default() };
    let bytes = Tensor::ints(DType::U8, &[1, 1, 2], &[7, 200]);
    let y = try_run(op.clone(), &[Some(bytes), None, None, Some(Tensor::i64s(&[1, 1, 3]))], 1).unwrap().remove(0);
    same_ints(&y, &[1, 1, 3], &[7, 7, 200]);
    let inputs = [Some(line), None, Some(f32s(&[1.0, 1.0, 1e30]))];
    assert_eq!(
        BurnInterpreter { device: Device::of_tests() }.eval(&op.into(), &inputs).unwrap_err().kind(),
        Kind::Limit
    );
}
