//! Products of rows by constant matrices of codes of 4 or 8 bits, of which each block of terms has a scale: weights in blocks. The codes
//! become floats in registers, so that a row takes the time of reading them; for many rows, those of 8 bits become floats in memory, some
//! columns at a time.

use crate::{
    GemmF, Isa, Rows, RowsMut, UnaryOp,
    coded4::Nibbles,
    conv::{aligned, bytes},
    elementwise::apply,
    math::{clamp, multiply_add},
    multiversion::multiversion,
    team::join,
};
use std::ops::Range;

/// Lanes of what the compiler keeps in registers: of longer arrays it doesn't.
const LANES: usize = 16;
/// Columns of a panel.
const COLUMNS: usize = 2 * LANES;
/// Rows from which on a panel is made floats first: each row would do it again.
const MANY: usize = 4;

/// The bits of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bits {
    /// Two codes a byte.
    Four,
    /// One.
    Eight,
}

impl Bits {
    /// Codes of a byte.
    fn of_byte(self) -> usize {
        match self {
            Self::Four => 2,
            Self::Eight => 1,
        }
    }

    /// The code in the middle, which stands for zero where codes are signed.
    pub fn middle(self) -> i64 {
        match self {
            Self::Four => 8,
            Self::Eight => 128,
        }
    }
}

/// A matrix in codes, one row a term and one column an output.
#[derive(Debug, Clone, Copy)]
pub struct Coded<'a> {
    /// The codes, row by row, without a sign.
    pub codes: &'a [u8],
    /// Their bits; each has a byte here all the same.
    pub bits: Bits,
    /// Terms that share a scale.
    pub block: usize,
    /// The scales, a row of columns for each block.
    pub scales: &'a [f32],
    /// The codes that stand for zero, likewise; the one in the middle where there are none.
    pub zeros: Option<&'a [u8]>,
}

/// A product of rows by a matrix in codes.
#[derive(Debug)]
pub struct CodedF {
    isa: Isa,
    bits: Bits,
    depth: usize,
    block: usize,
    /// Panel by panel: for each term, or two of them, a byte for each column.
    codes: Vec<u8>,
    /// Panel by panel: for each block, what each column is multiplied by.
    scales: Vec<f32>,
    /// The same of the codes that stand for zero.
    zeros: Vec<f32>,
    bias: Vec<f32>,
    min: f32,
    max: f32,
    then: Option<UnaryOp>,
    /// Multiplies many rows by a panel of floats; nothing where rows have no terms, or codes 4 bits.
    gemm: Option<GemmF>,
}

impl CodedF {
    /// A product by `matrix`, which has `depth` rows, and a column for each of `bias`.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`, blocks aren't even, or extents don't fit each other.
    pub fn new(isa: Isa, matrix: Coded, depth: usize, bias: Vec<f32>, (min, max): (f32, f32)) -> Self {
        assert!(isa.is_available(), "this machine has no {isa}");
        let Coded { codes, bits, block, scales, zeros } = matrix;
        let outputs = bias.len();
        assert!(block > 0 && block.is_multiple_of(2), "blocks of {block}");
        let blocks = depth.div_ceil(block);
        assert_eq!(codes.len(), depth * outputs, "codes");
        assert_eq!(scales.len(), blocks * outputs, "scales");
        assert!(zeros.is_none_or(|zeros| zeros.len() == scales.len()), "codes that stand for zero");
        let panels = outputs.div_ceil(COLUMNS);
        let of_byte = bits.of_byte();
        let lines = blocks * block / of_byte;
        let mut made = Self {
            isa,
            bits,
            depth,
            block,
            codes: vec![0; panels * lines * COLUMNS],
            scales: vec![0.0; panels * blocks * COLUMNS],
            zeros: vec![bits.middle() as f32; panels * blocks * COLUMNS],
            bias,
            min,
            max,
            then: None,
            gemm: (depth > 0 && bits == Bits::Eight).then(|| GemmF::new(isa, depth, COLUMNS, false)),
        };
        for (row, codes) in codes.chunks(outputs.max(1)).enumerate() {
            let (line, shift) = (row / of_byte, row % of_byte * 4);
            for (column, code) in codes.iter().enumerate() {
                let (panel, lane) = (column / COLUMNS, column % COLUMNS);
                made.codes[(panel * lines + line) * COLUMNS + lane] |= code << shift;
            }
        }
        for i in 0..blocks * outputs {
            let (block, column) = (i / outputs, i % outputs);
            let at = (column / COLUMNS * blocks + block) * COLUMNS + column % COLUMNS;
            made.scales[at] = scales[i];
            if let Some(zeros) = zeros {
                made.zeros[at] = zeros[i].into();
            }
        }
        made
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// Bytes that a run reads of the matrix.
    pub fn bytes(&self) -> usize {
        self.codes.len() + size_of_val(&self.scales[..]) + size_of_val(&self.zeros[..])
    }

    /// Multiply-accumulates of a run on so many rows.
    pub fn macs(&self, rows: usize) -> u64 {
        (rows * self.depth * self.bias.len()) as u64
    }

    /// Terms with those that fill the last block.
    fn terms(&self) -> usize {
        self.depth.next_multiple_of(self.block)
    }

    fn blocks(&self) -> usize {
        self.depth.div_ceil(self.block)
    }

    fn panels(&self) -> usize {
        self.bias.len().div_ceil(COLUMNS)
    }

    /// Floats of scratch memory for few rows: these, filled up to whole blocks, and sums of the terms of each of their blocks.
    fn of_rows(&self, rows: usize) -> [usize; 2] {
        [rows * self.terms(), rows * self.blocks()]
    }

    /// What multiplies by a panel of floats, where there are enough rows.
    fn by_floats(&self, rows: usize) -> Option<&GemmF> {
        self.gemm.as_ref().filter(|_| rows >= MANY)
    }

    /// Bytes that a thread needs for a panel of floats.
    fn of_panel(gemm: &GemmF, rows: usize) -> usize {
        bytes::<f32>(gemm.packed()) + gemm.scratch_packed(rows)
    }

    /// Bytes of scratch memory that a run on so many rows needs.
    pub fn scratch(&self, rows: usize, threads: usize) -> usize {
        bytes::<f32>(self.panels() * rows * COLUMNS)
            + match self.by_floats(rows) {
                Some(gemm) => threads.max(1) * Self::of_panel(gemm, rows),
                None => bytes::<f32>(self.of_rows(rows).iter().sum()),
            }
    }

    /// Computes `y = clamp(x * matrix + bias, min, max)`, in `threads` parts. The order of a sum does not depend on them. NaN stays NaN.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(&self, x: Rows<f32>, mut y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let (rows, outputs, threads) = (x.rows(), self.bias.len(), threads.max(1));
        assert_eq!((x.width(), y.rows(), y.width()), (self.depth, rows, outputs), "rows by {outputs} columns");
        if rows == 0 || outputs == 0 {
            return;
        }
        let each = rows * COLUMNS;
        let (results, rest) = scratch.split_at_mut(bytes::<f32>(self.panels() * each));
        let results = &mut aligned(results)[..self.panels() * each];
        match self.by_floats(rows) {
            Some(gemm) => {
                let scratch = &mut rest[..threads * Self::of_panel(gemm, rows)];
                self.divide(0..self.panels(), results, scratch, threads, &|panel, to, scratch| {
                    let (floats, scratch) = scratch.split_at_mut(bytes::<f32>(gemm.packed()));
                    let floats = &mut aligned(floats)[..gemm.packed()];
                    self.unpack(panel, gemm, floats);
                    gemm.multiply(x, floats, RowsMut::dense(to, rows, COLUMNS), scratch, 1);
                });
            }
            None => {
                let [of_x, of_sums] = self.of_rows(rows);
                let (terms, sums) = aligned(rest)[..of_x + of_sums].split_at_mut(of_x);
                terms.fill(0.0);
                for (i, terms) in terms.chunks_exact_mut(self.terms().max(1)).enumerate() {
                    terms[..self.depth].copy_from_slice(x.row(i));
                }
                for (sum, terms) in sums.iter_mut().zip(terms.chunks_exact(self.block)) {
                    *sum = terms.iter().sum();
                }
                let (terms, sums) = (&*terms, &*sums);
                self.divide(0..self.panels(), results, &mut [], threads, &|panel, to, _| {
                    by_codes(self.isa, self.panel(panel), terms, sums, lines_mut(to));
                });
            }
        }
        for i in 0..rows {
            let y = y.row(i);
            for (panel, y) in y.chunks_mut(COLUMNS).enumerate() {
                let from = &results[panel * each + i * COLUMNS..];
                for ((y, v), bias) in y.iter_mut().zip(from).zip(&self.bias[panel * COLUMNS..]) {
                    *y = clamp(v + bias, self.min, self.max);
                }
            }
            self.then.into_iter().for_each(|f| apply(self.isa, f, y));
        }
    }

    /// The floats of a panel, as `gemm` packs a matrix.
    fn unpack(&self, panel: usize, gemm: &GemmF, to: &mut [f32]) {
        let Panel { codes, scales, zeros, .. } = self.panel(panel);
        let (scales, zeros) = (scales.as_flattened().as_flattened(), zeros.as_flattened().as_flattened());
        for part in gemm.panels() {
            let bytes = Bytes {
                codes: codes[part.column..].as_ptr(),
                scales: scales[part.column..].as_ptr(),
                zeros: zeros[part.column..].as_ptr(),
                block: self.block,
                terms: self.depth,
                vectors: part.vectors,
                to: to[part.weights..].as_mut_ptr(),
            };
            // SAFETY: `new` found the instruction set available. The panel has a code for each of `COLUMNS` columns of each term, and a scale
            // and a zero for each block of them. The columns of all parts are `COLUMNS`, a multiple of any vector. `to` has room for all
            // terms and vectors of a part from where its weights begin.
            unsafe { (self.isa.codes().unpack)(&bytes) }
        }
    }

    /// Computes some panels by `each`, `threads` parts of them at the same time.
    fn divide(
        &self,
        panels: Range<usize>,
        to: &mut [f32],
        scratch: &mut [u8],
        threads: usize,
        each: &(impl Fn(usize, &mut [f32], &mut [u8]) + Sync),
    ) {
        let of_results = to.len() / panels.len().max(1);
        let left = threads / 2;
        if left == 0 || panels.len() < 2 {
            return panels.zip(to.chunks_exact_mut(of_results.max(1))).for_each(|(panel, to)| each(panel, to, scratch));
        }
        let n = panels.len() * left / threads;
        let (to_a, to_b) = to.split_at_mut(of_results * n);
        let (scratch_a, scratch_b) = scratch.split_at_mut(scratch.len() / threads * left);
        let (a, b) = (panels.start..panels.start + n, panels.start + n..panels.end);
        join(|| self.divide(a, to_a, scratch_a, left, each), || self.divide(b, to_b, scratch_b, threads - left, each));
    }

    fn panel(&self, i: usize) -> Panel<'_> {
        let of_codes = self.terms() / self.bits.of_byte() * COLUMNS;
        let of_blocks = self.blocks() * COLUMNS;
        Panel {
            bits: self.bits,
            block: self.block,
            codes: &self.codes[i * of_codes..][..of_codes],
            scales: lines(&self.scales[i * of_blocks..][..of_blocks]),
            zeros: lines(&self.zeros[i * of_blocks..][..of_blocks]),
        }
    }
}

/// A float for each column of a panel.
type Line = [[f32; LANES]; 2];

/// No sums yet.
const NONE: Line = [[0.0; LANES]; 2];

/// `a * w + sums`.
#[inline(always)]
fn add_products(isa: Isa, a: f32, w: &Line, sums: &mut Line) {
    for half in 0..2 {
        for l in 0..LANES {
            sums[half][l] = multiply_add(isa, a, w[half][l], sums[half][l]);
        }
    }
}

/// What `of` makes of each code.
#[inline(always)]
fn floats(codes: &[u8; COLUMNS], of: impl Fn(u8) -> u8) -> Line {
    let mut made = NONE;
    for half in 0..2 {
        for l in 0..LANES {
            made[half][l] = f32::from(of(codes[half * LANES + l]));
        }
    }
    made
}

/// Lines that follow each other.
fn lines(floats: &[f32]) -> &[Line] {
    floats.as_chunks::<LANES>().0.as_chunks().0
}

fn lines_mut(floats: &mut [f32]) -> &mut [Line] {
    floats.as_chunks_mut::<LANES>().0.as_chunks_mut().0
}

/// Some columns of a matrix.
#[derive(Clone, Copy)]
struct Panel<'a> {
    bits: Bits,
    block: usize,
    codes: &'a [u8],
    scales: &'a [Line],
    zeros: &'a [Line],
}

impl<'a> Panel<'a> {
    /// The codes of each block, with its scales and zeros.
    #[inline(always)]
    fn each_block(self) -> impl Iterator<Item = (&'a [[u8; COLUMNS]], &'a Line, &'a Line)> {
        let codes = self.codes.as_chunks().0.chunks_exact(self.block / self.bits.of_byte());
        codes.zip(self.scales).zip(self.zeros).map(|((codes, scales), zeros)| (codes, scales, zeros))
    }
}

multiversion! {
    /// Rows by a panel of codes, one after the other; `sums_of_x` are those of the terms of each block.
    fn by_codes(isa: Isa, panel: Panel, x: &[f32], sums_of_x: &[f32], to: &mut [Line]) {
        let rows = to.len();
        for (i, to) in to.iter_mut().enumerate() {
            let (x, sums) = (&x[x.len() / rows * i..], &sums_of_x[sums_of_x.len() / rows * i..]);
            *to = row(isa, panel, x, sums);
        }
    }
}

// Loops over arrays of a fixed size, not iterators: they become vectors. Nothing in them may panic, or sums go to memory and back.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn row(isa: Isa, panel: Panel, x: &[f32], sums_of_x: &[f32]) -> Line {
    let mut totals = NONE;
    let blocks = panel.each_block().zip(x.chunks_exact(panel.block)).zip(sums_of_x);
    for (((codes, scales, zeros), x), all) in blocks {
        // Of codes of 4 bits, which come in pairs, each of a pair has a chain of sums: one would wait for itself.
        let (mut sums, mut others) = (NONE, NONE);
        match panel.bits {
            Bits::Four => {
                for (codes, [first, second]) in codes.iter().zip(x.as_chunks::<2>().0) {
                    add_products(isa, *first, &floats(codes, |code| code & 15), &mut sums);
                    add_products(isa, *second, &floats(codes, |code| code >> 4), &mut others);
                }
            }
            Bits::Eight => {
                for (codes, x) in codes.iter().zip(x) {
                    add_products(isa, *x, &floats(codes, |code| code), &mut sums);
                }
            }
        }
        for half in 0..2 {
            for l in 0..LANES {
                let sum = sums[half][l] + others[half][l] - zeros[half][l] * all;
                totals[half][l] = multiply_add(isa, scales[half][l], sum, totals[half][l]);
            }
        }
    }
    totals
}

/// Codes of 8 bits of the columns of some vectors, and the floats that they become.
pub(crate) struct Bytes {
    /// For each term a line of [`COLUMNS`] codes.
    codes: *const u8,
    /// For each block a line of scales, and one of codes that stand for zero.
    scales: *const f32,
    zeros: *const f32,
    block: usize,
    terms: usize,
    vectors: usize,
    /// For each term so many vectors.
    to: *mut f32,
}

/// Makes floats of codes: `(code - zero) * scale`.
///
/// # Safety
/// The machine has the instruction set of `V`. What `b` points to is there, for all columns of its vectors; nothing else reads or writes
/// the floats meanwhile.
#[inline(always)]
pub(crate) unsafe fn unpack8<V: Nibbles>(b: &Bytes) {
    // SAFETY: every address lies within what the caller vouches for.
    unsafe {
        for v in 0..b.vectors {
            let lane = v * V::LANES;
            for block in 0..b.terms.div_ceil(b.block) {
                let at = block * COLUMNS + lane;
                let (scale, less) = (V::load(b.scales.add(at)), V::mul(V::load(b.zeros.add(at)), V::splat(-1.0)));
                for term in block * b.block..b.terms.min((block + 1) * b.block) {
                    let code = V::to_f32(V::bytes_times(b.codes.add(term * COLUMNS + lane), 1));
                    V::store(b.to.add((term * b.vectors + v) * V::LANES), V::mul(V::add(code, less), scale));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
