//! Every kernel against plain loops, on every instruction set, and every gradient against
//! differences of these.

use super::factors::rounded;
use super::*;
use crate::Isa;
use proptest::{prelude::*, test_runner::RngSeed};

/// Calls `f` with the indices of input, weight and output of every product.
fn products(at: &Shape2d, mut f: impl FnMut(usize, usize, usize)) {
    let [rows, columns] = at.output();
    let (channels, filters) = (at.channels / at.groups, at.filters / at.groups);
    for n in 0..at.samples {
        for filter in 0..at.filters {
            for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
                for c in 0..channels {
                    for (i, j) in (0..at.kernel[0]).flat_map(|i| (0..at.kernel[1]).map(move |j| (i, j))) {
                        let row = (y * at.stride[0] + i * at.dilation[0]).wrapping_sub(at.pads[0].0);
                        let column = (x * at.stride[1] + j * at.dilation[1]).wrapping_sub(at.pads[1].0);
                        if row < at.rows && column < at.columns {
                            let channel = n * at.channels + filter / filters * channels + c;
                            f(
                                (channel * at.rows + row) * at.columns + column,
                                ((filter * channels + c) * at.kernel[0] + i) * at.kernel[1] + j,
                                ((n * at.filters + filter) * rows + y) * columns + x,
                            );
                        }
                    }
                }
            }
        }
    }
}

/// Numbers between -1 and 1 that look random.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[track_caller]
fn assert_close(what: &str, got: &[f32], expected: &[f64], sums: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(*got) - expected).abs();
        assert!(error <= 1e-6 * (sums.sqrt() + 8.0), "{what}[{i}]: {got} for {expected}");
    }
}

fn sets() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

/// What is multiplied in a width: as it is, or rounded.
fn factors(width: FactorWidth, x: &[f32]) -> Vec<f64> {
    let x = if width == FactorWidth::Bf16 { rounded(x) } else { x.to_vec() };
    x.into_iter().map(f64::from).collect()
}

fn shapes() -> impl Strategy<Value = Shape2d> {
    let axis = (1usize..=24, 1usize..=4, 1usize..=3, 1usize..=3, (0usize..=3, 0usize..=3));
    let channels = (1usize..=3, 1usize..=5, 1usize..=19);
    let samples = prop_oneof![Just(1usize), Just(2), Just(17)];
    (samples, channels, axis.clone(), axis).prop_filter_map("the window doesn't fit", |(samples, sizes, a, b)| {
        let (groups, channels, filters) = sizes;
        let at = Shape2d {
            samples,
            channels: groups * channels,
            rows: a.0,
            columns: b.0,
            filters: groups * filters,
            kernel: [a.1, b.1],
            stride: [a.2, b.2],
            dilation: [a.3, b.3],
            pads: [a.4, b.4],
            groups,
        };
        at.output().iter().all(|&n| n > 0).then_some(at)
    })
}

/// A shape of the usual kind: a square window that keeps the size, if its stride is 1.
fn usual(samples: usize, channels: usize, side: usize, filters: usize, kernel: usize, stride: usize) -> Shape2d {
    Shape2d {
        samples,
        channels,
        rows: side,
        columns: side,
        filters,
        kernel: [kernel; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pads: [(kernel / 2, kernel / 2); 2],
        groups: 1,
    }
}

fn check_conv(at: &Shape2d) {
    for width in [FactorWidth::F32, FactorWidth::Bf16] {
        check_conv_in(width, at);
    }
}

fn check_conv_in(width: FactorWidth, at: &Shape2d) {
    let [x, w, dy] = [(at.input_len(), 1), (at.weight_len(), 2), (at.output_len(), 4)].map(|(n, seed)| noise(n, seed));
    let bias = noise(at.filters, 3);
    let mut y: Vec<f64> = (0..at.output_len()).map(|i| bias[i / at.pixels().max(1) % at.filters].into()).collect();
    let (mut dx, mut dw) = (vec![0.0; x.len()], vec![0.0; w.len()]);
    let [of_x, of_w, of_dy] = [&x, &w, &dy].map(|values| factors(width, values));
    products(at, |i, j, o| {
        y[o] += of_x[i] * of_w[j];
        dx[i] += of_dy[o] * of_w[j];
        dw[j] += of_dy[o] * of_x[i];
    });
    let taps = at.taps() as f64;
    for isa in sets() {
        let what = |name: &str| format!("{isa}, {width:?}: {name} of {at:?}");
        let (set, [x_in, w_in]) = width.operands(isa, [&x, &w]);
        let got = conv::conv_on(set, at, &x_in, &w_in, Some(&bias));
        assert_close(&what("y"), &got, &y, taps * at.group_channels() as f64);
        let (set, [w_in, dy_in]) = width.operands(isa, [&w, &dy]);
        let got = conv::conv_input_gradient_on(set, at, &w_in, &dy_in);
        assert_close(&what("dx"), &got, &dx, taps * at.group_filters() as f64);
        let (set, [x_in, dy_in]) = width.operands(isa, [&x, &dy]);
        let got = weight_gradient::conv_weight_gradient_on(set, at, &x_in, &dy_in);
        assert_close(&what("dw"), &got, &dw, (at.samples * at.pixels()) as f64);
    }
    let mut db = vec![0.0; at.filters];
    dy.iter().enumerate().for_each(|(i, dy)| db[i / at.pixels().max(1) % at.filters] += f64::from(*dy));
    assert_close("db", &conv_bias_gradient(at, &dy), &db, (at.samples * at.pixels()) as f64);
}

#[test]
fn usual_convolutions() {
    for at in [
        usual(2, 3, 32, 16, 3, 1),
        usual(5, 16, 16, 32, 3, 2),
        usual(3, 16, 15, 24, 3, 2),
        usual(17, 20, 8, 33, 3, 1),
        // More channels than a block has.
        usual(1, 90, 24, 9, 3, 1),
        usual(2, 8, 7, 9, 1, 1),
        usual(2, 8, 8, 9, 1, 2),
        usual(1, 3, 30, 7, 7, 2),
        usual(2, 3, 1, 7, 5, 1),
        Shape2d { groups: 12, ..usual(2, 12, 28, 12, 3, 1) },
        Shape2d { groups: 6, ..usual(2, 6, 19, 12, 5, 2) },
        Shape2d { pads: [(0, 0); 2], ..usual(2, 4, 28, 6, 5, 1) },
        Shape2d { pads: [(0, 0); 2], ..usual(2, 3, 33, 20, 4, 4) },
        Shape2d { pads: [(2, 2); 2], dilation: [2; 2], ..usual(2, 4, 12, 6, 3, 1) },
        Shape2d { rows: 1, columns: 50, kernel: [1, 9], pads: [(0, 0), (4, 4)], ..usual(2, 4, 1, 6, 3, 1) },
    ] {
        check_conv(&at);
    }
}

/// Products of matrices that lie either way round, or are parts of larger ones.
#[test]
fn matrices() {
    for [count, m, k, n] in [
        [1, 1, 1, 1],
        [1, 7, 3, 5],
        [1, 65, 31, 50],
        [3, 9, 64, 33],
        [2, 16, 33, 97],
        [1, 130, 1025, 17],
        [2, 8, 2100, 64],
        [1, 3, 0, 4],
        [0, 3, 2, 4],
    ] {
        for turned in [[false, false], [true, false], [false, true], [true, true]] {
            for apart in [1, 2] {
                check_product(count, [m, k, n], turned, apart);
            }
        }
    }
}

/// `apart` elements from one to the next of a line.
fn check_product(count: usize, [m, k, n]: [usize; 3], turned: [bool; 2], apart: usize) {
    let lines = |[rows, columns]: [usize; 2], turned| match turned {
        true => [apart, rows * apart + 3],
        false => [columns * apart + 3, apart],
    };
    let size = |[rows, columns]: [usize; 2]| (rows * apart + 3) * (columns * apart + 3);
    let values = [noise(count * size([m, k]), 1), noise(count * size([k, n]), 2)];
    let matrices = |i: usize, shape: [usize; 2]| {
        let [row_step, column_step] = lines(shape, turned[i]);
        let starts = (0..count).map(|i| i * size(shape)).collect();
        Matrices { data: &values[i], starts, row_step, column_step }
    };
    let (a, b) = (matrices(0, [m, k]), matrices(1, [k, n]));
    for width in [FactorWidth::F32, FactorWidth::Bf16] {
        let expected = expected_product(width, [m, k, n], &a, &b);
        for isa in sets() {
            let (set, [of_a, of_b]) = width.operands(isa, [a.data, b.data]);
            let got = product::product_on(set, [m, k, n], [(&of_a, &a), (&of_b, &b)]);
            // Sums of a thousand factors are larger than those of convolutions here.
            let what = format!("{isa}, {width:?}: {count} {m} {k} {n} {turned:?} {apart}");
            assert_close(&what, &got, &expected, 4.0 * k as f64);
        }
    }
}

fn expected_product(width: FactorWidth, [m, k, n]: [usize; 3], a: &Matrices, b: &Matrices) -> Vec<f64> {
    let [of_a, of_b] = [a, b].map(|x| factors(width, x.data));
    let at =
        |x: &Matrices, i: usize, row: usize, column: usize| x.starts[i] + row * x.row_step + column * x.column_step;
    let sum = |o: usize| {
        let (i, row, column) = (o / (m * n), o / n % m, o % n);
        (0..k).map(|f| of_a[at(a, i, row, f)] * of_b[at(b, i, f, column)]).sum()
    };
    (0..a.starts.len() * m * n).map(sum).collect()
}

/// A row that is broadcast has a step of 0.
#[test]
fn matrices_of_one_row() {
    let (row, b) = (noise(9, 1), noise(9 * 4, 2));
    let a = Matrices { data: &row, starts: vec![0], row_step: 0, column_step: 1 };
    let b = Matrices { data: &b, starts: vec![0], row_step: 4, column_step: 1 };
    for width in [FactorWidth::F32, FactorWidth::Bf16] {
        let expected = expected_product(width, [5, 9, 4], &a, &b);
        assert_close(&format!("{width:?}"), &product(width, [5, 9, 4], &a, &b), &expected, 9.0);
    }
}

#[test]
#[should_panic(expected = "a matrix beyond 3 elements")]
fn matrices_end_with_their_elements() {
    let x = Matrices { data: &[1.0; 3], starts: vec![0], row_step: 1 << 63, column_step: 1 };
    product(FactorWidth::F32, [3, 1, 1], &x, &Matrices { row_step: 1, ..x.clone() });
}

/// An odd number of taps or factors has a step with one product; the other is not 0 times what is infinite.
#[test]
fn what_is_infinite_stays_so() {
    let at = usual(1, 1, 1, 2, 1, 1);
    for width in [FactorWidth::F32, FactorWidth::Bf16] {
        for isa in sets() {
            for (x, expected) in [([f32::INFINITY], f32::INFINITY), ([f32::MAX], f32::MAX)] {
                let (set, [x, w]) = width.operands(isa, [&x, &[1.0, 1.0]]);
                let y = conv::conv_on(set, &at, &x, &w, None);
                // The largest float is nearer to infinity than to another number of bfloat16.
                let expected = if width == FactorWidth::Bf16 { f32::INFINITY } else { expected };
                assert_eq!(y, [expected; 2], "{isa}, {width:?}");
                let matrix = |step| Matrices { data: &[], starts: vec![0], row_step: step, column_step: 1 };
                let y = product::product_on(set, [1, 1, 2], [(&x, &matrix(1)), (&w, &matrix(2))]);
                assert_eq!(y, [expected; 2], "{isa}, {width:?}");
            }
            let (set, [x, w]) = width.operands(isa, [&[f32::NAN], &[1.0, 1.0]]);
            assert!(conv::conv_on(set, &at, &x, &w, None).iter().all(|y| y.is_nan()), "{isa}, {width:?}");
        }
    }
}

#[test]
fn operands_without_elements() {
    for at in [usual(0, 3, 8, 4, 3, 1), Shape2d { rows: 0, ..usual(2, 3, 8, 4, 3, 1) }, usual(2, 3, 2, 4, 1, 1)] {
        check_conv(&at);
    }
    check_conv(&Shape2d { pads: [(0, 0); 2], ..usual(2, 3, 2, 4, 3, 1) });
    let (scale, bias) = (&[1.0; 2], &[0.0; 2]);
    let empty = BatchNorm { x: &[], shape: [0, 2, 5], scale, bias, epsilon: 1e-5, rectified: false }.run();
    assert!(empty.y.is_empty());
}

/// The derivative of `f` by each element of `x`.
fn differences(x: &[f32], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let x: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let at = |i: usize, by: f64| {
        let mut x = x.clone();
        x[i] += by;
        f(&x)
    };
    (0..x.len()).map(|i| (at(i, 1e-4) - at(i, -1e-4)) / 2e-4).collect()
}

fn dot(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * f64::from(*b)).sum()
}

#[test]
fn gradients_are_those_of_convolutions() {
    for at in [
        Shape2d { dilation: [1, 2], pads: [(0, 2), (1, 3)], ..usual(2, 2, 6, 3, 3, 2) },
        Shape2d { groups: 2, stride: [3, 1], ..usual(2, 4, 5, 6, 2, 1) },
    ] {
        let (x, w, dy) = (noise(at.input_len(), 1), noise(at.weight_len(), 2), noise(at.output_len(), 4));
        let forward = |x: &dyn Fn(usize) -> f64, w: &dyn Fn(usize) -> f64| {
            let mut y = vec![0.0; dy.len()];
            products(&at, |i, j, o| y[o] += x(i) * w(j));
            dot(&y, &dy)
        };
        let dx = differences(&x, |x| forward(&|i| x[i], &|j| w[j].into()));
        let dw = differences(&w, |w| forward(&|i| x[i].into(), &|j| w[j]));
        assert_close("dx", &conv_input_gradient(FactorWidth::F32, &at, &w, &dy), &dx, 100.0);
        assert_close("dw", &conv_weight_gradient(FactorWidth::F32, &at, &x, &dy), &dw, 100.0);
    }
}

/// Batch normalisation in 64 bits: the output and the statistics.
fn normalised(x: &[f64], [channels, pixels]: [usize; 2], scale: &[f64], bias: &[f64]) -> (Vec<f64>, Vec<[f64; 2]>) {
    let channel = |i: usize| i / pixels % channels;
    let count = (x.len() / channels) as f64;
    let statistics: Vec<[f64; 2]> = (0..channels)
        .map(|c| {
            let of = || x.iter().enumerate().filter(|(i, _)| channel(*i) == c).map(|(_, x)| x);
            let mean = of().sum::<f64>() / count;
            [mean, of().map(|x| (x - mean).powi(2)).sum::<f64>() / count]
        })
        .collect();
    let y = |(i, x): (usize, &f64)| {
        let ([mean, variance], c) = (statistics[channel(i)], channel(i));
        (x - mean) / (variance + 1e-3).sqrt() * scale[c] + bias[c]
    };
    (x.iter().enumerate().map(y).collect(), statistics)
}

#[test]
fn batch_normalisation() {
    for (samples, channels, pixels) in [(1, 3, 5), (17, 5, 1), (3, 4, 64), (2, 2, 333), (5, 1, 128), (1, 1, 9000)] {
        let x = noise(samples * channels * pixels, 1);
        let (scale, bias, dy) = (noise(channels, 2), noise(channels, 3), noise(x.len(), 4));
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        let size = [channels, pixels];
        let (y, statistics) = normalised(&wide(&x), size, &wide(&scale), &wide(&bias));
        let shape = [samples, channels, pixels];
        let norm = BatchNorm { x: &x, shape, scale: &scale, bias: &bias, epsilon: 1e-3, rectified: false };
        let made = norm.run();
        assert_close("y", &made.y, &y, 100.0);
        let [mean, variance] = [0, 1].map(|k| statistics.iter().map(|s| s[k]).collect::<Vec<_>>());
        assert_close("mean", &made.mean, &mean, 1.0);
        assert_close("variance", &made.variance, &variance, 1.0);
        let got = norm.gradients(&made.mean, &made.variance, &dy);
        let loss = |x: &[f64], scale: &[f64], bias: &[f64]| dot(&normalised(x, size, scale, bias).0, &dy);
        if x.len() < 300 {
            assert_close("dx", &got.x, &differences(&x, |x| loss(x, &wide(&scale), &wide(&bias))), 400.0);
        }
        let terms = (samples * pixels) as f64;
        assert_close("dscale", &got.scale, &differences(&scale, |s| loss(&wide(&x), s, &wide(&bias))), terms);
        assert_close("dbias", &got.bias, &differences(&bias, |b| loss(&wide(&x), &wide(&scale), b)), terms);

        // With a rectifier it is what both are one after the other, to the last bit.
        let both = BatchNorm { rectified: true, ..norm };
        let (mut y, mut dy) = (made.y.clone(), dy);
        relu_gradient(&relu(&mut y), &mut dy);
        assert_eq!(both.run(), Normalised { y, ..made.clone() });
        let masked = norm.gradients(&made.mean, &made.variance, &dy);
        assert_eq!(both.gradients(&made.mean, &made.variance, &noise(x.len(), 4)), masked);
    }
}

#[test]
fn the_variance_far_from_zero() {
    let x: Vec<f32> = noise(64 * 100, 1).iter().map(|x| 1000.0 + x).collect();
    let norm = BatchNorm { x: &x, shape: [64, 1, 100], scale: &[1.0], bias: &[0.0], epsilon: 0.0, rectified: false };
    let got = norm.run();
    assert!((got.variance[0] - 1.0 / 3.0).abs() < 0.02, "{}", got.variance[0]);
}

#[test]
fn rectified_normalisation_keeps_nan() {
    let x = [1.0, f32::NAN, 2.0, 3.0];
    let shape = [2, 2, 1];
    let norm = BatchNorm { x: &x, shape, scale: &[1.0; 2], bias: &[0.0; 2], epsilon: 1e-5, rectified: true };
    let y = norm.run().y;
    assert!(y[0] == 0.0 && y[1].is_nan() && y[2] > 0.9 && y[3].is_nan(), "{y:?}");
}

/// For each window its greatest element and where it is.
fn pooled(at: &Shape2d, [rows, columns]: [usize; 2], x: &[f32]) -> Vec<(f32, u32)> {
    let mut all = vec![];
    for plane in x.chunks(at.rows * at.columns) {
        for (y, x) in (0..rows).flat_map(|y| (0..columns).map(move |x| (y, x))) {
            let mut best: Option<(f32, u32)> = None;
            for (i, j) in (0..at.kernel[0]).flat_map(|i| (0..at.kernel[1]).map(move |j| (i, j))) {
                let row = (y * at.stride[0] + i * at.dilation[0]).wrapping_sub(at.pads[0].0);
                let column = (x * at.stride[1] + j * at.dilation[1]).wrapping_sub(at.pads[1].0);
                if row < at.rows && column < at.columns {
                    let v = plane[row * at.columns + column];
                    if best.is_none_or(|(best, _)| v > best || v.is_nan() && !best.is_nan()) {
                        best = Some((v, (row * at.columns + column) as u32));
                    }
                }
            }
            all.push(best.unwrap_or((f32::NEG_INFINITY, u32::MAX)));
        }
    }
    all
}

fn check_pool(at: &Shape2d, output: [usize; 2]) {
    // Few values, so that many are equal; some NaN, some the least.
    let x: Vec<f32> = noise(at.input_len(), 5)
        .iter()
        .map(|x| match (x * 9.0) as i32 {
            8 => f32::NAN,
            -8 => f32::NEG_INFINITY,
            n => n as f32,
        })
        .collect();
    let expected = pooled(at, output, &x);
    let (y, winners) = max_pool(at, output, &x);
    let bits = |v: &mut dyn Iterator<Item = f32>| v.map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(&mut y.into_iter()), bits(&mut expected.iter().map(|e| e.0)), "{at:?} {output:?}");
    assert_eq!(winners, expected.iter().map(|e| e.1).collect::<Vec<_>>(), "{at:?} {output:?}");

    let dy = noise(winners.len(), 6);
    let mut dx = vec![0.0; x.len()];
    for (i, (dy, winner)) in dy.iter().zip(&winners).enumerate() {
        if *winner != u32::MAX {
            dx[i / (output[0] * output[1]) * at.plane() + *winner as usize] += f64::from(*dy);
        }
    }
    assert_close("dx", &max_pool_gradient(at, output, &dy, &winners), &dx, 1.0);
}

#[test]
fn usual_pools() {
    for side in [2, 5, 8, 28, 33] {
        let at = Shape2d { filters: 5, pads: [(0, 0); 2], ..usual(3, 5, side, 5, 2, 2) };
        check_pool(&at, at.output());
        check_pool(&at, [side.div_ceil(2); 2]);
        check_pool(&at, [side / 2 + 2; 2]);
        let at = usual(3, 5, side, 5, 3, 2);
        check_pool(&at, at.output());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, rng_seed: RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn any_convolution(at in shapes()) {
        check_conv(&at);
    }

    #[test]
    fn any_pool(at in shapes()) {
        let at = Shape2d { filters: at.channels, ..at };
        check_pool(&at, at.output());
    }

    /// Results are the same to the last bit for any number of threads.
    #[test]
    fn any_number_of_threads(at in shapes(), width in prop_oneof![Just(FactorWidth::F32), Just(FactorWidth::Bf16)]) {
        let (x, w) = (noise(at.input_len(), 1), noise(at.weight_len(), 2));
        // More factors than are packed at a time.
        let (rows, factors) = (at.filters, 1030);
        let matrix = noise(rows * factors, 6);
        let a = Matrices { data: &matrix, starts: vec![0], row_step: factors, column_step: 1 };
        let b = Matrices { row_step: 1, column_step: factors, ..a.clone() };
        let dy = noise(at.output_len(), 4);
        let all = || {
            let (scale, pixels) = (noise(at.channels, 5), at.plane());
            let shape = [at.samples, at.channels, pixels];
            let rectified = true;
            let norm = BatchNorm { x: &x, shape, scale: &scale, bias: &scale, epsilon: 1e-5, rectified };
            let made = norm.run();
            let gradients = norm.gradients(&made.mean, &made.variance, &made.y);
            let pool = Shape2d { filters: at.channels, ..at };
            let (y, winners) = max_pool(&pool, at.output(), &x);
            let results = [
                conv(width, &at, &x, &w, None),
                conv_input_gradient(width, &at, &w, &dy),
                conv_weight_gradient(width, &at, &x, &dy),
                product(width, [rows, factors, rows], &a, &b),
                conv_bias_gradient(&at, &dy),
                max_pool_gradient(&pool, at.output(), &y, &winners),
                made.y,
                made.variance,
                gradients.x,
                gradients.scale,
                gradients.bias,
            ];
            results.map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        let with = |threads: usize| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads").install(all)
        };
        let one = with(1);
        prop_assert!(one == with(2) && one == with(3), "{at:?}");
    }
}
