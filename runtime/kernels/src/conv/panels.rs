//! Weights in the order in which tiles read them.

use crate::{Isa, Rows, RowsMut, layout::tile::transpose, team::join};

/// Columns of a product that are computed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Panel {
    /// To which group they belong.
    pub group: usize,
    /// How many vectors they fill, the last one perhaps in part.
    pub vectors: usize,
    /// The first one, of all groups' columns.
    pub column: usize,
    /// How many.
    pub columns: usize,
    /// Where their weights begin.
    pub weights: usize,
    /// Where they begin among what is stored for each column, filled up to whole vectors.
    pub lane: usize,
}

/// The shape of a convolution's weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Output channels of all groups.
    pub outputs: usize,
    /// Taps of the window, vertical and horizontal.
    pub kernel: [usize; 2],
    /// Input channels of one group.
    pub channels: usize,
    /// Groups.
    pub groups: usize,
}

impl Shape {
    /// Weights of one output.
    pub fn depth(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.channels
    }

    /// Elements of a line of the window, whose taps are side by side.
    pub fn run(&self) -> usize {
        self.kernel[1] * self.channels
    }
}

/// How weights lie in panels: for each line of the window, for each step in it, for each column,
/// the `quad` weights that one step has.
#[derive(Debug)]
pub(crate) struct Panels {
    /// The panels, in the order of their columns.
    pub list: Vec<Panel>,
    /// Lanes of all panels.
    pub lanes: usize,
    /// Weights of all panels, with those that fill them up.
    pub weights: usize,
    /// Lanes of a vector.
    lanes_of_vector: usize,
    /// Steps of a line.
    pub steps: usize,
    /// Weights of a step.
    pub quad: usize,
}

impl Panels {
    /// Panels for vectors of `lanes`, up to `most` in each.
    ///
    /// # Panics
    /// When groups don't divide the outputs, or there is nothing to sum.
    pub fn new(shape: &Shape, lanes: usize, most: usize, quad: usize) -> Self {
        let Shape { outputs, kernel, groups, .. } = *shape;
        assert!(groups > 0 && outputs.is_multiple_of(groups), "{groups} groups of {outputs} outputs");
        assert!(shape.depth() > 0, "a product of {shape:?} has no terms");
        let steps = shape.run().div_ceil(quad);
        let each = outputs / groups;
        let mut panels = Self { list: Vec::new(), lanes: 0, weights: 0, lanes_of_vector: lanes, steps, quad };
        for group in 0..groups {
            let mut done = 0;
            for vectors in vectors(each.div_ceil(lanes), most, quad == 1) {
                let (column, columns) = (group * each + done, (each - done).min(vectors * lanes));
                let (weights, lane) = (panels.weights, panels.lanes);
                panels.list.push(Panel { group, vectors, column, columns, weights, lane });
                panels.lanes += vectors * lanes;
                panels.weights += vectors * lanes * kernel[0] * steps * quad;
                done += columns;
            }
        }
        panels
    }

    /// Packs `weights[output][line][column of the window][channel]`; lines and panels are filled
    /// up with 0, and `spare` more follow them all.
    ///
    /// # Panics
    /// When the number of weights isn't that of `shape`.
    pub fn pack<W: Copy + Default>(&self, shape: &Shape, weights: &[W], spare: usize) -> Vec<W> {
        let (depth, run) = (shape.depth(), shape.run());
        assert_eq!(weights.len(), shape.outputs * depth, "weights of {shape:?}");
        let mut packed = vec![W::default(); self.weights + spare];
        let mut to = packed.chunks_exact_mut(self.quad);
        for panel in &self.list {
            let lanes = self.width(panel);
            for line in 0..shape.kernel[0] {
                for step in 0..self.steps {
                    let first = step * self.quad;
                    let here = (run - first).min(self.quad);
                    for (lane, to) in to.by_ref().take(lanes).enumerate() {
                        if lane < panel.columns {
                            let from = (panel.column + lane) * depth + line * run + first;
                            to[..here].copy_from_slice(&weights[from..][..here]);
                        }
                    }
                }
            }
        }
        packed
    }

    /// Packs a matrix for a product of rows, in `threads` parts: one row a term and one column an output, or the other
    /// way round if it is `transposed`.
    ///
    /// # Panics
    /// When the matrix isn't of the sizes for which the panels were made, or `packed` is too short.
    pub fn pack_matrix(&self, isa: Isa, matrix: Rows<f32>, transposed: bool, packed: &mut [f32], threads: usize) {
        let columns = self.list.last().map_or(0, |p| p.column + p.columns);
        let shape = if transposed { (columns, self.steps) } else { (self.steps, columns) };
        assert_eq!((matrix.rows(), matrix.width()), shape, "a matrix");
        self.pack_panels(isa, matrix, transposed, &self.list, &mut packed[..self.weights], threads);
    }

    fn pack_panels(
        &self,
        isa: Isa,
        matrix: Rows<f32>,
        transposed: bool,
        panels: &[Panel],
        packed: &mut [f32],
        threads: usize,
    ) {
        let left = threads / 2;
        if left > 0 && panels.len() > 1 {
            let (a, b) = panels.split_at((panels.len() * left / threads).max(1));
            let (packed_a, packed_b) = packed.split_at_mut(b[0].weights - a[0].weights);
            join(
                || self.pack_panels(isa, matrix, transposed, a, packed_a, left),
                || self.pack_panels(isa, matrix, transposed, b, packed_b, threads - left),
            );
            return;
        }
        for panel in panels {
            let at = panel.weights - panels[0].weights;
            let mut to = RowsMut::dense(&mut packed[at..], self.steps, self.width(panel));
            // Lanes beyond the columns are filled too: what lies there may be denormal numbers,
            // on which some machines are slow.
            if panel.columns < self.width(panel) {
                for k in 0..self.steps {
                    to.row(k)[panel.columns..].fill(0.0);
                }
            }
            let mut to = to.columns(0, panel.columns);
            if transposed {
                transpose(isa, matrix.part(panel.column, panel.columns), to);
            } else {
                let from = matrix.columns(panel.column, panel.columns);
                for k in 0..self.steps {
                    to.row(k).copy_from_slice(from.row(k));
                }
            }
        }
    }

    /// Lanes of a panel.
    pub fn width(&self, panel: &Panel) -> usize {
        self.lanes_of_vector * panel.vectors
    }

    /// A value for each output, as one for each lane.
    pub fn lanes_of<T: Copy + Default>(&self, outputs: &[T]) -> Vec<T> {
        let mut lanes = vec![T::default(); self.lanes];
        for panel in &self.list {
            lanes[panel.lane..][..panel.columns].copy_from_slice(&outputs[panel.column..][..panel.columns]);
        }
        lanes
    }
}

/// Divides `n` vectors between as few panels of up to `most` as can be: evenly, for products by
/// narrow panels are slower; or all but the last of `most`, where it matters more that four
/// vectors make one of bytes.
fn vectors(n: usize, most: usize, evenly: bool) -> impl Iterator<Item = usize> {
    let panels = n.div_ceil(most);
    (0..panels).map(move |i| if evenly { n / panels + usize::from(i < n % panels) } else { most.min(n - i * most) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_even_or_full() {
        let widths = |n, evenly| vectors(n, 4, evenly).collect::<Vec<_>>();
        for (n, even, full) in [
            (0, &[][..], &[][..]),
            (4, &[4], &[4]),
            (5, &[3, 2], &[4, 1]),
            (9, &[3, 3, 3], &[4, 4, 1]),
            (14, &[4, 4, 3, 3], &[4, 4, 4, 2]),
        ] {
            assert_eq!((widths(n, true), widths(n, false)), (even.to_vec(), full.to_vec()), "{n}");
        }
    }

    #[test]
    fn lines_are_filled_up_to_whole_steps() {
        let shape = Shape { outputs: 3, kernel: [2, 3], channels: 1, groups: 1 };
        let weights: Vec<i8> = (1..=18).collect();
        let panels = Panels::new(&shape, 2, 1, 4);
        #[rustfmt::skip]
        assert_eq!(panels.pack(&shape, &weights, 0), [
            1, 2, 3, 0,  7, 8, 9, 0,  4, 5, 6, 0,  10, 11, 12, 0,
            13, 14, 15, 0,  0, 0, 0, 0,  16, 17, 18, 0,  0, 0, 0, 0,
        ]);
        assert_eq!(panels.lanes_of(&[7, 8, 9]), [7, 8, 9, 0]);
    }
}
