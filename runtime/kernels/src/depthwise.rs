//! Depthwise convolutions: one filter a channel.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod bytes;
mod float;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod packed;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use float::DepthwiseF;

use crate::elementwise::apply_rows;
use crate::math::{clamp, round_within};
use crate::multiversion::multiversion;
use crate::parallel::in_rows;
use crate::pool::{Position, by_columns, each_pixel, each_position};
use crate::{Finish8, Isa, Rows, RowsMut, UnaryOp, Window};

/// A depthwise convolution of 8-bit integers: `sum over taps of (x - input_zero) * w`, finished.
#[derive(Debug, Clone)]
pub struct Depthwise8 {
    isa: Isa,
    /// `[taps][channels]`.
    weights: Vec<i16>,
    taps: usize,
    channels: usize,
    input_zero: u8,
    finish: Finish8,
    then: Option<UnaryOp>,
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    packed: Option<packed::Packed>,
}

/// `[channels][taps]` as `[taps][channels]`.
fn by_taps<T: Copy, U: From<T>>(weights: &[T], taps: usize, channels: usize) -> Vec<U> {
    assert_eq!(weights.len(), taps * channels, "{channels} channels of {taps} taps");
    (0..taps).flat_map(|tap| (0..channels).map(move |channel| U::from(weights[channel * taps + tap]))).collect()
}

impl Depthwise8 {
    /// Packs `weights` (`[channels][taps]`). `input_zero` is the zero point of `x`, and what
    /// padding counts as.
    ///
    /// # Panics
    /// When the numbers of weights, biases and scales are not those of `taps` and `channels`, or
    /// sums could leave 32 bits (for 2^16 taps and more).
    pub fn new(isa: Isa, weights: &[i8], taps: usize, channels: usize, input_zero: u8, finish: Finish8) -> Self {
        assert_eq!(finish.channels(), channels, "a bias and a scale for each channel");
        assert!(taps < 1 << 16, "sums of {taps} products are 32-bit");
        assert!(isa.is_available(), "this machine has no {isa}");
        Self {
            isa,
            weights: by_taps(weights, taps, channels),
            taps,
            channels,
            input_zero,
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            packed: match &finish {
                Finish8::Requantize { bias, scale, zero, min, max } => {
                    let (zero, min, max) = (*zero, *min, *max);
                    packed::Packed::new(
                        isa,
                        weights,
                        taps,
                        input_zero,
                        &packed::Requantize { bias, scale, zero, min, max },
                    )
                }
                _ => None,
            },
            finish,
            then: None,
        }
    }

    /// The same, but each result that is a float is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// How many bytes of scratch memory [`Self::run_u8`] and [`Self::run_f32`] need.
    pub fn scratch(&self, _window: &Window, _threads: usize) -> usize {
        0
    }

    /// Multiplications for a window.
    pub fn macs(&self, window: &Window) -> u64 {
        (window.positions() * self.weights.len()) as u64
    }

    /// Convolves to 8 bits.
    ///
    /// # Panics
    /// When the operands don't fit the window, or this finishes with floats.
    pub fn run_u8(&self, x: Rows<u8>, window: &Window, y: RowsMut<u8>, _scratch: &mut [u8], threads: usize) {
        let Finish8::Requantize { bias, scale, zero, min, max } = &self.finish else {
            panic!("this convolution finishes with floats");
        };
        check(x, window, &y, self.taps, self.channels);
        let zero = i32::from(*zero);
        let bounds = [i32::from(*min), i32::from(*max)].map(|bound| (bound - zero) as f32);
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if let Some(packed) = &self.packed {
            return in_rows(y, window.output[1], threads, &|part, y| {
                // SAFETY: `new` found the instruction set available, and packed as many taps and
                // channels as `check` found the window and the operands to have.
                unsafe { packed.run(x, window, part.row, y) };
            });
        }
        in_rows(y, window.output[1], threads, &|part, y| {
            requantize_rows(self.isa, self, x, window, part.row, bias, scale, zero, bounds, y);
        });
    }

    /// Convolves to floats.
    ///
    /// # Panics
    /// When the operands don't fit the window, or this finishes with 8 bits.
    pub fn run_f32(&self, x: Rows<u8>, window: &Window, y: RowsMut<f32>, _scratch: &mut [u8], threads: usize) {
        let Finish8::Scale { bias, scale, min, max } = &self.finish else {
            panic!("this convolution finishes with 8 bits");
        };
        check(x, window, &y, self.taps, self.channels);
        in_rows(y, window.output[1], threads, &|part, y| {
            by_lines(self.isa, self.then, window, part.row, y, |first, y| {
                scale_rows(self.isa, self, x, window, first, bias, scale, [*min, *max], y);
            });
        });
    }
}

/// Computes rows from position `first` on by `body`; makes `then` of them a line at a time, while the cache holds it.
fn by_lines(
    isa: Isa,
    then: Option<UnaryOp>,
    window: &Window,
    mut first: usize,
    mut y: RowsMut<f32>,
    body: impl Fn(usize, RowsMut<f32>),
) {
    let Some(f) = then else { return body(first, y) };
    while y.rows() > 0 {
        let count = window.output[1].clamp(1, y.rows());
        let (mut line, rest) = y.split_at(count);
        body(first, line.reborrow());
        apply_rows(isa, f, line);
        (first, y) = (first + count, rest);
    }
}

fn check<X, Y>(x: Rows<X>, window: &Window, y: &RowsMut<Y>, taps: usize, channels: usize) {
    assert_eq!(taps, window.taps(), "taps of {window:?}");
    assert_eq!((x.rows(), x.width()), (window.pixels(), channels), "x has a row for each pixel of {window:?}");
    assert_eq!((y.rows(), y.width()), (window.positions(), channels), "y has a row for each position of {window:?}");
}

/// The sums for `N` channels from channel `column`. A product of 9 and 8 bits fits in 16.
macro_rules! sums {
    ($op:expr, $x:expr, $window:expr, $covered:expr, $column:expr, $n:ident) => {{
        let zero = i16::from($op.input_zero);
        let mut sums = [0i32; $n];
        each_pixel!($window, $covered, |pixel, tap| {
            let pixel = &$x.data()[pixel * $x.stride() + $column..][..$n];
            let tap = &$op.weights[tap * $x.width() + $column..][..$n];
            for ((sum, x), w) in sums.iter_mut().zip(pixel).zip(tap) {
                *sum += i32::from((i16::from(*x) - zero).wrapping_mul(*w));
            }
        });
        sums
    }};
}

multiversion! {
    fn requantize_rows(
        isa: Isa,
        op: &Depthwise8,
        x: Rows<u8>,
        window: &Window,
        first: usize,
        bias: &[i32],
        scale: &[f32],
        zero: i32,
        bounds: [f32; 2],
        y: RowsMut<u8>,
    ) {
        let mut y = y;
        each_position!(window, first, y.rows(), |i, _position, covered| {
            let y = y.row(i);
            by_columns!(y.len(), |column, N| {
                let sums = sums!(op, x, window, covered, column, N);
                let (bias, scale) = (&bias[column..][..N], &scale[column..][..N]);
                for (((y, sum), bias), scale) in y[column..][..N].iter_mut().zip(sums).zip(bias).zip(scale) {
                    let rounded = round_within(sum.wrapping_add(*bias) as f32 * scale, bounds[0], bounds[1]);
                    *y = (rounded + zero) as u8;
                }
            });
        });
    }

    fn scale_rows(
        isa: Isa,
        op: &Depthwise8,
        x: Rows<u8>,
        window: &Window,
        first: usize,
        bias: &[f32],
        scale: &[f32],
        bounds: [f32; 2],
        y: RowsMut<f32>,
    ) {
        let mut y = y;
        each_position!(window, first, y.rows(), |i, _position, covered| {
            let y = y.row(i);
            by_columns!(y.len(), |column, N| {
                let sums = sums!(op, x, window, covered, column, N);
                let (bias, scale) = (&bias[column..][..N], &scale[column..][..N]);
                for (((y, sum), bias), scale) in y[column..][..N].iter_mut().zip(sums).zip(bias).zip(scale) {
                    *y = clamp(sum as f32 * scale + bias, bounds[0], bounds[1]);
                }
            });
        });
    }
}

#[cfg(test)]
mod tests;
