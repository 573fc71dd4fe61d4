//! Arithmetic of `f16` and `bf16`, one number or two in a register.

use super::{
    Decoder, Result,
    float::{Format, extreme, saturate, sum_to_odd},
    map,
};
use crate::{machine::Action, ptx::Type};

type Numbers = fn([f64; 3]) -> f64;

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let Some(ty) = d.instruction.modifiers.iter().filter_map(|m| Type::of(m)).next_back() else { return Ok(None) };
    let (format, pair) = match ty {
        Type::F16 | Type::Bf16 => (Format::of(ty), false),
        Type::F16x2 => (Format::of(Type::F16), true),
        Type::Bf16x2 => (Format::of(Type::Bf16), true),
        _ => return Ok(None),
    };
    let format = format.ok_or("a format")?;
    let bits = if pair { 0x8000_8000 } else { 0x8000 };
    let compute: (usize, Numbers) = match d.opcode() {
        "add" => (2, |a| sum_to_odd(a[0], a[1])),
        "sub" => (2, |a| sum_to_odd(a[0], -a[1])),
        "mul" => (2, |a| a[0] * a[1]),
        "fma" => (3, |a| sum_to_odd(a[0] * a[1], a[2])),
        "min" if d.take("NaN") => (2, |a| extreme(a[0], a[1], false, true)),
        "max" if d.take("NaN") => (2, |a| extreme(a[0], a[1], true, true)),
        "min" => (2, |a| extreme(a[0], a[1], false, false)),
        "max" => (2, |a| extreme(a[0], a[1], true, false)),
        "ex2" if d.take("approx") => (1, |a| a[0].exp2()),
        "tanh" if d.take("approx") => (1, |a| a[0].tanh()),
        "neg" => {
            d.ty()?;
            return map::<1>(d, move |a| a[0] ^ bits).map(Some);
        }
        "abs" => {
            d.ty()?;
            return map::<1>(d, move |a| a[0] & !bits).map(Some);
        }
        _ => return Ok(None),
    };
    let sums = ["add", "sub", "mul", "fma"].contains(&d.opcode());
    let wide = matches!(ty, Type::Bf16 | Type::Bf16x2);
    // To nearest is the one rounding that there is.
    if sums {
        d.ignore(&["rn"]);
    }
    let (sat, relu) = (sums && !wide && d.take("sat"), d.opcode() == "fma" && d.take("relu"));
    // `ex2.approx.ftz.bf16` has to flush; `f16` never does without it.
    if wide && d.opcode() == "ex2" {
        d.ignore(&["ftz"]);
    }
    d.ty()?;
    let (count, f) = compute;
    let one = move |a: [u64; 3]| {
        let numbers = a.map(|v| format.value(v));
        let v = f(numbers);
        let v = if sat { saturate(v) } else { v };
        let v = if relu && v < 0.0 { 0.0 } else { v };
        format.of_f64(v)
    };
    let all = move |a: [u64; 3]| match pair {
        false => one(a.map(|v| v & 0xffff)),
        true => one(a.map(|v| v & 0xffff)) | one(a.map(|v| v >> 16 & 0xffff)) << 16,
    };
    Ok(Some(match count {
        1 => map::<1>(d, move |a| all([a[0], 0, 0])),
        2 => map::<2>(d, move |a| all([a[0], a[1], 0])),
        _ => map::<3>(d, all),
    }?))
}
