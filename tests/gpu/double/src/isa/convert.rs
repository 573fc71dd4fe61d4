//! `cvt`: from one type to another.

use super::{
    Decoder, Result,
    float::{Format, ROUNDING, Rounding, flush, saturate},
    map,
    memory::extended,
};
use crate::{machine::Action, ptx::Type};

/// A number without its fraction.
type Whole = fn(f64) -> f64;

/// How a number is rounded to an integer.
const TO_INTEGER: &[(&str, Whole)] =
    &[("rni", f64::round_ties_even), ("rzi", f64::trunc), ("rmi", f64::floor), ("rpi", f64::ceil)];

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    if d.opcode() != "cvt" {
        return Ok(None);
    }
    if d.take("pack") {
        return pack(d).map(Some);
    }
    let whole = d.one_of(TO_INTEGER);
    // To nearest, ties away from zero: of `tf32` alone.
    let away = d.take("rna");
    let directed = d.one_of(ROUNDING);
    let (ftz, sat, relu) = (d.take("ftz"), d.take("sat"), d.take("relu"));
    let (to, from) = (d.ty()?, d.ty()?);
    if to == Type::Tf32 && from == Type::F32 && whole.is_none() && !(ftz || sat || relu) {
        return tf32(d, if away { None } else { directed }).map(Some);
    }
    let half = matches!(to, Type::F16 | Type::Bf16);
    let rounding = directed.unwrap_or(Rounding::Nearest);
    if let Type::F16x2 | Type::Bf16x2 = to {
        let format = Format::of(if to == Type::F16x2 { Type::F16 } else { Type::Bf16 }).ok_or("a format")?;
        let rounds = [Rounding::Nearest, Rounding::Zero].contains(&rounding) && whole.is_none() && !away;
        if from != Type::F32 || !rounds || sat || ftz {
            return Err("this conversion to two numbers".into());
        }
        let half = move |v: u64| {
            let v = f64::from(f32::from_bits(v as u32));
            format.rounded(if relu && v < 0.0 { 0.0 } else { v }, rounding)
        };
        // The first of the two is the higher.
        return map::<2>(d, move |a| half(a[0]) << 16 | half(a[1])).map(Some);
    }
    if ftz && from != Type::F32 && to != Type::F32 {
        return Err("flushing small numbers of this type".into());
    }
    let (read, write) = (Format::of(from), Format::of(to));
    // To an integer numbers lose their fraction, and of floats those that keep their type may; to others they are rounded.
    let rounds = match (read, write) {
        (Some(_), Some(_)) if whole.is_some() => directed.is_none() && to == from,
        (_, Some(_)) => whole.is_none() && (directed.is_none() || to != Type::F64 || read.is_none()),
        (Some(_), None) => directed.is_none(),
        (None, None) => directed.is_none() && whole.is_none(),
    };
    let known = |ty: Type| ty.float() || ty.integer();
    if !rounds || away || (relu && !(half && read.is_some())) || !known(to) || !known(from) {
        let what = if relu { "`.relu` of" } else { "this rounding of" };
        return Err(format!("{what} {from:?} to {to:?}"));
    }
    let in_flush = move |v: u64| if ftz && from == Type::F32 { flush(v) } else { v };
    let out_flush = move |v: u64| if ftz && to == Type::F32 { flush(v) } else { v };
    Ok(Some(match (read, write) {
        (Some(read), Some(write)) => map::<1>(d, move |a| {
            let v = read.value(in_flush(a[0]));
            let v = whole.map_or(v, |w| w(v));
            let v = if sat { saturate(v) } else { v };
            let v = if relu && v < 0.0 { 0.0 } else { v };
            out_flush(write.rounded(v, rounding))
        }),
        (Some(read), None) => {
            // To an integer it is always saturated; what isn't a number becomes 0, or of 64 bits the highest bit.
            let whole = whole.ok_or("how it is rounded")?;
            let (low, high) = to.range();
            let none = if from == Type::F64 || to.bits() == 64 { 1 << (to.bits() - 1) } else { 0 };
            map::<1>(d, move |a| {
                let v = whole(read.value(in_flush(a[0])));
                extended(to, if v.is_nan() { none } else { (v as i128).clamp(low, high) as u64 })
            })
        }
        (None, Some(write)) => map::<1>(d, move |a| {
            let v = from.int(a[0]);
            write.rounded_integer(if sat { v.clamp(0, 1) } else { v }, rounding)
        }),
        (None, None) => {
            let (low, high) = to.range();
            map::<1>(d, move |a| {
                let v = from.int(a[0]);
                extended(to, if sat { v.clamp(low, high) } else { v } as u64)
            })
        }
    }?))
}

/// Two integers, as large as their type allows, behind each other; what a third has goes before them.
fn pack(d: &mut Decoder<'_>) -> Result<Action> {
    let sat = d.take("sat");
    let (to, from) = (d.ty()?, d.ty()?);
    let before = d.take("b32");
    let (low, high) = to.range();
    let kept = move |v: u64| to.cut(Type::S32.int(v).clamp(low, high) as u64);
    match to {
        Type::S16 | Type::U16 if sat && from == Type::S32 && !before => {
            map::<2>(d, move |a| kept(a[0]) << 16 | kept(a[1]))
        }
        Type::S8 | Type::U8 if sat && from == Type::S32 && before => {
            map::<3>(d, move |a| Type::B32.cut(a[2] << 16) | kept(a[0]) << 8 | kept(a[1]))
        }
        _ => Err("integers to pack of these types".into()),
    }
}

/// `f32` with 10 bits of fraction. Of two that are as near it is the one away from zero, unless a rounding is given.
fn tf32(d: &Decoder<'_>, rounding: Option<Rounding>) -> Result<Action> {
    let added = match rounding {
        None => |_: u64| 0x1000,
        Some(Rounding::Nearest) => |v: u64| 0xfff + (v >> 13 & 1),
        Some(Rounding::Zero) => |_: u64| 0,
        _ => return Err("this rounding".into()),
    };
    map::<1>(d, move |a| {
        let v = Type::B32.cut(a[0]);
        if f32::from_bits(v as u32).is_nan() { 0x7fff_ffff } else { (v + added(v)) & 0xffff_e000 }
    })
}
