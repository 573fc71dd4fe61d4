//! Tables by NEON's TBL and TBX, which choose among 64 bytes.

use crate::{Rows, RowsMut};
use std::arch::aarch64::*;

/// Bytes of a vector.
const WIDTH: usize = 16;
/// Bytes of a part of the table.
const PART: usize = 64;

/// `y = table[x]`.
///
/// # Panics
/// When a row of `y` is wider than that of `x`.
pub(super) fn lookup(x: Rows<u8>, table: &[u8; 256], mut y: RowsMut<u8>) {
    // SAFETY: the parts are within the table.
    let parts: [uint8x16x4_t; 4] = std::array::from_fn(|i| unsafe { vld1q_u8_x4(table.as_ptr().add(i * PART)) });
    for i in 0..y.rows() {
        let y = y.row(i);
        let x = &x.row(i)[..y.len()];
        let (whole, rest) = y.as_chunks_mut::<WIDTH>();
        let (from, last) = x.as_chunks::<WIDTH>();
        for (y, x) in whole.iter_mut().zip(from) {
            // SAFETY: these are the bytes of both.
            unsafe {
                let mut index = vld1q_u8(x.as_ptr());
                // Beyond 63 an index chooses nothing: 0 of the first part, and of the others what was there.
                let mut chosen = vqtbl4q_u8(parts[0], index);
                for part in &parts[1..] {
                    index = vsubq_u8(index, vdupq_n_u8(PART as u8));
                    chosen = vqtbx4q_u8(chosen, *part, index);
                }
                vst1q_u8(y.as_mut_ptr(), chosen);
            }
        }
        for (y, x) in rest.iter_mut().zip(last) {
            *y = table[usize::from(*x)];
        }
    }
}
