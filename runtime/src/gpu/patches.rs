//! Rows of patches: what a product reads of images, which is never written down.

use super::tile::{CELL, Form};
use cubecl::prelude::*;

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
    /// The numbers of the function that follows.
    pub alpha: f32,
    pub beta: f32,
    /// 0, which no compiler knows.
    pub nothing: u32,
}

/// Where a row of patches begins.
#[derive(CubeType, Clone, Copy)]
pub struct Row {
    pub inside: bool,
    /// The piece where its image begins, or the row itself.
    pub first: usize,
    pub y: i32,
    pub x: i32,
}

/// What is read at once.
pub type Cell = Vector<u32, Const<4>>;

/// The row of patches `at`.
#[cube]
pub fn row(at: usize, g: &Geometry, group: usize, #[comptime] plain: bool) -> Row {
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
pub struct Piece {
    pub at: usize,
    pub count: usize,
}

/// The piece `at` of a row.
#[cube]
pub fn place(taps: &[Cell], row: &Row, at: usize, g: &Geometry, #[comptime] form: Form) -> Piece {
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
pub fn cell<X: Int, V: Size>(
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
        if comptime!(form.piece < 4) {
            let (word, shift) = comptime!((i * form.piece / 4, (i * form.piece % 4 * 8) as u32));
            let part = u32::cast_from(read.extract(0usize));
            words.insert(word, words.extract(word) | (part << shift));
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
