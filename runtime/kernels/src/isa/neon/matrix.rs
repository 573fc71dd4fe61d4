//! Tiles by products of matrices: USMMLA multiplies two rows of eight bytes by two columns of them.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use super::vectors::usmmla;
use crate::tile::{Tile8, Together, Vectors, finish8, pointers};
use std::arch::aarch64::*;

/// How rows may lie together: a step of each.
pub(super) const TOGETHER: Together = Together::SixBy8;

/// How many these are.
const ROWS: usize = TOGETHER.rows();

/// Bytes of a step.
const STEP: usize = TOGETHER.bytes();

/// Sums of two rows and two columns: those of the first row, then those of the second.
type Sums = int32x4_t;

/// Computes `rows` rows from `first` on, from one to `M`, of `N` vectors. `M` is even.
///
/// # Safety
/// As for the [`tile8`](crate::tile::tile8) of other sets, on a machine with FEAT_I8MM, and with steps of eight bytes.
#[inline(always)]
pub(super) unsafe fn tile8<V: Vectors<I = int32x4_t, F = float32x4_t>, const M: usize, const N: usize>(
    t: &Tile8<u8, i8>,
    first: usize,
    rows: usize,
) {
    // SAFETY: the caller guarantees what this asks for.
    unsafe { tile::<V, M, N, false>(t, first, rows) }
}

/// The same of rows that lie together.
///
/// # Safety
/// As for [`tile8`], with at most [`ROWS`]. `first` is a multiple of these. In the place of rows that are not there may be anything,
/// but it can be read.
#[inline(always)]
pub(super) unsafe fn tile8_together<V: Vectors<I = int32x4_t, F = float32x4_t>, const M: usize, const N: usize>(
    t: &Tile8<u8, i8>,
    first: usize,
    rows: usize,
) {
    // SAFETY: the caller guarantees what this asks for.
    unsafe { tile::<V, M, N, true>(t, first, rows) }
}

/// # Safety
/// As for [`tile8`], or, if `ARE_TOGETHER`, [`tile8_together`].
#[inline(always)]
unsafe fn tile<V: Vectors<I = int32x4_t, F = float32x4_t>, const M: usize, const N: usize, const ARE_TOGETHER: bool>(
    t: &Tile8<u8, i8>,
    first: usize,
    rows: usize,
) {
    const { assert!(M.is_multiple_of(2) && V::LANES == 4) }
    debug_assert!(!ARE_TOGETHER || first.is_multiple_of(ROWS), "whole groups before the first row");
    // SAFETY: every address lies within what the caller vouches for. Rows step beyond their last segment in the end, but are not read
    // any more.
    unsafe {
        let mut x = pointers::<u8, M>(&t.x, first, rows);
        let mut w = t.weights;
        // Two columns of each vector: half of these are unused, as arrays can't have half as many rows as `M`.
        let mut sums = [[[vdupq_n_s32(0); 2]; N]; M];
        for v in 0..N {
            let bias = vreinterpretq_s64_s32(vld1q_s32(t.bias.add(4 * v)));
            for pair in 0..M / 2 {
                sums[pair][v] = [
                    vreinterpretq_s32_s64(vdupq_laneq_s64::<0>(bias)),
                    vreinterpretq_s32_s64(vdupq_laneq_s64::<1>(bias)),
                ];
            }
        }
        if ARE_TOGETHER {
            let mut x = x[0];
            // Two steps a turn: half as many instructions count them.
            for _ in 0..t.x.steps / 2 {
                w = add::<M, N>(&mut sums, &pairs(x), w);
                w = add::<M, N>(&mut sums, &pairs(x.add(ROWS * STEP)), w);
                x = x.add(2 * ROWS * STEP);
            }
            if !t.x.steps.is_multiple_of(2) {
                add::<M, N>(&mut sums, &pairs(x), w);
            }
        } else {
            for _ in 0..t.x.segments {
                for step in 0..t.x.steps {
                    // Eight bytes of each row: of sixteen, one load instead of two, there would be more than registers hold.
                    let mut pairs = [vdupq_n_u8(0); M];
                    for pair in 0..M / 2 {
                        let (upper, lower) = (x[2 * pair].add(8 * step), x[2 * pair + 1].add(8 * step));
                        pairs[pair] = vcombine_u8(vld1_u8(upper), vld1_u8(lower));
                    }
                    w = add::<M, N>(&mut sums, &pairs, w);
                }
                for i in 0..M {
                    x[i] = x[i].wrapping_add(t.x.segment);
                }
            }
        }
        let mut by_rows = [[vdupq_n_s32(0); N]; M];
        for pair in 0..M / 2 {
            for v in 0..N {
                let [a, b] = sums[pair][v].map(|sums| vreinterpretq_s64_s32(sums));
                by_rows[2 * pair][v] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
                by_rows[2 * pair + 1][v] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
            }
        }
        let mut scale = [V::load(t.scale); N];
        for v in 1..N {
            scale[v] = V::load(t.scale.add(v * V::LANES));
        }
        finish8::<V, M, N>(&t.out, t.columns, by_rows, scale, first, rows);
    }
}

/// A step of each pair of rows that lie together.
///
/// # Safety
/// The machine has NEON. At `x` such a step of all of them begins.
#[inline(always)]
unsafe fn pairs<const M: usize>(x: *const u8) -> [uint8x16_t; M] {
    // SAFETY: the caller guarantees NEON, and the bytes.
    unsafe {
        let mut pairs = [vdupq_n_u8(0); M];
        for pair in 0..M / 2 {
            pairs[pair] = vld1q_u8(x.add(2 * pair * STEP));
        }
        pairs
    }
}

/// Adds the products of a step, and says where the next one's weights are.
///
/// # Safety
/// The machine has FEAT_I8MM. At `w` are the weights of a step, of `N` vectors.
#[inline(always)]
unsafe fn add<const M: usize, const N: usize>(
    sums: &mut [[[Sums; 2]; N]; M],
    x: &[uint8x16_t; M],
    w: *const i8,
) -> *const i8 {
    // SAFETY: the caller guarantees the instruction set and the weights.
    unsafe {
        for v in 0..N {
            for half in 0..2 {
                let w = vld1q_s8(w.add(32 * v + 16 * half));
                for pair in 0..M / 2 {
                    sums[pair][v][half] = usmmla(sums[pair][v][half], x[pair], w);
                }
            }
        }
        w.add(32 * N)
    }
}
