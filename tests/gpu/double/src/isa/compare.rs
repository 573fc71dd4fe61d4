//! Comparisons, and choices by them.

use super::{Decoder, Result, each, float::Format, map};
use crate::{
    machine::{Action, Value},
    ptx::{Operand, Type},
};
use std::cmp::Ordering;

/// Whether a comparison holds for an order, where `None` is that one isn't a number.
type Holds = fn(Option<Ordering>) -> bool;

/// The types that a comparison is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    Numbers,
    Unsigned,
    Floats,
}

const COMPARISONS: &[(&str, (Of, Holds))] = &[
    ("eq", (Of::All, |o| o == Some(Ordering::Equal))),
    ("ne", (Of::All, |o| o.is_some_and(|o| o != Ordering::Equal))),
    ("lt", (Of::Numbers, |o| o == Some(Ordering::Less))),
    ("le", (Of::Numbers, |o| o.is_some_and(Ordering::is_le))),
    ("gt", (Of::Numbers, |o| o == Some(Ordering::Greater))),
    ("ge", (Of::Numbers, |o| o.is_some_and(Ordering::is_ge))),
    ("lo", (Of::Unsigned, |o| o == Some(Ordering::Less))),
    ("ls", (Of::Unsigned, |o| o.is_some_and(Ordering::is_le))),
    ("hi", (Of::Unsigned, |o| o == Some(Ordering::Greater))),
    ("hs", (Of::Unsigned, |o| o.is_some_and(Ordering::is_ge))),
    ("equ", (Of::Floats, |o| o.is_none_or(|o| o == Ordering::Equal))),
    ("neu", (Of::Floats, |o| o != Some(Ordering::Equal))),
    ("ltu", (Of::Floats, |o| o.is_none_or(Ordering::is_lt))),
    ("leu", (Of::Floats, |o| o.is_none_or(Ordering::is_le))),
    ("gtu", (Of::Floats, |o| o.is_none_or(Ordering::is_gt))),
    ("geu", (Of::Floats, |o| o.is_none_or(Ordering::is_ge))),
    ("num", (Of::Floats, |o| o.is_some())),
    ("nan", (Of::Floats, |o| o.is_none())),
];

type Join = fn(bool, bool) -> bool;

const JOINS: &[(&str, Join)] = &[("and", |a, b| a && b), ("or", |a, b| a || b), ("xor", |a, b| a != b)];

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    Ok(Some(match d.opcode() {
        "setp" => setp(d)?,
        "set" => set(d)?,
        "selp" => {
            d.ty()?;
            map::<3>(d, |a| if a[2] != 0 { a[0] } else { a[1] })?
        }
        "slct" => {
            let ftz = d.take("ftz");
            match (d.ty()?, d.ty()?) {
                (_, Type::S32) if !ftz => map::<3>(d, |a| if a[2] as i32 >= 0 { a[0] } else { a[1] })?,
                (_, Type::F32) => map::<3>(d, move |a| {
                    let by = f32::from_bits(if ftz { super::float::flush(a[2]) } else { a[2] } as u32);
                    if by >= 0.0 { a[0] } else { a[1] }
                })?,
                _ => return Err("a choice by this type".into()),
            }
        }
        _ => return Ok(None),
    }))
}

/// A comparison that may be joined with a predicate.
struct Comparison {
    ty: Type,
    /// Whether two numbers of 16 bits are compared, each.
    pair: bool,
    ftz: bool,
    holds: Holds,
    join: Option<Join>,
}

impl Comparison {
    /// Takes its modifiers, up to the types.
    fn take(d: &mut Decoder<'_>) -> Result<(Of, Self)> {
        let (of, holds) = d.one_of(COMPARISONS).ok_or("a comparison of this kind")?;
        let join = d.one_of(JOINS);
        Ok((of, Self { ty: Type::Pred, pair: false, ftz: d.take("ftz"), holds, join }))
    }

    /// Takes the type of what is compared.
    fn of(self, d: &mut Decoder<'_>, of: Of) -> Result<Self> {
        let whole = d.ty()?;
        let (ty, pair) = match whole {
            Type::F16x2 => (Type::F16, true),
            Type::Bf16x2 => (Type::Bf16, true),
            ty => (ty, false),
        };
        let known = match of {
            Of::All => ty.float() || ty.integer() || ty.untyped(),
            Of::Numbers => ty.float() || ty.integer(),
            Of::Unsigned => ty.integer() && !ty.signed(),
            Of::Floats => ty.float(),
        };
        if !known || ty.bytes() == 1 || (self.ftz && ty != Type::F32) {
            return Err(format!("this comparison of {whole:?}"));
        }
        Ok(Self { ty, pair, ..self })
    }

    /// Whether it holds, of pairs for the low numbers.
    fn low(&self, a: u64, b: u64) -> bool {
        let number = |f: Format, v: u64| f.value(if self.ftz { super::float::flush(v) } else { v });
        (self.holds)(match Format::of(self.ty) {
            Some(f) => number(f, a).partial_cmp(&number(f, b)),
            None => Some(self.ty.int(a).cmp(&self.ty.int(b))),
        })
    }

    fn high(&self, a: u64, b: u64) -> bool {
        self.low(a >> 16, b >> 16)
    }

    fn joined(&self, held: bool, with: u64) -> bool {
        self.join.map_or(held, |j| j(held, with != 0))
    }

    /// What it is joined with, if it is.
    fn with(&self, d: &Decoder<'_>) -> Result<Value> {
        if d.operands() != 3 + usize::from(self.join.is_some()) {
            return Err(format!("{} operands", d.operands()));
        }
        if self.join.is_some() { d.value(3) } else { Ok(Value::Discard) }
    }
}

fn setp(d: &mut Decoder<'_>) -> Result<Action> {
    let (of, comparison) = Comparison::take(d)?;
    let comparison = comparison.of(d, of)?;
    let (a, b, with) = (d.value(1)?, d.value(2)?, comparison.with(d)?);
    let (yes, no) = match d.operand(0)? {
        Operand::Pair(p, q) => (super::value(p)?, super::value(q)?),
        p => (super::value(p)?, Value::Discard),
    };
    Ok(each(move |lanes| {
        let (a, b, with) = (lanes.get(a), lanes.get(b), lanes.get(with));
        let held: [bool; 32] = std::array::from_fn(|lane| comparison.low(a[lane], b[lane]));
        // The second result is the negation, or what the high numbers give.
        let other = |lane: usize| if comparison.pair { comparison.high(a[lane], b[lane]) } else { !held[lane] };
        let joined = |lane: usize, v: bool| u64::from(comparison.joined(v, with[lane]));
        lanes.set(yes, std::array::from_fn(|lane| joined(lane, held[lane])));
        if no != Value::Discard {
            lanes.set(no, std::array::from_fn(|lane| joined(lane, other(lane))));
        }
        Ok(())
    }))
}

/// All ones, or 1.0, where a comparison holds; of pairs in each half.
fn set(d: &mut Decoder<'_>) -> Result<Action> {
    let (of, comparison) = Comparison::take(d)?;
    let to = d.ty()?;
    let comparison = comparison.of(d, of)?;
    let yes = match (comparison.pair, to) {
        (true, Type::F16x2) if comparison.ty == Type::F16 => 0x3c00,
        (true, Type::Bf16x2) if comparison.ty == Type::Bf16 => 0x3f80,
        (true, Type::U32 | Type::S32) => 0xffff,
        (false, to) if to.float() || to.integer() => Format::of(to).map_or(to.cut(u64::MAX), |f| f.of_f64(1.0)),
        _ => return Err(format!("a comparison to {to:?}")),
    };
    let (to, a, b, with) = (d.value(0)?, d.value(1)?, d.value(2)?, comparison.with(d)?);
    Ok(each(move |lanes| {
        let (a, b, with) = (lanes.get(a), lanes.get(b), lanes.get(with));
        let of = |held: bool, with: u64| if comparison.joined(held, with) { yes } else { 0 };
        let result = |lane: usize| {
            let low = of(comparison.low(a[lane], b[lane]), with[lane]);
            if comparison.pair { low | of(comparison.high(a[lane], b[lane]), with[lane]) << 16 } else { low }
        };
        lanes.set(to, std::array::from_fn(result));
        Ok(())
    }))
}
