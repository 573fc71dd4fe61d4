//! Between floats and 8-bit integers, and elementwise operators on 8-bit integers.
//!
//! Everything here gives what ONNX Runtime's kernels give, to the last bit: each formula has its
//! operations in the order of those kernels. Rounding is always half to even.

mod binary;
#[cfg(target_arch = "aarch64")]
mod tbl;
#[cfg(target_arch = "x86_64")]
mod vbmi;

pub use binary::{Add8, Mul8};

use crate::math::round_within;
use crate::multiversion::multiversion;
use crate::parallel::{flat, flat_mut, in_parts};
use crate::{Isa, Rows, RowsMut};

/// QuantizeLinear: `saturate(round(x / scale) + zero)`. NaN becomes 0.
///
/// # Panics
/// When `x` and `y` are not of one shape.
pub fn quantize(isa: Isa, x: Rows<f32>, scale: f32, zero: u8, mut y: RowsMut<u8>, threads: usize) {
    assert_eq!((x.rows(), x.width()), (y.rows(), y.width()), "x and y are of one shape");
    let dense = x.is_dense() && y.is_dense();
    let (x, y) = if dense { (flat(x), flat_mut(&mut y)) } else { (x, y) };
    in_parts(y, 1, threads, &|part, y| quantize_rows(isa, part.of(x), scale, zero, y));
}

/// DequantizeLinear: `(x - zero) * scale`.
///
/// # Panics
/// When `x` and `y` are not of one shape.
pub fn dequantize(isa: Isa, x: Rows<u8>, scale: f32, zero: u8, mut y: RowsMut<f32>, threads: usize) {
    assert_eq!((x.rows(), x.width()), (y.rows(), y.width()), "x and y are of one shape");
    let dense = x.is_dense() && y.is_dense();
    let (x, y) = if dense { (flat(x), flat_mut(&mut y)) } else { (x, y) };
    in_parts(y, 1, threads, &|part, y| dequantize_rows(isa, part.of(x), scale, zero, y));
}

/// `y = table[x]`: any function of one 8-bit value, requantisation included.
///
/// # Panics
/// When `x` and `y` are not of one shape.
pub fn lookup(isa: Isa, x: Rows<u8>, table: &[u8; 256], mut y: RowsMut<u8>, threads: usize) {
    assert_eq!((x.rows(), x.width()), (y.rows(), y.width()), "x and y are of one shape");
    let dense = x.is_dense() && y.is_dense();
    let (x, y) = if dense { (flat(x), flat_mut(&mut y)) } else { (x, y) };
    in_parts(y, 1, threads, &|part, y| {
        #[cfg(target_arch = "x86_64")]
        if isa >= Isa::Avx512Vnni && is_x86_feature_detected!("avx512vbmi") {
            assert!(isa.is_available(), "this machine has no {isa}");
            // SAFETY: `is_available` and `is_x86_feature_detected` found the features. The assert above found `x` and
            // `y` of one shape, and `part` is the same of both.
            return unsafe { vbmi::lookup(part.of(x), table, y) };
        }
        #[cfg(target_arch = "aarch64")]
        if isa >= Isa::Neon {
            return tbl::lookup(part.of(x), table, y);
        }
        lookup_rows(isa, part.of(x), table, y)
    });
}

/// Between signed and unsigned: `y = x ^ 0x80`, which adds 128 to what is taken as signed.
///
/// # Panics
/// When `x` and `y` are not of one length.
pub fn xor_sign(x: &[u8], y: &mut [u8]) {
    assert_eq!(x.len(), y.len(), "x and y are of one length");
    for (y, x) in y.iter_mut().zip(x) {
        *y = x ^ 0x80;
    }
}

/// The element of `y` for each of `x`, as [`quantize`] has it.
#[inline(always)]
pub(crate) fn quantize_slice(x: &[f32], scale: f32, zero: u8, y: &mut [u8]) {
    let (min, max) = (-f32::from(zero), 255.0 - f32::from(zero));
    for (y, x) in y.iter_mut().zip(x) {
        *y = (round_within(x / scale, min, max) + i32::from(zero)) as u8;
    }
}

multiversion! {
    fn quantize_rows(isa: Isa, x: Rows<f32>, scale: f32, zero: u8, y: RowsMut<u8>) {
        let mut y = y;
        for i in 0..y.rows() {
            quantize_slice(x.row(i), scale, zero, y.row(i));
        }
    }

    fn dequantize_rows(isa: Isa, x: Rows<u8>, scale: f32, zero: u8, y: RowsMut<f32>) {
        let mut y = y;
        for i in 0..y.rows() {
            for (y, x) in y.row(i).iter_mut().zip(x.row(i)) {
                *y = (i32::from(*x) - i32::from(zero)) as f32 * scale;
            }
        }
    }

    fn lookup_rows(isa: Isa, x: Rows<u8>, table: &[u8; 256], y: RowsMut<u8>) {
        let mut y = y;
        for i in 0..y.rows() {
            for (y, x) in y.row(i).iter_mut().zip(x.row(i)) {
                *y = table[usize::from(*x)];
            }
        }
    }
}

#[cfg(test)]
mod tests;
