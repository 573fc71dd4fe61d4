use super::*;
use crate::testing::{Grid, Noise, cases, isas, naive_window, windows};
use proptest::prelude::*;

fn close(got: f32, want: f64) -> bool {
    f64::from(got) == want
        || (f64::from(got) - want).abs() <= 1e-5 * want.abs().max(0.1)
        || got.is_nan() && want.is_nan()
}

fn widths() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 1usize..71, 1 => Just(96), 1 => Just(130)]
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn max_pool_takes_the_greatest(window in windows(), width in widths(), gap in 0usize..4, threads in 1usize..4, seed: u64) {
        let mut noise = Noise(seed);
        let x = Grid::new(window.pixels(), width, gap, 77, || noise.byte());
        let xf = Grid::new(window.pixels(), width, gap, 7.0, || noise.float());
        for isa in isas() {
            let mut y = Grid::new(window.positions(), width, gap, 99, || 1);
            max_pool(isa, x.rows(), &window, y.rows_mut(), threads);
            let mut yf = Grid::new(window.positions(), width, gap, 9.0, || 1.0);
            max_pool(isa, xf.rows(), &window, yf.rows_mut(), threads);
            y.values();
            yf.values();
            naive_window(&window, |row, _, taps| {
                for c in 0..width {
                    let want = taps.iter().map(|t| x.at(t.1, c)).max().unwrap_or(0);
                    assert_eq!(y.at(row, c), want, "{isa}: row {row}, column {c}");
                    let want = taps.iter().map(|t| xf.at(t.1, c)).fold(f32::NEG_INFINITY, f32::max);
                    assert_eq!(yf.at(row, c), want, "{isa}: row {row}, column {c}");
                }
            });
        }
    }

    #[test]
    fn average_pool_divides_by_what_is_counted(
        window in windows(), width in widths(), gap in 0usize..4, threads in 1usize..4, table: bool, seed: u64,
    ) {
        let mut noise = Noise(seed);
        let counts = window.output.map(|n| (0..n).map(|_| 1 + noise.below(5)).collect::<Vec<_>>());
        let divisor = if table { Divisor::Counts([&counts[0], &counts[1]]) } else { Divisor::Inside };
        let x = Grid::new(window.pixels(), width, gap, 7.0, || noise.float());
        let x8 = Grid::new(window.pixels(), width, gap, 77, || noise.byte());
        let rescale = Rescale {
            x_scale: 0.01 + noise.float().abs(), x_zero: noise.byte(),
            y_scale: 0.01 + noise.float().abs(), y_zero: noise.byte(),
        };
        for isa in isas() {
            let mut y = Grid::new(window.positions(), width, gap, 9.0, || 1.0);
            average_pool(isa, x.rows(), &window, divisor, y.rows_mut(), threads);
            let mut y8 = Grid::new(window.positions(), width, gap, 99, || 1);
            average_pool8(isa, x8.rows(), &window, divisor, rescale, y8.rows_mut(), threads);
            y.values();
            y8.values();
            naive_window(&window, |row, at, taps| {
                let n = if table { counts[0][at[0]] * counts[1][at[1]] } else { taps.len() };
                for c in 0..width {
                    let want = taps.iter().map(|t| f64::from(x.at(t.1, c))).sum::<f64>() / n as f64;
                    assert!(close(y.at(row, c), want), "{isa}: row {row}, column {c}: {} for {want}", y.at(row, c));
                    let dequantized = |t: &(usize, usize)| {
                        rescale.x_scale * (i32::from(x8.at(t.1, c)) - i32::from(rescale.x_zero)) as f32
                    };
                    let mean = taps.iter().map(dequantized).fold(0.0, |a, b| a + b) / n as f32;
                    let want = (mean / rescale.y_scale + f32::from(rescale.y_zero)).round_ties_even().clamp(0.0, 255.0);
                    assert_eq!(y8.at(row, c), want as u8, "{isa}: row {row}, column {c}");
                }
            });
        }
    }

    #[test]
    fn global_averages_are_of_whole_images(
        images in 1usize..4, pixels in 1usize..60, width in 1usize..150, gap in 0usize..4, threads in 1usize..4, seed: u64,
    ) {
        let mut noise = Noise(seed);
        let x = Grid::new(images * pixels, width, gap, 7.0, || noise.float());
        let x8 = Grid::new(images * pixels, width, gap, 77, || noise.byte());
        let rescale = Rescale {
            x_scale: 0.01 + noise.float().abs(), x_zero: noise.byte(),
            y_scale: 0.01 + noise.float().abs(), y_zero: noise.byte(),
        };
        for isa in isas() {
            let mut y = Grid::new(images, width, gap, 9.0, || 1.0);
            global_average(isa, x.rows(), images, y.rows_mut(), threads);
            let mut y8 = Grid::new(images, width, gap, 99, || 1);
            global_average8(isa, x8.rows(), images, rescale, y8.rows_mut(), threads);
            y.values();
            y8.values();
            for image in 0..images {
                for c in 0..width {
                    let of_image = image * pixels..(image + 1) * pixels;
                    let want = of_image.clone().map(|p| f64::from(x.at(p, c))).sum::<f64>() / pixels as f64;
                    assert!(close(y.at(image, c), want), "{isa}");
                    let sum: i32 = of_image.map(|p| i32::from(x8.at(p, c)) - i32::from(rescale.x_zero)).sum();
                    let scale = rescale.x_scale / (rescale.y_scale * pixels as f32);
                    let want = (sum as f32 * scale).round_ties_even() + f32::from(rescale.y_zero);
                    assert_eq!(y8.at(image, c), want.clamp(0.0, 255.0) as u8, "{isa}");
                }
            }
        }
    }
}

/// The sum of a channel as Eigen has it, by vectors of four floats of which `x[start]` begins one.
fn by_vectors(x: &[f32], start: usize) -> f32 {
    let start = start.min(x.len());
    let (vectors, rest) = x[start..].as_chunks::<4>();
    let (pairs, last) = vectors.as_chunks::<2>();
    let add = |a: [f32; 4], b: [f32; 4]| std::array::from_fn(|i| a[i] + b[i]);
    let [a, b] = pairs.iter().fold([[0.0; 4]; 2], |sum, pair| [add(sum[0], pair[0]), add(sum[1], pair[1])]);
    let four = last.iter().fold(add(a, b), |sum, vector| add(sum, *vector));
    x[..start].iter().chain(rest).fold((four[0] + four[2]) + (four[1] + four[3]), |sum, x| sum + x)
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn means_are_sums_by_vectors(
        images in 1usize..4, pixels in 1usize..60, width in 1usize..80, gap in 0usize..4, threads in 1usize..4, seed: u64,
    ) {
        let mut noise = Noise(seed);
        let x = Grid::new(images * pixels, width, gap, 77, || noise.byte());
        // Of one scale, many means lie in the middle between two codes.
        let scale = 0.01 + noise.float().abs();
        let rescale = Rescale { x_scale: scale, x_zero: noise.byte(), y_scale: scale, y_zero: noise.byte() };
        for isa in isas() {
            let mut y = Grid::new(images, width, gap, 99, || 1);
            global_mean8(isa, x.rows(), images, rescale, y.rows_mut(), threads);
            y.values();
            for (image, c) in (0..images).flat_map(|image| (0..width).map(move |c| (image, c))) {
                let float = |p| (i32::from(x.at(image * pixels + p, c)) - i32::from(rescale.x_zero)) as f32 * scale;
                let floats: Vec<f32> = (0..pixels).map(float).collect();
                let before = c * pixels;
                let mean = by_vectors(&floats, before.next_multiple_of(4) - before) / pixels as f32;
                let want = (mean / scale).round_ties_even() + f32::from(rescale.y_zero);
                assert_eq!(y.at(image, c), want.clamp(0.0, 255.0) as u8, "{isa}: image {image}, channel {c}");
            }
        }
    }
}

#[test]
fn nan_never_wins() {
    let window = Window { kernel: [2, 1], output: [1, 1], ..Window::pixel(2) };
    for isa in isas() {
        for x in [[f32::NAN, 1.0], [1.0, f32::NAN]] {
            let mut y = [0.0];
            max_pool(isa, Rows::dense(&x, 2, 1), &window, RowsMut::dense(&mut y, 1, 1), 1);
            assert_eq!(y, [1.0], "{isa}");
        }
    }
}
