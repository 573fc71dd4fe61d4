//! Pooling.

mod average;

pub use average::{Divisor, Rescale, average_pool, average_pool8, global_average, global_average8};

use crate::multiversion::multiversion;
use crate::parallel::in_parts;
use crate::{Isa, Rows, RowsMut, Window};

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
        if self > other { self } else { other }
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
            let $covered = $position.covered($window);
            $body
            $position.advance($window);
        }
    };
}

/// Runs `$body` for each pixel covered, row by row, with `$n` of its columns.
macro_rules! each_pixel {
    ($x:expr, $covered:expr, $column:expr, $n:expr, |$pixel:ident| $body:block) => {
        for i in 0..$covered.count[0] {
            for j in 0..$covered.count[1] {
                let pixel = $covered.first + i * $covered.step[0] + j * $covered.step[1];
                let $pixel = &$x.data()[pixel * $x.stride() + $column..][..$n];
                $body
            }
        }
    };
}

/// Runs `$body` for some columns at a time, with the first and the constant `$n`, how many.
macro_rules! by_columns {
    ($width:expr, |$column:ident, $n:ident| $body:expr) => {{
        let mut $column = 0;
        by_columns!(@ 64, $width, $column, $n, $body);
        by_columns!(@ 16, $width, $column, $n, $body);
        by_columns!(@ 1, $width, $column, $n, $body);
    }};
    (@ $some:literal, $width:expr, $column:ident, $n:ident, $body:expr) => {
        while $column + $some <= $width {
            const $n: usize = $some;
            $body;
            $column += $n;
        }
    };
}

pub(crate) use {by_columns, each_pixel, each_position};

/// A position of a window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Position {
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

impl Position {
    #[inline(always)]
    pub fn of(window: &Window, row: usize) -> Self {
        let [height, width] = window.output;
        Self { image: row / width / height, at: [row / width % height, row % width] }
    }

    #[inline(always)]
    pub fn advance(&mut self, window: &Window) {
        self.at[1] += 1;
        if self.at[1] == window.output[1] {
            self.at = [self.at[0] + 1, 0];
            if self.at[0] == window.output[0] {
                *self = Self { image: self.image + 1, at: [0, 0] };
            }
        }
    }

    /// The first pixel of the window, where all of it is inside of the image.
    #[inline(always)]
    pub fn first_pixel(&self, window: &Window) -> usize {
        let [row, column] = std::array::from_fn(|axis| self.at[axis] * window.stride[axis] - window.pad[axis]);
        (self.image * window.input[0] + row) * window.input[1] + column
    }

    #[inline(always)]
    pub fn covered(&self, window: &Window) -> Covered {
        let [height, width] = window.input;
        let (rows, columns) = (window.taps_inside(0, self.at[0]), window.taps_inside(1, self.at[1]));
        let pixel = |axis: usize, tap: usize| {
            self.at[axis] * window.stride[axis] + tap * window.dilation[axis] - window.pad[axis]
        };
        let count = [rows.len(), columns.len()];
        let first = match count.contains(&0) {
            true => 0,
            false => (self.image * height + pixel(0, rows.start)) * width + pixel(1, columns.start),
        };
        let (tap, step) = ([rows.start, columns.start], [window.dilation[0] * width, window.dilation[1]]);
        Covered { first, tap, count, step }
    }
}

/// The greatest of `N` columns of all pixels covered.
#[inline(always)]
fn greatest<T: Pooled, const N: usize>(x: Rows<T>, covered: Covered, column: usize, y: &mut [T]) {
    let mut most = [T::LOWEST; N];
    each_pixel!(x, covered, column, N, |x| {
        for (most, x) in most.iter_mut().zip(x) {
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
            by_columns!(y.len(), |column, N| greatest::<T, N>(x, covered, column, y));
        });
    }
}

#[cfg(test)]
mod tests;
