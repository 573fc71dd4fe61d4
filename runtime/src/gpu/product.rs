//! Products on tensor cores: a matrix by a weight, or a convolution as the product of its patches by a weight (implicit GEMM,
//! [cuDNN](https://arxiv.org/abs/1410.0759)).
//!
//! # How it is divided
//! A cube computes a tile of the result, each of its planes a part of that. Both operands come in chunks of [`CHUNK`] bytes a row,
//! through shared memory: while one chunk is multiplied, the next one is on its way. A unit holds the 16 bytes that lie side by
//! side where PTX's fragments have four times four bytes: which number of a row is multiplied first changes nothing, as long as
//! both operands agree. So shared memory is read 16 bytes at a time and no plane meets a bank twice.
//!
//! # Numbers
//! Every `mma.sync` has the same shape in bytes: 16 by 32 bytes of one operand, 8 by 32 of the other. So codes, halves and floats
//! differ in one instruction. Floats keep all their bits by three products of what TF32 holds of them and what it leaves
//! ([Ootomo and Yokota](https://arxiv.org/abs/2203.03341)).

use cubecl::prelude::*;

/// Bytes of a row that are multiplied between two barriers.
pub const CHUNK: usize = 64;
/// Bytes that a unit reads at once.
pub const CELL: usize = 16;
/// Cells of a chunk.
const CELLS: usize = CHUNK / CELL;
/// Units of a plane: what `mma` is defined for.
const PLANE: usize = 32;

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// Unsigned 8-bit codes by signed ones, with sums of 32 bits.
    Codes,
    /// Floats of 32 bits, of which TF32 keeps 10 of 23.
    Tf32,
    /// Floats of 32 bits, as exact as sums of them are.
    F32,
}

impl Numbers {
    /// The instruction.
    fn mma(self) -> &'static str {
        match self {
            Self::Codes => "m16n8k32.row.col.s32.u8.s8.s32",
            Self::Tf32 | Self::F32 => "m16n8k8.row.col.f32.tf32.tf32.f32",
        }
    }

    /// Bytes of a number.
    pub fn size(self) -> usize {
        match self {
            Self::Codes => 1,
            Self::Tf32 | Self::F32 => 4,
        }
    }
}

/// How a result is divided among cubes and planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Planes of a cube, along rows and columns.
    pub planes: [usize; 2],
    /// Fragments of a plane, of 16 rows and of 8 columns.
    pub fragments: [usize; 2],
}

impl Tile {
    /// Rows of a cube.
    pub const fn rows(self) -> usize {
        self.planes[0] * self.fragments[0] * 16
    }

    /// Columns of a cube.
    pub const fn columns(self) -> usize {
        self.planes[1] * self.fragments[1] * 8
    }

    /// Units of a cube.
    pub const fn units(self) -> usize {
        self.planes[0] * self.planes[1] * PLANE
    }
}

/// What becomes of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Finish {
    /// Codes: `clamp(round((sum + start) * scale), low, high) + zero`.
    Codes,
    /// Floats of sums of codes: `clamp((sum + start) * scale + bias, low, high)`.
    Scaled,
    /// Floats of floats: `clamp(sum + bias, low, high)`.
    Floats,
}

/// What is fixed when the kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Form {
    pub numbers: Numbers,
    pub tile: Tile,
    pub finish: Finish,
    /// Whether rows lie in the input as they are multiplied: a matrix, or a window of one tap that moves by one.
    pub plain: bool,
    /// Bytes of a piece: 16, 8, 4 or 1.
    pub piece: usize,
}

/// Where a window stands and what it makes. Sizes count *pieces*: what is read at once, at most [`CELL`] bytes.
#[derive(CubeType, CubeLaunch, Clone)]
pub struct Geometry {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of one group, and of all.
    pub columns: usize,
    pub all_columns: usize,
    /// Chunks of a row.
    pub chunks: usize,
    /// Pieces of a row, and of a pixel; those of a pixel's group.
    pub pieces: usize,
    pub pixel: usize,
    pub group: usize,
    /// Pixels of an image.
    pub height: i32,
    pub width: i32,
    /// Positions of the window in an image.
    pub out_height: usize,
    pub out_width: usize,
    pub stride_y: i32,
    pub stride_x: i32,
    /// Steps between taps.
    pub step_y: i32,
    pub step_x: i32,
    pub pad_y: i32,
    pub pad_x: i32,
    /// What lies outside of images, in every byte of a word.
    pub outside: u32,
    /// Bounds of the result, and what is added to codes within them.
    pub low: f32,
    pub high: f32,
    pub zero: i32,
}

/// Where a row of patches begins.
#[derive(CubeType, Clone, Copy)]
struct Row {
    inside: bool,
    /// The piece where its image begins, or the row itself.
    first: usize,
    y: i32,
    x: i32,
}

type Cell = Vector<u32, Const<4>>;
type Sums<C> = Vector<C, Const<4>>;

#[cube]
fn mma<C: Scalar>(a: Cell, b: Vector<u32, Const<2>>, c: Sums<C>, #[comptime] form: &str) -> Sums<C> {
    // What was put together in a variable is read: the instruction takes values.
    let (a, b, c) = (Cell::reinterpret(a), Vector::<u32, Const<2>>::reinterpret(b), Sums::<C>::reinterpret(c));
    let out: Sums<C>;
    gpu_asm!(
        "mma.sync.aligned.{form} {d}, {a}, {b}, {c};",
        a = in(_) a, b = in(_) b, c = in(_) c, d = out(_) out, options(pure, nomem)
    );
    out
}

/// What TF32 keeps of the bits of a float.
#[cube]
fn tf32(x: u32) -> u32 {
    let out: u32;
    gpu_asm!("cvt.rna.tf32.f32 {d}, {x};", d = out(_) out, x = in(_) f32::reinterpret(x), options(pure, nomem));
    out
}

/// What it leaves.
#[cube]
fn rest(x: u32, kept: u32) -> u32 {
    tf32(u32::reinterpret(f32::reinterpret(x) - f32::reinterpret(kept)))
}

/// The product of two floats, which no sum is fused with.
#[cube]
pub fn product_alone(x: f32, y: f32) -> f32 {
    let (x, y) = (f32::reinterpret(x), f32::reinterpret(y));
    let out: f32;
    gpu_asm!("mul.rn.f32 {d}, {x}, {y};", d = out(_) out, x = in(_) x, y = in(_) y, options(pure, nomem));
    out
}

/// `x` between two integers of less than 2^21, rounded, half to even. NaN becomes `low`.
#[cube]
pub fn round_within(x: f32, low: f32, high: f32) -> i32 {
    let x = select(x > low, x, low);
    let x = select(x < high, x, high);
    // `round` is the driver's choice of ties on some.
    let floor = x.floor();
    let part = x - floor;
    let whole = i32::cast_from(floor);
    let tie = select(part == 0.5f32, whole & 1i32, 0i32);
    whole + select(part > 0.5f32, 1i32, tie)
}

/// The row of patches `at`.
#[cube]
fn row(at: usize, g: &Geometry, group: usize, #[comptime] plain: bool) -> Row {
    let inside = at < g.rows;
    let own = group * g.group;
    if comptime!(plain) {
        Row { inside, first: at * g.pixel + own, y: 0i32, x: 0i32 }
    } else {
        let image = at / (g.out_height * g.out_width);
        let position = at % (g.out_height * g.out_width);
        let y = i32::cast_from(position / g.out_width) * g.stride_y - g.pad_y;
        let x = i32::cast_from(position % g.out_width) * g.stride_x - g.pad_x;
        let pixels = usize::cast_from(g.height) * usize::cast_from(g.width);
        Row { inside, first: image * pixels * g.pixel + own, y, x }
    }
}

/// The cell `at` of a row.
#[cube]
fn cell<X: Int, V: Size>(
    x: &[Vector<X, V>],
    taps: &[Vector<u32, Const<2>>],
    row: &Row,
    at: usize,
    g: &Geometry,
    #[comptime] form: Form,
) -> Cell {
    let count = comptime!(CELL / form.piece);
    let mut words = Cell::new(0u32);
    #[unroll]
    for i in 0..count {
        let piece = at * count + i;
        let mut read = Vector::<X, V>::new(X::cast_from(g.outside));
        if row.inside && piece < g.pieces {
            if comptime!(form.plain) {
                read = x[row.first + piece];
            } else {
                let tap = taps[piece];
                let offset = tap.extract(0usize);
                let iy = row.y + i32::cast_from(offset >> 16u32) * g.step_y;
                let ix = row.x + i32::cast_from(offset & 0xffffu32) * g.step_x;
                if iy >= 0i32 && iy < g.height && ix >= 0i32 && ix < g.width {
                    let pixel = usize::cast_from(iy) * usize::cast_from(g.width) + usize::cast_from(ix);
                    read = x[row.first + pixel * g.pixel + usize::cast_from(tap.extract(1usize))];
                }
            }
        }
        if comptime!(form.piece == 1) {
            let (word, shift) = comptime!((i / 4, (i % 4 * 8) as u32));
            let byte = u32::cast_from(read.extract(0usize));
            words.insert(word, words.extract(word) | (byte << shift));
        } else {
            let wide = comptime!(form.piece / 4);
            #[unroll]
            for j in 0..wide {
                words.insert(comptime!(i * wide + j), u32::cast_from(read.extract(j)));
            }
        }
    }
    words
}

/// The sums with the products of 32 bytes of a row and of a column.
#[cube]
fn multiplied<C: Scalar>(a: Cell, b: Vector<u32, Const<2>>, c: Sums<C>, #[comptime] numbers: Numbers) -> Sums<C> {
    let instruction = comptime!(numbers.mma());
    if comptime!(numbers == Numbers::Codes) {
        mma::<C>(a, b, c, instruction)
    } else {
        let mut kept_a = Cell::new(0u32);
        let mut kept_b = Vector::<u32, Const<2>>::new(0u32);
        #[unroll]
        for i in 0..4usize {
            kept_a.insert(i, tf32(a.extract(i)));
        }
        #[unroll]
        for i in 0..2usize {
            kept_b.insert(i, tf32(b.extract(i)));
        }
        if comptime!(numbers == Numbers::Tf32) {
            mma::<C>(kept_a, kept_b, c, instruction)
        } else {
            let mut rest_a = Cell::new(0u32);
            let mut rest_b = Vector::<u32, Const<2>>::new(0u32);
            #[unroll]
            for i in 0..4usize {
                rest_a.insert(i, rest(a.extract(i), kept_a.extract(i)));
            }
            #[unroll]
            for i in 0..2usize {
                rest_b.insert(i, rest(b.extract(i), kept_b.extract(i)));
            }
            // The smallest first.
            let sums = mma::<C>(rest_a, kept_b, c, instruction);
            let sums = mma::<C>(kept_a, rest_b, sums, instruction);
            mma::<C>(kept_a, kept_b, sums, instruction)
        }
    }
}

/// Multiplies rows of `x` by those of `w`, which is `[groups][columns][chunks * CHUNK bytes]`. `taps` has for each piece of a row
/// which tap it is (counted downwards in the upper half of a word, to the right in the lower one) and its piece of the pixel.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn product<X: Int, V: Size, C: Numeric, Y: Numeric>(
    x: &[Vector<X, V>],
    w: &[Vector<u32, Const<4>>],
    taps: &[Vector<u32, Const<2>>],
    start: &[i32],
    scale: &[f32],
    bias: &[f32],
    y: &mut [Y],
    g: &Geometry,
    #[comptime] form: Form,
) {
    let tile = comptime!(form.tile);
    let units = comptime!(tile.units());
    let (x_cells, w_cells) = comptime!((tile.rows() * CELLS, tile.columns() * CELLS));
    let (x_loads, w_loads) = comptime!((x_cells.div_ceil(units), w_cells.div_ceil(units)));
    let (rows_a_load, fragments) = comptime!((units / CELLS, tile.fragments[0] * tile.fragments[1]));
    let (down, across) = comptime!((tile.fragments[0], tile.fragments[1]));
    let mut xs = Shared::<[Cell]>::new_slice(comptime!(2 * x_cells));
    let mut ws = Shared::<[Cell]>::new_slice(comptime!(2 * w_cells));

    let unit = UNIT_POS_X as usize;
    let group = CUBE_POS_Z as usize;
    let (own_row, own_cell) = (unit / CELLS, unit % CELLS);
    let first_row = CUBE_POS_X as usize * comptime!(tile.rows());
    let first_column = CUBE_POS_Y as usize * comptime!(tile.columns());

    let mut rows = Array::<usize>::new(x_loads);
    let mut ys = Array::<i32>::new(x_loads);
    let mut xss = Array::<i32>::new(x_loads);
    #[unroll]
    for i in 0..x_loads {
        let r = row(first_row + own_row + i * rows_a_load, g, group, form.plain);
        rows[i] = r.first;
        ys[i] = r.y;
        xss[i] = r.x;
    }
    let mut x_next = Array::<Cell>::new(x_loads);
    let mut w_next = Array::<Cell>::new(w_loads);

    let mut sums = Array::<Sums<C>>::new(fragments);
    #[unroll]
    for i in 0..fragments {
        sums[i] = Sums::<C>::new(C::from_int(0));
    }
    let plane = unit / PLANE;
    let lane = unit % PLANE;
    let (quad, part) = (lane / 4, lane % 4);
    let plane_row = plane / tile.planes[1] * comptime!(tile.fragments[0] * 16) + quad;
    let plane_column = plane % tile.planes[1] * comptime!(tile.fragments[1] * 8) + quad;

    // A chunk ahead: what is read in round `chunk` is multiplied in the next one.
    for chunk in 0..g.chunks + 1 {
        if chunk < g.chunks {
            let at = chunk * CELLS + own_cell;
            #[unroll]
            for i in 0..x_loads {
                let here = own_row + i * rows_a_load;
                let inside = here < comptime!(tile.rows()) && first_row + here < g.rows;
                let r = Row { inside, first: rows[i], y: ys[i], x: xss[i] };
                x_next[i] = cell::<X, V>(x, taps, &r, at, g, form);
            }
            #[unroll]
            for i in 0..w_loads {
                let here = own_row + i * rows_a_load;
                let column = first_column + here;
                w_next[i] = Cell::new(0u32);
                if here < comptime!(tile.columns()) && column < g.columns {
                    w_next[i] = w[(group * g.columns + column) * (g.chunks * CELLS) + at];
                }
            }
        }
        if chunk > 0 {
            let stage = (chunk - 1) % 2;
            let (x_at, w_at) = (stage * x_cells + part, stage * w_cells + part);
            let mut b = Array::<Cell>::new(across);
            #[unroll]
            for j in 0..across {
                b[j] = ws[w_at + (plane_column + j * 8) * CELLS];
            }
            #[unroll]
            for i in 0..down {
                let upper = xs[x_at + (plane_row + i * 16) * CELLS];
                let lower = xs[x_at + (plane_row + i * 16 + 8) * CELLS];
                #[unroll]
                for half in 0..2usize {
                    let (one, two) = comptime!((half * 2, half * 2 + 1));
                    let mut a = Cell::new(0u32);
                    a.insert(0usize, upper.extract(one));
                    a.insert(1usize, lower.extract(one));
                    a.insert(2usize, upper.extract(two));
                    a.insert(3usize, lower.extract(two));
                    #[unroll]
                    for j in 0..across {
                        let mut of_w = Vector::<u32, Const<2>>::new(0u32);
                        of_w.insert(0usize, b[j].extract(one));
                        of_w.insert(1usize, b[j].extract(two));
                        let at = comptime!(i * across + j);
                        sums[at] = multiplied::<C>(a, of_w, sums[at], form.numbers);
                    }
                }
            }
        }
        if chunk < g.chunks {
            let stage = chunk % 2;
            #[unroll]
            for i in 0..x_loads {
                if own_row + i * rows_a_load < comptime!(tile.rows()) {
                    xs[stage * x_cells + unit + i * units] = x_next[i];
                }
            }
            #[unroll]
            for i in 0..w_loads {
                if own_row + i * rows_a_load < comptime!(tile.columns()) {
                    ws[stage * w_cells + unit + i * units] = w_next[i];
                }
            }
        }
        sync_cube();
    }

    #[unroll]
    for i in 0..down {
        #[unroll]
        for j in 0..across {
            let found = sums[comptime!(i * across + j)];
            #[unroll]
            for n in 0..4usize {
                let r = first_row + plane_row + comptime!(i * 16 + n / 2 * 8);
                let column = first_column + plane_column - quad + part * 2 + comptime!(j * 8 + n % 2);
                if r < g.rows && column < g.columns {
                    let out = group * g.columns + column;
                    y[r * g.all_columns + out] =
                        finished::<C, Y>(found.extract(n), start, scale, bias, out, g, form.finish);
                }
            }
        }
    }
}

/// What becomes of a sum in the column `at`.
#[cube]
pub fn finished<C: Numeric, Y: Numeric>(
    sum: C,
    start: &[i32],
    scale: &[f32],
    bias: &[f32],
    at: usize,
    g: &Geometry,
    #[comptime] finish: Finish,
) -> Y {
    match comptime!(finish) {
        Finish::Codes => {
            let real = f32::cast_from(i32::cast_from(sum) + start[at]) * scale[at];
            Y::cast_from(round_within(real, g.low, g.high) + g.zero)
        }
        Finish::Scaled => {
            let real = product_alone(f32::cast_from(i32::cast_from(sum) + start[at]), scale[at]) + bias[at];
            Y::cast_from(bounded(real, g.low, g.high))
        }
        Finish::Floats => Y::cast_from(bounded(f32::cast_from(sum) + bias[at], g.low, g.high)),
    }
}

/// `x` between bounds; NaN stays.
#[cube]
fn bounded(x: f32, low: f32, high: f32) -> f32 {
    let x = select(x < low, low, x);
    select(x > high, high, x)
}
