//! Logic, shifts, and fields of bits.

use super::{Decoder, Result, map};
use crate::{machine::Action, ptx::Type};

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let opcode = d.opcode();
    use Type::{B16, B32, B64, Pred, S16, S32, S64, U16, U32, U64};
    let known: &[Type] = match opcode {
        "and" | "or" | "xor" | "not" => &[Pred, B16, B32, B64],
        "cnot" | "shl" => &[B16, B32, B64],
        "shr" => &[B16, B32, B64, U16, U32, U64, S16, S32, S64],
        "lop3" | "shf" | "prmt" => &[B32],
        "bfe" | "bfind" => &[U32, U64, S32, S64],
        "bfi" | "brev" | "popc" | "clz" => &[B32, B64],
        _ => return Ok(None),
    };
    let ty = d.ty_of(known)?;
    if opcode == "shf" {
        return shf(d).map(Some);
    }
    if opcode == "prmt" {
        return prmt(d).map(Some);
    }
    let shiftamt = opcode == "bfind" && d.take("shiftamt");
    let bits = ty.bits();
    Ok(Some(match opcode {
        "and" => map::<2>(d, |a| a[0] & a[1]),
        "or" => map::<2>(d, |a| a[0] | a[1]),
        "xor" => map::<2>(d, |a| a[0] ^ a[1]),
        "not" if ty == Pred => map::<1>(d, |a| u64::from(a[0] == 0)),
        "not" => map::<1>(d, move |a| ty.cut(!a[0])),
        "cnot" => map::<1>(d, move |a| u64::from(ty.cut(a[0]) == 0)),
        "lop3" => map::<4>(d, |a| lop3(a[0], a[1], a[2], a[3])),
        "shl" => map::<2>(d, move |a| if a[1] as u32 >= bits { 0 } else { ty.cut(a[0] << (a[1] as u32)) }),
        "shr" if bits < 64 => map::<2>(d, move |a| ty.cut((ty.short(a[0]) >> (a[1] as u32).min(63)) as u64)),
        "shr" => map::<2>(d, move |a| ty.cut((ty.int(a[0]) >> (a[1] as u32).min(bits)) as u64)),
        "bfe" => map::<3>(d, move |a| bfe(ty, a)),
        "bfi" => map::<4>(d, move |[from, into, at, length]| {
            let (at, length) = (at as u32 & 255, length as u32 & 255);
            let mask = ((1u128 << length.min(64)) - 1).checked_shl(at).unwrap_or(0) as u64;
            let field = u128::from(from).checked_shl(at).unwrap_or(0) as u64;
            ty.cut(into & !mask | field & mask)
        }),
        "brev" => map::<1>(d, move |a| ty.cut(a[0]).reverse_bits() >> (64 - bits)),
        "popc" => map::<1>(d, move |a| u64::from(ty.cut(a[0]).count_ones())),
        "clz" => map::<1>(d, move |a| u64::from(ty.cut(a[0]).leading_zeros() - (64 - bits))),
        _ => map::<1>(d, move |a| {
            // The highest bit that isn't the sign.
            let v = if ty.int(a[0]) < 0 { ty.cut(!a[0]) } else { ty.cut(a[0]) };
            match v.checked_ilog2() {
                None => 0xffff_ffff,
                Some(at) => u64::from(if shiftamt { bits - 1 - at } else { at }),
            }
        }),
    }?))
}

/// Any function of three bits, given by its table.
fn lop3(a: u64, b: u64, c: u64, table: u64) -> u64 {
    let rows = (0..8u64).filter(|row| table >> row & 1 == 1);
    let value = rows.fold(0, |v, row| {
        let pick = |bit: u64, of: u64| if row >> bit & 1 == 1 { of } else { !of };
        v | pick(2, a) & pick(1, b) & pick(0, c)
    });
    value & 0xffff_ffff
}

fn bfe(ty: Type, [v, at, length]: [u64; 3]) -> u64 {
    let (at, length) = (at as u32 & 255, length as u32 & 255);
    if length == 0 {
        return 0;
    }
    // Bits behind the end are the sign.
    let shifted = ty.int(v) >> at.min(127);
    let length = length.min(64);
    let field = (shifted as u128 & ((1 << length) - 1)) as i128;
    let signed = ty.signed() && field >> (length - 1) & 1 == 1;
    ty.cut(if signed { field - (1 << length) } else { field } as u64)
}

/// A shift of two words as one.
fn shf(d: &mut Decoder<'_>) -> Result<Action> {
    let left = d.take("l");
    if !left && !d.take("r") {
        return Err("a direction".into());
    }
    let wrap = d.take("wrap");
    if !wrap && !d.take("clamp") {
        return Err("what a long shift does".into());
    }
    map::<3>(d, move |[low, high, by]| {
        let by = if wrap { by as u32 & 31 } else { (by as u32).min(32) };
        let both = high << 32 | low & 0xffff_ffff;
        if left { (u128::from(both) << by >> 32) as u64 & 0xffff_ffff } else { both >> by & 0xffff_ffff }
    })
}

/// Four bytes, each chosen from eight.
fn prmt(d: &mut Decoder<'_>) -> Result<Action> {
    // The modes have a table of choices, by the two low bits of the third operand.
    let mode = d.one_of(&[
        ("f4e", [0x3210, 0x4321, 0x5432, 0x6543]),
        ("b4e", [0x5670, 0x6701, 0x7012, 0x0123]),
        ("rc8", [0x0000, 0x1111, 0x2222, 0x3333]),
        ("ecl", [0x3210, 0x3211, 0x3222, 0x3333]),
        ("ecr", [0x0000, 0x1110, 0x2210, 0x3210]),
        ("rc16", [0x1010, 0x3232, 0x1010, 0x3232]),
    ]);
    map::<3>(d, move |[low, high, by]| {
        let by = mode.map_or(by, |mode| mode[by as usize & 3]);
        let both = high << 32 | low & 0xffff_ffff;
        (0..4).fold(0, |v, i| {
            let choice = by >> (4 * i) & 15;
            let byte = both >> (8 * (choice & 7)) & 255;
            // The high bit of a choice spreads the byte's sign.
            let byte = if choice & 8 == 0 { byte } else { 255 * (byte >> 7) };
            v | byte << (8 * i)
        })
    })
}
