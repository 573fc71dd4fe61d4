//! A row by a large constant matrix, which is read where it lies: in a file that is mapped.

use crate::{
    Isa, Rows, RowsMut, UnaryOp,
    elementwise::apply,
    math::{clamp, multiply_add},
    multiversion::multiversion,
    parallel::in_parts,
};

/// A float as a file has it, at any address.
pub type Raw = [u8; 4];

/// Columns whose sums the first-level cache holds.
const COLUMNS: usize = 4096;
/// Rows of the matrix that are read together.
const TOGETHER: usize = 4;
/// Sums of one column that are computed side by side, where its weights follow each other.
const SUMS: usize = 16;

/// The product of one row and a matrix that is not packed.
///
/// Each weight is used once, so that the time is that of reading it from memory: packed, it would be read a second time
/// to be packed, and need its memory twice.
#[derive(Debug)]
pub struct GemvF {
    isa: Isa,
    depth: usize,
    transposed: bool,
    bias: Vec<f32>,
    min: f32,
    max: f32,
    then: Option<UnaryOp>,
}

impl GemvF {
    /// A product whose sums have `depth` terms, with a bias for each. The matrix has `depth` rows, or, if it is
    /// `transposed`, as many columns.
    ///
    /// # Panics
    /// When the machine doesn't have `isa`.
    pub fn new(isa: Isa, depth: usize, transposed: bool, bias: Vec<f32>, min: f32, max: f32) -> Self {
        assert!(isa.is_available(), "this machine has no {isa}");
        Self { isa, depth, transposed, bias, min, max, then: None }
    }

    /// The same, but each result is `f` of what it would be.
    pub fn then(self, f: Option<UnaryOp>) -> Self {
        Self { then: f, ..self }
    }

    /// Computes `y = clamp(x * matrix + bias + add, min, max)`, in `threads` parts. The order of a sum does not depend
    /// on them. NaN stays NaN.
    ///
    /// # Panics
    /// When operands don't fit.
    pub fn run(&self, x: &[f32], matrix: Rows<Raw>, add: Option<&[f32]>, y: &mut [f32], threads: usize) {
        let outputs = self.bias.len();
        let shape = if self.transposed { (outputs, self.depth) } else { (self.depth, outputs) };
        assert_eq!((x.len(), y.len()), (self.depth, outputs), "a row of {shape:?}");
        assert_eq!((matrix.rows(), matrix.width()), shape, "the matrix");
        assert!(add.is_none_or(|add| add.len() == outputs), "what is added");
        in_parts(RowsMut::dense(y, 1, outputs), 1, threads, &|part, mut y: RowsMut<f32>| {
            let bias = &self.bias[part.column..][..part.width];
            match self.transposed {
                true => dots(self.isa, x, matrix.part(part.column, part.width), bias, y.row(0)),
                false => sums(self.isa, x, matrix.columns(part.column, part.width), bias, y.row(0)),
            }
            let y = y.row(0);
            match add {
                Some(add) => {
                    let with = y.iter_mut().zip(&add[part.column..]);
                    with.for_each(|(y, add)| *y = clamp(*y + add, self.min, self.max));
                }
                None => y.iter_mut().for_each(|y| *y = clamp(*y, self.min, self.max)),
            }
            self.then.into_iter().for_each(|f| apply(self.isa, f, y));
        });
    }

    /// Multiply-accumulates of a run.
    pub fn macs(&self) -> u64 {
        (self.depth * self.bias.len()) as u64
    }
}

multiversion! {
    /// `y = bias + x * matrix`.
    pub(crate) fn sums(isa: Isa, x: &[f32], matrix: Rows<Raw>, bias: &[f32], y: &mut [f32]) {
        y.copy_from_slice(bias);
        for first in (0..y.len()).step_by(COLUMNS) {
            let width = COLUMNS.min(y.len() - first);
            let (y, matrix) = (&mut y[first..][..width], matrix.columns(first, width));
            let (fours, rest) = x.as_chunks::<TOGETHER>();
            for (i, x) in fours.iter().enumerate() {
                let [a, b, c, d] = std::array::from_fn(|j| matrix.row(i * TOGETHER + j));
                for ((((y, a), b), c), d) in y.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                    let sum = multiply_add(isa, x[0], f32::from_le_bytes(*a), *y);
                    let sum = multiply_add(isa, x[1], f32::from_le_bytes(*b), sum);
                    let sum = multiply_add(isa, x[2], f32::from_le_bytes(*c), sum);
                    *y = multiply_add(isa, x[3], f32::from_le_bytes(*d), sum);
                }
            }
            for (i, x) in rest.iter().enumerate() {
                let row = matrix.row(fours.len() * TOGETHER + i);
                y.iter_mut().zip(row).for_each(|(y, w)| *y = multiply_add(isa, *x, f32::from_le_bytes(*w), *y));
            }
        }
    }

    /// `y = bias + x * transposed matrix`.
    pub(crate) fn dots(isa: Isa, x: &[f32], matrix: Rows<Raw>, bias: &[f32], y: &mut [f32]) {
        let (fours, rest) = y.as_chunks_mut::<TOGETHER>();
        let (biases, last) = bias.as_chunks::<TOGETHER>();
        for (i, (y, bias)) in fours.iter_mut().zip(biases).enumerate() {
            *y = dots_of(isa, x, std::array::from_fn(|j| matrix.row(i * TOGETHER + j)), *bias);
        }
        for (i, (y, bias)) in rest.iter_mut().zip(last).enumerate() {
            [*y] = dots_of(isa, x, [matrix.row(biases.len() * TOGETHER + i)], [*bias]);
        }
    }
}

/// Sums of `N` columns, whose weights follow each other.
// Indices into arrays of fixed sizes are what becomes vectors here, and what stays in registers.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn dots_of<const N: usize>(isa: Isa, x: &[f32], columns: [&[Raw]; N], bias: [f32; N]) -> [f32; N] {
    // Loops, not closures: those are compiled without the instruction set unless they happen to be inlined.
    let (many, rest) = x.as_chunks::<SUMS>();
    let mut sums = [[0f32; SUMS]; N];
    let mut parts = [&[] as &[[Raw; SUMS]]; N];
    for j in 0..N {
        parts[j] = &columns[j].as_chunks().0[..many.len()];
    }
    for (i, x) in many.iter().enumerate() {
        for j in 0..N {
            let mut weights = [0f32; SUMS];
            for lane in 0..SUMS {
                weights[lane] = f32::from_le_bytes(parts[j][i][lane]);
            }
            for lane in 0..SUMS {
                sums[j][lane] = multiply_add(isa, x[lane], weights[lane], sums[j][lane]);
            }
        }
    }
    let mut dots = bias;
    for ((dot, column), sums) in dots.iter_mut().zip(columns).zip(sums) {
        for (x, w) in rest.iter().zip(&column[many.len() * SUMS..]) {
            *dot = multiply_add(isa, *x, f32::from_le_bytes(*w), *dot);
        }
        *dot += sums.iter().sum::<f32>();
    }
    dots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Guarded;

    #[test]
    fn rows_by_matrices_at_any_address() {
        let noise = |i: usize| ((i * 2_654_435_761) % 1009) as f32 / 1009.0 - 0.5;
        for (depth, outputs) in [(1, 1), (3, 70), (130, 5), (64, 64), (261, 1100)] {
            for transposed in [false, true] {
                let x: Vec<f32> = (0..depth).map(noise).collect();
                let bias: Vec<f32> = (0..outputs).map(|i| noise(i + 7)).collect();
                let weights: Vec<f32> = (0..depth * outputs).map(|i| noise(i + 31)).collect();
                let add: Vec<f32> = (0..outputs).map(|i| noise(i + 13)).collect();
                // One byte behind where a float may lie.
                let bytes: Vec<u8> = [0].into_iter().chain(weights.iter().flat_map(|w| w.to_le_bytes())).collect();
                let bytes = Guarded::new(&bytes);
                let raw = bytes[1..].as_chunks::<4>().0;
                let (rows, width) = if transposed { (outputs, depth) } else { (depth, outputs) };
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    let (x, mut y) = (Guarded::new(&x), Guarded::new(&vec![f32::NAN; outputs]));
                    let op = GemvF::new(isa, depth, transposed, bias.clone(), -1.5, 1.5);
                    op.run(&x, Rows::dense(raw, rows, width), Some(&add), &mut y, 3);
                    let mut then = Guarded::new(&vec![f32::NAN; outputs]);
                    let half = op.then(Some(UnaryOp::LeakyRelu(0.5)));
                    half.run(&x, Rows::dense(raw, rows, width), Some(&add), &mut then, 3);
                    for (then, y) in then.iter().zip(y.iter()) {
                        assert_eq!(*then, if *y < 0.0 { y * 0.5 } else { *y }, "{isa} {depth}x{outputs}");
                    }
                    for (j, y) in y.iter().enumerate() {
                        let at = |k: usize| weights[if transposed { j * depth + k } else { k * outputs + j }];
                        let sum: f64 = (0..depth).map(|k| f64::from(x[k]) * f64::from(at(k))).sum();
                        let want = (sum + f64::from(bias[j]) + f64::from(add[j])).clamp(-1.5, 1.5);
                        assert!((f64::from(*y) - want).abs() < 1e-4, "{isa} {depth}x{outputs} {j}: {y} for {want}");
                    }
                }
            }
        }
    }
}
