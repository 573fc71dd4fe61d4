//! What slides over images one channel at a time: depthwise convolutions, and pools of codes.

use super::{
    finish::{Constants, product_alone, round_within},
    patches::Geometry,
    tile::End,
};
use cubecl::prelude::*;

/// Taps of a window, and the steps between them.
#[derive(CubeType, CubeLaunch, Clone)]
pub struct Taps {
    pub down: usize,
    pub right: usize,
    pub step_y: i32,
    pub step_x: i32,
}

/// Where a unit computes: vectors of channels of a position.
#[derive(CubeType, Clone, Copy)]
struct Place {
    channel: usize,
    y: i32,
    x: i32,
    /// The vector where its image begins.
    first: usize,
}

#[cube]
fn place(g: &Geometry) -> Place {
    let position = ABSOLUTE_POS / g.pixel;
    let image = position / (g.out_height * g.out_width);
    let at = position % (g.out_height * g.out_width);
    Place {
        channel: ABSOLUTE_POS % g.pixel,
        y: i32::cast_from(at / g.out_width) * g.stride_y - g.pad_y,
        x: i32::cast_from(at % g.out_width) * g.stride_x - g.pad_x,
        first: image * usize::cast_from(g.height) * usize::cast_from(g.width) * g.pixel,
    }
}

/// A convolution of each channel by itself; `w` is `[taps][channels]`, `zero` is taken off the input. In `g`, pieces are vectors
/// of channels.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn depthwise<X: Numeric, W: Numeric, C: Numeric, Y: Numeric, N: Size>(
    x: &[Vector<X, N>],
    w: &[Vector<W, N>],
    start: &[i32],
    scale: &[f32],
    bias: &[f32],
    y: &mut [Vector<Y, N>],
    g: &Geometry,
    taps: &Taps,
    #[comptime] end: End,
) {
    if ABSOLUTE_POS < g.rows * g.pixel {
        let at = place(g);
        let zero = Vector::<C, N>::new(C::cast_from(g.outside));
        let mut sums = Vector::<C, N>::new(C::from_int(0));
        for down in 0..taps.down {
            let iy = at.y + i32::cast_from(down) * taps.step_y;
            if iy >= 0i32 && iy < g.height {
                for right in 0..taps.right {
                    let ix = at.x + i32::cast_from(right) * taps.step_x;
                    if ix >= 0i32 && ix < g.width {
                        let pixel = usize::cast_from(iy) * usize::cast_from(g.width) + usize::cast_from(ix);
                        let read = Vector::<C, N>::cast_from(x[at.first + pixel * g.pixel + at.channel]) - zero;
                        let by = Vector::<C, N>::cast_from(w[(down * taps.right + right) * g.pixel + at.channel]);
                        sums += read * by;
                    }
                }
            }
        }
        let width = N::value();
        let mut made = Vector::<Y, N>::new(Y::from_int(0));
        #[unroll]
        for i in 0..width {
            let channel = at.channel * width + i;
            let constants = Constants::of(start, scale, bias, channel, end.finish);
            made.insert(i, constants.finish::<C, Y>(sums.extract(i), 0.0f32, g, end));
        }
        y[ABSOLUTE_POS] = made;
    }
}

/// The greatest code of each window; padding never is.
#[cube(launch_unchecked, address_type = "dynamic")]
pub fn max_pool<N: Size>(x: &[Vector<u8, N>], y: &mut [Vector<u8, N>], g: &Geometry, taps: &Taps) {
    if ABSOLUTE_POS < g.rows * g.pixel {
        let at = place(g);
        let mut most = Vector::<u8, N>::new(0u8);
        for down in 0..taps.down {
            let iy = at.y + i32::cast_from(down) * taps.step_y;
            if iy >= 0i32 && iy < g.height {
                for right in 0..taps.right {
                    let ix = at.x + i32::cast_from(right) * taps.step_x;
                    if ix >= 0i32 && ix < g.width {
                        let pixel = usize::cast_from(iy) * usize::cast_from(g.width) + usize::cast_from(ix);
                        most = max(most, x[at.first + pixel * g.pixel + at.channel]);
                    }
                }
            }
        }
        y[ABSOLUTE_POS] = most;
    }
}

/// The average of each window, as QLinearAveragePool has it: a sum of floats in the order of pixels. `rows` and `columns` have how
/// many taps count at each row and column of positions.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn average_pool(
    x: &[u8],
    y: &mut [u8],
    rows: &[u32],
    columns: &[u32],
    g: &Geometry,
    taps: &Taps,
    x_scale: f32,
    y_scale: f32,
) {
    if ABSOLUTE_POS < g.rows * g.pixel {
        let at = place(g);
        let zero = i32::cast_from(g.outside);
        let mut sum = 0.0f32;
        for down in 0..taps.down {
            let iy = at.y + i32::cast_from(down) * taps.step_y;
            if iy >= 0i32 && iy < g.height {
                for right in 0..taps.right {
                    let ix = at.x + i32::cast_from(right) * taps.step_x;
                    if ix >= 0i32 && ix < g.width {
                        let pixel = usize::cast_from(iy) * usize::cast_from(g.width) + usize::cast_from(ix);
                        sum += real(x[at.first + pixel * g.pixel + at.channel], zero, x_scale, g.nothing);
                    }
                }
            }
        }
        let position = ABSOLUTE_POS / g.pixel % (g.out_height * g.out_width);
        let count = rows[position / g.out_width] * columns[position % g.out_width];
        let mean = sum / f32::cast_from(count) / y_scale + f32::cast_from(g.zero);
        y[ABSOLUTE_POS] = u8::cast_from(round_within(mean, g.low, g.high));
    }
}

/// The average over `pixels` of each image, as QLinearGlobalAveragePool has it.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn global_average(
    x: &[u8],
    y: &mut [u8],
    count: usize,
    channels: usize,
    pixels: usize,
    x_zero: i32,
    scale: f32,
    zero: i32,
) {
    if ABSOLUTE_POS < count {
        let (image, channel) = (ABSOLUTE_POS / channels, ABSOLUTE_POS % channels);
        let mut sum = 0i32;
        for pixel in 0..pixels {
            sum += i32::cast_from(x[(image * pixels + pixel) * channels + channel]) - x_zero;
        }
        let low = f32::cast_from(0i32 - zero);
        y[ABSOLUTE_POS] = u8::cast_from(round_within(f32::cast_from(sum) * scale, low, low + 255.0f32) + zero);
    }
}

/// What a code stands for.
#[cube]
fn real(code: u8, zero: i32, scale: f32, nothing: u32) -> f32 {
    product_alone(f32::cast_from(i32::cast_from(code) - zero), scale, nothing)
}

/// The mean over `pixels` of each image, as a ReduceMean of floats between codes comes to in ONNX Runtime for x86: added up by
/// vectors of four that are aligned in NCHW, two of them at a time (`compress_kernels::global_mean8`).
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn mean(
    x: &[u8],
    y: &mut [u8],
    count: usize,
    channels: usize,
    pixels: usize,
    x_zero: i32,
    x_scale: f32,
    y_scale: f32,
    y_zero: i32,
    nothing: u32,
) {
    if ABSOLUTE_POS < count {
        let (image, channel) = (ABSOLUTE_POS / channels, ABSOLUTE_POS % channels);
        let first = image * pixels * channels + channel;
        let before = channel * pixels;
        let aligned = before.div_ceil(4usize) * 4 - before;
        let start = select(aligned < pixels, aligned, pixels);
        let vectors = (pixels - start) / 4;
        let mut lanes = Array::<f32>::new(8usize);
        #[unroll]
        for lane in 0..8usize {
            lanes[lane] = 0.0f32;
        }
        for pair in 0..vectors / 2 {
            #[unroll]
            for lane in 0..8usize {
                lanes[lane] += real(x[first + (start + pair * 8 + lane) * channels], x_zero, x_scale, nothing);
            }
        }
        let mut four = Array::<f32>::new(4usize);
        #[unroll]
        for lane in 0..4usize {
            four[lane] = lanes[lane] + lanes[comptime!(lane + 4)];
            if vectors % 2 == 1 {
                four[lane] += real(x[first + (start + (vectors - 1) * 4 + lane) * channels], x_zero, x_scale, nothing);
            }
        }
        let mut sum = (four[0usize] + four[2usize]) + (four[1usize] + four[3usize]);
        for pixel in 0..start {
            sum += real(x[first + pixel * channels], x_zero, x_scale, nothing);
        }
        for pixel in start + vectors * 4..pixels {
            sum += real(x[first + pixel * channels], x_zero, x_scale, nothing);
        }
        let low = f32::cast_from(0i32 - y_zero);
        let mean = sum / f32::cast_from(pixels) / y_scale;
        y[ABSOLUTE_POS] = u8::cast_from(round_within(mean, low, low + 255.0f32) + y_zero);
    }
}
