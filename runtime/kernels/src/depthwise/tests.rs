use super::*;
use crate::testing::{Grid, Guarded, Noise, cases, isas, naive_window, windows};
use proptest::prelude::*;

fn check_all(window: Window, channels: usize, gap: usize, threads: usize, seed: u64) {
    let mut noise = Noise(seed);
    let taps = window.taps();
    let weights: Vec<i8> = (0..channels * taps).map(|_| noise.byte() as i8).collect();
    let weights_f: Vec<f32> = (0..channels * taps).map(|_| noise.float()).collect();
    let bias: Vec<i32> = (0..channels).map(|_| noise.below(4000) as i32 - 2000).collect();
    let bias_f: Vec<f32> = (0..channels).map(|_| noise.float()).collect();
    let scale: Vec<f32> = (0..channels).map(|_| 0.0001 + 0.02 * noise.float().abs()).collect();
    let (input_zero, zero) = (noise.byte(), noise.byte());
    let (min, max) = (zero.min(20), zero.max(200));
    let x = Grid::new(window.pixels(), channels, gap, 77, || noise.byte());
    let x_f = Grid::new(window.pixels(), channels, gap, 7.0, || noise.float());
    for isa in isas() {
        let finish = Finish8::Requantize { bias: bias.clone(), scale: scale.clone(), zero, min, max };
        let op = Depthwise8::new(isa, &weights, taps, channels, input_zero, finish);
        let mut scratch = Guarded::new(&vec![0u8; op.scratch(&window, threads)]);
        let mut y = Grid::new(window.positions(), channels, gap, 99, || 1);
        op.run_u8(x.rows(), &window, y.rows_mut(), &mut scratch, threads);

        let finish = Finish8::Scale { bias: bias_f.clone(), scale: scale.clone(), min: -3.0, max: 6.0 };
        let op = Depthwise8::new(isa, &weights, taps, channels, input_zero, finish);
        let mut y_scaled = Grid::new(window.positions(), channels, gap, 9.0, || 1.0);
        op.run_f32(x.rows(), &window, y_scaled.rows_mut(), &mut scratch, threads);
        let halved = |values: Vec<f32>| values.iter().map(|v| if *v < 0.0 { v * 0.5 } else { *v }).collect::<Vec<_>>();
        let then = Some(UnaryOp::LeakyRelu(0.5));
        let mut y_then = Grid::new(window.positions(), channels, gap, 9.0, || 1.0);
        op.then(then).run_f32(x.rows(), &window, y_then.rows_mut(), &mut scratch, threads);
        assert_eq!(y_then.values(), halved(y_scaled.values()), "{isa}: a function of what was scaled");

        let op = DepthwiseF::new(isa, &weights_f, taps, channels, bias_f.clone(), -0.5, 0.75);
        let mut scratch = Guarded::new(&vec![0u8; op.scratch(&window, threads)]);
        let mut y_f = Grid::new(window.positions(), channels, gap, 9.0, || 1.0);
        op.run(x_f.rows(), &window, y_f.rows_mut(), &mut scratch, threads);
        let mut once = Grid::new(window.positions(), channels, gap, 9.0, || 1.0);
        op.run(x_f.rows(), &window, once.rows_mut(), &mut scratch, 1);
        assert_eq!(y_f.values(), once.values(), "{isa}: threads change nothing");
        op.then(then).run(x_f.rows(), &window, y_then.rows_mut(), &mut scratch, threads);
        assert_eq!(y_then.values(), halved(y_f.values()), "{isa}: a function of the results");

        y.values();
        y_scaled.values();
        naive_window(&window, |row, _, inside| {
            for c in 0..channels {
                let product = |&(t, pixel): &(usize, usize)| {
                    (i32::from(x.at(pixel, c)) - i32::from(input_zero)) * i32::from(weights[c * taps + t])
                };
                let sum: i32 = inside.iter().map(product).sum();
                let rounded = ((sum + bias[c]) as f32 * scale[c]).round_ties_even() as i32;
                let want = (rounded + i32::from(zero)).clamp(i32::from(min), i32::from(max));
                assert_eq!(i32::from(y.at(row, c)), want, "{isa}: row {row}, channel {c}");
                let want = (sum as f32 * scale[c] + bias_f[c]).clamp(-3.0, 6.0);
                assert_eq!(y_scaled.at(row, c), want, "{isa}: row {row}, channel {c}");
                let products =
                    inside.iter().map(|&(t, p)| f64::from(x_f.at(p, c)) * f64::from(weights_f[c * taps + t]));
                let want = (products.sum::<f64>() + f64::from(bias_f[c])).clamp(-0.5, 0.75);
                assert!((f64::from(y_f.at(row, c)) - want).abs() < 1e-5, "{isa}: row {row}, channel {c}");
            }
        });
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn any_window(
        window in windows(),
        channels in prop_oneof![3 => 1usize..71, 1 => Just(96), 1 => 120usize..200],
        gap in 0usize..4,
        threads in 1usize..4,
        seed: u64,
    ) {
        check_all(window, channels, gap, threads, seed);
    }
}

/// Of few channels, several positions are computed at once.
#[test]
fn long_lines_of_few_channels() {
    for channels in [1, 2, 3, 5, 8, 12, 16, 17] {
        for (kernel, dilation, pad) in [([3, 3], [1, 1], [1, 1]), ([1, 5], [1, 2], [0, 4]), ([2, 2], [1, 1], [0, 0])] {
            let (input, stride) = ([5, 83], [1, 1]);
            let output = [0, 1].map(|i: usize| input[i] + 2 * pad[i] - (kernel[i] - 1) * dilation[i]);
            let window = Window { batch: 2, input, output, kernel, stride, dilation, pad };
            for gap in [0, 1] {
                check_all(window, channels, gap, 3, channels as u64);
            }
        }
    }
}

#[test]
fn windows_of_real_networks() {
    for (kernel, stride, dilation) in [(3usize, 1, 1), (3, 2, 1), (5, 1, 1), (7, 1, 1), (3, 1, 2), (2, 2, 1), (1, 1, 1)]
    {
        for (input, channels) in [([14, 14], 96), ([7, 9], 64), ([1, 13], 33), ([13, 1], 129)] {
            let pad = ((kernel - 1) * dilation).div_ceil(2);
            let output = input.map(|n: usize| (n + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1);
            let window = Window {
                batch: 1,
                input,
                output,
                kernel: [kernel; 2],
                stride: [stride; 2],
                dilation: [dilation; 2],
                pad: [pad; 2],
            };
            check_all(window, channels, 0, 2, kernel as u64);
        }
    }
}

#[test]
fn results_beyond_32_bits_are_the_bounds() {
    for isa in isas() {
        let finish =
            |bias| Finish8::Requantize { bias: vec![bias; 70], scale: vec![1e9; 70], zero: 3, min: 1, max: 250 };
        for (bias, want) in [(1_000_000, 250), (-1_000_000, 1)] {
            let op = Depthwise8::new(isa, &[1; 70], 1, 70, 0, finish(bias));
            let mut y = [0; 70];
            op.run_u8(Rows::dense(&[9; 70], 1, 70), &Window::pixel(1), RowsMut::dense(&mut y, 1, 70), &mut [], 1);
            assert_eq!(y, [want; 70], "{isa}");
        }
    }
}

/// As in ONNX Runtime, whose vector code takes the least result for NaN.
#[test]
fn nothing_by_an_infinite_scale_is_the_least_result() {
    for isa in isas() {
        let (bias, scale) = ((0..70).map(|c| c % 3 - 1).collect(), vec![f32::INFINITY; 70]);
        let finish = Finish8::Requantize { bias, scale, zero: 3, min: 1, max: 250 };
        let op = Depthwise8::new(isa, &[0; 70], 1, 70, 0, finish);
        let mut y = [0; 70];
        op.run_u8(Rows::dense(&[9; 70], 1, 70), &Window::pixel(1), RowsMut::dense(&mut y, 1, 70), &mut [], 1);
        assert!((0..70).all(|c| y[c] == [1, 1, 250][c % 3]), "{isa}: {y:?}");
    }
}
