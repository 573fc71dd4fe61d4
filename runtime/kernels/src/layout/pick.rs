//! Rows and columns of choice.

use crate::parallel::in_rows;
use crate::{Rows, RowsMut};

/// The columns of a row that [`pick`] takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// `width` columns from `first` on, which come to lie from `to` on; around them is padding.
    Run {
        /// The first one.
        first: usize,
        /// How many.
        width: usize,
        /// Where they come to lie.
        to: usize,
    },
    /// The column that each column of the result is, or [`PADDING`].
    Each(Vec<u32>),
}

/// In the place of a row or column: none.
pub const PADDING: u32 = u32::MAX;

/// Row `i` of `y` is row `rows[i]` of `x`, and of that what `columns` says; `fill` is padding.
///
/// # Panics
/// When `y` has not a row for each of `rows`, or a row or column is none of `x`.
pub fn pick<T: Copy + Send + Sync>(
    x: Rows<T>,
    rows: &[u32],
    columns: &Columns,
    fill: T,
    y: RowsMut<T>,
    threads: usize,
) {
    assert_eq!(rows.len(), y.rows(), "y has a row for each that is picked");
    if let Columns::Each(columns) = columns {
        assert_eq!(columns.len(), y.width(), "y has a column for each that is picked");
    }
    in_rows(y, 1, threads, &|part, mut y| {
        for (i, &from) in rows[part.row..][..part.rows].iter().enumerate() {
            let to = y.row(i);
            if from == PADDING {
                to.fill(fill);
                continue;
            }
            let from = x.row(from as usize);
            match columns {
                Columns::Run { first, width, to: at } => {
                    let (before, rest) = to.split_at_mut(*at);
                    let (middle, after) = rest.split_at_mut(*width);
                    before.fill(fill);
                    middle.copy_from_slice(&from[*first..][..*width]);
                    after.fill(fill);
                }
                Columns::Each(columns) => {
                    for (to, &column) in to.iter_mut().zip(columns) {
                        *to = if column == PADDING { fill } else { from[column as usize] };
                    }
                }
            }
        }
    });
}
