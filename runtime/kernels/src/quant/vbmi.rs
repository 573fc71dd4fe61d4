//! Tables by AVX-512 VBMI, whose permutations choose among 128 bytes.

use crate::{Rows, RowsMut};
use std::arch::x86_64::*;

/// `y = table[x]`.
///
/// # Safety
/// The machine has the features named, and `x` and `y` are of one shape.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) unsafe fn lookup(x: Rows<u8>, table: &[u8; 256], mut y: RowsMut<u8>) {
    // SAFETY: the four quarters are within the table.
    let table: [__m512i; 4] = std::array::from_fn(|i| unsafe { _mm512_loadu_si512(table.as_ptr().add(i * 64).cast()) });
    for i in 0..y.rows() {
        let (x, y) = (x.row(i), y.row(i));
        for first in (0..x.len()).step_by(64) {
            let n = (x.len() - first).min(64);
            let mask = u64::MAX >> (64 - n);
            // SAFETY: only the bytes in `mask` are read and written, and both rows have them.
            unsafe {
                let index = _mm512_maskz_loadu_epi8(mask, x.as_ptr().add(first).cast());
                let low = _mm512_permutex2var_epi8(table[0], index, table[1]);
                let high = _mm512_permutex2var_epi8(table[2], index, table[3]);
                let result = _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high);
                _mm512_mask_storeu_epi8(y.as_mut_ptr().add(first).cast(), mask, result);
            }
        }
    }
}
