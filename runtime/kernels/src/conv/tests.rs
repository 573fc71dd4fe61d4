//! Every kernel beside a loop over what its definition says, on memory that ends at a page that
//! must not be touched.

use super::*;
use crate::{Finish8, Isa, RowsMut, UnaryOp, testing::Guarded};
use proptest::{prelude::*, test_runner::RngAlgorithm};

/// A convolution to be tried.
#[derive(Debug, Clone)]
struct Case {
    window: Window,
    channels: usize,
    groups: usize,
    /// Outputs of a group.
    outputs: usize,
    /// What rows of the input, the output, and what is added are longer than wide.
    slack: [usize; 3],
    threads: usize,
    /// Bytes of a block's pixels.
    block: usize,
    seed: u64,
}

/// Numbers that look random.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
    fn u8(&mut self) -> u8 {
        // The extremes are where sums would saturate.
        match self.next() % 8 {
            0 => 255,
            1 => 0,
            _ => self.next() as u8,
        }
    }
    fn f32(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 30) as f32 - 1.0
    }
    fn many<T>(&mut self, n: usize, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..n).map(|_| one(self)).collect()
    }
}

impl Case {
    fn shape(&self) -> Shape {
        let Case { channels, groups, outputs, .. } = *self;
        Shape { outputs: groups * outputs, kernel: self.window.kernel, channels, groups }
    }

    fn inputs(&self) -> usize {
        self.groups * self.channels
    }

    /// Calls `product` with the elements of the input and of the weights whose product belongs to
    /// an element of the output, and with neither that of the input where it is padding.
    fn products(&self, position: usize, output: usize, mut product: impl FnMut(Option<usize>, usize)) {
        let w = &self.window;
        let stride = self.inputs() + self.slack[0];
        let (image, line, column) =
            (position / w.output[1] / w.output[0], position / w.output[1] % w.output[0], position % w.output[1]);
        for tap in 0..w.taps() {
            let y = (line * w.stride[0] + tap / w.kernel[1] * w.dilation[0]).checked_sub(w.pad[0]);
            let x = (column * w.stride[1] + tap % w.kernel[1] * w.dilation[1]).checked_sub(w.pad[1]);
            for c in 0..self.channels {
                let weight = (output * w.taps() + tap) * self.channels + c;
                let pixel = match (y, x) {
                    (Some(y), Some(x)) if y < w.input[0] && x < w.input[1] => {
                        let pixel = (image * w.input[0] + y) * w.input[1] + x;
                        Some(pixel * stride + output / self.outputs * self.channels + c)
                    }
                    _ => None,
                };
                product(pixel, weight);
            }
        }
    }

    /// Elements of rows of this width and slack.
    fn extent(rows: usize, width: usize, slack: usize) -> usize {
        (rows * (width + slack)).saturating_sub(slack)
    }

    /// Each row's elements, after a look at what lies between rows.
    fn rows<T: Copy + PartialEq + std::fmt::Debug>(&self, y: &[T], untouched: T) -> Vec<T> {
        let width = self.shape().outputs;
        y.chunks(width + self.slack[1])
            .flat_map(|row| {
                assert!(row[width.min(row.len())..].iter().all(|&v| v == untouched), "between rows");
                row[..width].to_vec()
            })
            .collect()
    }

    fn check(&self) {
        self.check8();
        self.check_f();
    }

    fn check8(&self) {
        let mut noise = Noise(self.seed);
        let (shape, window) = (self.shape(), &self.window);
        let (pixels, positions) = (window.pixels(), window.positions());
        let x = noise.many(Self::extent(pixels, self.inputs(), self.slack[0]), Noise::u8);
        // Some tiles are for weights without -128.
        let least = if self.seed.is_multiple_of(2) { -127 } else { i8::MIN };
        let weights = noise.many(shape.outputs * shape.depth(), |noise| ((noise.u8() ^ 0x80) as i8).max(least));
        let input_zero = noise.u8();
        let sums: Vec<i32> = (0..positions * shape.outputs)
            .map(|i| {
                let mut sum = 0;
                self.products(i / shape.outputs, i % shape.outputs, |x_at, w| {
                    let x = x_at.map_or(input_zero, |at| x[at]);
                    sum += (i32::from(x) - i32::from(input_zero)) * i32::from(weights[w]);
                });
                sum
            })
            .collect();
        let spread = sums.iter().map(|s| s.unsigned_abs()).max().unwrap_or(0).max(1) as f32;
        let scale = noise.many(shape.outputs, |noise| (noise.f32() + 1.01) * 200.0 / spread);
        let bias = noise.many(shape.outputs, |noise| (noise.f32() * spread) as i32);
        let bias_f = noise.many(shape.outputs, Noise::f32);
        let (zero, a, b) = (noise.u8(), noise.u8(), noise.u8());
        let (min, max) = if noise.next().is_multiple_of(2) { (0, 255) } else { (a.min(b), a.max(b)) };
        let column = |i: usize| i % shape.outputs;
        let want: Vec<u8> = (0..sums.len())
            .map(|i| {
                let scaled = sums[i].wrapping_add(bias[column(i)]) as f32 * scale[column(i)];
                (scaled.round_ties_even() as i32 + i32::from(zero)).clamp(min.into(), max.into()) as u8
            })
            .collect();
        let want_f: Vec<f32> = (0..sums.len())
            .map(|i| (sums[i] as f32 * scale[column(i)] + bias_f[column(i)]).clamp(-90.0, 95.0))
            .collect();
        let x = Guarded::new(&x);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let conv = |finish| {
                let Shape { outputs, kernel, channels, groups } = shape;
                let mut conv = Conv8::new(isa, &weights, outputs, kernel, channels, groups, input_zero, finish);
                conv.conv.block = self.block;
                conv
            };
            let x = Rows::new(&x, pixels, self.inputs(), self.inputs() + self.slack[0]);
            let stride = shape.outputs + self.slack[1];
            let extent = Self::extent(positions, shape.outputs, self.slack[1]);

            let conv8 = conv(Finish8::Requantize { bias: bias.clone(), scale: scale.clone(), zero, min, max });
            let mut scratch = Guarded::new(&vec![7; conv8.scratch(window, self.threads)]);
            let mut y = Guarded::new(&vec![99; extent]);
            let rows = RowsMut::new(&mut y, positions, shape.outputs, stride);
            conv8.run_u8(x, window, rows, &mut scratch, self.threads);
            assert!(self.rows(&y, 99) == want, "{isa}, integers: {self:?}");

            let finish = Finish8::Scale { bias: bias_f.clone(), scale: scale.clone(), min: -90.0, max: 95.0 };
            let conv8 = conv(finish);
            let mut scratch = Guarded::new(&vec![7; conv8.scratch(window, self.threads)]);
            let mut y = Guarded::new(&vec![99.0; extent]);
            let rows = RowsMut::new(&mut y, positions, shape.outputs, stride);
            conv8.run_f32(x, window, rows, &mut scratch, self.threads);
            assert!(self.rows(&y, 99.0) == want_f, "{isa}, scaled: {self:?}");

            let conv8 = conv8.then(isa, Some(THEN));
            let rows = RowsMut::new(&mut y, positions, shape.outputs, stride);
            conv8.run_f32(x, window, rows, &mut scratch, self.threads);
            assert!(self.rows(&y, 99.0) == then(&want_f), "{isa}, a function of what was scaled: {self:?}");
        }
    }

    fn check_f(&self) {
        let mut noise = Noise(self.seed);
        let (shape, window) = (self.shape(), &self.window);
        let (pixels, positions) = (window.pixels(), window.positions());
        let x = noise.many(Self::extent(pixels, self.inputs(), self.slack[0]), Noise::f32);
        let weights = noise.many(shape.outputs * shape.depth(), Noise::f32);
        let bias = noise.many(shape.outputs, Noise::f32);
        let stride = shape.outputs + self.slack[1];
        let add_stride = shape.outputs + self.slack[2];
        let add = noise.many(Self::extent(positions, shape.outputs, self.slack[2]), Noise::f32);
        let with_add = self.seed.is_multiple_of(2);
        let (min, max) = if self.seed.is_multiple_of(3) { (-0.5, 1.0) } else { (f32::NEG_INFINITY, f32::INFINITY) };
        // What is wanted, and the sum of what was added without its signs: errors are relative to it.
        let want: Vec<(f64, f64)> = (0..positions * shape.outputs)
            .map(|i| {
                let (position, output) = (i / shape.outputs, i % shape.outputs);
                let add = if with_add { f64::from(add[position * add_stride + output]) } else { 0.0 };
                let (mut sum, mut size) = (f64::from(bias[output]) + add, 1.0);
                self.products(position, output, |x_at, w| {
                    let product = x_at.map_or(0.0, |at| f64::from(x[at]) * f64::from(weights[w]));
                    (sum, size) = (sum + product, size + product.abs());
                });
                (sum.clamp(min.into(), max.into()), size)
            })
            .collect();
        let (x, add) = (Guarded::new(&x), Guarded::new(&add));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let Shape { outputs, kernel, channels, groups } = shape;
            let mut conv = ConvF::new(isa, &weights, outputs, kernel, channels, groups, bias.clone(), min, max);
            conv.conv.block = self.block;
            let x = Rows::new(&x, pixels, self.inputs(), self.inputs() + self.slack[0]);
            let run = |conv: &ConvF, threads| {
                let mut scratch = Guarded::new(&vec![7; conv.scratch(window, threads)]);
                let mut y = Guarded::new(&vec![99.0; Self::extent(positions, outputs, self.slack[1])]);
                let rows = RowsMut::new(&mut y, positions, outputs, stride);
                let add = with_add.then(|| Rows::new(&add, positions, outputs, add_stride));
                conv.run(x, window, add, rows, &mut scratch, threads);
                self.rows(&y, 99.0)
            };
            let y = run(&conv, self.threads);
            for (i, (&y, &(want, size))) in y.iter().zip(&want).enumerate() {
                assert!((f64::from(y) - want).abs() <= 1e-5 * size, "{isa}, {i}: {y}, not {want}, in {self:?}");
            }
            assert_eq!(y.len(), want.len());
            assert!(y == run(&conv, 1), "{isa}: {} threads have other results: {self:?}", self.threads);
            conv.conv.block = BLOCK_BYTES;
            assert!(y == run(&conv, 1), "{isa}: other blocks have other results: {self:?}");
            let of = run(&conv.then(isa, Some(THEN)), self.threads);
            assert!(of == then(&y), "{isa}: a function of the results: {self:?}");
        }
    }
}

/// A function that shows where it was forgotten, or done twice.
const THEN: UnaryOp = UnaryOp::LeakyRelu(0.5);

fn then(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| if *v < 0.0 { v * 0.5 } else { *v }).collect()
}

/// A window over images of `input` pixels, with `pad` on both sides.
fn window(batch: usize, input: [usize; 2], kernel: [usize; 2], stride: usize, dilation: usize, pad: usize) -> Window {
    let output = [0, 1].map(|axis| {
        let covered = (kernel[axis] - 1) * dilation + 1;
        (input[axis] + 2 * pad).saturating_sub(covered) / stride + 1
    });
    let (stride, dilation, pad) = ([stride; 2], [dilation; 2], [pad; 2]);
    Window { batch, input, output, kernel, stride, dilation, pad }
}

#[test]
fn chosen_convolutions() {
    let cases = [
        // Stems.
        (window(1, [23, 31], [7, 7], 2, 1, 3), 3, 1, 70),
        (window(1, [9, 9], [3, 3], 1, 1, 1), 1, 1, 6),
        // The body of a network; late layers of it, several images at a time.
        (window(1, [14, 14], [3, 3], 1, 1, 1), 64, 1, 64),
        (window(3, [7, 7], [3, 3], 1, 1, 1), 40, 1, 33),
        (window(1, [9, 20], [3, 3], 1, 1, 1), 128, 1, 100),
        (window(1, [9, 20], [5, 5], 1, 1, 2), 60, 1, 48),
        (window(1, [14, 14], [1, 1], 2, 1, 0), 24, 1, 48),
        // Panels of every number of whole vectors, some rows of which make one of bytes.
        (window(1, [5, 7], [1, 1], 1, 1, 0), 8, 1, 4),
        (window(1, [5, 7], [1, 1], 1, 1, 0), 8, 1, 8),
        (window(1, [5, 7], [1, 1], 1, 1, 0), 8, 1, 12),
        (window(1, [5, 7], [1, 1], 1, 1, 0), 8, 1, 16),
        (window(1, [5, 7], [1, 1], 1, 1, 0), 8, 1, 32),
        (window(1, [5, 7], [1, 1], 1, 1, 0), 8, 1, 64),
        // Rows that lie together on ARM, of groups and of every other pixel of several images.
        (window(2, [7, 9], [1, 1], 2, 1, 0), 16, 3, 80),
        // Patches; a window as large as the image.
        (window(2, [16, 16], [8, 8], 8, 1, 0), 3, 1, 20),
        (window(2, [5, 5], [5, 5], 1, 1, 0), 6, 1, 17),
        // A sequence so long that a line is more than a block.
        (window(1, [1, 3000], [1, 9], 1, 1, 4), 16, 1, 5),
        // More padding than window; dilated; gathered.
        (window(1, [4, 5], [3, 3], 1, 1, 6), 5, 1, 3),
        (window(1, [12, 13], [3, 3], 1, 4, 4), 8, 1, 9),
        (window(1, [12, 13], [2, 2], 5, 1, 1), 7, 1, 9),
        (window(2, [12, 13], [3, 1], 2, 2, 1), 3, 2, 9),
        // Depthwise.
        (window(1, [10, 9], [3, 3], 1, 1, 1), 1, 19, 1),
    ];
    for (i, (window, channels, groups, outputs)) in cases.into_iter().enumerate() {
        for (threads, slack, block) in [(1, [0, 0, 0], BLOCK_BYTES), (2, [5, 3, 2], 6 << 10)] {
            Case { window, channels, groups, outputs, slack, threads, block, seed: i as u64 }.check();
        }
    }
}

#[test]
fn products() {
    let shapes = [
        (1, 1, 1),
        (1, 300, 200),
        (2, 7, 65),
        (7, 33, 16),
        (50, 20, 10),
        (700, 65, 3),
        (70, 1280, 100),
        (49, 1300, 40),
        (20, 640, 17),
        (700, 320, 40),
        (17, 580, 64),
        (33, 576, 16),
        (16, 700, 48),
        // Rows that lie together on ARM: one, fewer than a group has, a group and some, several blocks.
        (1, 16, 80),
        (3, 32, 100),
        (8, 16, 130),
        (95, 384, 96),
    ];
    for (rows, depth, outputs) in shapes {
        for (threads, block) in [(1, BLOCK_BYTES), (1, 2 << 10), (2, 2 << 10), (3, 2 << 10)] {
            let (window, seed) = (Window::pixel(rows), rows as u64);
            Case { window, channels: depth, groups: 1, outputs, slack: [0; 3], threads, block, seed }.check();
        }
    }
}

/// Both forms of a product have the results of one by constants, to the last bit.
#[test]
fn products_of_two_matrices() {
    for (rows, depth, columns) in [(1, 1, 1), (1, 70, 130), (5, 16, 16), (33, 17, 65), (70, 64, 3), (0, 3, 2)] {
        let mut noise = Noise(rows as u64);
        let a = Guarded::new(&noise.many(rows * depth, Noise::f32));
        let transposed = noise.many(columns * depth, Noise::f32);
        let plain: Vec<f32> = (0..depth * columns).map(|i| transposed[i % columns * depth + i / columns]).collect();
        let (plain, transposed) = (Guarded::new(&plain), Guarded::new(&transposed));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (min, max) = (f32::NEG_INFINITY, f32::INFINITY);
            let conv = ConvF::new(isa, &transposed, columns, [1, 1], depth, 1, vec![0.0; columns], min, max);
            let (a, window) = (Rows::dense(&a, rows, depth), Window::pixel(rows));
            let mut want = vec![0.0; rows * columns];
            let mut scratch = vec![0; conv.scratch(&window, 1)];
            conv.run(a, &window, None, RowsMut::dense(&mut want, rows, columns), &mut scratch, 1);
            for threads in 1..=3 {
                let b = [Rows::dense(&plain, depth, columns), Rows::dense(&transposed, columns, depth)];
                for (b, transposed) in b.into_iter().zip([false, true]) {
                    let gemm = GemmF::new(isa, depth, columns, transposed);
                    let mut scratch = Guarded::new(&vec![0xff; gemm.scratch(rows, threads)]);
                    let mut y = Guarded::new(&vec![9.0; rows * columns]);
                    gemm.run(a, b, RowsMut::dense(&mut y, rows, columns), &mut scratch, threads);
                    assert!(*y == *want, "{isa}, {rows}x{depth}x{columns}, {threads} threads, {transposed}");
                }
            }
        }
    }
}

/// Many products at once are those one by one, also where they share a matrix.
#[test]
fn products_of_many_matrices() {
    let (rows, depth, columns) = (5, 17, 19);
    let mut noise = Noise(3);
    let a = Guarded::new(&noise.many(7 * rows * depth, Noise::f32));
    let b = Guarded::new(&noise.many(2 * depth * columns, Noise::f32));
    let (all_a, all_b) = (&a[..], &b[..]);
    let of = |i: usize| {
        let b = &all_b[[0, 0, 1, 1, 1, 0, 1][i] * depth * columns..];
        [Rows::dense(&all_a[i * rows * depth..], rows, depth), Rows::dense(b, depth, columns)]
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let gemm = GemmF::new(isa, depth, columns, false);
        for n in [0, 1, 2, 7] {
            let mut want = vec![0.0; n * rows * columns];
            for (i, y) in want.chunks_mut(rows * columns).enumerate() {
                let [a, b] = of(i);
                let mut scratch = vec![0; gemm.scratch(rows, 1)];
                gemm.run(a, b, RowsMut::dense(y, rows, columns), &mut scratch, 1);
            }
            for threads in 1..=4 {
                let mut scratch = Guarded::new(&vec![0xff; gemm.scratch_each(n, rows, threads)]);
                let mut y = Guarded::new(&vec![9.0; n * rows * columns]);
                gemm.run_each(n, of, RowsMut::dense(&mut y, n * rows, columns), &mut scratch, threads);
                assert!(*y == *want, "{isa}, {n} products, {threads} threads");
            }
        }
    }
}

#[test]
fn nothing_is_computed_of_nothing() {
    let (window, slack) = (window(0, [4, 4], [3, 3], 1, 1, 1), [0; 3]);
    Case { window, channels: 3, groups: 1, outputs: 4, slack, threads: 2, block: BLOCK_BYTES, seed: 0 }.check();
    let slack = [0, 1, 0];
    Case {
        window: Window::pixel(3),
        channels: 3,
        groups: 1,
        outputs: 0,
        slack,
        threads: 2,
        block: BLOCK_BYTES,
        seed: 0,
    }
    .check();
}

/// NaN and infinity get through the sum, the bias and both bounds.
#[test]
fn nan_stays_nan() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let conv = ConvF::new(isa, &[1.0; 20], 20, [1, 1], 1, 1, vec![0.0; 20], 0.0, 6.0);
        let mut y = [0.0; 60];
        let window = Window::pixel(3);
        let mut scratch = vec![0; conv.scratch(&window, 1)];
        let x = Rows::dense(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], 3, 1);
        conv.run(x, &window, None, RowsMut::dense(&mut y, 3, 20), &mut scratch, 1);
        assert!(y[..20].iter().all(|y| y.is_nan()) && y[20..40] == [6.0; 20] && y[40..] == [0.0; 20], "{isa}: {y:?}");
    }
}

/// As in ONNX Runtime, whose vector code takes the least result for NaN.
#[test]
fn nothing_by_an_infinite_scale_is_the_least_result() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let (bias, scale) = ((0..70).map(|c| c % 3 - 1).collect(), vec![f32::INFINITY; 70]);
        let finish = Finish8::Requantize { bias, scale, zero: 10, min: 3, max: 250 };
        let conv = Conv8::new(isa, &[0; 70], 70, [1, 1], 1, 1, 0, finish);
        let (window, mut y) = (Window::pixel(1), [0; 70]);
        let mut scratch = vec![0; conv.scratch(&window, 1)];
        conv.run_u8(Rows::dense(&[200], 1, 1), &window, RowsMut::dense(&mut y, 1, 70), &mut scratch, 1);
        assert!((0..70).all(|c| y[c] == [3, 3, 250][c % 3]), "{isa}: {y:?}");
    }
}

/// Sums whose scaled value is not a 32-bit integer become the bound on their side.
#[test]
fn what_is_too_large_saturates() {
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let finish = Finish8::Requantize { bias: vec![0; 2], scale: vec![1e30; 2], zero: 10, min: 3, max: 250 };
        let conv = Conv8::new(isa, &[1, -1], 2, [1, 1], 1, 1, 0, finish);
        let (window, mut y) = (Window::pixel(1), [0; 2]);
        let mut scratch = vec![0; conv.scratch(&window, 1)];
        conv.run_u8(Rows::dense(&[200], 1, 1), &window, RowsMut::dense(&mut y, 1, 2), &mut scratch, 1);
        assert_eq!(y, [250, 3], "{isa}");

        // A scale that is too large for some sums only.
        let depth = 10_000;
        let finish = Finish8::Requantize { bias: vec![0; 2], scale: vec![8.5; 2], zero: 10, min: 3, max: 250 };
        let conv = Conv8::new(isa, &[[127; 10_000], [-128; 10_000]].concat(), 2, [1, 1], depth, 1, 0, finish);
        let mut scratch = vec![0; conv.scratch(&window, 1)];
        conv.run_u8(Rows::dense(&vec![255; depth], 1, depth), &window, RowsMut::dense(&mut y, 1, 2), &mut scratch, 1);
        assert_eq!(y, [250, 3], "{isa}");
    }
}

#[test]
fn sums_at_their_limit_are_right() {
    let depth = i32::MAX as usize / (255 * 128);
    assert!(Conv8::fits(depth) && !Conv8::fits(depth + 1));
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let finish = Finish8::Scale { bias: vec![0.0], scale: vec![1.0], min: f32::MIN, max: f32::MAX };
        let conv = Conv8::new(isa, &vec![-128; depth], 1, [1, 1], depth, 1, 0, finish);
        let (window, mut y) = (Window::pixel(1), [0.0]);
        let mut scratch = vec![0; conv.scratch(&window, 1)];
        // Less 128, a 0 has the greatest products, of which two don't fit 16 bits.
        for x in [255, 0] {
            let all = vec![x; depth];
            conv.run_f32(Rows::dense(&all, 1, depth), &window, RowsMut::dense(&mut y, 1, 1), &mut scratch, 1);
            assert_eq!(y, [-(depth as f32 * f32::from(x) * 128.0)], "{isa}");
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let pair = |range: std::ops::RangeInclusive<usize>| [range.clone(), range];
    let size = (1..=3usize, pair(1..=20), pair(1..=5), pair(1..=3), pair(1..=3), pair(0..=6));
    let width = (1..=20usize, 1..=3usize, 1..=70usize);
    let block = prop_oneof![200..=8000usize, Just(BLOCK_BYTES)];
    (size, width, [0..=3usize, 0..=3, 0..=3], 1..=3usize, block, any::<u64>()).prop_map(
        |(size, width, slack, threads, block, seed)| {
            let (batch, input, kernel, stride, dilation, pad) = size;
            // Some positions of the last window may hang over the image.
            let output = [0, 1].map(|axis| {
                let covered = (kernel[axis] - 1) * dilation[axis] + 1;
                (input[axis] + 2 * pad[axis]).saturating_sub(covered) / stride[axis] + 1
            });
            let (channels, groups, outputs) = width;
            let outputs = outputs.div_ceil(groups);
            let window = Window { batch, input, output, kernel, stride, dilation, pad };
            Case { window, channels, groups, outputs, slack, threads, block, seed }
        },
    )
}

#[test]
fn any_convolution() {
    let config = ProptestConfig { cases: 150, failure_persistence: None, max_shrink_iters: 200, ..Default::default() };
    let rng = proptest::test_runner::TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
    runner
        .run(&case(), |case| {
            case.check();
            Ok(())
        })
        .unwrap_or_else(|failure| panic!("{failure}"));
}
