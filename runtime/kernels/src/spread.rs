//! Transposed convolutions: the products of every position by all taps, and on each pixel the sum of those that fall there.
//!
//! There are as many products as taps, for each position: so they are made for a band of lines at a time, which the cache
//! holds.

use crate::{
    ConvF, Isa, Rows, RowsMut, UnaryOp, Window,
    conv::{aligned, bytes},
    elementwise::apply_rows,
    math::clamp,
    multiversion::multiversion,
    pool::by_columns,
    team::join,
};
use std::ops::Range;

/// Bytes of the products of a band, if a band is no more than [`OVERLAP`] times as many lines as two of them have in common.
const BAND_BYTES: usize = 1 << 20;

/// How many times as many lines a band has as have to be computed for the next one again.
const OVERLAP: usize = 4;

/// What a transposed convolution makes of the products of its input's positions by its weights:
/// `y[pixel] = clamp(sum over the taps that fall on it of products[position][tap] + bias, min, max)`.
#[derive(Debug, Clone)]
pub struct Spread {
    isa: Isa,
    window: Window,
    /// For the rows of an image and for its columns: what falls there.
    falls: [Falls; 2],
    bias: Vec<f32>,
    min: f32,
    max: f32,
    then: Option<UnaryOp>,
    /// Where along a line one tap falls on each pixel: the bias of as many pixels as have taps of one position.
    runs: Option<Vec<f32>>,
    /// Bytes of the products of a band.
    band_bytes: usize,
}

/// For each place along an axis of the image, the positions of which a tap falls there, with that tap.
#[derive(Debug, Clone)]
struct Falls {
    /// Where the list of each place ends.
    ends: Vec<usize>,
    list: Vec<(usize, usize)>,
}

impl Falls {
    fn along(window: &Window, axis: usize) -> Self {
        let mut by_place = vec![vec![]; window.input[axis]];
        for position in 0..window.output[axis] {
            for tap in window.taps_inside(axis, position) {
                let place = position * window.stride[axis] + tap * window.dilation[axis] - window.pad[axis];
                by_place[place].push((position, tap));
            }
        }
        let ends = by_place.iter().scan(0, |end, list| {
            *end += list.len();
            Some(*end)
        });
        Self { ends: ends.collect(), list: by_place.concat() }
    }

    #[inline(always)]
    fn at(&self, place: usize) -> &[(usize, usize)] {
        self.within(place..place + 1)
    }

    #[inline(always)]
    fn within(&self, places: Range<usize>) -> &[(usize, usize)] {
        let end = |place: usize| if place == 0 { 0 } else { self.ends[place - 1] };
        &self.list[end(places.start)..end(places.end)]
    }

    /// The positions of which taps fall on some places.
    fn positions(&self, places: Range<usize>) -> Range<usize> {
        let found = self.within(places).iter().map(|(position, _)| *position);
        found.clone().min().map_or(0..0, |first| first..found.max().unwrap_or(first) + 1)
    }
}

impl Spread {
    /// `window` is that of the convolution which is transposed, which slides over `y`. There is one of `bias` a channel.
    pub fn new(isa: Isa, window: Window, bias: Vec<f32>, min: f32, max: f32) -> Self {
        let falls = [0, 1].map(|axis| Falls::along(&window, axis));
        let (taps, last) = (window.kernel[1], window.output[1] * window.kernel[1]);
        let apart =
            window.stride[1] == taps && window.dilation[1] == 1 && window.pad[1] == 0 && window.input[1] == last;
        let runs = apart.then(|| bias.repeat(taps));
        Self { isa, window, falls, bias, min, max, then: None, runs, band_bytes: BAND_BYTES }
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// Lines of pixels that are made together.
    fn band(&self) -> usize {
        let w = &self.window;
        let line = w.output[1] * w.taps() * self.bias.len() * size_of::<f32>();
        let again = (w.kernel[0] - 1) * w.dilation[0] / w.stride[0];
        let positions = (self.band_bytes / line.max(1)).max(OVERLAP * again).max(1);
        positions.saturating_mul(w.stride[0]).clamp(1, w.input[0].max(1))
    }

    /// The most lines of positions that fall on a band.
    fn most_positions(&self) -> usize {
        let (band, lines) = (self.band(), self.window.input[0]);
        let bands = (0..lines).map(|first| first..(first + band).min(lines));
        bands.map(|band| self.falls[0].positions(band).len()).max().unwrap_or(0)
    }

    /// Bytes of scratch memory that a run needs.
    pub fn scratch(&self, product: &ConvF, threads: usize) -> usize {
        threads.max(1) * self.part_scratch(product)
    }

    fn part_scratch(&self, product: &ConvF) -> usize {
        let w = &self.window;
        let positions = self.most_positions() * w.output[1];
        bytes::<f32>(positions * w.taps() * self.bias.len()) + product.scratch(&Window::pixel(positions), 1)
    }

    /// Computes `y`, which has a row for each pixel, of `x`, which has one for each position of the window, in `threads` parts.
    /// `product` makes a row of a position: the channels of one tap after the other.
    ///
    /// # Panics
    /// When the operands don't fit the window, or `scratch` is too small.
    pub fn run(&self, product: &ConvF, x: Rows<f32>, y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let w = &self.window;
        assert_eq!(x.rows(), w.positions(), "x has a row for each position of {w:?}");
        assert_eq!((y.rows(), y.width()), (w.pixels(), self.bias.len()), "y has a row for each pixel of {w:?}");
        let scratch = &mut scratch[..self.scratch(product, threads)];
        self.divide(product, x, 0..w.batch * w.input[0], y, scratch, threads.max(1));
    }

    /// Divides lines, counted over all images, between threads.
    fn divide(
        &self,
        product: &ConvF,
        x: Rows<f32>,
        lines: Range<usize>,
        y: RowsMut<f32>,
        scratch: &mut [u8],
        threads: usize,
    ) {
        let left = threads / 2;
        if left == 0 {
            return self.bands(product, x, lines, y, scratch);
        }
        let middle = lines.start + lines.len() * left / threads;
        let (y_a, y_b) = y.split_at((middle - lines.start) * self.window.input[1]);
        let (scratch_a, scratch_b) = scratch.split_at_mut(scratch.len() / threads * left);
        join(
            || self.divide(product, x, lines.start..middle, y_a, scratch_a, left),
            || self.divide(product, x, middle..lines.end, y_b, scratch_b, threads - left),
        );
    }

    fn bands(&self, product: &ConvF, x: Rows<f32>, lines: Range<usize>, mut y: RowsMut<f32>, scratch: &mut [u8]) {
        let (w, width, band) = (&self.window, self.window.taps() * self.bias.len(), self.band());
        let most = self.most_positions() * w.output[1] * width;
        let (for_products, scratch) = scratch.split_at_mut(bytes::<f32>(most));
        let made = aligned::<f32>(for_products);
        let mut first = lines.start;
        while first < lines.end {
            let (image, row) = (first / w.input[0], first % w.input[0]);
            let count = band.min(w.input[0] - row).min(lines.end - first);
            let positions = self.falls[0].positions(row..row + count);
            let rows = positions.len() * w.output[1];
            let x = x.part((image * w.output[0] + positions.start) * w.output[1], rows);
            let mut products = RowsMut::dense(&mut made[..rows * width], rows, width);
            product.run(x, &Window::pixel(rows), None, products.reborrow(), scratch, 1);
            for line in row..row + count {
                let (mut made, rest) = y.split_at(w.input[1]);
                let products = Rows::dense(products.data(), rows, width);
                add_line(self.isa, self, products, positions.start, line, made.reborrow());
                if let Some(f) = self.then {
                    apply_rows(self.isa, f, made);
                }
                y = rest;
            }
            first += count;
        }
    }
}

multiversion! {
    /// One line of an image, of products that begin with a line of its positions.
    fn add_line(isa: Isa, op: &Spread, products: Rows<f32>, begin: usize, line: usize, y: RowsMut<f32>) {
        let mut y = y;
        let (window, channels) = (&op.window, op.bias.len());
        let above = op.falls[0].at(line);
        let data = products.data();
        if let (Some(bias), [(i, tap)], true) = (&op.runs, above, y.is_dense()) {
            let first = (i - begin) * window.output[1];
            let taps = tap * bias.len();
            for (position, y) in y.data().chunks_exact_mut(bias.len()).enumerate() {
                let products = &data[(first + position) * products.stride() + taps..][..bias.len()];
                by_columns!(bias.len(), |column, N| {
                    for i in column..column + N {
                        y[i] = clamp(products[i] + bias[i], op.min, op.max);
                    }
                });
            }
            return;
        }
        for column in 0..y.rows() {
            let before = op.falls[1].at(column);
            let y = y.row(column);
            by_columns!(channels, |channel, N| {
                let mut sum = [0f32; N];
                sum.copy_from_slice(&op.bias[channel..][..N]);
                for (i, tap) in above {
                    let (first, tap) = ((i - begin) * window.output[1], tap * window.kernel[1]);
                    for (j, of_line) in before {
                        let at = (first + j) * products.stride() + (tap + of_line) * channels + channel;
                        for (sum, x) in sum.iter_mut().zip(&data[at..][..N]) {
                            *sum += x;
                        }
                    }
                }
                for (y, sum) in y[channel..][..N].iter_mut().zip(sum) {
                    *y = clamp(sum, op.min, op.max);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Grid, Noise, cases, isas, naive_window, windows};
    use proptest::prelude::*;

    /// All windows, and those whose taps fall on different pixels.
    fn any_window() -> impl Strategy<Value = Window> {
        let apart = (1usize..3, [1usize..5, 1..5], [1usize..4, 1..4]).prop_map(|(batch, output, kernel)| {
            let input = [0, 1].map(|i| output[i] * kernel[i]);
            Window { batch, input, output, kernel, stride: kernel, dilation: [1, 1], pad: [0, 0] }
        });
        prop_oneof![windows(), apart]
    }

    proptest! {
        #![proptest_config(cases(200))]

        #[test]
        fn every_tap_falls_on_its_pixel(
            window in any_window(), inputs in 1usize..5, channels in 1usize..40, gap in 0usize..4, threads in 1usize..4,
            narrow: bool, bounded: bool, seed: u64,
        ) {
            let mut noise = Noise(seed);
            let x = Grid::new(window.positions(), inputs, gap, 7.0, || noise.float());
            let all = window.taps() * channels;
            let weights: Vec<f32> = (0..all * inputs).map(|_| noise.float()).collect();
            let bias: Vec<f32> = (0..channels).map(|_| noise.float()).collect();
            let free = (f32::NEG_INFINITY, f32::INFINITY);
            let bounds = if bounded { (0.0, 1.5) } else { free };
            let mut want = bias.repeat(window.pixels());
            naive_window(&window, |position, _, taps| {
                for (tap, pixel) in taps {
                    for c in 0..channels {
                        let weights = &weights[(tap * channels + c) * inputs..][..inputs];
                        let product: f32 = weights.iter().enumerate().map(|(i, w)| w * x.at(position, i)).sum();
                        want[pixel * channels + c] += product;
                    }
                }
            });
            for isa in isas() {
                let product = ConvF::new(isa, &weights, all, [1, 1], inputs, 1, vec![0.0; all], free.0, free.1);
                let mut y = Grid::new(window.pixels(), channels, gap, 9.0, || 1.0);
                let spread = Spread::new(isa, window, bias.clone(), bounds.0, bounds.1).then(bounded.then_some(UnaryOp::Neg));
                let spread = Spread { band_bytes: if narrow { 1 } else { BAND_BYTES }, ..spread };
                let mut scratch = vec![1; spread.scratch(&product, threads)];
                spread.run(&product, x.rows(), y.rows_mut(), &mut scratch, threads);
                for (got, sum) in y.values().into_iter().zip(&want) {
                    let want = if bounded { -sum.clamp(bounds.0, bounds.1) } else { *sum };
                    assert!((got - want).abs() <= 2e-5 * sum.abs().max(1.0), "{isa}: {got} for {want}");
                }
            }
        }
    }
}
