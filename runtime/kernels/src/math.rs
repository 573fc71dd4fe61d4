//! Functions of one float, without branches, so that the compiler can compute many at a time.
//!
//! Errors stay below 1e-6 of the result; those of GELU and of its derivative, which nearly cancel on one side, below 1e-6 of `x` and of 1.
//! Every instruction set gives the same result, to the last bit.

use crate::Isa;
use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LOG2_E};

/// Adding this rounds to an integer, half to even: floats of its size have no room for a fraction.
/// The integer is then the difference of the bits.
const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23

/// `ln(2)` in two parts, the first of so few bits that its product with an exponent is exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `a * b + c`, rounded once where the instruction set can.
#[inline(always)]
pub(crate) fn multiply_add(isa: Isa, a: f32, b: f32, c: f32) -> f32 {
    if isa.fuses() { a.mul_add(b, c) } else { a * b + c }
}

/// `a * b + c`, rounded once, with whatever instruction set.
#[inline(always)]
pub(crate) fn fused(isa: Isa, a: f32, b: f32, c: f32) -> f32 {
    if isa.fuses() || cfg!(target_arch = "aarch64") {
        return a.mul_add(b, c);
    }
    // A product of two floats fits an `f64`. The sum is rounded to odd, after which to round it again is to round once
    // (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let of_c = sum - product;
    let lost = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    let even = bits & 1 == 0;
    let outwards = (lost > 0.0) == (sum > 0.0);
    // What is lost of infinity is NaN.
    let some = lost != 0.0 && !lost.is_nan();
    let to_odd = if outwards { bits.wrapping_add(1) } else { bits.wrapping_sub(1) };
    f64::from_bits(if some & even { to_odd } else { bits }) as f32
}

/// The polynomial of such coefficients, that of the highest power first.
#[inline(always)]
fn polynomial<const N: usize>(isa: Isa, x: f32, terms: [f32; N]) -> f32 {
    let mut sum = terms[0];
    for term in &terms[1..] {
        sum = fused(isa, sum, x, *term);
    }
    sum
}

/// Clamps; NaN stays. (Each comparison is one instruction, which a call of `f32::clamp` is not.)
#[inline(always)]
pub(crate) fn clamp(x: f32, min: f32, max: f32) -> f32 {
    let x = if x < min { min } else { x };
    if x > max { max } else { x }
}

/// `x` where it is greater than the other, which is not NaN. (Each form is one instruction: FMAXNM of ARM, MAXPS of x86.)
#[inline(always)]
pub(crate) fn greater(x: f32, than: f32) -> f32 {
    if cfg!(target_arch = "aarch64") {
        return x.max(than);
    }
    if x > than { x } else { than }
}

/// `x` where it is less than the other, which is not NaN.
#[inline(always)]
fn lesser(x: f32, than: f32) -> f32 {
    if cfg!(target_arch = "aarch64") {
        return x.min(than);
    }
    if x < than { x } else { than }
}

/// `x` clamped to `[min, max]`, two integers of less than 2^21, and rounded, half to even. NaN
/// gives `min`, as it does in ONNX Runtime's vector code.
#[inline(always)]
pub(crate) fn round_within(x: f32, min: f32, max: f32) -> i32 {
    (lesser(greater(x, min), max) + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
}

/// `x / ln(2)` in the low bits of a float whose other bits are those of [`ROUND`], and what is left of `x`, at most half of
/// `ln(2)`.
#[inline(always)]
fn halved(isa: Isa, x: f32) -> (f32, f32) {
    let rounded = fused(isa, x, LOG2_E, ROUND);
    let n = rounded - ROUND;
    (rounded, fused(isa, n, -LN_2_LOW, fused(isa, n, -LN_2_HIGH, x)))
}

/// `2^n` for `-127 < n < 128`, where `n` lies in the low bits of a float as [`halved`] has it; infinite for 128.
#[inline(always)]
fn power_of_two(rounded: f32) -> f32 {
    // The others are shifted out.
    f32::from_bits((rounded.to_bits() << 23).wrapping_add(1f32.to_bits()))
}

/// `exp(r) - 1` and `n`, in the low bits of a float, where `x = r + n * ln(2)` and `r` is at most half of `ln(2)`.
#[inline(always)]
fn exp_parts(isa: Isa, x: f32) -> (f32, f32) {
    let (rounded, r) = halved(isa, x);
    // Taylor's series; the next term is less than 6e-9 of the result.
    let sum = polynomial(isa, r, [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5]);
    (fused(isa, r * r, sum, r), rounded)
}

/// The exponential function.
#[inline(always)]
pub(crate) fn exp(isa: Isa, x: f32) -> f32 {
    // Beyond these the result is 0 or infinite.
    let (p, rounded) = exp_parts(isa, clamp(x, -104.0, 89.0));
    // In two steps, as 2^n itself may be too small or too large for a float.
    let n = rounded.to_bits() as i32 - ROUND.to_bits() as i32;
    let half = n >> 1;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    (1.0 + p) * power(half) * power(n - half)
}

/// The exponential function between -88 and 89, at whose ends it is 0 and infinite: of normal floats one power of 2 is
/// enough. What it is beyond these says nothing.
#[inline(always)]
fn exp_of_normal(isa: Isa, x: f32) -> f32 {
    let (rounded, r) = halved(isa, x);
    // Where the greatest errors are equal: 7.5e-8 of the result.
    let terms = [0.008_297_65, 0.041_915_39, 0.166_675_75, 0.499_988_95, 0.999_999_66, 1.0];
    polynomial(isa, r, terms) * power_of_two(rounded)
}

/// 2 to the power of what lies between -126 and 127. What it is beyond these says nothing.
#[inline(always)]
fn power_of_normal(isa: Isa, x: f32) -> f32 {
    let rounded = x + ROUND;
    // Where the greatest errors are equal: 9.4e-8 of the result.
    #[allow(clippy::approx_constant)] // Not the logarithm of 2, but nearly.
    let terms = [0.001_326_955_5, 0.009_671_293, 0.055_507_11, 0.240_222_47, 0.693_147, 1.0];
    polynomial(isa, x - (rounded - ROUND), terms) * power_of_two(rounded)
}

/// 2 to the power of what is not greater than 0; what is too small for a normal float becomes 0. (Subnormal numbers take a
/// hundred times as long, and masks of attention make many of them.)
///
/// Of `x * LOG2_E` it is the exponential function of `x`, to 2e-7 of it and the rounding of that product, which is less than 1e-7 of the
/// greatest weight of a softmax.
#[inline(always)]
pub(crate) fn power_below_zero(isa: Isa, x: f32) -> f32 {
    let power = power_of_normal(isa, x);
    if x < -126.0 { 0.0 } else { power }
}

/// The logistic function; from -88.4 down it is 0.
#[inline(always)]
pub(crate) fn sigmoid(isa: Isa, x: f32) -> f32 {
    1.0 / (1.0 + exp_of_normal(isa, clamp(-x, -88.0, 89.0)))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(isa: Isa, x: f32) -> f32 {
    // With m = exp(2|x|) - 1, of which small ones stay accurate: m / (m + 2). 1 from 10 on.
    let twice = 2.0 * x.abs();
    let (p, rounded) = exp_parts(isa, if twice > 20.0 { 20.0 } else { twice });
    let scale = power_of_two(rounded);
    let m = fused(isa, scale, p, scale - 1.0);
    (m / (m + 2.0)).copysign(x)
}

/// GELU by its approximation with tanh, in the form `x * sigmoid(2 * ..)`, which is the same and
/// keeps small results accurate.
#[inline(always)]
pub(crate) fn gelu_tanh(isa: Isa, x: f32) -> f32 {
    const A: f32 = 1.595_769; // 2 * sqrt(2 / pi)
    x * sigmoid(isa, x * fused(isa, A * 0.044715, x * x, A))
}

/// The probability that what is distributed normally is less than `x`.
#[inline(always)]
fn normal_below(isa: Isa, x: f32) -> f32 {
    // A least-squares fit, reweighted until the greatest errors were equal: the logarithm, to base 2, of that of less than
    // `-|x|`, to 9e-8 of 1 of the probability. From 6 on this is less than half of what 1 is rounded to.
    const TERMS: [f32; 8] = [
        3.067_449_1e-6,
        -6.903_87e-6,
        -5.751_782_4e-4,
        7.628_078_6e-3,
        -0.052_872_017,
        -0.459_091_34,
        -1.151_118_4,
        -1.0,
    ];
    let size = x.abs();
    let tail = power_of_normal(isa, polynomial(isa, size, TERMS));
    let tail = if size < 6.0 { tail } else { 0.0 };
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// GELU: `x` by the probability that what is distributed normally is less.
#[inline(always)]
pub(crate) fn gelu(isa: Isa, x: f32) -> f32 {
    x * normal_below(isa, x)
}

/// The derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_derivative(isa: Isa, x: f32) -> f32 {
    const DENSITY: f32 = 0.398_942_3; // 1 / sqrt(2 * pi)
    // Beyond 13 its square has no density, and no product with what is infinite.
    let density = DENSITY * power_below_zero(isa, -0.5 * LOG2_E * x * x);
    fused(isa, clamp(x, -13.0, 13.0), density, normal_below(isa, x))
}

/// The error function.
#[inline(always)]
pub(crate) fn erf(isa: Isa, x: f32) -> f32 {
    // Least-squares fits, reweighted until the greatest errors were equal. Up to 1: erf(x) / x
    // as a polynomial in x^2, to 1.2e-9.
    const SMALL: [f32; 7] =
        [7.889_112e-5, -8.020_839e-4, 5.189_535e-3, -2.685_444_4e-2, 0.112_836, -0.376_126_26, FRAC_2_SQRT_PI];
    // From 1 to 4, from where on the nearest float is 1: log2(erfc(x)), to 1.1e-9 of the result.
    const LARGE: [f32; 7] =
        [2.677_309_4e-4, -4.240_997_6e-3, 3.145_858_3e-2, -0.148_651_82, -0.920_764_7, -1.625_975_1, -5.102_587e-4];
    let size = x.abs();
    let size = if size > 4.0 { 4.0 } else { size };
    let small = size * polynomial(isa, size * size, SMALL);
    let large = 1.0 - power_of_normal(isa, polynomial(isa, size, LARGE));
    (if size < 1.0 { small } else { large }).copysign(x)
}

/// The natural logarithm.
#[inline(always)]
pub(crate) fn log(isa: Isa, x: f32) -> f32 {
    const TINY: f32 = 8_388_608.0; // 2^23: makes a subnormal number a normal one
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * TINY } else { x };
    // x = m * 2^e with m between sqrt(1/2) and sqrt(2).
    let bits = (scaled.to_bits() as i32).wrapping_sub(FRAC_1_SQRT_2.to_bits() as i32);
    let e = (bits >> 23) as f32 - if subnormal { 23.0 } else { 0.0 };
    let m = f32::from_bits(((bits & 0x7f_ffff) + FRAC_1_SQRT_2.to_bits() as i32) as u32);
    // ln(m) = 2 * artanh(s) = 2 * (s + s^3 / 3 + ..); the next term is less than 2e-9 of the result.
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = square * polynomial(isa, square, [1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0]);
    let result = fused(isa, e, LN_2_HIGH, 2.0 * s + fused(isa, 2.0 * s, series, e * LN_2_LOW));
    let result = if x == f32::INFINITY { x } else { result };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    if x >= 0.0 { result } else { f32::NAN }
}

const _: () = assert!(LN_2_HIGH + LN_2_LOW == LN_2);

/// `y = f(x)` for every element, where `f` is an expression: in a loop that the compiler makes vectors of, and for 16 elements
/// at once at the end, some of which may be computed twice, as one by one they would take longer than all others. (Of a loop
/// over chunks it makes vectors across the chunks, which is slower than none.)
macro_rules! each {
    ($x:expr, $y:expr, |$v:ident| $f:expr) => {{
        const N: usize = 16;
        let (x, y): (&[f32], &mut [f32]) = ($x, $y);
        let whole = y.len().min(x.len()) / N * N;
        for (y, &$v) in y[..whole].iter_mut().zip(&x[..whole]) {
            *y = $f;
        }
        if y.len() == whole {
        } else if let (Some(y), Some(x)) = (y.last_chunk_mut::<N>(), x.last_chunk::<N>()) {
            for (y, &$v) in y.iter_mut().zip(x) {
                *y = $f;
            }
        } else {
            for (y, &$v) in y.iter_mut().zip(x) {
                *y = $f;
            }
        }
    }};
}

/// `y = f(y)` for every element, as [`each`] does; the last ones are computed beside others that nobody asked for.
macro_rules! each_here {
    ($y:expr, |$v:ident| $f:expr) => {{
        const N: usize = 16;
        let whole = $y.len() / N * N;
        let (many, rest) = $y.split_at_mut(whole);
        for y in many {
            let $v = *y;
            *y = $f;
        }
        if !rest.is_empty() {
            let mut last = [0f32; N];
            last[..rest.len()].copy_from_slice(rest);
            for y in &mut last {
                let $v = *y;
                *y = $f;
            }
            rest.copy_from_slice(&last[..rest.len()]);
        }
    }};
}

pub(crate) use {each, each_here};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Noise;

    fn assert_fused([a, b, c]: [f32; 3]) {
        let (got, wanted) = (fused(Isa::Portable, a, b, c), a.mul_add(b, c));
        let same = got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
        assert!(same, "{a} * {b} + {c}: {got}, {wanted}");
    }

    #[test]
    fn products_are_fused_without_the_instruction() {
        let mut noise = Noise(7);
        // Any bits, and sums that nearly cancel.
        let mut any = || f32::from_bits((noise.bits() << 1 ^ noise.bits()) as u32);
        for i in 0..2_000_000 {
            let [a, b, c] = std::array::from_fn(|_| any());
            assert_fused([a, b, if i % 2 == 0 { c } else { -a * b }]);
        }
    }

    #[test]
    fn sums_by_the_middle_of_two_floats_are_rounded_once() {
        // In an `f64` these sums are the middle, and what is lost of them decides.
        let half = 1.0 / 4096.0; // Its square is half of the last bit of 1.
        let near = |i: i32| half * (1.0 + i as f32 * f32::EPSILON);
        for (i, j) in [(1, -1), (3, -3), (2896, -2895), (2897, -2896)] {
            for odd in 0..4 {
                for (sign, of_c) in [(1.0, 1.0), (-1.0, 1.0), (1.0, -1.0), (-1.0, -1.0)] {
                    assert_fused([sign * near(i), near(j), of_c * (1.0 + odd as f32 * f32::EPSILON)]);
                }
            }
        }
    }
}
