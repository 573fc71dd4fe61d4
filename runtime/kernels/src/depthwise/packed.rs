//! Depthwise convolutions of bytes by vectors: four times as many channels at a time as a vector has 32-bit lanes.
//!
//! A product of bytes sums four of them into each lane. So the pixels of four taps are interleaved byte by byte, which puts
//! the four bytes of a channel beside each other. That leaves the channels in an order of its own, which packing the sums into
//! bytes undoes: element `j` of vector `q` is channel `(j / 4) * 16 + q * 4 + j % 4`.

// Iterators over arrays of registers would hide which of them meet, and need closures.
#![allow(clippy::needless_range_loop)]

use super::bytes::Bytes;
#[cfg(target_arch = "aarch64")]
use super::neon;
#[cfg(target_arch = "x86_64")]
use super::x86::{avx2, avx512, evex, vex};
use crate::pool::Position;
use crate::{Isa, Rows, RowsMut, Window};
use std::ops::Range;

/// Channels of the widest block.
const WIDEST: usize = 64;
/// The greatest number of groups of four taps: enough for 7 x 7.
const GROUPS: usize = 13;

/// Weights and constants in the order in which the loop reads them.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    run: Run,
    blocks: Vec<Block>,
    groups: usize,
    /// What padding counts as.
    padding: [u8; WIDEST],
    zero: i16,
    min: u8,
    /// The greatest result, less the zero point.
    upper: f32,
}

/// The loop of an instruction set.
type Run = unsafe fn(&Packed, Rows<u8>, &Window, usize, RowsMut<u8>);

/// Constants of a block of channels, in the order of vectors and lanes; what a smaller block or vector lacks is 0.
#[derive(Debug, Clone)]
struct Block {
    first: usize,
    channels: usize,
    /// `[groups][4 vectors][16 channels][4 taps]`.
    weights: Vec<[[i8; WIDEST]; 4]>,
    /// With what the zero point of the input takes off, and what products do, added.
    bias: [[i32; 16]; 4],
    scale: [[f32; 16]; 4],
}

/// What a channel's sums become; see `Finish8::Requantize`.
pub(super) struct Requantize<'a> {
    pub bias: &'a [i32],
    pub scale: &'a [f32],
    pub zero: u8,
    pub min: u8,
    pub max: u8,
}

impl Packed {
    /// Packs `weights` (`[channels][taps]`), or says that there is no such loop: the set has none, there are too many taps, or
    /// not enough channels.
    pub fn new(isa: Isa, weights: &[i8], taps: usize, input_zero: u8, finish: &Requantize) -> Option<Self> {
        let (run, width, may_mask, offset): (Run, usize, bool, u8) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => (avx2, 32, false, 0),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni if is_x86_feature_detected!("avxvnni") => (vex, 32, false, 0),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => (evex, 32, false, 0),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Amx => (avx512, 64, true, 0),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => (neon::plain, 16, false, neon::OFFSET),
            #[cfg(target_arch = "aarch64")]
            Isa::Dotprod => (neon::dotprod, 16, false, neon::OFFSET),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => (neon::i8mm, 16, false, 0),
            _ => return None,
        };
        // Rounded up to a number for which there is a loop; the weights of further taps are 0.
        let groups = [1, 3, 7, GROUPS].into_iter().find(|groups| groups * 4 >= taps)?;
        let channels = finish.scale.len();
        if channels < width && !may_mask {
            return None;
        }
        let mut blocks = vec![];
        for first in (0..channels).step_by(width) {
            // Where nothing can be masked, the last block computes some channels of the one before once more.
            let first = if may_mask { first } else { first.min(channels - width) };
            let mut block = Block {
                first,
                channels: width.min(channels - first),
                weights: vec![[[0; WIDEST]; 4]; groups],
                bias: [[0; 16]; 4],
                scale: [[0.0; 16]; 4],
            };
            for (q, j) in (0..4).flat_map(|q| (0..width / 4).map(move |j| (q, j))) {
                let channel = first + j / 4 * 16 + q * 4 + j % 4;
                if channel >= channels {
                    continue;
                }
                let filter = &weights[channel * taps..][..taps];
                for (tap, &w) in filter.iter().enumerate() {
                    block.weights[tap / 4][q][j * 4 + tap % 4] = w;
                }
                let sum: i32 = filter.iter().map(|&w| i32::from(w)).sum();
                let less = i32::from(input_zero) - i32::from(offset);
                block.bias[q][j] = finish.bias[channel].wrapping_sub(less * sum);
                block.scale[q][j] = finish.scale[channel];
            }
            blocks.push(block);
        }
        Some(Self {
            run,
            blocks,
            groups,
            padding: [input_zero; WIDEST],
            zero: i16::from(finish.zero),
            min: finish.min,
            upper: f32::from(finish.max) - f32::from(finish.zero),
        })
    }

    /// Computes the positions that are the rows of `y`, the first of which is position `first`:
    /// whole rows of the image.
    ///
    /// # Safety
    /// The machine has the instruction set for which this was packed. `x` has a row for each of the window's pixels, `y` is
    /// within its positions, both are as wide as there are channels, and the window has the taps
    /// that were packed.
    pub unsafe fn run(&self, x: Rows<u8>, window: &Window, first: usize, y: RowsMut<u8>) {
        // SAFETY: the caller guarantees the instruction set and the operands.
        unsafe { (self.run)(self, x, window, first, y) }
    }

    /// # Safety
    /// As [`Self::run`], of vectors that the machine has.
    #[inline(always)]
    pub unsafe fn all<V: Bytes>(&self, x: Rows<u8>, window: &Window, first: usize, y: &mut RowsMut<u8>) {
        // SAFETY: the caller guarantees the vectors and the operands. Each arm is that of the groups that were packed.
        unsafe {
            match self.groups {
                1 => self.rows::<V, 1>(x, window, first, y),
                3 => self.rows::<V, 3>(x, window, first, y),
                7 => self.rows::<V, 7>(x, window, first, y),
                _ => self.rows::<V, GROUPS>(x, window, first, y),
            }
        }
    }

    /// # Safety
    /// As [`Self::all`], and there are `G` groups of taps.
    #[inline(always)]
    unsafe fn rows<V: Bytes, const G: usize>(&self, x: Rows<u8>, window: &Window, first: usize, y: &mut RowsMut<u8>) {
        let width = window.output[1];
        for row in (0..y.rows()).step_by(width) {
            let n = width.min(y.rows() - row);
            for block in &self.blocks {
                // SAFETY: the caller guarantees the vectors and the operands. The block is of channels of `x`, and
                // rows `row..row + n` are in `y`.
                unsafe {
                    if block.channels == V::CHANNELS {
                        self.row::<V, G, true>(block, x, window, first + row, y, row..row + n);
                    } else {
                        self.row::<V, G, false>(block, x, window, first + row, y, row..row + n);
                    }
                }
            }
        }
    }

    /// Computes a block's channels for rows `rows` of `y`, which belong to one row of positions and begin with position
    /// `first`.
    ///
    /// # Safety
    /// As [`Self::rows`]; `x` and `y` have these channels, and `y` these rows. The block is as wide as vectors make it if
    /// `FULL`, and otherwise narrower.
    #[inline(always)]
    unsafe fn row<V: Bytes, const G: usize, const FULL: bool>(
        &self,
        block: &Block,
        x: Rows<u8>,
        window: &Window,
        first: usize,
        y: &mut RowsMut<u8>,
        rows: Range<usize>,
    ) {
        let n = if FULL { V::CHANNELS } else { block.channels };
        // SAFETY: vectors of constants are as long as what is loaded. A pixel's address is that of
        // one of `x`'s rows, from the block's first channel on, or of `padding`; of either only `n` bytes
        // are read. `n` bytes of one of `y`'s rows are written, from the same channel on.
        unsafe {
            let mut weights = [[V::weights(block.weights[0][0].as_ptr()); 4]; G];
            for g in 0..G {
                for q in 0..4 {
                    weights[g][q] = V::weights(block.weights[g][q].as_ptr());
                }
            }
            let (mut bias, mut scale) = ([V::sums(block.bias[0].as_ptr()); 4], [V::scales(block.scale[0].as_ptr()); 4]);
            for q in 1..4 {
                (bias[q], scale[q]) = (V::sums(block.bias[q].as_ptr()), V::scales(block.scale[q].as_ptr()));
            }
            let (origin, step) = (x.data().as_ptr().wrapping_add(block.first), x.stride());
            let mut offsets = [[0; 4]; G];
            for (tap, to) in offsets.as_flattened_mut()[..window.taps()].iter_mut().enumerate() {
                let (i, j) = (tap / window.kernel[1], tap % window.kernel[1]);
                *to = (i * window.dilation[0] * window.input[1] + j * window.dilation[1]) * step;
            }
            let y_stride = y.stride();
            let mut to = y.data().as_mut_ptr().add(rows.start * y_stride + block.first);
            let mut position = Position::of(window, first);
            let whole = position.interior[0].contains(&position.at[0]);
            let interior = if whole { position.interior[1].clone() } else { 0..0 };
            for column in 0..rows.len() {
                let mut sums = bias;
                position.at[1] = column;
                if interior.contains(&column) {
                    let base = origin.add(position.pixel([0, 0]) * step);
                    for g in 0..G {
                        // Taps that only fill up a group have the weight 0, and offset 0.
                        let [a, b, c, d] = offsets[g];
                        let taps = [base.add(a), base.add(b), base.add(c), base.add(d)];
                        sums = multiply::<V, FULL>(sums, taps, n, &weights[g]);
                    }
                } else {
                    let covered = position.covered();
                    let mut addresses = [[self.padding.as_ptr(); 4]; G];
                    for i in 0..covered.count[0] {
                        for j in 0..covered.count[1] {
                            let tap = (covered.tap[0] + i) * window.kernel[1] + covered.tap[1] + j;
                            let pixel = covered.first + i * covered.step[0] + j * covered.step[1];
                            addresses.as_flattened_mut()[tap] = origin.add(pixel * step);
                        }
                    }
                    for g in 0..G {
                        sums = multiply::<V, FULL>(sums, addresses[g], n, &weights[g]);
                    }
                }
                let bytes = V::narrow(sums, scale, self.upper, self.zero, self.min);
                if FULL {
                    V::store(to, bytes)
                } else {
                    V::store_first(to, bytes, n)
                }
                // Beyond the last row this is not used.
                to = to.wrapping_add(y_stride);
            }
        }
    }
}

/// Adds the products of `n` bytes of four taps, of a whole vector if `FULL`.
///
/// # Safety
/// The machine has the vectors, and the taps so many bytes.
#[inline(always)]
unsafe fn multiply<V: Bytes, const FULL: bool>(
    mut sums: [V::I; 4],
    [a, b, c, d]: [*const u8; 4],
    n: usize,
    weights: &[V::W; 4],
) -> [V::I; 4] {
    // SAFETY: the caller guarantees the vectors and the bytes.
    unsafe {
        let taps = if FULL {
            [V::load(a), V::load(b), V::load(c), V::load(d)]
        } else {
            [V::load_first(a, n), V::load_first(b, n), V::load_first(c, n), V::load_first(d, n)]
        };
        let pixels = V::interleave(taps);
        for q in 0..4 {
            sums[q] = V::dot(sums[q], pixels[q], weights[q]);
        }
        sums
    }
}
