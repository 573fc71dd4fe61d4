//! Depthwise convolutions of bytes by vectors: four times as many channels at a time as a vector has 32-bit lanes.
//!
//! A product of bytes sums four of them into each lane. So the pixels of four taps are interleaved byte by byte, which puts
//! the four bytes of a channel beside each other. That leaves the channels in an order of its own, which packing the sums into
//! bytes undoes: element `j` of vector `q` is channel `(j / 4) * 16 + q * 4 + j % 4`.

// Iterators over arrays of registers would hide which of them meet, and need closures.
#![allow(clippy::needless_range_loop)]

use crate::pool::Position;
use crate::{Isa, Rows, RowsMut, Window};
use std::{arch::x86_64::*, ops::Range};

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
    /// Packs `weights` (`[channels][taps]`), or says that there is no such loop: the set has none, there are too many taps, or
    /// not enough channels.
    pub fn new(isa: Isa, weights: &[i8], taps: usize, input_zero: u8, finish: &Requantize) -> Option<Self> {
        let (run, width, may_mask): (Run, usize, bool) = match isa {
            Isa::Portable => return None,
            Isa::Avx2 => (avx2, 32, false),
            Isa::AvxVnni if is_x86_feature_detected!("avxvnni") => (vex, 32, false),
            Isa::AvxVnni => (evex, 32, false),
            Isa::Avx512Vnni | Isa::Amx => (avx512, 64, true),
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
                block.bias[q][j] = finish.bias[channel].wrapping_sub(i32::from(input_zero) * sum);
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
    unsafe fn all<V: Bytes>(&self, x: Rows<u8>, window: &Window, first: usize, y: &mut RowsMut<u8>) {
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

/// The vector operations of an instruction set. They are inlined into functions of that set; closures would not be.
///
/// # Safety
/// Each does what it says with [`Bytes::CHANNELS`] bytes, or the 32-bit lanes of a quarter of them.
unsafe trait Bytes {
    /// Bytes of a vector.
    const CHANNELS: usize;
    /// Bytes, or 32-bit integers.
    type I: Copy;
    /// Floats.
    type F: Copy;
    /// Weights of four taps for each lane.
    type W: Copy;

    /// Reads weights.
    ///
    /// # Safety
    /// The machine has the instruction set. There are as many bytes as a vector has.
    unsafe fn weights(from: *const i8) -> Self::W;
    /// Reads 32-bit integers.
    ///
    /// # Safety
    /// The same.
    unsafe fn sums(from: *const i32) -> Self::I;
    /// Reads floats.
    ///
    /// # Safety
    /// The same.
    unsafe fn scales(from: *const f32) -> Self::F;
    /// Reads bytes.
    ///
    /// # Safety
    /// The same.
    unsafe fn load(from: *const u8) -> Self::I;
    /// Reads the first `n` bytes; the others are 0.
    ///
    /// # Safety
    /// The machine has the instruction set. There are `n` bytes, fewer than a vector has.
    unsafe fn load_first(from: *const u8, n: usize) -> Self::I;
    /// Puts the bytes of four taps beside each other, in four vectors.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn interleave(taps: [Self::I; 4]) -> [Self::I; 4];
    /// Adds the four products of each lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn dot(sums: Self::I, x: Self::I, w: Self::W) -> Self::I;
    /// `max(min(round_half_even(sum * scale), upper) + zero, min)`, in bytes. What is too small becomes the least integer, and
    /// saturates when it is packed; NaN (0 by an infinite scale) becomes that, too.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn narrow(sums: [Self::I; 4], scale: [Self::F; 4], upper: f32, zero: i16, min: u8) -> Self::I;
    /// Writes bytes.
    ///
    /// # Safety
    /// The machine has the instruction set. There is room for as many as a vector has.
    unsafe fn store(to: *mut u8, x: Self::I);
    /// Writes the first `n` bytes.
    ///
    /// # Safety
    /// The machine has the instruction set. There is room for `n` bytes, fewer than a vector has.
    unsafe fn store_first(to: *mut u8, x: Self::I, n: usize);
}

/// Defines vectors, by the intrinsics of a width, and the loop that uses them.
macro_rules! vectors {
    (
        $run:ident, $features:literal, $channels:literal, $i:ty, $f:ty, $w:ty,
        bits: $load:ident $store:ident $loadps:ident $set16:ident $set8:ident $setps:ident,
        integers: $unpacklo8:ident $unpackhi8:ident $unpacklo16:ident $unpackhi16:ident $packs32:ident $packus16:ident $adds16:ident $maxu8:ident,
        floats: $cvt:ident $round:ident $mul:ident $min:ident,
        weights: $weights:path, dot: $dot:path, load_first: $load_first:path, store_first: $store_first:path
    ) => {
        /// Runs it by vectors of this set.
        ///
        /// # Safety
        /// The machine has these features. The rest is as for [`Packed::run`].
        #[target_feature(enable = $features)]
        unsafe fn $run(packed: &Packed, x: Rows<u8>, window: &Window, first: usize, mut y: RowsMut<u8>) {
            struct Set;

            // SAFETY: each operation is made of the intrinsics of its name.
            unsafe impl Bytes for Set {
                const CHANNELS: usize = $channels;
                type I = $i;
                type F = $f;
                type W = $w;

                #[inline(always)]
                unsafe fn weights(from: *const i8) -> $w {
                    // SAFETY: the caller guarantees the features and the bytes.
                    unsafe { $weights($load(from.cast())) }
                }
                #[inline(always)]
                unsafe fn sums(from: *const i32) -> $i {
                    // SAFETY: the caller guarantees the features and the integers.
                    unsafe { $load(from.cast()) }
                }
                #[inline(always)]
                unsafe fn scales(from: *const f32) -> $f {
                    // SAFETY: the caller guarantees the features and the floats.
                    unsafe { $loadps(from) }
                }
                #[inline(always)]
                unsafe fn load(from: *const u8) -> $i {
                    // SAFETY: the caller guarantees the features and the bytes.
                    unsafe { $load(from.cast()) }
                }
                #[inline(always)]
                unsafe fn load_first(from: *const u8, n: usize) -> $i {
                    // SAFETY: the caller guarantees the features and `n` bytes.
                    unsafe { $load_first(from, n) }
                }
                #[inline(always)]
                unsafe fn interleave([a, b, c, d]: [$i; 4]) -> [$i; 4] {
                    // SAFETY: the caller guarantees the features.
                    unsafe {
                        let (ab_low, ab_high) = ($unpacklo8(a, b), $unpackhi8(a, b));
                        let (cd_low, cd_high) = ($unpacklo8(c, d), $unpackhi8(c, d));
                        [
                            $unpacklo16(ab_low, cd_low),
                            $unpackhi16(ab_low, cd_low),
                            $unpacklo16(ab_high, cd_high),
                            $unpackhi16(ab_high, cd_high),
                        ]
                    }
                }
                #[inline(always)]
                unsafe fn dot(sums: $i, x: $i, w: $w) -> $i {
                    // SAFETY: the caller guarantees the features.
                    unsafe { $dot(sums, x, w) }
                }
                #[inline(always)]
                unsafe fn narrow(sums: [$i; 4], scale: [$f; 4], upper: f32, zero: i16, min: u8) -> $i {
                    // SAFETY: the caller guarantees the features.
                    unsafe {
                        let (upper, zero, min) = ($setps(upper), $set16(zero), $set8(min as i8));
                        // Where one is NaN, the second is taken.
                        let mut r = sums;
                        for q in 0..4 {
                            r[q] = $round($min(upper, $mul($cvt(sums[q]), scale[q])));
                        }
                        let low = $adds16($packs32(r[0], r[1]), zero);
                        let high = $adds16($packs32(r[2], r[3]), zero);
                        $maxu8($packus16(low, high), min)
                    }
                }
                #[inline(always)]
                unsafe fn store(to: *mut u8, x: $i) {
                    // SAFETY: the caller guarantees the features and the room.
                    unsafe { $store(to.cast(), x) }
                }
                #[inline(always)]
                unsafe fn store_first(to: *mut u8, x: $i, n: usize) {
                    // SAFETY: the caller guarantees the features and room for `n` bytes.
                    unsafe { $store_first(to, x, n) }
                }
            }

            // SAFETY: the caller guarantees the features and the operands.
            unsafe { packed.all::<Set>(x, window, first, &mut y) }
        }
    };
    ($run:ident, $features:literal, $w:ty, weights: $weights:path, dot: $dot:path) => {
        vectors!(
            $run, $features, 32, __m256i, __m256, $w,
            bits: _mm256_loadu_si256 _mm256_storeu_si256 _mm256_loadu_ps _mm256_set1_epi16 _mm256_set1_epi8 _mm256_set1_ps,
            integers: _mm256_unpacklo_epi8 _mm256_unpackhi_epi8 _mm256_unpacklo_epi16 _mm256_unpackhi_epi16
                _mm256_packs_epi32 _mm256_packus_epi16 _mm256_adds_epi16 _mm256_max_epu8,
            floats: _mm256_cvtepi32_ps _mm256_cvtps_epi32 _mm256_mul_ps _mm256_min_ps,
            weights: $weights, dot: $dot,
            load_first: no_load,
            store_first: no_store
        );
    };
}

vectors!(
    avx512, "avx512f,avx512bw,avx512vl,avx512vnni", 64, __m512i, __m512, __m512i,
    bits: _mm512_loadu_si512 _mm512_storeu_si512 _mm512_loadu_ps _mm512_set1_epi16 _mm512_set1_epi8 _mm512_set1_ps,
    integers: _mm512_unpacklo_epi8 _mm512_unpackhi_epi8 _mm512_unpacklo_epi16 _mm512_unpackhi_epi16
        _mm512_packs_epi32 _mm512_packus_epi16 _mm512_adds_epi16 _mm512_max_epu8,
    floats: _mm512_cvtepi32_ps _mm512_cvtps_epi32 _mm512_mul_ps _mm512_min_ps,
    weights: bytes, dot: _mm512_dpbusd_epi32, load_first: masked_load, store_first: masked_store
);
vectors!(evex, "avx2,avx512f,avx512vl,avx512vnni", __m256i, weights: bytes, dot: _mm256_dpbusd_epi32);
vectors!(vex, "avx2,avxvnni", __m256i, weights: bytes, dot: _mm256_dpbusd_avx_epi32);
vectors!(avx2, "avx2", [__m256i; 2], weights: words, dot: dot_words);

/// Weights as they are.
///
/// # Safety
/// There is nothing to guarantee.
#[inline(always)]
unsafe fn bytes<V>(w: V) -> V {
    w
}

/// # Safety
/// The machine has AVX-512 BW. There are `n` bytes, fewer than 64.
#[inline(always)]
unsafe fn masked_load(from: *const u8, n: usize) -> __m512i {
    // SAFETY: the caller guarantees the features and the bytes. What is masked is not read.
    unsafe { _mm512_maskz_loadu_epi8((1 << n) - 1, from.cast()) }
}

/// # Safety
/// The machine has AVX-512 BW. There is room for `n` bytes, fewer than 64.
#[inline(always)]
unsafe fn masked_store(to: *mut u8, x: __m512i, n: usize) {
    // SAFETY: the caller guarantees the features and the room. What is masked is not written.
    unsafe { _mm512_mask_storeu_epi8(to.cast(), (1 << n) - 1, x) }
}

/// Stands for a part of a vector where all blocks are whole.
///
/// # Safety
/// It is never called.
#[inline(always)]
unsafe fn no_load(_: *const u8, _: usize) -> __m256i {
    unreachable!("blocks of 256-bit vectors are whole")
}

/// The same.
///
/// # Safety
/// It is never called.
#[inline(always)]
unsafe fn no_store(_: *mut u8, _: __m256i, _: usize) {
    unreachable!("blocks of 256-bit vectors are whole")
}

/// Weights as 16-bit integers: those of the first and third tap, and those of the second and fourth.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn words(w: __m256i) -> [__m256i; 2] {
    // SAFETY: the caller guarantees AVX2.
    unsafe { [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w)), _mm256_srai_epi16::<8>(w)] }
}

/// Products by [`words`], which are exact.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot_words(sums: __m256i, x: __m256i, [w_ac, w_bd]: [__m256i; 2]) -> __m256i {
    // SAFETY: the caller guarantees AVX2.
    unsafe {
        let (ac, bd) = (_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(x));
        _mm256_add_epi32(sums, _mm256_add_epi32(_mm256_madd_epi16(ac, w_ac), _mm256_madd_epi16(bd, w_bd)))
    }
}
