//! 512-bit vectors: AVX-512 with VNNI.

use crate::{
    coded4::{Nibbles, codes},
    tile::{Products, Requantize, Vectors, tiles},
};
use std::arch::x86_64::*;

/// Vectors of 16 lanes.
pub(crate) struct Avx512;

/// A mask of the first `n` lanes, or all.
#[inline(always)]
pub(crate) fn first(n: usize) -> u16 {
    if n >= 16 { u16::MAX } else { (1 << n) - 1 }
}

// SAFETY: each operation is the intrinsic of its name, which works on all 16 lanes.
unsafe impl Vectors for Avx512 {
    const LANES: usize = 16;
    type I = __m512i;
    type F = __m512;

    #[inline(always)]
    unsafe fn load_i32(from: *const i32) -> Self::I {
        // SAFETY: the caller guarantees AVX-512, and 16 integers at `from`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn requantize<const N: usize>(
        sums: [Self::I; 4],
        scale: [Self::F; 4],
        to: &Requantize,
        y: *mut u8,
        rows: usize,
        columns: usize,
    ) {
        // SAFETY: the caller guarantees AVX-512, and at `y` room for `columns` bytes of each row. Masks leave out what
        // is beyond `columns`. A store goes over several rows only where they follow each other without a gap.
        unsafe {
            let mut r = sums;
            for v in 0..4 {
                r[v] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(sums[v]), scale[v]));
            }
            let zero = _mm512_set1_epi16(i16::from(to.zero));
            let low = _mm512_adds_epi16(_mm512_packs_epi32(r[0], r[1]), zero);
            let high = _mm512_adds_epi16(_mm512_packs_epi32(r[2], r[3]), zero);
            let bytes = _mm512_max_epu8(_mm512_packus_epi16(low, high), _mm512_set1_epi8(to.min as i8));
            let bytes = _mm512_min_epu8(bytes, _mm512_set1_epi8(to.max as i8));
            // Packing works within 128 bits: vector v's lanes 4l..4l+4 have become lane 4l+v.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let bytes = _mm512_permutexvar_epi32(order, bytes);
            let width = 16 * N;
            if columns < width {
                for i in 0..rows {
                    // The bytes of the rows before are masked, and so is what is before the row.
                    let mask = ((1 << columns) - 1) << (i * width);
                    _mm512_mask_storeu_epi8(y.add(i * to.stride).wrapping_sub(i * width).cast(), mask, bytes);
                }
                return;
            }
            match N {
                4 => _mm512_storeu_si512(y.cast(), bytes),
                3 => {
                    _mm256_storeu_si256(y.cast(), _mm512_castsi512_si256(bytes));
                    _mm_storeu_si128(y.add(32).cast(), _mm512_extracti32x4_epi32::<2>(bytes));
                }
                _ if rows == 4 / N && to.stride == width => _mm512_storeu_si512(y.cast(), bytes),
                2 => {
                    _mm256_storeu_si256(y.cast(), _mm512_castsi512_si256(bytes));
                    if rows > 1 {
                        _mm256_storeu_si256(y.add(to.stride).cast(), _mm512_extracti64x4_epi64::<1>(bytes));
                    }
                }
                _ => {
                    _mm_storeu_si128(y.cast(), _mm512_castsi512_si128(bytes));
                    if rows > 1 {
                        _mm_storeu_si128(y.add(to.stride).cast(), _mm512_extracti32x4_epi32::<1>(bytes));
                    }
                    if rows > 2 {
                        _mm_storeu_si128(y.add(2 * to.stride).cast(), _mm512_extracti32x4_epi32::<2>(bytes));
                    }
                    if rows > 3 {
                        _mm_storeu_si128(y.add(3 * to.stride).cast(), _mm512_extracti32x4_epi32::<3>(bytes));
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn to_f32(sums: Self::I) -> Self::F {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_cvtepi32_ps(sums) }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller guarantees AVX-512, and 16 floats at `from`.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self::F {
        // SAFETY: the caller guarantees AVX-512, and `n` floats at `from`. The mask leaves out the others.
        unsafe { _mm512_maskz_loadu_ps(first(n), from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        // SAFETY: the caller guarantees AVX-512, and room for 16 floats at `to`.
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn store_first(to: *mut f32, x: Self::F, n: usize) {
        // SAFETY: the caller guarantees AVX-512, and room for `n` floats at `to`. The mask leaves out the others.
        unsafe { _mm512_mask_storeu_ps(to, first(n), x) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(sum: Self::F, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_fmadd_ps(a, b, sum) }
    }
    #[inline(always)]
    unsafe fn clamp(x: Self::F, min: Self::F, max: Self::F) -> Self::F {
        // Where one is NaN, these have the second.
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_min_ps(max, _mm512_max_ps(min, x)) }
    }
}

// SAFETY: each operation is the intrinsic of its name, which works on all 16 lanes.
unsafe impl Products for Avx512 {
    type Activation = u8;
    type Weight = i8;
    type X = __m512i;
    type W = __m512i;

    #[inline(always)]
    unsafe fn load_x(from: *const u8) -> Self::X {
        // SAFETY: the caller guarantees AVX-512, and four bytes at `from`. They are read without alignment.
        unsafe { _mm512_set1_epi32(from.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_w(from: *const i8) -> Self::W {
        // SAFETY: the caller guarantees AVX-512, and 64 bytes at `from`.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(sum: Self::I, x: Self::X, w: Self::W) -> Self::I {
        // SAFETY: the caller guarantees AVX-512 with VNNI.
        unsafe { _mm512_dpbusd_epi32(sum, x, w) }
    }
}

tiles!(
    Avx512,
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
    // Of smaller tiles the machine computes what becomes of the sums beside the next one's products.
    int8: Bytes 1: 12 [1, 4, 8], 2: 8 [1, 2, 4], 3: 6 [1, 2, 4], 4: 4 [1, 2];
    float: 1: 12 [1, 4, 8], 2: 12 [1, 2, 4, 8], 3: 8 [1, 2, 4], 4: 6 [1, 2, 4]
);

// SAFETY: each operation works on all 16 lanes.
unsafe impl Nibbles for Avx512 {
    type Four = __m512i;

    #[inline(always)]
    unsafe fn halves(from: *const u8) -> [Self::Four; 2] {
        // SAFETY: the caller guarantees AVX-512, and 64 bytes at `from`.
        unsafe {
            let (bytes, low) = (_mm512_loadu_si512(from.cast()), _mm512_set1_epi8(15));
            [_mm512_and_si512(bytes, low), _mm512_and_si512(_mm512_srli_epi16::<4>(bytes), low)]
        }
    }
    #[inline(always)]
    unsafe fn dot_four(sum: Self::I, w: Self::Four, x: *const i8) -> Self::I {
        // SAFETY: the caller guarantees AVX-512 with VNNI, and four bytes at `x`. They are read without alignment.
        unsafe { _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> Self::I {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn bytes_times(from: *const u8, by: i32) -> Self::I {
        // SAFETY: the caller guarantees AVX-512, and 16 bytes at `from`.
        unsafe { _mm512_mullo_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())), _mm512_set1_epi32(by)) }
    }
}

codes!(
    Avx512,
    #[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
    8: 1, 4: 1, 2: 1, 1: 1
);
