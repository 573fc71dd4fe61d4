//! How an input plane is laid out so that each tap of a window reads a whole output plane from
//! consecutive elements.
//!
//! A plane is copied once for each column of taps, shifted and with its padding, as wide as the
//! output. To move a tap by a row is then to begin a row later. A stride of rows sorts the rows by
//! their remainder, so that this stays true. Where there are too few filters for so many copies,
//! a plane is copied once, with its padding, and read line by line.

use super::copy::{copy_rows, split_columns};
use super::tile::Runs;
use crate::Isa;
use std::ops::Range;

/// One axis of a window: output `o` and tap `t` meet at input `o * stride + t * dilation + first`,
/// which is 0 where there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub input: usize,
    pub output: usize,
    pub taps: usize,
    pub stride: usize,
    pub dilation: usize,
    pub first: isize,
}

impl Axis {
    /// Positions of each remainder of the stride, from the first tap of the first output on.
    fn positions(&self) -> usize {
        ((self.output - 1) * self.stride + (self.taps - 1) * self.dilation) / self.stride + 1
    }

    /// Which of `count` positions, a stride apart, the first at `first`, are in the input.
    pub fn inside(&self, first: isize, count: usize) -> Range<usize> {
        let up_to = |end: isize| ((end - first).max(0) as usize).div_ceil(self.stride).min(count);
        let start = up_to(0);
        start..up_to(self.input as isize).max(start)
    }

    /// The remainder and the position of a tap.
    fn place(&self, tap: usize) -> (usize, usize) {
        let at = tap * self.dilation;
        (at % self.stride, at / self.stride)
    }

    /// Remainders that some tap has.
    fn remainders(&self) -> impl Iterator<Item = usize> {
        (0..self.stride).filter(|&r| (0..self.taps).any(|tap| self.place(tap).0 == r))
    }

    /// What the gradient at the inputs `start`, `start + stride`, … reads of the output's gradient,
    /// and which taps do, the last first.
    pub fn adjoint(&self, start: usize) -> (Axis, Vec<usize>) {
        // Input `start + q * stride` is output `o`'s tap `t` where, with `at = start - first`,
        // `o * stride = q * stride + at - t * dilation`.
        let at = start as isize - self.first;
        let stride = self.stride as isize;
        let output = |tap: usize| at - (tap * self.dilation) as isize;
        let taps: Vec<usize> = (0..self.taps).rev().filter(|&tap| output(tap) % stride == 0).collect();
        let first = taps.first().map_or(0, |&tap| output(tap) / stride);
        let dilation = match taps[..] {
            [a, b, ..] => (a - b) * self.dilation / self.stride,
            _ => 1,
        };
        let count = self.input.saturating_sub(start).div_ceil(self.stride);
        (Axis { input: self.output, output: count, taps: taps.len(), stride: 1, dilation, first }, taps)
    }
}

/// How the planes are laid out.
#[derive(Debug)]
pub(super) struct Unrolling {
    rows: Axis,
    columns: Axis,
    /// For each copy of a plane its first column.
    copies: Vec<isize>,
    /// Elements of a line.
    width: usize,
    /// Where each tap begins, those of a column of taps one after the other.
    pub taps: Vec<usize>,
    /// Elements of a plane's copies.
    pub plane: usize,
    /// What a tap reads.
    pub runs: Runs,
}

impl Unrolling {
    /// The layout, either with a copy for each column of taps or, not `wide`, with one.
    pub fn new([rows, columns]: [Axis; 2], wide: bool) -> Self {
        let lines = rows.positions();
        let (copies, width): (Vec<_>, _) = if wide {
            ((0..columns.taps).map(|tap| columns.first + (tap * columns.dilation) as isize).collect(), columns.output)
        } else {
            (columns.remainders().map(|r| columns.first + r as isize).collect(), columns.positions())
        };
        let copy = rows.stride * lines * width;
        let mut taps = Vec::with_capacity(rows.taps * columns.taps);
        for j in 0..columns.taps {
            let start = if wide {
                j * copy
            } else {
                let (remainder, position) = columns.place(j);
                let index = columns.remainders().take_while(|&r| r != remainder).count();
                index * copy + position
            };
            taps.extend((0..rows.taps).map(|i| {
                let (remainder, position) = rows.place(i);
                start + (remainder * lines + position) * width
            }));
        }
        let runs = if wide {
            Runs { count: 1, step: 0, length: rows.output * columns.output }
        } else {
            Runs { count: rows.output, step: width, length: columns.output }
        };
        Self { rows, columns, plane: copies.len() * copy, copies, width, taps, runs }
    }

    /// Whether the input is laid out like this as it is.
    pub fn is_plain(&self) -> bool {
        let plain = |axis: &Axis| axis.taps == 1 && axis.stride == 1 && axis.first == 0 && axis.output == axis.input;
        plain(&self.rows) && plain(&self.columns)
    }

    /// Lays out planes one after the other. What is between them was 0, and stays.
    pub fn fill(&self, isa: Isa, planes: &[f32], to: &mut [f32], split: &mut Vec<f32>) {
        let Axis { input: rows, stride, .. } = self.rows;
        let by = self.columns.stride;
        let width = self.columns.input.div_ceil(by);
        let lines = self.rows.positions();
        split.resize(if by > 1 { by * rows * width } else { 0 }, 0.0);
        let planes = planes.chunks_exact(rows * self.columns.input);
        for (plane, to) in planes.zip(to.chunks_exact_mut(self.plane)) {
            if by > 1 {
                split_columns(isa, plane, self.columns.input, by, split);
            }
            for (&first, to) in self.copies.iter().zip(to.chunks_exact_mut(stride * lines * self.width)) {
                let remainder = first.rem_euclid(by as isize) as usize;
                let source = if by > 1 { &split[remainder * rows * width..] } else { plane };
                let columns = self.columns.inside(first, self.width);
                for r in self.rows.remainders() {
                    let first_row = self.rows.first + r as isize;
                    let lines_inside = self.rows.inside(first_row, lines);
                    if lines_inside.is_empty() || columns.is_empty() {
                        continue;
                    }
                    // Both are inside: neither is negative.
                    let row = (first_row + (lines_inside.start * stride) as isize) as usize;
                    let column = (first.div_euclid(by as isize) + columns.start as isize) as usize;
                    let source = &source[row * width + column..];
                    let to = &mut to[(r * lines + lines_inside.start) * self.width + columns.start..];
                    let size = [lines_inside.len(), columns.len()];
                    if stride == 1 && width == self.width {
                        copy_at_once(source, to, width, size);
                    } else {
                        copy_rows(isa, source, stride * width, to, self.width, size);
                    }
                }
            }
        }
    }
}

/// Copies rows of `width` elements, of which `columns` are wanted, with what is between them, and
/// makes that 0.
fn copy_at_once(from: &[f32], to: &mut [f32], width: usize, [rows, columns]: [usize; 2]) {
    let len = (rows - 1) * width + columns;
    to[..len].copy_from_slice(&from[..len]);
    for column in columns..width {
        for row in 0..rows - 1 {
            to[row * width + column] = 0.0;
        }
    }
}
