//! Products of rows by constant matrices of codes of 4 bits, of which each block of terms has a scale. Each block of a row becomes
//! codes of 8 bits, with a scale of its own, so that sums are of integers; they are scaled block by block.
//!
//! The codes of rows err by 1/254 of a block's greatest value at most, those of the matrix by up to a fifteenth of its range: what the
//! former add to the error of a product is about a hundredth of its power.

use crate::{
    Coded, Isa, Rows, RowsMut, UnaryOp,
    coded::Bytes,
    conv::{aligned, bytes},
    elementwise::apply,
    math::{clamp, round_within},
    multiversion::multiversion,
    parallel::in_rows,
    team::join,
    tile::{Vectors, unrolled},
};
use std::{ops::Range, ptr};

/// Columns of a panel.
const COLUMNS: usize = 16;
/// Terms of which a panel has the codes of all columns side by side, and the bytes that these take.
const STEP: usize = 8;
const STEP_BYTES: usize = STEP * COLUMNS / 2;
/// The code in the middle, which stands for zero where no other does.
const MIDDLE: i32 = 8;
/// The greatest code of a term.
const GREATEST: f32 = 127.0;
/// A block without a greater value is zero.
const LEAST: f32 = 1e-36;

/// A product of rows by a matrix in codes of 4 bits.
#[derive(Debug)]
pub struct Coded4 {
    isa: Isa,
    depth: usize,
    block: usize,
    /// Panel by panel, for each eight terms: for each column a byte for each of the first four, which has the code of the fourth term
    /// after it in its upper half.
    codes: Vec<u8>,
    /// Panel by panel, for each block: a scale for each column.
    scales: Vec<f32>,
    /// The same of the codes that stand for zero; empty where it is always the one in the middle.
    zeros: Vec<u8>,
    bias: Vec<f32>,
    min: f32,
    max: f32,
    then: Option<UnaryOp>,
}

/// Rows in codes: their terms, and for each block a scale and the sum of its codes.
struct Quantised<'a> {
    terms: &'a [i8],
    scales: &'a [f32],
    sums: &'a [i32],
}

impl Coded4 {
    /// Whether there is a kernel for blocks of so many terms.
    pub fn fits(block: usize) -> bool {
        block > 0 && block.is_multiple_of(STEP) && block <= 1 << 16
    }

    /// A product by `matrix`, which has `depth` rows, and a column for each of `bias`.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, codes or blocks are others than [`Coded4::fits`] allows, or extents don't fit each other.
    pub fn new(isa: Isa, matrix: Coded, depth: usize, bias: Vec<f32>, (min, max): (f32, f32)) -> Self {
        assert!(isa.is_available(), "this machine has no {isa}");
        let Coded { codes, block, scales, zeros, .. } = matrix;
        let outputs = bias.len();
        assert!(Self::fits(block), "blocks of {block}");
        let (blocks, panels) = (depth.div_ceil(block), outputs.div_ceil(COLUMNS));
        assert_eq!(codes.len(), depth * outputs, "codes");
        assert!(codes.iter().all(|code| *code < 16), "codes of 4 bits");
        assert_eq!(scales.len(), blocks * outputs, "scales");
        assert!(zeros.is_none_or(|zeros| zeros.len() == scales.len()), "codes that stand for zero");
        let steps = blocks * block / STEP;
        let mut packed = vec![0; panels * steps * STEP_BYTES];
        for (term, codes) in codes.chunks(outputs.max(1)).enumerate() {
            let (step, within) = (term / STEP, term % STEP);
            for (column, code) in codes.iter().enumerate() {
                let at = (column / COLUMNS * steps + step) * STEP_BYTES + column % COLUMNS * 4 + within % 4;
                packed[at] |= code << (within / 4 * 4);
            }
        }
        let of_panels = |column: usize, block: usize| (column / COLUMNS * blocks + block) * COLUMNS + column % COLUMNS;
        let mut panel_scales = vec![0.0; panels * blocks * COLUMNS];
        let mut panel_zeros = vec![0; if zeros.is_some() { panel_scales.len() } else { 0 }];
        for i in 0..blocks * outputs {
            let at = of_panels(i % outputs, i / outputs);
            panel_scales[at] = scales[i];
            zeros.into_iter().for_each(|zeros| panel_zeros[at] = zeros[i]);
        }
        Self { isa, depth, block, codes: packed, scales: panel_scales, zeros: panel_zeros, bias, min, max, then: None }
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// Bytes that a run reads of the matrix.
    pub fn bytes(&self) -> usize {
        self.codes.len() + size_of_val(&self.scales[..]) + self.zeros.len()
    }

    /// Multiply-accumulates of a run on so many rows.
    pub fn macs(&self, rows: usize) -> u64 {
        (rows * self.depth * self.bias.len()) as u64
    }

    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }

    /// Terms with those that fill the last block.
    fn terms(&self) -> usize {
        self.blocks() * self.block
    }

    fn panels(&self) -> usize {
        self.bias.len().div_ceil(COLUMNS)
    }

    /// Bytes of scratch memory that a run on so many rows needs.
    pub fn scratch(&self, rows: usize) -> usize {
        let of_blocks = rows * self.blocks();
        bytes::<i8>(rows * self.terms())
            + bytes::<f32>(of_blocks)
            + bytes::<i32>(of_blocks)
            + bytes::<f32>(self.panels() * rows * COLUMNS)
    }

    /// Computes `y = then(clamp(x * matrix + bias, min, max))`, in `threads` parts. The order of a sum does not depend on them. A block of
    /// terms with one that is not finite makes NaN.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(&self, x: Rows<f32>, y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let (rows, outputs) = (x.rows(), self.bias.len());
        assert_eq!((x.width(), y.rows(), y.width()), (self.depth, rows, outputs), "rows by {outputs} columns");
        if rows == 0 || outputs == 0 {
            return;
        }
        let (terms, of_blocks) = (rows * self.terms(), rows * self.blocks());
        let (to_terms, scratch) = scratch.split_at_mut(bytes::<i8>(terms));
        let (to_scales, scratch) = scratch.split_at_mut(bytes::<f32>(of_blocks));
        let (to_sums, scratch) = scratch.split_at_mut(bytes::<i32>(of_blocks));
        let (to_terms, to_scales, to_sums) = (
            &mut aligned::<i8>(to_terms)[..terms],
            &mut aligned::<f32>(to_scales)[..of_blocks],
            &mut aligned::<i32>(to_sums)[..of_blocks],
        );
        self.quantise(x, (to_terms, to_scales, to_sums), threads);
        let results = &mut aligned::<f32>(scratch)[..self.panels() * rows * COLUMNS];
        let of_x = Quantised { terms: to_terms, scales: to_scales, sums: to_sums };
        self.divide(0..self.panels(), &of_x, results, threads.max(1));
        let results = &*results;
        in_rows(y, 1, threads, &|part, mut y| {
            for i in 0..part.rows {
                let (row, y) = (part.row + i, y.row(i));
                for (panel, y) in y.chunks_mut(COLUMNS).enumerate() {
                    let from = &results[(panel * rows + row) * COLUMNS..];
                    for ((y, v), bias) in y.iter_mut().zip(from).zip(&self.bias[panel * COLUMNS..]) {
                        *y = clamp(v + bias, self.min, self.max);
                    }
                }
                self.then.into_iter().for_each(|f| apply(self.isa, f, y));
            }
        });
    }

    /// Makes codes of rows, `threads` parts of them at the same time.
    fn quantise(&self, x: Rows<f32>, to: (&mut [i8], &mut [f32], &mut [i32]), threads: usize) {
        let (rows, left, (terms, scales, sums)) = (x.rows(), threads / 2, to);
        if left == 0 || rows < 2 {
            let (of_row, blocks) = (self.terms(), self.blocks());
            for i in 0..rows {
                let (scales, sums) = (&mut scales[i * blocks..][..blocks], &mut sums[i * blocks..][..blocks]);
                row_to_codes(self.isa, x.row(i), self.block, &mut terms[i * of_row..][..of_row], scales, sums);
            }
            return;
        }
        let n = (rows * left / threads).max(1);
        let (terms_a, terms_b) = terms.split_at_mut(n * self.terms());
        let (scales_a, scales_b) = scales.split_at_mut(n * self.blocks());
        let (sums_a, sums_b) = sums.split_at_mut(n * self.blocks());
        join(
            || self.quantise(x.part(0, n), (terms_a, scales_a, sums_a), left),
            || self.quantise(x.part(n, rows - n), (terms_b, scales_b, sums_b), threads - left),
        );
    }

    /// Computes some panels, `threads` parts of them at the same time.
    fn divide(&self, panels: Range<usize>, x: &Quantised, to: &mut [f32], threads: usize) {
        let left = threads / 2;
        if left == 0 || panels.len() < 2 {
            return self.part(panels, x, to);
        }
        let n = (panels.len() * left / threads).max(1);
        let (to_a, to_b) = to.split_at_mut(to.len() / panels.len() * n);
        let (a, b) = (panels.start..panels.start + n, panels.start + n..panels.end);
        join(|| self.divide(a, x, to_a, left), || self.divide(b, x, to_b, threads - left));
    }

    fn part(&self, panels: Range<usize>, x: &Quantised, to: &mut [f32]) {
        let (blocks, steps) = (self.blocks(), self.block / STEP);
        let rows = to.len() / COLUMNS / panels.len().max(1);
        assert_eq!((x.terms.len(), x.scales.len(), x.sums.len()), (rows * self.terms(), rows * blocks, rows * blocks));
        let nibbles = self.isa.codes().nibbles;
        for (panel, to) in panels.zip(to.chunks_exact_mut((rows * COLUMNS).max(1))) {
            let codes = &self.codes[panel * blocks * steps * STEP_BYTES..][..blocks * steps * STEP_BYTES];
            let scales = &self.scales[panel * blocks * COLUMNS..][..blocks * COLUMNS];
            let zeros = match self.zeros.is_empty() {
                true => ptr::null(),
                false => self.zeros[panel * blocks * COLUMNS..][..blocks * COLUMNS].as_ptr(),
            };
            let tile = Tile4 {
                codes: codes.as_ptr(),
                scales: scales.as_ptr(),
                zeros,
                blocks,
                steps,
                terms: x.terms.as_ptr(),
                of_terms: x.scales.as_ptr(),
                sums: x.sums.as_ptr(),
                rows,
                y: to.as_mut_ptr(),
            };
            // SAFETY: `new` found the instruction set available. The slices above are what the tile reads of a panel: codes for all steps
            // of all blocks, a scale and perhaps a zero point for each block and column. The assert found the codes, scales and sums of as
            // many rows as `to` has, which is borrowed by this part alone.
            unsafe { nibbles(&tile) }
        }
    }
}

multiversion! {
    /// Codes of the blocks of a row, what fills the last block up, and for each block the scale and the sum of its codes.
    fn row_to_codes(isa: Isa, x: &[f32], block: usize, codes: &mut [i8], scales: &mut [f32], sums: &mut [i32]) {
        let ends = scales.iter_mut().zip(sums);
        for ((x, codes), (scale, sum)) in x.chunks(block).zip(codes.chunks_exact_mut(block)).zip(ends) {
            let (mut greatest, mut total) = ([0f32; COLUMNS], [0f32; COLUMNS]);
            let (whole, rest) = x.as_chunks::<COLUMNS>();
            for x in whole {
                for lane in 0..COLUMNS {
                    let v = x[lane].abs();
                    greatest[lane] = if v > greatest[lane] { v } else { greatest[lane] };
                    total[lane] += v;
                }
            }
            for v in rest {
                greatest[0] = greatest[0].max(v.abs());
                total[0] += v.abs();
            }
            let most = greatest.into_iter().fold(0f32, f32::max);
            // NaN is not compared, but in the total; and finite values whose total is not are beyond what products can have anyway.
            let is_finite = total.into_iter().sum::<f32>().is_finite();
            let by = if most > LEAST && is_finite { GREATEST / most } else { 0.0 };
            *scale = if !is_finite { f32::NAN } else if by == 0.0 { 0.0 } else { most / GREATEST };
            let (used, filling) = codes.split_at_mut(x.len());
            let mut all = 0;
            for (code, v) in used.iter_mut().zip(x) {
                let of = round_within(v * by, -GREATEST, GREATEST);
                *code = of as i8;
                all += of;
            }
            filling.fill(0);
            *sum = all;
        }
    }
}

/// A panel of codes, and the rows that are multiplied by it.
pub(crate) struct Tile4 {
    codes: *const u8,
    scales: *const f32,
    /// Null where the code in the middle stands for zero.
    zeros: *const u8,
    blocks: usize,
    /// Steps of a block, of eight terms each.
    steps: usize,
    /// The codes of rows; their scales and sums, one for each block.
    terms: *const i8,
    of_terms: *const f32,
    sums: *const i32,
    rows: usize,
    /// The results: a row of columns for each row.
    y: *mut f32,
}

/// The vector operations on codes, above all those of 4 bits, which may be called only where the machine has the instruction set.
///
/// # Safety
/// The operations must do what their names say in every lane.
pub(crate) unsafe trait Nibbles: Vectors {
    /// Four codes without a sign for each lane.
    type Four: Copy;

    /// Reads four bytes for each lane: the lower halves, and the upper ones.
    ///
    /// # Safety
    /// The machine has the instruction set. `4 * LANES` bytes can be read at `from`.
    unsafe fn halves(from: *const u8) -> [Self::Four; 2];
    /// Adds the products of four codes of each lane by four signed bytes.
    ///
    /// # Safety
    /// The machine has the instruction set. Four bytes can be read at `x`.
    unsafe fn dot_four(sum: Self::I, w: Self::Four, x: *const i8) -> Self::I;
    /// The same in every lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn splat_i32(x: i32) -> Self::I;
    /// `LANES` bytes at `from`, each times `by`.
    ///
    /// # Safety
    /// The machine has the instruction set. `LANES` bytes can be read at `from`.
    unsafe fn bytes_times(from: *const u8, by: i32) -> Self::I;
}

/// Computes the rows from `first` to `first + M`, `N` vectors of columns at a time.
///
/// # Safety
/// The machine has the instruction set of `V`. What `t` points to is there: of the panel, for each block `steps` times 64 bytes of codes, and
/// 16 scales and, unless null, zero points; of rows, for each block `8 * steps` terms, a scale and a sum. It has these rows, of whose
/// results nothing else reads or writes the 16 columns meanwhile.
#[inline(always)]
pub(crate) unsafe fn tile4<V: Nibbles, const M: usize, const N: usize>(t: &Tile4, first: usize) {
    const { assert!(COLUMNS.is_multiple_of(N * V::LANES)) }
    // SAFETY: every address lies within what the caller vouches for.
    unsafe {
        let of_row = t.blocks * t.steps * STEP;
        let mut terms = [t.terms; M];
        unrolled!(m < M => { terms[m] = t.terms.add((first + m) * of_row); });
        for lane in (0..COLUMNS).step_by(N * V::LANES) {
            let (mut codes, mut term) = (t.codes.add(4 * lane), 0);
            let mut totals = [[V::splat(0.0); N]; M];
            for block in 0..t.blocks {
                let at = block * COLUMNS + lane;
                let mut sums = [[V::splat_i32(0); N]; M];
                unrolled!(m < M => {
                    let sum = *t.sums.add((first + m) * t.blocks + block);
                    unrolled!(n < N => {
                        sums[m][n] = match t.zeros.is_null() {
                            true => V::splat_i32(-MIDDLE * sum),
                            false => V::bytes_times(t.zeros.add(at + n * V::LANES), -sum),
                        };
                    });
                });
                for _ in 0..t.steps {
                    unrolled!(n < N => {
                        let [low, high] = V::halves(codes.add(4 * n * V::LANES));
                        unrolled!(m < M => {
                            sums[m][n] = V::dot_four(sums[m][n], low, terms[m].add(term));
                            sums[m][n] = V::dot_four(sums[m][n], high, terms[m].add(term + 4));
                        });
                    });
                    (codes, term) = (codes.add(STEP_BYTES), term + STEP);
                }
                unrolled!(n < N => {
                    let scales = V::load(t.scales.add(at + n * V::LANES));
                    unrolled!(m < M => {
                        let scale = V::mul(scales, V::splat(*t.of_terms.add((first + m) * t.blocks + block)));
                        totals[m][n] = V::mul_add(totals[m][n], V::to_f32(sums[m][n]), scale);
                    });
                });
            }
            unrolled!(m < M => {
                unrolled!(n < N => {
                    V::store(t.y.add((first + m) * COLUMNS + lane + n * V::LANES), totals[m][n]);
                });
            });
        }
    }
}

/// What an instruction set does with codes. Safe to call only where the machine has it.
#[derive(Debug)]
pub(crate) struct Codes {
    /// Runs [`tile4`] on all rows, with what that asks for.
    pub nibbles: unsafe fn(&Tile4),
    /// Runs [`unpack8`], with what that asks for.
    ///
    /// [`unpack8`]: crate::coded::unpack8
    pub unpack: unsafe fn(&Bytes),
}

/// Defines `CODES` for a [`Nibbles`], which runs [`tile4`] on so many rows at a time as are listed, the last being one, with so many vectors
/// of columns: as many as registers hold, so that a panel is read once rather than in parts, one after the other.
macro_rules! codes {
    ($vectors:ty, $(#[$features:meta])* $($m:literal: $n:literal),+) => {
        /// What this instruction set does with codes.
        pub(crate) static CODES: $crate::coded4::Codes = $crate::coded4::Codes { nibbles, unpack };

        /// Makes floats of codes.
        ///
        /// # Safety
        /// The machine has the instruction set, and `b` points to what `unpack8` asks for.
        $(#[$features])*
        unsafe fn unpack(b: &$crate::coded::Bytes) {
            // SAFETY: the caller guarantees the instruction set and the operands.
            unsafe { $crate::coded::unpack8::<$vectors>(b) }
        }

        /// Runs tiles on all rows.
        ///
        /// # Safety
        /// The machine has the instruction set, and `t` points to what `tile4` asks for.
        unsafe fn nibbles(t: &$crate::coded4::Tile4) {
            /// # Safety
            /// As for the function around it.
            $(#[$features])*
            unsafe fn rows<const M: usize, const N: usize>(t: &$crate::coded4::Tile4, first: usize) -> usize {
                let n = t.rows().saturating_sub(first) / M;
                for i in 0..n {
                    // SAFETY: the caller guarantees the instruction set and the operands, of which these are rows.
                    unsafe { $crate::coded4::tile4::<$vectors, M, N>(t, first + i * M) }
                }
                first + n * M
            }
            let mut first = 0;
            // SAFETY: the caller guarantees the instruction set and the operands.
            $(first = unsafe { rows::<$m, $n>(t, first) };)+
            debug_assert_eq!(first, t.rows());
        }
    };
}

pub(crate) use codes;

impl Tile4 {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests;
