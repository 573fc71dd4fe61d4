//! Convolutions of floats.

use super::{Conv, Shape, Shared};
use crate::{Isa, Rows, RowsMut, UnaryOp, Window, tile::TileF};

/// A convolution of floats.
#[derive(Debug)]
pub struct ConvF {
    pub(super) conv: Conv,
    weights: Vec<f32>,
    bias: Vec<f32>,
    min: f32,
    max: f32,
    then: Option<(Isa, UnaryOp)>,
}

impl ConvF {
    /// A convolution with `weights[output][tap, line by line][channel of its group]`, by a window
    /// of `kernel` taps, vertical and horizontal; outputs are those of the first group, then those
    /// of the second, and so on. Padding is 0.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, or extents don't fit each other.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        isa: Isa,
        weights: &[f32],
        outputs: usize,
        kernel: [usize; 2],
        channels: usize,
        groups: usize,
        bias: Vec<f32>,
        min: f32,
        max: f32,
    ) -> Self {
        assert_eq!(bias.len(), outputs, "a bias for each output");
        let shape = Shape { outputs, kernel, channels, groups };
        let conv = Conv::new(isa, shape, 1);
        let weights = conv.panels.pack(&shape, weights, 0);
        let bias = conv.panels.lanes_of(&bias);
        Self { conv, weights, bias, min, max, then: None }
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, isa: Isa, f: Option<UnaryOp>) -> Self {
        Self { then: f.map(|f| (isa, f)), ..self }
    }

    /// A product of rows by a matrix of one row a term and one column an output, or the other way round if it is
    /// `transposed`; it is packed in `threads` parts.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn of_matrix(
        isa: Isa,
        matrix: Rows<f32>,
        transposed: bool,
        bias: &[f32],
        (min, max): (f32, f32),
        threads: usize,
    ) -> Self {
        let (outputs, channels) =
            if transposed { (matrix.rows(), matrix.width()) } else { (matrix.width(), matrix.rows()) };
        assert_eq!(bias.len(), outputs, "a bias for each output");
        let conv = Conv::new(isa, Shape { outputs, kernel: [1, 1], channels, groups: 1 }, 1);
        let mut weights = vec![0.0; conv.panels.weights];
        conv.panels.pack_matrix(isa, matrix, transposed, &mut weights, threads);
        let bias = conv.panels.lanes_of(bias);
        Self { conv, weights, bias, min, max, then: None }
    }

    /// Bytes of scratch memory that a run needs.
    pub fn scratch(&self, window: &Window, threads: usize) -> usize {
        self.conv.scratch::<f32>(window, threads)
    }

    /// Computes `y = clamp(conv(x) + bias + add, min, max)`: `window.positions()` rows of all
    /// outputs from `window.pixels()` rows of all groups' channels, in `threads` parts. A sum is
    /// computed in the order of the weights, however the work is divided. NaN stays NaN.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(
        &self,
        x: Rows<f32>,
        window: &Window,
        add: Option<Rows<f32>>,
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        if let Some(add) = &add {
            assert_eq!((add.rows(), add.width()), (y.rows(), y.width()), "what is added");
        }
        let y = Shared::new(y, window, self.conv.shape.outputs);
        self.conv.run(x, 0.0, window, scratch, threads, |x, panel, row| {
            let (add, add_stride) = match &add {
                Some(add) => (add.data()[row * add.stride() + panel.column..].as_ptr(), add.stride()),
                None => (std::ptr::null(), 0),
            };
            let tile = TileF {
                x,
                weights: self.weights[panel.weights..].as_ptr(),
                bias: self.bias[panel.lane..].as_ptr(),
                columns: panel.columns,
                // SAFETY: `Conv::run` passes a position of the window, and a panel of the outputs. `Shared::new`
                // asserted that the result has them. It is borrowed until `run` ends.
                y: unsafe { y.at(row, panel.column) },
                stride: y.stride,
                add,
                add_stride,
                min: self.min,
                max: self.max,
            };
            // SAFETY: `Isa::tiles` made sure of the instruction set. The driver has shown that the
            // rows lie within the input or its strip; the panel has its weights and constants, to
            // whole vectors; and the result, like what is added, has these rows and columns.
            unsafe { (self.conv.tiles.tiles_f)(&tile, panel.vectors) }
            if let Some((isa, f)) = self.then {
                // SAFETY: the tile wrote these rows and columns, which are no other part's.
                unsafe { y.apply(isa, f, row..row + tile.x.rows, panel) };
            }
        });
    }

    /// Multiply-accumulates of a run.
    pub fn macs(&self, window: &Window) -> u64 {
        self.conv.macs(window)
    }
}
