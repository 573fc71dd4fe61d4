//! Register tiles: some rows times a panel of columns, all sums in registers.
//!
//! The tiles are written once, over the few vector operations of [`Vectors`]; a file in `isa/`
//! says what these are in its instruction set, and which tiles fit its registers.

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

mod run;

pub(crate) use run::{RunBytes, Tiles, Tiles8, Together, last, run_tiles, tiles};

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
    /// How many rows.
    pub rows: usize,
    /// Pieces of a row.
    pub segments: usize,
    /// Elements from the beginning of a piece to that of the next.
    pub segment: usize,
    /// Steps of a piece: of one float, or of as many integers as [`Tiles::step`] says.
    pub steps: usize,
    /// Whether they lie as [`Tiles::together`] says. Offsets are those of each one's first piece, and there is one segment.
    #[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "ARM alone has such tiles"))]
    pub together: bool,
}

/// Bytes that can be read behind the weights of a panel: AMX reads whole tiles, and multiplies what isn't wanted by zeros.
pub(crate) const OVERREAD: usize = 15 * 4 * 64;

/// A tile on 8-bit integers, which instruction sets without products of bytes read as 16-bit ones.
pub(crate) struct Tile8<X, W> {
    /// The rows.
    pub x: Operand<X>,
    /// A panel: for each step, its weights for each column. Behind bytes, [`OVERREAD`] more can be read.
    pub weights: *const W,
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

#[cfg(target_arch = "x86_64")]
impl Out8 {
    /// The same from a later column on.
    ///
    /// # Safety
    /// There are so many columns.
    pub unsafe fn columns_from(self, column: usize) -> Self {
        // SAFETY: the caller guarantees that the result and its biases have these columns.
        unsafe {
            match self {
                Self::Integer(to) => Self::Integer(Requantize { y: to.y.add(column), ..to }),
                Self::Float(to) => Self::Float(Scale { y: to.y.add(column), bias: to.bias.add(column), ..to }),
            }
        }
    }
}

/// To `clamp(round_half_even(sum as f32 * scale) + zero, min, max)`. Of vectors that narrow
/// integers as they are packed, four at a time make one of bytes, be they of one row or of several.
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

/// A tile on floats: `y = clamp(bias + x * weights + add, min, max)`.
pub(crate) struct TileF {
    /// The rows.
    pub x: Operand<f32>,
    /// A panel: for each step, one weight for each column.
    pub weights: *const f32,
    /// Where the sum of each column begins; as wide as the panel.
    pub bias: *const f32,
    /// How many columns are wanted.
    pub columns: usize,
    /// Rows to be added, null for none.
    pub add: *const f32,
    /// Elements from row to row of these.
    pub add_stride: usize,
    /// The first row's first result.
    pub y: *mut f32,
    /// Elements from row to row.
    pub stride: usize,
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

    /// Reads a vector of integers.
    ///
    /// # Safety
    /// The machine has the instruction set. `from` is aligned, and `LANES` integers can be read there.
    unsafe fn load_i32(from: *const i32) -> Self::I;
    /// Writes the first `columns` results of each of `rows` rows from `y` on. Sums are those of
    /// the first row's `N` vectors, then those of the second row's, and so on. Scaled, they are
    /// integers of 32 bits.
    ///
    /// # Safety
    /// The machine has the instruction set. `rows` is at most `4 / N`, but at least 1. `columns` is at most
    /// `N * LANES`, and more than `(N - 1) * LANES`. From `y` on are rows that begin `to.stride` apart:
    /// `columns` bytes of each can be written, and nothing else uses them meanwhile.
    unsafe fn requantize<const N: usize>(
        sums: [Self::I; 4],
        scale: [Self::F; 4],
        to: &Requantize,
        y: *mut u8,
        rows: usize,
        columns: usize,
    );
    /// Converts, rounding to the nearest.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn to_f32(sums: Self::I) -> Self::F;

    /// The same in every lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn splat(x: f32) -> Self::F;
    /// Reads a vector of floats.
    ///
    /// # Safety
    /// The machine has the instruction set. `from` is aligned, and `LANES` floats can be read there.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Reads the first `n` lanes; the others are 0.
    ///
    /// # Safety
    /// The machine has the instruction set. `n` is at most `LANES`. `from` is aligned, and `n` floats can be
    /// read there.
    unsafe fn load_first(from: *const f32, n: usize) -> Self::F;
    /// Writes a vector of floats.
    ///
    /// # Safety
    /// The machine has the instruction set. `to` is aligned. `LANES` floats can be written there, and nothing
    /// else uses them meanwhile.
    unsafe fn store(to: *mut f32, x: Self::F);
    /// Writes the first `n` lanes.
    ///
    /// # Safety
    /// The machine has the instruction set. `n` is at most `LANES`. `to` is aligned. `n` floats can be written
    /// there, and nothing else uses them meanwhile.
    unsafe fn store_first(to: *mut f32, x: Self::F, n: usize);
    /// `a + b`.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `sum + a * b`, rounded once where the machine can.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn mul_add(sum: Self::F, a: Self::F, b: Self::F) -> Self::F;
    /// `x` between `min` and `max`, or NaN if it is that.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn clamp(x: Self::F, min: Self::F, max: Self::F) -> Self::F;
}

/// Products of bytes, four to a lane, which may be called only where the machine has the instruction set.
///
/// # Safety
/// The operations must do what their names say in every lane.
pub(crate) unsafe trait Products: Vectors {
    /// Of which type 8-bit activations are in memory.
    type Activation: Copy;
    /// Of which type 8-bit weights are in memory: of the same size.
    type Weight: Copy;
    /// Four bytes of activations, for every lane.
    type X: Copy;
    /// Four bytes of weights for each lane.
    type W: Copy;
    /// Activations of a step: how many four bytes hold.
    const STEP: usize = 4 / size_of::<Self::Activation>();

    /// Reads the activations of a step.
    ///
    /// # Safety
    /// The machine has the instruction set. Four bytes can be read at `from`.
    unsafe fn load_x(from: *const Self::Activation) -> Self::X;
    /// Reads the weights of a step for each lane.
    ///
    /// # Safety
    /// The machine has the instruction set. `4 * LANES` bytes can be read at `from`.
    unsafe fn load_w(from: *const Self::Weight) -> Self::W;
    /// Adds a step's products to each lane, wrapping around.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn dot(sum: Self::I, x: Self::X, w: Self::W) -> Self::I;
}

/// The operands of a tile on 8-bit integers by the vectors of an instruction set.
pub(crate) type Of8<V> = Tile8<<V as Products>::Activation, <V as Products>::Weight>;

/// A loop of up to 16 turns, written out: where a compiler leaves it a loop, sums are in memory.
macro_rules! unrolled {
    ($i:ident < $n:expr => $body:block) => {
        unrolled!($i < $n => $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($i:ident < $n:expr => $body:block, $($index:literal)+) => {$(
        if $index < $n {
            let $i = $index;
            $body
        }
    )+};
}

pub(crate) use unrolled;

/// The pointers to `rows` rows from `first` on; up to `M`, the last one stands in for others.
///
/// # Safety
/// `rows` is at least 1. At `x.offsets` are the offsets of these rows, which lie within what `x.base` points into.
#[inline(always)]
pub(crate) unsafe fn pointers<X, const M: usize>(x: &Operand<X>, first: usize, rows: usize) -> [*const X; M] {
    let mut pointers = [x.base; M];
    for i in 0..M {
        // SAFETY: the caller has offsets for these rows, at least one, which lie within what
        // `base` points into.
        pointers[i] = unsafe { x.base.add(*x.offsets.add(first + i.min(rows - 1))) };
    }
    pointers
}

/// Computes `rows` rows from `first` on, from one to `M`, of `N` vectors.
///
/// # Safety
/// The machine has the instruction set of `V`, and what `t` points to is there: for each row its
/// segments, each of `STEP * steps` elements; weights, biases and scales for `N` vectors of columns;
/// results for `columns` columns, at most those and more than one vector less. `t.x` has these
/// rows, as many as `rows` says. Pointers are aligned, and nothing else uses the results meanwhile.
#[inline(always)]
pub(crate) unsafe fn tile8<V: Products, const M: usize, const N: usize>(t: &Of8<V>, first: usize, rows: usize) {
    // SAFETY: every address lies within what the caller vouches for. Rows step beyond their last
    // segment in the end, but are not read any more.
    unsafe {
        let mut x = pointers::<V::Activation, M>(&t.x, first, rows);
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
                    panel[v] = V::load_w(w.add(v * V::LANES * V::STEP));
                }
                for i in 0..M {
                    let four = V::load_x(x[i].add(V::STEP * step));
                    for v in 0..N {
                        sums[i][v] = V::dot(sums[i][v], four, panel[v]);
                    }
                }
                w = w.add(N * V::LANES * V::STEP);
            }
            for i in 0..M {
                x[i] = x[i].wrapping_add(t.x.segment);
            }
        }
        let mut scale = [V::load(t.scale); N];
        for v in 1..N {
            scale[v] = V::load(t.scale.add(v * V::LANES));
        }
        finish8::<V, M, N>(&t.out, t.columns, sums, scale, first, rows);
    }
}

/// Writes what becomes of the sums of `rows` rows from `first` on, from one to `M`, of `N` vectors.
///
/// # Safety
/// The machine has the instruction set of `V`. `out` has these rows, and `columns` columns of them, at most those of
/// `N` vectors and more than those of one less; its biases are for `N` vectors. Nothing else uses the results meanwhile.
#[inline(always)]
pub(crate) unsafe fn finish8<V: Vectors, const M: usize, const N: usize>(
    out: &Out8,
    columns: usize,
    sums: [[V::I; N]; M],
    scale: [V::F; N],
    first: usize,
    rows: usize,
) {
    // SAFETY: every address lies within what the caller vouches for.
    unsafe {
        match out {
            Out8::Integer(to) => {
                let together = const { if N < 4 { 4 / N } else { 1 } };
                unrolled!(group < M.div_ceil(together) => {
                    let i = group * together;
                    if i < rows {
                        let (mut four, mut scales) = ([sums[i][0]; 4], [scale[0]; 4]);
                        for k in 0..together * N {
                            (four[k], scales[k]) = (sums[(i + k / N).min(M - 1)][k % N], scale[k % N]);
                        }
                        let y = to.y.add((first + i) * to.stride);
                        V::requantize::<N>(four, scales, to, y, together.min(rows - i), columns);
                    }
                });
            }
            Out8::Float(to) => {
                let (min, max) = (V::splat(to.min), V::splat(to.max));
                unrolled!(v < N => {
                    let bias = V::load(to.bias.add(v * V::LANES));
                    unrolled!(i < M => {
                        if i < rows {
                            let y = V::add(V::mul(V::to_f32(sums[i][v]), scale[v]), bias);
                            let y = V::clamp(y, min, max);
                            let at = v * V::LANES;
                            store::<V>(to.y.add((first + i) * to.stride + at), y, columns - at);
                        }
                    });
                });
            }
        }
    }
}

/// Computes `rows` rows from `first` on, from one to `M`, of `N` vectors.
///
/// # Safety
/// As for [`tile8`], but segments have `steps` elements. Where `add` is not null, it has these rows and columns, too.
#[inline(always)]
pub(crate) unsafe fn tile_f<V: Vectors, const M: usize, const N: usize>(t: &TileF, first: usize, rows: usize) {
    // SAFETY: every address lies within what the caller vouches for. Rows step beyond their last
    // segment in the end, but are not read any more.
    unsafe {
        let mut x = pointers::<f32, M>(&t.x, first, rows);
        let mut w = t.weights;
        let mut start = [V::load(t.bias); N];
        for v in 1..N {
            start[v] = V::load(t.bias.add(v * V::LANES));
        }
        let mut sums = [start; M];
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
        finish_f::<V, M, N>(t, sums, first, rows);
    }
}

/// Writes what becomes of the sums of `rows` rows from `first` on, from one to `M`, of `N` vectors.
///
/// # Safety
/// As for [`tile_f`], of whose operands the rows and weights are not needed.
#[inline(always)]
pub(crate) unsafe fn finish_f<V: Vectors, const M: usize, const N: usize>(
    t: &TileF,
    sums: [[V::F; N]; M],
    first: usize,
    rows: usize,
) {
    // SAFETY: every address lies within what the caller vouches for. `add` is followed only if it is not null.
    unsafe {
        unrolled!(v < N => {
            let at = v * V::LANES;
            unrolled!(i < M => {
                if i < rows {
                    let mut y = sums[i][v];
                    if !t.add.is_null() {
                        y = V::add(y, load::<V>(t.add.add((first + i) * t.add_stride + at), t.columns - at));
                    }
                    let y = V::clamp(y, V::splat(t.min), V::splat(t.max));
                    store::<V>(t.y.add((first + i) * t.stride + at), y, t.columns - at);
                }
            });
        });
    }
}

/// Reads a vector, or the first `columns` lanes of it if there are not more.
///
/// # Safety
/// The machine has the instruction set. `from` is aligned, and that many floats can be read there.
#[inline(always)]
unsafe fn load<V: Vectors>(from: *const f32, columns: usize) -> V::F {
    // SAFETY: the caller guarantees the instruction set, and `columns` floats at `from` or a whole vector.
    unsafe { if columns >= V::LANES { V::load(from) } else { V::load_first(from, columns) } }
}

/// Writes a vector, or the first `columns` lanes of it if there are not more.
///
/// # Safety
/// The machine has the instruction set. `to` is aligned. That many floats can be written there, and nothing else uses
/// them meanwhile.
#[inline(always)]
unsafe fn store<V: Vectors>(to: *mut f32, x: V::F, columns: usize) {
    // SAFETY: the caller guarantees the instruction set, and room at `to` for `columns` floats or a whole vector.
    unsafe { if columns >= V::LANES { V::store(to, x) } else { V::store_first(to, x, columns) } }
}
