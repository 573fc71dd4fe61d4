//! Products by constant weights of which most are zero.
//!
//! Zeros lie anywhere, so vectors go along positions instead of outputs: pixels are transposed, a
//! tile of positions at a time, and each weight that is not zero is multiplied by the vectors of
//! its channel. A zero costs nothing then, and another weight about twice of what it costs in a
//! dense product.

use super::{aligned, bytes};
use crate::{
    Isa, Rows, RowsMut, UnaryOp, Window,
    elementwise::apply_rows,
    layout::tile::transpose,
    math::{clamp, multiply_add},
    multiversion::multiversion,
    parallel::in_parts,
};
use std::sync::{Mutex, PoisonError};

/// Positions of a tile. Each size is compiled apart, so that sums stay in registers.
const SIZES: [usize; 5] = [1, 8, 16, 32, 64];

/// Positions of the largest tile of a product of very many channels.
const LEAST: usize = 16;

/// Bytes of a tile's pixels: what a second-level cache holds beside the weights.
const TILE_BYTES: usize = 256 << 10;

/// Outputs whose results are transposed together.
const OUTPUTS: usize = 16;

/// Sums of one output that are computed side by side, for an addition waits for the one before.
const SUMS: usize = 4;

/// A weight that is not zero.
#[derive(Debug, Clone, Copy)]
struct Entry {
    channel: u32,
    weight: f32,
}

/// A product of pixels by weights of which most are zero: a convolution by a window of one pixel
/// without groups, or of a matrix by a constant one.
///
/// Zeros are left out. Where `x` is NaN or infinite, that makes no NaN of them, as a dense product
/// does.
#[derive(Debug)]
pub struct SparseF {
    isa: Isa,
    channels: usize,
    /// The weights of each output in turn, in the order of their channels.
    entries: Vec<Entry>,
    /// Where those of each output begin, and where the last one's end.
    starts: Vec<usize>,
    bias: Vec<f32>,
    min: f32,
    max: f32,
    then: Option<UnaryOp>,
}

impl SparseF {
    /// A product by `weights[output][channel]`, with a bias for each output.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, or extents don't fit each other.
    pub fn new(isa: Isa, weights: &[f32], channels: usize, bias: Vec<f32>, min: f32, max: f32) -> Self {
        assert!(isa.is_available(), "this machine has no {isa}");
        assert!(channels > 0 && u32::try_from(channels).is_ok(), "a product of {channels} terms");
        assert_eq!(Some(weights.len()), bias.len().checked_mul(channels), "weights for each output");
        let (mut entries, mut starts) = (vec![], vec![0]);
        for of_output in weights.chunks_exact(channels) {
            let all = of_output.iter().zip(0..).map(|(&weight, channel)| Entry { channel, weight });
            entries.extend(all.filter(|e| e.weight != 0.0));
            starts.push(entries.len());
        }
        Self { isa, channels, entries, starts, bias, min, max, then: None }
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// Whether a product over so many positions is faster here than by [`ConvF`](super::ConvF),
    /// when `nonzero` of its weights are not zero.
    ///
    /// The limits are those of `cargo bench -p compress-kernels --bench sparse` with AVX-512, with
    /// some margin. Over many positions a weight costs about twice as much as in a dense product,
    /// and to transpose as much as a few weights for each channel and each output. Over few, lanes
    /// are idle; and a single one needs no transposition.
    pub fn pays(channels: usize, outputs: usize, nonzero: usize, positions: usize) -> bool {
        let [channels, outputs, nonzero, positions] = [channels, outputs, nonzero, positions].map(|n| n as f64);
        let limit = match positions {
            1.0 => 0.115 - 10.0 / channels,
            _ => (0.03 * positions).min(0.3) - 4.0 * (1.0 / channels + 1.0 / outputs),
        };
        nonzero < limit * channels * outputs
    }

    /// Whether this product is faster than a dense one over so many positions; see
    /// [`SparseF::pays`].
    pub fn pays_at(&self, positions: usize) -> bool {
        Self::pays(self.channels, self.bias.len(), self.entries.len(), positions)
    }

    /// Bytes of scratch memory that a run needs.
    pub fn scratch(&self, window: &Window, threads: usize) -> usize {
        threads.max(1) * self.part_scratch(window)
    }

    fn part_scratch(&self, window: &Window) -> usize {
        match self.tile(window.positions()) {
            1 => 1,
            size => bytes::<f32>(size * self.channels),
        }
    }

    /// Positions of the next tile when there are so many left: the last ones may fill it in part.
    fn tile(&self, left: usize) -> usize {
        let fits = |size: usize| size <= LEAST || size * self.channels * size_of::<f32>() <= TILE_BYTES;
        let mut sizes = SIZES.into_iter().filter(|size| fits(*size));
        sizes.clone().find(|size| *size >= left).or(sizes.next_back()).unwrap_or(LEAST)
    }

    /// Computes `y = clamp(x * weights + bias + add, min, max)`, in `threads` parts: rows of all
    /// outputs from rows of all channels. A sum has the same order however the work is divided.
    /// NaN stays NaN.
    ///
    /// # Panics
    /// When `window` isn't [`Window::is_pixel`], operands don't fit, or `scratch` is too small.
    pub fn run(
        &self,
        x: Rows<f32>,
        window: &Window,
        add: Option<Rows<f32>>,
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        assert!(window.is_pixel(), "a sparse product over {window:?}");
        assert_eq!((x.rows(), x.width()), (window.pixels(), self.channels), "input");
        assert_eq!((y.rows(), y.width()), (window.positions(), self.bias.len()), "output");
        if let Some(add) = &add {
            assert_eq!((add.rows(), add.width()), (y.rows(), y.width()), "what is added");
        }
        let pieces = Mutex::new(scratch.chunks_exact_mut(self.part_scratch(window)));
        in_parts(y, SIZES[1], threads, &|part, mut y: RowsMut<f32>| {
            let piece = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let pixels = aligned::<f32>(piece.expect("scratch memory for each part"));
            let (x, add) = (x.part(part.row, part.rows), add.map(|add| part.of(add)));
            let mut first = 0;
            while first < part.rows {
                let size = self.tile(part.rows - first);
                let n = size.min(part.rows - first);
                let (mut now, rest) = y.split_at(n);
                y = rest;
                let pixels = match size {
                    1 => x.row(first),
                    _ => {
                        let mut columns = RowsMut::dense(pixels, self.channels, size);
                        // What lies there may be denormal numbers, on which some machines are slow.
                        (0..self.channels).for_each(|c| columns.row(c)[n..].fill(0.0));
                        transpose(self.isa, x.part(first, n), columns.columns(0, n));
                        &*pixels
                    }
                };
                tile(self.isa, self, size, pixels, part.column, add.map(|add| add.part(first, n)), now.reborrow());
                if let Some(f) = self.then {
                    apply_rows(self.isa, f, now);
                }
                first += n;
            }
        });
    }

    /// Multiply-accumulates of a run, without those by zero.
    pub fn macs(&self, window: &Window) -> u64 {
        (window.positions() * self.entries.len()) as u64
    }
}

multiversion! {
    /// The outputs from `first` on of a tile, whose `pixels` have `size` positions for each channel.
    fn tile(
        isa: Isa,
        op: &SparseF,
        size: usize,
        pixels: &[f32],
        first: usize,
        add: Option<Rows<f32>>,
        y: RowsMut<f32>,
    ) {
        match size {
            1 => outputs::<1>(isa, op, pixels, first, add, y),
            8 => outputs::<8>(isa, op, pixels, first, add, y),
            16 => outputs::<16>(isa, op, pixels, first, add, y),
            32 => outputs::<32>(isa, op, pixels, first, add, y),
            64 => outputs::<64>(isa, op, pixels, first, add, y),
            _ => unreachable!("a tile of {size} positions"),
        }
    }
}

#[inline(always)]
fn outputs<const SIZE: usize>(
    isa: Isa,
    op: &SparseF,
    pixels: &[f32],
    first: usize,
    add: Option<Rows<f32>>,
    mut y: RowsMut<f32>,
) {
    let pixels = &pixels.as_chunks::<SIZE>().0[..op.channels];
    let (min, max) = if add.is_none() { (op.min, op.max) } else { (f32::NEG_INFINITY, f32::INFINITY) };
    let mut results = [[0f32; SIZE]; OUTPUTS];
    for column in (0..y.width()).step_by(OUTPUTS) {
        let n = OUTPUTS.min(y.width() - column);
        for (i, to) in results[..n].iter_mut().enumerate() {
            let output = first + column + i;
            let entries = &op.entries[op.starts[output]..op.starts[output + 1]];
            *to = sum(isa, entries, pixels).map(|sum| clamp(sum + op.bias[output], min, max));
        }
        let rows = y.rows();
        let mut y = y.columns(column, n);
        match SIZE {
            1 => y.row(0).copy_from_slice(&results.as_flattened()[..n]),
            _ => transpose(isa, Rows::new(results.as_flattened(), n, rows, SIZE), y.reborrow()),
        }
        if let Some(add) = add.map(|add| add.columns(column, n)) {
            for i in 0..rows {
                y.row(i).iter_mut().zip(add.row(i)).for_each(|(y, add)| *y = clamp(*y + add, op.min, op.max));
            }
        }
    }
}

/// The sums of one output.
#[inline(always)]
fn sum<const SIZE: usize>(isa: Isa, entries: &[Entry], pixels: &[[f32; SIZE]]) -> [f32; SIZE] {
    let mut sums = [[0f32; SIZE]; SUMS];
    let (rounds, rest) = entries.as_chunks::<SUMS>();
    for round in rounds {
        for (sum, entry) in sums.iter_mut().zip(round) {
            add_product(isa, sum, entry, pixels);
        }
    }
    for entry in rest {
        add_product(isa, &mut sums[0], entry, pixels);
    }
    std::array::from_fn(|i| (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]))
}

#[inline(always)]
fn add_product<const SIZE: usize>(isa: Isa, sum: &mut [f32; SIZE], entry: &Entry, pixels: &[[f32; SIZE]]) {
    for (sum, x) in sum.iter_mut().zip(&pixels[entry.channel as usize]) {
        *sum = multiply_add(isa, *x, entry.weight, *sum);
    }
}

#[cfg(test)]
mod tests;
