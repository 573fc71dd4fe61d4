//! Elementwise operators on floats, and those that normalise rows.
//!
//! Every instruction set gives the same result, to the last bit: products are fused on all or on none, and sums are
//! taken in an order that depends on nothing but the number of elements.

mod normalise;
mod rotary;

pub use normalise::{layer_norm, log_softmax, rms_norm, softmax};
pub(crate) use normalise::{scale_rows, weigh_rows};
pub use rotary::rotate;

use crate::broadcast::{each_pair, in_parts_of};
use crate::math::{self, each, each_here};
use crate::multiversion::multiversion;
use crate::parallel::{flat, flat_mut, in_parts};
use crate::{Isa, Rows, RowsMut};

/// An operator of two floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// The greater; NaN if either is.
    Max,
    /// The lesser; NaN if either is.
    Min,
    /// `a` to the power of `b`.
    Pow,
    /// `a` where it is not negative, otherwise `a * b`.
    PRelu,
}

/// An operator of one float. NaN stays NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UnaryOp {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, min), max)`.
    Clip(f32, f32),
    /// `x` where it is not negative, otherwise this times `x`.
    LeakyRelu(f32),
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// `e` to the power of `x`.
    Exp,
    /// The square root.
    Sqrt,
    /// `-x`.
    Neg,
    /// The absolute value.
    Abs,
    /// `max(0, min(1, alpha * x + beta))` of alpha and beta.
    HardSigmoid(f32, f32),
    /// `x * max(0, min(1, x / 6 + 1/2))`.
    HardSwish,
    /// `x * sigmoid(x)`.
    Silu,
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))`.
    GeluTanh,
    /// The error function.
    Erf,
    /// The natural logarithm.
    Log,
    /// The greatest integer that is not greater.
    Floor,
    /// The least integer that is not less.
    Ceil,
    /// The nearest integer, the even one of two.
    Round,
    /// `1 / x`.
    Reciprocal,
    /// `x * x`.
    Square,
    /// `x * x * x`.
    Cube,
    /// The sine.
    Sin,
    /// The cosine.
    Cos,
}

/// `y = op(a, b)`, where either may have one row for all rows, one column for all columns, or
/// both.
///
/// # Panics
/// When the shapes don't fit.
pub fn binary(isa: Isa, op: BinaryOp, a: Rows<f32>, b: Rows<f32>, y: RowsMut<f32>, threads: usize) {
    in_parts_of(a, b, y, threads, |a, b, y| binary_rows(isa, op, a, b, y));
}

/// `y = f(x)`.
///
/// # Panics
/// When `x` and `y` are not of one shape.
pub fn unary(isa: Isa, f: UnaryOp, x: Rows<f32>, mut y: RowsMut<f32>, threads: usize) {
    assert_eq!((x.rows(), x.width()), (y.rows(), y.width()), "x and y are of one shape");
    let dense = x.is_dense() && y.is_dense();
    let (x, y) = if dense { (flat(x), flat_mut(&mut y)) } else { (x, y) };
    in_parts(y, 1, threads, &|part, y| unary_rows(isa, f, part.of(x), y));
}

/// Calls `each` with the expression that a function is of `v`.
macro_rules! function {
    ($isa:ident, $f:expr, $each:ident, $($of:expr),+) => {
        match $f {
            UnaryOp::Relu => $each!($($of),+, |v| if v < 0.0 { 0.0 } else { v }),
            UnaryOp::Clip(min, max) => $each!($($of),+, |v| math::clamp(v, min, max)),
            UnaryOp::LeakyRelu(slope) => $each!($($of),+, |v| if v < 0.0 { v * slope } else { v }),
            UnaryOp::Sigmoid => $each!($($of),+, |v| math::sigmoid($isa, v)),
            UnaryOp::Tanh => $each!($($of),+, |v| math::tanh($isa, v)),
            UnaryOp::Exp => $each!($($of),+, |v| math::exp($isa, v)),
            UnaryOp::Sqrt => $each!($($of),+, |v| v.sqrt()),
            UnaryOp::Neg => $each!($($of),+, |v| -v),
            UnaryOp::Abs => $each!($($of),+, |v| v.abs()),
            UnaryOp::HardSigmoid(alpha, beta) => $each!($($of),+, |v| math::clamp(alpha * v + beta, 0.0, 1.0)),
            UnaryOp::HardSwish => $each!($($of),+, |v| v * math::clamp(v * (1.0 / 6.0) + 0.5, 0.0, 1.0)),
            UnaryOp::Silu => $each!($($of),+, |v| v * math::sigmoid($isa, v)),
            UnaryOp::Gelu => $each!($($of),+, |v| math::gelu($isa, v)),
            UnaryOp::GeluTanh => $each!($($of),+, |v| math::gelu_tanh($isa, v)),
            UnaryOp::Erf => $each!($($of),+, |v| math::erf($isa, v)),
            UnaryOp::Log => $each!($($of),+, |v| math::log($isa, v)),
            UnaryOp::Floor => $each!($($of),+, |v| v.floor()),
            UnaryOp::Ceil => $each!($($of),+, |v| v.ceil()),
            UnaryOp::Round => $each!($($of),+, |v| v.round_ties_even()),
            UnaryOp::Reciprocal => $each!($($of),+, |v| 1.0 / v),
            UnaryOp::Square => $each!($($of),+, |v| v * v),
            UnaryOp::Cube => $each!($($of),+, |v| v * v * v),
            UnaryOp::Sin => $each!($($of),+, |v| v.sin()),
            UnaryOp::Cos => $each!($($of),+, |v| v.cos()),
        }
    };
}

// The loops over rows and lines are those of one function. Around a choice of functions, registers would not hold the constants of all,
// and each element would load them anew.

/// `y = f(x)` for every row.
macro_rules! each_row {
    ($x:expr, $y:expr, |$v:ident| $f:expr) => {
        for i in 0..$y.rows() {
            let (x, y) = ($x.row(i), $y.row(i));
            each!(x, y, |$v| $f);
        }
    };
}

/// `y = f(y)` for every line.
macro_rules! each_line {
    ($lines:expr, |$v:ident| $f:expr) => {
        while let Some(y) = $lines.next() {
            each_here!(y, |$v| $f);
        }
    };
}

multiversion! {
    fn binary_rows(isa: Isa, op: BinaryOp, a: Rows<f32>, b: Rows<f32>, y: RowsMut<f32>) {
        match op {
            BinaryOp::Add => each_pair!(a, b, y, |a, b| a + b),
            BinaryOp::Sub => each_pair!(a, b, y, |a, b| a - b),
            BinaryOp::Mul => each_pair!(a, b, y, |a, b| a * b),
            BinaryOp::Div => each_pair!(a, b, y, |a, b| a / b),
            BinaryOp::Max => each_pair!(a, b, y, |a, b| if a > b || a.is_nan() { a } else { b }),
            BinaryOp::Min => each_pair!(a, b, y, |a, b| if a < b || a.is_nan() { a } else { b }),
            BinaryOp::Pow => each_pair!(a, b, y, |a, b| a.powf(b)),
            BinaryOp::PRelu => each_pair!(a, b, y, |a, b| if a < 0.0 { a * b } else { a }),
        }
    }

    fn unary_rows(isa: Isa, f: UnaryOp, x: Rows<f32>, y: RowsMut<f32>) {
        let mut y = y;
        function!(isa, f, each_row, x, y);
    }

    fn apply_row(isa: Isa, f: UnaryOp, y: &mut [f32]) {
        function!(isa, f, each_here, y);
    }

    /// `y = f(y)` for every element of some lines.
    pub(crate) fn apply_lines<L: Lines>(isa: Isa, f: UnaryOp, lines: L) {
        let mut lines = lines;
        function!(isa, f, each_line, lines);
    }
}

/// Lines of floats, each lent while it is worked on: to find the instruction set once for all of them.
pub(crate) trait Lines {
    /// The next one.
    fn next(&mut self) -> Option<&mut [f32]>;
}

/// Rows, and which of them are left.
struct RowsLeft<'a>(RowsMut<'a, f32>, std::ops::Range<usize>);

impl Lines for RowsLeft<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<&mut [f32]> {
        self.1.next().map(|i| self.0.row(i))
    }
}

/// `y = f(y)` for every element of some rows.
pub(crate) fn apply_rows(isa: Isa, f: UnaryOp, mut y: RowsMut<f32>) {
    let y = flat_mut(&mut y);
    let rows = 0..y.rows();
    apply_lines(isa, f, RowsLeft(y, rows));
}

/// `y = f(y)` for every element.
#[inline]
pub(crate) fn apply(isa: Isa, f: UnaryOp, y: &mut [f32]) {
    apply_row(isa, f, y);
}

#[cfg(test)]
mod tests;
