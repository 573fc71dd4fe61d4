//! What the lanes of a warp tell each other.

use super::{Decoder, Result, boxed};
use crate::{
    machine::{Action, Lanes, Members, Value, bits},
    ptx::{Operand, Type},
};

/// What a lane gets from one that isn't there: nothing that a right kernel uses.
const POISON: u64 = 0xffff_ffff;

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let opcode = d.opcode();
    if !["shfl", "vote", "redux", "match", "activemask", "elect"].contains(&opcode) {
        return Ok(None);
    }
    if opcode == "activemask" {
        d.ignore(&["b32"]);
        let to = d.value(0)?;
        return Ok(Some(Action::Together(
            Members::Present,
            boxed(move |lanes| {
                lanes.set(to, [u64::from(lanes.mask); 32]);
                Ok(())
            }),
        )));
    }
    if !d.take("sync") {
        return Err("a collective without `.sync`".into());
    }
    let (to, predicate) = match d.operand(0)? {
        Operand::Pair(to, p) => (super::value(to)?, super::value(p)?),
        to => (super::value(to)?, Value::Discard),
    };
    let members = Members::Mask(d.value(d.operands() - 1)?);
    let step = match opcode {
        "shfl" => shuffle(d, to, predicate)?,
        "vote" => vote(d, to)?,
        "redux" => redux(d, to)?,
        "match" => matching(d, to, predicate)?,
        _ => boxed(move |lanes: &mut Lanes<'_>| {
            let first = lanes.mask.trailing_zeros();
            lanes.set(to, [u64::from(first); 32]);
            lanes.set(predicate, std::array::from_fn(|lane| u64::from(lane as u32 == first)));
            Ok(())
        }),
    };
    Ok(Some(Action::Together(members, step)))
}

fn shuffle(d: &mut Decoder<'_>, to: Value, predicate: Value) -> Result<super::Step> {
    /// From which lane, given its own number, the distance, and the least and the greatest of its segment.
    type From = fn(i32, i32, i32, i32) -> (i32, bool);
    let from: &[(&str, From)] = &[
        ("up", |lane, by, _, max| (lane - by, lane - by >= max)),
        ("down", |lane, by, _, max| (lane + by, lane + by <= max)),
        ("bfly", |lane, by, _, max| (lane ^ by, lane ^ by <= max)),
        ("idx", |_, by, min, max| (min | by, min | by <= max)),
    ];
    let idx = d.left.contains(&"idx");
    let from = d.one_of(from).ok_or("a shuffle of this kind")?;
    d.ignore(&["b32"]);
    let (of, by, clamp) = (d.value(1)?, d.value(2)?, d.value(3)?);
    Ok(boxed(move |lanes| {
        let (of, by, clamp) = (lanes.get(of), lanes.get(by), lanes.get(clamp));
        let found: [(u64, bool); 32] = std::array::from_fn(|lane| {
            let (bound, segment) = (clamp[lane] as i32 & 31, clamp[lane] as i32 >> 8 & 31);
            let own = lane as i32;
            let min = own & segment;
            let max = min | bound & !segment;
            let by = by[lane] as i32 & 31;
            let by = if idx { by & !segment } else { by };
            let (source, inside) = from(own, by, min, max);
            let source = if inside && (0..32).contains(&source) { source } else { own };
            let there = lanes.mask >> source & 1 == 1;
            (if there { of[source as usize] } else { POISON }, inside)
        });
        lanes.set(to, found.map(|f| f.0));
        lanes.set(predicate, found.map(|f| u64::from(f.1)));
        Ok(())
    }))
}

fn vote(d: &mut Decoder<'_>, to: Value) -> Result<super::Step> {
    /// From the lanes that hold it and all that take part.
    type Outcome = fn(u32, u32) -> u64;
    let outcomes: &[(&str, Outcome)] = &[
        ("ballot", |held, _| u64::from(held)),
        ("any", |held, _| u64::from(held != 0)),
        ("all", |held, all| u64::from(held == all)),
        ("uni", |held, all| u64::from(held == 0 || held == all)),
    ];
    let outcome = d.one_of(outcomes).ok_or("a vote of this kind")?;
    d.ignore(&["b32", "pred"]);
    let of = d.value(1)?;
    Ok(boxed(move |lanes| {
        let of = lanes.get(of);
        let held = bits(lanes.mask).filter(|l| of[*l] != 0).fold(0, |m, l| m | 1 << l);
        lanes.set(to, [outcome(held, lanes.mask); 32]);
        Ok(())
    }))
}

fn redux(d: &mut Decoder<'_>, to: Value) -> Result<super::Step> {
    type Join = fn(Type, u64, u64) -> u64;
    let (numbers, logic): (&[Type], &[Type]) = (&[Type::U32, Type::S32], &[Type::B32]);
    let joins: &[(&str, (Join, &[Type]))] = &[
        ("add", (|_, a, b| a.wrapping_add(b), numbers)),
        ("min", (|ty, a, b| if ty.int(b) < ty.int(a) { b } else { a }, numbers)),
        ("max", (|ty, a, b| if ty.int(b) > ty.int(a) { b } else { a }, numbers)),
        ("and", (|_, a, b| a & b, logic)),
        ("or", (|_, a, b| a | b, logic)),
        ("xor", (|_, a, b| a ^ b, logic)),
    ];
    let (join, types) = d.one_of(joins).ok_or("a reduction of this kind")?;
    let ty = d.ty_of(types)?;
    let of = d.value(1)?;
    Ok(boxed(move |lanes| {
        let of = lanes.get(of);
        let all = bits(lanes.mask).map(|l| of[l]).reduce(|a, b| ty.cut(join(ty, a, b)));
        lanes.set(to, [all.unwrap_or(0); 32]);
        Ok(())
    }))
}

fn matching(d: &mut Decoder<'_>, to: Value, predicate: Value) -> Result<super::Step> {
    let all = d.take("all");
    if !all && !d.take("any") {
        return Err("a match of this kind".into());
    }
    let ty = d.ty_of(&[Type::B32, Type::B64])?;
    let of = d.value(1)?;
    Ok(boxed(move |lanes| {
        let (of, mask) = (lanes.get(of), lanes.mask);
        let same =
            |lane: usize| bits(mask).filter(|l| ty.cut(of[*l]) == ty.cut(of[lane])).fold(0u32, |m, l| m | 1 << l);
        let found: [u32; 32] = std::array::from_fn(same);
        lanes.set(to, found.map(|m| if !all || m == mask { u64::from(m) } else { 0 }));
        lanes.set(predicate, found.map(|m| u64::from(m == mask)));
        Ok(())
    }))
}
