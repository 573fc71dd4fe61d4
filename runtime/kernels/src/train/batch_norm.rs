//! Batch normalisation with the batch's own statistics, with or without a rectifier behind it, and its gradients.
//!
//! Each channel is a task: its planes stay in the cache from pass to pass.

use super::copy::written;
use super::elementwise::passed;
use crate::Isa;
use crate::multiversion::multiversion;
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// A batch normalisation: its operands, the first `[samples, channels, pixels]`.
#[derive(Debug, Clone, Copy)]
pub struct BatchNorm<'a> {
    /// What is normalised, each channel over samples and pixels.
    pub x: &'a [f32],
    /// Its axes.
    pub shape: [usize; 3],
    /// What each channel is multiplied by.
    pub scale: &'a [f32],
    /// What is added to each channel.
    pub bias: &'a [f32],
    /// Added to variances.
    pub epsilon: f32,
    /// Whether what is below 0 becomes 0; NaN stays.
    pub rectified: bool,
}

/// What [`BatchNorm::run`] makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalised {
    /// The output.
    pub y: Vec<f32>,
    /// The mean of each channel.
    pub mean: Vec<f32>,
    /// The variance of each channel: of the batch, not an estimate of what it was drawn from.
    pub variance: Vec<f32>,
}

/// What [`BatchNorm::gradients`] makes.
#[derive(Debug, Clone, PartialEq)]
pub struct NormGradients {
    /// By the input.
    pub x: Vec<f32>,
    /// By the scale.
    pub scale: Vec<f32>,
    /// By the bias.
    pub bias: Vec<f32>,
}

/// What an element of a channel becomes before it is rectified: `(x - mean) * factor + bias`.
#[derive(Debug, Clone, Copy)]
struct Affine {
    mean: f32,
    factor: f32,
    bias: f32,
}

impl Affine {
    #[inline(always)]
    fn of(&self, x: f32) -> f32 {
        (x - self.mean) * self.factor + self.bias
    }
}

impl BatchNorm<'_> {
    fn check(&self) -> [usize; 3] {
        let channels = self.shape[1];
        assert_eq!(self.x.len(), self.shape.iter().product::<usize>(), "elements of the input");
        assert_eq!([self.scale.len(), self.bias.len()], [channels; 2], "a scale and a bias for each channel");
        self.shape
    }

    fn affine(&self, channel: usize, mean: f32, variance: f32) -> Affine {
        let factor = self.scale[channel] / (variance + self.epsilon).sqrt();
        Affine { mean, factor, bias: self.bias[channel] }
    }

    /// Normalises, scales, shifts and perhaps rectifies.
    pub fn run(&self) -> Normalised {
        let ([samples, channels, pixels], isa) = (self.check(), Isa::detect());
        let count = (samples * pixels) as f64;
        let normalise_all = |y: &mut [MaybeUninit<f32>]| -> Vec<(f32, f32)> {
            by_channel(y, channels, pixels)
                .into_par_iter()
                .enumerate()
                .map(|(c, y)| {
                    let planes = || self.x.chunks_exact(pixels.max(1)).skip(c).step_by(channels);
                    let mut sum = 0.0;
                    planes().for_each(|x| add_elements(isa, x, &mut sum));
                    let mean = (sum / count) as f32;
                    // In a second pass: the mean of squares less the square of the mean loses digits.
                    let mut squares = 0.0;
                    planes().for_each(|x| add_squares(isa, x, mean, &mut squares));
                    let variance = (squares / count) as f32;
                    let affine = self.affine(c, mean, variance);
                    y.into_iter().zip(planes()).for_each(|(y, x)| normalise(isa, x, y, affine, self.rectified));
                    (mean, variance)
                })
                .collect()
        };
        let mut statistics = vec![];
        // SAFETY: every plane of the output is some channel's.
        let y = unsafe { written(self.x.len(), |y| statistics = normalise_all(y)) };
        let (mean, variance) = statistics.into_iter().unzip();
        Normalised { y, mean, variance }
    }

    /// The gradients, of that by the output; the statistics are those that [`BatchNorm::run`] gave.
    pub fn gradients(&self, mean: &[f32], variance: &[f32], dy: &[f32]) -> NormGradients {
        let ([samples, channels, pixels], isa) = (self.check(), Isa::detect());
        assert_eq!(self.x.len(), dy.len(), "elements of the input and the output");
        assert_eq!([mean.len(), variance.len()], [channels; 2], "statistics of each channel");
        let count = (samples * pixels) as f64;
        let derive_all = |dx: &mut [MaybeUninit<f32>]| -> Vec<(f32, f32)> {
            by_channel(dx, channels, pixels)
                .into_par_iter()
                .enumerate()
                .map(|(c, dx)| {
                    let planes = || {
                        let pairs = self.x.chunks_exact(pixels.max(1)).zip(dy.chunks_exact(pixels.max(1)));
                        pairs.skip(c).step_by(channels)
                    };
                    let affine = self.affine(c, mean[c], variance[c]);
                    let mut sums = [0.0; 2];
                    planes().for_each(|(x, dy)| add_gradients(isa, x, dy, affine, self.rectified, &mut sums));
                    let [by_bias, products] = sums;
                    let deviation = 1.0 / f64::from(variance[c] + self.epsilon).sqrt();
                    let by_scale = products * deviation;
                    let factor = f64::from(self.scale[c]) * deviation;
                    let slope = -factor * deviation * by_scale / count;
                    let offset = -factor * by_bias / count;
                    let factors = [factor, slope, offset].map(|v| v as f32);
                    for (dx, (x, dy)) in dx.into_iter().zip(planes()) {
                        input_gradient(isa, x, dy, dx, affine, self.rectified, factors);
                    }
                    (by_scale as f32, by_bias as f32)
                })
                .collect()
        };
        let mut gradients = vec![];
        // SAFETY: every plane of the input is some channel's.
        let dx = unsafe { written(self.x.len(), |dx| gradients = derive_all(dx)) };
        let (scale, bias) = gradients.into_iter().unzip();
        NormGradients { x: dx, scale, bias }
    }
}

/// The planes of each channel.
fn by_channel<T>(all: &mut [T], channels: usize, pixels: usize) -> Vec<Vec<&mut [T]>> {
    let mut planes: Vec<Vec<_>> = (0..channels).map(|_| vec![]).collect();
    for (i, plane) in all.chunks_exact_mut(pixels.max(1)).enumerate() {
        planes[i % channels].push(plane);
    }
    planes
}

multiversion! {
    /// Adds the sum of all elements.
    pub(super) fn add_elements(isa: Isa, x: &[f32], to: &mut f64) {
        *to += sums(x, x, |x, _| [x])[0];
    }

    /// Adds the sum of the squares of what elements differ from the mean.
    fn add_squares(isa: Isa, x: &[f32], mean: f32, to: &mut f64) {
        *to += sums(x, x, |x, _| [(x - mean) * (x - mean)])[0];
    }

    /// Adds the sum of `dy`, and that of its products with what `x` differs from the mean.
    fn add_gradients(isa: Isa, x: &[f32], dy: &[f32], affine: Affine, rectified: bool, to: &mut [f64; 2]) {
        let Affine { mean, .. } = affine;
        let sums = match rectified {
            true => sums(x, dy, |x, dy| {
                let dy = passed(affine.of(x), dy);
                [dy, dy * (x - mean)]
            }),
            false => sums(x, dy, |x, dy| [dy, dy * (x - mean)]),
        };
        *to = [to[0] + sums[0], to[1] + sums[1]];
    }

    fn normalise(isa: Isa, x: &[f32], y: &mut [MaybeUninit<f32>], affine: Affine, rectified: bool) {
        let all = y.iter_mut().zip(x);
        match rectified {
            true => all.for_each(|(y, x)| _ = y.write(passed(affine.of(*x), affine.of(*x)))),
            false => all.for_each(|(y, x)| _ = y.write(affine.of(*x))),
        }
    }

    fn input_gradient(
        isa: Isa,
        x: &[f32],
        dy: &[f32],
        dx: &mut [MaybeUninit<f32>],
        affine: Affine,
        rectified: bool,
        factors: [f32; 3],
    ) {
        let [factor, slope, offset] = factors;
        let of = |x: f32, dy: f32| factor * dy + (slope * (x - affine.mean) + offset);
        let all = dx.iter_mut().zip(x).zip(dy);
        match rectified {
            true => all.for_each(|((dx, x), dy)| _ = dx.write(of(*x, passed(affine.of(*x), *dy)))),
            false => all.for_each(|((dx, x), dy)| _ = dx.write(of(*x, *dy))),
        }
    }
}

/// Elements whose sum is taken in floats of 32 bits.
const BLOCK: usize = 1 << 12;

/// Sums of functions of pairs of elements.
// By indices it is plain that lanes stay in registers.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn sums<const K: usize>(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> [f32; K]) -> [f64; K] {
    const LANES: usize = 64;
    let mut total = [0.0; K];
    if a.len() < LANES {
        for (a, b) in a.iter().zip(b) {
            let values = f(*a, *b);
            (0..K).for_each(|k| total[k] += f64::from(values[k]));
        }
        return total;
    }
    for (a, b) in a.chunks(BLOCK).zip(b.chunks(BLOCK)) {
        let mut lanes = [[0.0f32; LANES]; K];
        let ((whole_a, rest_a), (whole_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in whole_a.iter().zip(whole_b) {
            for k in 0..K {
                for lane in 0..LANES {
                    lanes[k][lane] += f(a[lane], b[lane])[k];
                }
            }
        }
        for (lane, (a, b)) in rest_a.iter().zip(rest_b).enumerate() {
            let values = f(*a, *b);
            (0..K).for_each(|k| lanes[k][lane] += values[k]);
        }
        for (total, lanes) in total.iter_mut().zip(&mut lanes) {
            for width in [32, 16, 8, 4, 2, 1] {
                for lane in 0..width {
                    lanes[lane] += lanes[lane + width];
                }
            }
            *total += f64::from(lanes[0]);
        }
    }
    total
}
