//! Sums and products of 8-bit integers.

use crate::broadcast::{each_pair, in_parts_of};
use crate::math::round_within;
use crate::multiversion::multiversion;
use crate::{Isa, Rows, RowsMut};

/// QLinearAdd (com.microsoft): `saturate(round((a - a_zero) * a_scale / y_scale +
/// (b - b_zero) * b_scale / y_scale + y_zero))`, then clamped.
///
/// ONNX Runtime sums `a * ra + (b * rb + c)` by fused multiply-adds, with `ra` and `rb` the
/// ratios of the scales and `c` all that is constant, and the other way round where each run of
/// elements has one of `a` for many of `b`; so does this. (For NCHW, an `a` with one element a
/// channel is such a case. In rows it is one row for all: give it as `b`.)
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Add8 {
    /// The scale of `a`.
    pub a_scale: f32,
    /// The zero point of `a`.
    pub a_zero: u8,
    /// The scale of `b`.
    pub b_scale: f32,
    /// The zero point of `b`.
    pub b_zero: u8,
    /// The scale of the result.
    pub y_scale: f32,
    /// The zero point of the result.
    pub y_zero: u8,
    /// The least result: `y_zero` for a Relu.
    pub min: u8,
    /// The greatest result.
    pub max: u8,
}

/// QLinearMul (com.microsoft): `saturate(round((a - a_zero) * (b - b_zero) *
/// (a_scale * b_scale / y_scale) + y_zero))`, then clamped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mul8 {
    /// The scale of `a`.
    pub a_scale: f32,
    /// The zero point of `a`.
    pub a_zero: u8,
    /// The scale of `b`.
    pub b_scale: f32,
    /// The zero point of `b`.
    pub b_zero: u8,
    /// The scale of the result.
    pub y_scale: f32,
    /// The zero point of the result.
    pub y_zero: u8,
    /// The least result.
    pub min: u8,
    /// The greatest result.
    pub max: u8,
}

impl Add8 {
    /// `y = a + b`, where either may have one row for all rows, one column for all columns, or
    /// both.
    ///
    /// # Panics
    /// When the shapes don't fit.
    pub fn run(&self, isa: Isa, a: Rows<u8>, b: Rows<u8>, y: RowsMut<u8>, threads: usize) {
        let (op, a, b) = if a.width() < y.width() { (self.swapped(), b, a) } else { (*self, a, b) };
        in_parts_of(a, b, y, threads, |a, b, y| add_rows(isa, &op, a, b, y));
    }

    /// The same sum of `b` and `a`.
    fn swapped(&self) -> Self {
        Self { a_scale: self.b_scale, a_zero: self.b_zero, b_scale: self.a_scale, b_zero: self.a_zero, ..*self }
    }
}

impl Mul8 {
    /// `y = a * b`, where either may have one row for all rows, one column for all columns, or
    /// both.
    ///
    /// # Panics
    /// When the shapes don't fit.
    pub fn run(&self, isa: Isa, a: Rows<u8>, b: Rows<u8>, y: RowsMut<u8>, threads: usize) {
        in_parts_of(a, b, y, threads, |a, b, y| mul_rows(isa, self, a, b, y));
    }
}

multiversion! {
    fn add_rows(isa: Isa, op: &Add8, a: Rows<u8>, b: Rows<u8>, y: RowsMut<u8>) {
        let (ra, rb) = (op.a_scale / op.y_scale, op.b_scale / op.y_scale);
        // Fused where ONNX Runtime's compiler fuses.
        let zeros = ra.mul_add(f32::from(op.a_zero), rb * f32::from(op.b_zero));
        let constant = f32::from(op.y_zero) - zeros;
        let (min, max) = (f32::from(op.min), f32::from(op.max));
        each_pair!(a, b, y, |a, b| {
            let sum = f32::from(a).mul_add(ra, f32::from(b).mul_add(rb, constant));
            round_within(sum, min, max) as u8
        });
    }

    fn mul_rows(isa: Isa, op: &Mul8, a: Rows<u8>, b: Rows<u8>, y: RowsMut<u8>) {
        let ratio = op.a_scale * op.b_scale / op.y_scale;
        let zero = f32::from(op.y_zero);
        let (min, max) = (f32::from(op.min), f32::from(op.max));
        let (a_zero, b_zero) = (i32::from(op.a_zero), i32::from(op.b_zero));
        each_pair!(a, b, y, |a, b| {
            let product = (i32::from(a) - a_zero) * (i32::from(b) - b_zero);
            round_within(product as f32 * ratio + zero, min, max) as u8
        });
    }
}
