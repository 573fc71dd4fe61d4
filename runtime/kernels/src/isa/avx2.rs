//! 256-bit vectors: AVX2 and FMA.

use super::ymm::vectors;
use crate::tile::tiles;
use std::arch::x86_64::*;

/// Vectors of eight lanes. Products of 8-bit integers are made of 16-bit ones, in which they are
/// exact: those of bytes saturate.
pub(crate) struct Avx2;

/// The even bytes of each 32 bits, and the odd ones, as 16-bit integers.
type Pairs = [__m256i; 2];

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn unsigned(x: __m256i) -> Pairs {
    // SAFETY: the caller guarantees AVX2, which is all that these ask for.
    unsafe { [_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(x)] }
}

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn signed(w: __m256i) -> Pairs {
    // SAFETY: the caller guarantees AVX2, which is all that these ask for.
    unsafe { [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w)), _mm256_srai_epi16::<8>(w)] }
}

/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn dot(sum: __m256i, x: Pairs, w: Pairs) -> __m256i {
    // SAFETY: the caller guarantees AVX2, which is all that these ask for.
    unsafe {
        let products = _mm256_add_epi32(_mm256_madd_epi16(x[0], w[0]), _mm256_madd_epi16(x[1], w[1]));
        _mm256_add_epi32(sum, products)
    }
}

vectors!(Avx2, Pairs, Pairs, unsigned, signed, dot);

tiles!(
    Avx2,
    #[target_feature(enable = "avx2,fma")]
    int8: 1: 4 [1, 2], 2: 4 [1, 2];
    float: 1: 8 [1, 2, 4], 2: 6 [1, 2, 4]
);
