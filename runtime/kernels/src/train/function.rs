//! Functions of one float and their derivatives, divided over threads.

use super::copy::written;
use crate::Isa;
use crate::math;
use crate::multiversion::multiversion;
use rayon::prelude::*;
use std::f32::consts::{FRAC_2_SQRT_PI, LOG2_E};
use std::mem::MaybeUninit;

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 13;

/// A function of one float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// The error function.
    Erf,
    /// The exponential function.
    Exp,
    /// `x` by the probability that what is distributed normally is less (Hendrycks and Gimpel 2016).
    Gelu,
    /// The logistic function.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}

/// `y = f(x)` of every element, where `f` is an expression: a function that is handed on is called for each, compiled for the least set.
macro_rules! each {
    ($x:ident, $y:ident, |$v:ident| $f:expr) => {
        for (y, &$v) in $y.iter_mut().zip($x) {
            y.write($f);
        }
    };
}

/// `dy *= f(x)` of every element, in the same way.
macro_rules! scale {
    ($x:ident, $dy:ident, |$v:ident| $f:expr) => {
        for (dy, &$v) in $dy.iter_mut().zip($x) {
            *dy *= $f;
        }
    };
}

multiversion! {
    fn apply_chunk(isa: Isa, f: Function, x: &[f32], y: &mut [MaybeUninit<f32>]) {
        match f {
            Function::Erf => each!(x, y, |v| math::erf(isa, v)),
            Function::Exp => each!(x, y, |v| math::exp(isa, v)),
            Function::Gelu => each!(x, y, |v| math::gelu(isa, v)),
            Function::Sigmoid => each!(x, y, |v| math::sigmoid(isa, v)),
            Function::Tanh => each!(x, y, |v| math::tanh(isa, v)),
        }
    }

    fn derive_chunk(isa: Isa, f: Function, x: &[f32], dy: &mut [f32]) {
        match f {
            Function::Erf => scale!(x, dy, |v| FRAC_2_SQRT_PI * math::power_below_zero(isa, -LOG2_E * v * v)),
            Function::Exp => scale!(x, dy, |v| math::exp(isa, v)),
            Function::Gelu => scale!(x, dy, |v| math::gelu_derivative(isa, v)),
            Function::Sigmoid => scale!(x, dy, |v| {
                let y = math::sigmoid(isa, v);
                y * (1.0 - y)
            }),
            Function::Tanh => scale!(x, dy, |v| {
                let y = math::tanh(isa, v);
                1.0 - y * y
            }),
        }
    }
}

/// `f(x)` of every element.
pub fn function(f: Function, x: &[f32]) -> Vec<f32> {
    let isa = Isa::detect();
    let fill = |y: &mut [MaybeUninit<f32>]| {
        y.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(y, x)| apply_chunk(isa, f, x, y));
    };
    // SAFETY: both are as long, and `apply_chunk` writes every element of a chunk.
    unsafe { written(x.len(), fill) }
}

/// The gradient of [`function`] by `x`, in the place of that by its output.
pub fn function_gradient(f: Function, x: &[f32], dy: &mut [f32]) {
    assert_eq!(x.len(), dy.len(), "elements of a function and its gradient");
    let isa = Isa::detect();
    dy.par_chunks_mut(CHUNK).zip(x.par_chunks(CHUNK)).for_each(|(dy, x)| derive_chunk(isa, f, x, dy));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Function; 5] = [Function::Erf, Function::Exp, Function::Gelu, Function::Sigmoid, Function::Tanh];

    /// Elements on both sides of 0, more than a chunk.
    fn numbers() -> Vec<f32> {
        (0..CHUNK + 37).map(|i| (i as f32 - 4100.0) / 512.0).collect()
    }

    fn in_64_bits(f: Function, x: f64) -> f64 {
        // By the sum of areas from 0 on.
        let erf = |x: f64| {
            let n = 2000;
            let h = x / f64::from(n);
            let at = |i: i32| (-(h * f64::from(i)).powi(2)).exp();
            let sum: f64 = (0..n).step_by(2).map(|i| at(i) + 4.0 * at(i + 1) + at(i + 2)).sum();
            sum * h / 3.0 * std::f64::consts::FRAC_2_SQRT_PI
        };
        match f {
            Function::Erf => erf(x),
            Function::Exp => x.exp(),
            Function::Gelu => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Function::Tanh => x.tanh(),
        }
    }

    #[test]
    fn values_and_derivatives() {
        let x = numbers();
        for f in ALL {
            let y = function(f, &x);
            let mut dx = vec![2.0; x.len()];
            function_gradient(f, &x, &mut dx);
            for i in (0..x.len()).step_by(97) {
                let at = f64::from(x[i]);
                let (wanted, h) = (in_64_bits(f, at), 1e-5);
                let slope = (in_64_bits(f, at + h) - in_64_bits(f, at - h)) / (2.0 * h);
                let near = |got: f32, wanted: f64| (f64::from(got) - wanted).abs() <= 2e-6 * wanted.abs().max(1.0);
                assert!(near(y[i], wanted), "{f:?}({at}): {} for {wanted}", y[i]);
                assert!(near(dx[i], 2.0 * slope), "the slope of {f:?} at {at}: {} for {}", dx[i], 2.0 * slope);
            }
        }
    }

    #[test]
    fn far_from_zero() {
        let x = [f32::NEG_INFINITY, -1e4, 1e4, f32::INFINITY, f32::NAN];
        for f in ALL {
            let (y, mut dx) = (function(f, &x), vec![1.0; x.len()]);
            function_gradient(f, &x, &mut dx);
            assert!(y[4].is_nan() && dx[4].is_nan(), "{f:?}: {y:?} {dx:?}");
            assert!(dx[..2].iter().all(|v| *v == 0.0), "{f:?}: {dx:?}");
            assert!(dx[2] == if f == Function::Gelu { 1.0 } else { dx[2] }, "{f:?}: {dx:?}");
        }
    }
}
