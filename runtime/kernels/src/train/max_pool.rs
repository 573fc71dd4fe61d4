//! Maximum pools, and their gradients.

use super::Shape2d;
use super::copy::split_columns;
use super::unroll::Axis;
use crate::Isa;
use crate::multiversion::multiversion;
use rayon::prelude::*;

/// The winner of a window that has no elements.
const NOWHERE: u32 = u32::MAX;

/// The greatest element of each window, and where it is in its plane. Of equal ones the first
/// wins, and NaN does against all. As many windows are taken as `output` says, which may reach
/// beyond the padding; one without elements gives negative infinity, and a winner that is nowhere.
pub fn max_pool(at: &Shape2d, output: [usize; 2], x: &[f32]) -> (Vec<f32>, Vec<u32>) {
    at.check(Some(x), None, None);
    let isa = Isa::detect();
    let (plane, pixels) = (at.plane(), output[0] * output[1]);
    assert!(plane < NOWHERE as usize, "planes too large for offsets of 32 bits");
    let len = at.samples * at.channels * pixels;
    let (mut y, mut winners) = (vec![f32::NEG_INFINITY; len], vec![NOWHERE; len]);
    if len == 0 || plane == 0 {
        return (y, winners);
    }
    let is_halved = at.is_halved(output);
    let planes = y.par_chunks_exact_mut(pixels).zip(winners.par_chunks_exact_mut(pixels));
    let (axes, by) = (at.axes(), at.stride[1]);
    let sorted = || vec![0.0; if by > 1 && !is_halved { by * at.rows * at.columns.div_ceil(by) } else { 0 }];
    planes.zip(x.par_chunks_exact(plane)).with_min_len(8).for_each_init(sorted, |sorted, ((y, winners), x)| {
        if is_halved {
            halve(isa, at.columns, output, x, y, winners);
        } else if by > 1 {
            split_columns(isa, x, at.columns, by, sorted);
            pool(isa, axes, output, sorted, y, winners);
        } else {
            pool(isa, axes, output, x, y, winners);
        }
    });
    (y, winners)
}

/// The gradient of [`max_pool`], of that by its output.
pub fn max_pool_gradient(at: &Shape2d, output: [usize; 2], dy: &[f32], winners: &[u32]) -> Vec<f32> {
    let (isa, plane, pixels) = (Isa::detect(), at.plane(), output[0] * output[1]);
    let len = at.samples * at.channels * pixels;
    assert_eq!([dy.len(), winners.len()], [len; 2], "elements of the output");
    let mut dx = vec![0.0; at.input_len()];
    if len == 0 || plane == 0 {
        return dx;
    }
    let is_halved = at.is_halved(output);
    let planes = dy.par_chunks_exact(pixels).zip(winners.par_chunks_exact(pixels));
    dx.par_chunks_exact_mut(plane).zip(planes).with_min_len(8).for_each(|(dx, (dy, winners))| {
        if is_halved {
            return double(isa, at.columns, output, dy, winners, dx);
        }
        for (dy, &winner) in dy.iter().zip(winners) {
            if winner != NOWHERE {
                dx[winner as usize] += dy;
            }
        }
    });
    dx
}

impl Shape2d {
    /// Whether each window is a square of four elements, of which no other has any.
    fn is_halved(&self, output: [usize; 2]) -> bool {
        let square = self.kernel == [2; 2] && self.stride == [2; 2] && self.dilation == [1; 2];
        square && self.pads.map(|(begin, _)| begin) == [0; 2] && output == [self.rows / 2, self.columns / 2]
    }
}

multiversion! {
    /// Pools a plane, tap by tap; its columns are sorted by their remainder, if the stride has any.
    fn pool(isa: Isa, axes: [Axis; 2], output: [usize; 2], x: &[f32], y: &mut [f32], winners: &mut [u32]) {
        let [down, across] = axes;
        let width = across.input.div_ceil(across.stride);
        let lines = y.chunks_exact_mut(output[1]).zip(winners.chunks_exact_mut(output[1]));
        for (row, (y, winners)) in lines.enumerate() {
            for (i, j) in (0..down.taps).flat_map(|i| (0..across.taps).map(move |j| (i, j))) {
                let line = (row * down.stride + i * down.dilation).checked_add_signed(down.first);
                let Some(line) = line.filter(|&line| line < down.input) else { continue };
                let first = (j * across.dilation) as isize + across.first;
                let columns = across.inside(first, output[1]);
                if columns.is_empty() {
                    continue;
                }
                // Inside: it isn't negative.
                let column = (first + (columns.start * across.stride) as isize) as usize;
                let from = (column % across.stride * down.input + line) * width + column / across.stride;
                let index = (line * across.input + column) as u32;
                let results = y[columns.clone()].iter_mut().zip(&mut winners[columns]);
                for (n, ((y, winner), v)) in results.zip(&x[from..]).enumerate() {
                    let wins = (*v > *y) | (v.is_nan() & !y.is_nan()) | (*winner == NOWHERE);
                    *y = if wins { *v } else { *y };
                    *winner = if wins { index + n as u32 * across.stride as u32 } else { *winner };
                }
            }
        }
    }

    /// Pools a plane by squares of four.
    fn halve(isa: Isa, width: usize, output: [usize; 2], x: &[f32], y: &mut [f32], winners: &mut [u32]) {
        let columns = output[1];
        let lines = y.chunks_exact_mut(columns).zip(winners.chunks_exact_mut(columns));
        for (row, ((y, winners), x)) in lines.zip(x.chunks_exact(2 * width)).enumerate() {
            let (above, below) = x.split_at(width);
            let first = (2 * row * width) as u32;
            let squares = above.as_chunks::<2>().0.iter().zip(below.as_chunks::<2>().0);
            for (j, ((y, winner), (above, below))) in y.iter_mut().zip(winners).zip(squares).enumerate() {
                let (mut best, mut at) = (above[0], 0);
                for (v, index) in [(above[1], 1), (below[0], width as u32), (below[1], width as u32 + 1)] {
                    let wins = (v > best) | (v.is_nan() & !best.is_nan());
                    best = if wins { v } else { best };
                    at = if wins { index } else { at };
                }
                *y = best;
                *winner = first + 2 * j as u32 + at;
            }
        }
    }

    /// The gradient of [`halve`]; what no window has stays as it is.
    fn double(isa: Isa, width: usize, output: [usize; 2], dy: &[f32], winners: &[u32], dx: &mut [f32]) {
        let columns = output[1];
        let lines = dy.chunks_exact(columns).zip(winners.chunks_exact(columns));
        for (row, ((dy, winners), dx)) in lines.zip(dx.chunks_exact_mut(2 * width)).enumerate() {
            let (above, below) = dx.split_at_mut(width);
            let first = (2 * row * width) as u32;
            let squares = above.as_chunks_mut::<2>().0.iter_mut().zip(below.as_chunks_mut::<2>().0);
            for (j, ((dy, winner), (above, below))) in dy.iter().zip(winners).zip(squares).enumerate() {
                let at = winner.wrapping_sub(first + 2 * j as u32);
                let width = width as u32;
                *above = [0, 1].map(|index| if at == index { *dy } else { 0.0 });
                *below = [width, width + 1].map(|index| if at == index { *dy } else { 0.0 });
            }
        }
    }
}
