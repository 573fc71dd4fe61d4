//! Arithmetic of integers.

use super::{Decoder, Result, map};
use crate::{machine::Action, ptx::Type};

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let opcode = d.opcode();
    let known =
        ["add", "sub", "mul", "mad", "div", "rem", "neg", "abs", "min", "max", "sad", "dp4a", "dp2a", "mul24", "mad24"];
    if !known.contains(&opcode) {
        return Ok(None);
    }
    if let "dp4a" | "dp2a" = opcode {
        return dots(d).map(Some);
    }
    let part = d.one_of(&[("lo", Part::Low), ("hi", Part::High), ("wide", Part::Wide)]);
    let sat = d.take("sat");
    let ty = d.ty()?;
    if !ty.integer() && !ty.untyped() {
        return Err(format!("integers of {ty:?}"));
    }
    if sat && (ty != Type::S32 || !["add", "sub"].contains(&opcode)) {
        return Err("this saturation".into());
    }
    let x = move |v: u64| ty.int(v);
    let out = move |v: i128| ty.cut(v as u64);
    let clamp = move |v: i128| out(v.clamp(ty.range().0, ty.range().1));
    Ok(Some(match opcode {
        "add" if sat => map::<2>(d, move |a| clamp(x(a[0]) + x(a[1]))),
        "sub" if sat => map::<2>(d, move |a| clamp(x(a[0]) - x(a[1]))),
        "add" => map::<2>(d, move |a| ty.cut(a[0].wrapping_add(a[1]))),
        "sub" => map::<2>(d, move |a| ty.cut(a[0].wrapping_sub(a[1]))),
        "mul" | "mad" => product(d, ty, part)?,
        "mul24" | "mad24" => product24(d, ty, part)?,
        // What a division by zero gives isn't specified; devices give all ones, and the dividend as a remainder.
        "div" => map::<2>(d, move |a| if x(a[1]) == 0 { ty.cut(u64::MAX) } else { out(x(a[0]) / x(a[1])) }),
        "rem" => map::<2>(d, move |a| if x(a[1]) == 0 { ty.cut(a[0]) } else { out(x(a[0]) % x(a[1])) }),
        "neg" => map::<1>(d, move |a| out(-x(a[0]))),
        "abs" => map::<1>(d, move |a| out(x(a[0]).abs())),
        "min" => map::<2>(d, move |a| out(x(a[0]).min(x(a[1])))),
        "max" => map::<2>(d, move |a| out(x(a[0]).max(x(a[1])))),
        _ => map::<3>(d, move |a| out((x(a[0]) - x(a[1])).abs() + x(a[2]))),
    }?))
}

/// Which half of a product is the result, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Low,
    High,
    Wide,
}

fn product(d: &Decoder<'_>, ty: Type, part: Option<Part>) -> Result<Result<Action>> {
    let x = move |v: u64| ty.int(v);
    let add = d.opcode() == "mad";
    Ok(match part {
        Some(Part::Low) if add => map::<3>(d, move |a| ty.cut(a[0].wrapping_mul(a[1]).wrapping_add(a[2]))),
        Some(Part::Low) => map::<2>(d, move |a| ty.cut(a[0].wrapping_mul(a[1]))),
        Some(Part::High) => {
            let high = move |a: u64, b: u64| (x(a).wrapping_mul(x(b)) >> ty.bits()) as u64;
            match add {
                true => map::<3>(d, move |a| ty.cut(high(a[0], a[1]).wrapping_add(a[2]))),
                false => map::<2>(d, move |a| ty.cut(high(a[0], a[1]))),
            }
        }
        Some(Part::Wide) => {
            if ty.bits() > 32 {
                return Err("a product of 128 bits".into());
            }
            let twice = if ty.bits() == 16 { Type::B32 } else { Type::B64 };
            match add {
                true => map::<3>(d, move |a| {
                    twice.cut(ty.short(a[0]).wrapping_mul(ty.short(a[1])).wrapping_add(a[2] as i64) as u64)
                }),
                false => map::<2>(d, move |a| twice.cut(ty.short(a[0]).wrapping_mul(ty.short(a[1])) as u64)),
            }
        }
        None => return Err("a part of the product".into()),
    })
}

/// Products of the low 24 bits: the low or the high 32 of their 48 bits.
fn product24(d: &Decoder<'_>, ty: Type, part: Option<Part>) -> Result<Result<Action>> {
    let shift = match part {
        Some(Part::Low) => 0,
        Some(Part::High) => 16,
        _ => return Err("a part of the product".into()),
    };
    let low = move |v: u64| {
        let low = i128::from(v & 0xff_ffff);
        if ty.signed() && low >> 23 == 1 { low - (1 << 24) } else { low }
    };
    let product = move |a: u64, b: u64| (low(a) * low(b)) >> shift;
    Ok(match d.opcode() {
        "mul24" => map::<2>(d, move |a| ty.cut(product(a[0], a[1]) as u64)),
        _ => map::<3>(d, move |a| ty.cut((product(a[0], a[1]) + ty.int(a[2])) as u64)),
    })
}

/// `dp4a` and `dp2a`: sums of products of bytes with bytes, or of halves with two bytes.
fn dots(d: &mut Decoder<'_>) -> Result<Action> {
    let halves = d.opcode() == "dp2a";
    let from = d.one_of(&[("lo", 0), ("hi", 16)]);
    let (a, b) = (d.ty_of(&[Type::S32, Type::U32])?, d.ty_of(&[Type::S32, Type::U32])?);
    match (halves, from) {
        (false, None) => map::<3>(d, move |v| dp4a(a, b, v)),
        (true, Some(from)) => map::<3>(d, move |v| {
            let half =
                |i: u32| if a.signed() { (v[0] >> (16 * i)) as i16 as i32 } else { (v[0] >> (16 * i)) as u16 as i32 };
            let byte = |i: u32| {
                let byte = (v[1] >> (from + 8 * i)) as u8;
                if b.signed() { i32::from(byte as i8) } else { i32::from(byte) }
            };
            let sum = (0..2).fold(v[2] as u32, |sum, i| sum.wrapping_add((half(i) * byte(i)) as u32));
            u64::from(sum)
        }),
        _ => Err("which bytes".into()),
    }
}

/// A sum of four products of bytes.
fn dp4a(a: Type, b: Type, v: [u64; 3]) -> u64 {
    let byte = |ty: Type, v: u64, i: u32| {
        let byte = (v >> (8 * i)) as u8;
        if ty.signed() { i32::from(byte as i8) } else { i32::from(byte) }
    };
    let sum = (0..4).fold(v[2] as u32, |sum, i| sum.wrapping_add((byte(a, v[0], i) * byte(b, v[1], i)) as u32));
    u64::from(sum)
}
