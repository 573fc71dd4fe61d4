//! Means of codes as floats.

use super::average::pixels_of;
use super::by_columns;
use crate::math::round_within;
use crate::multiversion::multiversion;
use crate::parallel::in_parts;
use crate::{Isa, Rescale, Rows, RowsMut};

/// Floats of the vectors in which ONNX Runtime adds up an image.
const VECTOR: usize = 4;

/// DequantizeLinear, ReduceMean over each of `images` images, QuantizeLinear: to the last bit as
/// ONNX Runtime has them for x86, where they stay three operators. A float sum depends on its
/// order: there images (NCHW) are added up by aligned vectors of four, two of them at a time. An
/// image is taken to begin aligned, so that its results don't depend on those before it.
///
/// # Panics
/// When the rows of `x` can't be divided so, or `y` does not fit.
pub fn global_mean8(isa: Isa, x: Rows<u8>, images: usize, rescale: Rescale, y: RowsMut<u8>, threads: usize) {
    let pixels = pixels_of(x, images, &y);
    in_parts(y, 1, threads, &|part, y| {
        let x = x.part(part.row * pixels, part.rows * pixels).columns(part.column, part.width);
        mean8_rows(isa, x, pixels, rescale, part.column, y);
    });
}

/// The sums over all pixels of `N` channels from `column` on, in the order of vectors of which the
/// first begins at pixel `start`.
#[inline(always)]
fn sums<const N: usize>(x: Rows<u8>, column: usize, rescale: Rescale, start: usize) -> [f32; N] {
    let pixels = x.rows();
    let start = start.min(pixels);
    let add = |sum: &mut [f32; N], pixel: usize| {
        for (sum, x) in sum.iter_mut().zip(&x.row(pixel)[column..][..N]) {
            *sum += (i32::from(*x) - i32::from(rescale.x_zero)) as f32 * rescale.x_scale;
        }
    };
    let plus = |a: [f32; N], b: [f32; N]| -> [f32; N] { std::array::from_fn(|i| a[i] + b[i]) };
    let vectors = (pixels - start) / VECTOR;
    let mut lanes = [[0f32; N]; 2 * VECTOR];
    let pairs = vectors / 2 * 2 * VECTOR;
    for i in 0..pairs {
        add(&mut lanes[i % (2 * VECTOR)], start + i);
    }
    let mut four: [[f32; N]; VECTOR] = std::array::from_fn(|i| plus(lanes[i], lanes[i + VECTOR]));
    for i in pairs..vectors * VECTOR {
        add(&mut four[i - pairs], start + i);
    }
    let mut sum = plus(plus(four[0], four[2]), plus(four[1], four[3]));
    (0..start).chain(start + vectors * VECTOR..pixels).for_each(|pixel| add(&mut sum, pixel));
    sum
}

multiversion! {
    fn mean8_rows(
        isa: Isa,
        x: Rows<u8>,
        pixels: usize,
        rescale: Rescale,
        first: usize,
        y: RowsMut<u8>,
    ) {
        let mut y = y;
        let Rescale { y_scale, y_zero, .. } = rescale;
        let zero = i32::from(y_zero);
        let (min, max) = (-zero as f32, (255 - zero) as f32);
        for image in 0..y.rows() {
            let (x, y) = (x.part(image * pixels, pixels), y.row(image));
            by_columns!(y.len(), |column, N| {
                // Pixels of a channel before the first that is aligned in NCHW.
                let start = |lane: usize| {
                    let before = (first + column + lane) * pixels;
                    before.next_multiple_of(VECTOR) - before
                };
                for begin in 0..VECTOR {
                    if !(0..N).any(|lane| start(lane) == begin) {
                        continue;
                    }
                    for (lane, sum) in sums::<N>(x, column, rescale, begin).into_iter().enumerate() {
                        if start(lane) == begin {
                            let mean = sum / pixels as f32;
                            y[column + lane] = (round_within(mean / y_scale, min, max) + zero) as u8;
                        }
                    }
                }
            });
        }
    }
}
