//! Work in parts.

use crate::{Rows, RowsMut, team::join};

/// Columns are divided between parts at multiples of this many, so that no two parts write into
/// the same cache line of a result that is aligned.
const COLUMNS: usize = 64;

/// A part of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first row.
    pub row: usize,
    /// How many rows.
    pub rows: usize,
    /// Its first column.
    pub column: usize,
    /// How many columns.
    pub width: usize,
}

impl Part {
    /// What of an operand of the result's shape belongs to this part.
    pub fn of<'a, T>(&self, x: Rows<'a, T>) -> Rows<'a, T> {
        x.part(self.row, self.rows).columns(self.column, self.width)
    }

    /// What of an operand belongs to this part, when it may have one row for all rows, one column
    /// for all columns, or both.
    pub fn of_broadcast<'a, T>(&self, x: Rows<'a, T>) -> Rows<'a, T> {
        let x = if x.rows() == 1 { x } else { x.part(self.row, self.rows) };
        if x.width() == 1 { x } else { x.columns(self.column, self.width) }
    }
}

/// Runs `body` on `threads` parts of `y`: groups of `unit` rows, or columns where it is one row.
pub(crate) fn in_parts<T, F>(mut y: RowsMut<T>, unit: usize, threads: usize, body: &F)
where
    T: Send,
    F: Fn(Part, RowsMut<T>) + Sync,
{
    let whole = Part { row: 0, rows: y.rows(), column: 0, width: y.width() };
    if whole.rows > 0 && whole.width > 0 {
        split(whole, y.reborrow(), unit.max(1), threads, body);
    }
}

/// As [`in_parts`], but every part has whole rows.
pub(crate) fn in_rows<T, F>(y: RowsMut<T>, unit: usize, threads: usize, body: &F)
where
    T: Send,
    F: Fn(Part, RowsMut<T>) + Sync,
{
    // With a group of rows for each part, columns are never divided.
    let groups = y.rows().div_ceil(unit.max(1));
    in_parts(y, unit, threads.min(groups), body);
}

fn split<T, F>(part: Part, mut y: RowsMut<T>, unit: usize, threads: usize, body: &F)
where
    T: Send,
    F: Fn(Part, RowsMut<T>) + Sync,
{
    let left = threads / 2;
    if left == 0 {
        return body(part, y);
    }
    let share = |units: usize| units * left / threads;
    let rows = share(part.rows.div_ceil(unit)) * unit;
    let columns = share(part.width.div_ceil(COLUMNS)) * COLUMNS;
    let ((a, mut y_a), (b, mut y_b)) = if rows > 0 {
        let (y_a, y_b) = y.split_at(rows);
        let below = Part { row: part.row + rows, rows: part.rows - rows, ..part };
        ((Part { rows, ..part }, y_a), (below, y_b))
    } else if part.rows == 1 && columns > 0 {
        let (y_a, y_b) = y.data().split_at_mut(columns);
        let (width, column) = (part.width - columns, part.column + columns);
        (
            (Part { width: columns, ..part }, RowsMut::dense(y_a, 1, columns)),
            (Part { column, width, ..part }, RowsMut::dense(y_b, 1, width)),
        )
    } else {
        return split(part, y, unit, threads - left, body);
    };
    join(|| split(a, y_a.reborrow(), unit, left, body), || split(b, y_b.reborrow(), unit, threads - left, body));
}

/// Rows that follow each other without a gap, as one row: loops over long rows are faster.
pub(crate) fn flat<'a, T>(x: Rows<'a, T>) -> Rows<'a, T> {
    if x.is_dense() { Rows::dense(x.data(), 1, x.data().len()) } else { x }
}

/// As [`flat`], for a result.
pub(crate) fn flat_mut<'a, T>(y: &'a mut RowsMut<T>) -> RowsMut<'a, T> {
    if y.is_dense() {
        let n = y.data().len();
        RowsMut::dense(y.data(), 1, n)
    } else {
        y.reborrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_belongs_to_one_part() {
        for rows in [1, 2, 5, 12] {
            for width in [1, 63, 64, 65, 300] {
                for (unit, threads) in [(1, 1), (1, 2), (1, 3), (4, 3), (5, 7), (100, 2)] {
                    let mut data = vec![0u32; rows * (width + 3) - 3];
                    let y = RowsMut::new(&mut data, rows, width, width + 3);
                    in_parts(y, unit, threads, &|part, mut y: RowsMut<u32>| {
                        assert_eq!((part.rows, part.width), (y.rows(), y.width()));
                        assert!(part.row.is_multiple_of(unit));
                        for i in 0..part.rows {
                            for (j, v) in y.row(i).iter_mut().enumerate() {
                                *v += ((part.row + i) * 1000 + part.column + j + 1) as u32;
                            }
                        }
                    });
                    for (i, row) in data.chunks(width + 3).enumerate() {
                        for (j, &v) in row.iter().enumerate() {
                            let want = if j < width { i * 1000 + j + 1 } else { 0 };
                            assert_eq!(v as usize, want, "{i} {j} of {rows} {width}, {threads} parts");
                        }
                    }
                }
            }
        }
    }
}
