//! Vectors of bytes of AVX2 and AVX-512.

// Iterators over arrays of registers would need closures.
#![allow(clippy::needless_range_loop)]

use super::{bytes::Bytes, packed::Packed};
use crate::{Rows, RowsMut, Window};
use std::arch::x86_64::*;

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
        pub(super) unsafe fn $run(packed: &Packed, x: Rows<u8>, window: &Window, first: usize, mut y: RowsMut<u8>) {
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
