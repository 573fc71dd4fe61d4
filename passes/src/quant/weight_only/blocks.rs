//! Codes of weights, of which each block of inputs has a scale and perhaps a zero point.

use crate::{
    quant::{rounding::Triangle, scheme::Codes},
    weight_matrix::WeightMatrix,
};
use rayon::prelude::*;

/// How far below the largest value of a block the end of its range is tried, in parts of it, and in how many steps.
const CLIPPED: f32 = 0.4;
const STEPS: usize = 20;

/// How much less error zero points have to make, in parts, to be worth their bytes.
const WORTH: f64 = 0.9;

/// Elements that are looked at together: of a large weight there is no copy as a whole.
const CHUNK: usize = 1 << 22;

/// Sums are made in so many parts at once, as vectors of processors have them.
const LANES: usize = 16;

/// The scale and the zero point of a block: `w = scale * (code - zero)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub zero: i32,
}

impl Affine {
    const NONE: Self = Self { scale: 1.0, zero: 0 };

    /// How far the code of a value is from the zero point, where codes are within `range`.
    fn steps(self, w: f32, range: Range) -> f32 {
        range.less(self.zero).bounded(nearest(w / self.scale))
    }
}

/// The least and the largest code.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: f32,
    high: f32,
}

impl Range {
    fn of(codes: Codes) -> Self {
        let (low, high) = codes.range();
        Self { low: low as f32, high: high as f32 }
    }

    /// The same from a zero point on.
    fn less(self, zero: i32) -> Self {
        Self { low: self.low - zero as f32, high: self.high - zero as f32 }
    }

    /// A value within it; what is not a number is the least.
    fn bounded(self, v: f32) -> f32 {
        let v = if v > self.low { v } else { self.low };
        if v < self.high { v } else { self.high }
    }
}

/// The nearest integer, the even one of two. Sums of floats from 2^23 on have no digits behind the point; values are small
/// beside that, or codes are bounded afterwards. There is an instruction for it only on processors with more than the least.
fn nearest(v: f32) -> f32 {
    const DIGITS: f32 = 12_582_912.0;
    (v + DIGITS) - DIGITS
}

/// A weight as codes, in the order of its matrix: a row an output, whose columns are inputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Blocked {
    /// A code for each element, without a sign: zero is in the middle where codes have one.
    pub codes: Vec<u8>,
    /// A scale for each block of each row.
    pub blocks: Vec<Affine>,
    /// Columns.
    pub columns: usize,
    /// Inputs of a block.
    pub block: usize,
}

impl Blocked {
    /// Blocks of a row.
    pub fn of_row(&self) -> usize {
        self.columns.div_ceil(self.block)
    }

    /// What the codes stand for.
    pub fn values(&self, codes: Codes) -> Vec<f32> {
        let row = |(row, blocks): (&[u8], &[Affine])| -> Vec<f32> {
            let each = row.chunks(self.block).zip(blocks);
            let value = |by: &Affine, code: u8| by.scale * (i32::from(code) - middle(codes) - by.zero) as f32;
            each.flat_map(|(codes, by)| codes.iter().map(|code| value(by, *code)).collect::<Vec<_>>()).collect()
        };
        self.codes.chunks(self.columns).zip(self.blocks.chunks(self.of_row())).flat_map(row).collect()
    }
}

/// What is added to codes so that none has a sign.
pub(super) fn middle(codes: Codes) -> i32 {
    -codes.range().0 as i32
}

/// What tells how a weight is rounded: how much an error of each input counts, and how inputs hang together.
pub(super) struct Told {
    /// The mean square of each input.
    pub importance: Vec<f64>,
    /// Their second moments, as rounding uses them; without them it is to the nearest.
    pub triangle: Option<Triangle>,
}

impl Told {
    /// What the second moments of inputs tell.
    pub fn of(h: &[f64]) -> Self {
        let d = h.len().isqrt();
        let importance: Vec<f64> = (0..d).map(|i| h[i * d + i]).collect();
        // Inputs that were never seen to be other than zero count a little all the same.
        let mean = importance.iter().sum::<f64>() / d.max(1) as f64;
        let floor = if mean > 0.0 { mean * 1e-4 } else { 1.0 };
        Self { triangle: Some(Triangle::of(h, d)), importance: importance.iter().map(|v| v.max(floor)).collect() }
    }
}

/// Rounds the rows of a weight, `stored` as `layout` says, to the first of `codes`, or to the second, which have zero points, where
/// these make so much less error that they are worth their bytes; with the scales that make the least square error. Returns which
/// codes those are.
pub(super) fn blocked(
    (stored, layout): (&[f32], &WeightMatrix),
    block: usize,
    [symmetric, asymmetric]: [Codes; 2],
    told: Option<&Told>,
) -> (Blocked, Codes) {
    let (columns, rows) = (layout.columns(), layout.rows);
    let counts: Vec<f32> = match told {
        Some(told) => told.importance.iter().map(|v| *v as f32).collect(),
        None => vec![1.0; columns],
    };
    let of_row = columns.div_ceil(block);
    let scales = |matrix: &[f32], codes: Codes| -> Vec<(Affine, f64)> {
        let range = Range::of(codes);
        let each = |row: &[f32]| -> Vec<(Affine, f64)> {
            row.chunks(block).zip(counts.chunks(block)).map(|(w, counts)| best(w, counts, range)).collect()
        };
        matrix.par_chunks(columns).flat_map_iter(each).collect()
    };
    let chunk = (CHUNK / columns.max(1)).max(1);
    let some = samples(rows, chunk).map(|rows| layout.some_rows(stored, rows)).collect::<Vec<_>>();
    let error = |codes| some.iter().flat_map(|matrix| scales(matrix, codes)).map(|(_, error)| error).sum::<f64>();
    let codes = if error(asymmetric) < WORTH * error(symmetric) { asymmetric } else { symmetric };
    drop(some);
    let middle = middle(codes);
    let row = |(row, blocks): (&[f32], &[Affine])| -> Vec<u8> {
        match told.and_then(|told| told.triangle.as_ref()) {
            Some(triangle) => {
                let by = |i: usize| (blocks[i / block].scale, i64::from(blocks[i / block].zero), codes.range());
                // They are within the range of codes of 8 bits.
                triangle.round_each(row, by).into_iter().map(|code| (code as i32 + middle) as u8).collect()
            }
            None => nearest_codes(row, columns, block, blocks, codes),
        }
    };
    let (mut made, mut all) = (Vec::with_capacity(rows * columns), Vec::with_capacity(rows * of_row));
    for start in (0..rows).step_by(chunk) {
        let matrix = layout.some_rows(stored, start..(start + chunk).min(rows));
        let blocks: Vec<Affine> = scales(&matrix, codes).into_iter().map(|(by, _)| by).collect();
        made.par_extend(matrix.par_chunks(columns).zip(blocks.par_chunks(of_row)).flat_map_iter(row));
        all.extend(blocks);
    }
    (Blocked { codes: made, blocks: all, columns, block }, codes)
}

/// The nearest codes of the rows of a matrix, each of `columns`, by their blocks.
pub(super) fn nearest_codes(matrix: &[f32], columns: usize, block: usize, blocks: &[Affine], codes: Codes) -> Vec<u8> {
    let (range, middle) = (Range::of(codes), middle(codes));
    // They are within the range of codes of 8 bits.
    let code = |by: Affine, w: f32| (by.steps(w, range) as i32 + by.zero + middle) as u8;
    let of_row = columns.div_ceil(block).max(1);
    let row = |(row, blocks): (&[f32], &[Affine])| -> Vec<u8> {
        row.chunks(block).zip(blocks).flat_map(|(w, by)| w.iter().map(|w| code(*by, *w))).collect()
    };
    matrix.chunks(columns.max(1)).zip(blocks.chunks(of_row)).flat_map(row).collect()
}

/// Rows that tell how others are: all of a small weight, else some at its ends and in its middle.
fn samples(rows: usize, chunk: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let (starts, each) = match (chunk / 3).max(1) {
        _ if rows <= chunk => (vec![0], rows),
        each => (vec![0, (rows - each) / 2, rows - each], each),
    };
    starts.into_iter().map(move |start| start..start + each)
}

/// The scale and the zero point with the least square error, and that error; `counts` says how much that of each element counts.
fn best(w: &[f32], counts: &[f32], range: Range) -> (Affine, f64) {
    let (low, high) = w.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
    let largest = high.max(-low);
    let symmetric = range.low < 0.0;
    let none = Affine { zero: if symmetric { 0 } else { (range.high as i32 + 1) / 2 }, ..Affine::NONE };
    if !largest.is_normal() {
        return (none, 0.0);
    }
    // Squares of small values have to be within the range of floats: a power of two changes no digit.
    let unit = f32::from_bits(largest.to_bits() & f32::INFINITY.to_bits());
    let w: Vec<f32> = w.iter().map(|v| v / unit).collect();
    let (low, high, largest) = (low / unit, high / unit, largest / unit);
    let mut found = (none, f32::INFINITY);
    for step in 0..=STEPS {
        let part = 1.0 - CLIPPED * step as f32 / STEPS as f32;
        let by = match symmetric {
            true => Affine { scale: part * largest / range.high, zero: 0 },
            false => {
                let scale = part * (high - low) / (range.high - range.low);
                Affine { scale, zero: range.bounded(nearest(-low * part / scale)) as i32 }
            }
        };
        for by in [by, refitted(&w, counts, by, range)] {
            let error = error(&w, counts, by, range);
            if error < found.1 {
                found = (by, error);
            }
        }
    }
    let (by, error) = found;
    match (by.scale * unit).is_normal() && by.scale > 0.0 && error.is_finite() {
        true => (Affine { scale: by.scale * unit, ..by }, f64::from(error) * f64::from(unit).powi(2)),
        false => (none, 0.0),
    }
}

/// Sums `N` figures of each element, of its value and of how much it counts.
fn summed<const N: usize>(w: &[f32], counts: &[f32], of: impl Fn(f32, f32) -> [f32; N]) -> [f32; N] {
    let mut sums = [[0f32; LANES]; N];
    let ((full, rest), (full_counts, rest_counts)) = (w.as_chunks::<LANES>(), counts.as_chunks::<LANES>());
    for (w, counts) in full.iter().zip(full_counts) {
        for lane in 0..LANES {
            let figures = of(w[lane], counts[lane]);
            (0..N).for_each(|n| sums[n][lane] += figures[n]);
        }
    }
    let mut all = sums.map(|lanes| lanes.iter().sum());
    for (w, counts) in rest.iter().zip(rest_counts) {
        let figures = of(*w, *counts);
        (0..N).for_each(|n| all[n] += figures[n]);
    }
    all
}

fn error(w: &[f32], counts: &[f32], by: Affine, range: Range) -> f32 {
    let (range, inverse) = (range.less(by.zero), 1.0 / by.scale);
    let [sum] = summed(w, counts, |w, counts| {
        let far = w - by.scale * range.bounded(nearest(w * inverse));
        [counts * far * far]
    });
    sum
}

/// The scale that suits best the codes that `by` gives.
fn refitted(w: &[f32], counts: &[f32], by: Affine, range: Range) -> Affine {
    let (range, inverse) = (range.less(by.zero), 1.0 / by.scale);
    let [wc, cc] = summed(w, counts, |w, counts| {
        let code = range.bounded(nearest(w * inverse));
        [counts * w * code, counts * code * code]
    });
    Affine { scale: if cc > 0.0 { wc / cc } else { by.scale }, ..by }
}

#[cfg(test)]
mod tests {
    use super::super::{S4, U4};
    use super::*;

    fn error(w: &[f32], (blocked, codes): &(Blocked, Codes)) -> f32 {
        w.iter().zip(blocked.values(*codes)).map(|(a, b)| (a - b).powi(2)).sum()
    }

    fn rounded(w: &[f32], block: usize, told: Option<&Told>) -> (Blocked, Codes) {
        blocked((w, &WeightMatrix::dense(1, w.len())), block, [S4, S4], told)
    }

    #[test]
    fn each_block_has_a_scale() {
        let made = rounded(&[0.7, -0.1, 70.0, -80.0, 0.0, 0.0], 2, None);
        assert_eq!((made.0.blocks.len(), made.0.of_row()), (3, 3));
        assert!(error(&[0.7, -0.1], &rounded(&[0.7, -0.1], 2, None)) < 1e-4);
        assert_eq!(made.0.values(S4)[4..], [0.0, 0.0]);
        assert!(made.0.blocks[1].scale > 50.0 * made.0.blocks[0].scale);
    }

    #[test]
    fn a_last_block_may_be_shorter() {
        let (made, codes) = rounded(&[1.0, 2.0, 3.0, 4.0, 5.0], 2, None);
        assert_eq!((made.codes.len(), made.of_row(), made.values(codes).len()), (5, 3, 5));
    }

    #[test]
    fn ranges_to_one_side_want_zero_points() {
        let one_sided: Vec<f32> = (0..64).map(|i| 1.0 + (i * 37 % 64) as f32 / 64.0).collect();
        let both: Vec<f32> = one_sided.iter().enumerate().map(|(i, v)| if i % 2 == 0 { *v } else { -v }).collect();
        let made = |w: &[f32]| blocked((w, &WeightMatrix::dense(1, 64)), 32, [S4, U4], None);
        assert_eq!((made(&one_sided).1, made(&both).1), (U4, S4));
        assert!(error(&one_sided, &made(&one_sided)) < error(&one_sided, &rounded(&one_sided, 32, None)) / 2.0);
    }

    #[test]
    fn inputs_that_count_more_are_nearer() {
        let w: Vec<f32> = (0..32).map(|i| ((i * 29 % 32) as f32 - 15.5) / 7.0).collect();
        let mut importance = vec![1.0; 32];
        importance[3] = 1e4;
        let told = Told { triangle: Some(Triangle::of(&diagonal(&importance), 32)), importance };
        let far = |(made, codes): &(Blocked, Codes)| (w[3] - made.values(*codes)[3]).abs();
        assert!(far(&rounded(&w, 32, Some(&told))) < far(&rounded(&w, 32, None)));
    }

    #[test]
    fn scales_of_small_and_large_values_are_those_of_others() {
        let w: Vec<f32> = (0..64).map(|i| ((i * 29 % 64) as f32 - 31.5) / 7.0).collect();
        let by = |factor: f32| rounded(&w.iter().map(|v| v * factor).collect::<Vec<_>>(), 32, None).0;
        for power in [-120, -60, 60, 100] {
            let (plain, scaled) = (by(1.0), by(2f32.powi(power)));
            assert_eq!(scaled.codes, plain.codes, "2^{power}");
            assert!(scaled.blocks.iter().zip(&plain.blocks).all(|(a, b)| a.scale == b.scale * 2f32.powi(power)));
        }
        let zeros = rounded(&[0.0, f32::MIN_POSITIVE / 2.0], 32, None).0;
        assert_eq!((zeros.codes, zeros.blocks[0].scale), (vec![8, 8], 1.0));
    }

    #[test]
    fn large_weights_are_looked_at_in_parts() {
        let (rows, columns) = (3, CHUNK / 2);
        let w: Vec<f32> = (0..rows * columns).map(|i| (i * 37 % 1009) as f32 / 1009.0 - 0.5).collect();
        let each: Vec<Blocked> = w.chunks(columns).map(|row| rounded(row, 64, None).0).collect();
        let layout = WeightMatrix::dense(rows, columns);
        let all = blocked((&w, &layout), 64, [S4, S4], None).0;
        assert!(all.codes == each.iter().flat_map(|row| row.codes.clone()).collect::<Vec<_>>());
        assert!(all.blocks == each.iter().flat_map(|row| row.blocks.clone()).collect::<Vec<_>>());
    }

    fn diagonal(values: &[f64]) -> Vec<f64> {
        let n = values.len();
        (0..n * n).map(|i| if i / n == i % n { values[i / n] } else { 0.0 }).collect()
    }
}
