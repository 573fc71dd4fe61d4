//! Depthwise convolutions by AVX-512 VNNI: 64 channels at a time.
//!
//! `vpdpbusd` sums four products into each 32-bit lane. So the pixels of four taps are interleaved
//! byte by byte, which puts the four bytes of a channel beside each other. That leaves the channels
//! in an order of its own, which packing the sums into bytes undoes:
//! element `j` of vector `q` is channel `(j / 4) * 16 + q * 4 + j % 4`.

use crate::pool::Position;
use crate::{Rows, RowsMut, Window};
use std::arch::x86_64::*;

/// Channels of a block.
const BLOCK: usize = 64;
/// The greatest number of groups of four taps: enough for 7 x 7.
const GROUPS: usize = 13;

/// Weights and constants in the order in which the loop reads them.
#[derive(Debug, Clone)]
pub(super) struct Packed {
    blocks: Vec<Block>,
    groups: usize,
    /// What padding counts as.
    padding: [u8; BLOCK],
    zero: i16,
    min: u8,
    /// The greatest result, less the zero point.
    upper: f32,
}

#[derive(Debug, Clone)]
struct Block {
    /// `[groups][4 vectors][16 channels][4 taps]`.
    weights: Vec<[[i8; BLOCK]; 4]>,
    /// With what the zero point of the input takes off.
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
    /// Packs `weights` (`[channels][taps]`), or says that there are too many taps.
    pub fn new(weights: &[i8], taps: usize, input_zero: u8, finish: &Requantize) -> Option<Self> {
        // Rounded up to a number for which there is a loop; the weights of further taps are 0.
        let groups = [1, 3, 7, GROUPS].into_iter().find(|groups| groups * 4 >= taps)?;
        let channels = finish.scale.len();
        let mut blocks = vec![];
        for first in (0..channels).step_by(BLOCK) {
            let mut block = Block { weights: vec![[[0; BLOCK]; 4]; groups], bias: [[0; 16]; 4], scale: [[0.0; 16]; 4] };
            for (q, j) in (0..4).flat_map(|q| (0..16).map(move |j| (q, j))) {
                let channel = first + j / 4 * 16 + q * 4 + j % 4;
                if channel >= channels {
                    continue;
                }
                let filter = &weights[channel * taps..][..taps];
                for (tap, &w) in filter.iter().enumerate() {
                    block.weights[tap / 4][q][j * 4 + tap % 4] = w;
                }
                let sum: i32 = filter.iter().map(|&w| i32::from(w)).sum();
                block.bias[q][j] = finish.bias[channel].wrapping_sub(i32::from(input_zero) * sum);
                block.scale[q][j] = finish.scale[channel];
            }
            blocks.push(block);
        }
        Some(Self {
            blocks,
            groups,
            padding: [input_zero; BLOCK],
            zero: i16::from(finish.zero),
            min: finish.min,
            upper: f32::from(finish.max) - f32::from(finish.zero),
        })
    }

    /// Computes the positions that are the rows of `y`, the first of which is position `first`:
    /// whole rows of the image.
    ///
    /// # Safety
    /// The machine has the features named. `x` has a row for each of the window's pixels, `y` is
    /// within its positions, both are as wide as there are channels, and the window has the taps
    /// that were packed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub unsafe fn run(&self, x: Rows<u8>, window: &Window, first: usize, mut y: RowsMut<u8>) {
        // SAFETY: the caller guarantees the features and the operands. Each arm is that of the groups that were packed.
        unsafe {
            match self.groups {
                1 => self.rows::<1>(x, window, first, &mut y),
                3 => self.rows::<3>(x, window, first, &mut y),
                7 => self.rows::<7>(x, window, first, &mut y),
                _ => self.rows::<GROUPS>(x, window, first, &mut y),
            }
        }
    }

    /// # Safety
    /// As [`Self::run`], and there are `G` groups of taps.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn rows<const G: usize>(&self, x: Rows<u8>, window: &Window, first: usize, y: &mut RowsMut<u8>) {
        let width = window.output[1];
        for row in (0..y.rows()).step_by(width) {
            let n = width.min(y.rows() - row);
            for (at, block) in self.blocks.iter().enumerate() {
                let channels = (x.width() - at * BLOCK).min(BLOCK);
                // SAFETY: the caller guarantees the features and the operands. The block is of channels of `x`, and
                // rows `row..row + n` are in `y`.
                unsafe {
                    if channels == BLOCK {
                        self.row::<G, true>(block, x, window, first + row, y, row..row + n, at * BLOCK, channels);
                    } else {
                        self.row::<G, false>(block, x, window, first + row, y, row..row + n, at * BLOCK, channels);
                    }
                }
            }
        }
    }

    /// Computes `channels` channels from `channel` on for rows `rows` of `y`, which belong to one
    /// row of positions and begin with position `first`. Only if `FULL` may there be 64 channels.
    ///
    /// # Safety
    /// As [`Self::rows`]; `x` and `y` have these channels, and `y` these rows. There are 64 channels
    /// if `FULL`, and otherwise fewer.
    #[allow(clippy::too_many_arguments)]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    unsafe fn row<const G: usize, const FULL: bool>(
        &self,
        block: &Block,
        x: Rows<u8>,
        window: &Window,
        first: usize,
        y: &mut RowsMut<u8>,
        rows: std::ops::Range<usize>,
        channel: usize,
        channels: usize,
    ) {
        let mask = if FULL { u64::MAX } else { (1 << channels) - 1 };
        // SAFETY: vectors of constants are as long as what is loaded. A pixel's address is that of
        // one of `x`'s rows, `channel` further, or of `padding`; of either only the bytes in `mask`
        // are read. What is written are the bytes in `mask` of one of `y`'s rows, `channel` further.
        unsafe {
            let weights: [[__m512i; 4]; G] = std::array::from_fn(|g| {
                std::array::from_fn(|q| _mm512_loadu_si512(block.weights[g][q].as_ptr().cast()))
            });
            let bias: [__m512i; 4] = std::array::from_fn(|q| _mm512_loadu_si512(block.bias[q].as_ptr().cast()));
            let scale: [__m512; 4] = std::array::from_fn(|q| _mm512_loadu_ps(block.scale[q].as_ptr()));
            let zero = _mm512_set1_epi16(self.zero);
            let (min, upper) = (_mm512_set1_epi8(self.min as i8), _mm512_set1_ps(self.upper));
            let (origin, step) = (x.data().as_ptr().wrapping_add(channel), x.stride());
            let mut offsets = [[0; 4]; G];
            for (tap, to) in offsets.as_flattened_mut()[..window.taps()].iter_mut().enumerate() {
                let (i, j) = (tap / window.kernel[1], tap % window.kernel[1]);
                *to = (i * window.dilation[0] * window.input[1] + j * window.dilation[1]) * step;
            }
            let y_stride = y.stride();
            let mut to = y.data().as_mut_ptr().add(rows.start * y_stride + channel);
            let load = |from: *const u8| match FULL {
                true => _mm512_loadu_si512(from.cast()),
                false => _mm512_maskz_loadu_epi8(mask, from.cast()),
            };
            let multiply = |sums: &mut [__m512i; 4], g: usize, [a, b, c, d]: [*const u8; 4]| {
                let (a, b, c, d) = (load(a), load(b), load(c), load(d));
                let (ab_low, ab_high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
                let (cd_low, cd_high) = (_mm512_unpacklo_epi8(c, d), _mm512_unpackhi_epi8(c, d));
                let interleaved = [
                    _mm512_unpacklo_epi16(ab_low, cd_low),
                    _mm512_unpackhi_epi16(ab_low, cd_low),
                    _mm512_unpacklo_epi16(ab_high, cd_high),
                    _mm512_unpackhi_epi16(ab_high, cd_high),
                ];
                for q in 0..4 {
                    sums[q] = _mm512_dpbusd_epi32(sums[q], interleaved[q], weights[g][q]);
                }
            };
            let mut position = Position::of(window, first);
            let whole = position.interior[0].contains(&position.at[0]);
            let interior = if whole { position.interior[1].clone() } else { 0..0 };
            for column in 0..rows.len() {
                let mut sums = bias;
                position.at[1] = column;
                if interior.contains(&column) {
                    let base = origin.add(position.pixel([0, 0]) * step);
                    for (g, offsets) in offsets.iter().enumerate() {
                        // Taps that only fill up a group have the weight 0, and offset 0.
                        multiply(&mut sums, g, offsets.map(|offset| base.add(offset)));
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
                    for (g, addresses) in addresses.into_iter().enumerate() {
                        multiply(&mut sums, g, addresses);
                    }
                }
                // What is too small becomes the least integer, and saturates when it is packed; NaN
                // (0 by an infinite scale) is the second of two, and becomes that, too.
                let rounded: [__m512i; 4] = std::array::from_fn(|q| {
                    let scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(sums[q]), scale[q]);
                    _mm512_cvtps_epi32(_mm512_min_ps(upper, scaled))
                });
                let low = _mm512_adds_epi16(_mm512_packs_epi32(rounded[0], rounded[1]), zero);
                let high = _mm512_adds_epi16(_mm512_packs_epi32(rounded[2], rounded[3]), zero);
                let result = _mm512_max_epu8(_mm512_packus_epi16(low, high), min);
                match FULL {
                    true => _mm512_storeu_si512(to.cast(), result),
                    false => _mm512_mask_storeu_epi8(to.cast(), mask, result),
                }
                // Beyond the last row this is not used.
                to = to.wrapping_add(y_stride);
            }
        }
    }
}
