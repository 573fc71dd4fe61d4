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
//! tensor cores cut off what doesn't fit a sum, sums of more than a few of the great ones are made outside of them
//! ([Ootomo and Yokota](https://arxiv.org/abs/2203.03341)).

use super::{
    finish::{Constants, other},
    patches::{Cell, Geometry, Row, cell, place, row},
    tile::{CELL, CELLS, COLUMNS, Form, Numbers, PLANE},
};
use cubecl::prelude::{barrier::copy_async_checked, *};

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

/// What is multiplied of a cell, and what that leaves of it.
#[derive(CubeType, Clone, Copy)]
struct Split {
    kept: Cell,
    rest: Cell,
}

#[cube]
fn split(cell: Cell, #[comptime] numbers: Numbers) -> Split {
    if comptime!(numbers.are_whole()) {
        Split { kept: cell, rest: cell }
    } else {
        let mut kept = Cell::new(0u32);
        let mut left = Cell::new(0u32);
        #[unroll]
        for i in 0..4usize {
            let found = tf32(cell.extract(i));
            kept.insert(i, found);
            if comptime!(numbers == Numbers::Floats) {
                left.insert(i, rest(cell.extract(i), found));
            }
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
    small: &mut Array<Sums<C>>,
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
                    // Tensor cores cut sums off, so those of a few products alone are made there. Products of what was left are so
                    // small that nothing is lost of the sum of all.
                    small[at] = mma::<C>(a.rest, b, small[at], instruction);
                    small[at] = mma::<C>(a.kept, of_row(left[i], half), small[at], instruction);
                    sums[at] += mma::<C>(a.kept, b, Sums::<C>::new(C::from_int(0)), instruction);
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
pub fn product<X: Int, V: Size, C: Numeric, A: Numeric, Y: Numeric>(
    x: &[Vector<X, V>],
    w: &[Vector<u32, Const<4>>],
    taps: &[Cell],
    start: &[i32],
    scale: &[f32],
    bias: &[f32],
    added: &[A],
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
    // Of products of what was left.
    let mut small = Array::<Sums<C>>::new(comptime!(if form.numbers == Numbers::Floats { fragments } else { 1 }));
    #[unroll]
    for i in 0..fragments {
        sums[i] = Sums::<C>::new(C::from_int(0));
        if comptime!(form.numbers == Numbers::Floats) {
            small[i] = Sums::<C>::new(C::from_int(0));
        }
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
                accumulate::<C>(
                    &xs,
                    &ws,
                    stage * x_cells + x_own,
                    stage * w_cells + w_own,
                    &mut sums,
                    &mut small,
                    form,
                );
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
                accumulate::<C>(
                    &xs,
                    &ws,
                    stage * x_cells + x_own,
                    stage * w_cells + w_own,
                    &mut sums,
                    &mut small,
                    form,
                );
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

    if comptime!(form.numbers == Numbers::Floats) {
        #[unroll]
        for i in 0..fragments {
            sums[i] += finite(small[i]);
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
                let constants = Constants::of(start, scale, bias, out, form.end.finish);
                #[unroll]
                for i in 0..down {
                    #[unroll]
                    for n in 0..2usize {
                        let sum = sums[comptime!(i * across + j)].extract(comptime!(lower * 2 + n));
                        let row_in_tile = plane_row + part * 2 + comptime!(i * 8 + n);
                        if comptime!(form.wide) {
                            codes[row_in_tile * line + in_tile] = constants.finish::<C, u8>(sum, 0.0f32, g, form.end);
                        } else if first_row + row_in_tile < g.rows {
                            let at = (first_row + row_in_tile) * g.all_columns + out;
                            y[at] = constants.finish::<C, Y>(sum, other::<A>(added, at, form.end), g, form.end);
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
