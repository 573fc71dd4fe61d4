//! Codes of weights, of which each block of inputs has a scale and perhaps a zero point.

use crate::quant::{rounding::Triangle, scheme::Codes};
use rayon::prelude::*;

/// How far below the largest value of a block the end of its range is tried, in parts of it, and in how many steps.
const CLIPPED: f32 = 0.4;
const STEPS: usize = 20;

/// How much less error zero points have to make, in parts, to be worth their bytes.
const WORTH: f64 = 0.9;

/// The scale and the zero point of a block: `w = scale * (code - zero)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub zero: i64,
}

impl Affine {
    /// The code of a value.
    pub fn code(self, w: f32, (low, high): (i64, i64)) -> i64 {
        // Bounds first: what is not finite in between is no code.
        let code = (w / self.scale).round_ties_even() + self.zero as f32;
        (code.clamp(low as f32, high as f32)) as i64
    }

    fn value(self, code: i64) -> f32 {
        self.scale * (code - self.zero) as f32
    }
}

/// A weight as codes, in the order of its matrix: a row an output, whose columns are inputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Blocked {
    /// A code for each element.
    pub codes: Vec<i64>,
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
    #[cfg(test)]
    pub fn values(&self) -> Vec<f32> {
        let row = |(codes, blocks): (&[i64], &[Affine])| -> Vec<f32> {
            let each = codes.chunks(self.block).zip(blocks);
            each.flat_map(|(codes, by)| codes.iter().map(|code| by.value(*code))).collect()
        };
        self.codes.chunks(self.columns).zip(self.blocks.chunks(self.of_row())).flat_map(row).collect()
    }
}

/// What tells how a weight is rounded: how much an error of each input counts, and how inputs hang together.
pub(super) struct Told {
    /// The mean square of each input.
    pub importance: Vec<f64>,
    /// Their second moments, as rounding uses them.
    pub triangle: Triangle,
}

/// Rounds the rows of a weight to the first of `codes`, or to the second, which have zero points, where these make so much less error that
/// they are worth their bytes; with the scales that make the least square error. Returns which codes those are.
pub(super) fn blocked(
    matrix: &[f32],
    columns: usize,
    block: usize,
    [symmetric, asymmetric]: [Codes; 2],
    told: Option<&Told>,
) -> (Blocked, Codes) {
    let importance = told.map(|told| &told.importance[..]);
    let scales = |codes: Codes| -> (Vec<Affine>, f64) {
        let of_row = |row: &[f32]| -> Vec<(Affine, f64)> {
            let part = |(i, w): (usize, &[f32])| best(w, importance.map(|v| &v[i * block..i * block + w.len()]), codes);
            row.chunks(block).enumerate().map(part).collect()
        };
        let found: Vec<(Affine, f64)> = matrix.par_chunks(columns).flat_map_iter(of_row).collect();
        let error = found.iter().map(|(_, error)| error).sum();
        (found.into_iter().map(|(by, _)| by).collect(), error)
    };
    let ((blocks, error), (with_zeros, less)) = (scales(symmetric), scales(asymmetric));
    let wants_zeros = less < WORTH * error;
    let (blocks, codes) = if wants_zeros { (with_zeros, asymmetric) } else { (blocks, symmetric) };
    let range = codes.range();
    let row = |(row, blocks): (&[f32], &[Affine])| -> Vec<i64> {
        match told {
            Some(told) => told.triangle.round_each(row, |i| {
                let by = blocks[i / block];
                (by.scale, by.zero, range)
            }),
            None => row.iter().enumerate().map(|(i, w)| blocks[i / block].code(*w, range)).collect(),
        }
    };
    let rows = matrix.par_chunks(columns).zip(blocks.par_chunks(columns.div_ceil(block)));
    let made = rows.flat_map_iter(row).collect();
    (Blocked { codes: made, blocks, columns, block }, codes)
}

/// The scale and the zero point with the least square error, and that error.
fn best(w: &[f32], importance: Option<&[f64]>, codes: Codes) -> (Affine, f64) {
    let (least, most) = codes.range();
    let (low, high) = w.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
    let largest = high.max(-low);
    let counts = |i: usize| importance.map_or(1.0, |v| v[i]);
    let error = |by: Affine| -> f64 {
        let of = |(i, w): (usize, &f32)| counts(i) * f64::from(w - by.value(by.code(*w, (least, most)))).powi(2);
        w.iter().enumerate().map(of).sum()
    };
    let none = Affine { scale: 1.0, zero: if least < 0 { 0 } else { (most + 1) / 2 } };
    let mut found = (none, error(none));
    let mut consider = |by: Affine| {
        if by.scale.is_normal() && by.scale > 0.0 {
            let e = error(by);
            if e < found.1 {
                found = (by, e);
            }
        }
    };
    for step in 0..=STEPS {
        let part = 1.0 - CLIPPED * step as f32 / STEPS as f32;
        if least < 0 {
            let by = Affine { scale: part * largest / most as f32, zero: 0 };
            consider(by);
            consider(refitted(w, importance, by, (least, most)));
        } else {
            let scale = part * (high - low) / (most - least) as f32;
            let zero = (-low * part / scale).round_ties_even();
            if zero.is_finite() {
                let zero = (zero as i64).clamp(least, most);
                consider(Affine { scale, zero });
                consider(refitted(w, importance, Affine { scale, zero }, (least, most)));
            }
        }
    }
    found
}

/// The scale that suits best the codes that `by` gives.
fn refitted(w: &[f32], importance: Option<&[f64]>, by: Affine, range: (i64, i64)) -> Affine {
    let (mut wc, mut cc) = (0.0, 0.0);
    for (i, v) in w.iter().enumerate() {
        let (c, counts) = ((by.code(*v, range) - by.zero) as f64, importance.map_or(1.0, |v| v[i]));
        wc += counts * f64::from(*v) * c;
        cc += counts * c * c;
    }
    Affine { scale: if cc > 0.0 { (wc / cc) as f32 } else { by.scale }, ..by }
}

#[cfg(test)]
mod tests {
    use super::super::{S4, U4};
    use super::*;

    fn error(w: &[f32], blocked: &Blocked) -> f32 {
        w.iter().zip(blocked.values()).map(|(a, b)| (a - b).powi(2)).sum()
    }

    fn rounded(w: &[f32], block: usize, told: Option<&Told>) -> Blocked {
        blocked(w, w.len(), block, [S4, S4], told).0
    }

    #[test]
    fn each_block_has_a_scale() {
        let made = rounded(&[0.7, -0.1, 70.0, -80.0, 0.0, 0.0], 2, None);
        assert_eq!((made.blocks.len(), made.of_row()), (3, 3));
        assert!(error(&[0.7, -0.1], &rounded(&[0.7, -0.1], 2, None)) < 1e-4);
        assert_eq!(made.values()[4..], [0.0, 0.0]);
        assert!(made.blocks[1].scale > 50.0 * made.blocks[0].scale);
    }

    #[test]
    fn a_last_block_may_be_shorter() {
        let made = rounded(&[1.0, 2.0, 3.0, 4.0, 5.0], 2, None);
        assert_eq!((made.codes.len(), made.of_row(), made.values().len()), (5, 3, 5));
    }

    #[test]
    fn ranges_to_one_side_want_zero_points() {
        let one_sided: Vec<f32> = (0..64).map(|i| 1.0 + (i * 37 % 64) as f32 / 64.0).collect();
        let both: Vec<f32> = one_sided.iter().enumerate().map(|(i, v)| if i % 2 == 0 { *v } else { -v }).collect();
        let made = |w: &[f32]| blocked(w, 64, 32, [S4, U4], None);
        assert_eq!((made(&one_sided).1, made(&both).1), (U4, S4));
        assert!(error(&one_sided, &made(&one_sided).0) < error(&one_sided, &rounded(&one_sided, 32, None)) / 2.0);
    }

    #[test]
    fn inputs_that_count_more_are_nearer() {
        let w: Vec<f32> = (0..32).map(|i| ((i * 29 % 32) as f32 - 15.5) / 7.0).collect();
        let mut importance = vec![1.0; 32];
        importance[3] = 1e4;
        let told = Told { triangle: Triangle::of(&diagonal(&importance), 32), importance };
        let far = |made: &Blocked| (w[3] - made.values()[3]).abs();
        assert!(far(&rounded(&w, 32, Some(&told))) < far(&rounded(&w, 32, None)));
    }

    fn diagonal(values: &[f64]) -> Vec<f64> {
        let n = values.len();
        (0..n * n).map(|i| if i / n == i % n { values[i / n] } else { 0.0 }).collect()
    }
}
