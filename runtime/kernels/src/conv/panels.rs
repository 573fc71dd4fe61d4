//! Weights in the order in which tiles read them.

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

/// Weights in panels: for each line of the window, for each step in it, for each column, the
/// `quad` weights that one step has.
#[derive(Debug)]
pub(crate) struct Panels<W> {
    /// The weights; where lines or panels are filled up, 0.
    pub weights: Vec<W>,
    /// The panels, in the order of their columns.
    pub list: Vec<Panel>,
    /// Lanes of all panels.
    pub lanes: usize,
    /// Steps of a line.
    pub steps: usize,
    /// Weights of a step.
    pub quad: usize,
}

impl<W: Copy + Default> Panels<W> {
    /// Packs `weights[output][line][column of the window][channel]` for vectors of `lanes`, of
    /// which a panel has up to `most`.
    ///
    /// # Panics
    /// When the number of weights isn't that of `shape`, or groups don't divide the outputs.
    pub fn new(weights: &[W], shape: &Shape, lanes: usize, most: usize, quad: usize) -> Self {
        let Shape { outputs, kernel, groups, .. } = *shape;
        assert_eq!(weights.len(), outputs * shape.depth(), "weights of {shape:?}");
        assert!(shape.depth() > 0, "a product of {shape:?} has no terms");
        assert!(groups > 0 && outputs.is_multiple_of(groups), "{groups} groups of {outputs} outputs");
        let run = shape.run();
        let steps = run.div_ceil(quad);
        let each = outputs / groups;
        let mut packed = Self { weights: Vec::new(), list: Vec::new(), lanes: 0, steps, quad };
        for group in 0..groups {
            let mut done = 0;
            for vectors in vectors(each.div_ceil(lanes), most) {
                let (column, columns) = (group * each + done, (each - done).min(vectors * lanes));
                let panel =
                    Panel { group, vectors, column, columns, weights: packed.weights.len(), lane: packed.lanes };
                packed.list.push(panel);
                packed.lanes += vectors * lanes;
                done += columns;
                for line in 0..kernel[0] {
                    for step in 0..steps {
                        for lane in 0..vectors * lanes {
                            for k in step * quad..(step + 1) * quad {
                                let real = lane < columns && k < run;
                                let weight = || weights[(column + lane) * shape.depth() + line * run + k];
                                packed.weights.push(if real { weight() } else { W::default() });
                            }
                        }
                    }
                }
            }
        }
        packed
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

/// Divides `n` vectors between as few panels of up to `most` as can be, as evenly as can be:
/// narrow panels are slower.
fn vectors(n: usize, most: usize) -> impl Iterator<Item = usize> {
    let panels = n.div_ceil(most).max(1);
    (0..panels).map(move |i| n / panels + usize::from(i < n % panels)).filter(|&n| n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_even() {
        let widths = |n| vectors(n, 4).collect::<Vec<_>>();
        assert_eq!(widths(0), []);
        assert_eq!(widths(4), [4]);
        assert_eq!(widths(5), [3, 2]);
        assert_eq!(widths(9), [3, 3, 3]);
        assert_eq!(widths(63).iter().sum::<usize>(), 63);
    }

    #[test]
    fn lines_are_filled_up_to_whole_steps() {
        let shape = Shape { outputs: 3, kernel: [2, 3], channels: 1, groups: 1 };
        let weights: Vec<i8> = (1..=18).collect();
        let packed = Panels::new(&weights, &shape, 2, 1, 4);
        #[rustfmt::skip]
        assert_eq!(packed.weights, [
            1, 2, 3, 0,  7, 8, 9, 0,  4, 5, 6, 0,  10, 11, 12, 0,
            13, 14, 15, 0,  0, 0, 0, 0,  16, 17, 18, 0,  0, 0, 0, 0,
        ]);
        assert_eq!(packed.lanes_of(&[7, 8, 9]), [7, 8, 9, 0]);
    }
}
