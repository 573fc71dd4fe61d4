//! Transposition of one matrix.

use super::Element;
use crate::{Isa, Rows, RowsMut};

/// The side of a block of which both the rows read and the rows written stay in the first cache.
const BLOCK: usize = 16;

/// `y[c][r] = x[r][c]`.
///
/// # Panics
/// When `y` has not a row for each column of `x`, as wide as `x` has rows.
pub(super) fn transpose<T: Element>(_isa: Isa, x: Rows<T>, mut y: RowsMut<T>) {
    assert_eq!((x.rows(), x.width()), (y.width(), y.rows()), "y is of the shape of x, transposed");
    for column in (0..x.width()).step_by(BLOCK) {
        for row in (0..x.rows()).step_by(BLOCK) {
            for c in column..(column + BLOCK).min(x.width()) {
                let rows = row..(row + BLOCK).min(x.rows());
                for (y, r) in y.row(c)[rows.clone()].iter_mut().zip(rows) {
                    *y = x.data()[r * x.stride() + c];
                }
            }
        }
    }
}
