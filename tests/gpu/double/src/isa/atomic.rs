//! Changes of memory that no other thread comes between.

use super::{Decoder, Result, each, float::Format, memory::space};
use crate::{
    machine::{Access, Action, Space, Value},
    ptx::Type,
};

type Change = fn(Type, u64, u64, u64) -> u64;

use Type::{B16, B32, B64, Bf16, Bf16x2, F16, F16x2, F32, F64, S32, S64, U32, U64};

/// What makes a new value of the old one and one or two more, and of which types.
const CHANGES: &[(&str, (Change, &[Type]))] = &[
    ("add", (add, &[U32, S32, U64, S64, F32, F64, F16, Bf16, F16x2, Bf16x2])),
    ("min", (|ty, old, v, _| if ty.int(v) < ty.int(old) { v } else { old }, &[U32, S32, U64, S64])),
    ("max", (|ty, old, v, _| if ty.int(v) > ty.int(old) { v } else { old }, &[U32, S32, U64, S64])),
    ("and", (|_, old, v, _| old & v, &[B32, B64])),
    ("or", (|_, old, v, _| old | v, &[B32, B64])),
    ("xor", (|_, old, v, _| old ^ v, &[B32, B64])),
    ("exch", (|_, _, v, _| v, &[B32, B64])),
    ("cas", (|ty, old, v, new| if ty.cut(old) == ty.cut(v) { new } else { old }, &[B16, B32, B64])),
    ("inc", (|ty, old, v, _| if ty.cut(old) >= ty.cut(v) { 0 } else { old + 1 }, &[U32])),
    ("dec", (|ty, old, v, _| if ty.cut(old) == 0 || ty.cut(old) > ty.cut(v) { v } else { old - 1 }, &[U32])),
];

fn add(ty: Type, old: u64, v: u64, _: u64) -> u64 {
    let half = match ty {
        F16x2 => F16,
        Bf16x2 => Bf16,
        _ => {
            return Format::of(ty).map_or(old.wrapping_add(v), |f| f.of_f64(f.value(old) + f.value(v)));
        }
    };
    add(half, old, v, 0) | add(half, old >> 16, v >> 16, 0) << 16
}

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let returns = match d.opcode() {
        "atom" => 1,
        "red" => 0,
        _ => return Ok(None),
    };
    let space = space(d)?;
    if ![Space::Generic, Space::Global, Space::Shared].contains(&space) {
        return Err("a change of this space".into());
    }
    d.ignore(&["relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys"]);
    let name = CHANGES.iter().map(|c| c.0).find(|name| d.left.contains(name)).unwrap_or_default();
    let (change, types) = d.one_of(CHANGES).ok_or("what it changes to")?;
    let n = d.one_of(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1);
    let ty = d.ty_of(types)?;
    if matches!(ty, F16 | Bf16 | F16x2 | Bf16x2) {
        d.ignore(&["noftz"]);
    }
    // Several numbers of 16 bytes at most, each of which is changed for itself.
    if n > 1 && (!(ty == F32 || ty.bits() < 64 && !ty.integer()) || n * ty.bytes() > 16 || space != Space::Global) {
        return Err(format!("a change of {n} times {ty:?}"));
    }
    let to = if returns == 1 { d.vector(0)? } else { vec![Value::Discard; n] };
    let ((base, offset), of) = (d.address(returns)?, d.vector(returns + 1)?);
    let operands = returns + 2 + usize::from(name == "cas");
    if to.len() != n || of.len() != n || d.operands() != operands {
        return Err("another number of operands".into());
    }
    let new = if name == "cas" { d.value(operands - 1)? } else { Value::Discard };
    Ok(Some(each(move |lanes| {
        let (base, new) = (lanes.get(base), lanes.get(new));
        let of: Vec<_> = of.iter().map(|v| lanes.get(*v)).collect();
        let mut held = vec![[0; 32]; n];
        for lane in lanes.each() {
            let at = base[lane].wrapping_add(offset as u64);
            let place = lanes.place(lane, space, at, ty.bytes() * n, Access::Atomic)?;
            for (i, held) in held.iter_mut().enumerate() {
                let changed = |old| ty.cut(change(ty, old, of[i][lane], new[lane]));
                held[lane] = place.update(i * ty.bytes(), ty.bytes(), changed);
            }
        }
        to.iter().zip(held).for_each(|(to, held)| lanes.set(*to, held));
        Ok(())
    })))
}
