//! Products of floats by a matrix of codes, for which the floats become codes by their own range.

use crate::{
    Conv8, Finish8, Isa, Rows, RowsMut, UnaryOp, Window,
    conv::{aligned, bytes},
    elementwise::apply,
    math::clamp,
    multiversion::multiversion,
    parallel::{flat, in_rows},
    quantize,
    team::join,
};

/// How many values are compared at a time.
const LANES: usize = 16;

/// Values from which on two threads look for the range.
const MANY: usize = 1 << 14;

/// A product of rows by a constant matrix of codes, where only a run knows the scale and the zero point of the rows.
#[derive(Debug)]
pub struct Dynamic8 {
    isa: Isa,
    product: Conv8,
    end: End,
    /// Of a matrix with zero points, that of each column times its scale: a sum has it too often by what the terms of the row amount to.
    zeros: Option<Vec<f32>>,
    depth: usize,
    outputs: usize,
}

/// What becomes of the scaled sums with their biases: bounded, then a function of that.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// The least result.
    pub min: f32,
    /// The greatest result.
    pub max: f32,
    /// The function.
    pub then: Option<UnaryOp>,
}

impl Default for End {
    fn default() -> Self {
        Self { min: f32::NEG_INFINITY, max: f32::INFINITY, then: None }
    }
}

/// A constant matrix of codes, `[outputs][depth]`.
#[derive(Debug, Clone, Copy)]
pub struct CodeMatrix<'a> {
    /// The codes.
    pub codes: &'a [i8],
    /// A scale for each output.
    pub scales: &'a [f32],
    /// The code that stands for zero, for each output; 0 where there are none.
    pub zeros: Option<&'a [i32]>,
}

/// Rows of codes with a scale and a zero point.
#[derive(Debug, Clone, Copy)]
pub struct CodeRows<'a> {
    /// The codes.
    pub codes: Rows<'a, u8>,
    /// What a step between codes is.
    pub scale: f32,
    /// The code that stands for zero.
    pub zero: u8,
}

impl Dynamic8 {
    /// The product by `matrix`, with a bias for each output.
    ///
    /// # Panics
    /// As [`Conv8::new`].
    pub fn new(isa: Isa, matrix: CodeMatrix, bias: Vec<f32>, end: End) -> Self {
        let CodeMatrix { codes, scales, zeros } = matrix;
        let outputs = scales.len();
        let depth = codes.len().checked_div(outputs).unwrap_or(0);
        assert_eq!((codes.len(), bias.len()), (outputs * depth, outputs), "a scale and a bias for each output");
        assert!(zeros.is_none_or(|zeros| zeros.len() == outputs), "a zero point for each output");
        let zeros = zeros.filter(|zeros| zeros.iter().any(|z| *z != 0));
        let zeros: Option<Vec<f32>> = zeros.map(|z| z.iter().zip(scales).map(|(z, scale)| *z as f32 * scale).collect());
        // Zero points are taken off before results are bounded.
        let End { min, max, then } = if zeros.is_some() { End::default() } else { end };
        let finish = Finish8::Scale { bias, scale: scales.to_vec(), min, max };
        let product = Conv8::new(isa, codes, outputs, [1, 1], depth, 1, 0, finish).then(isa, then);
        Self { isa, product, end, zeros, depth, outputs }
    }

    /// How many outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of scratch memory that [`Dynamic8::run`] needs on so many rows.
    pub fn scratch(&self, rows: usize, threads: usize) -> usize {
        self.scratch_of_codes(rows, threads) + bytes::<u8>(rows * self.depth)
    }

    /// Bytes of scratch memory that [`Dynamic8::run_codes`] needs on so many rows.
    pub fn scratch_of_codes(&self, rows: usize, threads: usize) -> usize {
        self.product.scratch(&Window::pixel(rows), threads)
    }

    /// Multiply-accumulates of so many rows.
    pub fn macs(&self, rows: usize) -> u64 {
        self.product.macs(&Window::pixel(rows))
    }

    /// Computes `y = then(clamp(x * matrix + bias, min, max))` in `threads` parts. All of `x` becomes codes with one scale and one
    /// zero point, which follow from its least and its greatest value as DynamicQuantizeLinear has it.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(&self, x: Rows<f32>, y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let (scale, zero) = own_range(self.isa, x, threads);
        let (codes, scratch) = scratch.split_at_mut(bytes::<u8>(x.rows() * self.depth));
        let codes = &mut aligned::<u8>(codes)[..x.rows() * self.depth];
        let zero = zero as u8;
        quantize(self.isa, x, scale, zero, RowsMut::dense(codes, x.rows(), self.depth), threads);
        let codes = Rows::dense(codes, x.rows(), self.depth);
        self.run_codes(CodeRows { codes, scale, zero }, y, scratch, threads);
    }

    /// As [`Dynamic8::run`], where the codes are at hand.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run_codes(&self, x: CodeRows, mut y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        let CodeRows { codes, scale, zero } = x;
        let fits = (codes.width(), y.width(), codes.rows()) == (self.depth, self.outputs, y.rows());
        assert!(fits, "rows and their products");
        self.product.run_by((codes, scale, zero), &Window::pixel(codes.rows()), y.reborrow(), scratch, threads);
        let Some(zeros) = &self.zeros else { return };
        in_rows(y, 1, threads, &|part, mut y| {
            for i in 0..part.rows {
                let sum: i32 = codes.row(part.row + i).iter().map(|code| i32::from(*code)).sum();
                let factor = scale * (sum - self.depth as i32 * i32::from(zero)) as f32;
                for (y, zero) in y.row(i).iter_mut().zip(zeros) {
                    *y = clamp(*y - factor * zero, self.end.min, self.end.max);
                }
                self.end.then.into_iter().for_each(|f| apply(self.isa, f, y.row(i)));
            }
        });
    }
}

/// The scale and the zero point by which codes from 0 to 255 reach from the least of `x` and 0 to the greatest, as
/// DynamicQuantizeLinear has them. NaN is left out.
///
/// # Panics
/// When the machine doesn't have `isa`.
pub fn own_range(isa: Isa, x: Rows<f32>, threads: usize) -> (f32, f32) {
    let [low, high] = ends(isa, flat(x), threads);
    let scale = if low == high { 1.0 } else { (high - low) / 255.0 };
    (scale, (-low / scale).clamp(0.0, 255.0).round_ties_even())
}

/// The least and the greatest of zero and all of `x`, leaving out NaN.
fn ends(isa: Isa, x: Rows<f32>, threads: usize) -> [f32; 2] {
    let (rows, width, mut ends) = (x.rows(), x.width(), [[0.0; 2]; 2]);
    let [a, b] = &mut ends;
    let left = if rows * width < MANY { 0 } else { threads / 2 };
    if left == 0 {
        range(isa, x, a);
    } else {
        let halves = match rows {
            1 => [x.columns(0, width / 2), x.columns(width / 2, width - width / 2)],
            _ => [x.part(0, rows / 2), x.part(rows / 2, rows - rows / 2)],
        };
        join(|| *a = self::ends(isa, halves[0], left), || *b = self::ends(isa, halves[1], threads - left));
    }
    [a[0].min(b[0]), a[1].max(b[1])]
}

/// The ends of each lane.
type Ends = [[f32; LANES]; 2];

/// Moves the ends apart as far as `block` needs.
#[inline(always)]
fn widen(block: &[f32; LANES], [low, high]: &mut Ends) {
    for lane in 0..LANES {
        low[lane] = if block[lane] < low[lane] { block[lane] } else { low[lane] };
        high[lane] = if block[lane] > high[lane] { block[lane] } else { high[lane] };
    }
}

multiversion! {
    /// The least and the greatest of zero and all of `x`, leaving out NaN.
    fn range(isa: Isa, x: Rows<f32>, ends: &mut [f32; 2]) {
        // Variables, not an array of them, which a compiler turns into gathers: comparisons that don't wait for each other.
        let (mut a, mut b): (Ends, Ends) = ([[0.0; LANES]; 2], [[0.0; LANES]; 2]);
        let (mut c, mut d): (Ends, Ends) = (a, b);
        for row in (0..x.rows()).map(|i| x.row(i)) {
            let (blocks, rest) = row.as_chunks::<LANES>();
            let (wide, blocks) = blocks.as_chunks::<4>();
            for [of_a, of_b, of_c, of_d] in wide {
                widen(of_a, &mut a);
                widen(of_b, &mut b);
                widen(of_c, &mut c);
                widen(of_d, &mut d);
            }
            blocks.iter().for_each(|block| widen(block, &mut a));
            let mut last = [0.0; LANES];
            last[..rest.len()].copy_from_slice(rest);
            widen(&last, &mut b);
        }
        widen(&b[0], &mut a);
        widen(&b[1], &mut a);
        for [low, high] in [c, d] {
            widen(&low, &mut a);
            widen(&high, &mut a);
        }
        *ends = [a[0].into_iter().fold(0.0, f32::min), a[1].into_iter().fold(0.0, f32::max)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Noise, cases, isas};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(cases(100))]

        #[test]
        fn products_by_codes(
            rows in 1usize..6, depth in 1usize..80, outputs in 1usize..70, offset in -2f32..2.0, zeros: bool, bounded: bool, seed: u64,
        ) {
            let mut noise = Noise(seed);
            let x: Vec<f32> = (0..rows * depth).map(|_| noise.float() + offset).collect();
            let codes: Vec<i8> = (0..depth * outputs).map(|_| noise.byte() as i8).collect();
            let (scales, bias): (Vec<f32>, Vec<f32>) =
                (0..outputs).map(|_| (noise.float().abs() * 0.01, noise.float())).unzip();
            let points: Vec<i32> = (0..outputs).map(|_| i32::from(noise.byte() as i8)).collect();
            let end = if bounded { End { min: -0.5, max: 1.0, then: Some(UnaryOp::Neg) } } else { End::default() };
            let point = |output: usize| if zeros { f64::from(points[output]) } else { 0.0 };
            let (low, high) = x.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
            let step = (high - low) / 255.0;
            let zero = (-low / step).round_ties_even();
            let of_x: Vec<f64> = x.iter().map(|v| f64::from((v / step).round_ties_even()) * f64::from(step)).collect();
            let clipped = |v: f64| v.clamp(f64::from(-zero * step), f64::from((255.0 - zero) * step));
            let mut first = None;
            for isa in isas() {
                let matrix = CodeMatrix { codes: &codes, scales: &scales, zeros: zeros.then_some(&points) };
                let kernel = Dynamic8::new(isa, matrix, bias.clone(), end);
                let (mut y, mut scratch) = (vec![9.0; rows * outputs], vec![0; kernel.scratch(rows, 2)]);
                kernel.run(Rows::dense(&x, rows, depth), RowsMut::dense(&mut y, rows, outputs), &mut scratch, 2);
                for (i, got) in y.iter().enumerate() {
                    let (row, output) = (i / outputs, i % outputs);
                    let of = |k: usize| f64::from(codes[output * depth + k]) - point(output);
                    let sum: f64 = (0..depth).map(|k| clipped(of_x[row * depth + k]) * of(k)).sum();
                    let want = sum * f64::from(scales[output]) + f64::from(bias[output]);
                    let want = if bounded { -want.clamp(-0.5, 1.0) } else { want };
                    prop_assert!((f64::from(*got) - want).abs() < 1e-4 * (1.0 + want.abs()), "{isa}: {got} for {want}");
                }
            prop_assert_eq!(&*first.get_or_insert_with(|| y.clone()), &y, "{} gives what all others do", isa);
            }
        }
    }
}
