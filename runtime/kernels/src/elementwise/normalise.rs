//! Operators that look at a whole row.

use crate::attention::{MASKS, Mask};
use crate::math::{self, each, each_here, fused};
use crate::multiversion::multiversion;
use crate::parallel::{Part, in_rows};
use crate::{Isa, Rows, RowsMut};
use std::f32::consts::LOG2_E;

/// Rows of at most so many elements are computed [`LANES`] at a time, an element of all of them after the other.
const NARROW: usize = 8;

/// Sums are taken in so many parts, whatever the instruction set.
const LANES: usize = 16;

/// Softmax of each row: `exp(x - max) / sum(exp(x - max))`.
///
/// # Panics
/// When `x` and `y` are not of one shape.
pub fn softmax(isa: Isa, x: Rows<f32>, y: RowsMut<f32>, threads: usize) {
    whole_rows(x, y, threads, |x, y| match x.width() {
        ..=NARROW => narrow_softmax_rows(isa, x, y),
        _ => softmax_rows(isa, x, y),
    });
}

/// LogSoftmax of each row: `x - max - ln(sum(exp(x - max)))`.
///
/// # Panics
/// When `x` and `y` are not of one shape.
pub fn log_softmax(isa: Isa, x: Rows<f32>, y: RowsMut<f32>, threads: usize) {
    whole_rows(x, y, threads, |x, y| log_softmax_rows(isa, x, y));
}

/// LayerNormalization of each row: `(x - mean) / sqrt(variance + epsilon) * scale + bias`.
///
/// # Panics
/// When `x` and `y` are not of one shape, or `scale` or `bias` is not as long as a row.
pub fn layer_norm(
    isa: Isa,
    x: Rows<f32>,
    scale: &[f32],
    bias: Option<&[f32]>,
    epsilon: f32,
    y: RowsMut<f32>,
    threads: usize,
) {
    assert!([Some(scale), bias].into_iter().flatten().all(|v| v.len() == x.width()), "a scale for each column");
    whole_rows(x, y, threads, |x, y| layer_norm_rows(isa, x, scale, bias, epsilon, y));
}

/// RMSNormalization of each row: `x / sqrt(mean of x^2 + epsilon) * scale` (Zhang and Sennrich, "Root Mean Square Layer
/// Normalization", 2019).
///
/// # Panics
/// When `x` and `y` are not of one shape, or `scale` is not as long as a row.
pub fn rms_norm(isa: Isa, x: Rows<f32>, scale: Option<&[f32]>, epsilon: f32, y: RowsMut<f32>, threads: usize) {
    assert!(scale.is_none_or(|v| v.len() == x.width()), "a scale for each column");
    whole_rows(x, y, threads, |x, y| rms_norm_rows(isa, x, scale, epsilon, y));
}

fn whole_rows(x: Rows<f32>, y: RowsMut<f32>, threads: usize, body: impl Fn(Rows<f32>, RowsMut<f32>) + Sync) {
    assert_eq!((x.rows(), x.width()), (y.rows(), y.width()), "x and y are of one shape");
    in_rows(y, 1, threads, &|part: Part, y| body(part.of(x), y));
}

/// What an expression makes of all elements, first within lanes; `neutral` is an element that
/// changes nothing.
macro_rules! reduce {
    ($x:expr, $start:expr, $neutral:expr, |$sum:ident, $v:ident| $fold:expr, |$a:ident, $b:ident| $join:expr) => {{
        let mut lanes = [$start; LANES];
        let (chunks, rest) = $x.as_chunks::<LANES>();
        for chunk in chunks {
            for (lane, &$v) in lanes.iter_mut().zip(chunk) {
                let $sum = *lane;
                *lane = $fold;
            }
        }
        if !rest.is_empty() {
            let mut last = [$neutral; LANES];
            let (done, rest) = (LANES - rest.len(), rest);
            match $x.last_chunk::<LANES>() {
                Some(all) => {
                    for (i, (last, v)) in (0..).zip(last.iter_mut().zip(all)) {
                        *last = if i < done as u32 { *last } else { *v };
                    }
                }
                None => last[..rest.len()].copy_from_slice(rest),
            }
            for (lane, &$v) in lanes.iter_mut().zip(&last) {
                let $sum = *lane;
                *lane = $fold;
            }
        }
        // In memory, so that the loop above has them in whole vectors, whatever becomes of them here.
        let mut lanes = std::hint::black_box(lanes);
        let mut width = LANES / 2;
        while width > 0 {
            for i in 0..width {
                let ($a, $b) = (lanes[i], lanes[i + width]);
                lanes[i] = $join;
            }
            width /= 2;
        }
        lanes[0]
    }};
}

/// The greatest element.
#[inline(always)]
fn greatest(x: &[f32]) -> f32 {
    const LEAST: f32 = f32::NEG_INFINITY;
    reduce!(x, LEAST, LEAST, |most, v| math::greater(v, most), |a, b| math::greater(b, a))
}

#[inline(always)]
fn sum(x: &[f32]) -> f32 {
    reduce!(x, 0.0f32, 0.0, |sum, v| sum + v, |a, b| a + b)
}

multiversion! {
    fn softmax_rows(isa: Isa, x: Rows<f32>, y: RowsMut<f32>) {
        let mut y = y;
        for i in 0..y.rows() {
            let (x, y) = (x.row(i), y.row(i));
            let max = greatest(x);
            each!(x, y, |v| math::power_below_zero(isa, (v - max) * LOG2_E));
            let factor = 1.0 / sum(y);
            for y in y {
                *y *= factor;
            }
        }
    }

    /// Weights of keys: the softmax of each row of scores, which `scale` multiplies and `masks` mask first. A row's weights
    /// are still to be multiplied by its number in `factors`, or sums of what they weigh, which are fewer. The first row
    /// is row `first` of the masks that have rows. If `guarded`, a row that would be NaN becomes 0.
    pub(crate) fn weigh_rows(
        isa: Isa,
        scores: RowsMut<f32>,
        first: usize,
        scale: f32,
        masks: [Option<Mask>; MASKS],
        guarded: bool,
        factors: &mut [f32],
    ) {
        let mut scores = scores;
        assert_eq!(scores.rows(), factors.len(), "a factor a row");
        for (i, after) in factors.iter_mut().enumerate() {
            let row = scores.row(i);
            // What scores have to be multiplied by still: the first mask does it on the way, or else the exponential function.
            let mut factor = scale;
            for mask in masks.iter().flatten() {
                match mask {
                    Mask::Added(mask) => match mask.row(if mask.rows() == 1 { 0 } else { first + i }) {
                        &[all] => row.iter_mut().for_each(|v| *v = fused(isa, *v, factor, all)),
                        mask => row.iter_mut().zip(mask).for_each(|(v, mask)| *v = fused(isa, *v, factor, *mask)),
                    },
                    Mask::Kept { condition, keeps, other } => {
                        match condition.row(if condition.rows() == 1 { 0 } else { first + i }) {
                            &[all] if (all != 0) == *keeps => continue,
                            &[_] => row.fill(*other),
                            condition => {
                                for (v, is) in row.iter_mut().zip(condition) {
                                    *v = if (*is != 0) == *keeps { *v * factor } else { *other };
                                }
                            }
                        }
                    }
                }
                factor = 1.0;
            }
            // The greatest score would become the least.
            if factor <= 0.0 {
                row.iter_mut().for_each(|v| *v *= factor);
                factor = 1.0;
            }
            let factor = factor * LOG2_E;
            let most = greatest(row);
            each_here!(row, |v| math::power_below_zero(isa, (v - most) * factor));
            let sum = sum(row);
            if guarded && sum.is_nan() {
                row.fill(0.0);
                *after = 1.0;
                continue;
            }
            *after = 1.0 / sum;
        }
    }

    /// Multiplies each row by its factor.
    pub(crate) fn scale_rows(isa: Isa, rows: RowsMut<f32>, factors: &[f32]) {
        let mut rows = rows;
        for (i, factor) in factors.iter().enumerate() {
            rows.row(i).iter_mut().for_each(|v| *v *= factor);
        }
    }

    fn narrow_softmax_rows(isa: Isa, x: Rows<f32>, y: RowsMut<f32>) {
        let mut y = y;
        let width = x.width();
        for first in (0..y.rows()).step_by(LANES) {
            let rows = LANES.min(y.rows() - first);
            let mut lanes = [[0f32; LANES]; NARROW];
            for i in 0..rows {
                for (lane, x) in lanes.iter_mut().zip(x.row(first + i)) {
                    lane[i] = *x;
                }
            }
            let lanes = &mut lanes[..width];
            let mut most = [f32::NEG_INFINITY; LANES];
            for lane in lanes.iter() {
                for (most, v) in most.iter_mut().zip(lane) {
                    *most = most.max(*v);
                }
            }
            let mut sum = [0f32; LANES];
            for lane in lanes.iter_mut() {
                for ((v, most), sum) in lane.iter_mut().zip(most).zip(&mut sum) {
                    *v = math::power_below_zero(isa, (*v - most) * LOG2_E);
                    *sum += *v;
                }
            }
            let factor = sum.map(|sum| 1.0 / sum);
            for i in 0..rows {
                for (y, lane) in y.row(first + i).iter_mut().zip(lanes.iter()) {
                    *y = lane[i] * factor[i];
                }
            }
        }
    }

    fn log_softmax_rows(isa: Isa, x: Rows<f32>, y: RowsMut<f32>) {
        let mut y = y;
        for i in 0..y.rows() {
            let (x, y) = (x.row(i), y.row(i));
            let max = greatest(x);
            let log = math::log(isa, reduce!(x, 0.0f32, f32::NEG_INFINITY, |sum, v| sum + math::power_below_zero(isa, (v - max) * LOG2_E), |a, b| a + b));
            for (y, x) in y.iter_mut().zip(x) {
                *y = (x - max) - log;
            }
        }
    }

    fn layer_norm_rows(
        isa: Isa,
        x: Rows<f32>,
        scale: &[f32],
        bias: Option<&[f32]>,
        epsilon: f32,
        y: RowsMut<f32>,
    ) {
        let mut y = y;
        for i in 0..y.rows() {
            let (x, y) = (x.row(i), y.row(i));
            let n = x.len() as f32;
            let mean = sum(x) / n;
            let squares = reduce!(x, 0.0f32, mean, |sum, v| fused(isa, v - mean, v - mean, sum), |a, b| a + b);
            let factor = 1.0 / (squares / n + epsilon).sqrt();
            match bias {
                Some(bias) => {
                    for (((y, x), scale), bias) in y.iter_mut().zip(x).zip(scale).zip(bias) {
                        *y = fused(isa, (x - mean) * factor, *scale, *bias);
                    }
                }
                None => {
                    for ((y, x), scale) in y.iter_mut().zip(x).zip(scale) {
                        *y = (x - mean) * factor * scale;
                    }
                }
            }
        }
    }

    fn rms_norm_rows(isa: Isa, x: Rows<f32>, scale: Option<&[f32]>, epsilon: f32, y: RowsMut<f32>) {
        let mut y = y;
        for i in 0..y.rows() {
            let (x, y) = (x.row(i), y.row(i));
            let squares = reduce!(x, 0.0f32, 0.0, |sum, v| fused(isa, v, v, sum), |a, b| a + b);
            let factor = 1.0 / (squares / x.len() as f32 + epsilon).sqrt();
            each!(x, y, |v| v * factor);
            for (y, scale) in y.iter_mut().zip(scale.unwrap_or_default()) {
                *y *= scale;
            }
        }
    }
}
