//! Reductions along one axis.

use crate::{Isa, RowsMut, multiversion::multiversion, parallel::in_rows, pool::by_columns};

/// What becomes of the elements along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReduceOp {
    /// Their sum.
    Sum,
    /// Their sum divided by their number.
    Mean,
    /// The greatest; NaN if there is one.
    Max,
    /// The least; NaN if there is one.
    Min,
    /// The square root of the sum of their squares.
    Norm,
    /// The sum of their squares.
    Squares,
}

/// Elements are reduced in so many parts where they follow each other, whatever the instruction set.
const LANES: usize = 16;

/// Reduces `x`, `[rows][along][width]`, to `y`, which has a row of `width` for each of `rows`.
///
/// # Panics
/// When the operands don't fit, or nothing is reduced.
pub fn reduce(isa: Isa, op: ReduceOp, x: &[f32], along: usize, y: RowsMut<f32>, threads: usize) {
    assert!(along > 0 && x.len() == y.rows() * along * y.width(), "{along} elements to reduce");
    in_rows(y, 1, threads, &|part, y| {
        let size = along * y.width();
        reduce_rows(isa, op, &x[part.row * size..][..y.rows() * size], along, y);
    });
}

/// Calls `$fold` with the expressions for the first of the elements, for the next, and for the end.
macro_rules! by_op {
    ($op:expr, $along:expr, $fold:ident) => {
        match $op {
            ReduceOp::Sum => $fold!(0.0f32, |sum, v| sum + v, |sum| sum),
            ReduceOp::Mean => $fold!(0.0f32, |sum, v| sum + v, |sum| sum / $along as f32),
            ReduceOp::Max => {
                $fold!(f32::NEG_INFINITY, |most, v| if v > most || v.is_nan() { v } else { most }, |most| most)
            }
            ReduceOp::Min => {
                $fold!(f32::INFINITY, |least, v| if v < least || v.is_nan() { v } else { least }, |least| least)
            }
            ReduceOp::Norm => $fold!(0.0f32, |sum, v| sum + v * v, |sum| sum.sqrt()),
            ReduceOp::Squares => $fold!(0.0f32, |sum, v| sum + v * v, |sum| sum),
        }
    };
}

/// How two partial results become one.
#[inline(always)]
fn joined(op: ReduceOp, a: f32, b: f32) -> f32 {
    match op {
        ReduceOp::Max => {
            if b > a || b.is_nan() {
                b
            } else {
                a
            }
        }
        ReduceOp::Min => {
            if b < a || b.is_nan() {
                b
            } else {
                a
            }
        }
        _ => a + b,
    }
}

multiversion! {
    fn reduce_rows(isa: Isa, op: ReduceOp, x: &[f32], along: usize, y: RowsMut<f32>) {
        let mut y = y;
        let width = y.width();
        for i in 0..y.rows() {
            let (x, y) = (&x[i * along * width..][..along * width], y.row(i));
            if let [y] = y {
                // Elements follow each other.
                macro_rules! fold {
                    ($first:expr, |$sum:ident, $v:ident| $next:expr, |$end:ident| $done:expr) => {{
                        if along < LANES {
                            let $end = x.iter().fold($first, |$sum, $v| {
                                let $v = *$v;
                                $next
                            });
                            *y = $done;
                            continue;
                        }
                        let mut lanes = [$first; LANES];
                        for chunk in x.chunks(LANES) {
                            for (lane, $v) in lanes.iter_mut().zip(chunk) {
                                let ($sum, $v) = (*lane, *$v);
                                *lane = $next;
                            }
                        }
                        let $end = lanes[1..].iter().fold(lanes[0], |a, b| joined(op, a, *b));
                        *y = $done;
                    }};
                }
                by_op!(op, along, fold);
                continue;
            }
            by_columns!(width, |column, N| {
                macro_rules! fold {
                    ($first:expr, |$sum:ident, $v:ident| $next:expr, |$end:ident| $done:expr) => {{
                        let mut sums = [$first; N];
                        for row in 0..along {
                            for (total, $v) in sums.iter_mut().zip(&x[row * width + column..][..N]) {
                                let ($sum, $v) = (*total, *$v);
                                *total = $next;
                            }
                        }
                        for (y, $end) in y[column..][..N].iter_mut().zip(sums) {
                            *y = $done;
                        }
                    }};
                }
                by_op!(op, along, fold);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Grid, Noise, cases, isas};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(150))]

        #[test]
        fn every_element_counts_once(
            rows in 1usize..5, along in 1usize..70, width in prop_oneof![Just(1usize), 2usize..50], gap in 0usize..3,
            nan: bool, threads in 1usize..4, seed: u64,
        ) {
            let mut noise = Noise(seed);
            let mut x = Grid::new(1, rows * along * width, 0, 0.0, || noise.float()).values();
            if nan {
                x[noise.below(rows * along * width)] = f32::NAN;
            }
            for isa in isas() {
                for op in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min, ReduceOp::Norm, ReduceOp::Squares] {
                    let mut y = Grid::new(rows, width, gap, 9.0, || 1.0);
                    reduce(isa, op, &x, along, y.rows_mut(), threads);
                    for (at, got) in y.values().into_iter().enumerate() {
                        let of = |i: usize| f64::from(x[(at / width * along + i) * width + at % width]);
                        let all: Vec<f64> = (0..along).map(of).collect();
                        let squares: f64 = all.iter().map(|v| v * v).sum();
                        let want = match op {
                            ReduceOp::Sum => all.iter().sum(),
                            ReduceOp::Mean => all.iter().sum::<f64>() / along as f64,
                            _ if squares.is_nan() => f64::NAN,
                            ReduceOp::Max => all.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                            ReduceOp::Min => all.iter().copied().fold(f64::INFINITY, f64::min),
                            ReduceOp::Norm => squares.sqrt(),
                            ReduceOp::Squares => squares,
                        };
                        let near = (f64::from(got) - want).abs() <= 1e-4 || got.is_nan() && want.is_nan();
                        assert!(near, "{isa}: {op:?} is {got}, not {want}");
                    }
                }
            }
        }
    }
}
