//! Products of rows by constant matrices of codes of 4 or 8 bits, of which each block of terms has a scale: weights in blocks. The codes
//! become floats in registers, so that a row takes the time of reading them.

use crate::{
    Isa, Rows, RowsMut, UnaryOp,
    conv::{aligned, bytes},
    elementwise::apply,
    gemv::multiply_add,
    math::clamp,
    multiversion::multiversion,
    team::join,
};
use std::ops::Range;

/// Lanes of what the compiler keeps in registers: of longer arrays it doesn't.
const LANES: usize = 16;
/// Columns of a panel.
const COLUMNS: usize = 2 * LANES;
/// Rows from which on a panel is made floats first: each row would do it again.
const MANY: usize = 8;

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

    /// Rows that are multiplied together: as many as have their sums in registers, a power of two.
    fn group(&self, rows: usize) -> usize {
        let most = match self.isa {
            Isa::Avx512Vnni | Isa::Amx => 4,
            _ => 2,
        };
        most.min(1 << rows.max(1).ilog2())
    }

    /// Floats of scratch memory: rows in groups, sums of the terms of each of their blocks, results, and a panel a thread.
    fn floats(&self, rows: usize, threads: usize) -> [usize; 4] {
        let rows_in_groups = rows.next_multiple_of(self.group(rows));
        let unpacked = if rows < MANY { 0 } else { threads.max(1) * self.terms() * COLUMNS };
        let results = self.panels() * rows_in_groups * COLUMNS;
        [rows_in_groups * self.terms(), rows_in_groups * self.blocks(), results, unpacked]
    }

    /// Bytes of scratch memory that a run on so many rows needs.
    pub fn scratch(&self, rows: usize, threads: usize) -> usize {
        bytes::<f32>(self.floats(rows, threads).iter().sum())
    }

    /// Computes `y = clamp(x * matrix + bias, min, max)`, in `threads` parts. The order of a sum does not depend on them. NaN stays NaN.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(&self, x: Rows<f32>, mut y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let (rows, outputs) = (x.rows(), self.bias.len());
        assert_eq!((x.width(), y.rows(), y.width()), (self.depth, rows, outputs), "rows by {outputs} columns");
        if rows == 0 || outputs == 0 {
            return;
        }
        let [of_x, of_sums, of_results, of_panels] = self.floats(rows, threads);
        let (groups, rest) = aligned::<f32>(scratch).split_at_mut(of_x);
        let (sums, rest) = rest.split_at_mut(of_sums);
        let (results, rest) = rest.split_at_mut(of_results);
        let group = self.group(rows);
        // Term by term, those of a group side by side; what fills up is 0.
        groups.fill(0.0);
        for i in 0..rows {
            let to = &mut groups[i / group * group * self.terms() + i % group..];
            to.iter_mut().step_by(group).zip(x.row(i)).for_each(|(to, x)| *to = *x);
        }
        for (sums, terms) in sums.chunks_exact_mut(group).zip(groups.chunks_exact(group * self.block)) {
            for (m, sum) in sums.iter_mut().enumerate() {
                *sum = terms.iter().skip(m).step_by(group).sum();
            }
        }
        let x = Groups { group, x: groups, sums };
        self.divide(0..self.panels(), x, results, &mut rest[..of_panels], threads.max(1));
        let rows_in_groups = rows.next_multiple_of(group);
        for i in 0..rows {
            let y = y.row(i);
            for (panel, y) in y.chunks_mut(COLUMNS).enumerate() {
                let from = &results[(panel * rows_in_groups + i) * COLUMNS..];
                for ((y, v), bias) in y.iter_mut().zip(from).zip(&self.bias[panel * COLUMNS..]) {
                    *y = clamp(v + bias, self.min, self.max);
                }
            }
            self.then.into_iter().for_each(|f| apply(self.isa, f, y));
        }
    }

    /// Computes some panels, `threads` parts of them at the same time.
    fn divide(&self, panels: Range<usize>, x: Groups, to: &mut [f32], unpacked: &mut [f32], threads: usize) {
        let left = threads / 2;
        if left == 0 || panels.len() < 2 {
            return self.part(panels, x, to, unpacked);
        }
        let n = panels.len() * left / threads;
        let (to_a, to_b) = to.split_at_mut(to.len() / panels.len() * n);
        let (unpacked_a, unpacked_b) = unpacked.split_at_mut(unpacked.len() / threads * left);
        let (a, b) = (panels.start..panels.start + n, panels.start + n..panels.end);
        join(|| self.divide(a, x, to_a, unpacked_a, left), || self.divide(b, x, to_b, unpacked_b, threads - left));
    }

    fn part(&self, panels: Range<usize>, x: Groups, to: &mut [f32], unpacked: &mut [f32]) {
        let of_codes = self.terms() / self.bits.of_byte() * COLUMNS;
        let of_blocks = self.blocks() * COLUMNS;
        let of_results = to.len().checked_div(panels.len()).unwrap_or(0);
        for (panel, to) in panels.zip(to.chunks_exact_mut(of_results.max(1))) {
            let panel = Panel {
                bits: self.bits,
                block: self.block,
                codes: &self.codes[panel * of_codes..][..of_codes],
                scales: lines(&self.scales[panel * of_blocks..][..of_blocks]),
                zeros: lines(&self.zeros[panel * of_blocks..][..of_blocks]),
            };
            match unpacked.is_empty() {
                true => by_codes(self.isa, panel, x, lines_mut(to)),
                false => {
                    let floats = lines_mut(&mut unpacked[..self.terms() * COLUMNS]);
                    unpack(self.isa, panel, floats);
                    by_floats(self.isa, floats, x, lines_mut(to));
                }
            }
        }
    }
}

/// Rows in groups: the terms of a group lie side by side, and so do the sums of each block of them.
#[derive(Clone, Copy)]
struct Groups<'a> {
    group: usize,
    x: &'a [f32],
    sums: &'a [f32],
}

impl<'a> Groups<'a> {
    /// The rows and sums of groups of `N`, where there are `groups`.
    #[inline(always)]
    fn each<const N: usize>(self, groups: usize) -> impl Iterator<Item = (&'a [[f32; N]], &'a [[f32; N]])> {
        let (x, sums) = (self.x.as_chunks().0, self.sums.as_chunks().0);
        x.chunks_exact((x.len() / groups).max(1)).zip(sums.chunks_exact((sums.len() / groups).max(1)))
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

/// `(w - zeros) * scales`.
#[inline(always)]
fn scaled(mut w: Line, zeros: &Line, scales: &Line) -> Line {
    for half in 0..2 {
        for l in 0..LANES {
            w[half][l] = (w[half][l] - zeros[half][l]) * scales[half][l];
        }
    }
    w
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
    /// All rows by a panel of codes.
    fn by_codes(isa: Isa, panel: Panel, x: Groups, to: &mut [Line]) {
        match x.group {
            1 => each_tile::<1>(isa, panel, x, to),
            2 => each_tile::<2>(isa, panel, x, to),
            _ => each_tile::<4>(isa, panel, x, to),
        }
    }

    /// The floats of a panel, term by term.
    fn unpack(isa: Isa, panel: Panel, to: &mut [Line]) {
        let of_byte = panel.bits.of_byte();
        for ((codes, scales, zeros), to) in panel.each_block().zip(to.chunks_exact_mut(panel.block)) {
            for (codes, to) in codes.iter().zip(to.chunks_exact_mut(of_byte)) {
                match to {
                    [low, high] => {
                        *low = scaled(floats(codes, |code| code & 15), zeros, scales);
                        *high = scaled(floats(codes, |code| code >> 4), zeros, scales);
                    }
                    [one] => *one = scaled(floats(codes, |code| code), zeros, scales),
                    _ => {}
                }
            }
        }
    }

    /// All rows by a panel of floats.
    fn by_floats(isa: Isa, weights: &[Line], x: Groups, to: &mut [Line]) {
        match x.group {
            1 => each_float_tile::<1>(isa, weights, x, to),
            2 => each_float_tile::<2>(isa, weights, x, to),
            _ => each_float_tile::<4>(isa, weights, x, to),
        }
    }
}

#[inline(always)]
fn each_tile<const N: usize>(isa: Isa, panel: Panel, x: Groups, to: &mut [Line]) {
    let to = to.as_chunks_mut::<N>().0;
    for ((x, sums), to) in x.each::<N>(to.len()).zip(to) {
        *to = tile(isa, panel, x, sums);
    }
}

#[inline(always)]
fn each_float_tile<const N: usize>(isa: Isa, weights: &[Line], x: Groups, to: &mut [Line]) {
    let to = to.as_chunks_mut::<N>().0;
    for ((x, _), to) in x.each::<N>(to.len()).zip(to) {
        *to = float_tile(isa, weights, x);
    }
}

// Loops over arrays of a fixed size, not iterators: they become vectors. Nothing in them may panic, or sums go to memory and back.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn tile<const N: usize>(isa: Isa, panel: Panel, x: &[[f32; N]], sums_of_x: &[[f32; N]]) -> [Line; N] {
    let mut totals = [NONE; N];
    let blocks = panel.each_block().zip(x.chunks_exact(panel.block)).zip(sums_of_x);
    for (((codes, scales, zeros), x), all) in blocks {
        // Two chains of sums for a single row: one would wait for itself.
        let (mut sums, mut others) = ([NONE; N], NONE);
        match panel.bits {
            Bits::Four => {
                for (codes, [first, second]) in codes.iter().zip(x.as_chunks::<2>().0) {
                    let (low, high) = (floats(codes, |code| code & 15), floats(codes, |code| code >> 4));
                    for m in 0..N {
                        add_products(isa, first[m], &low, &mut sums[m]);
                        add_products(isa, second[m], &high, if N == 1 { &mut others } else { &mut sums[m] });
                    }
                }
            }
            Bits::Eight => {
                for (codes, x) in codes.iter().zip(x) {
                    let weights = floats(codes, |code| code);
                    for m in 0..N {
                        add_products(isa, x[m], &weights, &mut sums[m]);
                    }
                }
            }
        }
        for m in 0..N {
            for half in 0..2 {
                for l in 0..LANES {
                    let other = if N == 1 { others[half][l] } else { 0.0 };
                    let sum = sums[m][half][l] + other - zeros[half][l] * all[m];
                    totals[m][half][l] = multiply_add(isa, scales[half][l], sum, totals[m][half][l]);
                }
            }
        }
    }
    totals
}

#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn float_tile<const N: usize>(isa: Isa, weights: &[Line], x: &[[f32; N]]) -> [Line; N] {
    let mut sums = [NONE; N];
    for (weights, x) in weights.iter().zip(x) {
        for m in 0..N {
            add_products(isa, x[m], weights, &mut sums[m]);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Guarded;

    #[test]
    fn rows_by_codes_are_rows_by_what_they_stand_for() {
        let noise = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 1009.0 - 0.5;
        for (depth, outputs, block) in
            [(2usize, 1usize, 2usize), (64, 33, 32), (70, 40, 16), (33, 100, 32), (256, 64, 128)]
        {
            for (bits, most) in [(Bits::Four, 16), (Bits::Eight, 256)] {
                for with_zeros in [false, true] {
                    let blocks = depth.div_ceil(block);
                    let codes: Vec<u8> = (0..depth * outputs).map(|i| (i * 7919 % most) as u8).collect();
                    let scales: Vec<f32> = (0..blocks * outputs).map(|i| noise(i) / most as f32).collect();
                    let zeros: Vec<u8> = (0..blocks * outputs).map(|i| (i * 31 % most) as u8).collect();
                    let bias: Vec<f32> = (0..outputs).map(|i| noise(i + 7)).collect();
                    let zeros = with_zeros.then_some(&zeros[..]);
                    let matrix = Coded { codes: &codes, bits, block, scales: &scales, zeros };
                    let weight = |k: usize, j: usize| {
                        let at = k / block * outputs + j;
                        let zero = zeros.map_or(bits.middle(), |zeros| zeros[at].into());
                        f64::from(scales[at]) * (i64::from(codes[k * outputs + j]) - zero) as f64
                    };
                    for rows in [1, 2, 3, 7, 8, 13] {
                        let x: Vec<f32> = (0..rows * depth).map(|i| noise(i + 3)).collect();
                        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                            let op = CodedF::new(isa, matrix, depth, bias.clone(), (-1.5, 1.5));
                            let x = Guarded::new(&x);
                            let mut y = Guarded::new(&vec![f32::NAN; rows * outputs]);
                            let mut scratch = vec![0; op.scratch(rows, 3)];
                            let to = RowsMut::dense(&mut y, rows, outputs);
                            op.run(Rows::dense(&x, rows, depth), to, &mut scratch, 3);
                            for (i, y) in y.iter().enumerate() {
                                let (row, j) = (i / outputs, i % outputs);
                                let sum: f64 = (0..depth).map(|k| f64::from(x[row * depth + k]) * weight(k, j)).sum();
                                let want = (sum + f64::from(bias[j])).clamp(-1.5, 1.5);
                                assert!(
                                    (f64::from(*y) - want).abs() < 2e-5,
                                    "{isa} {bits:?} {depth}x{outputs} of {block}, {rows} rows: {y} for {want}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
