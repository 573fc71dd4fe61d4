//! Convolutions of 8-bit integers.

use super::{Conv, Number, Shape, Shared, panels::Panel};
use crate::{
    Finish8, Isa, Rows, RowsMut, UnaryOp, Window,
    tile::{OVERREAD, Operand, Out8, Requantize, RunBytes, Scale, Tile8, Tiles8},
};
use std::ops::Range;

/// By this or anything greater, every sum but 0 becomes the least or the greatest result.
const ANY: f32 = 512.0;

/// A convolution of unsigned 8-bit activations with signed 8-bit weights, whose sums have 32 bits.
#[derive(Debug)]
pub struct Conv8 {
    pub(super) conv: Conv,
    weights: Weights,
    input_zero: u8,
    finish: Finish,
    then: Option<(Isa, UnaryOp)>,
    /// The sum of each column's weights, so many times of which a zero point adds.
    weight_sums: Vec<i32>,
    /// Where sums begin: what the input's zero point adds to them is taken off here, and what is taken off inputs is added.
    start: Vec<i32>,
    scale: Vec<f32>,
}

/// Packed weights, and the tiles that read them.
#[derive(Debug)]
enum Weights {
    Bytes(Vec<i8>, RunBytes),
    Words(Vec<i16>, unsafe fn(&Tile8<i16, i16>, usize)),
}

impl Weights {
    fn pack(conv: &Conv, weights: &[i8]) -> Self {
        match conv.tiles.tiles8 {
            Tiles8::Bytes(tiles) => {
                let narrow = conv.tiles.narrow.filter(|_| !weights.contains(&i8::MIN));
                Self::Bytes(conv.panels.pack(&conv.shape, weights, OVERREAD), narrow.unwrap_or(tiles))
            }
            Tiles8::Words(tiles) => {
                let weights: Vec<i16> = weights.iter().map(|&w| w.into()).collect();
                Self::Words(conv.panels.pack(&conv.shape, &weights, 0), tiles)
            }
        }
    }
}

/// What isn't in the constants of each column.
#[derive(Debug)]
enum Finish {
    Requantize { zero: u8, min: u8, max: u8 },
    Scale { bias: Vec<f32>, min: f32, max: f32 },
}

impl Conv8 {
    /// A convolution with `weights[output][tap, line by line][channel of its group]`, by a window
    /// of `kernel` taps, vertical and horizontal; outputs are those of the first group, then those
    /// of the second, and so on. Sums are of `(x - input_zero) * w`; padding has the value `input_zero`.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, extents don't fit each other, or sums don't fit 32
    /// bits (see [`Conv8::fits`]).
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        isa: Isa,
        weights: &[i8],
        outputs: usize,
        kernel: [usize; 2],
        channels: usize,
        groups: usize,
        input_zero: u8,
        finish: Finish8,
    ) -> Self {
        let shape = Shape { outputs, kernel, channels, groups };
        assert!(Self::fits(shape.depth()), "sums of {} products don't fit 32 bits", shape.depth());
        assert_eq!(finish.channels(), outputs, "a bias and a scale for each output");
        let of = |output: usize| &weights[output * shape.depth()..][..shape.depth()];
        let weight_sums: Vec<i32> = (0..outputs).map(|output| of(output).iter().map(|&w| i32::from(w)).sum()).collect();
        let start = |output: usize, bias: i32| bias.wrapping_sub(weight_sums[output] * i32::from(input_zero));
        let (conv, start, scale, finish) = match finish {
            Finish8::Requantize { bias, mut scale, zero, min, max } => {
                assert!(min <= max, "results from {min} to {max}");
                let start = (0..outputs).map(|output| start(output, bias[output])).collect::<Vec<_>>();
                // An infinite one stays: 0 by that is NaN, and then the least result, as in ONNX Runtime.
                scale.iter_mut().filter(|s| s.is_finite()).for_each(|s| *s = s.clamp(-ANY, ANY));
                let fits = |output: usize| {
                    let products = of(output).iter().map(|&w| u64::from(w.unsigned_abs()) * 255).sum::<u64>();
                    let sum = (products + u64::from(start[output].unsigned_abs())).min(1 << 31);
                    sum as f64 * f64::from(scale[output].abs()) < f64::from(i32::MAX / 2)
                };
                // Only plain Rust bounds what is scaled before it becomes an integer.
                let isa = if isa == Isa::Saturating || (0..outputs).all(fits) { isa } else { Isa::Portable };
                (Conv::of_integers(isa, shape), start, scale, Finish::Requantize { zero, min, max })
            }
            Finish8::Scale { bias, scale, min, max } => {
                let conv = Conv::of_integers(isa, shape);
                let start = (0..outputs).map(|output| start(output, 0)).collect();
                let finish = Finish::Scale { bias: conv.panels.lanes_of(&bias), min, max };
                (conv, start, scale, finish)
            }
        };
        let weights = Weights::pack(&conv, weights);
        let offset = i32::from(conv.tiles.offset);
        let start: Vec<i32> =
            start.iter().zip(&weight_sums).map(|(start, sum)| start.wrapping_add(sum * offset)).collect();
        let (start, scale) = (conv.panels.lanes_of(&start), conv.panels.lanes_of(&scale));
        let weight_sums = conv.panels.lanes_of(&weight_sums);
        Self { conv, weights, input_zero, finish, then: None, weight_sums, start, scale }
    }

    /// The same, but each result that is a float is `f` of what it would be.
    pub fn then(self, isa: Isa, f: Option<UnaryOp>) -> Self {
        Self { then: f.map(|f| (isa, f)), ..self }
    }

    /// Whether sums of so many products fit 32 bits, whatever the factors are.
    pub fn fits(depth: usize) -> bool {
        depth <= i32::MAX as usize / (255 * 128)
    }

    /// Bytes of scratch memory that a run needs.
    pub fn scratch(&self, window: &Window, threads: usize) -> usize {
        match self.weights {
            Weights::Bytes(..) => self.conv.scratch::<u8>(window, threads),
            Weights::Words(..) => self.conv.scratch::<i16>(window, threads),
        }
    }

    /// Computes 8-bit results: `window.positions()` rows of all outputs from `window.pixels()`
    /// rows of all groups' channels, in `threads` parts.
    ///
    /// # Panics
    /// When operands don't fit, `scratch` is too small, or the results are floats.
    pub fn run_u8(&self, x: Rows<u8>, window: &Window, y: RowsMut<u8>, scratch: &mut [u8], threads: usize) {
        let Finish::Requantize { zero, min, max } = self.finish else { panic!("its results are floats") };
        let y = Shared::new(y, window, self.conv.shape.outputs);
        self.run(
            (x, self.input_zero),
            (&self.start, &self.scale),
            window,
            scratch,
            threads,
            |_, _| {},
            |row, column, _| {
                // SAFETY: `run` passes a position of the window, and the first column of a panel. `Shared::new` asserted
                // that the result has them. It is borrowed until this function ends.
                let to = unsafe { y.at(row, column) };
                Out8::Integer(Requantize { y: to, stride: y.stride, zero, min, max })
            },
        );
    }

    /// As [`Conv8::run_u8`], for results that are floats.
    ///
    /// # Panics
    /// When operands don't fit, `scratch` is too small, or the results are integers.
    pub fn run_f32(&self, x: Rows<u8>, window: &Window, y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        self.scaled(x, window, y, scratch, threads, self.input_zero, (&self.start, &self.scale));
    }

    /// As [`Conv8::run_f32`], of codes with a `zero` point of their own, and a `scale` that multiplies each output's.
    ///
    /// # Panics
    /// As [`Conv8::run_f32`].
    pub fn run_by(
        &self,
        (x, scale, zero): (Rows<u8>, f32, u8),
        window: &Window,
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        let less = i32::from(self.conv.tiles.offset) - i32::from(zero);
        let starts: Vec<i32> = self.weight_sums.iter().map(|sum| sum * less).collect();
        let scales: Vec<f32> = self.scale.iter().map(|own| scale * own).collect();
        self.scaled(x, window, y, scratch, threads, zero, (&starts, &scales));
    }

    #[allow(clippy::too_many_arguments)]
    fn scaled(
        &self,
        x: Rows<u8>,
        window: &Window,
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
        zero: u8,
        of_columns: (&[i32], &[f32]),
    ) {
        let Finish::Scale { bias, min, max } = &self.finish else { panic!("its results are integers") };
        let y = Shared::new(y, window, self.conv.shape.outputs);
        let then = |rows: Range<usize>, panel: &Panel| {
            if let Some((isa, f)) = self.then {
                // SAFETY: `run` wrote these rows and columns, which are no other part's. `y` is borrowed until this function
                // ends.
                unsafe { y.apply(isa, f, rows, panel) };
            }
        };
        self.run((x, zero), of_columns, window, scratch, threads, then, |row, column, lane| {
            // SAFETY: `run` passes a position of the window, and the first column of a panel. `Shared::new` asserted
            // that the result has them. It is borrowed until this function ends.
            let to = unsafe { y.at(row, column) };
            Out8::Float(Scale { y: to, stride: y.stride, bias: bias[lane..].as_ptr(), min: *min, max: *max })
        });
    }

    #[allow(clippy::too_many_arguments)]
    fn run(
        &self,
        x: (Rows<u8>, u8),
        of_columns: (&[i32], &[f32]),
        window: &Window,
        scratch: &mut [u8],
        threads: usize,
        then: impl Fn(Range<usize>, &Panel) + Sync,
        out: impl Fn(usize, usize, usize) -> Out8 + Sync,
    ) {
        match &self.weights {
            Weights::Bytes(w, tiles) => self.run_as(w, *tiles, x, of_columns, window, scratch, threads, then, out),
            Weights::Words(w, tiles) => self.run_as(w, *tiles, x, of_columns, window, scratch, threads, then, out),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn run_as<X: Number<Input = u8>, W: Sync>(
        &self,
        weights: &[W],
        tiles: unsafe fn(&Tile8<X, W>, usize),
        (x, zero): (Rows<u8>, u8),
        (start, scale): (&[i32], &[f32]),
        window: &Window,
        scratch: &mut [u8],
        threads: usize,
        then: impl Fn(Range<usize>, &Panel) + Sync,
        out: impl Fn(usize, usize, usize) -> Out8 + Sync,
    ) {
        self.conv.run(x, zero, window, scratch, threads, |x: Operand<X>, panel, row| {
            let tile = Tile8 {
                x,
                weights: weights[panel.weights..].as_ptr(),
                bias: start[panel.lane..].as_ptr(),
                scale: scale[panel.lane..].as_ptr(),
                columns: panel.columns,
                out: out(row, panel.column, panel.lane),
            };
            // SAFETY: these are the tiles of `Isa::tiles`, which made sure of the instruction set. The driver has shown that the
            // rows, and whole groups of those that lie together, are within the input or its strip; the panel has its weights and constants, to
            // whole vectors, and `OVERREAD` bytes follow those that tiles of bytes read; and the result has these rows and columns.
            unsafe { tiles(&tile, panel.vectors) }
            then(row..row + tile.x.rows, panel);
        });
    }

    /// Multiply-accumulates of a run.
    pub fn macs(&self, window: &Window) -> u64 {
        self.conv.macs(window)
    }
}
