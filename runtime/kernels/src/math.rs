//! Functions of one float, without branches, so that the compiler can compute many at a time.
//!
//! Errors stay below 1e-6 of the result.

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

/// Clamps; NaN stays. (Each comparison is one instruction, which a call of `f32::clamp` is not.)
#[inline(always)]
pub(crate) fn clamp(x: f32, min: f32, max: f32) -> f32 {
    let x = if x < min { min } else { x };
    if x > max { max } else { x }
}

/// `x` clamped to `[min, max]`, two integers of less than 2^21, and rounded, half to even. NaN
/// gives `min`, as it does in ONNX Runtime's vector code.
#[inline(always)]
pub(crate) fn round_within(x: f32, min: f32, max: f32) -> i32 {
    let x = if x > min { x } else { min };
    let x = if x < max { x } else { max };
    (x + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
}

/// `2^n` for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// `exp(r) - 1` and `n` where `x = r + n * ln(2)` and `r` is at most half of `ln(2)`.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    let rounded = x * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    // Taylor's series; the next term is less than 6e-9 of the result.
    let mut sum = 1.0 / 5040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        sum = sum * r + term;
    }
    (r * r * sum + r, rounded.to_bits() as i32 - ROUND.to_bits() as i32)
}

/// The exponential function.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Beyond these the result is 0 or infinite.
    let (p, n) = exp_parts(clamp(x, -104.0, 89.0));
    // In two steps, as 2^n itself may be too small or too large for a float.
    let half = n >> 1;
    (1.0 + p) * power_of_two(half) * power_of_two(n - half)
}

/// The exponential function between -88 and 89, at whose ends it is 0 and infinite: of normal floats one power of 2 is
/// enough.
#[inline(always)]
fn exp_of_normal(x: f32) -> f32 {
    let rounded = x * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    // Where the greatest errors are equal: 7.5e-8 of the result.
    let terms = [0.041_915_39, 0.166_675_75, 0.499_988_95, 0.999_999_66, 1.0];
    let power = terms.iter().fold(0.008_297_65, |sum, term| sum * r + term);
    power * power_of_two(rounded.to_bits() as i32 - ROUND.to_bits() as i32)
}

/// The exponential function of what is not greater than 0; what is too small for a normal float becomes 0. (Subnormal
/// numbers take a hundred times as long, and masks of attention make many of them.)
#[inline(always)]
pub(crate) fn exp_below_zero(x: f32) -> f32 {
    let power = exp_of_normal(if x < -87.0 { -87.0 } else { x });
    if x < -87.0 { 0.0 } else { power }
}

/// The logistic function; from -88.4 down it is 0.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp_of_normal(clamp(-x, -88.0, 89.0)))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // With m = exp(2|x|) - 1, of which small ones stay accurate: m / (m + 2). 1 from 10 on.
    let (p, n) = exp_parts(clamp(2.0 * x.abs(), 0.0, 20.0));
    let scale = power_of_two(n.clamp(0, 30));
    let m = scale * p + (scale - 1.0);
    (m / (m + 2.0)).copysign(x)
}

/// GELU by its approximation with tanh, in the form `x * sigmoid(2 * ..)`, which is the same and
/// keeps small results accurate.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const A: f32 = 1.595_769; // 2 * sqrt(2 / pi)
    x * sigmoid(A * (x + 0.044715 * x * x * x))
}

/// The probability that what is distributed normally is less than `x`.
#[inline(always)]
fn normal_below(x: f32) -> f32 {
    // A least-squares fit, reweighted until the greatest errors were equal: the logarithm of that of less than `-|x|`, with
    // its sign turned; to 9e-8 of 1 of the probability. From 6 on this is less than half of what 1 is rounded to.
    const TERMS: [f32; 8] = [
        -2.126_193_7e-6,
        4.785_398e-6,
        3.986_831_6e-4,
        -5.287_381e-3,
        0.036_648_09,
        0.318_217_87,
        0.797_894_5,
        std::f32::consts::LN_2,
    ];
    let most = 6.0;
    let size = x.abs();
    let within = if size < most { size } else { most };
    let tail = exp_of_normal(-TERMS[1..].iter().fold(TERMS[0], |sum, term| sum * within + term));
    let tail = if size < most { tail } else { 0.0 };
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// GELU: `x` by the probability that what is distributed normally is less.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    x * normal_below(x)
}

/// The derivative of [`gelu`].
#[inline(always)]
pub(crate) fn gelu_derivative(x: f32) -> f32 {
    const DENSITY: f32 = 0.398_942_3; // 1 / sqrt(2 * pi)
    // Beyond 13 its square has no density, and no product with what is infinite.
    normal_below(x) + DENSITY * clamp(x, -13.0, 13.0) * exp_below_zero(-0.5 * x * x)
}

/// The error function.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    // Least-squares fits, reweighted until the greatest errors were equal. Up to 1: erf(x) / x
    // as a polynomial in x^2, to 1.2e-9.
    const SMALL: [f32; 7] =
        [7.889_112e-5, -8.020_839e-4, 5.189_535e-3, -2.685_444_4e-2, 0.112_836, -0.376_126_26, FRAC_2_SQRT_PI];
    // From 1 to 4, from where on the nearest float is 1: -ln(erfc(x)), to 1.1e-9 of the result.
    const LARGE: [f32; 7] =
        [-1.855_769_5e-4, 2.939_635_4e-3, -2.180_542_8e-2, 0.103_037_59, 0.638_225_44, 1.127_040_1, 3.536_844e-4];
    let polynomial = |at: f32, terms: &[f32; 7]| terms[1..].iter().fold(terms[0], |sum, term| sum * at + term);
    let positive = clamp(x.abs(), 0.0, 4.0);
    let small = positive * polynomial(positive * positive, &SMALL);
    let large = 1.0 - exp(-polynomial(positive, &LARGE));
    (if positive < 1.0 { small } else { large }).copysign(x)
}

/// The natural logarithm.
#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
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
    let series = square * (1.0 / 3.0 + square * (1.0 / 5.0 + square * (1.0 / 7.0 + square * (1.0 / 9.0))));
    let result = e * LN_2_HIGH + (2.0 * s + (2.0 * s * series + e * LN_2_LOW));
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
