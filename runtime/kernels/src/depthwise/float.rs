//! Depthwise convolutions of floats.

use super::{by_lines, by_taps, check};
use crate::{
    Isa, Rows, RowsMut, UnaryOp, Window,
    math::{clamp, multiply_add},
    multiversion::multiversion,
    parallel::in_rows,
    pool::{Position, by_columns},
};

/// A depthwise convolution of floats: `clamp(sum over taps of x * w + bias, min, max)`.
#[derive(Debug, Clone)]
pub struct DepthwiseF {
    isa: Isa,
    /// `[taps][channels]`.
    weights: Vec<f32>,
    taps: usize,
    channels: usize,
    bias: Vec<f32>,
    /// Where channels are few: what some positions next to each other take at once.
    together: Option<Together>,
    min: f32,
    max: f32,
    then: Option<UnaryOp>,
}

/// Positions next to each other, whose channels lie one behind the other like those of one position.
#[derive(Debug, Clone)]
struct Together {
    positions: usize,
    /// As of one position, repeated.
    weights: Vec<f32>,
    bias: Vec<f32>,
}

impl Together {
    /// As many positions as have channels for two registers.
    fn new(weights: &[f32], bias: &[f32]) -> Option<Self> {
        let positions = REGISTERS.checked_div(bias.len())?;
        let repeated = || weights.chunks_exact(bias.len()).flat_map(|of_tap| of_tap.repeat(positions)).collect();
        (positions > 1).then(|| Self { positions, weights: repeated(), bias: bias.repeat(positions) })
    }
}

/// Floats in two of the widest registers.
const REGISTERS: usize = 32;

impl DepthwiseF {
    /// Packs `weights` (`[channels][taps]`).
    ///
    /// # Panics
    /// When the numbers of weights and biases are not those of `taps` and `channels`.
    pub fn new(isa: Isa, weights: &[f32], taps: usize, channels: usize, bias: Vec<f32>, min: f32, max: f32) -> Self {
        assert_eq!(bias.len(), channels, "a bias for each channel");
        let weights = by_taps(weights, taps, channels);
        let together = Together::new(&weights, &bias);
        Self { isa, weights, taps, channels, bias, together, min, max, then: None }
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// How many bytes of scratch memory [`Self::run`] needs.
    pub fn scratch(&self, _window: &Window, _threads: usize) -> usize {
        0
    }

    /// Multiplications for a window.
    pub fn macs(&self, window: &Window) -> u64 {
        (window.positions() * self.weights.len()) as u64
    }

    /// Convolves.
    ///
    /// # Panics
    /// When the operands don't fit the window.
    pub fn run(&self, x: Rows<f32>, window: &Window, y: RowsMut<f32>, _scratch: &mut [u8], threads: usize) {
        check(x, window, &y, self.taps, self.channels);
        in_rows(y, window.output[1], threads, &|part, y| {
            by_lines(self.isa, self.then, window, part.row, y, |first, y| {
                float_rows(self.isa, self, x, window, first, y);
            });
        });
    }
}

/// Some positions along a line, all of whose taps are inside of the image.
struct Run<'a> {
    /// From the first pixel of the first position on.
    x: &'a [f32],
    /// Floats from one position to the next.
    x_step: usize,
    /// From the first result on.
    y: &'a mut [f32],
    y_step: usize,
    count: usize,
    weights: &'a [f32],
    bias: &'a [f32],
    bounds: [f32; 2],
}

impl Run<'_> {
    /// `N` channels from channel `channel` at all positions; the weights stay in registers. `offsets` are those of the taps.
    ///
    /// # Panics
    /// When the channels of a position, or a tap's pixel, are not within the operands.
    #[inline(always)]
    fn channels<const TAPS: usize, const N: usize>(&mut self, isa: Isa, channel: usize, offsets: &[usize; TAPS]) {
        let weights: [[f32; N]; TAPS] =
            std::array::from_fn(|tap| part(&self.weights[tap * self.bias.len() + channel..]));
        let bias: [f32; N] = part(&self.bias[channel..]);
        let farthest = offsets.iter().max().map_or(0, |offset| offset + channel + N);
        let last = self.count.saturating_sub(1);
        assert!(last * self.x_step + farthest <= self.x.len(), "taps within the image");
        assert!(last * self.y_step + channel + N <= self.y.len(), "positions within the result");
        for at in 0..self.count {
            let mut sums = bias;
            for (weights, offset) in weights.iter().zip(offsets) {
                let first = at * self.x_step + offset + channel;
                // SAFETY: `at` is at most `last` and `offset + channel + N` at most `farthest`, which was found within `x`.
                let x = unsafe { self.x.get_unchecked(first..first + N) };
                for ((sum, x), w) in sums.iter_mut().zip(x).zip(weights) {
                    *sum = multiply_add(isa, *x, *w, *sum);
                }
            }
            let first = at * self.y_step + channel;
            // SAFETY: `at` is at most `last`, whose channels were found within `y`.
            let y = unsafe { self.y.get_unchecked_mut(first..first + N) };
            for (y, sum) in y.iter_mut().zip(sums) {
                *y = clamp(sum, self.bounds[0], self.bounds[1]);
            }
        }
    }
}

#[inline(always)]
fn part<const N: usize>(x: &[f32]) -> [f32; N] {
    let mut part = [0.0; N];
    part.copy_from_slice(&x[..N]);
    part
}

/// How far each tap is from the first, in floats.
#[inline(always)]
fn offsets<const TAPS: usize>(window: &Window, step: [usize; 2], stride: usize) -> [usize; TAPS] {
    std::array::from_fn(|tap| (tap / window.kernel[1] * step[0] + tap % window.kernel[1] * step[1]) * stride)
}

/// Channels at a time whose weights for 9 taps stay in registers.
macro_rules! by_registers {
    ($isa:expr, $run:expr, $offsets:expr) => {{
        let (mut run, offsets) = ($run, $offsets);
        let width = run.bias.len();
        if matches!($isa, Isa::Avx512Vnni | Isa::Amx) {
            by_columns!(16: width, |channel, N| run.channels::<_, N>($isa, channel, &offsets));
        } else {
            by_columns!(8: width, |channel, N| run.channels::<_, N>($isa, channel, &offsets));
        }
    }};
}

multiversion! {
    fn float_rows(isa: Isa, op: &DepthwiseF, x: Rows<f32>, window: &Window, first: usize, y: RowsMut<f32>) {
        let (x_stride, y_stride) = (x.stride(), y.stride());
        let mut y = y;
        let dense = x.is_dense() && y.is_dense() && window.stride[1] == 1;
        let together = op.together.as_ref().filter(|_| dense);
        let mut position = Position::of(window, first);
        let mut i = 0;
        while i < y.rows() {
            let covered = position.covered();
            let ([rows, columns], [row, column]) = (&position.interior, position.at);
            let inside = rows.contains(&row) && columns.contains(&column);
            let run = if inside { (columns.end - column).min(y.rows() - i) } else { 1 };
            let (each, weights, bias) = match together {
                Some(t) if inside && run >= t.positions => (t.positions, &t.weights, &t.bias),
                _ => (1, &op.weights, &op.bias),
            };
            let count = run / each;
            let run = Run {
                x: &x.data()[covered.first * x_stride..],
                x_step: each * window.stride[1] * x_stride,
                y: &mut y.data()[i * y_stride..],
                y_step: each * y_stride,
                count,
                weights,
                bias,
                bounds: [op.min, op.max],
            };
            match window.kernel {
                [3, 3] if inside => by_registers!(isa, run, offsets::<9>(window, covered.step, x_stride)),
                [5, 5] if inside => by_registers!(isa, run, offsets::<25>(window, covered.step, x_stride)),
                _ => {
                    for at in 0..count {
                        by_columns!(bias.len(), |column, N| {
                            let mut sums: [f32; N] = part(&bias[column..]);
                            let x = &run.x[at * run.x_step + column..];
                            for i in 0..covered.count[0] {
                                for j in 0..covered.count[1] {
                                    let pixel = (i * covered.step[0] + j * covered.step[1]) * x_stride;
                                    let tap = (covered.tap[0] + i) * window.kernel[1] + covered.tap[1] + j;
                                    let w = &weights[tap * bias.len() + column..][..N];
                                    for ((sum, x), w) in sums.iter_mut().zip(&x[pixel..][..N]).zip(w) {
                                        *sum = multiply_add(isa, *x, *w, *sum);
                                    }
                                }
                            }
                            for (y, sum) in run.y[at * run.y_step + column..][..N].iter_mut().zip(sums) {
                                *y = clamp(sum, op.min, op.max);
                            }
                        });
                    }
                }
            }
            position.advance_by(count * each);
            i += count * each;
        }
    }
}
