//! What runs along the last axis: softmax, layer normalisation and the addition of lines to lines, with their
//! gradients, divided over threads.

use crate::Isa;
use crate::math;
use crate::multiversion::multiversion;
use rayon::prelude::*;
use std::f32::consts::LOG2_E;

/// Elements of the lines that a thread takes at a time, at least.
const CHUNK: usize = 1 << 13;

/// Parts into which lines are divided where something is summed over all of them, at most.
const PARTS: usize = 64;

/// Sums that a line is added up in, one beside the other.
const LANES: usize = 16;

/// Elements of some lines of so many elements that a thread takes at a time.
fn some_lines(width: usize) -> usize {
    CHUNK.div_ceil(width.max(1)) * width.max(1)
}

/// Elements of the lines of a part: of the shape alone, so that sums don't depend on threads.
fn part(len: usize, width: usize) -> usize {
    let lines = (len / width.max(1)).div_ceil(PARTS).max(1);
    (lines * width).max(some_lines(width))
}

/// The sum of what `f` makes of each element of both.
#[inline(always)]
fn sum(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += f(a[lane], b[lane]);
        }
    }
    for (lane, (a, b)) in rest_a.iter().zip(rest_b).enumerate() {
        sums[lane] += f(*a, *b);
    }
    let eight: [f32; 8] = std::array::from_fn(|lane| sums[lane] + sums[lane + 8]);
    let four: [f32; 4] = std::array::from_fn(|lane| eight[lane] + eight[lane + 4]);
    (four[0] + four[2]) + (four[1] + four[3])
}

/// The greatest element; NaN counts for nothing.
#[inline(always)]
fn greatest(x: &[f32]) -> f32 {
    let most = |a: f32, b: f32| if b > a { b } else { a };
    let (whole, rest) = x.as_chunks::<LANES>();
    let mut all = [f32::NEG_INFINITY; LANES];
    for x in whole {
        for lane in 0..LANES {
            all[lane] = most(all[lane], x[lane]);
        }
    }
    all.iter().chain(rest).fold(f32::NEG_INFINITY, |a, b| most(a, *b))
}

multiversion! {
    fn soften(isa: Isa, x: &[f32], y: &mut [f32], width: usize) {
        for (x, y) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)) {
            let most = greatest(x);
            for (y, x) in y.iter_mut().zip(x) {
                *y = math::power_below_zero(isa, (*x - most) * LOG2_E);
            }
            let scale = 1.0 / sum(y, y, |y, _| y);
            y.iter_mut().for_each(|y| *y *= scale);
        }
    }

    fn soften_back(isa: Isa, y: &[f32], dy: &mut [f32], width: usize) {
        for (y, dy) in y.chunks_exact(width).zip(dy.chunks_exact_mut(width)) {
            let mean = sum(y, dy, |y, dy| y * dy);
            for (dy, y) in dy.iter_mut().zip(y) {
                *dy = y * (*dy - mean);
            }
        }
    }

    fn normalise(isa: Isa, at: &LayerNorm, x: &[f32], y: &mut [f32], statistics: &mut [[f32; 2]]) {
        let width = at.scale.len();
        for ((x, y), statistics) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(statistics) {
            let mean = sum(x, x, |x, _| x) / width as f32;
            // In a second pass: the mean of squares less the square of the mean loses digits.
            let variance = sum(x, x, |x, _| (x - mean) * (x - mean)) / width as f32;
            let factor = 1.0 / (variance + at.epsilon).sqrt();
            *statistics = [mean, factor];
            for (((y, x), scale), bias) in y.iter_mut().zip(x).zip(at.scale).zip(at.bias) {
                *y = (x - mean) * factor * scale + bias;
            }
        }
    }

    fn normalise_back(
        isa: Isa,
        at: &LayerNorm,
        x: &[f32],
        dy: &mut [f32],
        statistics: &[[f32; 2]],
        scale: &mut [f32],
        bias: &mut [f32],
    ) {
        let width = at.scale.len();
        let mut scaled = vec![0.0; width];
        for ((x, dy), &[mean, factor]) in x.chunks_exact(width).zip(dy.chunks_exact_mut(width)).zip(statistics) {
            let sums = scale.iter_mut().zip(&mut *bias).zip(&mut scaled);
            for (((sums, of), x), dy) in sums.zip(at.scale).zip(x).zip(&*dy) {
                let ((scale, bias), scaled) = sums;
                *scale += dy * ((x - mean) * factor);
                *bias += dy;
                *scaled = dy * of;
            }
            let middle = sum(&scaled, &scaled, |v, _| v) / width as f32;
            let slope = sum(&scaled, x, |v, x| v * ((x - mean) * factor)) / width as f32;
            for ((dy, x), scaled) in dy.iter_mut().zip(x).zip(&scaled) {
                *dy = factor * (scaled - middle - (x - mean) * factor * slope);
            }
        }
    }

    fn add_line(isa: Isa, x: &mut [f32], line: &[f32]) {
        for x in x.chunks_exact_mut(line.len()) {
            x.iter_mut().zip(line).for_each(|(x, v)| *x += *v);
        }
    }

    fn add_up(isa: Isa, x: &[f32], line: &mut [f32]) {
        for x in x.chunks_exact(line.len()) {
            line.iter_mut().zip(x).for_each(|(v, x)| *v += *x);
        }
    }
}

/// Exponentials of each line of `width` elements, divided by their sum. A line without an element that is finite is NaN.
pub fn softmax(x: &[f32], width: usize) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    if width > 0 {
        let (isa, some) = (Isa::detect(), some_lines(width));
        y.par_chunks_mut(some).zip(x.par_chunks(some)).for_each(|(y, x)| soften(isa, x, y, width));
    }
    y
}

/// The gradient of [`softmax`], which made `y`, in the place of that by its output.
pub fn softmax_gradient(y: &[f32], dy: &mut [f32], width: usize) {
    assert_eq!(y.len(), dy.len(), "elements of a softmax and its gradient");
    if width > 0 {
        let (isa, some) = (Isa::detect(), some_lines(width));
        dy.par_chunks_mut(some).zip(y.par_chunks(some)).for_each(|(dy, y)| soften_back(isa, y, dy, width));
    }
}

/// A layer normalisation (Ba et al. 2016): each line has mean 0 and variance 1, then elements of their own are multiplied
/// and added.
#[derive(Clone, Copy, Debug)]
pub struct LayerNorm<'a> {
    /// What each column is multiplied by.
    pub scale: &'a [f32],
    /// What is added to each column.
    pub bias: &'a [f32],
    /// Added to variances.
    pub epsilon: f32,
}

impl LayerNorm<'_> {
    fn check(&self, x: &[f32]) -> usize {
        let width = self.scale.len();
        assert!(width > 0 && width == self.bias.len() && x.len().is_multiple_of(width), "lines, a scale and a bias");
        width
    }

    /// The lines, and of each its mean and the inverse of its deviation.
    pub fn run(&self, x: &[f32]) -> (Vec<f32>, Vec<[f32; 2]>) {
        let width = self.check(x);
        let (isa, some) = (Isa::detect(), some_lines(width));
        let (mut y, mut statistics) = (vec![0.0; x.len()], vec![[0.0; 2]; x.len() / width]);
        (y.par_chunks_mut(some).zip(x.par_chunks(some)).zip(statistics.par_chunks_mut(some / width)))
            .for_each(|((y, x), statistics)| normalise(isa, self, x, y, statistics));
        (y, statistics)
    }

    /// The gradient by `x`, in the place of that by the output; gives those by the scale and the bias.
    pub fn gradients(&self, x: &[f32], statistics: &[[f32; 2]], dy: &mut [f32]) -> [Vec<f32>; 2] {
        let width = self.check(x);
        assert!(x.len() == dy.len() && x.len() == statistics.len() * width, "lines, statistics and gradients");
        let (isa, part) = (Isa::detect(), part(x.len(), width));
        let parts: Vec<[Vec<f32>; 2]> = (dy.par_chunks_mut(part).zip(x.par_chunks(part)))
            .zip(statistics.par_chunks(part / width))
            .map(|((dy, x), statistics)| {
                let [mut scale, mut bias] = [vec![0.0; width], vec![0.0; width]];
                normalise_back(isa, self, x, dy, statistics, &mut scale, &mut bias);
                [scale, bias]
            })
            .collect();
        let mut all = [vec![0.0; width], vec![0.0; width]];
        for part in parts {
            all.iter_mut().zip(part).for_each(|(all, part)| add_up(isa, &part, all));
        }
        all
    }
}

/// Adds `lines` of `width` elements in place, each to as many lines of `x` that follow each other.
pub fn add_to_lines(x: &mut [f32], lines: &[f32], width: usize) {
    if x.is_empty() || lines.is_empty() {
        return;
    }
    let isa = Isa::detect();
    assert!(x.len().is_multiple_of(lines.len()) && lines.len().is_multiple_of(width), "whole lines, as many for each");
    let each = x.len() / lines.len() * width;
    x.par_chunks_mut(each).zip(lines.par_chunks(width)).for_each(|(x, line)| {
        x.par_chunks_mut(some_lines(width)).for_each(|x| add_line(isa, x, line));
    });
}

/// `count` sums of lines of `width` elements, each of as many lines that follow each other.
pub fn sums_of_lines(x: &[f32], width: usize, count: usize) -> Vec<f32> {
    assert!(x.len().is_multiple_of((count * width).max(1)), "whole lines, as many for each");
    match (x.len() / count.max(1), width) {
        (0, _) | (_, 0) => vec![0.0; count * width],
        (each, _) => x.par_chunks(each).flat_map_iter(|x| sum_of_lines(x, width)).collect(),
    }
}

/// The sum of all lines.
fn sum_of_lines(x: &[f32], width: usize) -> Vec<f32> {
    let mut all = vec![0.0; width];
    if width > 0 {
        let isa = Isa::detect();
        let of_part = |x: &[f32]| {
            let mut line = vec![0.0; width];
            add_up(isa, x, &mut line);
            line
        };
        let parts: Vec<Vec<f32>> = x.par_chunks(part(x.len(), width)).map(of_part).collect();
        parts.iter().for_each(|part| add_up(isa, part, &mut all));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(len: usize, seed: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 300.0 - 1.7).collect()
    }

    /// Lines of some widths, some of them more than a part has.
    fn cases() -> Vec<(usize, usize)> {
        vec![(1, 1), (3, 5), (2, 16), (7, 33), (5, 384), (700, 40), (3000, 17), (0, 4)]
    }

    fn close(what: &str, got: &[f32], wanted: &[f64], most: f64) {
        assert_eq!(got.len(), wanted.len(), "{what}");
        for (i, (got, wanted)) in got.iter().zip(wanted).enumerate() {
            assert!((f64::from(*got) - wanted).abs() <= most, "{what}[{i}]: {got} for {wanted}");
        }
    }

    fn wide(x: &[f32]) -> Vec<f64> {
        x.iter().map(|x| f64::from(*x)).collect()
    }

    #[test]
    fn softmaxes() {
        for (lines, width) in cases() {
            let (x, dy) = (noise(lines * width, 1), noise(lines * width, 2));
            let y = softmax(&x, width);
            let mut dx = dy.clone();
            softmax_gradient(&y, &mut dx, width);
            let (mut wanted, mut slopes) = (vec![], vec![]);
            for (x, dy) in wide(&x).chunks(width).zip(wide(&dy).chunks(width)) {
                let sum: f64 = x.iter().map(|x| x.exp()).sum();
                let y: Vec<f64> = x.iter().map(|x| x.exp() / sum).collect();
                let mean: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
                slopes.extend(y.iter().zip(dy).map(|(y, dy)| y * (dy - mean)));
                wanted.extend(y);
            }
            close("softmax", &y, &wanted, 1e-6);
            close("its gradient", &dx, &slopes, 1e-6);
        }
        let inf = f32::INFINITY;
        let y = softmax(&[-inf, 0.0, -inf, -inf, f32::NAN, 1.0, 1e30, -1e30], 2);
        assert_eq!(y[..2], [0.0, 1.0]);
        assert!(y[2..6].iter().all(|y| y.is_nan()), "{y:?}");
        assert_eq!(y[6..], [1.0, 0.0]);
    }

    #[test]
    fn layer_normalisations() {
        for (lines, width) in cases() {
            let (x, dy) = (noise(lines * width, 3), noise(lines * width, 4));
            let (scale, bias) = (noise(width, 5), noise(width, 6));
            let norm = LayerNorm { scale: &scale, bias: &bias, epsilon: 0.01 };
            let (y, statistics) = norm.run(&x);
            let mut dx = dy.clone();
            let [ds, db] = norm.gradients(&x, &statistics, &mut dx);
            let (mut all, mut slopes) = (vec![], vec![]);
            let [mut of_scale, mut of_bias] = [vec![0.0; width], vec![0.0; width]];
            for (x, dy) in wide(&x).chunks(width).zip(wide(&dy).chunks(width)) {
                let n = width as f64;
                let mean = x.iter().sum::<f64>() / n;
                let deviation = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 0.01).sqrt();
                let normal: Vec<f64> = x.iter().map(|x| (x - mean) / deviation).collect();
                let scaled: Vec<f64> = dy.iter().zip(&scale).map(|(dy, s)| dy * f64::from(*s)).collect();
                let middle = scaled.iter().sum::<f64>() / n;
                let slope = scaled.iter().zip(&normal).map(|(v, x)| v * x).sum::<f64>() / n;
                for i in 0..width {
                    all.push(normal[i] * f64::from(scale[i]) + f64::from(bias[i]));
                    slopes.push((scaled[i] - middle - normal[i] * slope) / deviation);
                    of_scale[i] += dy[i] * normal[i];
                    of_bias[i] += dy[i];
                }
            }
            close("lines", &y, &all, 1e-5);
            close("the gradient", &dx, &slopes, 1e-4);
            close("that by the scale", &ds, &of_scale, 1e-5 * lines.max(10) as f64);
            close("that by the bias", &db, &of_bias, 1e-5 * lines.max(10) as f64);
        }
    }

    #[test]
    fn lines_that_are_added() {
        for (lines, width) in cases() {
            let (x, line) = (noise(lines * width, 7), noise(width, 8));
            let mut y = x.clone();
            add_to_lines(&mut y, &line, width);
            assert!(y.iter().zip(&x).enumerate().all(|(i, (y, x))| *y == x + line[i % width]));
            let mut wanted = vec![0.0; width];
            x.iter().enumerate().for_each(|(i, x)| wanted[i % width] += f64::from(*x));
            close("the sum", &sums_of_lines(&x, width, 1), &wanted, 1e-6 * lines.max(10) as f64);
        }
        // Three lines for two each, and for none.
        let (x, three) = (noise(6 * 5, 1), noise(3 * 5, 2));
        let mut y = x.clone();
        add_to_lines(&mut y, &three, 5);
        assert!(y.iter().zip(&x).enumerate().all(|(i, (y, x))| *y == x + three[i / 10 * 5 + i % 5]));
        let sums: Vec<f64> =
            (0..15).map(|i| [0, 5].map(|of| f64::from(x[i / 5 * 10 + of + i % 5])).iter().sum()).collect();
        close("their sums", &sums_of_lines(&x, 5, 3), &sums, 1e-6);
        add_to_lines(&mut [], &three, 5);
        assert_eq!(sums_of_lines(&[], 5, 3), [0.0; 15]);
    }

    #[test]
    fn threads_change_nothing() {
        let (x, dy) = (noise(3001 * 17, 1), noise(3001 * 17, 2));
        let (scale, bias) = (noise(17, 5), noise(17, 6));
        let all = || {
            let norm = LayerNorm { scale: &scale, bias: &bias, epsilon: 0.01 };
            let (y, statistics) = norm.run(&x);
            let mut dx = dy.clone();
            let [ds, db] = norm.gradients(&x, &statistics, &mut dx);
            [softmax(&x, 17), y, dx, ds, db, sums_of_lines(&x, 17, 1), sums_of_lines(&x, 17, 3001)]
                .map(|v| v.into_iter().map(f32::to_bits).collect::<Vec<_>>())
        };
        let with = |n| rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("threads").install(all);
        assert!(with(1) == with(3));
    }
}
