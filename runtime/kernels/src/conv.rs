//! Convolutions and products by constant weights.
//!
//! One driver serves 8-bit integers and floats: it divides positions of the output (or columns,
//! where there are few positions) between threads, and these into blocks whose pixels the cache
//! holds (`conv/blocks.rs`); a block is multiplied by one panel of the weights after the other
//! (`conv/panels.rs`), a register tile at a time (`tile.rs`).

mod blocks;
mod float;
mod gemm;
mod int8;
mod panels;
mod sparse;
#[cfg(test)]
mod tests;

pub use float::ConvF;
pub use gemm::GemmF;
pub use int8::Conv8;
pub use sparse::SparseF;

use crate::{
    Isa, Rows, RowsMut, UnaryOp, Window,
    elementwise::{Lines, apply_lines},
    team::join,
    tile::{Operand, Tiles, Together},
};
pub(crate) use blocks::POSITIONS;
use blocks::{Block, Blocks, LEAST, Strides};
use panels::{Panel, Panels, Shape};
use std::ops::Range;

/// Bytes of a block's pixels: what a second-level cache holds beside a panel. Each tile reads its
/// pixels in order, which is fast from there; and the more pixels, the fewer times all the weights
/// have to come from farther away.
const BLOCK_BYTES: usize = 192 << 10;

/// Scratch memory begins at a multiple of this.
const ALIGN: usize = 64;

/// Positions below which a thread isn't worth its start on them: columns are divided instead.
const FEW: usize = 48;

/// Panels from which on it is worth while to copy rows for them to where they lie together.
const WORTH_TOGETHER: usize = 5;

/// What a convolution is before it has weights.
#[derive(Debug)]
struct Conv {
    tiles: &'static Tiles,
    shape: Shape,
    panels: Panels,
    /// Bytes of a block's pixels.
    block: usize,
}

/// Part of a result.
#[derive(Debug, Clone)]
struct Part {
    positions: Range<usize>,
    panels: Range<usize>,
}

/// One run of a convolution.
struct Run<'a, X: Number, F> {
    blocks: Blocks<'a>,
    panels: &'a [Panel],
    /// Steps of a line of the window.
    steps: usize,
    x: Rows<'a, X::Input>,
    /// What is outside of images.
    pad: X::Input,
    /// How rows are copied to where they lie together.
    together: Option<Together>,
    /// What is taken off numbers as they are copied.
    offset: u8,
    /// Multiplies rows by a panel; the first of these rows is that of this position.
    tiles: F,
}

impl Conv {
    fn new(isa: Isa, shape: Shape, quad: usize) -> Self {
        let tiles = isa.tiles();
        let vectors = if quad == 1 { tiles.vectors_f } else { tiles.vectors };
        let panels = Panels::new(&shape, tiles.lanes, vectors, quad);
        Self { tiles, shape, panels, block: BLOCK_BYTES }
    }

    /// A convolution of 8-bit integers.
    fn of_integers(isa: Isa, shape: Shape) -> Self {
        Self::new(isa, shape, isa.tiles().step)
    }

    fn blocks<'a, X>(&'a self, window: &'a Window) -> Blocks<'a> {
        assert_eq!(window.kernel, self.shape.kernel, "a window for these weights");
        Blocks { window, shape: &self.shape, quad: self.panels.quad, budget: self.block / size_of::<X>() }
    }

    /// Bytes of scratch memory for inputs of type `X`.
    fn scratch<X: Number>(&self, window: &Window, threads: usize) -> usize {
        threads.max(1) * self.part_scratch::<X>(window)
    }

    fn part_scratch<X: Number>(&self, window: &Window) -> usize {
        // There is room for whole groups where rows lie together.
        let more = self.together(window).map_or(0, |t| t.rows() * (self.shape.channels + t.bytes()));
        bytes::<X>(self.blocks::<X>(window).capacity() + more)
    }

    /// How rows are copied to where they lie together, if they are: those of a matrix, whose bytes divide so.
    fn together(&self, window: &Window) -> Option<Together> {
        let can = self.is_of_bytes() && window.kernel == [1, 1];
        self.tiles.together.filter(|t| can && self.shape.channels.is_multiple_of(t.bytes()))
    }

    /// What is taken off numbers as they are copied.
    fn offset(&self) -> u8 {
        if self.is_of_bytes() { self.tiles.offset } else { 0 }
    }

    fn is_of_bytes(&self) -> bool {
        self.panels.quad == self.tiles.step
    }

    fn macs(&self, window: &Window) -> u64 {
        (window.positions() * self.shape.outputs * self.shape.depth()) as u64
    }

    /// Calls `tiles` for every block and panel of the result.
    ///
    /// # Panics
    /// When `x` isn't what the window slides over, or `scratch` is too small.
    fn run<X: Number>(
        &self,
        x: Rows<X::Input>,
        pad: X::Input,
        window: &Window,
        scratch: &mut [u8],
        threads: usize,
        tiles: impl Fn(Operand<X>, &Panel, usize) + Sync,
    ) {
        assert_eq!((x.rows(), x.width()), (window.pixels(), self.shape.groups * self.shape.channels), "input");
        assert!([window.stride, window.dilation].iter().flatten().all(|&n| n > 0), "steps of {window:?}");
        if window.positions() == 0 || self.panels.list.is_empty() {
            return;
        }
        let blocks = self.blocks::<X>(window);
        let Panels { list: panels, steps, .. } = &self.panels;
        let run = Run {
            blocks,
            panels,
            steps: *steps,
            x,
            pad,
            together: self.together(window),
            offset: self.offset(),
            tiles,
        };
        let whole = Part { positions: 0..window.positions(), panels: 0..run.panels.len() };
        let scratch = &mut scratch[..self.scratch::<X>(window, threads)];
        run.divide(whole, scratch, threads.max(1));
    }
}

impl<X: Number, F: Fn(Operand<X>, &Panel, usize) + Sync> Run<'_, X, F> {
    fn divide(&self, part: Part, scratch: &mut [u8], threads: usize) {
        let left = threads / 2;
        if left == 0 {
            return self.part(&part, scratch);
        }
        let at = |range: &Range<usize>, unit: usize| {
            let units = range.len().div_ceil(unit);
            (range.start + units * left / threads * unit).min(range.end)
        };
        let Part { positions, panels } = part;
        let (a, b) = if positions.len() < threads * FEW && panels.len() > 1 {
            let at = at(&panels, 1);
            (
                Part { positions: positions.clone(), panels: panels.start..at },
                Part { positions, panels: at..panels.end },
            )
        } else {
            let at = at(&positions, LEAST);
            (
                Part { positions: positions.start..at, panels: panels.clone() },
                Part { positions: at..positions.end, panels },
            )
        };
        let (scratch_a, scratch_b) = scratch.split_at_mut(scratch.len() / threads * left);
        join(|| self.divide(a, scratch_a, left), || self.divide(b, scratch_b, threads - left));
    }

    fn part(&self, part: &Part, scratch: &mut [u8]) {
        let strip = aligned(scratch);
        let panels = &self.panels[part.panels.clone()];
        let channels = self.blocks.shape.channels;
        // Nowhere: only those of a block may be followed.
        let mut offsets = [usize::MAX >> 8; POSITIONS];
        let mut first = part.positions.start;
        while first < part.positions.end {
            let block = self.blocks.at(first, part.positions.end);
            let all = |panels: &[Panel], pixels: Pixels<X>| {
                panels.iter().for_each(|panel| self.panel(panel, block.first, &pixels));
            };
            let in_place = self.in_place(&block, &mut offsets);
            let groups = || panels.chunk_by(|a, b| a.group == b.group);
            let are_many = groups().any(|panels| panels.len() >= WORTH_TOGETHER);
            if let (Some((x, _)), Some(how)) = (in_place, self.together.filter(|_| are_many)) {
                for panels in groups() {
                    let x = &x[panels[0].group * channels..];
                    let offsets = self.copy_together(how, x, &offsets[..block.len], strip);
                    all(panels, Pixels { x: strip, offsets: &offsets[..block.len], layout: None });
                }
            } else if let (Some((x, layout)), 0) = (in_place, self.offset) {
                for panels in groups() {
                    let x = &x[panels[0].group * channels..];
                    all(panels, Pixels { x, offsets: &offsets[..block.len], layout: Some(layout) });
                }
            } else {
                let layout = self.blocks.strip(&block);
                self.blocks.offsets(&block, &layout, true, &mut offsets);
                for panels in groups() {
                    let x = self.x.columns(panels[0].group * channels, channels);
                    self.blocks.fill(&block, x, (self.pad, self.offset), strip);
                    all(panels, Pixels { x: strip, offsets: &offsets[..block.len], layout: Some(layout) });
                }
            }
            first += block.len;
        }
    }

    /// The input, and where a block's pixels lie in it, with their offsets, if they can be read there and
    /// nothing behind the last group's.
    fn in_place(&self, block: &Block, offsets: &mut [usize; POSITIONS]) -> Option<(&[X], Strides)> {
        let x = X::in_place(self.x.data())?;
        let layout = self.blocks.direct(&self.x)?;
        self.blocks.offsets(block, &layout, false, offsets);
        let last = offsets[block.len - 1] + self.x.width() - self.blocks.shape.channels;
        (last + self.blocks.extent(&layout) <= x.len()).then_some((x, layout))
    }

    /// Copies rows to where they lie together, and says where they begin.
    fn copy_together(&self, how: Together, x: &[X], from: &[usize], to: &mut [X]) -> [usize; POSITIONS] {
        let (group, width) = (how.rows(), self.blocks.shape.channels);
        let mut offsets = [usize::MAX >> 8; POSITIONS];
        for (i, (rows, to)) in from.chunks(group).zip(to.chunks_exact_mut(group * width)).enumerate() {
            for row in 0..rows.len() {
                offsets[i * group + row] = i * group * width + row * how.bytes();
            }
            // The last one stands in for others.
            let row = |i: usize| &x[rows[i.min(rows.len() - 1)]..][..width];
            match how {
                Together::FiveBy16 => interleave::<X, 5, 16>(std::array::from_fn(row), to, self.offset),
                Together::SixBy8 => interleave::<X, 6, 8>(std::array::from_fn(row), to, self.offset),
            }
        }
        offsets
    }

    /// Multiplies a block, whose first position is `first`, by a panel.
    fn panel(&self, panel: &Panel, first: usize, pixels: &Pixels<X>) {
        let Pixels { x, offsets, layout } = *pixels;
        let extent = match layout {
            Some(layout) => self.blocks.extent(&layout),
            None => self.together.map_or(0, Together::rows) * self.blocks.shape.channels,
        };
        // Offsets ascend: what is in bounds for the last one is for all.
        assert!(offsets[offsets.len() - 1] + extent <= x.len(), "a block within its pixels");
        let operand = Operand {
            base: x.as_ptr(),
            offsets: offsets.as_ptr(),
            rows: offsets.len(),
            segments: self.blocks.shape.kernel[0],
            segment: layout.map_or(0, |layout| layout.segment),
            steps: self.steps,
            together: layout.is_none(),
        };
        (self.tiles)(operand, panel, first);
    }
}

/// Copies rows, [less](Number::less) `offset`: `BYTES` of each, the next ones of each, and so on.
fn interleave<X: Number, const ROWS: usize, const BYTES: usize>(rows: [&[X]; ROWS], to: &mut [X], offset: u8) {
    let rows = rows.map(|row| row.as_chunks::<BYTES>().0);
    let count = rows[0].len();
    let rows = rows.map(|row| &row[..count]);
    let groups = to.as_chunks_mut::<BYTES>().0.as_chunks_mut::<ROWS>().0;
    for (i, to) in groups[..count].iter_mut().enumerate() {
        for (to, row) in to.iter_mut().zip(&rows) {
            // Eight bytes are copied by one instruction, and changed one by one.
            *to = if offset == 0 { row[i] } else { row[i].map(|x| x.less(offset)) };
        }
    }
}

/// Where the pixels of a block lie.
struct Pixels<'a, X> {
    x: &'a [X],
    /// Of each position, the first one.
    offsets: &'a [usize],
    /// None of rows that lie together.
    layout: Option<Strides>,
}

/// A number that tiles read, for which any bytes stand.
///
/// # Safety
/// Any bytes are a value, and no value has padding.
pub(crate) unsafe trait Number: Copy + Send + Sync {
    /// What it is in the input.
    type Input: Copy + Send + Sync;
    /// Converts one.
    fn of(x: Self::Input) -> Self;
    /// The input itself, where it has such numbers.
    fn in_place(x: &[Self::Input]) -> Option<&[Self]>;
    /// A byte less [`Tiles::offset`], which is 0 or 128; nothing is taken off others.
    #[inline(always)]
    fn less(self, _offset: u8) -> Self {
        self
    }
    /// Converts as many as `to` has room for, [less](Number::less) `offset`.
    fn copy(from: &[Self::Input], to: &mut [Self], offset: u8);
}

/// Numbers that are the same in the input.
macro_rules! as_in_input {
    ($x:ty $(, $less:item)?) => {
        // SAFETY: integers and floats may have any bytes, and are not padded.
        unsafe impl Number for $x {
            type Input = $x;
            fn of(x: $x) -> $x {
                x
            }
            fn in_place(x: &[$x]) -> Option<&[$x]> {
                Some(x)
            }
            $($less)?
            fn copy(from: &[$x], to: &mut [$x], offset: u8) {
                if offset == 0 {
                    return to.copy_from_slice(from);
                }
                assert_eq!(from.len(), to.len(), "as many numbers");
                to.iter_mut().zip(from).for_each(|(to, from)| *to = from.less(offset));
            }
        }
    };
}
as_in_input!(
    u8,
    #[inline(always)]
    fn less(self, offset: u8) -> u8 {
        self ^ offset
    }
);
as_in_input!(i8);
as_in_input!(i32);
as_in_input!(f32);

// SAFETY: any two bytes are a 16-bit integer, which is not padded.
unsafe impl Number for i16 {
    type Input = u8;
    fn of(x: u8) -> i16 {
        x.into()
    }
    fn in_place(_: &[u8]) -> Option<&[i16]> {
        None
    }
    fn copy(from: &[u8], to: &mut [i16], _: u8) {
        assert_eq!(from.len(), to.len(), "as many numbers");
        to.iter_mut().zip(from).for_each(|(to, &from)| *to = from.into());
    }
}

/// Scratch memory from where it is aligned.
pub(crate) fn aligned<X: Number>(scratch: &mut [u8]) -> &mut [X] {
    let skip = scratch.as_ptr().align_offset(ALIGN).min(scratch.len());
    // SAFETY: any bytes are an `X`, and any `X` is bytes again, as `Number` guarantees.
    unsafe { scratch[skip..].align_to_mut().1 }
}

/// Bytes of scratch memory in which there are so many numbers, wherever it begins.
pub(crate) fn bytes<X: Number>(numbers: usize) -> usize {
    (numbers * size_of::<X>() + ALIGN).next_multiple_of(ALIGN)
}

/// A result whose parts several threads write.
#[derive(Clone, Copy)]
struct Shared<Y> {
    first: *mut Y,
    stride: usize,
}

// SAFETY: threads write different elements, for `Run::divide` gives each position and panel to one part. A `Y` may be
// sent to the thread that writes it.
unsafe impl<Y: Send> Sync for Shared<Y> {}

impl<Y> Shared<Y> {
    /// # Panics
    /// When `y` isn't as large as the result.
    fn new(mut y: RowsMut<Y>, window: &Window, outputs: usize) -> Self {
        assert_eq!((y.rows(), y.width()), (window.positions(), outputs), "output");
        Self { first: y.data().as_mut_ptr(), stride: y.stride() }
    }

    /// An element.
    ///
    /// # Safety
    /// The result has this row and this column, and is still borrowed.
    unsafe fn at(&self, row: usize, column: usize) -> *mut Y {
        // SAFETY: the caller guarantees that the element is within the result, at whose beginning `first` is.
        unsafe { self.first.add(row * self.stride + column) }
    }
}

impl Shared<f32> {
    /// Makes `f` of the results of a panel in some rows, while the cache holds them.
    ///
    /// # Safety
    /// The result has these rows and columns, they were written, nobody else uses them, and it is still borrowed.
    unsafe fn apply(&self, isa: Isa, f: UnaryOp, rows: Range<usize>, panel: &Panel) {
        apply_lines(isa, f, PanelLines { y: *self, rows, column: panel.column, columns: panel.columns });
    }
}

/// The results of a panel in the rows that are left, for [`Shared::apply`], whose caller guarantees that they may be written.
struct PanelLines {
    y: Shared<f32>,
    rows: Range<usize>,
    column: usize,
    columns: usize,
}

impl Lines for PanelLines {
    #[inline(always)]
    fn next(&mut self) -> Option<&mut [f32]> {
        let row = self.rows.next()?;
        // SAFETY: only `Shared::apply` makes these lines, of elements within the result that were written and are its own.
        Some(unsafe { std::slice::from_raw_parts_mut(self.y.at(row, self.column), self.columns) })
    }
}
