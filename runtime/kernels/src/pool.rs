//! Pooling.

mod average;
mod mean;

pub use average::{Divisor, Rescale, average_pool, average_pool8, global_average, global_average8};
pub use mean::global_mean8;

use crate::multiversion::multiversion;
use crate::parallel::in_parts;
use crate::{Isa, Rows, RowsMut, Window};
use std::ops::Range;

/// What has a greatest value.
pub trait Pooled: Copy + Send + Sync + 'static {
    /// What no value is less than.
    const LOWEST: Self;
    /// The greater of two; NaN is never the greater.
    fn greater(self, other: Self) -> Self;
}

impl Pooled for u8 {
    const LOWEST: u8 = 0;
    #[inline(always)]
    fn greater(self, other: u8) -> u8 {
        self.max(other)
    }
}

impl Pooled for f32 {
    const LOWEST: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn greater(self, other: f32) -> f32 {
        // A comparison would become a masked store, from which loads must wait.
        self.max(other)
    }
}

/// MaxPool: padding never wins, and a position without a pixel has the type's least value.
///
/// # Panics
/// When `x` has not the window's pixels, `y` not its positions, or they differ in width.
pub fn max_pool<T: Pooled>(isa: Isa, x: Rows<T>, window: &Window, y: RowsMut<T>, threads: usize) {
    check(x, window, &y);
    in_parts(y, 1, threads, &|part, y| {
        let x = x.columns(part.column, part.width);
        max_rows(isa, x, window, part.row, y);
    });
}

fn check<X, Y>(x: Rows<X>, window: &Window, y: &RowsMut<Y>) {
    assert_eq!(x.rows(), window.pixels(), "x has a row for each pixel of {window:?}");
    assert_eq!(y.rows(), window.positions(), "y has a row for each position of {window:?}");
    assert_eq!(x.width(), y.width(), "x and y have as many channels");
}

/// Runs `$body` for each of `$n` positions from position `$first`, with their numbers from there
/// and what the window covers.
macro_rules! each_position {
    ($window:expr, $first:expr, $n:expr, |$i:ident, $position:ident, $covered:ident| $body:block) => {
        let mut $position = Position::of($window, $first);
        for $i in 0..$n {
            let $covered = $position.covered();
            $body
            $position.advance();
        }
    };
}

/// Runs `$body` for each pixel covered, row by row, with its number and that of its tap.
macro_rules! each_pixel {
    ($window:expr, $covered:expr, |$pixel:ident, $tap:ident| $body:block) => {
        for i in 0..$covered.count[0] {
            for j in 0..$covered.count[1] {
                let $pixel = $covered.first + i * $covered.step[0] + j * $covered.step[1];
                let $tap = ($covered.tap[0] + i) * $window.kernel[1] + $covered.tap[1] + j;
                $body
            }
        }
    };
}

/// Runs `$body` for some columns at a time, with the first and the constant `$n`, how many: as many
/// as stay in registers, 32 where nothing else is said.
macro_rules! by_columns {
    ($most:literal: $width:expr, |$column:ident, $n:ident| $body:expr) => {{
        let mut $column = 0;
        by_columns!(@ $most, $width, $column, $n, $body);
        by_columns!(@ 16, $width, $column, $n, $body);
        by_columns!(@ 8, $width, $column, $n, $body);
        by_columns!(@ 4, $width, $column, $n, $body);
        by_columns!(@ 1, $width, $column, $n, $body);
    }};
    ($width:expr, |$column:ident, $n:ident| $body:expr) => {
        by_columns!(32: $width, |$column, $n| $body)
    };
    (@ $some:literal, $width:expr, $column:ident, $n:ident, $body:expr) => {
        while $width - $column >= $some {
            const $n: usize = $some;
            $body;
            $column += $n;
        }
    };
}

pub(crate) use {by_columns, each_pixel, each_position};

/// A position of a window.
#[derive(Debug, Clone)]
pub(crate) struct Position<'a> {
    window: &'a Window,
    /// Where all of the window is inside of the image: rows and columns.
    pub interior: [Range<usize>; 2],
    image: usize,
    /// Its row and column.
    pub at: [usize; 2],
}

/// The pixels under a window at one position: some rows of an image, and the same columns of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Covered {
    /// The first pixel.
    pub first: usize,
    /// The tap on it.
    pub tap: [usize; 2],
    /// How many in each direction.
    pub count: [usize; 2],
    /// From one to the next in each direction.
    pub step: [usize; 2],
}

impl<'a> Position<'a> {
    /// The position that belongs to a row of the result.
    #[inline(always)]
    pub fn of(window: &'a Window, row: usize) -> Self {
        let [height, width] = window.output;
        let at = [row / width % height, row % width];
        Self { window, interior: [window.interior(0), window.interior(1)], image: row / width / height, at }
    }

    #[inline(always)]
    pub fn advance(&mut self) {
        self.at[1] += 1;
        if self.at[1] == self.window.output[1] {
            self.at = [self.at[0] + 1, 0];
            if self.at[0] == self.window.output[0] {
                (self.image, self.at) = (self.image + 1, [0, 0]);
            }
        }
    }

    /// Advances along the line, at most behind its end.
    #[inline(always)]
    pub fn advance_by(&mut self, positions: usize) {
        self.at[1] += positions - 1;
        self.advance();
    }

    /// What the window covers.
    #[inline(always)]
    pub fn covered(&self) -> Covered {
        let window = self.window;
        let step = [window.dilation[0] * window.input[1], window.dilation[1]];
        // Nearly always.
        if self.interior[0].contains(&self.at[0]) && self.interior[1].contains(&self.at[1]) {
            return Covered { first: self.pixel([0, 0]), tap: [0, 0], count: window.kernel, step };
        }
        let taps = [0, 1].map(|axis| window.taps_inside(axis, self.at[axis]));
        let (tap, count) = ([taps[0].start, taps[1].start], [taps[0].len(), taps[1].len()]);
        Covered { first: if count.contains(&0) { 0 } else { self.pixel(tap) }, tap, count, step }
    }

    /// The pixel under a tap that is inside of the image.
    #[inline(always)]
    pub fn pixel(&self, tap: [usize; 2]) -> usize {
        let Window { input, stride, dilation, pad, .. } = self.window;
        let of = |axis: usize| self.at[axis] * stride[axis] + tap[axis] * dilation[axis] - pad[axis];
        (self.image * input[0] + of(0)) * input[1] + of(1)
    }
}

/// The greatest of `N` columns of all pixels covered.
#[inline(always)]
fn greatest<T: Pooled, const N: usize>(x: Rows<T>, window: &Window, covered: Covered, column: usize, y: &mut [T]) {
    let mut most = [T::LOWEST; N];
    each_pixel!(window, covered, |pixel, _tap| {
        for (most, x) in most.iter_mut().zip(&x.data()[pixel * x.stride() + column..][..N]) {
            *most = x.greater(*most);
        }
    });
    y[column..][..N].copy_from_slice(&most);
}

multiversion! {
    fn max_rows<T: Pooled>(isa: Isa, x: Rows<T>, window: &Window, first: usize, y: RowsMut<T>) {
        let mut y = y;
        each_position!(window, first, y.rows(), |i, _position, covered| {
            let y = y.row(i);
            if size_of::<T>() == 1 {
                by_columns!(64: y.len(), |column, N| greatest::<T, N>(x, window, covered, column, y));
            } else {
                by_columns!(y.len(), |column, N| greatest::<T, N>(x, window, covered, column, y));
            }
        });
    }
}

#[cfg(test)]
mod tests;
