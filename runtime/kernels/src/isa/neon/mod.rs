//! 128-bit vectors: NEON, which every 64-bit ARM processor has, and the products of bytes that later ones have: SDOT (FEAT_DotProd),
//! and USMMLA (FEAT_I8MM). The three sets differ in these products alone.
//!
//! But for USMMLA, a row's activations are read four steps at a time, and each step multiplies by one lane of them. That takes fewer loads
//! than the tiles of `tile.rs`, and adds in the same order.

mod dots;
mod matrix;
mod vectors;

use crate::{
    coded4::codes,
    tile::{RunBytes, Tile8, TileF, Tiles, Tiles8, Vectors, finish_f, pointers, run_tiles},
};
use std::arch::aarch64::*;

pub(crate) use vectors::{Dotprod, Neon, dot_halves, sdot, usdot};

/// Vectors of a panel of bytes: as many as make a vector of results.
const WIDEST: usize = 4;

/// Vectors of a panel of floats: seven rows by three vectors are what 32 registers hold with the fewest loads a product.
const WIDEST_F: usize = 3;

/// What is taken off activations where products are of signed bytes: a change of one bit.
pub(crate) const HALF: u8 = 128;

/// Defines a function that runs tiles by the first function where rows lie together, and else by the second.
macro_rules! either {
    ($name:ident, $together:ident, $apart:ident) => {
        /// Runs tiles on all rows, for a panel of so many vectors.
        ///
        /// # Safety
        /// The machine has the instruction set, and `t` points to what a tile of all rows and so many vectors needs: where rows lie
        /// together, whole groups of them can be read.
        unsafe fn $name(t: &Tile8<u8, i8>, vectors: usize) {
            // SAFETY: the caller guarantees what both ask for.
            unsafe { if t.x.together { $together(t, vectors) } else { $apart(t, vectors) } }
        }
    };
}

/// NEON alone.
pub(crate) mod plain {
    use super::*;

    /// The tiles of this instruction set.
    pub(crate) static TILES: Tiles = Tiles { narrow: Some(pairs), ..tiles(4, HALF, tiles8) };

    run_tiles!(tiles8, Tile8<u8, i8>, [dots::tile8], dots::Smull, 1: 8 [1, 2, 4], 2: 4 [1, 2], 3: 3 [1, 2], 4: 2 [1]);
    run_tiles!(pairs, Tile8<u8, i8>, [dots::tile8], dots::Pairs, 1: 8 [1, 2, 4], 2: 4 [1, 2], 3: 3 [1, 2], 4: 2 [1]);
    codes!(Neon, 4: 1, 2: 2, 1: 4);
}

/// With SDOT.
pub(crate) mod dotprod {
    use super::*;

    /// The tiles of this instruction set.
    pub(crate) static TILES: Tiles = Tiles { together: Some(dots::TOGETHER), ..tiles(4, HALF, tiles8) };

    either!(tiles8, together, apart);
    run_tiles!(
        apart, Tile8<u8, i8>, [dots::tile8], dots::Sdot, #[target_feature(enable = "dotprod")]
        1: 8 [1, 2, 4], 2: 8 [1, 2, 4], 3: 6 [1, 2, 4], 4: 5 [1, 2, 3]
    );
    run_tiles!(
        together, Tile8<u8, i8>, [dots::tile8_together], dots::Sdot, #[target_feature(enable = "dotprod")]
        1: 5 [1, 2, 3], 2: 5 [1, 2, 3], 3: 5 [1, 2, 3], 4: 5 [1, 2, 3]
    );
    codes!(
        Dotprod,
        #[target_feature(enable = "dotprod")]
        8: 1, 4: 2, 2: 4, 1: 4
    );
}

/// With USMMLA.
pub(crate) mod i8mm {
    use super::*;

    /// The tiles of this instruction set.
    pub(crate) static TILES: Tiles = Tiles { together: Some(matrix::TOGETHER), ..tiles(8, 0, tiles8) };

    either!(tiles8, together, apart);
    run_tiles!(
        apart, Tile8<u8, i8>, [matrix::tile8], Dotprod, #[target_feature(enable = "i8mm")]
        1: 8 [2, 4], 2: 8 [2, 4], 3: 6 [2, 4], 4: 6 [2, 4]
    );
    run_tiles!(
        together, Tile8<u8, i8>, [matrix::tile8_together], Dotprod, #[target_feature(enable = "i8mm")]
        1: 6 [2, 4], 2: 6 [2, 4], 3: 6 [2, 4], 4: 6 [2, 4]
    );
}

const fn tiles(step: usize, offset: u8, tiles8: RunBytes) -> Tiles {
    Tiles {
        lanes: Neon::LANES,
        vectors: WIDEST,
        vectors_f: WIDEST_F,
        step,
        together: None,
        offset,
        tiles8: Tiles8::Bytes(tiles8),
        narrow: None,
        tiles_f,
    }
}

run_tiles!(tiles_f, TileF, [tile_f], Neon, 1: 12 [1, 2, 4, 8], 2: 10 [1, 2, 4, 6], 3: 7 [1, 2, 4]);

/// Computes `rows` rows from `first` on, from one to `M`, of `N` vectors.
///
/// # Safety
/// As for the [`tile_f`](crate::tile::tile_f) of other sets.
#[allow(clippy::needless_range_loop)] // Iterators over arrays of registers would hide which of them meet.
#[inline(always)]
unsafe fn tile_f<V: Vectors<F = float32x4_t>, const M: usize, const N: usize>(t: &TileF, first: usize, rows: usize) {
    /// Adds the products of a step, whose activations are in lane `K`, and says where the next one's weights are.
    ///
    /// # Safety
    /// The machine has NEON. At `w` are the weights of a step, of `N` vectors.
    #[inline(always)]
    unsafe fn add<const M: usize, const N: usize, const K: i32>(
        sums: &mut [[float32x4_t; N]; M],
        x: &[float32x4_t; M],
        w: *const f32,
    ) -> *const f32 {
        // SAFETY: the caller guarantees NEON and the weights.
        unsafe {
            for v in 0..N {
                let w = vld1q_f32(w.add(4 * v));
                for i in 0..M {
                    sums[i][v] = vfmaq_laneq_f32::<K>(sums[i][v], w, x[i]);
                }
            }
            w.add(4 * N)
        }
    }

    // SAFETY: every address lies within what the caller vouches for. Rows step beyond their last segment in the end, but are not read
    // any more.
    unsafe {
        let mut x = pointers::<f32, M>(&t.x, first, rows);
        let mut w = t.weights;
        let mut start = [vld1q_f32(t.bias); N];
        for v in 1..N {
            start[v] = vld1q_f32(t.bias.add(4 * v));
        }
        let mut sums = [start; M];
        for _ in 0..t.x.segments {
            for fourth in 0..t.x.steps / 4 {
                let mut four = [vld1q_f32(x[0].add(4 * fourth)); M];
                for i in 1..M {
                    four[i] = vld1q_f32(x[i].add(4 * fourth));
                }
                w = add::<M, N, 0>(&mut sums, &four, w);
                w = add::<M, N, 1>(&mut sums, &four, w);
                w = add::<M, N, 2>(&mut sums, &four, w);
                w = add::<M, N, 3>(&mut sums, &four, w);
            }
            for step in t.x.steps / 4 * 4..t.x.steps {
                let mut one = [vld1q_dup_f32(x[0].add(step)); M];
                for i in 1..M {
                    one[i] = vld1q_dup_f32(x[i].add(step));
                }
                w = add::<M, N, 0>(&mut sums, &one, w);
            }
            for i in 0..M {
                x[i] = x[i].wrapping_add(t.x.segment);
            }
        }
        finish_f::<V, M, N>(t, sums, first, rows);
    }
}
