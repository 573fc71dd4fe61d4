//! QuantizeLinear and DequantizeLinear in training: rounding that gradients pass through, and the gradients of scales
//! (Esser et al. 2020).

use super::copy::written;
use crate::Isa;
use crate::multiversion::multiversion;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Elements that a thread takes at a time, of one channel. Sums are taken over so many first, whatever the number of
/// threads.
const CHUNK: usize = 1 << 14;

/// Which codes there are, and which elements share a scale: `[outer, channels, inner]`, or all with one channel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codes {
    /// Channels, one after the other.
    pub channels: usize,
    /// Successive elements of a channel.
    pub inner: usize,
    /// The least and the largest code.
    pub range: (f32, f32),
}

impl Codes {
    /// Runs of elements that share a scale, and a channel each.
    fn runs(&self, len: usize) -> (usize, impl Fn(usize) -> usize + Sync) {
        // With one channel a run ends where a chunk does.
        let run = if self.channels == 1 { CHUNK } else { self.inner.max(1) };
        assert!(self.channels > 0 && (self.channels == 1 || len.is_multiple_of(self.channels * run)), "{self:?}");
        let channels = self.channels;
        (run, move |i| i % channels)
    }
}

multiversion! {
    fn quantise_run(isa: Isa, x: &[f32], scale: f32, zero: f32, range: (f32, f32), y: &mut [MaybeUninit<f32>]) {
        for (y, x) in y.iter_mut().zip(x) {
            let code = (x / scale).round_ties_even() + zero;
            // In this order NaN stays.
            let code = if code < range.0 { range.0 } else { code };
            y.write(if code > range.1 { range.1 } else { code });
        }
    }

    fn quantise_back(isa: Isa, x: &[f32], dy: &[f32], scale: f32, zero: f32, range: (f32, f32), dx: &mut [MaybeUninit<f32>], sum: &mut f64) {
        *sum += each(x, dy, dx, |x, dy| {
            let of = x / scale;
            let code = of.round_ties_even() + zero;
            let dx = if code >= range.0 && code <= range.1 { dy / scale } else { 0.0 };
            (dx, -dx * of)
        });
    }

    fn dequantise_run(isa: Isa, x: &[f32], scale: f32, zero: f32, y: &mut [MaybeUninit<f32>]) {
        y.iter_mut().zip(x).for_each(|(y, x)| { y.write((x - zero) * scale); });
    }

    fn dequantise_back(isa: Isa, x: &[f32], dy: &[f32], scale: f32, zero: f32, dx: &mut [MaybeUninit<f32>], sum: &mut f64) {
        *sum += each(x, dy, dx, |x, dy| (dy * scale, dy * (x - zero)));
    }
}

/// Writes the first and adds up the second of what `f` makes of each element and its gradient.
#[inline(always)]
fn each(x: &[f32], dy: &[f32], dx: &mut [MaybeUninit<f32>], f: impl Fn(f32, f32) -> (f32, f32)) -> f64 {
    // Each lane is on its own, so the compiler can keep all in registers.
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    let (x, last_x) = x.as_chunks::<LANES>();
    let (dy, last_dy) = dy.as_chunks::<LANES>();
    let (dx, last_dx) = dx.as_chunks_mut::<LANES>();
    for ((x, dy), dx) in x.iter().zip(dy).zip(dx) {
        for i in 0..LANES {
            let (gradient, part) = f(x[i], dy[i]);
            dx[i].write(gradient);
            sums[i] += part;
        }
    }
    for (i, ((x, dy), dx)) in last_x.iter().zip(last_dy).zip(last_dx).enumerate() {
        let (gradient, part) = f(*x, *dy);
        dx.write(gradient);
        sums[i] += part;
    }
    sums.iter().map(|v| f64::from(*v)).sum()
}

/// `clamp(round_half_even(x / scale) + zero)`, as whole numbers.
pub fn quantise(x: &[f32], codes: &Codes, scale: &[f32], zero: &[f32]) -> Vec<f32> {
    let isa = Isa::detect();
    forward(x, codes, |x, c, y| quantise_run(isa, x, scale[c], zero[c], codes.range, y))
}

/// `(x - zero) * scale`.
pub fn dequantise(x: &[f32], codes: &Codes, scale: &[f32], zero: &[f32]) -> Vec<f32> {
    let isa = Isa::detect();
    forward(x, codes, |x, c, y| dequantise_run(isa, x, scale[c], zero[c], y))
}

/// The gradients of [`quantise`] by `x`, as if nothing were rounded, and by the scale.
pub fn quantise_gradients(x: &[f32], dy: &[f32], codes: &Codes, scale: &[f32], zero: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let isa = Isa::detect();
    backward(x, dy, codes, |x, dy, c, dx, sum| quantise_back(isa, x, dy, scale[c], zero[c], codes.range, dx, sum))
}

/// The gradients of [`dequantise`] by `x` and by the scale.
pub fn dequantise_gradients(x: &[f32], dy: &[f32], codes: &Codes, scale: &[f32], zero: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let isa = Isa::detect();
    backward(x, dy, codes, |x, dy, c, dx, sum| dequantise_back(isa, x, dy, scale[c], zero[c], dx, sum))
}

fn forward(x: &[f32], codes: &Codes, run: impl Fn(&[f32], usize, &mut [MaybeUninit<f32>]) + Sync) -> Vec<f32> {
    let (length, channel) = codes.runs(x.len());
    let fill = |y: &mut [MaybeUninit<f32>]| {
        let runs = y.par_chunks_mut(length).zip(x.par_chunks(length)).enumerate();
        runs.with_min_len(CHUNK.div_ceil(length)).for_each(|(i, (y, x))| run(x, channel(i), y));
    };
    // SAFETY: both are as long, and so are their runs, of which every element is written.
    unsafe { written(x.len(), fill) }
}

fn backward(
    x: &[f32],
    dy: &[f32],
    codes: &Codes,
    run: impl Fn(&[f32], &[f32], usize, &mut [MaybeUninit<f32>], &mut f64) + Sync,
) -> (Vec<f32>, Vec<f32>) {
    assert_eq!(x.len(), dy.len(), "elements and their gradients");
    let (length, channel) = codes.runs(x.len());
    let mut sums = vec![0.0; x.len().div_ceil(length)];
    let fill = |dx: &mut [MaybeUninit<f32>]| {
        let operands = x.par_chunks(length).zip(dy.par_chunks(length));
        let runs = dx.par_chunks_mut(length).zip(operands).zip(&mut sums).enumerate();
        runs.with_min_len(CHUNK.div_ceil(length)).for_each(|(i, ((dx, (x, dy)), sum))| run(x, dy, channel(i), dx, sum));
    };
    // SAFETY: all are as long, and so are their runs, of which every element is written.
    let dx = unsafe { written(x.len(), fill) };
    let mut by_channel = vec![0.0; codes.channels];
    sums.into_iter().enumerate().for_each(|(i, sum)| by_channel[channel(i)] += sum);
    (dx, by_channel.into_iter().map(|sum| sum as f32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_gradients_by_hand() {
        let codes = Codes { channels: 1, inner: 0, range: (0.0, 255.0) };
        let x = [-1.0, 0.26, 10.0, 200.0];
        assert_eq!(quantise(&x, &codes, &[0.5], &[3.0]), [1.0, 4.0, 23.0, 255.0]);
        let (dx, ds) = quantise_gradients(&x, &[1.0, 2.0, 3.0, 4.0], &codes, &[0.5], &[3.0]);
        assert_eq!(dx, [2.0, 4.0, 6.0, 0.0]);
        // -dy x / s² of what is inside.
        assert!((ds[0] - (4.0 - 4.0 * 0.52 - 6.0 * 20.0)).abs() < 1e-4, "{ds:?}");
        let q = [1.0, 4.0, 23.0, 255.0];
        assert_eq!(dequantise(&q, &codes, &[0.5], &[3.0]), [-1.0, 0.5, 10.0, 126.0]);
        let (dq, ds) = dequantise_gradients(&q, &[1.0, 2.0, 3.0, 4.0], &codes, &[0.5], &[3.0]);
        assert_eq!((dq, ds), (vec![0.5, 1.0, 1.5, 2.0], vec![-2.0 + 2.0 + 60.0 + 1008.0]));
    }

    #[test]
    fn channels_have_scales_of_their_own() {
        let codes = Codes { channels: 2, inner: 2, range: (-128.0, 127.0) };
        let x = [1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -400.0];
        assert_eq!(quantise(&x, &codes, &[0.5, 1.0], &[0.0, 0.0]), [2.0, 4.0, 3.0, 4.0, -2.0, -4.0, -3.0, -128.0]);
        let (dx, ds) = quantise_gradients(&x, &[1.0; 8], &codes, &[0.5, 1.0], &[0.0, 0.0]);
        assert_eq!(dx, [2.0, 2.0, 1.0, 1.0, 2.0, 2.0, 1.0, 0.0]);
        assert_eq!(ds, [0.0, -(3.0 + 4.0 - 3.0)]);
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let x: Vec<f32> = (0..70_000).map(|i| ((i * 7919) % 1000) as f32 / 300.0 - 1.5).collect();
        let dy: Vec<f32> = (0..70_000).map(|i| ((i * 7_907) % 997) as f32 / 500.0 - 1.0).collect();
        for codes in [(1, 0), (7, 10)].map(|(channels, inner)| Codes { channels, inner, range: (0.0, 255.0) }) {
            let (scale, zero) = (vec![0.01; codes.channels], vec![128.0; codes.channels]);
            let all = || {
                let (dx, ds) = quantise_gradients(&x, &dy, &codes, &scale, &zero);
                (quantise(&x, &codes, &scale, &zero), dx, ds, dequantise_gradients(&x, &dy, &codes, &scale, &zero))
            };
            let on = |n: usize| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads").install(all);
            assert!(on(1) == on(3));
        }
    }
}
