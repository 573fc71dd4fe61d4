//! The vector operations.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use crate::{
    coded4::Nibbles,
    tile::{Requantize, Vectors},
};
use std::arch::{aarch64::*, asm};

/// Vectors of four lanes. A sum is in two halves: products of bytes of 16 bits are added to it two by two.
pub(crate) struct Neon;

/// Vectors of four lanes, with SDOT.
pub(crate) struct Dotprod;

/// A sum in two halves, each two lanes wide: of an even and an odd part.
pub(crate) type Halves = [int32x4_t; 2];

/// Halves of which the even parts are `x`, and the odd ones 0.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn halves_of(x: int32x4_t) -> Halves {
    // SAFETY: the caller guarantees NEON.
    unsafe { [vzip1q_s32(x, vdupq_n_s32(0)), vzip2q_s32(x, vdupq_n_s32(0))] }
}

/// The lanes of a sum.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
unsafe fn joined([low, high]: Halves) -> int32x4_t {
    // SAFETY: the caller guarantees NEON.
    unsafe { vpaddq_s32(low, high) }
}

/// The same.
///
/// # Safety
/// There is nothing to guarantee.
#[inline(always)]
unsafe fn as_is(x: int32x4_t) -> int32x4_t {
    x
}

/// Implements [`Vectors`] and [`Nibbles`]; what differs is the form of sums, and how products of bytes are added.
macro_rules! vectors {
    ($name:ident, $sums:ty, $of:path, $to:path, $dot:path) => {
        // SAFETY: each operation is the intrinsic of its name, which works on all four lanes.
        unsafe impl Vectors for $name {
            const LANES: usize = 4;
            type I = $sums;
            type F = float32x4_t;

            #[inline(always)]
            unsafe fn load_i32(from: *const i32) -> Self::I {
                // SAFETY: the caller guarantees NEON, and four integers at `from`.
                unsafe { $of(vld1q_s32(from)) }
            }
            #[inline(always)]
            unsafe fn requantize<const N: usize>(
                [a, b, c, d]: [Self::I; 4],
                scale: [Self::F; 4],
                to: &Requantize,
                y: *mut u8,
                rows: usize,
                columns: usize,
            ) {
                // SAFETY: the caller guarantees NEON, and what `requantize` asks for.
                unsafe { requantize::<N>([$to(a), $to(b), $to(c), $to(d)], scale, to, y, rows, columns) }
            }
            #[inline(always)]
            unsafe fn to_f32(sums: Self::I) -> Self::F {
                // SAFETY: the caller guarantees NEON.
                unsafe { vcvtq_f32_s32($to(sums)) }
            }

            #[inline(always)]
            unsafe fn splat(x: f32) -> Self::F {
                // SAFETY: the caller guarantees NEON.
                unsafe { vdupq_n_f32(x) }
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self::F {
                // SAFETY: the caller guarantees NEON, and four floats at `from`.
                unsafe { vld1q_f32(from) }
            }
            #[inline(always)]
            unsafe fn load_first(from: *const f32, n: usize) -> Self::F {
                // SAFETY: the caller guarantees NEON, and `n` floats at `from`: each arm reads as many as it says.
                unsafe {
                    let none = vdupq_n_f32(0.0);
                    match n {
                        0 => none,
                        1 => vld1q_lane_f32::<0>(from, none),
                        2 => vcombine_f32(vld1_f32(from), vdup_n_f32(0.0)),
                        3 => vld1q_lane_f32::<2>(from.add(2), vcombine_f32(vld1_f32(from), vdup_n_f32(0.0))),
                        _ => vld1q_f32(from),
                    }
                }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, x: Self::F) {
                // SAFETY: the caller guarantees NEON, and room for four floats at `to`.
                unsafe { vst1q_f32(to, x) }
            }
            #[inline(always)]
            unsafe fn store_first(to: *mut f32, x: Self::F, n: usize) {
                // SAFETY: the caller guarantees NEON, and room for `n` floats at `to`: each arm writes as many as it says.
                unsafe {
                    match n {
                        0 => {}
                        1 => vst1q_lane_f32::<0>(to, x),
                        2 => vst1_f32(to, vget_low_f32(x)),
                        3 => {
                            vst1_f32(to, vget_low_f32(x));
                            vst1q_lane_f32::<2>(to.add(2), x);
                        }
                        _ => vst1q_f32(to, x),
                    }
                }
            }
            #[inline(always)]
            unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the caller guarantees NEON.
                unsafe { vaddq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the caller guarantees NEON.
                unsafe { vmulq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn mul_add(sum: Self::F, a: Self::F, b: Self::F) -> Self::F {
                // SAFETY: the caller guarantees NEON.
                unsafe { vfmaq_f32(sum, a, b) }
            }
            #[inline(always)]
            unsafe fn clamp(x: Self::F, min: Self::F, max: Self::F) -> Self::F {
                // Where one is NaN, so is the result.
                // SAFETY: the caller guarantees NEON.
                unsafe { vminq_f32(max, vmaxq_f32(min, x)) }
            }
        }

        // SAFETY: each operation works on all four lanes.
        unsafe impl Nibbles for $name {
            type Four = uint8x16_t;

            #[inline(always)]
            unsafe fn halves(from: *const u8) -> [Self::Four; 2] {
                // SAFETY: the caller guarantees NEON, and 16 bytes at `from`.
                unsafe {
                    let bytes = vld1q_u8(from);
                    [vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes)]
                }
            }
            #[inline(always)]
            unsafe fn dot_four(sum: Self::I, w: Self::Four, x: *const i8) -> Self::I {
                // Codes of 4 bits are the same with a sign.
                // SAFETY: the caller guarantees what `$dot` asks for, and four bytes at `x`. They are read without alignment.
                unsafe {
                    let x = vdupq_n_s32(x.cast::<i32>().read_unaligned());
                    $dot(sum, vreinterpretq_s8_u8(w), vreinterpretq_s8_s32(x))
                }
            }
            #[inline(always)]
            unsafe fn splat_i32(x: i32) -> Self::I {
                // SAFETY: the caller guarantees NEON.
                unsafe { $of(vdupq_n_s32(x)) }
            }
            #[inline(always)]
            unsafe fn bytes_times(from: *const u8, by: i32) -> Self::I {
                // SAFETY: the caller guarantees NEON, and four bytes at `from`. They are read without alignment.
                unsafe {
                    let bytes = vcreate_u8(from.cast::<u32>().read_unaligned().into());
                    let bytes = vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
                    $of(vmulq_n_s32(vreinterpretq_s32_u32(bytes), by))
                }
            }
        }
    };
}

vectors!(Neon, Halves, halves_of, joined, dot_halves);
vectors!(Dotprod, int32x4_t, as_is, as_is, sdot);

/// Defines a function for an instruction that adds products to sums. Rust has no stable functions for these.
macro_rules! product {
    (
        $(#[$attribute:meta])*
        $name:ident $(<const $lane:ident: i32>)? ($a:ty, $b:ty), $extension:literal, $instruction:literal
    ) => {
        $(#[$attribute])*
        #[inline(always)]
        pub(crate) unsafe fn $name $(<const $lane: i32>)? (mut sum: int32x4_t, a: $a, b: $b) -> int32x4_t {
            // SAFETY: the caller guarantees the instruction, which reads and writes registers alone.
            unsafe {
                asm!(
                    $extension,
                    $instruction,
                    sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b, $(lane = const $lane,)?
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            sum
        }
    };
}

product!(
    /// Adds four products to each lane by SDOT.
    ///
    /// # Safety
    /// The machine has FEAT_DotProd.
    sdot(int8x16_t, int8x16_t), ".arch_extension dotprod", "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b"
);
product!(
    /// Adds four products to each lane by SDOT: those of `b` are in its lane `K`.
    ///
    /// # Safety
    /// The machine has FEAT_DotProd. `K` is less than 4.
    sdot_lane<const K: i32>(int8x16_t, int8x16_t), ".arch_extension dotprod", "sdot {sum:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]"
);
product!(
    /// Adds four products of unsigned by signed bytes to each lane by USDOT.
    ///
    /// # Safety
    /// The machine has FEAT_I8MM.
    usdot(int8x16_t, int8x16_t), ".arch_extension i8mm", "usdot {sum:v}.4s, {a:v}.16b, {b:v}.16b"
);
product!(
    /// Adds the products of two rows of eight unsigned bytes by two rows of eight signed ones: by the first row of `b`, then by the second;
    /// those of the first row of `a`, then those of the second.
    ///
    /// # Safety
    /// The machine has FEAT_I8MM.
    usmmla(uint8x16_t, int8x16_t), ".arch_extension i8mm", "usmmla {sum:v}.4s, {a:v}.16b, {b:v}.16b"
);

/// Adds four products to each lane. A product fits 16 bits, but the sum of two may not: it is 2^15 where all four bytes are -128.
///
/// # Safety
/// The machine has NEON.
#[inline(always)]
pub(crate) unsafe fn dot_halves([low, high]: Halves, a: int8x16_t, b: int8x16_t) -> Halves {
    // SAFETY: the caller guarantees NEON.
    unsafe { [vpadalq_s16(low, vmull_s8(vget_low_s8(a), vget_low_s8(b))), vpadalq_s16(high, vmull_high_s8(a, b))] }
}

/// Writes the first `columns` results of each of `rows` rows.
///
/// # Safety
/// The machine has NEON. The rest is as for [`Vectors::requantize`].
#[inline(always)]
unsafe fn requantize<const N: usize>(
    sums: [int32x4_t; 4],
    scale: [float32x4_t; 4],
    to: &Requantize,
    y: *mut u8,
    rows: usize,
    columns: usize,
) {
    // SAFETY: the caller guarantees NEON, and at `y` room for `columns` bytes of each of `rows` rows. Narrower rows are copied out of
    // `all`. A store goes over several rows only where they follow each other without a gap.
    unsafe {
        let mut r = sums;
        for v in 0..4 {
            r[v] = vcvtnq_s32_f32(vmulq_f32(vcvtq_f32_s32(sums[v]), scale[v]));
        }
        let zero = vdupq_n_s16(i16::from(to.zero));
        let low = vqaddq_s16(vqmovn_high_s32(vqmovn_s32(r[0]), r[1]), zero);
        let high = vqaddq_s16(vqmovn_high_s32(vqmovn_s32(r[2]), r[3]), zero);
        let bytes = vqmovun_high_s16(vqmovun_s16(low), high);
        let bytes = vminq_u8(vmaxq_u8(bytes, vdupq_n_u8(to.min)), vdupq_n_u8(to.max));
        let width = 4 * N;
        if columns < width {
            let mut all = [0; 16];
            vst1q_u8(all.as_mut_ptr(), bytes);
            for i in 0..rows {
                y.add(i * to.stride).copy_from_nonoverlapping(all[i * width..].as_ptr(), columns);
            }
            return;
        }
        let words = vreinterpretq_u32_u8(bytes);
        match N {
            4 => vst1q_u8(y, bytes),
            3 => {
                vst1_u8(y, vget_low_u8(bytes));
                y.add(8).cast::<u32>().write_unaligned(vgetq_lane_u32::<2>(words));
            }
            _ if rows == 4 / N && to.stride == width => vst1q_u8(y, bytes),
            2 => {
                vst1_u8(y, vget_low_u8(bytes));
                if rows > 1 {
                    vst1_u8(y.add(to.stride), vget_high_u8(bytes));
                }
            }
            _ => {
                y.cast::<u32>().write_unaligned(vgetq_lane_u32::<0>(words));
                if rows > 1 {
                    y.add(to.stride).cast::<u32>().write_unaligned(vgetq_lane_u32::<1>(words));
                }
                if rows > 2 {
                    y.add(2 * to.stride).cast::<u32>().write_unaligned(vgetq_lane_u32::<2>(words));
                }
                if rows > 3 {
                    y.add(3 * to.stride).cast::<u32>().write_unaligned(vgetq_lane_u32::<3>(words));
                }
            }
        }
    }
}
