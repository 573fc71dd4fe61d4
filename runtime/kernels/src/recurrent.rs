//! LSTM and GRU over a sequence, after the product of the whole sequence by the weights of the input.

// Iterators would hide which gates meet.
#![allow(clippy::needless_range_loop)]

use crate::{Isa, math, multiversion::multiversion, pool::by_columns};

/// What a step of a sequence computes. Gates are in ONNX's order.
#[derive(Debug, Clone, Copy)]
pub enum Recurrence<'a> {
    /// `c = f * c + i * tanh(n)`, `h = o * tanh(c)`, with the gates i, o, f and n of `x + h * weights`.
    Lstm {
        /// `[hidden][4 * hidden]`.
        weights: &'a [f32],
    },
    /// `h = (1 - z) * n + z * h`, with the gates z, r and n of `x + h * weights`.
    Gru {
        /// `[hidden][3 * hidden]`, of which the last third is for n.
        weights: &'a [f32],
        /// Of `r * (h * weights + bias)`, three for each state; or else n is of `(r * h) * weights`.
        bias: Option<&'a [f32]>,
    },
}

impl Recurrence<'_> {
    fn gates(&self) -> usize {
        match self {
            Self::Lstm { .. } => 4,
            Self::Gru { .. } => 3,
        }
    }
}

/// Reads a sequence of `x`, `[length][batch][gates * hidden]`, from its end if `backwards`. `h` and `c`, `[batch][hidden]`, are
/// the states before, and become those after it; a GRU has no use for `c`. `y`, `[length][batch][hidden]`, becomes every `h`.
///
/// # Panics
/// When the operands don't fit each other, or the machine doesn't have `isa`.
#[allow(clippy::too_many_arguments)]
pub fn recurrent(
    isa: Isa,
    op: Recurrence,
    x: &[f32],
    hidden: usize,
    backwards: bool,
    h: &mut [f32],
    c: &mut [f32],
    y: &mut [f32],
) {
    let (gates, rows) = (op.gates(), y.len() / hidden.max(1));
    let (weights, bias) = match op {
        Recurrence::Lstm { weights } => (weights, None),
        Recurrence::Gru { weights, bias } => (weights, bias),
    };
    assert_eq!(weights.len(), hidden * gates * hidden, "weights of {hidden} states");
    assert_eq!((y.len(), x.len()), (rows * hidden, rows * gates * hidden), "x and y are as long");
    assert!(bias.is_none_or(|b| b.len() == gates * hidden), "a bias for each gate");
    assert!(matches!(op, Recurrence::Gru { .. }) || c.len() == h.len(), "a cell for each state");
    assert!(h.is_empty() || y.len().is_multiple_of(h.len()), "whole steps");
    if !h.is_empty() && !y.is_empty() {
        steps(isa, op, x, hidden, backwards, h, c, y, &mut vec![0.0; gates * hidden]);
    }
}

/// Adds `h * weights` to `sums`; `weights` has so many columns, of which these are from `first` on.
#[inline(always)]
fn add_products(sums: &mut [f32], h: &[f32], weights: &[f32], columns: usize, first: usize) {
    by_columns!(64: sums.len(), |column, N| {
        let mut part = [0f32; N];
        part.copy_from_slice(&sums[column..][..N]);
        for (h, row) in h.iter().zip(weights.chunks_exact(columns)) {
            for (sum, w) in part.iter_mut().zip(&row[first + column..][..N]) {
                *sum += h * w;
            }
        }
        sums[column..][..N].copy_from_slice(&part);
    });
}

#[inline(always)]
fn lstm_step(weights: &[f32], x: &[f32], h: &mut [f32], c: &mut [f32], sums: &mut [f32]) {
    let n = h.len();
    sums.copy_from_slice(x);
    add_products(sums, h, weights, 4 * n, 0);
    let [i, o, f, new] = [0, 1, 2, 3].map(|gate| &sums[gate * n..][..n]);
    let c = &mut c[..n];
    for j in 0..n {
        c[j] = math::sigmoid(f[j]) * c[j] + math::sigmoid(i[j]) * math::tanh(new[j]);
    }
    for j in 0..n {
        h[j] = math::sigmoid(o[j]) * math::tanh(c[j]);
    }
}

#[inline(always)]
fn gru_step(weights: &[f32], bias: Option<&[f32]>, x: &[f32], h: &mut [f32], sums: &mut [f32]) {
    let n = h.len();
    let (gates, of_new) = sums.split_at_mut(2 * n);
    gates.copy_from_slice(&x[..2 * n]);
    if let Some(bias) = bias {
        gates.iter_mut().zip(bias).for_each(|(sum, b)| *sum += b);
    }
    add_products(gates, h, weights, 3 * n, 0);
    for gate in gates.iter_mut() {
        *gate = math::sigmoid(*gate);
    }
    let (z, r) = gates.split_at_mut(n);
    match bias {
        Some(bias) => {
            of_new.copy_from_slice(&bias[2 * n..]);
            add_products(of_new, h, weights, 3 * n, 2 * n);
            for j in 0..n {
                of_new[j] = x[2 * n + j] + r[j] * of_new[j];
            }
        }
        None => {
            of_new.copy_from_slice(&x[2 * n..]);
            for j in 0..n {
                r[j] *= h[j];
            }
            add_products(of_new, r, weights, 3 * n, 2 * n);
        }
    }
    for j in 0..n {
        h[j] = (1.0 - z[j]) * math::tanh(of_new[j]) + z[j] * h[j];
    }
}

multiversion! {
    fn steps(
        isa: Isa,
        op: Recurrence,
        x: &[f32],
        hidden: usize,
        backwards: bool,
        h: &mut [f32],
        c: &mut [f32],
        y: &mut [f32],
        sums: &mut [f32],
    ) {
        let (batch, length, width) = (h.len() / hidden, y.len() / h.len(), sums.len());
        for i in 0..length {
            let t = if backwards { length - 1 - i } else { i };
            for b in 0..batch {
                let (x, h) = (&x[(t * batch + b) * width..][..width], &mut h[b * hidden..][..hidden]);
                match op {
                    Recurrence::Lstm { weights } => lstm_step(weights, x, h, &mut c[b * hidden..][..hidden], sums),
                    Recurrence::Gru { weights, bias } => gru_step(weights, bias, x, h, sums),
                }
                y[(t * batch + b) * hidden..][..hidden].copy_from_slice(h);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Noise, cases, isas};
    use proptest::prelude::*;

    fn logistic(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    /// The states after a step, in `f64`.
    fn naive(op: Recurrence, x: &[f32], h: &mut [f64], c: &mut [f64]) {
        let n = h.len();
        let x = |gate: usize, j: usize| f64::from(x[gate * n + j]);
        let product = |weights: &[f32], gates: usize, gate: usize, j: usize, by: &dyn Fn(usize) -> f64| -> f64 {
            (0..n).map(|k| by(k) * f64::from(weights[(k * gates + gate) * n + j])).sum()
        };
        let before = h.to_vec();
        match op {
            Recurrence::Lstm { weights } => {
                for j in 0..n {
                    let gate = |gate: usize| x(gate, j) + product(weights, 4, gate, j, &|k| before[k]);
                    c[j] = logistic(gate(2)) * c[j] + logistic(gate(0)) * gate(3).tanh();
                    h[j] = logistic(gate(1)) * c[j].tanh();
                }
            }
            Recurrence::Gru { weights, bias } => {
                let b = |gate: usize, j: usize| bias.map_or(0.0, |b| f64::from(b[gate * n + j]));
                let sum = |gate: usize, j: usize| product(weights, 3, gate, j, &|k| before[k]) + b(gate, j);
                let reset = |j: usize| logistic(x(1, j) + sum(1, j));
                for j in 0..n {
                    let inner = match bias {
                        Some(_) => reset(j) * sum(2, j),
                        None => product(weights, 3, 2, j, &|k| reset(k) * before[k]),
                    };
                    let z = logistic(x(0, j) + sum(0, j));
                    h[j] = (1.0 - z) * (x(2, j) + inner).tanh() + z * before[j];
                }
            }
        }
    }

    proptest! {
        #![proptest_config(cases(200))]

        #[test]
        fn sequences_of_any_shape(
            cell in 0usize..3, length in 0usize..6, batch in 0usize..4, hidden in 1usize..70, backwards: bool, seed: u64,
        ) {
            let mut noise = Noise(seed);
            let gates = if cell == 0 { 4 } else { 3 };
            let mut some = |n: usize| -> Vec<f32> { (0..n).map(|_| noise.float()).collect() };
            let (x, weights) = (some(length * batch * gates * hidden), some(hidden * gates * hidden));
            let (bias, h, c) = (some(gates * hidden), some(batch * hidden), some(batch * hidden));
            let op = match cell {
                0 => Recurrence::Lstm { weights: &weights },
                1 => Recurrence::Gru { weights: &weights, bias: Some(&bias) },
                _ => Recurrence::Gru { weights: &weights, bias: None },
            };
            let wide = |v: &[f32]| v.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
            let (mut want_h, mut want_c, mut want) = (wide(&h), wide(&c), vec![0.0; length * batch * hidden]);
            for i in 0..length {
                let t = if backwards { length - 1 - i } else { i };
                for b in 0..batch {
                    let (of_h, of_c) = (&mut want_h[b * hidden..][..hidden], &mut want_c[b * hidden..][..hidden]);
                    naive(op, &x[(t * batch + b) * gates * hidden..][..gates * hidden], of_h, of_c);
                    want[(t * batch + b) * hidden..][..hidden].copy_from_slice(of_h);
                }
            }
            let mut first = None;
            for isa in isas() {
                let (mut h, mut c, mut y) = (h.clone(), c.clone(), vec![9.0; length * batch * hidden]);
                recurrent(isa, op, &x, hidden, backwards, &mut h, &mut c, &mut y);
                for (got, want) in [(&y, &want), (&h, &want_h), (&c, &want_c)].into_iter().flat_map(|(a, b)| a.iter().zip(b)) {
                    assert!((f64::from(*got) - want).abs() < 1e-4, "{isa}: {got} for {want}");
                }
                assert_eq!(*first.get_or_insert_with(|| y.clone()), y, "{isa} gives what all others do");
            }
        }
    }
}
