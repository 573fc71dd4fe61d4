//! Products of two matrices of which neither is constant.

use super::{Conv, Panel, Shape, Shared, aligned, bytes};
use crate::{Isa, Rows, RowsMut, Window, team::join, tile::TileF};
use std::ops::Range;

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
        let (for_b, scratch) = scratch.split_at_mut(bytes::<f32>(self.conv.panels.weights));
        let weights = aligned(for_b);
        self.pack(b, weights);
        self.multiply(a, weights, y, scratch, threads);
    }

    /// Bytes of scratch memory that [`Self::multiply`] needs for so many rows, on one thread.
    pub(crate) fn scratch_packed(&self, rows: usize) -> usize {
        self.conv.scratch::<f32>(&Window::pixel(rows), 1)
    }

    /// The panels of a packed matrix: where each begins, its first column and its vectors.
    pub(crate) fn panels(&self) -> &[Panel] {
        &self.conv.panels.list
    }

    /// Floats of a packed matrix.
    pub(crate) fn packed(&self) -> usize {
        self.conv.panels.weights
    }

    /// Packs a second matrix.
    ///
    /// # Panics
    /// When `b` isn't one, or `to` is too small.
    pub(crate) fn pack(&self, b: Rows<f32>, to: &mut [f32]) {
        self.conv.panels.pack_matrix(self.isa, b, self.transposed, &mut to[..self.packed()], 1);
    }

    /// Bytes of scratch memory that [`Self::run_each`] needs for `n` products of so many rows.
    pub fn scratch_each(&self, n: usize, rows: usize, threads: usize) -> usize {
        if self.divides_each(n, threads) { self.scratch(rows, threads) } else { threads.max(1) * self.scratch(rows, 1) }
    }

    /// Whether each of `n` products is divided: parts of whole products would leave threads without any. There may be twice as many parts
    /// as threads.
    fn divides_each(&self, n: usize, parts: usize) -> bool {
        parts > 1 && 2 * n <= parts
    }

    /// Computes `n` products, whose operands `of` gives, into `y`, one below the other. Threads
    /// take whole products if there are enough.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub fn run_each<'a>(
        &self,
        n: usize,
        of: impl Fn(usize) -> [Rows<'a, f32>; 2] + Sync,
        mut y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        let rows = y.rows().checked_div(n).unwrap_or(0);
        assert_eq!(y.rows(), n * rows, "{n} products");
        if self.divides_each(n, threads) {
            for i in 0..n {
                let (own, rest) = y.split_at(rows);
                let [a, b] = of(i);
                self.run(a, b, own, scratch, threads);
                y = rest;
            }
        } else {
            let scratch = &mut scratch[..self.scratch_each(n, rows, threads)];
            self.divide(0..n, rows, &of, y, scratch, threads.max(1));
        }
    }

    fn divide<'a>(
        &self,
        part: Range<usize>,
        rows: usize,
        of: &(impl Fn(usize) -> [Rows<'a, f32>; 2] + Sync),
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        let left = threads / 2;
        if left == 0 {
            return self.one_by_one(part, rows, of, y, scratch);
        }
        let n = part.len() * left / threads;
        let (y_a, y_b) = y.split_at(n * rows);
        let (a, b) = (part.start..part.start + n, part.start + n..part.end);
        let (scratch_a, scratch_b) = scratch.split_at_mut(scratch.len() / threads * left);
        join(
            || self.divide(a, rows, of, y_a, scratch_a, left),
            || self.divide(b, rows, of, y_b, scratch_b, threads - left),
        );
    }

    fn one_by_one<'a>(
        &self,
        part: Range<usize>,
        rows: usize,
        of: &impl Fn(usize) -> [Rows<'a, f32>; 2],
        mut y: RowsMut<f32>,
        scratch: &mut [u8],
    ) {
        let (for_b, scratch) = scratch.split_at_mut(bytes::<f32>(self.conv.panels.weights));
        let weights = aligned(for_b);
        let mut packed = None;
        for i in part {
            let (own, rest) = y.split_at(rows);
            let [a, b] = of(i);
            // Where matrices are broadcast, the same one comes again.
            if packed != Some(b.data().as_ptr()) {
                self.pack(b, weights);
                packed = Some(b.data().as_ptr());
            }
            self.multiply(a, weights, own, scratch, 1);
            y = rest;
        }
    }

    /// Computes `y = a * b` of a matrix that was packed.
    ///
    /// # Panics
    /// As [`Self::run`].
    pub(crate) fn multiply(&self, a: Rows<f32>, weights: &[f32], y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let weights = &weights[..self.packed()];
        let window = Window::pixel(a.rows());
        let y = Shared::new(y, &window, self.conv.shape.outputs);
        self.conv.run(a, 0.0, &window, scratch, threads, |x, panel, row| {
            let tile = TileF {
                x,
                weights: weights[panel.weights..].as_ptr(),
                bias: self.zeros[panel.lane..].as_ptr(),
                columns: panel.columns,
                add: std::ptr::null(),
                add_stride: 0,
                // SAFETY: `Conv::run` passes a position of the window, and a panel of the outputs. `Shared::new`
                // asserted that the result has them. It is borrowed until `multiply` ends.
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

    /// Multiply-accumulates of a run on so many rows.
    pub fn macs(&self, rows: usize) -> u64 {
        self.conv.macs(&Window::pixel(rows))
    }
}
