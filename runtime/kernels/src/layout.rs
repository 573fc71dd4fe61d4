//! Moving elements: between layouts, and from place to place.

mod permute;
mod pick;
pub(crate) mod tile;

pub use permute::permute;
pub use pick::{Columns, PADDING, pick};

use crate::multiversion::multiversion;
use crate::parallel::in_parts;
use crate::quant::{quantize, quantize_slice};
use crate::{Isa, Rows, RowsMut};

mod sealed {
    pub trait Sealed {}
}

/// A number of which every bit counts: what may be moved without a look at its type.
pub trait Element: Copy + Default + Send + Sync + sealed::Sealed + 'static {}

macro_rules! elements {
    ($($t:ty)*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {}
    )*};
}

elements! { u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool }

/// Transposes each of `batch` matrices of `rows` x `columns`: row `b * columns + c` of `y` is
/// column `c` of matrix `b`. So NCHW becomes NHWC with `rows` the channels and `columns` the
/// pixels of an image, and NHWC becomes NCHW the other way round.
///
/// # Panics
/// When `x` is too short, or `y` has not `batch * columns` rows of `rows`.
pub fn transpose<T: Element>(
    isa: Isa,
    x: &[T],
    batch: usize,
    rows: usize,
    columns: usize,
    y: RowsMut<T>,
    threads: usize,
) {
    assert_eq!((y.rows(), y.width()), (batch * columns, rows), "y has the columns of x as rows");
    let x = Rows::dense(x, batch * rows, columns);
    in_parts(y, 1, threads, &|part, mut y: RowsMut<T>| {
        for_images(part.row, part.rows, columns, |image, first, n, at| {
            let x = x.part(image * rows + part.column, part.width).columns(first, n);
            tile::transpose(isa, x, rows_of(&mut y, at, n));
        });
    });
}

/// [`quantize`](crate::quantize) and [`transpose`] in one: images of `channels` x `pixels` floats
/// (NCHW) to rows of pixels (NHWC).
///
/// # Panics
/// When `x` is too short, or `y` has not `batch * pixels` rows of `channels`.
#[allow(clippy::too_many_arguments)]
pub fn quantize_transpose(
    isa: Isa,
    x: &[f32],
    batch: usize,
    channels: usize,
    pixels: usize,
    scale: f32,
    zero: u8,
    y: RowsMut<u8>,
    threads: usize,
) {
    assert_eq!((y.rows(), y.width()), (batch * pixels, channels), "y has a row for each pixel");
    if channels == 1 {
        return quantize(isa, Rows::dense(x, batch * pixels, 1), scale, zero, y, threads);
    }
    let x = Rows::dense(x, batch * channels, pixels);
    in_parts(y, 1, threads, &|part, mut y: RowsMut<u8>| {
        for_images(part.row, part.rows, pixels, |image, first, n, at| {
            let x = x.part(image * channels + part.column, part.width).columns(first, n);
            quantize_planes(isa, x, scale, zero, rows_of(&mut y, at, n));
        });
    });
}

/// `y = x`.
///
/// # Panics
/// When they are not of one shape.
pub fn copy<T: Copy>(x: Rows<T>, mut y: RowsMut<T>) {
    assert_eq!((x.rows(), x.width()), (y.rows(), y.width()), "x and y are of one shape");
    if x.is_dense() && y.is_dense() {
        return y.data().copy_from_slice(x.data());
    }
    for i in 0..y.rows() {
        y.row(i).copy_from_slice(x.row(i));
    }
}

/// Calls `body` for each image of `pixels` rows that rows `first..first + n` touch, with its
/// number, its first row among them, how many, and where these lie from `first` on.
fn for_images(first: usize, n: usize, pixels: usize, mut body: impl FnMut(usize, usize, usize, usize)) {
    let mut at = 0;
    while at < n {
        let row = first + at;
        let some = (pixels - row % pixels).min(n - at);
        body(row / pixels, row % pixels, some, at);
        at += some;
    }
}

/// `n` rows of `y` from row `first`.
fn rows_of<'a, T>(y: &'a mut RowsMut<T>, first: usize, n: usize) -> RowsMut<'a, T> {
    y.reborrow().split_at(first).1.split_at(n).0
}

/// How many pixels are quantised before they are written.
const PIXELS: usize = 256;
/// Of how many channels.
const CHANNELS: usize = 16;

multiversion! {
    fn quantize_planes(isa: Isa, x: Rows<f32>, scale: f32, zero: u8, y: RowsMut<u8>) {
        let mut y = y;
        let mut planes = [0u8; CHANNELS * PIXELS];
        for first in (0..x.width()).step_by(PIXELS) {
            let n = PIXELS.min(x.width() - first);
            for channel in (0..x.rows()).step_by(CHANNELS) {
                let channels = CHANNELS.min(x.rows() - channel);
                for (c, plane) in planes.chunks_mut(PIXELS).take(channels).enumerate() {
                    quantize_slice(&x.row(channel + c)[first..][..n], scale, zero, &mut plane[..n]);
                }
                let mut y = rows_of(&mut y, first, n);
                let mut y = y.columns(channel, channels);
                match channels {
                    2 => interleave::<2>(&planes, y),
                    3 => interleave::<3>(&planes, y),
                    4 => interleave::<4>(&planes, y),
                    _ => tile::transpose(isa, Rows::new(&planes, channels, n, PIXELS), y.reborrow()),
                }
            }
        }
    }
}

/// Writes two to four planes as pixels.
#[inline(always)]
fn interleave<const C: usize>(planes: &[u8; CHANNELS * PIXELS], mut y: RowsMut<u8>) {
    let n = y.rows();
    let mut pixels = [0u32; PIXELS];
    for (c, plane) in planes.chunks(PIXELS).take(C).enumerate() {
        for (pixel, x) in pixels.iter_mut().zip(plane) {
            *pixel |= u32::from(*x) << (8 * c);
        }
    }
    let mut done = 0;
    if C == 3 && y.is_dense() {
        // Four pixels are three words.
        let (words, _) = y.data().as_chunks_mut::<12>();
        for (out, [a, b, c, d]) in words.iter_mut().zip(pixels.as_chunks::<4>().0) {
            out[..4].copy_from_slice(&(a | b << 24).to_le_bytes());
            out[4..8].copy_from_slice(&(b >> 8 | c << 16).to_le_bytes());
            out[8..].copy_from_slice(&(c >> 16 | d << 8).to_le_bytes());
        }
        done = n / 4 * 4;
    }
    for (i, pixel) in pixels[..n].iter().enumerate().skip(done) {
        y.row(i).copy_from_slice(&pixel.to_le_bytes()[..C]);
    }
}

#[cfg(test)]
mod tests;
