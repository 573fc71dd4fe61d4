//! Products without tensor cores: the same as [`product`](super::product::product), for GPUs of any maker.
//!
//! A cube computes [`SIDE`] rows of [`SIDE`] columns, each unit 4 by 4 of them, 16 apart. Codes are multiplied four at a time
//! (`dp4a`), signed by signed: 128 is taken off what is read, and added back to what sums begin with.

use super::{
    finish::{Constants, other},
    patches::{Cell, Geometry, cell, row},
    tile::{CELLS, Form, Numbers},
};
use cubecl::prelude::*;

/// Rows and columns of a cube.
pub const SIDE: usize = 64;
/// Units of a cube.
pub const UNITS: usize = SIDE * CELLS;
/// Units along a side, and elements of a unit along it.
const ACROSS: usize = 16;
const EACH: usize = SIDE / ACROSS;
/// Cells from a row of shared memory to the next. One more than a chunk has, so that rows lie in different banks.
const LINE: usize = CELLS + 1;
/// Bytes of shared memory.
pub const SHARED: usize = 2 * SIDE * LINE * super::tile::CELL;

/// Cubes along rows, before they are folded: an axis may have 65,535, and what is folded goes to that of the columns.
pub const MOST: usize = 32_768;

/// What taking 128 off each code does to its bits.
const SIGNED: u32 = 0x8080_8080;

/// `sum`, and the products of two cells.
#[cube]
fn dot<C: Numeric>(x: Cell, w: Cell, sum: C, #[comptime] numbers: Numbers) -> C {
    let mut sum = sum;
    #[unroll]
    for i in 0..4usize {
        if comptime!(numbers == Numbers::Codes) {
            let (x, w) = (i32::reinterpret(x.extract(i)), i32::reinterpret(w.extract(i)));
            sum = C::cast_from(dp4a(x, w, i32::cast_from(sum)));
        } else {
            sum += C::cast_from(f32::reinterpret(x.extract(i)) * f32::reinterpret(w.extract(i)));
        }
    }
    sum
}

/// Multiplies rows of `x` by the columns of `w`, as [`pad`](super::tile::pad) lays it out; the rest is as for
/// [`product`](super::product::product).
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
    let mut xs = Shared::<[Cell]>::new_slice(comptime!(SIDE * LINE));
    let mut ws = Shared::<[Cell]>::new_slice(comptime!(SIDE * LINE));
    let (unit, group) = (UNIT_POS_X as usize, CUBE_POS_Z as usize);
    let (own, part) = (unit / CELLS, unit % CELLS);
    // There may be more rows than an axis has cubes: the rest of them lie behind the columns.
    let across = g.columns.div_ceil(SIDE);
    let (block, column) = (CUBE_POS_Y as usize / across, CUBE_POS_Y as usize % across);
    let first_row = (block * CUBE_COUNT_X as usize + CUBE_POS_X as usize) * SIDE;
    let first_column = column * SIDE;
    let r = row(first_row + own, g, group, form.plain);
    let column = first_column + own;
    let weights = (group * g.columns + column) * g.chunks * CELLS + part;
    let (down, right) = (unit / ACROSS, unit % ACROSS);
    let mut sums = Array::<C>::new(comptime!(EACH * EACH));
    #[unroll]
    for i in 0..comptime!(EACH * EACH) {
        sums[i] = C::from_int(0);
    }
    for chunk in 0..g.chunks {
        let mut read = cell::<X, V>(x, taps, &r, chunk * CELLS + part, g, form);
        if comptime!(form.numbers == Numbers::Codes) {
            read ^= Cell::new(SIGNED);
        }
        let mut weight = Cell::new(0u32);
        if column < g.columns {
            weight = w[weights + chunk * CELLS];
        }
        // The chunk before was multiplied.
        sync_cube();
        xs[own * LINE + part] = read;
        ws[own * LINE + part] = weight;
        sync_cube();
        #[unroll]
        for c in 0..CELLS {
            let mut by = Array::<Cell>::new(EACH);
            #[unroll]
            for j in 0..EACH {
                by[j] = ws[(right + comptime!(j * ACROSS)) * LINE + c];
            }
            #[unroll]
            for i in 0..EACH {
                let of = xs[(down + comptime!(i * ACROSS)) * LINE + c];
                #[unroll]
                for j in 0..EACH {
                    let at = comptime!(i * EACH + j);
                    sums[at] = dot::<C>(of, by[j], sums[at], form.numbers);
                }
            }
        }
    }
    #[unroll]
    for j in 0..EACH {
        let column = first_column + right + comptime!(j * ACROSS);
        if column < g.columns {
            let out = group * g.columns + column;
            let constants = Constants::of(start, scale, bias, out, form.end.finish);
            #[unroll]
            for i in 0..EACH {
                let row = first_row + down + comptime!(i * ACROSS);
                if row < g.rows {
                    let at = row * g.all_columns + out;
                    let sum = sums[comptime!(i * EACH + j)];
                    y[at] = constants.finish::<C, Y>(sum, other::<A>(added, at, form.end), g, form.end);
                }
            }
        }
    }
}
