//! Loads, stores, addresses, and copies to shared memory that go on beside the code.

use super::{Decoder, Result, each, map};
use crate::{
    machine::{Access, Action, Copying, Fault, Kind, LOCAL, SHARED, Space, Value},
    ptx::{Base, Operand, Type},
};

/// Modifiers that say how caches and other threads see an access.
const CACHES: &[&str] = &[
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "weak",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L1::evict_normal",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    Ok(Some(match d.opcode() {
        "mov" => mov(d)?,
        "ld" | "ldu" => load(d)?,
        "st" => store(d)?,
        "cvta" => cvta(d)?,
        "cp" => copy(d)?,
        // What caches do isn't seen here.
        "prefetch" | "prefetchu" | "applypriority" => {
            d.ignore(&["global", "local", "L1", "L2", "L2::evict_last", "L2::evict_normal"]);
            each(|_| Ok(()))
        }
        _ => return Ok(None),
    }))
}

/// Takes the state space of an access.
pub fn space(d: &mut Decoder<'_>) -> Result<Space> {
    let found = d.one_of(&[
        ("global", Space::Global),
        ("const", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("local", Space::Local),
        ("param", Space::Param),
    ]);
    Ok(found.unwrap_or(Space::Generic))
}

/// What a call gives and gets lies in the thread's local memory.
fn of_call(space: Space, address: &Operand) -> Space {
    match address {
        Operand::Address(Base::Local(_), _) if space == Space::Param => Space::Local,
        _ => space,
    }
}

fn mov(d: &mut Decoder<'_>) -> Result<Action> {
    let ty = d.ty()?;
    if ty.bits() > 64 {
        return Err(format!("a register of {ty:?}"));
    }
    let cut = move |v: u64| if ty == Type::Pred { v } else { ty.cut(v) };
    match (d.operand(0)?, d.operand(1)?) {
        (Operand::Vector(_), _) => {
            let (to, of) = (d.vector(0)?, d.value(1)?);
            let bits = part(ty, to.len())?;
            Ok(each(move |lanes| {
                let of = lanes.get(of);
                for (i, to) in to.iter().enumerate() {
                    lanes.set(*to, of.map(|v| v >> (bits * i) & ((1 << bits) - 1)));
                }
                Ok(())
            }))
        }
        (_, Operand::Vector(_)) => {
            let (to, of) = (d.value(0)?, d.vector(1)?);
            let bits = part(ty, of.len())?;
            Ok(each(move |lanes| {
                let parts: Vec<_> = of.iter().map(|v| lanes.get(*v)).collect();
                let whole = |lane: usize| {
                    parts.iter().enumerate().fold(0, |v, (i, p)| v | (p[lane] & ((1 << bits) - 1)) << (bits * i))
                };
                lanes.set(to, std::array::from_fn(whole));
                Ok(())
            }))
        }
        _ => map::<1>(d, move |a| cut(a[0])),
    }
}

/// Bits of each part of a register.
fn part(ty: Type, parts: usize) -> Result<usize> {
    match parts {
        2 | 4 => Ok(ty.bits() as usize / parts),
        _ => Err(format!("{parts} parts of a register")),
    }
}

/// The value of a register that holds `v` of type `ty`: integers with a sign fill it.
pub fn extended(ty: Type, v: u64) -> u64 {
    if ty.signed() { ty.int(v) as u64 } else { ty.cut(v) }
}

/// Takes the type of what is in memory.
fn in_memory(d: &mut Decoder<'_>) -> Result<Type> {
    let ty = d.ty()?;
    let known = ty.integer() || ty.untyped() || matches!(ty, Type::F32 | Type::F64);
    known.then_some(ty).ok_or_else(|| format!("{ty:?} in memory"))
}

fn width(d: &mut Decoder<'_>) -> usize {
    d.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
}

fn load(d: &mut Decoder<'_>) -> Result<Action> {
    let space = of_call(space(d)?, d.operand(1)?);
    d.ignore(CACHES);
    let (n, ty) = (width(d), in_memory(d)?);
    let (to, (base, offset)) = (d.vector(0)?, d.address(1)?);
    if to.len() != n {
        return Err(format!("{} destinations of {n}", to.len()));
    }
    let bytes = ty.bytes();
    Ok(each(move |lanes| {
        let base = lanes.get(base);
        for lane in lanes.each() {
            let at = base[lane].wrapping_add(offset as u64);
            let place = lanes.place(lane, space, at, bytes * n, Access::Read)?;
            for (i, to) in to.iter().enumerate() {
                lanes.put(*to, lane, extended(ty, place.load(i * bytes, bytes)));
            }
        }
        Ok(())
    }))
}

fn store(d: &mut Decoder<'_>) -> Result<Action> {
    let space = of_call(space(d)?, d.operand(0)?);
    d.ignore(CACHES);
    let (n, ty) = (width(d), in_memory(d)?);
    let ((base, offset), of) = (d.address(0)?, d.vector(1)?);
    if of.len() != n {
        return Err(format!("{} values of {n}", of.len()));
    }
    let bytes = ty.bytes();
    Ok(each(move |lanes| {
        let base = lanes.get(base);
        for lane in lanes.each() {
            let at = base[lane].wrapping_add(offset as u64);
            let place = lanes.place(lane, space, at, bytes * n, Access::Write)?;
            for (i, of) in of.iter().enumerate() {
                place.store(i * bytes, bytes, lanes.at(*of, lane));
            }
        }
        Ok(())
    }))
}

/// Generic addresses of others, and back.
fn cvta(d: &mut Decoder<'_>) -> Result<Action> {
    let to = d.take("to");
    let window = match space(d)? {
        Space::Shared => SHARED,
        Space::Local => LOCAL,
        Space::Global => 0,
        _ => return Err("an address of this space".into()),
    };
    d.ignore(&["u64", "u32"]);
    // `cvta.shared.u64 %rd, variable` has the variable itself.
    if let Operand::Symbol(Base::Param(_)) = d.operand(1)? {
        return Err("a generic address of a parameter".into());
    }
    map::<1>(d, move |a| if to { a[0] & !window } else { a[0] | window })
}

/// `cp.async`: the bytes are read at once and written when they are waited for, so that code that doesn't wait finds nothing.
fn copy(d: &mut Decoder<'_>) -> Result<Action> {
    if !d.take("async") {
        return Err("a copy of this kind".into());
    }
    if d.take("commit_group") {
        return Ok(each(|lanes| {
            for lane in lanes.each() {
                let (closed, open) = &mut lanes.warp.copies[lane];
                closed.push(std::mem::take(open));
            }
            Ok(())
        }));
    }
    let all = d.take("wait_all");
    if all || d.take("wait_group") {
        let keep = if all { Value::Immediate(0) } else { d.value(0)? };
        return Ok(each(move |lanes| {
            let keep = lanes.get(keep);
            for lane in lanes.each() {
                let (closed, open) = &mut lanes.warp.copies[lane];
                if all {
                    closed.push(std::mem::take(open));
                }
                let arrive = closed.len().saturating_sub(keep[lane] as usize);
                let arrived: Vec<Copying> = closed.drain(..arrive).flatten().collect();
                for copy in arrived {
                    let place = lanes.place(lane, Space::Shared, copy.to, copy.bytes.len(), Access::Arrive)?;
                    for (i, byte) in copy.bytes.iter().enumerate() {
                        place.store(i, 1, u64::from(*byte));
                    }
                }
            }
            Ok(())
        }));
    }
    let known: &[u64] = match (d.take("ca"), d.take("cg")) {
        (true, false) => &[4, 8, 16],
        (false, true) => &[16],
        _ => return Err("a copy through which cache".into()),
    };
    d.ignore(&["L2::64B", "L2::128B", "L2::256B"]);
    if !(d.take("shared") || d.take("shared::cta")) || !d.take("global") {
        return Err("a copy between these spaces".into());
    }
    let ((to, to_offset), (of, of_offset)) = (d.address(0)?, d.address(1)?);
    let bytes = match d.value(2)? {
        Value::Immediate(n) if known.contains(&n) => n as usize,
        _ => return Err("a copy of so many bytes".into()),
    };
    let read = if d.operands() > 3 { d.value(3)? } else { Value::Immediate(bytes as u64) };
    Ok(each(move |lanes| {
        let (to, of, read) = (lanes.get(to), lanes.get(of), lanes.get(read));
        for lane in lanes.each() {
            let read = (read[lane] as u32 as usize).min(bytes);
            let mut copied = vec![0; bytes];
            if read > 0 {
                // What isn't read needn't be there.
                let at = of[lane].wrapping_add(of_offset as u64);
                if !at.is_multiple_of(bytes as u64) {
                    let what = format!("a copy of {bytes} bytes from {at:#x}, which is not aligned");
                    return Err(Fault::new(Kind::Misaligned, lane, what));
                }
                for (i, byte) in copied[..read].iter_mut().enumerate() {
                    *byte = lanes.place(lane, Space::Global, at + i as u64, 1, Access::Read)?.load(0, 1) as u8;
                }
            }
            let to = to[lane].wrapping_add(to_offset as u64);
            // Where it goes is checked now, and written later.
            lanes.place(lane, Space::Shared, to, bytes, Access::Copy)?;
            lanes.warp.copies[lane].1.push(Copying { to, bytes: copied });
        }
        Ok(())
    }))
}
