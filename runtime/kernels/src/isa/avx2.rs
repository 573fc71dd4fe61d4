//! 256-bit vectors: AVX2 and FMA.

use super::ymm::{nibbles_of, vectors};
use crate::{coded4::codes, tile::tiles};
use std::arch::x86_64::*;

/// Vectors of eight lanes. AVX2's products of bytes saturate; those of 16-bit integers are exact, and no slower where
/// memory has such integers already. So activations and weights are widened before tiles read them.
pub(crate) struct Avx2;

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot(sum: __m256i, x: __m256i, w: __m256i) -> __m256i {
    // SAFETY: the caller guarantees AVX2, which is all that these ask for.
    unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(x, w)) }
}

vectors!(Avx2, i16, i16, dot);

tiles!(
    Avx2,
    #[target_feature(enable = "avx2,fma")]
    int8: Words 1: 8 [1, 2, 4], 2: 6 [1, 2, 4];
    float: 1: 8 [1, 2, 4], 2: 6 [1, 2, 4]
);

/// Two products of a code of 4 bits by a byte fit 16 bits: 2 · 15 · 127 does.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot_four(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller guarantees AVX2, which is all that these ask for.
    unsafe { _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1))) }
}

nibbles_of!(Avx2, dot_four);

codes!(
    Avx2,
    #[target_feature(enable = "avx2,fma")]
    4: 1, 2: 2, 1: 2
);
