//! A weight as a matrix: one row an output channel, one column an input of it.

use crate::{layers::Layer, prune::mask::Pattern};
use compress_compiler::graph::Graph;
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// How the elements of a weight lie in that matrix, whose columns are input channels times taps of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightMatrix {
    /// Output channels.
    pub rows: usize,
    /// Input channels of each.
    pub channels: usize,
    /// Taps of each input channel; 1 where there is no window.
    pub taps: usize,
    /// Whether the weight is stored with its input channels first.
    transposed: bool,
}

impl WeightMatrix {
    /// The matrix of a layer's weight.
    pub fn of(g: &Graph, layer: &Layer) -> Option<Self> {
        let shape = g.constant(layer.weight.into())?.shape();
        match (layer.axes.output, layer.axes.input, shape) {
            (0, 1, [rows, channels, window @ ..]) => {
                let taps = window.iter().product();
                Some(Self { rows: *rows, channels: *channels, taps, transposed: false })
            }
            (1, 0, [channels, rows]) => Some(Self { rows: *rows, channels: *channels, taps: 1, transposed: true }),
            _ => None,
        }
    }

    /// One of single taps, stored as it is.
    pub fn dense(rows: usize, channels: usize) -> Self {
        Self { rows, channels, taps: 1, transposed: false }
    }

    /// The axis of the weight, as it is stored, that its input channels are.
    pub fn input_axis(&self) -> usize {
        usize::from(!self.transposed)
    }

    /// One of the same rows and the same order with so many columns.
    pub fn with_columns(&self, columns: usize) -> Self {
        Self { channels: columns, taps: 1, ..*self }
    }

    /// One of the same columns and the same order with so many rows.
    pub fn with_rows(&self, rows: usize) -> Self {
        Self { rows, ..*self }
    }

    /// Columns.
    pub fn columns(&self) -> usize {
        self.channels * self.taps
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.rows * self.columns()
    }

    /// The matrix, row by row, of a weight as it is stored.
    pub fn matrix<T: Copy + Send + Sync>(&self, stored: &[T]) -> Vec<T> {
        match self.transposed {
            true => transposed(stored, self.rows, 0..self.rows, self.channels),
            false => stored.to_vec(),
        }
    }

    /// Some rows of the matrix of a weight as it is stored.
    pub fn some_rows<'a, T: Copy + Send + Sync>(&self, stored: &'a [T], rows: Range<usize>) -> Cow<'a, [T]> {
        let columns = self.columns();
        match self.transposed {
            true => Cow::Owned(transposed(stored, self.rows, rows, columns)),
            false => Cow::Borrowed(&stored[rows.start * columns..rows.end * columns]),
        }
    }

    /// The weight, as it is stored, of a matrix.
    pub fn stored<T: Copy + Send + Sync>(&self, matrix: &[T]) -> Vec<T> {
        match self.transposed {
            true => transposed(matrix, self.channels, 0..self.channels, self.rows),
            false => matrix.to_vec(),
        }
    }

    /// To which of the groups of `pattern` each element of the matrix belongs: so many input channels in turn at the
    /// same tap of the same row. `None` where the channels don't fill them.
    pub fn groups(&self, pattern: Pattern) -> Option<Vec<usize>> {
        let (row, taps) = (self.columns(), self.taps);
        let of = |i: usize| (i / row * (self.channels / pattern.of) + i % row / taps / pattern.of) * taps + i % taps;
        self.channels.is_multiple_of(pattern.of).then(|| (0..self.len()).map(of).collect())
    }
}

/// Columns of `values`, which have rows of `width`, as rows of `height` elements. Some at a time, as what is fetched from memory
/// has parts of some.
fn transposed<T: Copy + Send + Sync>(values: &[T], width: usize, columns: Range<usize>, height: usize) -> Vec<T> {
    const TOGETHER: usize = 16;
    let Some(any) = values.first() else { return vec![] };
    let mut made = vec![*any; columns.len() * height];
    made.par_chunks_mut(TOGETHER * height.max(1)).enumerate().for_each(|(i, rows)| {
        let from = columns.start + i * TOGETHER;
        for (at, row) in values.chunks_exact(width).enumerate() {
            rows.iter_mut().skip(at).step_by(height).zip(&row[from..]).for_each(|(to, v)| *to = *v);
        }
    });
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_run_along_input_channels() {
        let layout = WeightMatrix { rows: 2, channels: 4, taps: 3, transposed: false };
        let groups = layout.groups(Pattern { zeros: 1, of: 2 }).unwrap();
        assert_eq!(groups[..12], [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
        assert_eq!(groups[12..], [6, 7, 8, 6, 7, 8, 9, 10, 11, 9, 10, 11]);
        assert_eq!(WeightMatrix { channels: 6, ..layout }.groups(Pattern { zeros: 2, of: 4 }), None);
    }

    #[test]
    fn a_matrix_is_stored_as_it_was() {
        let layout = WeightMatrix { rows: 2, channels: 3, taps: 1, transposed: true };
        let stored = [1, 2, 3, 4, 5, 6];
        assert_eq!(layout.matrix(&stored), [1, 3, 5, 2, 4, 6]);
        assert_eq!(layout.stored(&layout.matrix(&stored)), stored);
        assert_eq!(*layout.some_rows(&stored, 1..2), [2, 4, 6]);
        let large = WeightMatrix { rows: 37, channels: 21, taps: 1, transposed: true };
        let stored: Vec<usize> = (0..37 * 21).collect();
        let of = |i: usize| i % 21 * 37 + i / 21;
        assert!(large.matrix(&stored).into_iter().eq((0..37 * 21).map(of)));
        assert!(large.some_rows(&stored, 5..30).iter().copied().eq((5 * 21..30 * 21).map(of)));
    }
}
