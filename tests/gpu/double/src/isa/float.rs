//! Arithmetic of `f32` and `f64`, and how numbers with a fraction are rounded.
//!
//! Results are rounded once, as the ISA says; approximate functions (`ex2.approx`, `div.full` and their like) as
//! [`approximate`](super::approximate) says.

use super::{
    Decoder, Result,
    approximate::{bound, off},
    map,
};
use crate::{machine::Action, ptx::Type};
use half::{bf16, f16};
use std::{cmp::Ordering, num::FpCategory};

/// How a type's bits stand for a number. All numbers of the smaller types are numbers of `f64`.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    ty: Type,
}

impl Format {
    /// That of a type, if it has a fraction.
    pub fn of(ty: Type) -> Option<Self> {
        ty.float().then_some(Self { ty })
    }

    /// The number of bits.
    pub fn value(self, bits: u64) -> f64 {
        match self.ty {
            Type::F16 => f16::from_bits(bits as u16).to_f64(),
            Type::Bf16 => bf16::from_bits(bits as u16).to_f64(),
            Type::F32 => f64::from(f32::from_bits(bits as u32)),
            _ => f64::from_bits(bits),
        }
    }

    /// The bits of the nearest number, of two the even one. All that are not numbers become the same one.
    pub fn of_f64(self, v: f64) -> u64 {
        match self.ty {
            Type::F16 if v.is_nan() => 0x7fff,
            Type::Bf16 if v.is_nan() => 0x7fff,
            Type::F32 if v.is_nan() => 0x7fff_ffff,
            // Not from `f64` at once: `half` doesn't look at its last bits.
            Type::F16 => u64::from(f16::from_f32(to_odd(v)).to_bits()),
            Type::Bf16 => u64::from(bf16::from_f32(to_odd(v)).to_bits()),
            Type::F32 => u64::from((v as f32).to_bits()),
            _ => v.to_bits(),
        }
    }

    /// The bits of the number that it is rounded to.
    pub fn rounded(self, v: f64, rounding: Rounding) -> u64 {
        let near = self.of_f64(v);
        // What isn't a number is not rounded.
        let side = self.value(near).partial_cmp(&v).unwrap_or(Ordering::Equal);
        self.beside(near, side, rounding)
    }

    /// Of an integer of 64 bits.
    pub fn rounded_integer(self, v: i128, rounding: Rounding) -> u64 {
        if self.ty == Type::F64 {
            let near = v as f64;
            return self.beside(near.to_bits(), (near as i128).cmp(&v), rounding);
        }
        let low = v & 0xffff_ffff;
        self.rounded(sum_to_odd((v - low) as f64, low as f64), rounding)
    }

    /// The number `near`, or the one beside it if `near` is on the wrong side of what is rounded.
    fn beside(self, near: u64, side: Ordering, rounding: Rounding) -> u64 {
        let negative = near >> (self.ty.bits() - 1) == 1;
        let away = side == if negative { Ordering::Less } else { Ordering::Greater };
        match rounding {
            _ if side == Ordering::Equal => near,
            Rounding::Zero if away => near - 1,
            Rounding::Down if side == Ordering::Greater && negative => near + 1,
            Rounding::Down if side == Ordering::Greater => near - 1,
            Rounding::Up if side == Ordering::Less && negative => near - 1,
            Rounding::Up if side == Ordering::Less => near + 1,
            _ => near,
        }
    }
}

/// `v` as an `f32` that is rounded to half the bits as `v` would be: what doesn't fit makes the last bit odd.
fn to_odd(v: f64) -> f32 {
    let cut = f32::from_bits(to_f32(v, Rounding::Zero) as u32);
    if f64::from(cut) == v { cut } else { f32::from_bits(cut.to_bits() | 1) }
}

/// How a result is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, of two to the even one.
    Nearest,
    /// Towards zero.
    Zero,
    /// Down.
    Down,
    /// Up.
    Up,
}

/// The modifiers for it.
pub const ROUNDING: &[(&str, Rounding)] =
    &[("rn", Rounding::Nearest), ("rz", Rounding::Zero), ("rm", Rounding::Down), ("rp", Rounding::Up)];

/// The bits of the `f32` that a number is rounded to.
pub fn to_f32(v: f64, rounding: Rounding) -> u64 {
    Format { ty: Type::F32 }.rounded(v, rounding)
}

/// `a + b`, rounded so that rounding it once more to half the bits is as if the sum were exact: what doesn't fit makes the last
/// bit odd.
pub fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let from_b = sum - a;
    let error = (a - (sum - from_b)) + (b - from_b);
    if error == 0.0 || !sum.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    if (error > 0.0) == (sum > 0.0) { f64::from_bits(sum.to_bits() + 1) } else { f64::from_bits(sum.to_bits() - 1) }
}

fn f32_of(v: u64) -> f32 {
    f32::from_bits(v as u32)
}

fn of_f32(v: f32) -> u64 {
    if v.is_nan() { 0x7fff_ffff } else { u64::from(v.to_bits()) }
}

/// A number too small for the normal exponents becomes zero.
pub fn flush(v: u64) -> u64 {
    if f32_of(v).is_subnormal() { v & 0x8000_0000 } else { v }
}

/// What `.sat` does.
pub fn saturate(v: f64) -> f64 {
    if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) }
}

/// The smaller or the larger of two. One that isn't a number gives way to one that is; `-0` is less than `0`.
pub fn extreme(a: f64, b: f64, larger: bool, nan: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f64::NAN,
        (true, false) | (false, true) if nan => f64::NAN,
        (true, false) => b,
        (false, true) => a,
        _ if (a.total_cmp(&b).is_gt()) == larger => a,
        _ => b,
    }
}

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let ty = d.instruction.modifiers.iter().filter_map(|m| Type::of(m)).next_back();
    let wide = match ty {
        Some(Type::F32) => false,
        Some(Type::F64) => true,
        _ => return Ok(None),
    };
    let opcode = d.opcode();
    if opcode == "testp" {
        return testp(d).map(Some);
    }
    let has = |opcodes: &[&str]| opcodes.contains(&opcode);
    let rounds = has(&["add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt"]);
    let rounding = if rounds { d.one_of(ROUNDING) } else { None };
    // Functions that a device approximates, and those that it rounds.
    let approximated = has(&["div", "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh"]);
    let loose = approximated && d.take("approx") || opcode == "div" && d.take("full");
    let (ftz, sat) = (d.take("ftz"), has(&["add", "sub", "mul", "fma", "mad"]) && d.take("sat"));
    let nan = has(&["min", "max"]) && d.take("NaN");
    d.ty()?;
    if wide && loose && ftz && has(&["rcp", "rsqrt"]) {
        let rcp = opcode == "rcp";
        return map::<1>(d, move |a| gross(f64::from_bits(a[0]), rcp)).map(Some);
    }
    let directed = rounding.filter(|r| *r != Rounding::Nearest);
    if wide && (directed.is_some() || ftz || sat) {
        return Err("this rounding of f64".into());
    }
    if let Some(directed) = directed {
        return directed_f32(d, directed, ftz, sat).map(Some);
    }
    Ok(Some(match opcode {
        // Without a rounding mode the ISA's default is to nearest.
        "add" => binary(d, wide, ftz, sat, |a, b| a + b, |a, b| a + b),
        "sub" => binary(d, wide, ftz, sat, |a, b| a - b, |a, b| a - b),
        "mul" => binary(d, wide, ftz, sat, |a, b| a * b, |a, b| a * b),
        "div" if loose => {
            let quotient = |a: f32, b: f32| {
                let argument = u64::from(a.to_bits()) << 32 | u64::from(b.to_bits());
                off(f64::from(a) / f64::from(b), bound("div"), argument) as f32
            };
            binary(d, wide, ftz, sat, quotient, |a, b| a / b)
        }
        "div" => binary(d, wide, ftz, sat, |a, b| a / b, |a, b| a / b),
        "fma" | "mad" if wide => {
            map::<3>(d, |a| f64::from_bits(a[0]).mul_add(f64::from_bits(a[1]), f64::from_bits(a[2])).to_bits())
        }
        "fma" | "mad" if !ftz && !sat => map::<3>(d, |a| of_f32(f32_of(a[0]).mul_add(f32_of(a[1]), f32_of(a[2])))),
        "fma" | "mad" => map::<3>(d, move |a| {
            let a = if ftz { a.map(flush) } else { a };
            finish(f32_of(a[0]).mul_add(f32_of(a[1]), f32_of(a[2])), ftz, sat)
        }),
        "min" | "max" => {
            let larger = opcode == "max";
            let (f32_min, f64_min) = (
                move |a: f32, b: f32| extreme(f64::from(a), f64::from(b), larger, nan) as f32,
                move |a: f64, b: f64| extreme(a, b, larger, nan),
            );
            binary(d, wide, ftz, sat, f32_min, f64_min)
        }
        "copysign" => binary(d, wide, ftz, sat, |a, b| b.copysign(a), |a, b| b.copysign(a)),
        // The sign alone changes, also of what isn't a number.
        "neg" if wide => map::<1>(d, |a| a[0] ^ 1 << 63),
        "neg" => map::<1>(d, move |a| (if ftz { flush(a[0]) } else { a[0] }) ^ 0x8000_0000),
        "abs" if wide => map::<1>(d, |a| a[0] & !(1 << 63)),
        "abs" => map::<1>(d, move |a| (if ftz { flush(a[0]) } else { a[0] }) & 0x7fff_ffff),
        "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => {
            let f: fn(f64) -> f64 = match opcode {
                "rcp" => |a| 1.0 / a,
                "sqrt" => f64::sqrt,
                "rsqrt" if loose => |a| 1.0 / a.sqrt(),
                "ex2" if loose => f64::exp2,
                "lg2" if loose => f64::log2,
                "sin" if loose => f64::sin,
                "cos" if loose => f64::cos,
                "tanh" if loose => f64::tanh,
                _ => return Ok(None),
            };
            let bound = bound(opcode);
            match loose && !wide {
                true => unary(d, wide, ftz, sat, move |a| off(f(a), bound, a.to_bits())),
                false => unary(d, wide, ftz, sat, f),
            }
        }
        _ => return Ok(None),
    }?))
}

/// `rcp.approx.ftz.f64` and `rsqrt.approx.ftz.f64`: the low half of the result is zero, and small numbers are zeros.
fn gross(v: f64, rcp: bool) -> u64 {
    let flushed = |v: f64| if v.is_subnormal() { 0f64.copysign(v) } else { v };
    let v = flushed(v);
    flushed(if rcp { 1.0 / v } else { 1.0 / v.sqrt() }).to_bits() & !0xffff_ffff
}

fn finish(v: f32, ftz: bool, sat: bool) -> u64 {
    let v = if sat { saturate(f64::from(v)) as f32 } else { v };
    if ftz { flush(of_f32(v)) } else { of_f32(v) }
}

fn binary(
    d: &Decoder<'_>,
    wide: bool,
    ftz: bool,
    sat: bool,
    narrow: impl Fn(f32, f32) -> f32 + Send + Sync + 'static,
    double: impl Fn(f64, f64) -> f64 + Send + Sync + 'static,
) -> Result<Action> {
    match wide {
        true => map::<2>(d, move |a| double(f64::from_bits(a[0]), f64::from_bits(a[1])).to_bits()),
        false if !ftz && !sat => map::<2>(d, move |a| of_f32(narrow(f32_of(a[0]), f32_of(a[1])))),
        false => map::<2>(d, move |a| {
            let a = if ftz { a.map(flush) } else { a };
            finish(narrow(f32_of(a[0]), f32_of(a[1])), ftz, sat)
        }),
    }
}

/// A function that is computed in `f64` for both types.
fn unary(
    d: &Decoder<'_>,
    wide: bool,
    ftz: bool,
    sat: bool,
    f: impl Fn(f64) -> f64 + Send + Sync + 'static,
) -> Result<Action> {
    match wide {
        true => map::<1>(d, move |a| f(f64::from_bits(a[0])).to_bits()),
        false => map::<1>(d, move |a| {
            let a = if ftz { flush(a[0]) } else { a[0] };
            finish(f(f64::from(f32_of(a))) as f32, ftz, sat)
        }),
    }
}

/// Results that are not rounded to nearest. Sums and products are exact in `f64`, or odd where they don't fit; quotients and roots
/// don't come so near to an `f32` that `f64` couldn't tell them from it.
fn directed_f32(d: &Decoder<'_>, rounding: Rounding, ftz: bool, sat: bool) -> Result<Action> {
    let number = move |v: u64| f64::from(f32_of(if ftz { flush(v) } else { v }));
    let round = move |v: f64| {
        let v = to_f32(if sat { saturate(v) } else { v }, rounding);
        if ftz { flush(v) } else { v }
    };
    let sum = move |a: f64, b: f64| {
        let sum = sum_to_odd(a, b);
        // Numbers that cancel each other leave -0 where it is rounded down.
        let negative = rounding == Rounding::Down && a.is_sign_negative() != b.is_sign_negative();
        round(if sum == 0.0 && negative { -0.0 } else { sum })
    };
    match d.opcode() {
        "add" => map::<2>(d, move |a| sum(number(a[0]), number(a[1]))),
        "sub" => map::<2>(d, move |a| sum(number(a[0]), -number(a[1]))),
        "mul" => map::<2>(d, move |a| round(number(a[0]) * number(a[1]))),
        "fma" | "mad" => map::<3>(d, move |a| sum(number(a[0]) * number(a[1]), number(a[2]))),
        "div" => map::<2>(d, move |a| round(number(a[0]) / number(a[1]))),
        "rcp" => map::<1>(d, move |a| round(1.0 / number(a[0]))),
        "sqrt" => map::<1>(d, move |a| round(number(a[0]).sqrt())),
        other => Err(format!("this rounding of `{other}`")),
    }
}

fn testp(d: &mut Decoder<'_>) -> Result<Action> {
    type Test = fn(FpCategory) -> bool;
    let tests: &[(&str, Test)] = &[
        ("finite", |c| !matches!(c, FpCategory::Nan | FpCategory::Infinite)),
        ("infinite", |c| c == FpCategory::Infinite),
        ("number", |c| c != FpCategory::Nan),
        ("notanumber", |c| c == FpCategory::Nan),
        ("normal", |c| matches!(c, FpCategory::Normal | FpCategory::Zero)),
        ("subnormal", |c| c == FpCategory::Subnormal),
    ];
    let test = d.one_of(tests).ok_or("a test of this kind")?;
    match d.ty_of(&[Type::F32, Type::F64])? {
        Type::F32 => map::<1>(d, move |a| u64::from(test(f32_of(a[0]).classify()))),
        _ => map::<1>(d, move |a| u64::from(test(f64::from_bits(a[0]).classify()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_keep_what_decides_a_tie() {
        // 1 + 2^-24 lies between two f32; what is added to it decides.
        let tie = 1.0 + 2f64.powi(-24);
        assert_eq!(to_f32(sum_to_odd(tie, 2f64.powi(-80)), Rounding::Nearest), u64::from(1f32.next_up().to_bits()));
        assert_eq!(to_f32(sum_to_odd(tie, -(2f64.powi(-80))), Rounding::Nearest), u64::from(1f32.to_bits()));
        assert_eq!(to_f32(sum_to_odd(-tie, 2f64.powi(-80)), Rounding::Nearest), u64::from((-1f32).to_bits()));
    }

    #[test]
    fn numbers_are_rounded_as_asked() {
        let third = 1.0 / 3.0;
        let (down, up) = (0x3eaa_aaaa, 0x3eaa_aaab);
        for (rounding, positive, negative) in [
            (Rounding::Nearest, up, up),
            (Rounding::Zero, down, down),
            (Rounding::Down, down, up),
            (Rounding::Up, up, down),
        ] {
            assert_eq!(to_f32(third, rounding), positive, "{rounding:?}");
            assert_eq!(to_f32(-third, rounding), negative | 0x8000_0000, "{rounding:?}");
        }
        assert_eq!(to_f32(1e39, Rounding::Zero), u64::from(f32::MAX.to_bits()));
        assert_eq!(to_f32(1e39, Rounding::Nearest), u64::from(f32::INFINITY.to_bits()));
    }

    #[test]
    fn halves_are_rounded_to_the_even_one() {
        let f16 = Format { ty: Type::F16 };
        // 2049 lies between 2048 and 2050, 2051 between 2050 and 2052.
        assert_eq!((f16.value(f16.of_f64(2049.0)), f16.value(f16.of_f64(2051.0))), (2048.0, 2052.0));
        assert_eq!(f16.value(f16.of_f64(65520.0)), f64::INFINITY);
        assert_eq!(f16.of_f64(2f64.powi(-25)), 0);
        assert_eq!(f16.of_f64(2f64.powi(-25) * 1.001), 1);
        let bf16 = Format { ty: Type::Bf16 };
        assert_eq!((bf16.value(bf16.of_f64(257.0)), bf16.value(bf16.of_f64(259.0))), (256.0, 260.0));
    }

    #[test]
    fn what_is_not_a_number_gives_way() {
        assert_eq!(extreme(f64::NAN, 1.0, true, false), 1.0);
        assert!(extreme(f64::NAN, 1.0, true, true).is_nan());
        assert!(extreme(-0.0, 0.0, false, false).is_sign_negative());
        assert!(extreme(-0.0, 0.0, true, false).is_sign_positive());
    }
}
