//! What the instruction sets with 256-bit vectors have in common.

use crate::tile::Requantize;
use std::arch::x86_64::*;

/// Implements [`Vectors`] and [`Products`] with 256-bit vectors; what differs is how products are added.
///
/// [`Vectors`]: crate::tile::Vectors
/// [`Products`]: crate::tile::Products
macro_rules! vectors {
    ($name:ident, $activation:ty, $weight:ty, $dot:expr) => {
        // SAFETY: each operation is the intrinsic of its name, which works on all eight lanes.
        unsafe impl $crate::tile::Vectors for $name {
            const LANES: usize = 8;
            type I = __m256i;
            type F = __m256;

            #[inline(always)]
            unsafe fn load_i32(from: *const i32) -> Self::I {
                // SAFETY: the caller guarantees the instruction set, and eight integers at `from`.
                unsafe { _mm256_loadu_si256(from.cast()) }
            }
            #[inline(always)]
            unsafe fn requantize<const N: usize>(
                sums: [Self::I; 4],
                scale: [Self::F; 4],
                to: &$crate::tile::Requantize,
                y: *mut u8,
                rows: usize,
                columns: usize,
            ) {
                // SAFETY: the caller guarantees the instruction set, and what `requantize` asks for.
                unsafe { $crate::isa::ymm::requantize::<N>(sums, scale, to, y, rows, columns) }
            }
            #[inline(always)]
            unsafe fn to_f32(sums: Self::I) -> Self::F {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_cvtepi32_ps(sums) }
            }

            #[inline(always)]
            unsafe fn splat(x: f32) -> Self::F {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_set1_ps(x) }
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self::F {
                // SAFETY: the caller guarantees the instruction set, and eight floats at `from`.
                unsafe { _mm256_loadu_ps(from) }
            }
            #[inline(always)]
            unsafe fn load_first(from: *const f32, n: usize) -> Self::F {
                // SAFETY: the caller guarantees the instruction set, and `n` floats at `from`. The mask leaves out
                // the others.
                unsafe { _mm256_maskload_ps(from, $crate::isa::ymm::first(n)) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, x: Self::F) {
                // SAFETY: the caller guarantees the instruction set, and room for eight floats at `to`.
                unsafe { _mm256_storeu_ps(to, x) }
            }
            #[inline(always)]
            unsafe fn store_first(to: *mut f32, x: Self::F, n: usize) {
                // SAFETY: the caller guarantees the instruction set, and room for `n` floats at `to`. The mask
                // leaves out the others.
                unsafe { _mm256_maskstore_ps(to, $crate::isa::ymm::first(n), x) }
            }
            #[inline(always)]
            unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_add_ps(a, b) }
            }
            #[inline(always)]
            unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_mul_ps(a, b) }
            }
            #[inline(always)]
            unsafe fn mul_add(sum: Self::F, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_fmadd_ps(a, b, sum) }
            }
            #[inline(always)]
            unsafe fn clamp(x: Self::F, min: Self::F, max: Self::F) -> Self::F {
                // Where one is NaN, these have the second.
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_min_ps(max, _mm256_max_ps(min, x)) }
            }
        }

        // SAFETY: each operation is the intrinsic of its name, which works on all eight lanes.
        unsafe impl $crate::tile::Products for $name {
            type Activation = $activation;
            type Weight = $weight;
            type X = __m256i;
            type W = __m256i;

            #[inline(always)]
            unsafe fn load_x(from: *const $activation) -> Self::X {
                // SAFETY: the caller guarantees the instruction set, and four bytes at `from`. They are read
                // without alignment.
                unsafe { _mm256_set1_epi32(from.cast::<i32>().read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn load_w(from: *const $weight) -> Self::W {
                // SAFETY: the caller guarantees the instruction set, and 32 bytes at `from`.
                unsafe { _mm256_loadu_si256(from.cast()) }
            }
            #[inline(always)]
            unsafe fn dot(sum: Self::I, x: Self::X, w: Self::W) -> Self::I {
                // SAFETY: the caller guarantees the instruction set, which has all that `$dot` asks for.
                unsafe { $dot(sum, x, w) }
            }
        }
    };
}

pub(super) use vectors;

/// Implements [`Nibbles`] with 256-bit vectors; what differs is how products of unsigned by signed bytes are added.
///
/// [`Nibbles`]: crate::coded4::Nibbles
macro_rules! nibbles_of {
    ($name:ident, $dot:expr) => {
        // SAFETY: each operation works on all eight lanes.
        unsafe impl $crate::coded4::Nibbles for $name {
            type Four = __m256i;

            #[inline(always)]
            unsafe fn halves(from: *const u8) -> [Self::Four; 2] {
                // SAFETY: the caller guarantees the instruction set, and 32 bytes at `from`.
                unsafe {
                    let (bytes, low) = (_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(15));
                    [_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), low)]
                }
            }
            #[inline(always)]
            unsafe fn dot_four(sum: Self::I, w: Self::Four, x: *const i8) -> Self::I {
                // SAFETY: the caller guarantees the instruction set, which has all that `$dot` asks for, and four bytes at `x`.
                // They are read without alignment.
                unsafe { $dot(sum, w, _mm256_set1_epi32(x.cast::<i32>().read_unaligned())) }
            }
            #[inline(always)]
            unsafe fn splat_i32(x: i32) -> Self::I {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { _mm256_set1_epi32(x) }
            }
            #[inline(always)]
            unsafe fn bytes_times(from: *const u8, by: i32) -> Self::I {
                // SAFETY: the caller guarantees the instruction set, and eight bytes at `from`.
                unsafe { _mm256_mullo_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())), _mm256_set1_epi32(by)) }
            }
        }
    };
}

pub(super) use nibbles_of;

/// A mask of the first `n` of eight lanes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
pub(super) unsafe fn first(n: usize) -> __m256i {
    // SAFETY: the caller guarantees AVX2, which is all that these ask for.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// Writes the first `columns` results of each of `rows` rows.
///
/// # Safety
/// The machine has AVX2. The rest is as for [`Vectors::requantize`].
///
/// [`Vectors::requantize`]: crate::tile::Vectors::requantize
#[inline(always)]
pub(super) unsafe fn requantize<const N: usize>(
    sums: [__m256i; 4],
    scale: [__m256; 4],
    to: &Requantize,
    y: *mut u8,
    rows: usize,
    columns: usize,
) {
    const { assert!(N == 1 || N == 2) }
    // SAFETY: the caller guarantees AVX2, and at `y` room for `columns` bytes of each of `rows` rows. Narrower rows are
    // copied out of `all`. A store goes over several rows only where they follow each other without a gap.
    unsafe {
        let mut r = sums;
        for v in 0..4 {
            r[v] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(sums[v]), scale[v]));
        }
        let zero = _mm256_set1_epi16(i16::from(to.zero));
        let low = _mm256_adds_epi16(_mm256_packs_epi32(r[0], r[1]), zero);
        let high = _mm256_adds_epi16(_mm256_packs_epi32(r[2], r[3]), zero);
        let bytes = _mm256_max_epu8(_mm256_packus_epi16(low, high), _mm256_set1_epi8(to.min as i8));
        let bytes = _mm256_min_epu8(bytes, _mm256_set1_epi8(to.max as i8));
        // Packing works within 128 bits: vector v's lanes 4l..4l+4 have become lane 4l+v.
        let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        let width = 8 * N;
        if columns < width {
            let mut all = [0; 32];
            _mm256_storeu_si256(all.as_mut_ptr().cast(), bytes);
            for i in 0..rows {
                y.add(i * to.stride).copy_from_nonoverlapping(all[i * width..].as_ptr(), columns);
            }
            return;
        }
        if rows == 4 / N && to.stride == width {
            return _mm256_storeu_si256(y.cast(), bytes);
        }
        let halves = [_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes)];
        for (i, half) in halves.into_iter().enumerate() {
            if N == 2 && i < rows {
                _mm_storeu_si128(y.add(i * to.stride).cast(), half);
            }
            if N == 1 && 2 * i < rows {
                _mm_storel_epi64(y.add(2 * i * to.stride).cast(), half);
            }
            if N == 1 && 2 * i + 1 < rows {
                _mm_storel_epi64(y.add((2 * i + 1) * to.stride).cast(), _mm_unpackhi_epi64(half, half));
            }
        }
    }
}
