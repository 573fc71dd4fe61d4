//! Products of two matrices of which neither is constant.

use super::{Conv, Shape, Shared, aligned, bytes};
use crate::{Isa, Rows, RowsMut, Window, layout::tile::transpose, tile::TileF};

/// A product of two matrices of floats, the second of which is packed in every run.
#[derive(Debug)]
pub struct GemmF {
    isa: Isa,
    conv: Conv,
    transposed: bool,
    /// Where sums begin.
    zeros: Vec<f32>,
}

impl GemmF {
    /// A product whose sums have `depth` terms, with `columns` columns. The second matrix has
    /// `depth` rows of `columns`, or, if it is `transposed`, `columns` rows of `depth`.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, or `depth` is 0.
    pub fn new(isa: Isa, depth: usize, columns: usize, transposed: bool) -> Self {
        let conv = Conv::new(isa, Shape { outputs: columns, kernel: [1, 1], channels: depth, groups: 1 }, 1);
        let zeros = vec![0.0; conv.panels.lanes];
        Self { isa, conv, transposed, zeros }
    }

    /// Bytes of scratch memory that a run on so many rows needs.
    pub fn scratch(&self, rows: usize, threads: usize) -> usize {
        bytes::<f32>(self.conv.panels.weights) + self.conv.scratch::<f32>(&Window::pixel(rows), threads)
    }

    /// Computes `y = a * b`, in `threads` parts. A sum is computed in the order of its terms,
    /// however the work is divided.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(&self, a: Rows<f32>, b: Rows<f32>, y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let window = Window::pixel(a.rows());
        let (for_b, scratch) = scratch.split_at_mut(bytes::<f32>(self.conv.panels.weights));
        let weights = &mut aligned::<f32>(for_b)[..self.conv.panels.weights];
        self.pack(b, weights);
        let weights = &*weights;
        let y = Shared::new(y, &window, self.conv.shape.outputs);
        self.conv.run(a, 0.0, &window, scratch, threads, |x, panel, row| {
            let tile = TileF {
                x,
                weights: weights[panel.weights..].as_ptr(),
                bias: self.zeros[panel.lane..].as_ptr(),
                columns: panel.columns,
                add: std::ptr::null(),
                add_stride: 0,
                // SAFETY: a place in the result.
                y: unsafe { y.at(row, panel.column) },
                stride: y.stride,
                min: f32::NEG_INFINITY,
                max: f32::INFINITY,
            };
            // SAFETY: `Isa::tiles` made sure of the instruction set. The driver has shown that the
            // rows lie within `a`; the panel has been packed, to whole vectors, and so has its
            // zeros; and the result has these rows and columns.
            unsafe { (self.conv.tiles.tiles_f)(&tile, panel.vectors) }
        });
    }

    fn pack(&self, b: Rows<f32>, weights: &mut [f32]) {
        let Shape { outputs: columns, channels: depth, .. } = self.conv.shape;
        let shape = if self.transposed { (columns, depth) } else { (depth, columns) };
        assert_eq!((b.rows(), b.width()), shape, "the second matrix");
        for panel in &self.conv.panels.list {
            let width = self.conv.panels.width(panel);
            let mut to = RowsMut::dense(&mut weights[panel.weights..], depth, width);
            // Lanes beyond the columns are filled too: what lies there may be denormal numbers,
            // on which some machines are slow.
            for k in 0..depth {
                to.row(k)[panel.columns..].fill(0.0);
            }
            let mut to = to.columns(0, panel.columns);
            if self.transposed {
                transpose(self.isa, b.part(panel.column, panel.columns), to);
            } else {
                let from = b.columns(panel.column, panel.columns);
                for k in 0..depth {
                    to.row(k).copy_from_slice(from.row(k));
                }
            }
        }
    }

    /// Multiply-accumulates of a run on so many rows.
    pub fn macs(&self, rows: usize) -> u64 {
        self.conv.macs(&Window::pixel(rows))
    }
}
