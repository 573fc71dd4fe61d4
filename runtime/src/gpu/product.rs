//! Products on tensor cores: a matrix by a weight, or a convolution as the product of its patches by a weight (implicit GEMM,
//! [cuDNN](https://arxiv.org/abs/1410.0759)).
//!
//! # How it is divided
//! A cube computes a tile of the result, each of its planes a part of that. Both operands come in chunks of [`CHUNK`] bytes a row,
//! through shared memory: while one chunk is multiplied, the next one is on its way. A unit reads the 16 bytes of a row that lie side
//! by side where PTX's fragments have four times four bytes: which number of a row is multiplied first changes nothing, as long as
//! both operands agree. The weight is the first operand, so that its fragments can be laid out beforehand ([`pack`](super::tile::pack)): four registers
//! that follow each other come from one read, and nothing is moved between them. No plane meets a bank of shared memory twice.
//!
//! # Numbers
//! Every `mma.sync` has the same shape in bytes: 16 by 32 bytes of one operand, 8 by 32 of the other. So codes, halves and floats
//! differ in one instruction. Floats keep 22 of 24 bits by three products of what TF32 holds of them and of what it leaves; as
//! tensor cores cut off what doesn't fit a sum, sums of more than a few products are made outside of them
//! ([Ootomo and Yokota](https://arxiv.org/abs/2203.03341)).

use super::{
    finish::Constants,
    tile::{CELL, CELLS, COLUMNS, Form, Numbers, PLANE},
};
use cubecl::prelude::{barrier::copy_async_checked, *};

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

/// Where a piece of a row is; outside of images there is none.
#[derive(CubeType, Clone, Copy)]
struct Piece {
    at: usize,
    count: usize,
}

/// The piece `at` of a row.
#[cube]
fn place(taps: &[Cell], row: &Row, at: usize, g: &Geometry, #[comptime] form: Form) -> Piece {
    let mut found = Piece { at: 0usize, count: 0usize };
    if row.inside && at < g.pieces {
        if comptime!(form.plain) {
            found.at = row.first + at;
            found.count = 1usize;
        } else {
            let tap = taps[at];
            let iy = row.y + i32::cast_from(tap.extract(0usize)) * g.step_y;
            let ix = row.x + i32::cast_from(tap.extract(1usize)) * g.step_x;
            if iy >= 0i32 && iy < g.height && ix >= 0i32 && ix < g.width {
                let pixel = usize::cast_from(iy) * usize::cast_from(g.width) + usize::cast_from(ix);
                found.at = row.first + pixel * g.pixel + usize::cast_from(tap.extract(2usize));
                found.count = 1usize;
            }
        }
    }
    found
}

/// The cell `at` of a row.
#[cube]
fn cell<X: Int, V: Size>(
    x: &[Vector<X, V>],
    taps: &[Cell],
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
        let found = place(taps, row, piece, g, form);
        if found.count > 0 {
            read = x[found.at];
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

/// What is multiplied of a cell, and what that leaves of it.
#[derive(CubeType, Clone, Copy)]
struct Split {
    kept: Cell,
    rest: Cell,
}

#[cube]
fn split(cell: Cell, #[comptime] numbers: Numbers) -> Split {
    if comptime!(numbers == Numbers::Codes) {
        Split { kept: cell, rest: cell }
    } else {
        let mut kept = Cell::new(0u32);
        let mut left = Cell::new(0u32);
        #[unroll]
        for i in 0..4usize {
            let found = tf32(cell.extract(i));
            kept.insert(i, found);
            left.insert(i, rest(cell.extract(i), found));
        }
        Split { kept, rest: left }
    }
}

/// Half of a cell of a row, as a fragment of the second operand.
#[cube]
fn of_row(cell: Cell, #[comptime] half: usize) -> Vector<u32, Const<2>> {
    let mut b = Vector::<u32, Const<2>>::new(0u32);
    b.insert(0usize, cell.extract(comptime!(half * 2)));
    b.insert(1usize, cell.extract(comptime!(half * 2 + 1)));
    b
}

/// `x` where it is finite, else 0: nothing is left of an infinite number, whose other products would be NaN.
#[cube]
fn finite<C: Numeric>(x: Sums<C>) -> Sums<C> {
    let mut found = Sums::<C>::new(C::from_int(0));
    #[unroll]
    for i in 0..4usize {
        let part = x.extract(i);
        let size = f32::cast_from(part).abs();
        // Of NaN no comparison holds.
        found.insert(i, select(size <= f32::MAX, part, C::from_int(0)));
    }
    found
}

/// Adds the products of a chunk. `x_at` and `w_at` are the unit's cells of the first row and of the first columns of its plane.
#[cube]
fn accumulate<C: Numeric>(
    xs: &Shared<[Cell]>,
    ws: &Shared<[Cell]>,
    x_at: usize,
    w_at: usize,
    sums: &mut Array<Sums<C>>,
    #[comptime] form: Form,
) {
    let (down, across) = comptime!((form.tile.fragments[0], form.tile.fragments[1]));
    let (numbers, instruction) = comptime!((form.numbers, form.numbers.mma()));
    let mut kept = Array::<Cell>::new(down);
    let mut left = Array::<Cell>::new(down);
    #[unroll]
    for i in 0..down {
        let parts = split(xs[x_at + comptime!(i * 8 * CELLS)], numbers);
        kept[i] = parts.kept;
        left[i] = parts.rest;
    }
    #[unroll]
    for j in 0..across {
        #[unroll]
        for half in 0..2usize {
            let a = split(ws[w_at + comptime!((j * 2 + half) * PLANE)], numbers);
            #[unroll]
            for i in 0..down {
                let at = comptime!(i * across + j);
                let b = of_row(kept[i], half);
                if comptime!(numbers == Numbers::Floats) {
                    // Tensor cores cut sums off; so those of a few products alone are made there. The smallest come first.
                    let few = mma::<C>(a.rest, b, Sums::<C>::new(C::from_int(0)), instruction);
                    let few = mma::<C>(a.kept, of_row(left[i], half), few, instruction);
                    let most = mma::<C>(a.kept, b, Sums::<C>::new(C::from_int(0)), instruction);
                    sums[at] += most + finite(few);
                } else {
                    sums[at] = mma::<C>(a.kept, b, sums[at], instruction);
                }
            }
        }
    }
}

/// Ends a group of copies.
#[cube]
fn commit() {
    gpu_asm!("cp.async.commit_group;");
}

/// Waits until all groups of copies but the last `open` have arrived.
#[cube]
fn wait(#[comptime] open: usize) {
    gpu_asm!("cp.async.wait_group {open};");
}

/// Multiplies rows of `x` by the columns of `w`, as [`pack`](super::tile::pack) lays it out. `taps` has for each piece of a row
/// which tap it is, counted downwards and to the right, and its piece of the pixel.
#[cube(launch_unchecked, address_type = "dynamic")]
#[allow(clippy::too_many_arguments)]
pub fn product<X: Int, V: Size, C: Numeric, Y: Numeric>(
    x: &[Vector<X, V>],
    w: &[Vector<u32, Const<4>>],
    taps: &[Cell],
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
    let mut xs = Shared::<[Cell]>::new_slice(comptime!(form.stages * x_cells));
    let mut ws = Shared::<[Cell]>::new_slice(comptime!(form.stages * w_cells));

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
    let mut sums = Array::<Sums<C>>::new(fragments);
    #[unroll]
    for i in 0..fragments {
        sums[i] = Sums::<C>::new(C::from_int(0));
    }
    let plane = unit / PLANE;
    let lane = unit % PLANE;
    let (quad, part) = (lane / 4, lane % 4);
    let plane_row = plane / tile.planes[1] * comptime!(tile.fragments[0] * 8);
    let plane_column = plane % tile.planes[1] * comptime!(tile.fragments[1] * COLUMNS);
    let (x_own, w_own) = ((plane_row + quad) * CELLS + part, plane_column * CELLS + lane);
    // Cells of weights lie by blocks of columns, then by chunks.
    let blocks = g.columns.div_ceil(COLUMNS);
    let first_block = first_column / COLUMNS;
    let in_block = comptime!(COLUMNS * CELLS);

    if comptime!(form.stages > 2) {
        // Copies of the next chunks are under way while one is multiplied.
        let ahead = comptime!(form.stages - 1);
        for round in 0..g.chunks + ahead {
            if round >= ahead {
                wait(comptime!(form.stages - 2));
                sync_cube();
            }
            if round < g.chunks {
                let (at, stage) = (round * CELLS + own_cell, round % form.stages);
                #[unroll]
                for i in 0..x_loads {
                    let here = own_row + i * rows_a_load;
                    if here < comptime!(tile.rows()) {
                        let inside = first_row + here < g.rows;
                        let r = Row { inside, first: rows[i], y: ys[i], x: xss[i] };
                        let found = place(taps, &r, at, g, form);
                        let to = stage * x_cells + unit + i * units;
                        let from = x[found.at..found.at + found.count].downcast::<Cell>();
                        copy_async_checked(from, &mut xs[to..to + 1], 4u32);
                    }
                }
                #[unroll]
                for i in 0..w_loads {
                    let here = unit + i * units;
                    if here < w_cells {
                        let block = first_block + here / in_block;
                        let count = select(block < blocks, 1usize, 0usize);
                        let at = ((group * blocks + block) * g.chunks + round) * in_block * count + here % in_block;
                        let to = stage * w_cells + here;
                        copy_async_checked(&w[at..at + count], &mut ws[to..to + 1], 4u32);
                    }
                }
            }
            commit();
            if round >= ahead {
                let stage = (round - ahead) % form.stages;
                accumulate::<C>(&xs, &ws, stage * x_cells + x_own, stage * w_cells + w_own, &mut sums, form);
            }
        }
    } else {
        let mut x_next = Array::<Cell>::new(x_loads);
        let mut w_next = Array::<Cell>::new(w_loads);
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
                    let here = unit + i * units;
                    let block = first_block + here / in_block;
                    w_next[i] = Cell::new(0u32);
                    if here < w_cells && block < blocks {
                        w_next[i] = w[((group * blocks + block) * g.chunks + chunk) * in_block + here % in_block];
                    }
                }
            }
            if chunk > 0 {
                let stage = (chunk - 1) % 2;
                accumulate::<C>(&xs, &ws, stage * x_cells + x_own, stage * w_cells + w_own, &mut sums, form);
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
                    if unit + i * units < w_cells {
                        ws[stage * w_cells + unit + i * units] = w_next[i];
                    }
                }
            }
            sync_cube();
        }
    }

    // Codes of a tile are put together before they are written: 16 bytes at a time where the result has so many side by side.
    let line = comptime!(tile.columns() + CELL);
    let together = comptime!(if form.wide { tile.rows() * line } else { 1 });
    let mut codes = Shared::<[u8]>::new_aligned_slice(together, comptime!(CELL));
    #[unroll]
    for j in 0..across {
        #[unroll]
        for lower in 0..2usize {
            let in_tile = plane_column + comptime!(j * COLUMNS + lower * 8) + quad;
            let column = first_column + in_tile;
            if column < g.columns {
                let out = group * g.columns + column;
                let constants = Constants::of(start, scale, bias, out, form.finish);
                #[unroll]
                for i in 0..down {
                    #[unroll]
                    for n in 0..2usize {
                        let sum = sums[comptime!(i * across + j)].extract(comptime!(lower * 2 + n));
                        let row_in_tile = plane_row + part * 2 + comptime!(i * 8 + n);
                        if comptime!(form.wide) {
                            codes[row_in_tile * line + in_tile] = constants.finish::<C, u8>(sum, g, form.finish);
                        } else if first_row + row_in_tile < g.rows {
                            let at = (first_row + row_in_tile) * g.all_columns + out;
                            y[at] = constants.finish::<C, Y>(sum, g, form.finish);
                        }
                    }
                }
            }
        }
    }
    if comptime!(form.wide) {
        sync_cube();
        let cells = comptime!(tile.columns() / CELL);
        let to = y.downcast_mut::<Vector<u8, Const<1>>>().with_vector_size_mut::<Const<CELL>>();
        let from = codes.downcast::<Vector<u8, Const<1>>>().with_vector_size::<Const<CELL>>();
        #[unroll]
        for i in 0..comptime!((tile.rows() * tile.columns() / CELL).div_ceil(units)) {
            let here = unit + i * units;
            let (r, c) = (here / cells, here % cells);
            if r < comptime!(tile.rows()) && first_row + r < g.rows && first_column + c * CELL < g.columns {
                let at = (first_row + r) * g.all_columns + group * g.columns + first_column;
                to[at / CELL + c] = from[r * comptime!(line / CELL) + c];
            }
        }
    }
}
