//! Vectors of bytes of NEON, with SDOT, or with USDOT. Products without a mixed sign read bytes less [`OFFSET`].

// Iterators over arrays of registers would need closures.
#![allow(clippy::needless_range_loop)]

use super::{bytes::Bytes, packed::Packed};
use crate::{
    Rows, RowsMut, Window,
    isa::neon::{dot_halves, sdot, usdot},
};
use std::arch::aarch64::*;

/// What is taken off bytes where products are of signed ones.
pub(super) const OFFSET: u8 = crate::isa::neon::HALF;

/// Defines the loop of a set, by what bytes are changed by when they are read, and by how products are added.
macro_rules! vectors {
    ($run:ident, $(#[$features:meta])* bits: $bits:expr, dot: $dot:path) => {
        /// Runs it by vectors of this set.
        ///
        /// # Safety
        /// The machine has these features. The rest is as for [`Packed::run`].
        $(#[$features])*
        pub(super) unsafe fn $run(packed: &Packed, x: Rows<u8>, window: &Window, first: usize, mut y: RowsMut<u8>) {
            struct Set;

            // SAFETY: each operation is made of the intrinsics of its name.
            unsafe impl Bytes for Set {
                const CHANNELS: usize = 16;
                type I = int32x4_t;
                type F = float32x4_t;
                type W = int8x16_t;

                #[inline(always)]
                unsafe fn weights(from: *const i8) -> int8x16_t {
                    // SAFETY: the caller guarantees the bytes.
                    unsafe { vld1q_s8(from) }
                }
                #[inline(always)]
                unsafe fn sums(from: *const i32) -> int32x4_t {
                    // SAFETY: the caller guarantees the integers.
                    unsafe { vld1q_s32(from) }
                }
                #[inline(always)]
                unsafe fn scales(from: *const f32) -> float32x4_t {
                    // SAFETY: the caller guarantees the floats.
                    unsafe { vld1q_f32(from) }
                }
                #[inline(always)]
                unsafe fn load(from: *const u8) -> int32x4_t {
                    // SAFETY: the caller guarantees the bytes.
                    unsafe { vreinterpretq_s32_u8(veorq_u8(vld1q_u8(from), vdupq_n_u8($bits))) }
                }
                #[inline(always)]
                unsafe fn load_first(_: *const u8, _: usize) -> int32x4_t {
                    unreachable!("blocks of 128-bit vectors are whole")
                }
                #[inline(always)]
                unsafe fn interleave(taps: [int32x4_t; 4]) -> [int32x4_t; 4] {
                    // SAFETY: every machine of this kind has NEON.
                    unsafe {
                        let [a, b, c, d] = taps.map(|x| vreinterpretq_s8_s32(x));
                        let ab = [vreinterpretq_s16_s8(vzip1q_s8(a, b)), vreinterpretq_s16_s8(vzip2q_s8(a, b))];
                        let cd = [vreinterpretq_s16_s8(vzip1q_s8(c, d)), vreinterpretq_s16_s8(vzip2q_s8(c, d))];
                        [
                            vreinterpretq_s32_s16(vzip1q_s16(ab[0], cd[0])),
                            vreinterpretq_s32_s16(vzip2q_s16(ab[0], cd[0])),
                            vreinterpretq_s32_s16(vzip1q_s16(ab[1], cd[1])),
                            vreinterpretq_s32_s16(vzip2q_s16(ab[1], cd[1])),
                        ]
                    }
                }
                #[inline(always)]
                unsafe fn dot(sums: int32x4_t, x: int32x4_t, w: int8x16_t) -> int32x4_t {
                    // SAFETY: the caller guarantees the features.
                    unsafe { $dot(sums, vreinterpretq_s8_s32(x), w) }
                }
                #[inline(always)]
                unsafe fn narrow(sums: [int32x4_t; 4], scale: [float32x4_t; 4], upper: f32, zero: i16, min: u8) -> int32x4_t {
                    // SAFETY: every machine of this kind has NEON.
                    unsafe {
                        let mut r = sums;
                        for q in 0..4 {
                            // NaN becomes the least number, and that the least integer.
                            let scaled = vmaxnmq_f32(vmulq_f32(vcvtq_f32_s32(sums[q]), scale[q]), vdupq_n_f32(f32::MIN));
                            r[q] = vcvtnq_s32_f32(vminq_f32(scaled, vdupq_n_f32(upper)));
                        }
                        let zero = vdupq_n_s16(zero);
                        let low = vqaddq_s16(vqmovn_high_s32(vqmovn_s32(r[0]), r[1]), zero);
                        let high = vqaddq_s16(vqmovn_high_s32(vqmovn_s32(r[2]), r[3]), zero);
                        vreinterpretq_s32_u8(vmaxq_u8(vqmovun_high_s16(vqmovun_s16(low), high), vdupq_n_u8(min)))
                    }
                }
                #[inline(always)]
                unsafe fn store(to: *mut u8, x: int32x4_t) {
                    // SAFETY: the caller guarantees the room.
                    unsafe { vst1q_u8(to, vreinterpretq_u8_s32(x)) }
                }
                #[inline(always)]
                unsafe fn store_first(_: *mut u8, _: int32x4_t, _: usize) {
                    unreachable!("blocks of 128-bit vectors are whole")
                }
            }

            // SAFETY: the caller guarantees the features and the operands.
            unsafe { packed.all::<Set>(x, window, first, &mut y) }
        }
    };
}

vectors!(plain, bits: OFFSET, dot: dot_lanes);
vectors!(dotprod, #[target_feature(enable = "dotprod")] bits: OFFSET, dot: sdot);
vectors!(i8mm, #[target_feature(enable = "i8mm")] bits: 0, dot: usdot);

/// Adds the four products of each lane.
///
/// # Safety
/// There is nothing to guarantee: every machine of this kind has NEON.
#[inline(always)]
unsafe fn dot_lanes(sums: int32x4_t, x: int8x16_t, w: int8x16_t) -> int32x4_t {
    // SAFETY: every machine of this kind has NEON.
    unsafe {
        let [low, high] = dot_halves([vdupq_n_s32(0); 2], x, w);
        vaddq_s32(sums, vpaddq_s32(low, high))
    }
}
