//! Tiles by products of four signed bytes in each lane.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use super::{
    Dotprod, Neon,
    vectors::{Halves, dot_halves, sdot_lane},
};
use crate::tile::{Tile8, Together, Vectors, finish8, pointers};
use std::arch::aarch64::*;

/// How rows may lie together: four steps of each.
pub(super) const TOGETHER: Together = Together::FiveBy16;

/// How many these are.
const ROWS: usize = TOGETHER.rows();

/// Products of signed bytes.
///
/// # Safety
/// The operation must do what its name says in every lane.
pub(super) unsafe trait Dots: Sized {
    /// The vectors of the sums.
    type V: Vectors;

    /// Adds to each lane its four weights' products by the four activations of lane `K`.
    ///
    /// # Safety
    /// The machine has the instruction set. `K` is less than 4.
    unsafe fn dot<const K: i32>(sum: Sum<Self>, w: int8x16_t, x: int8x16_t) -> Sum<Self>;

    /// Adds the products of two steps, whose activations are in lanes `K` and `L`.
    ///
    /// # Safety
    /// The machine has the instruction set. `K` and `L` are less than 4.
    #[inline(always)]
    unsafe fn dot_twice<const K: i32, const L: i32>(sum: Sum<Self>, w: [int8x16_t; 2], x: int8x16_t) -> Sum<Self> {
        // SAFETY: the caller guarantees the instruction set and the lanes.
        unsafe { Self::dot::<L>(Self::dot::<K>(sum, w[0], x), w[1], x) }
    }
}

type Sum<D> = <<D as Dots>::V as Vectors>::I;

/// Products by SMULL.
pub(super) struct Smull;

/// The same where no weight is -128: then two products fit 16 bits, and are added to the sum together.
pub(super) struct Pairs;

/// Products by SDOT.
pub(super) struct Sdot;

// SAFETY: the operation works on all four lanes.
unsafe impl Dots for Smull {
    type V = Neon;

    #[inline(always)]
    unsafe fn dot<const K: i32>(sum: Halves, w: int8x16_t, x: int8x16_t) -> Halves {
        // SAFETY: the caller guarantees NEON.
        unsafe { dot_halves(sum, w, in_all_lanes::<K>(x)) }
    }
}

// SAFETY: the operations work on all four lanes.
unsafe impl Dots for Pairs {
    type V = Neon;

    #[inline(always)]
    unsafe fn dot<const K: i32>(sum: Halves, w: int8x16_t, x: int8x16_t) -> Halves {
        // SAFETY: the caller guarantees NEON.
        unsafe { Smull::dot::<K>(sum, w, x) }
    }

    #[inline(always)]
    unsafe fn dot_twice<const K: i32, const L: i32>([low, high]: Halves, w: [int8x16_t; 2], x: int8x16_t) -> Halves {
        // SAFETY: the caller guarantees NEON. The sum of two products is at most 2 · 128 · 127, which fits 16 bits.
        unsafe {
            let x = [in_all_lanes::<K>(x), in_all_lanes::<L>(x)];
            let first = [vmull_s8(vget_low_s8(w[0]), vget_low_s8(x[0])), vmull_high_s8(w[0], x[0])];
            [
                vpadalq_s16(low, vmlal_s8(first[0], vget_low_s8(w[1]), vget_low_s8(x[1]))),
                vpadalq_s16(high, vmlal_high_s8(first[1], w[1], x[1])),
            ]
        }
    }
}

// SAFETY: the operation works on all four lanes.
unsafe impl Dots for Sdot {
    type V = Dotprod;

    #[inline(always)]
    unsafe fn dot<const K: i32>(sum: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees FEAT_DotProd.
        unsafe { sdot_lane::<K>(sum, w, x) }
    }
}

/// The four bytes of lane `K` in every lane.
///
/// # Safety
/// The machine has NEON. `K` is less than 4.
#[inline(always)]
unsafe fn in_all_lanes<const K: i32>(x: int8x16_t) -> int8x16_t {
    // SAFETY: the caller guarantees NEON.
    unsafe { vreinterpretq_s8_s32(vdupq_laneq_s32::<K>(vreinterpretq_s32_s8(x))) }
}

/// Computes `rows` rows from `first` on, from one to `M`, of `N` vectors.
///
/// # Safety
/// As for the [`tile8`](crate::tile::tile8) of other sets.
#[inline(always)]
pub(super) unsafe fn tile8<D: Dots, const M: usize, const N: usize>(t: &Tile8<u8, i8>, first: usize, rows: usize) {
    // SAFETY: the caller guarantees what this asks for.
    unsafe { tile::<D, M, N, false>(t, first, rows) }
}

/// The same of rows that lie together.
///
/// # Safety
/// As for [`tile8`], with at most [`ROWS`]. `first` is a multiple of these, and steps are one of four. In the place of rows that are not
/// there may be anything, but it can be read.
#[inline(always)]
pub(super) unsafe fn tile8_together<D: Dots, const M: usize, const N: usize>(
    t: &Tile8<u8, i8>,
    first: usize,
    rows: usize,
) {
    // SAFETY: the caller guarantees what this asks for.
    unsafe { tile::<D, M, N, true>(t, first, rows) }
}

/// # Safety
/// As for [`tile8`], or, if `ARE_TOGETHER`, [`tile8_together`].
#[inline(always)]
unsafe fn tile<D: Dots, const M: usize, const N: usize, const ARE_TOGETHER: bool>(
    t: &Tile8<u8, i8>,
    first: usize,
    rows: usize,
) {
    debug_assert!(!ARE_TOGETHER || first.is_multiple_of(ROWS), "whole groups before the first row");
    // SAFETY: every address lies within what the caller vouches for. Rows step beyond their last segment in the end, but are not read
    // any more.
    unsafe {
        let mut x = pointers::<u8, M>(&t.x, first, rows);
        let mut w = t.weights;
        let mut start = [D::V::load_i32(t.bias); N];
        for v in 1..N {
            start[v] = D::V::load_i32(t.bias.add(4 * v));
        }
        let mut sums = [start; M];
        if ARE_TOGETHER {
            for fourth in 0..t.x.steps / 4 {
                let mut sixteen = [vdupq_n_s8(0); M];
                for i in 0..M {
                    sixteen[i] = sixteen_bytes(x[0].add((fourth * ROWS + i) * TOGETHER.bytes()));
                }
                w = add_twice::<D, M, N, 0, 1>(&mut sums, &sixteen, w);
                w = add_twice::<D, M, N, 2, 3>(&mut sums, &sixteen, w);
            }
        } else {
            for _ in 0..t.x.segments {
                for fourth in 0..t.x.steps / 4 {
                    let mut sixteen = [sixteen_bytes(x[0].add(16 * fourth)); M];
                    for i in 1..M {
                        sixteen[i] = sixteen_bytes(x[i].add(16 * fourth));
                    }
                    w = add_twice::<D, M, N, 0, 1>(&mut sums, &sixteen, w);
                    w = add_twice::<D, M, N, 2, 3>(&mut sums, &sixteen, w);
                }
                let mut step = t.x.steps / 4 * 4;
                if t.x.steps - step >= 2 {
                    let mut eight = [eight_bytes(x[0].add(4 * step)); M];
                    for i in 1..M {
                        eight[i] = eight_bytes(x[i].add(4 * step));
                    }
                    w = add_twice::<D, M, N, 0, 1>(&mut sums, &eight, w);
                    step += 2;
                }
                if step < t.x.steps {
                    let mut four = [four_bytes(x[0].add(4 * step)); M];
                    for i in 1..M {
                        four[i] = four_bytes(x[i].add(4 * step));
                    }
                    w = add::<D, M, N>(&mut sums, &four, w);
                }
                for i in 0..M {
                    x[i] = x[i].wrapping_add(t.x.segment);
                }
            }
        }
        let mut scale = [D::V::load(t.scale); N];
        for v in 1..N {
            scale[v] = D::V::load(t.scale.add(4 * v));
        }
        finish8::<D::V, M, N>(&t.out, t.columns, sums, scale, first, rows);
    }
}

/// Adds the products of two steps, whose activations are in lanes `K` and `L`, and says where the next one's weights are.
///
/// # Safety
/// The machine has the instruction set of `D`. At `w` are the weights of two steps, of `N` vectors each.
#[inline(always)]
unsafe fn add_twice<D: Dots, const M: usize, const N: usize, const K: i32, const L: i32>(
    sums: &mut [[Sum<D>; N]; M],
    x: &[int8x16_t; M],
    w: *const i8,
) -> *const i8 {
    // SAFETY: the caller guarantees the instruction set and the weights.
    unsafe {
        for v in 0..N {
            let two = [vld1q_s8(w.add(16 * v)), vld1q_s8(w.add(16 * (N + v)))];
            for i in 0..M {
                sums[i][v] = D::dot_twice::<K, L>(sums[i][v], two, x[i]);
            }
        }
        w.add(32 * N)
    }
}

/// Adds the products of a step, whose activations are in the first lane, and says where the next one's weights are.
///
/// # Safety
/// The machine has the instruction set of `D`. At `w` are the weights of a step, of `N` vectors.
#[inline(always)]
unsafe fn add<D: Dots, const M: usize, const N: usize>(
    sums: &mut [[Sum<D>; N]; M],
    x: &[int8x16_t; M],
    w: *const i8,
) -> *const i8 {
    // SAFETY: the caller guarantees the instruction set and the weights.
    unsafe {
        for v in 0..N {
            let w = vld1q_s8(w.add(16 * v));
            for i in 0..M {
                sums[i][v] = D::dot::<0>(sums[i][v], w, x[i]);
            }
        }
        w.add(16 * N)
    }
}

/// Sixteen bytes.
///
/// # Safety
/// The machine has NEON. So many bytes can be read.
#[inline(always)]
unsafe fn sixteen_bytes(from: *const u8) -> int8x16_t {
    // SAFETY: the caller guarantees NEON and the bytes.
    unsafe { vreinterpretq_s8_u8(vld1q_u8(from)) }
}

/// Eight bytes in the lower half.
///
/// # Safety
/// The machine has NEON. So many bytes can be read.
#[inline(always)]
unsafe fn eight_bytes(from: *const u8) -> int8x16_t {
    // SAFETY: the caller guarantees NEON and the bytes.
    unsafe { vreinterpretq_s8_u8(vcombine_u8(vld1_u8(from), vdup_n_u8(0))) }
}

/// Four bytes in every lane.
///
/// # Safety
/// The machine has NEON. So many bytes can be read.
#[inline(always)]
unsafe fn four_bytes(from: *const u8) -> int8x16_t {
    // SAFETY: the caller guarantees NEON and the bytes, which are read without alignment.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(from.cast::<i32>().read_unaligned())) }
}
