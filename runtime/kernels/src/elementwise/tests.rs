use super::*;
use crate::testing::{Grid, Noise, cases, isas};
use proptest::prelude::*;

/// What an operator is, in `f64`, where the error function is left to [`erf`].
fn naive(f: UnaryOp, x: f64) -> f64 {
    match f {
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::Clip(min, max) => x.clamp(min.into(), max.into()),
        UnaryOp::LeakyRelu(slope) => x.max(0.0) + x.min(0.0) * f64::from(slope),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::HardSigmoid(a, b) => (f64::from(a) * x + f64::from(b)).clamp(0.0, 1.0),
        UnaryOp::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        UnaryOp::Erf => erf(x),
        UnaryOp::Log => x.ln(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Square => x * x,
        UnaryOp::Cube => x * x * x,
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
    }
}

/// The error function by its series, which converges everywhere; up to 5 its rounding errors stay
/// below 1e-9.
fn erf(x: f64) -> f64 {
    if x.abs() > 5.0 {
        return x.signum();
    }
    // 2 / sqrt(pi) * exp(-x^2) * sum of 2^n x^(2n + 1) / (2n + 1)!!: all terms of one sign.
    let (mut term, mut sum) = (x, 0.0);
    for n in 0..200 {
        sum += term;
        term *= 2.0 * x * x / f64::from(2 * n + 3);
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
}

const OPS: [UnaryOp; 24] = [
    UnaryOp::Relu,
    UnaryOp::Clip(-0.5, 6.0),
    UnaryOp::LeakyRelu(0.1),
    UnaryOp::Sigmoid,
    UnaryOp::Tanh,
    UnaryOp::Exp,
    UnaryOp::Sqrt,
    UnaryOp::Neg,
    UnaryOp::Abs,
    UnaryOp::HardSigmoid(0.2, 0.5),
    UnaryOp::HardSwish,
    UnaryOp::Silu,
    UnaryOp::Gelu,
    UnaryOp::GeluTanh,
    UnaryOp::Erf,
    UnaryOp::Log,
    UnaryOp::Floor,
    UnaryOp::Ceil,
    UnaryOp::Round,
    UnaryOp::Reciprocal,
    UnaryOp::Square,
    UnaryOp::Cube,
    UnaryOp::Sin,
    UnaryOp::Cos,
];

fn run(isa: Isa, f: UnaryOp, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    unary(isa, f, Rows::dense(x, 1, x.len()), RowsMut::dense(&mut y, 1, x.len()), 1);
    y
}

/// The greatest error, beside the result.
fn check(f: UnaryOp, x: &[f32]) {
    let portable = run(Isa::Portable, f, x);
    for isa in isas() {
        let same =
            run(isa, f, x).iter().zip(&portable).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan());
        assert!(same, "{isa} gives {f:?} as all others do");
    }
    for (&x, &got) in x.iter().zip(&portable) {
        let want = naive(f, f64::from(x));
        if x.is_nan() || want.is_nan() {
            assert!(got.is_nan(), "{f:?} of {x}: {got}");
            continue;
        }
        // What is nearly 0 at the left end is a product with `x` of what has no more than an
        // absolute accuracy.
        let gate = [UnaryOp::Gelu, UnaryOp::GeluTanh, UnaryOp::HardSwish, UnaryOp::HardSigmoid(0.2, 0.5)];
        let cancelled = if gate.contains(&f) { 1e-7 } else { 0.0 };
        // What is too small for a normal float has fewer bits, or is 0.
        let absolute = cancelled + f64::from(f32::MIN_POSITIVE);
        let allowed = 1e-6 * want.abs() + absolute * f64::from(x.abs().max(1.0));
        let exact = want as f32;
        assert!(
            got == exact || (f64::from(got) - want).abs() <= allowed,
            "{f:?} of {x} is {want}, not {got} (error {:.2e})",
            (f64::from(got) - want).abs() / want.abs()
        );
    }
}

#[test]
fn functions_are_accurate() {
    let mut x: Vec<f32> = (-120_000..120_000).map(|i| i as f32 / 1000.0).collect();
    x.extend((-12_000..12_000).map(|i| i as f32 / 12_345.0));
    // Of all exponents.
    x.extend((0..0x7f80_0000u32).step_by(10_007).flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]));
    x.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 88.72, 88.73, -87.3, -103.9, -104.1, 1.0]);
    for f in OPS {
        check(f, &x);
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn operators_of_any_shapes(
        rows in 1usize..6, width in 1usize..150, gap in 0usize..3, threads in 1usize..4,
        a in 0usize..4, b in 0usize..4, seed: u64,
    ) {
        let mut noise = Noise(seed);
        let shape = |kind: usize| [(rows, width), (1, width), (rows, 1), (1, 1)][kind];
        let [(a_rows, a_width), (b_rows, b_width)] = [shape(a), shape(b)];
        let a = Grid::new(a_rows, a_width, gap, 7.0, || noise.float());
        let b = Grid::new(b_rows, b_width, gap, 7.0, || noise.float());
        for isa in isas() {
            for (op, f) in [
                (BinaryOp::Add, (|a, b| a + b) as fn(f32, f32) -> f32),
                (BinaryOp::Sub, |a, b| a - b),
                (BinaryOp::Mul, |a, b| a * b),
                (BinaryOp::Div, |a, b| a / b),
                (BinaryOp::Max, f32::max),
                (BinaryOp::Min, f32::min),
                (BinaryOp::Pow, f32::powf),
                (BinaryOp::PRelu, |a, b| if a < 0.0 { a * b } else { a }),
            ] {
                let mut y = Grid::new(rows, width, gap, 9.0, || 1.0);
                binary(isa, op, a.rows(), b.rows(), y.rows_mut(), threads);
                y.values();
                for i in 0..rows {
                    for j in 0..width {
                        let va = a.at(i.min(a_rows - 1), j.min(a_width - 1));
                        let vb = b.at(i.min(b_rows - 1), j.min(b_width - 1));
                        let (got, want) = (y.at(i, j), f(va, vb));
                        assert!(got == want || got.is_nan() && want.is_nan(), "{isa} {op:?} of {va}, {vb}: {got}");
                    }
                }
            }
            let mut y = Grid::new(rows, width, gap, 9.0, || 1.0);
            if (a_rows, a_width) == (rows, width) {
                unary(isa, UnaryOp::Relu, a.rows(), y.rows_mut(), threads);
                assert_eq!(y.values(), a.values().iter().map(|x| x.max(0.0)).collect::<Vec<_>>());
                for f in OPS {
                    unary(isa, f, a.rows(), y.rows_mut(), threads);
                    let mut here = a.values();
                    here.chunks_mut(width).for_each(|row| apply(isa, f, row));
                    let same = here.iter().zip(y.values()).all(|(a, b)| *a == b || a.is_nan() && b.is_nan());
                    assert!(same, "{isa} {f:?}: in place");
                }
            }
        }
    }

    #[test]
    fn pairs_are_turned(rows in 1usize..6, half in 1usize..70, gap in 0usize..3, threads in 1usize..4, seed: u64) {
        let mut noise = Noise(seed);
        let width = 2 * half;
        let [x, cos, sin] = [(); 3].map(|()| Grid::new(rows, width, gap, 7.0, || noise.float()));
        for isa in isas() {
            let mut y = Grid::new(rows, width, gap, 9.0, || 1.0);
            let angle = |i: usize| [rows - 1 - i, i / 2];
            rotate(isa, x.rows(), [cos.rows(), sin.rows()], angle, y.rows_mut(), threads);
            for i in 0..rows {
                for j in 0..width {
                    let across = if j < half { -x.at(i, j + half) } else { x.at(i, j - half) };
                    let [of_cos, of_sin] = angle(i);
                    prop_assert_eq!(y.at(i, j), x.at(i, j) * cos.at(of_cos, j) + across * sin.at(of_sin, j));
                }
            }
        }
    }

    #[test]
    fn rows_are_normalised(rows in 1usize..5, width in 1usize..150, gap in 0usize..3, threads in 1usize..4, seed: u64) {
        let mut noise = Noise(seed);
        let size = 0.1 + 20.0 * noise.float().abs();
        let x = Grid::new(rows, width, gap, 7.0, || size * noise.float());
        let scale: Vec<f32> = (0..width).map(|_| noise.float()).collect();
        let bias: Vec<f32> = (0..width).map(|_| noise.float()).collect();
        let mut first: Option<[Vec<f32>; 6]> = None;
        for isa in isas() {
            let mut y = [(); 6].map(|()| Grid::new(rows, width, gap, 9.0, || 1.0));
            softmax(isa, x.rows(), y[0].rows_mut(), threads);
            log_softmax(isa, x.rows(), y[1].rows_mut(), threads);
            layer_norm(isa, x.rows(), &scale, None, 1e-5, y[2].rows_mut(), threads);
            layer_norm(isa, x.rows(), &scale, Some(&bias), 1e-5, y[3].rows_mut(), threads);
            rms_norm(isa, x.rows(), None, 1e-5, y[4].rows_mut(), threads);
            rms_norm(isa, x.rows(), Some(&scale), 1e-5, y[5].rows_mut(), threads);
            let values = y.each_ref().map(|y| y.values());
            assert_eq!(&values, first.get_or_insert(values.clone()), "{isa} gives what all others give");
            for i in 0..rows {
                let row: Vec<f64> = x.rows().row(i).iter().map(|&x| x.into()).collect();
                let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = row.iter().map(|x| (x - max).exp()).sum();
                let mean = row.iter().sum::<f64>() / width as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let squares = row.iter().map(|x| x * x).sum::<f64>() / width as f64;
                for (j, x) in row.iter().enumerate() {
                    let normal = (x - mean) / (variance + 1e-5).sqrt() * f64::from(scale[j]);
                    let root = x / (squares + 1e-5).sqrt();
                    let want = [
                        (x - max).exp() / sum,
                        x - max - sum.ln(),
                        normal,
                        normal + f64::from(bias[j]),
                        root,
                        root * f64::from(scale[j]),
                    ];
                    let allowed = [1e-5 * want[0], 1e-5 * want[1].abs().max(1.0), 1e-5, 1e-5, 1e-5, 1e-5];
                    for k in 0..6 {
                        let got = f64::from(y[k].at(i, j));
                        assert!((got - want[k]).abs() <= allowed[k] + 1e-30, "{isa}: {k} at {i}, {j}: {got} for {}", want[k]);
                    }
                }
            }
        }
    }
}

#[test]
fn nan_stays_nan() {
    let nan = [f32::NAN; 40];
    for f in OPS {
        for isa in isas() {
            assert!(run(isa, f, &nan).iter().all(|y| y.is_nan()), "{isa} {f:?}");
        }
    }
    for op in [BinaryOp::Max, BinaryOp::Min] {
        for isa in isas() {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                let mut y = [0.0];
                binary(isa, op, Rows::dense(&[a], 1, 1), Rows::dense(&[b], 1, 1), RowsMut::dense(&mut y, 1, 1), 1);
                assert!(y[0].is_nan(), "{isa} {op:?}");
            }
        }
    }
}
