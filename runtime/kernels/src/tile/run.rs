//! The tiles of an instruction set, and how they go over all rows.

use super::{Tile8, TileF};

/// The tiles of an instruction set.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// 32-bit lanes of a vector.
    pub lanes: usize,
    /// How many vectors of columns a panel of bytes has at most.
    pub vectors: usize,
    /// The same of floats.
    pub vectors_f: usize,
    /// 8-bit activations of a step.
    pub step: usize,
    /// How rows of bytes can lie too, from where tiles read them faster.
    pub together: Option<Together>,
    /// What is taken off 8-bit activations where they are copied for tiles, 0 or 128; sums have to begin with so many times the weights.
    /// Where it is not 0, they have to be copied.
    pub offset: u8,
    /// Runs a tile such as [`tile8`](super::tile8) on all rows, for a panel of so many vectors. Safe to call only where the
    /// machine has the instruction set, and with what it asks for.
    pub tiles8: Tiles8,
    /// The same of bytes where no weight is -128, if that is faster.
    pub narrow: Option<RunBytes>,
    /// Runs [`tile_f`](super::tile_f) in the same way.
    pub tiles_f: unsafe fn(&TileF, usize),
}

/// Rows of bytes that lie together: some bytes of each, the next ones of each, and so on.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "ARM alone has such tiles"))]
pub(crate) enum Together {
    /// Five rows, 16 bytes of each.
    FiveBy16,
    /// Six rows, eight bytes of each.
    SixBy8,
}

impl Together {
    /// How many rows.
    pub const fn rows(self) -> usize {
        match self {
            Self::FiveBy16 => 5,
            Self::SixBy8 => 6,
        }
    }

    /// Bytes of a row that follow each other.
    pub const fn bytes(self) -> usize {
        match self {
            Self::FiveBy16 => 16,
            Self::SixBy8 => 8,
        }
    }
}

/// Runs tiles of bytes on all rows, for a panel of so many vectors.
pub(crate) type RunBytes = unsafe fn(&Tile8<u8, i8>, usize);

/// The tiles on 8-bit integers, by the type of which these are in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tiles8 {
    /// As bytes.
    Bytes(RunBytes),
    /// As 16-bit integers.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "AVX2 alone has such tiles"))]
    Words(unsafe fn(&Tile8<i16, i16>, usize)),
}

/// Defines `TILES` for a [`Products`]: for panels of each number of vectors the rows of the largest
/// tile, and of those that take what rows are left, in ascending order; or another set's floats.
macro_rules! tiles {
    ($vectors:ty, $(#[$features:meta])*
        int8: $as:ident $($n:literal: $most:literal [$($m:literal),+]),+;
        float: $($n_f:literal: $most_f:literal [$($m_f:literal),+]),+
    ) => {
        $crate::tile::tiles!($vectors, $(#[$features])* int8: $as $($n: $most [$($m),+]),+; float: tiles_f);
        $crate::tile::run_tiles!(
            tiles_f, $crate::tile::TileF, [$crate::tile::tile_f], $vectors, $(#[$features])* $($n_f: $most_f [$($m_f),+]),+
        );
    };
    ($vectors:ty, $(#[$features:meta])*
        int8: $as:ident $($n:literal: $most:literal [$($m:literal),+]),+;
        float: $tiles_f:path
    ) => {
        /// The tiles of this instruction set.
        pub(crate) static TILES: $crate::tile::Tiles = $crate::tile::Tiles {
            lanes: <$vectors as $crate::tile::Vectors>::LANES,
            vectors: $crate::tile::last(&[$($n),+]),
            vectors_f: $crate::tile::last(&[$($n),+]),
            step: <$vectors as $crate::tile::Products>::STEP,
            together: None,
            offset: 0,
            tiles8: $crate::tile::Tiles8::$as(tiles8),
            narrow: None,
            tiles_f: $tiles_f,
        };
        $crate::tile::run_tiles!(
            tiles8, $crate::tile::Of8<$vectors>, [$crate::tile::tile8], $vectors, $(#[$features])* $($n: $most [$($m),+]),+
        );
    };
}

/// Defines a function that runs a tile on all rows: `$tile`, a generic function of vectors, rows and vectors of columns, for panels of
/// each number of vectors with the rows of the largest tile, and of those that take what rows are left, in ascending order.
macro_rules! run_tiles {
    ($name:ident, $operands:ty, [$($tile:tt)+], $vectors:ty,
        $(#[$features:meta])* $($n:literal: $most:literal [$($m:literal),+]),+
    ) => {
        /// Runs tiles on all rows, for a panel of so many vectors.
        ///
        /// # Safety
        /// The machine has the instruction set, and `t` points to what a tile of all rows and so many vectors needs.
        pub(crate) unsafe fn $name(t: &$operands, vectors: usize) {
            /// # Safety
            /// As for the function around it, with a panel of `N` vectors.
            $(#[$features])*
            unsafe fn full<const M: usize, const N: usize>(t: &$operands) -> usize {
                let whole = t.x.rows - t.x.rows % M;
                for first in (0..whole).step_by(M) {
                    // SAFETY: the caller guarantees the instruction set and the operands. `first + M` is at most
                    // `whole`, so there are `M` rows.
                    unsafe { $($tile)+::<$vectors, M, N>(t, first, M) }
                }
                whole
            }
            /// # Safety
            /// As for the function around it, with a panel of `N` vectors. From 1 to `M` rows begin with `first`.
            $(#[$features])*
            unsafe fn rest<const M: usize, const N: usize>(t: &$operands, first: usize) {
                // SAFETY: the caller guarantees the instruction set, the operands, and from 1 to `M` rows.
                unsafe { $($tile)+::<$vectors, M, N>(t, first, t.x.rows - first) }
            }
            // SAFETY: the caller guarantees the instruction set and the operands. Each arm is that of the panel's
            // vectors. `rest` gets at least one row, and at most as many as its tile has.
            unsafe {
                match vectors {
                    $($n => {
                        let first = full::<$most, $n>(t);
                        match t.x.rows - first {
                            0 => {}
                            $(..=$m => rest::<$m, $n>(t, first),)+
                            _ => rest::<$most, $n>(t, first),
                        }
                    })+
                    _ => unreachable!("a panel of {vectors} vectors"),
                }
            }
        }
    };
}

pub(crate) use {run_tiles, tiles};

/// The last of a list.
pub(crate) const fn last(list: &[usize]) -> usize {
    list[list.len() - 1]
}
