//! Rounds weights with a view to what their layers read (GPTQ, Frantar et al. 2023).
//!
//! Of a row `w` and its rounded self `q` the squared error at the output is `(w - q) H (w - q)`, with `H` the second moments
//! of the inputs. With `H = L Lᵀ` that is the length of `Lᵀ (w - q)`, whose factor is a triangle: from the last element to
//! the first, each takes the code that makes up best for the errors of those after it. That equals GPTQ (Chen et al. 2025,
//! "The geometry of LLM quantization: GPTQ as Babai's nearest plane algorithm").

use rayon::prelude::*;

/// Inputs that are made up for each other at most: the moments of more take too much memory and time, and are cut into
/// blocks.
pub(super) const MOST_INPUTS: usize = 2048;

/// The part of the mean second moment that is added to each: directions in which the inputs hardly vary are not to be
/// trusted.
const DAMPING: f64 = 0.01;

/// Second moments as the rounding uses them: the triangle, and the order of the inputs in it.
pub(super) struct Triangle {
    /// Row by row, the upper triangle of the transposed factor: row `i` from element `i` on.
    rows: Vec<Vec<f64>>,
    /// Which input each row stands for.
    order: Vec<usize>,
}

impl Triangle {
    /// Of `h`, the second moments of `d` inputs.
    pub fn of(h: &[f64], d: usize) -> Self {
        let mut order: Vec<usize> = (0..d).collect();
        // What matters most is rounded first, while others can still make up for it: it comes last.
        order.sort_by(|a, b| h[a * d + a].total_cmp(&h[b * d + b]));
        let mean = (0..d).map(|i| h[i * d + i]).sum::<f64>() / d.max(1) as f64;
        let damping = if mean > 0.0 { mean * DAMPING } else { 1.0 };
        let mut l: Vec<Vec<f64>> = Vec::with_capacity(d);
        for i in 0..d {
            let from = &h[order[i] * d..(order[i] + 1) * d];
            let mut row = vec![0.0; i + 1];
            for j in 0..i {
                let other = &l[j];
                row[j] = (from[order[j]] - dot(&row[..j], &other[..j])) / other[j];
            }
            let left = from[order[i]] + damping - dot(&row[..i], &row[..i]);
            row[i] = left.max(damping * 1e-6).sqrt();
            l.push(row);
        }
        let rows = (0..d).into_par_iter().map(|i| (i..d).map(|j| l[j][i]).collect()).collect();
        Self { rows, order }
    }

    /// The codes of a row under `scale`. What is zero stays zero.
    pub fn round(&self, w: &[f32], scale: f32, range: (i64, i64)) -> Vec<f32> {
        self.round_each(w, |_| (scale, 0, range)).into_iter().map(|code| code as f32).collect()
    }

    /// The codes of a row, each element under a scale, a zero point and a range of its own. What is zero stays zero.
    pub fn round_each(&self, w: &[f32], by: impl Fn(usize) -> (f32, i64, (i64, i64))) -> Vec<i64> {
        let d = self.order.len();
        let mut codes = vec![0; d];
        let mut errors = vec![0.0; d];
        for i in (0..d).rev() {
            let (row, at) = (&self.rows[i], self.order[i]);
            let (scale, zero, (low, high)) = by(at);
            let (value, scale) = (f64::from(w[at]), f64::from(scale));
            if w[at] == 0.0 {
                codes[at] = zero;
                continue;
            }
            let wanted = value + dot(&row[1..], &errors[i + 1..]) / row[0];
            let code = ((wanted / scale).round_ties_even() + zero as f64).clamp(low as f64, high as f64);
            errors[i] = value - (code - zero as f64) * scale;
            codes[at] = code as i64;
        }
        codes
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let mut sums = [0.0; LANES];
    let (a8, a_rest) = a.as_chunks::<LANES>();
    let (b8, b_rest) = b.as_chunks::<LANES>();
    for (a, b) in a8.iter().zip(b8) {
        for ((s, a), b) in sums.iter_mut().zip(a).zip(b) {
            *s += a * b;
        }
    }
    sums.iter().sum::<f64>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The squared error at the output.
    fn error(h: &[f64], w: &[f32], codes: &[f32], scale: f32) -> f64 {
        let d = w.len();
        let e: Vec<f64> = w.iter().zip(codes).map(|(w, c)| f64::from(w - c * scale)).collect();
        (0..d).map(|i| e[i] * dot(&h[i * d..(i + 1) * d], &e)).sum()
    }

    #[test]
    fn inputs_that_hang_together_make_up_for_each_other() {
        let h = [1.0, 0.99, 0.0, 0.99, 1.0, 0.0, 0.0, 0.0, 1.0];
        let w = [0.4, 0.4, 0.4];
        let nearest = w.map(f32::round_ties_even);
        let codes = Triangle::of(&h, 3).round(&w, 1.0, (-127, 127));
        assert_eq!(codes.iter().sum::<f32>(), 1.0, "{codes:?}");
        assert!(error(&h, &w, &codes, 1.0) < error(&h, &w, &nearest, 1.0) / 3.0);
    }

    #[test]
    fn inputs_on_their_own_are_rounded_to_the_nearest() {
        let h = [2.0, 0.0, 0.0, 1.0];
        assert_eq!(Triangle::of(&h, 2).round(&[1.4, -300.0], 1.0, (-128, 127)), [1.0, -128.0]);
    }

    #[test]
    fn zeros_stay() {
        let h = [1.0, 0.99, 0.99, 1.0];
        assert_eq!(Triangle::of(&h, 2).round(&[0.0, 0.6], 1.0, (-128, 127))[0], 0.0);
    }
}
