//! Operators of two operands, one of which may have one row for all rows of the result, one
//! column for all columns, or both.

use crate::parallel::{flat, flat_mut, in_parts};
use crate::{Rows, RowsMut};

/// Runs `body` on `threads` parts of `y` and what of `a` and `b` belongs to each.
///
/// # Panics
/// When the shapes don't fit.
pub(crate) fn in_parts_of<T: Copy + Send + Sync>(
    a: Rows<T>,
    b: Rows<T>,
    mut y: RowsMut<T>,
    threads: usize,
    body: impl Fn(Rows<T>, Rows<T>, RowsMut<T>) + Sync,
) {
    let shape = (y.rows(), y.width());
    for (x, name) in [(a, "a"), (b, "b")] {
        let fits = (x.rows() == 1 || x.rows() == shape.0) && (x.width() == 1 || x.width() == shape.1);
        assert!(fits, "{name} has {} rows of {}, y {} of {}", x.rows(), x.width(), shape.0, shape.1);
    }
    // Dense operands of one shape are one long row, and so are they beside a single element.
    let long = |x: Rows<T>| x.is_dense() && ((x.rows(), x.width()) == shape || x.data().len() == 1);
    let dense = y.is_dense() && long(a) && long(b);
    let (a, b, y) = if dense { (flat(a), flat(b), flat_mut(&mut y)) } else { (a, b, y) };
    in_parts(y, 1, threads, &|part, y| body(part.of_broadcast(a), part.of_broadcast(b), y));
}

/// `y = f(a, b)` for every element, where `f` is an expression.
macro_rules! each_pair {
    ($a:expr, $b:expr, $y:expr, |$u:ident, $v:ident| $f:expr) => {{
        let (a, b, mut y) = ($a, $b, $y);
        for i in 0..y.rows() {
            let row_a = a.row(if a.rows() == 1 { 0 } else { i });
            let row_b = b.row(if b.rows() == 1 { 0 } else { i });
            let row_y = y.row(i);
            match (row_a, row_b) {
                (_, &[$v]) if row_a.len() == row_y.len() => {
                    for (y, &$u) in row_y.iter_mut().zip(row_a) {
                        *y = $f;
                    }
                }
                (&[$u], _) if row_b.len() == row_y.len() => {
                    for (y, &$v) in row_y.iter_mut().zip(row_b) {
                        *y = $f;
                    }
                }
                (&[$u], &[$v]) => row_y.fill($f),
                _ => {
                    for ((y, &$u), &$v) in row_y.iter_mut().zip(row_a).zip(row_b) {
                        *y = $f;
                    }
                }
            }
        }
    }};
}

pub(crate) use each_pair;
