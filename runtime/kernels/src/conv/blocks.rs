//! How a convolution is cut into blocks of positions, and where the pixels of a block are.
//!
//! In rows of pixels the taps of a window's line are side by side already, so that a tile can read
//! them where they are: no copy of the taps is made (im2col). What isn't as a tile wants it
//! (padding, pixels that don't follow each other, a last pixel behind which nothing may be read, bytes of
//! which something is taken off)
//! is copied as an image, padded, a block's lines at a time: the strip.

use super::{Number, panels::Shape};
use crate::{Rows, Window};

/// The most positions of a block.
pub(crate) const POSITIONS: usize = 512;

/// What a block has at least, if there are so many: a multiple of most tiles' rows.
pub(super) const LEAST: usize = 24;

/// A run of positions that are computed together, of one image or of several whole ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    /// The first position, of all images'.
    pub first: usize,
    /// How many.
    pub len: usize,
    /// The lines and columns of positions that its strip serves, of each of its images.
    lines: [usize; 2],
    columns: [usize; 2],
}

/// Where the elements of positions lie: the distances between what is next to each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strides {
    image: usize,
    line: usize,
    column: usize,
    /// From a line of the window to the next.
    pub segment: usize,
}

/// What a convolution's blocks follow from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub window: &'a Window,
    pub shape: &'a Shape,
    /// Weights of a step: what of a line is read in one go.
    pub quad: usize,
    /// Elements of a strip that the cache holds.
    pub budget: usize,
}

impl Blocks<'_> {
    /// Whether a strip has each position's taps for itself, not an image in which they overlap.
    fn gathers(&self) -> bool {
        let Window { kernel, stride, dilation, .. } = self.window;
        dilation[1] > 1 && kernel[1] > 1 || stride[1] > kernel[1]
    }

    /// Lines of a strip for so many lines of positions.
    fn strip_lines(&self, lines: usize) -> usize {
        let Window { kernel, stride, dilation, .. } = self.window;
        (lines - 1) * stride[0] + (kernel[0] - 1) * dilation[0] + 1
    }

    /// Elements of a strip's line for so many columns of positions.
    fn strip_line(&self, columns: usize) -> usize {
        let pixels = if self.gathers() {
            columns * self.window.kernel[1]
        } else {
            (columns - 1) * self.window.stride[1] + self.window.kernel[1]
        };
        pixels * self.shape.channels
    }

    /// Elements of a strip for whole images.
    fn strip_image(&self) -> usize {
        let [height, width] = self.window.output;
        self.strip_lines(height) * self.strip_line(width)
    }

    /// The most elements that the strip of any block has, with what is read behind it.
    pub fn capacity(&self) -> usize {
        if self.window.positions() == 0 {
            return 0;
        }
        let least = self.strip_lines(1) * self.strip_line(LEAST.min(self.window.output[1]));
        let all = self.window.batch * self.strip_image();
        self.budget.max(least).min(all.max(least)) + self.quad
    }

    /// The block from position `first` on, which ends at `end` at the latest.
    pub fn at(&self, first: usize, end: usize) -> Block {
        let [height, width] = self.window.output;
        let (each, left) = (height * width, end - first);
        let images = (self.budget / self.strip_image()).min(left / each).min(POSITIONS / each);
        if first.is_multiple_of(each) && images > 0 {
            return Block { first, len: images * each, lines: [0, height], columns: [0, width] };
        }
        let (line, column) = (first % each / width, first % width);
        let left = left.min(each - first % each).min(POSITIONS);
        let lines = largest(height, |lines| self.strip_lines(lines) * self.strip_line(width) <= self.budget);
        let len = if lines > 0 {
            left.min(lines * width - column)
        } else {
            let fits = |columns| self.strip_lines(1) * self.strip_line(columns) <= self.budget;
            left.min(width - column).min(largest(width, fits).max(LEAST))
        };
        // The next block begins where most tiles end.
        let len = if len < left && len > LEAST { len - len % LEAST } else { len };
        let last = (first + len - 1) % each;
        let columns = if last / width == line { [column, last % width + 1] } else { [0, width] };
        Block { first, len, lines: [line, last / width + 1], columns }
    }

    /// Where positions lie in an image, if they can be read there.
    pub fn direct<X>(&self, x: &Rows<X>) -> Option<Strides> {
        let Window { input, output, kernel, stride, dilation, pad, .. } = *self.window;
        let inside = |axis: usize| {
            let last = (output[axis] - 1) * stride[axis] + (kernel[axis] - 1) * dilation[axis];
            pad[axis] == 0 && last < input[axis]
        };
        let side_by_side = kernel[1] == 1 || dilation[1] == 1 && x.stride() == self.shape.channels;
        let pixel = x.stride();
        (inside(0) && inside(1) && side_by_side).then(|| Strides {
            image: input[0] * input[1] * pixel,
            line: stride[0] * input[1] * pixel,
            column: stride[1] * pixel,
            segment: dilation[0] * input[1] * pixel,
        })
    }

    /// Where positions lie in the strip of a block.
    pub fn strip(&self, block: &Block) -> Strides {
        let Window { kernel, stride, dilation, .. } = self.window;
        let line = self.strip_line(block.columns[1] - block.columns[0]);
        let column = if self.gathers() { kernel[1] } else { stride[1] } * self.shape.channels;
        let image = self.strip_lines(block.lines[1] - block.lines[0]) * line;
        Strides { image, line: stride[0] * line, column, segment: dilation[0] * line }
    }

    /// Writes the offsets of a block's positions, in images or, if `strip`, in its strip.
    pub fn offsets(&self, block: &Block, layout: &Strides, strip: bool, offsets: &mut [usize; POSITIONS]) {
        let [height, width] = self.window.output;
        let (mut image, mut line, mut column) =
            (block.first / (height * width), block.first / width % height, block.first % width);
        let (image0, line0, column0) = if strip { (image, block.lines[0], block.columns[0]) } else { (0, 0, 0) };
        // Lines may follow each other as columns do, as those of a matrix, which are short.
        let even = layout.line == width * layout.column && layout.image == height * layout.line;
        let mut offsets = &mut offsets[..block.len];
        while !offsets.is_empty() {
            let first =
                (image - image0) * layout.image + (line - line0) * layout.line + (column - column0) * layout.column;
            let here = if even { offsets.len() } else { offsets.len().min(width - column) };
            let (of_line, of_others) = offsets.split_at_mut(here);
            for (i, offset) in of_line.iter_mut().enumerate() {
                *offset = first + i * layout.column;
            }
            offsets = of_others;
            (line, column) = (line + 1, 0);
            if line == height {
                (image, line) = (image + 1, 0);
            }
        }
    }

    /// Elements from a position to behind the last one that a tile reads for it.
    pub fn extent(&self, layout: &Strides) -> usize {
        (self.shape.kernel[0] - 1) * layout.segment + self.shape.run().next_multiple_of(self.quad)
    }

    /// Copies a block's lines out of `x`, the columns of one group, [less](Number::less) `offset`; `pad` is outside of images.
    pub fn fill<X: Number>(&self, block: &Block, x: Rows<X::Input>, (pad, offset): (X::Input, u8), strip: &mut [X]) {
        let pad = X::of(pad).less(offset);
        let Window { input, output, kernel, stride, dilation, pad: before, .. } = *self.window;
        let channels = self.shape.channels;
        let each = output[0] * output[1];
        let columns = block.columns[1] - block.columns[0];
        let lines = self.strip_lines(block.lines[1] - block.lines[0]);
        let line = self.strip_line(columns);
        let images = block.first / each..(block.first + block.len).div_ceil(each);
        for (i, to) in strip[..images.len() * lines * line].chunks_exact_mut(line).enumerate() {
            let y = (block.lines[0] * stride[0] + i % lines).checked_sub(before[0]).filter(|&y| y < input[0]);
            let Some(y) = y else {
                to.fill(pad);
                continue;
            };
            let from = x.part(((images.start + i / lines) * input[0] + y) * input[1], input[1]);
            if self.gathers() {
                for (i, to) in to.chunks_exact_mut(channels).enumerate() {
                    let (position, tap) = (block.columns[0] + i / kernel[1], i % kernel[1]);
                    let x = (position * stride[1] + tap * dilation[1]).checked_sub(before[1]);
                    match x.filter(|&x| x < input[1]) {
                        Some(x) => X::copy(from.row(x), to, offset),
                        None => to.fill(pad),
                    }
                }
            } else {
                let pixels = line / channels;
                let first = block.columns[0] * stride[1];
                let left = before[1].saturating_sub(first).min(pixels);
                let first = (first + left).saturating_sub(before[1]).min(input[1]);
                let inner = (input[1] - first).min(pixels - left);
                to[..left * channels].fill(pad);
                copy(from.part(first, inner), &mut to[left * channels..][..inner * channels], offset);
                to[(left + inner) * channels..].fill(pad);
            }
        }
    }
}

/// Copies rows to where they follow each other.
fn copy<X: Number>(from: Rows<X::Input>, to: &mut [X], offset: u8) {
    if from.is_dense() {
        X::copy(from.data(), to, offset);
    } else {
        for (i, to) in to.chunks_exact_mut(from.width()).enumerate() {
            X::copy(from.row(i), to, offset);
        }
    }
}

/// The largest number up to `most` that fits, 0 if none does; what is less than one that fits,
/// fits.
fn largest(most: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = (low + high).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}
