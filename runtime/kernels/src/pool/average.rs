//! Averages.

use super::{Position, by_columns, check, each_pixel, each_position};
use crate::math::round_within;
use crate::multiversion::multiversion;
use crate::parallel::in_parts;
use crate::{Isa, Rows, RowsMut, Window};

/// By what the sum at a position of a window is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Divisor<'a> {
    /// The number of pixels that it covers (`count_include_pad` is 0).
    Inside,
    /// The product of a number for its row and one for its column: the taps on pixels and on
    /// padding (`count_include_pad` is 1), without those that `ceil_mode` put beyond the padding.
    Counts([&'a [usize]; 2]),
}

/// The scales and zero points of an 8-bit operator's input `x` and output `y`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rescale {
    /// The scale of `x`.
    pub x_scale: f32,
    /// The zero point of `x`.
    pub x_zero: u8,
    /// The scale of `y`.
    pub y_scale: f32,
    /// The zero point of `y`.
    pub y_zero: u8,
}

/// AveragePool.
///
/// # Panics
/// When `x` has not the window's pixels, `y` not its positions, they differ in width, or there is
/// no count for each position.
pub fn average_pool(isa: Isa, x: Rows<f32>, window: &Window, divisor: Divisor, y: RowsMut<f32>, threads: usize) {
    check(x, window, &y);
    divisor.check(window);
    in_parts(y, 1, threads, &|part, y| {
        average_rows(isa, x.columns(part.column, part.width), window, divisor, part.row, y);
    });
}

/// QLinearAveragePool (com.microsoft), to the last bit as ONNX Runtime has it: a sum in `f32` of
/// dequantised pixels in their order, divided, and quantised. (Where the window is the whole image
/// and there is no padding, ONNX Runtime computes [`global_average8`] instead.)
///
/// # Panics
/// As [`average_pool`].
pub fn average_pool8(
    isa: Isa,
    x: Rows<u8>,
    window: &Window,
    divisor: Divisor,
    rescale: Rescale,
    y: RowsMut<u8>,
    threads: usize,
) {
    check(x, window, &y);
    divisor.check(window);
    in_parts(y, 1, threads, &|part, y| {
        average8_rows(isa, x.columns(part.column, part.width), window, divisor, rescale, part.row, y);
    });
}

/// GlobalAveragePool of `images` images of equally many pixels; `y` has a row for each image.
///
/// # Panics
/// When the rows of `x` can't be divided so, or `y` does not fit.
pub fn global_average(isa: Isa, x: Rows<f32>, images: usize, y: RowsMut<f32>, threads: usize) {
    let pixels = pixels_of(x, images, &y);
    in_parts(y, 1, threads, &|part, y| {
        let x = x.part(part.row * pixels, part.rows * pixels).columns(part.column, part.width);
        global_rows(isa, x, pixels, y);
    });
}

/// QLinearGlobalAveragePool (com.microsoft), to the last bit as ONNX Runtime has it for x86:
/// `saturate(round(sum(x - x_zero) * (x_scale / (y_scale * pixels))) + y_zero)`.
///
/// # Panics
/// When the rows of `x` can't be divided into `images` images of fewer than 2^23 pixels, or `y`
/// does not fit.
pub fn global_average8(isa: Isa, x: Rows<u8>, images: usize, rescale: Rescale, y: RowsMut<u8>, threads: usize) {
    let pixels = pixels_of(x, images, &y);
    assert!(pixels < 1 << 23, "sums of {pixels} pixels are 32-bit");
    in_parts(y, 1, threads, &|part, y| {
        let x = x.part(part.row * pixels, part.rows * pixels).columns(part.column, part.width);
        global8_rows(isa, x, pixels, rescale, y);
    });
}

/// How many rows of `x` each of `images` images has.
pub(super) fn pixels_of<X, Y>(x: Rows<X>, images: usize, y: &RowsMut<Y>) -> usize {
    assert_eq!((y.rows(), y.width()), (images, x.width()), "y has a row for each image");
    let pixels = x.rows().checked_div(images).unwrap_or(0);
    assert_eq!(images * pixels, x.rows(), "{images} images of {} pixels in all", x.rows());
    pixels
}

impl Divisor<'_> {
    fn check(&self, window: &Window) {
        if let Divisor::Counts(counts) = self {
            assert_eq!(counts.map(<[usize]>::len), window.output, "a count for each row and column of {window:?}");
        }
    }

    #[inline(always)]
    fn at(&self, position: &Position, covered: [usize; 2]) -> f32 {
        let [rows, columns] = match self {
            Divisor::Inside => covered,
            Divisor::Counts([rows, columns]) => [rows[position.at[0]], columns[position.at[1]]],
        };
        (rows * columns) as f32
    }
}

multiversion! {
    fn average_rows(
        isa: Isa,
        x: Rows<f32>,
        window: &Window,
        divisor: Divisor,
        first: usize,
        y: RowsMut<f32>,
    ) {
        let mut y = y;
        each_position!(window, first, y.rows(), |i, position, covered| {
            let y = y.row(i);
            let divisor = divisor.at(&position, covered.count);
            by_columns!(y.len(), |column, N| {
                let mut sum = [0f32; N];
                each_pixel!(window, covered, |pixel, _tap| {
                    for (sum, x) in sum.iter_mut().zip(&x.data()[pixel * x.stride() + column..][..N]) {
                        *sum += x;
                    }
                });
                for (y, sum) in y[column..][..N].iter_mut().zip(sum) {
                    *y = sum / divisor;
                }
            });
        });
    }

    fn average8_rows(
        isa: Isa,
        x: Rows<u8>,
        window: &Window,
        divisor: Divisor,
        rescale: Rescale,
        first: usize,
        y: RowsMut<u8>,
    ) {
        let mut y = y;
        let Rescale { x_scale, x_zero, y_scale, y_zero } = rescale;
        each_position!(window, first, y.rows(), |i, position, covered| {
            let y = y.row(i);
            let divisor = divisor.at(&position, covered.count);
            by_columns!(y.len(), |column, N| {
                let mut sum = [0f32; N];
                each_pixel!(window, covered, |pixel, _tap| {
                    for (sum, x) in sum.iter_mut().zip(&x.data()[pixel * x.stride() + column..][..N]) {
                        *sum += (i32::from(*x) - i32::from(x_zero)) as f32 * x_scale;
                    }
                });
                for (y, sum) in y[column..][..N].iter_mut().zip(sum) {
                    *y = round_within(sum / divisor / y_scale + f32::from(y_zero), 0.0, 255.0) as u8;
                }
            });
        });
    }

    fn global_rows(isa: Isa, x: Rows<f32>, pixels: usize, y: RowsMut<f32>) {
        let mut y = y;
        for image in 0..y.rows() {
            let (x, y) = (x.part(image * pixels, pixels), y.row(image));
            by_columns!(y.len(), |column, N| {
                let mut sum = [0f32; N];
                for pixel in 0..pixels {
                    for (sum, x) in sum.iter_mut().zip(&x.row(pixel)[column..][..N]) {
                        *sum += x;
                    }
                }
                for (y, sum) in y[column..][..N].iter_mut().zip(sum) {
                    *y = sum / pixels as f32;
                }
            });
        }
    }

    fn global8_rows(isa: Isa, x: Rows<u8>, pixels: usize, rescale: Rescale, y: RowsMut<u8>) {
        let mut y = y;
        let Rescale { x_scale, x_zero, y_scale, y_zero } = rescale;
        let scale = x_scale / (y_scale * pixels as f32);
        let zero = i32::from(y_zero);
        let (min, max) = (-zero as f32, (255 - zero) as f32);
        for image in 0..y.rows() {
            let (x, y) = (x.part(image * pixels, pixels), y.row(image));
            by_columns!(y.len(), |column, N| {
                let mut sum = [-i32::from(x_zero) * pixels as i32; N];
                for pixel in 0..pixels {
                    for (sum, x) in sum.iter_mut().zip(&x.row(pixel)[column..][..N]) {
                        *sum += i32::from(*x);
                    }
                }
                for (y, sum) in y[column..][..N].iter_mut().zip(sum) {
                    *y = (round_within(sum as f32 * scale, min, max) + zero) as u8;
                }
            });
        }
    }
}
