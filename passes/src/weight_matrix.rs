//! A weight as a matrix: one row an output channel, one column an input of it.

use crate::{layers::Layer, prune::mask::Pattern};
use compress_compiler::graph::Graph;

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
    #[cfg(test)]
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

    /// Columns.
    pub fn columns(&self) -> usize {
        self.channels * self.taps
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.rows * self.columns()
    }

    /// The matrix, row by row, of a weight as it is stored.
    pub fn matrix<T: Copy>(&self, stored: &[T]) -> Vec<T> {
        match self.transposed {
            true => transpose(stored, self.channels, self.rows),
            false => stored.to_vec(),
        }
    }

    /// The weight, as it is stored, of a matrix.
    pub fn stored<T: Copy>(&self, matrix: &[T]) -> Vec<T> {
        match self.transposed {
            true => transpose(matrix, self.rows, self.channels),
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

fn transpose<T: Copy>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
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
    }
}
