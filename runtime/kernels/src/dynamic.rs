//! Products of floats by a matrix of codes, for which the floats become codes by their own range.

use crate::{
    Conv8, Finish8, Isa, Rows, RowsMut, Window,
    conv::{aligned, bytes},
    multiversion::multiversion,
    quantize,
};

/// How many values are compared at a time.
const LANES: usize = 16;

/// A product of rows by a matrix of codes. All rows become codes with one scale and one zero point, which follow from the least
/// and the greatest of them as DynamicQuantizeLinear has it.
#[derive(Debug)]
pub struct Dynamic8 {
    isa: Isa,
    sums: Conv8,
    /// The sum of the codes that an output is made of: a zero point adds that many times itself.
    code_sums: Vec<f32>,
    scales: Vec<f32>,
    bias: Vec<f32>,
    depth: usize,
}

impl Dynamic8 {
    /// The product by `codes`, `[outputs][depth]`, with a scale and a bias for each output.
    ///
    /// # Panics
    /// As [`Conv8::new`].
    pub fn new(isa: Isa, codes: &[i8], scales: Vec<f32>, bias: Vec<f32>) -> Self {
        let outputs = scales.len();
        let depth = codes.len().checked_div(outputs).unwrap_or(0);
        assert_eq!((codes.len(), bias.len()), (outputs * depth, outputs), "a scale and a bias for each output");
        let (least, most) = (f32::NEG_INFINITY, f32::INFINITY);
        let finish = Finish8::Scale { bias: vec![0.0; outputs], scale: vec![1.0; outputs], min: least, max: most };
        let code_sums = codes.chunks(depth.max(1)).map(|row| row.iter().map(|c| f32::from(*c)).sum()).collect();
        let sums = Conv8::new(isa, codes, outputs, [1, 1], depth, 1, 0, finish);
        Self { isa, sums, code_sums, scales, bias, depth }
    }

    /// How many outputs.
    pub fn outputs(&self) -> usize {
        self.scales.len()
    }

    /// Bytes of scratch memory that a run on so many rows needs.
    pub fn scratch(&self, rows: usize, threads: usize) -> usize {
        bytes::<u8>(rows * self.depth) + self.sums.scratch(&Window::pixel(rows), threads)
    }

    /// Multiply-accumulates of so many rows.
    pub fn macs(&self, rows: usize) -> u64 {
        self.sums.macs(&Window::pixel(rows))
    }

    /// Computes `y = x * codes * scales + bias` in `threads` parts.
    ///
    /// # Panics
    /// When operands don't fit, or `scratch` is too small.
    pub fn run(&self, x: Rows<f32>, mut y: RowsMut<f32>, scratch: &mut [u8], threads: usize) {
        assert_eq!(
            (x.width(), y.width(), x.rows()),
            (self.depth, self.scales.len(), y.rows()),
            "rows and their products"
        );
        let (scale, zero) = own_range(self.isa, x);
        let (codes, scratch) = scratch.split_at_mut(bytes::<u8>(x.rows() * self.depth));
        let codes = &mut aligned::<u8>(codes)[..x.rows() * self.depth];
        quantize(self.isa, x, scale, zero as u8, RowsMut::dense(codes, x.rows(), self.depth), threads);
        let codes = Rows::dense(codes, x.rows(), self.depth);
        self.sums.run_f32(codes, &Window::pixel(x.rows()), y.reborrow(), scratch, threads);
        finish(self.isa, self, scale, zero, y);
    }
}

/// The scale and the zero point by which codes from 0 to 255 reach from the least of `x` and 0 to the greatest, as
/// DynamicQuantizeLinear has them. NaN is left out.
///
/// # Panics
/// When the machine doesn't have `isa`.
pub fn own_range(isa: Isa, x: Rows<f32>) -> (f32, f32) {
    let mut ends = [0.0; 2];
    range(isa, x, &mut ends);
    let [low, high] = ends;
    let scale = if low == high { 1.0 } else { high - low } / 255.0;
    (scale, (-low / scale).clamp(0.0, 255.0).round_ties_even())
}

multiversion! {
    /// The least and the greatest of zero and all of `x`, leaving out NaN.
    fn range(isa: Isa, x: Rows<f32>, ends: &mut [f32; 2]) {
        let (mut low, mut high) = ([0f32; LANES], [0f32; LANES]);
        for row in (0..x.rows()).map(|i| x.row(i)) {
            let (blocks, rest) = row.as_chunks::<LANES>();
            for block in blocks {
                for (lane, v) in block.iter().enumerate() {
                    low[lane] = if *v < low[lane] { *v } else { low[lane] };
                    high[lane] = if *v > high[lane] { *v } else { high[lane] };
                }
            }
            for v in rest {
                low[0] = if *v < low[0] { *v } else { low[0] };
                high[0] = if *v > high[0] { *v } else { high[0] };
            }
        }
        *ends = [low.into_iter().fold(0.0, f32::min), high.into_iter().fold(0.0, f32::max)];
    }

    fn finish(isa: Isa, of: &Dynamic8, scale: f32, zero: f32, y: RowsMut<f32>) {
        let mut y = y;
        for i in 0..y.rows() {
            let factors = of.code_sums.iter().zip(&of.scales).zip(&of.bias);
            for (y, ((code_sum, own), bias)) in y.row(i).iter_mut().zip(factors) {
                *y = (*y - zero * code_sum) * (scale * own) + bias;
            }
        }
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
        fn products_by_codes(rows in 1usize..6, depth in 1usize..80, outputs in 1usize..70, offset in -2f32..2.0, seed: u64) {
            let mut noise = Noise(seed);
            let x: Vec<f32> = (0..rows * depth).map(|_| noise.float() + offset).collect();
            let codes: Vec<i8> = (0..depth * outputs).map(|_| noise.byte() as i8).collect();
            let (scales, bias): (Vec<f32>, Vec<f32>) = (0..outputs).map(|_| (noise.float().abs() * 0.01, noise.float())).unzip();
            let (low, high) = x.iter().fold((0f32, 0f32), |(low, high), v| (low.min(*v), high.max(*v)));
            let step = (high - low) / 255.0;
            let zero = (-low / step).round_ties_even();
            let of_x: Vec<f64> = x.iter().map(|v| f64::from((v / step).round_ties_even()) * f64::from(step)).collect();
            let clipped = |v: f64| v.clamp(f64::from(-zero * step), f64::from((255.0 - zero) * step));
            let mut first = None;
            for isa in isas() {
                let kernel = Dynamic8::new(isa, &codes, scales.clone(), bias.clone());
                let (mut y, mut scratch) = (vec![9.0; rows * outputs], vec![0; kernel.scratch(rows, 2)]);
                kernel.run(Rows::dense(&x, rows, depth), RowsMut::dense(&mut y, rows, outputs), &mut scratch, 2);
                for (i, got) in y.iter().enumerate() {
                    let (row, output) = (i / outputs, i % outputs);
                    let sum: f64 = (0..depth)
                        .map(|k| clipped(of_x[row * depth + k]) * f64::from(codes[output * depth + k]))
                        .sum();
                    let want = sum * f64::from(scales[output]) + f64::from(bias[output]);
                    prop_assert!((f64::from(*got) - want).abs() < 1e-4 * (1.0 + want.abs()), "{isa}: {got} for {want}");
                }
                prop_assert_eq!(&*first.get_or_insert_with(|| y.clone()), &y, "{} gives what all others do", isa);
            }
        }
    }
}
