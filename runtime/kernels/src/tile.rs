//! Register tiles: some rows times a panel of columns, all sums in registers.
//!
//! The tiles are written once, over the few vector operations of [`Vectors`]; a file in `isa/`
//! says what these are in its instruction set, and which tiles fit its registers.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

/// Rows of a product's left operand, each in `segments` pieces of the same length.
///
/// A matrix has one segment. A window over an image has one for each line that it covers, for in
/// a line all of its taps lie side by side: that is how convolutions need no copy of the taps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operand<X> {
    /// From where offsets count.
    pub base: *const X,
    /// Where each row begins.
    pub offsets: *const usize,
    /// How many rows, at least one; a tile takes as many as it is made for.
    pub rows: usize,
    /// Pieces of a row.
    pub segments: usize,
    /// Elements from the beginning of a piece to that of the next.
    pub segment: usize,
    /// Steps of a piece: of one float, or of four 8-bit integers.
    pub steps: usize,
}

/// A tile on 8-bit integers.
pub(crate) struct Tile8 {
    /// The rows.
    pub x: Operand<u8>,
    /// A panel: for each step, four weights for each column.
    pub weights: *const i8,
    /// Where the sum of each column begins.
    pub bias: *const i32,
    /// What each column's sum is multiplied by.
    pub scale: *const f32,
    /// How many columns are wanted; what comes before this is as wide as the panel.
    pub columns: usize,
    /// What becomes of the sums.
    pub out: Out8,
}

/// What becomes of 32-bit sums, and where.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Out8 {
    /// 8-bit integers.
    Integer(Requantize),
    /// Floats.
    Float(Scale),
}

/// To `clamp(round_half_even(sum as f32 * scale) + zero, min, max)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Requantize {
    /// The first row's first result.
    pub y: *mut u8,
    /// Elements from row to row.
    pub stride: usize,
    /// Zero point.
    pub zero: u8,
    /// The least result.
    pub min: u8,
    /// The greatest result.
    pub max: u8,
}

/// To `clamp(sum as f32 * scale + bias, min, max)`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// The first row's first result.
    pub y: *mut f32,
    /// Elements from row to row.
    pub stride: usize,
    /// Added to each column; as wide as the panel.
    pub bias: *const f32,
    /// The least result.
    pub min: f32,
    /// The greatest result.
    pub max: f32,
}

/// A tile on floats: `y = clamp(start + x * weights + add, min, max)`.
pub(crate) struct TileF {
    /// The rows.
    pub x: Operand<f32>,
    /// A panel: for each step, one weight for each column.
    pub weights: *const f32,
    /// Where the sums begin.
    pub start: Start,
    /// How many columns are wanted.
    pub columns: usize,
    /// The first row's first result.
    pub y: *mut f32,
    /// Elements from row to row.
    pub stride: usize,
    /// What comes after the sum; nothing where other steps follow.
    pub finish: Option<FinishF>,
}

/// Where float sums begin.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Start {
    /// At a bias for each column, as wide as the panel.
    Bias(*const f32),
    /// At what is in the result.
    Result,
}

/// What float sums become.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FinishF {
    /// Rows to be added, null for none.
    pub add: *const f32,
    /// Elements from row to row of these.
    pub add_stride: usize,
    /// The least result.
    pub min: f32,
    /// The greatest result.
    pub max: f32,
}

/// The vector operations of an instruction set, which may be called only where the machine has it.
///
/// # Safety
/// The operations on floats and on integers must do what their names say in every lane.
pub(crate) unsafe trait Vectors {
    /// 32-bit lanes of a vector.
    const LANES: usize;
    /// 32-bit integers.
    type I: Copy;
    /// Floats.
    type F: Copy;
    /// Four 8-bit activations, for every lane.
    type X: Copy;
    /// Four 8-bit weights for each lane.
    type W: Copy;

    /// Reads a vector of integers.
    unsafe fn load_i32(from: *const i32) -> Self::I;
    /// Reads four activations.
    unsafe fn load_x(from: *const u8) -> Self::X;
    /// Reads four weights for each lane.
    unsafe fn load_w(from: *const i8) -> Self::W;
    /// Adds four products to each lane, wrapping around.
    unsafe fn dot(sum: Self::I, x: Self::X, w: Self::W) -> Self::I;
    /// Writes the first `columns` results of a row to `y`.
    unsafe fn requantize<const N: usize>(
        sums: [Self::I; N],
        scale: [Self::F; N],
        to: &Requantize,
        y: *mut u8,
        columns: usize,
    );
    /// Converts, rounding to the nearest.
    unsafe fn to_f32(sums: Self::I) -> Self::F;

    /// The same in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// Reads a vector of floats.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Reads the first `n` lanes; the others are 0.
    unsafe fn load_first(from: *const f32, n: usize) -> Self::F;
    /// Writes a vector of floats.
    unsafe fn store(to: *mut f32, x: Self::F);
    /// Writes the first `n` lanes.
    unsafe fn store_first(to: *mut f32, x: Self::F, n: usize);
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `sum + a * b`, rounded once where the machine can.
    unsafe fn mul_add(sum: Self::F, a: Self::F, b: Self::F) -> Self::F;
    /// `x` between `min` and `max`, or NaN if it is that.
    unsafe fn clamp(x: Self::F, min: Self::F, max: Self::F) -> Self::F;
}

/// The pointers to `M` rows; where there are fewer, the last one stands in for the others.
#[inline(always)]
unsafe fn rows<X, const M: usize>(x: &Operand<X>) -> [*const X; M] {
    let mut rows = [x.base; M];
    for i in 0..M {
        // SAFETY: the caller has offsets for `x.rows` rows, at least one, which lie within what
        // `base` points into.
        rows[i] = unsafe { x.base.add(*x.offsets.add(i.min(x.rows - 1))) };
    }
    rows
}

/// Computes up to `M` rows of `N` vectors.
///
/// # Safety
/// The machine has the instruction set of `V`, and what `t` points to is there: for each row its
/// segments, each of `4 * steps` elements; weights, biases and scales for `N` vectors of columns;
/// results for `columns` columns, at most those and more than one vector less.
#[inline(always)]
pub(crate) unsafe fn tile8<V: Vectors, const M: usize, const N: usize>(t: &Tile8) {
    // SAFETY: every address lies within what the caller vouches for. Rows step beyond their last
    // segment in the end, but are not read any more.
    unsafe {
        let mut x = rows::<u8, M>(&t.x);
        let mut w = t.weights;
        let mut start = [V::load_i32(t.bias); N];
        for v in 1..N {
            start[v] = V::load_i32(t.bias.add(v * V::LANES));
        }
        let mut sums = [start; M];
        for _ in 0..t.x.segments {
            for step in 0..t.x.steps {
                let mut panel = [V::load_w(w); N];
                for v in 1..N {
                    panel[v] = V::load_w(w.add(v * V::LANES * 4));
                }
                for i in 0..M {
                    let four = V::load_x(x[i].add(4 * step));
                    for v in 0..N {
                        sums[i][v] = V::dot(sums[i][v], four, panel[v]);
                    }
                }
                w = w.add(N * V::LANES * 4);
            }
            for i in 0..M {
                x[i] = x[i].wrapping_add(t.x.segment);
            }
        }
        let mut scale = [V::load(t.scale); N];
        for v in 1..N {
            scale[v] = V::load(t.scale.add(v * V::LANES));
        }
        match &t.out {
            Out8::Integer(to) => {
                for i in 0..M {
                    if i < t.x.rows {
                        V::requantize(sums[i], scale, to, to.y.add(i * to.stride), t.columns);
                    }
                }
            }
            Out8::Float(to) => {
                let (min, max) = (V::splat(to.min), V::splat(to.max));
                for v in 0..N {
                    let bias = V::load(to.bias.add(v * V::LANES));
                    for i in 0..M {
                        if i < t.x.rows {
                            let y = V::add(V::mul(V::to_f32(sums[i][v]), scale[v]), bias);
                            let y = V::clamp(y, min, max);
                            let at = v * V::LANES;
                            store::<V>(to.y.add(i * to.stride + at), y, t.columns - at);
                        }
                    }
                }
            }
        }
    }
}

/// Computes up to `M` rows of `N` vectors.
///
/// # Safety
/// As for [`tile8`], but segments have `steps` elements.
#[inline(always)]
pub(crate) unsafe fn tile_f<V: Vectors, const M: usize, const N: usize>(t: &TileF) {
    // SAFETY: as in `tile8`.
    unsafe {
        let mut x = rows::<f32, M>(&t.x);
        let mut w = t.weights;
        let mut sums = [[V::splat(0.0); N]; M];
        for v in 0..N {
            let at = v * V::LANES;
            match t.start {
                Start::Bias(bias) => {
                    let bias = V::load(bias.add(at));
                    for i in 0..M {
                        sums[i][v] = bias;
                    }
                }
                Start::Result => {
                    for i in 0..M {
                        if i < t.x.rows {
                            sums[i][v] = load::<V>(t.y.add(i * t.stride + at), t.columns - at);
                        }
                    }
                }
            }
        }
        for _ in 0..t.x.segments {
            for step in 0..t.x.steps {
                let mut panel = [V::load(w); N];
                for v in 1..N {
                    panel[v] = V::load(w.add(v * V::LANES));
                }
                for i in 0..M {
                    let one = V::splat(*x[i].add(step));
                    for v in 0..N {
                        sums[i][v] = V::mul_add(sums[i][v], one, panel[v]);
                    }
                }
                w = w.add(N * V::LANES);
            }
            for i in 0..M {
                x[i] = x[i].wrapping_add(t.x.segment);
            }
        }
        for v in 0..N {
            let at = v * V::LANES;
            for i in 0..M {
                if i < t.x.rows {
                    let mut y = sums[i][v];
                    if let Some(finish) = t.finish {
                        if !finish.add.is_null() {
                            y = V::add(y, load::<V>(finish.add.add(i * finish.add_stride + at), t.columns - at));
                        }
                        y = V::clamp(y, V::splat(finish.min), V::splat(finish.max));
                    }
                    store::<V>(t.y.add(i * t.stride + at), y, t.columns - at);
                }
            }
        }
    }
}

/// Reads a vector, or the first `columns` lanes of it if there are not more.
///
/// # Safety
/// The machine has the instruction set, and there is so much to read.
#[inline(always)]
unsafe fn load<V: Vectors>(from: *const f32, columns: usize) -> V::F {
    // SAFETY: the caller's.
    unsafe { if columns >= V::LANES { V::load(from) } else { V::load_first(from, columns) } }
}

/// Writes a vector, or the first `columns` lanes of it if there are not more.
///
/// # Safety
/// The machine has the instruction set, and there is so much room.
#[inline(always)]
unsafe fn store<V: Vectors>(to: *mut f32, x: V::F, columns: usize) {
    // SAFETY: the caller's.
    unsafe { if columns >= V::LANES { V::store(to, x) } else { V::store_first(to, x, columns) } }
}

/// The tiles of an instruction set.
#[derive(Debug)]
pub(crate) struct Tiles {
    /// 32-bit lanes of a vector.
    pub lanes: usize,
    /// For a panel of each number of vectors, from 0 on, the rows of its largest tile.
    pub rows: &'static [usize],
    /// Runs [`tile8`] for a panel of so many vectors, on as many rows as `x` has. Safe to call
    /// only where the machine has the instruction set, and with what [`tile8`] asks for.
    pub tile8: unsafe fn(&Tile8, usize),
    /// Runs [`tile_f`] in the same way.
    pub tile_f: unsafe fn(&TileF, usize),
}

/// Defines `TILES` for a [`Vectors`] with panels of up to so many vectors, for each the numbers of
/// rows for which there is a tile, in ascending order.
macro_rules! tiles {
    ($vectors:ty, $(#[$features:meta])* $($n:literal: [$($m:literal),+]),+) => {
        /// The tiles of this instruction set.
        pub(crate) static TILES: $crate::tile::Tiles = $crate::tile::Tiles {
            lanes: <$vectors as $crate::tile::Vectors>::LANES,
            rows: &[0, $($crate::tile::last(&[$($m),+])),+],
            tile8,
            tile_f,
        };

        unsafe fn tile8(t: &$crate::tile::Tile8, vectors: usize) {
            $(#[$features])*
            unsafe fn run<const M: usize, const N: usize>(t: &$crate::tile::Tile8) {
                // SAFETY: the caller's.
                unsafe { $crate::tile::tile8::<$vectors, M, N>(t) }
            }
            // SAFETY: the caller's.
            unsafe {
                match (vectors, t.x.rows) {
                    $($(($n, ..=$m) => run::<$m, $n>(t),)+)+
                    (n, m) => unreachable!("a tile of {m} rows of {n} vectors"),
                }
            }
        }

        unsafe fn tile_f(t: &$crate::tile::TileF, vectors: usize) {
            $(#[$features])*
            unsafe fn run<const M: usize, const N: usize>(t: &$crate::tile::TileF) {
                // SAFETY: the caller's.
                unsafe { $crate::tile::tile_f::<$vectors, M, N>(t) }
            }
            // SAFETY: the caller's.
            unsafe {
                match (vectors, t.x.rows) {
                    $($(($n, ..=$m) => run::<$m, $n>(t),)+)+
                    (n, m) => unreachable!("a tile of {m} rows of {n} vectors"),
                }
            }
        }
    };
}

pub(crate) use tiles;

/// The last of a list.
pub(crate) const fn last(list: &[usize]) -> usize {
    list[list.len() - 1]
}
