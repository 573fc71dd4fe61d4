use super::*;
use compress_compiler::{
    error::Kind,
    ops::{activation::Activation, binary::Binary, cast::Cast, clip::Clip, select::Where, unary::Unary},
};

const XS: [f32; 11] = [-90.0, -3.5, -2.5, -1.0, -0.5, 0.0, 0.5, 1.5, 2.5, 30.0, 90.0];

#[test]
fn unary_functions() {
    let cases: &[(Unary, fn(f64) -> f64)] = &[
        (Unary::Relu, |x| x.max(0.0)),
        (Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        (Unary::Tanh, f64::tanh),
        (Unary::Neg, |x| -x),
        (Unary::Abs, f64::abs),
        (Unary::Sign, |x| if x == 0.0 { 0.0 } else { x.signum() }),
        (Unary::Ceil, f64::ceil),
        (Unary::Floor, f64::floor),
        (Unary::Round, f64::round_ties_even),
        (Unary::Sin, f64::sin),
        (Unary::Cos, f64::cos),
        (Unary::Reciprocal, |x| 1.0 / x),
        (Unary::Log, f64::ln),
        (Unary::Sqrt, f64::sqrt),
        (Unary::Softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        (Unary::HardSwish, |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
    ];
    for (op, f) in cases {
        let expected: Vec<f32> = XS.iter().map(|x| f(f64::from(*x)) as f32).collect();
        close(&run(*op, &[&f32s(&XS)]), &[11], &expected);
        close(&run(*op, &[&scalar(2.5)]), &[], &[f(2.5) as f32]);
    }
    let small: Vec<f32> = XS.iter().map(|x| x / 10.0).collect();
    let expected: Vec<f32> = small.iter().map(|x| x.exp()).collect();
    close(&run(Unary::Exp, &[&f32s(&small)]), &[11], &expected);
}

/// Values of the error function to nine places.
const ERF: [(f32, f32); 6] = [
    (0.0, 0.0),
    (0.1, 0.112_462_916),
    (0.5, 0.520_499_88),
    (1.0, 0.842_700_8),
    (2.0, 0.995_322_26),
    (-3.0, -0.999_977_9),
];

#[test]
fn error_function_is_accurate() {
    let x = ERF.map(|p| p.0);
    for (a, (_, b)) in floats(&run(Unary::Erf, &[&f32s(&x)])).iter().zip(ERF) {
        assert!((a - b).abs() < 1e-6, "{a} {b}");
    }
    let x = ERF.map(|p| p.0 * std::f32::consts::SQRT_2);
    let gelu = floats(&run(Activation::Gelu { tanh: false }, &[&f32s(&x)]));
    for ((a, x), (_, e)) in gelu.iter().zip(x).zip(ERF) {
        assert!((a - 0.5 * x * (1.0 + e)).abs() < 1e-6, "{a} {x}");
    }
}

#[test]
fn activations() {
    let cases: &[(Activation, fn(f64) -> f64)] = &[
        (Activation::LeakyRelu { alpha: 0.25 }, |x| if x < 0.0 { 0.25 * x } else { x }),
        (Activation::Elu { alpha: 2.0 }, |x| if x < 0.0 { 2.0 * (x.exp() - 1.0) } else { x }),
        (Activation::HardSigmoid { alpha: 0.5, beta: 0.25 }, |x| (0.5 * x + 0.25).clamp(0.0, 1.0)),
        (Activation::Gelu { tanh: true }, |x| {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }),
    ];
    for (op, f) in cases {
        let expected: Vec<f32> = XS.iter().map(|x| f(f64::from(*x)) as f32).collect();
        close(&run(op.clone(), &[&f32s(&XS)]), &[11], &expected);
    }
}

#[test]
fn nan_passes_through() {
    let x = f32s(&[f32::NAN, 1.0]);
    close(&run(Unary::Relu, &[&x]), &[2], &[f32::NAN, 1.0]);
    close(&run(Clip, &[&x, &scalar(-2.0), &scalar(0.5)]), &[2], &[f32::NAN, 0.5]);
    close(&run(Binary::Max, &[&x, &f32s(&[0.0, f32::NAN])]), &[2], &[f32::NAN; 2]);
    close(&run(Binary::Min, &[&x, &scalar(0.0)]), &[2], &[f32::NAN, 0.0]);
    close(&run(Unary::Atan, &[&x]), &[2], &[f32::NAN, 1f32.atan()]);
}

#[test]
fn powers_of_what_is_special() {
    let (x, y): (Vec<f32>, Vec<f32>) = [
        (0.0, 0.0),
        (0.0, -1.0),
        (0.0, -2.5),
        (0.0, 2.0),
        (f32::NAN, 1.0),
        (f32::NAN, 0.0),
        (1.0, f32::NAN),
        (2.0, f32::NAN),
        (1.0, f32::INFINITY),
        (1.0, f32::NEG_INFINITY),
        (2.0, 3.0),
        (-2.0, 3.0),
    ]
    .into_iter()
    .unzip();
    let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x.powf(*y)).collect();
    close(&run(Binary::Pow, &[&f32s(&x), &f32s(&y)]), &[12], &expected);
}

#[test]
fn infinite_numbers_pass_through() {
    let x = f32s(&[f32::INFINITY, f32::NEG_INFINITY, 1.0]);
    let one = (1.0 + 1f64.exp()).ln();
    close(&run(Unary::Softplus, &[&x]), &[3], &[f32::INFINITY, 0.0, one as f32]);
    close(&run(Unary::Mish, &[&f32s(&[f32::INFINITY, 1.0])]), &[2], &[f32::INFINITY, one.tanh() as f32]);
}

#[test]
fn clips() {
    let x = f32s(&[-5.0, 0.0, 5.0]);
    close(&run(Clip, &[&x]), &[3], &[-5.0, 0.0, 5.0]);
    close(&run(Clip, &[&x, &scalar(-1.0)]), &[3], &[-1.0, 0.0, 5.0]);
    let high = try_run(Clip, &[Some(x.clone()), None, Some(scalar(1.0))], 1).unwrap().remove(0);
    close(&high, &[3], &[-5.0, 0.0, 1.0]);
    // Where the bounds cross, the upper one wins.
    close(&run(Clip, &[&x, &scalar(2.0), &scalar(1.0)]), &[3], &[1.0; 3]);
    let one = |v| Tensor::ints(DType::I32, &[], &[v]);
    let y = run(Clip, &[&ints(DType::I32, &[-9, 3, 9]), &one(-2), &one(4)]);
    same_ints(&y, &[3], &[-2, 3, 4]);
}

#[test]
fn binary_functions_broadcast() {
    let (a, b) = (noise(&[2, 3, 1], 1), noise(&[3, 4], 2));
    let cases: &[(Binary, fn(f32, f32) -> f32)] = &[
        (Binary::Add, |x, y| x + y),
        (Binary::Sub, |x, y| x - y),
        (Binary::Mul, |x, y| x * y),
        (Binary::Div, |x, y| x / y),
        (Binary::Min, f32::min),
        (Binary::Max, f32::max),
        (Binary::Pow, f32::powf),
    ];
    for (op, f) in cases {
        let (xa, xb) = (floats(&a), floats(&b));
        let y: Vec<f32> = (0..24).map(|i| f(xa[i / 4], xb[i % 12])).collect();
        close(&run(*op, &[&a, &b]), &[2, 3, 4], &y);
        let flipped: Vec<f32> = (0..24).map(|i| f(xb[i % 12], xa[i / 4])).collect();
        close(&run(*op, &[&b, &a]), &[2, 3, 4], &flipped);
        let scalars: Vec<f32> = xb.iter().map(|x| f(*x, 2.0)).collect();
        close(&run(*op, &[&b, &scalar(2.0)]), &[3, 4], &scalars);
        let front: Vec<f32> = xb.iter().map(|x| f(2.0, *x)).collect();
        close(&run(*op, &[&scalar(2.0), &b]), &[3, 4], &front);
        close(&run(*op, &[&scalar(3.0), &Tensor::f32(&[1, 1], &[2.0])]), &[1, 1], &[f(3.0, 2.0)]);
    }
    assert_eq!(fails(Binary::Add, &[&noise(&[2], 1), &noise(&[3], 1)]), Kind::Malformed);
    let wide = (noise(&[1 << 16, 1], 1), noise(&[1, 1 << 16], 1));
    assert_eq!(fails(Binary::Add, &[&wide.0, &wide.1]), Kind::Limit);
}

#[test]
fn powers() {
    let x = f32s(&[-2.0, 0.0, 3.0]);
    close(&run(Binary::Pow, &[&x, &ints(DType::I64, &[3])]), &[3], &[-8.0, 0.0, 27.0]);
    close(&run(Binary::Pow, &[&x, &ints(DType::I64, &[2, 1, 0])]), &[3], &[4.0, 0.0, 1.0]);
    close(&run(Binary::Pow, &[&x, &scalar(f32::INFINITY)]), &[3], &[f32::INFINITY, 0.0, f32::INFINITY]);
    let y = run(Binary::Pow, &[&ints(DType::I32, &[-2, 3, 10]), &ints(DType::I32, &[3, 4, 0])]);
    same_ints(&y, &[3], &[-8, 81, 1]);
    same_ints(&run(Binary::Pow, &[&ints(DType::I64, &[4, 9]), &scalar(0.5)]), &[2], &[2, 3]);
}

#[test]
fn slopes_and_choices() {
    let x = Tensor::f32(&[1, 2, 2], &[-1.0, 2.0, -3.0, 4.0]);
    let slope = Tensor::f32(&[2, 1], &[0.5, 0.1]);
    close(&run(Binary::PRelu, &[&x, &slope]), &[1, 2, 2], &[-0.5, 2.0, -0.3, 4.0]);
    assert_eq!(fails(Binary::PRelu, &[&slope, &x]), Kind::Malformed);
    let c = Tensor::ints(DType::Bool, &[2, 1], &[1, 0]);
    let y = run(Where, &[&c, &f32s(&[1.0, 2.0]), &scalar(9.0)]);
    close(&y, &[2, 2], &[1.0, 2.0, 9.0, 9.0]);
    let y = run(Where, &[&c, &ints(DType::I64, &[1, 2]), &Tensor::ints(DType::I64, &[], &[9])]);
    same_ints(&y, &[2, 2], &[1, 2, 9, 9]);
}

#[test]
fn integers_wrap_and_truncate() {
    let run2 = |op, d, a: &[i64], b: &[i64]| run(op, &[&ints(d, a), &ints(d, b)]).as_i64().unwrap();
    assert_eq!(run2(Binary::Div, DType::I64, &[7, -7, 7, -7], &[2, 2, -2, -2]), [3, -3, -3, 3]);
    assert_eq!(run2(Binary::Add, DType::U8, &[250], &[10]), [4]);
    assert_eq!(run2(Binary::Mul, DType::I8, &[100], &[2]), [-56]);
    assert_eq!(run2(Binary::Div, DType::I64, &[i64::MIN], &[-1]), [i64::MIN]);
    assert_eq!(run2(Binary::Div, DType::U64, &[-2], &[2]), [i64::MAX]);
    assert_eq!(run2(Binary::Less, DType::U64, &[-1, 1], &[1, -1]), [0, 1]);
    assert_eq!(fails(Binary::Div, &[&ints(DType::I64, &[1]), &ints(DType::I64, &[0])]), Kind::Malformed);
    let y = run(Binary::Xor, &[&ints(DType::Bool, &[1, 1, 0]), &ints(DType::Bool, &[1, 0, 0])]);
    assert_eq!(y.dtype(), DType::Bool);
    same_ints(&y, &[3], &[0, 1, 0]);
    same_ints(&run(Unary::Not, &[&y]), &[3], &[1, 0, 1]);
    same_ints(&run(Unary::Abs, &[&ints(DType::I8, &[-128, -3])]), &[2], &[-128, 3]);
    let y = run(Binary::GreaterOrEqual, &[&f32s(&[1.0, 2.0, f32::NAN]), &scalar(2.0)]);
    same_ints(&y, &[3], &[0, 1, 0]);
}

#[test]
fn casts() {
    let x = f32s(&[-1.9, 2.5, 300.7, f32::NAN, f32::INFINITY]);
    same_ints(&run(Cast::new(DType::I32), &[&x]), &[5], &[-1, 2, 300, 0, i32::MAX as i64]);
    same_ints(&run(Cast::new(DType::U8), &[&x]), &[5], &[0, 2, 255, 0, 255]);
    same_ints(&run(Cast::new(DType::Bool), &[&f32s(&[0.0, 0.5, -0.0])]), &[3], &[0, 1, 0]);
    same_ints(&run(Cast::new(DType::U8), &[&ints(DType::I64, &[-1, 300])]), &[2], &[255, 44]);
    close(&run(Cast::new(DType::F32), &[&ints(DType::U64, &[-1, 3])]), &[2], &[u64::MAX as f32, 3.0]);
    close(&run(Cast::new(DType::F32), &[&Tensor::ints(DType::U8, &[1, 2], &[7, 255])]), &[1, 2], &[7.0, 255.0]);
    let half = run(Cast::new(DType::F16), &[&f32s(&[1.0 + 1.0 / 4096.0, 70000.0])]);
    assert_eq!(half.dtype(), DType::F16);
    close(&half, &[2], &[1.0, f32::INFINITY]);
    close(&run(Cast::new(DType::F32), &[&half]), &[2], &[1.0, f32::INFINITY]);
    let wide = run(Cast::new(DType::F64), &[&f32s(&[0.1, -2.0])]);
    assert_eq!((wide.dtype(), wide.bytes().len()), (DType::F64, 16));
    close(&run(Cast::new(DType::F32), &[&wide]), &[2], &[0.1, -2.0]);
    same_ints(&run(Cast::new(DType::I8), &[&wide]), &[2], &[0, -2]);
}
