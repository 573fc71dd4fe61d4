//! Products of matrices.
//!
//! Both are packed: rows of the left one in panels as high as a tile, columns of the right one in panels of up to three
//! vectors of 16 lanes, some factors of all sums at a time (Goto and van de Geijn 2008).

// Iterators over arrays of registers would hide which of them meet.
#![allow(clippy::needless_range_loop)]

use super::copy::written;
use super::factors::{FactorWidth, Factors, Set};
use super::tile::{height, products, versions};
use crate::layout::tile::transpose;
use crate::tile::Vectors;
use crate::{Isa, Rows, RowsMut};
use rayon::prelude::*;
use std::mem::MaybeUninit;

/// Matrices in a slice, either way round.
#[derive(Clone, Debug)]
pub struct Matrices<'a> {
    /// The elements.
    pub data: &'a [f32],
    /// Where each matrix begins.
    pub starts: Vec<usize>,
    /// From a row to the next.
    pub row_step: usize,
    /// From a column to the next.
    pub column_step: usize,
}

/// Factors of each sum that are packed at a time.
const FACTORS: usize = 1024;

/// Multiply-accumulates of one product from which on several threads are worth it.
const WORTH_THREADS: usize = 1 << 18;

/// Rows of the left matrix that are packed at a time.
const ROWS: usize = 64;

/// The most words of a vector, by which panels of the right matrix are wide.
const LANES: usize = 16;

/// The most vectors of such a panel.
const VECTORS: usize = 3;

/// Steps that are turned at a time.
const STEPS: usize = 64;

/// The products of pairs of matrices, one after the other: `m` rows by `n` columns, over `k` factors.
pub fn product(width: FactorWidth, sizes: [usize; 3], a: &Matrices, b: &Matrices) -> Vec<f32> {
    let (set, [a_data, b_data]) = width.operands(Isa::detect(), [a.data, b.data]);
    product_on(set, sizes, [(&a_data, a), (&b_data, b)])
}

/// [`product`] on a set, of elements as it takes them.
pub(super) fn product_on(set: Set, [m, k, n]: [usize; 3], [a, b]: [(&[f32], &Matrices); 2]) -> Vec<f32> {
    let starts = (&a.1.starts, &b.1.starts);
    assert_eq!(starts.0.len(), starts.1.len(), "pairs of matrices");
    let len = starts.0.len() * m * n;
    if len == 0 || k == 0 {
        return vec![0.0; len];
    }
    for ((data, x), [rows, columns]) in [(a, [m, k]), (b, [k, n])] {
        let end = |start: &usize| {
            let [down, across] = [(rows - 1).checked_mul(x.row_step), (columns - 1).checked_mul(x.column_step)];
            start.checked_add(down?)?.checked_add(across?)
        };
        let is_inside = |start| end(start).is_some_and(|last| last < data.len());
        assert!(x.starts.iter().all(is_inside), "a matrix beyond {} elements", data.len());
    }
    let spreads = starts.0.len() < rayon::current_num_threads() && m * n * k > WORTH_THREADS;
    let multiply_all = |y: &mut [MaybeUninit<f32>]| {
        y.par_chunks_exact_mut(m * n).zip(starts.0.par_iter().zip(starts.1)).for_each(|(y, (of_a, of_b))| {
            let (rows, columns) = (a.1.row_step, a.1.column_step);
            let left = Lines { data: &a.0[*of_a..], count: m, step: rows, factors: k, apart: columns };
            let (rows, columns) = (b.1.row_step, b.1.column_step);
            let right = Lines { data: &b.0[*of_b..], count: n, step: columns, factors: k, apart: rows };
            multiply(set, left, right, y, spreads);
        });
    };
    // SAFETY: there is a chunk for each pair, of which `multiply` writes every element.
    unsafe { written(len, multiply_all) }
}

/// Rows of the left matrix or columns of the right one: what sums are made of.
#[derive(Clone, Copy)]
struct Lines<'a> {
    data: &'a [f32],
    count: usize,
    /// From a line to the next.
    step: usize,
    factors: usize,
    /// From a factor of a line to the next.
    apart: usize,
}

/// One product, by several threads if it `spreads`: every element of `y` is written.
fn multiply(set: Set, a: Lines, b: Lines, y: &mut [MaybeUninit<f32>], spreads: bool) {
    let vectors = match b.count.div_ceil(LANES) {
        1 => 1,
        2 | 4 => 2,
        _ => 3,
    };
    let (width, height) = (vectors * LANES, height(set.isa));
    let threads = if spreads { rayon::current_num_threads() } else { 1 };
    let rows = a.count.div_ceil(4 * threads).next_multiple_of(height).min(ROWS);
    let least = if spreads { 1 } else { usize::MAX };
    for first in (0..a.factors).step_by(FACTORS) {
        let factors = first..(first + FACTORS).min(a.factors);
        let steps = factors.len().div_ceil(set.depth());
        let pack = |lines, line, wide, to: &mut [u32]| {
            let factors = [factors.start, factors.end];
            // SAFETY: `product_on` found all elements in their slices.
            unsafe { pack_on(set, &mut Pack { set, lines, first: line, factors, wide, to }) }
        };
        let mut right = vec![0; b.count.next_multiple_of(width) * steps];
        let panels = right.par_chunks_exact_mut(width * steps).with_min_len(least).enumerate();
        panels.for_each(|(i, panel)| pack(b, i * width, width, panel));
        y.par_chunks_mut(rows * b.count).with_min_len(least).enumerate().for_each(|(i, y)| {
            let mut left = vec![0; (y.len() / b.count).next_multiple_of(height) * steps];
            pack(a, i * rows, height, &mut left);
            let mut tiles = Multiply { left: &left, right: &right, steps, width, columns: b.count, add: first > 0, y };
            // SAFETY: both matrices were packed for this set, in panels for each row and each column of `y`, which the first
            // factors have written where others are added.
            unsafe { multiply_on(set, &mut tiles) }
        });
    }
}

/// Operands of packing panels.
struct Pack<'a> {
    set: Set,
    lines: Lines<'a>,
    /// The first line.
    first: usize,
    /// The first factor, and the one after the last.
    factors: [usize; 2],
    /// Lines of a panel; those beyond the last are 0.
    wide: usize,
    to: &'a mut [u32],
}

/// Operands of multiplying panels.
struct Multiply<'a> {
    left: &'a [u32],
    right: &'a [u32],
    /// Words of a line.
    steps: usize,
    /// Lines of a panel of the right matrix.
    width: usize,
    /// Columns of the result.
    columns: usize,
    /// Whether the result is added to, and not written.
    add: bool,
    y: &'a mut [MaybeUninit<f32>],
}

products!(pack_on, Pack, pack_all);
products!(multiply_on, Multiply, multiply_all);

/// Packs panels, one after the other: of each step the words of all lines.
///
/// # Safety
/// The machine has the set of `P`. All factors of all lines are in the slice, and `to` has room for whole panels, which are 0. They are
/// of `M` lines, or of a multiple of 16.
#[inline(always)]
unsafe fn pack_all<P: Factors, const M: usize>(t: &mut Pack) {
    let lanes = P::V::LANES;
    let [start, end] = t.factors;
    let steps = (end - start).div_ceil(P::DEPTH);
    let panel = t.wide * steps;
    let lines = (t.to.len() / steps).min(t.lines.count - t.first);
    // SAFETY: the caller guarantees the set, and that lines from `first` on have these factors: what is read ends with the
    // last of a line's, or with the last line's. Words are those of a step and a line of a panel.
    unsafe {
        let from = t.lines.data.as_ptr().add(t.first * t.lines.step + start * t.lines.apart);
        if t.lines.apart == 1 {
            // The words of some steps line by line, which are then turned.
            let mut words = [0; VECTORS * LANES * STEPS];
            for (i, to) in t.to.chunks_exact_mut(panel).enumerate() {
                let lines = t.wide.min(lines.saturating_sub(i * t.wide));
                for first in (0..steps).step_by(STEPS) {
                    let some = STEPS.min(steps - first);
                    for line in 0..lines {
                        let from = from.add((i * t.wide + line) * t.lines.step);
                        for step in (0..some).step_by(lanes) {
                            let at = (first + step) * P::DEPTH;
                            let left = end - start - at;
                            let x = if left >= lanes * P::DEPTH {
                                P::read_line(from.add(at))
                            } else {
                                P::read_line_first(from.add(at), left)
                            };
                            P::store_words(words.as_mut_ptr().add(line * STEPS + step), x);
                        }
                    }
                    let to = RowsMut::new(&mut to[first * t.wide..], some, lines, t.wide);
                    transpose(t.set.isa, Rows::new(&words, lines, some, STEPS), to);
                }
            }
        } else if t.lines.step == 1 {
            let mut words = [0; LANES];
            for step in 0..steps {
                let a = from.add(step * P::DEPTH * t.lines.apart);
                // The last step of an odd number of factors has no second.
                let is_whole = (step + 1) * P::DEPTH <= end - start;
                let b = a.wrapping_add(if is_whole { (P::DEPTH - 1) * t.lines.apart } else { 0 });
                for line in (0..lines).step_by(lanes) {
                    let some = lanes.min(lines - line);
                    let [a, b] = [a, b].map(|x| x.add(line));
                    // Lines that are not there are 0.
                    let x = if some == lanes && is_whole {
                        P::read(a, b)
                    } else {
                        P::read_first(a, b, [some, if is_whole { some } else { 0 }])
                    };
                    let to = t.to.as_mut_ptr().add(line / t.wide * panel + step * t.wide + line % t.wide);
                    if t.wide >= lanes {
                        P::store_words(to, x);
                        continue;
                    }
                    // A vector has lines of several panels.
                    P::store_words(words.as_mut_ptr(), x);
                    for i in 0..some.div_ceil(M) {
                        std::ptr::copy_nonoverlapping(words.as_ptr().add(i * M), to.add(i * panel), M);
                    }
                }
            }
        } else {
            for line in 0..lines {
                for step in 0..steps {
                    let factor = |i: usize| {
                        let at = step * P::DEPTH + i;
                        if at < end - start { *from.add(line * t.lines.step + at * t.lines.apart) } else { 0.0 }
                    };
                    *t.to.get_unchecked_mut(line / t.wide * panel + step * t.wide + line % t.wide) =
                        t.set.pack([factor(0), factor(P::DEPTH - 1)]);
                }
            }
        }
    }
}

/// Runs tiles over all of it.
///
/// # Safety
/// The machine has the set of `P`. There are panels of `M` rows and of `width` columns for all of `y`, which has been written if it is
/// added to.
#[inline(always)]
unsafe fn multiply_all<P: Factors, const M: usize>(t: &mut Multiply) {
    let rows = t.y.len() / t.columns;
    for column in (0..t.columns).step_by(t.width) {
        for row in (0..rows).step_by(M) {
            let mut at = 0;
            while at < t.width && column + at < t.columns {
                let vectors = match (t.width - at) / P::V::LANES {
                    1 => 1,
                    2 | 4 => 2,
                    _ => 3,
                };
                // SAFETY: the caller guarantees the set and the panels, of which `row` and `column` are the first.
                unsafe {
                    match vectors {
                        1 => multiply_tile::<P, M, 1>(t, row, column, at),
                        2 => multiply_tile::<P, M, 2>(t, row, column, at),
                        _ => multiply_tile::<P, M, 3>(t, row, column, at),
                    }
                }
                at += vectors * P::V::LANES;
            }
        }
    }
}

/// Computes `M` rows from `row` on of `N` vectors of the panel that begins with `column`, `at` columns from there on.
///
/// # Safety
/// As for [`multiply_all`]; there are these panels and these vectors.
#[inline(always)]
unsafe fn multiply_tile<P: Factors, const M: usize, const N: usize>(
    t: &mut Multiply,
    row: usize,
    column: usize,
    at: usize,
) {
    let lanes = P::V::LANES;
    let rows = M.min(t.y.len() / t.columns - row);
    // SAFETY: panels have a word for each step of each line. Of `y` only rows and columns that are there are written.
    unsafe {
        let left = t.left.as_ptr().add(row * t.steps);
        let right = t.right.as_ptr().add(column * t.steps + at);
        let sums = P::product::<M, N>(left, right, t.width, t.steps);
        for i in 0..M {
            if i < rows {
                for v in 0..N {
                    let start = column + at + v * lanes;
                    let y = t.y.as_mut_ptr().cast::<f32>().add((row + i) * t.columns).wrapping_add(start);
                    match t.columns.saturating_sub(start) {
                        0 => {}
                        left if left < lanes => {
                            let before = if t.add { P::V::load_first(y, left) } else { P::V::splat(0.0) };
                            P::V::store_first(y, P::V::add(sums[i][v], before), left);
                        }
                        _ => P::V::store(y, if t.add { P::V::add(sums[i][v], P::V::load(y)) } else { sums[i][v] }),
                    }
                }
            }
        }
    }
}
