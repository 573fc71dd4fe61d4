//! `mma.sync`: products of small matrices whose elements are spread over the registers of a warp.
//!
//! Products are exact, and their sum is rounded once. Tensor cores round sums of floats otherwise: the last bits differ.

use super::{Decoder, Result, boxed, float::Format};
use crate::{
    machine::{Action, Lanes, Members, Value},
    ptx::Type,
};

/// Rows, columns and depth.
pub type Shape = (usize, usize, usize);

/// The shape of `m16n8k32`.
pub fn shape(d: &mut Decoder<'_>) -> Result<Shape> {
    let parse = |w: &str| {
        let (m, rest) = w.strip_prefix('m')?.split_once('n')?;
        let (n, k) = rest.split_once('k')?;
        Some((m.parse().ok()?, n.parse().ok()?, k.parse().ok()?))
    };
    let found = d.left.iter().enumerate().find_map(|(i, w)| Some((i, parse(w)?)));
    let (i, shape) = found.ok_or("no shape")?;
    d.left.remove(i);
    Ok(shape)
}

/// An element of a matrix: an integer or a number with a fraction, which `f64` holds exactly.
pub fn element(ty: Type, bits: u64) -> f64 {
    match ty {
        // A tensor core doesn't see the last 13 bits.
        Type::Tf32 => f64::from(f32::from_bits(bits as u32 & 0xffff_e000)),
        _ => Format::of(ty).map_or(ty.int(bits) as f64, |f| f.value(bits)),
    }
}

/// The bits of an element of a sum.
pub fn bits_of(ty: Type, v: f64, satfinite: bool) -> u64 {
    match Format::of(ty) {
        Some(f) => f.of_f64(v),
        None if satfinite => ty.cut(v.clamp(ty.range().0 as f64, ty.range().1 as f64) as i64 as u64),
        // Sums of integers wrap around.
        None => ty.cut(v as i64 as u64),
    }
}

/// A product of matrices by rows, with what is added to it.
pub fn product((m, n, k): Shape, a: &[f64], b: &[f64], c: &mut [f64]) {
    for row in 0..m {
        for i in 0..k {
            let x = a[row * k + i];
            for column in 0..n {
                c[row * n + column] += x * b[i * n + column];
            }
        }
    }
}

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    if d.opcode() != "mma" {
        return Ok(None);
    }
    for word in ["sync", "aligned", "row", "col"] {
        if !d.take(word) {
            return Err(format!("a product without `.{word}`"));
        }
    }
    let satfinite = d.take("satfinite");
    let shape = shape(d)?;
    let (dt, at, bt, ct) = (d.ty()?, d.ty()?, d.ty()?, d.ty()?);
    let (m, n, k) = shape;
    let bits = at.bits() as usize;
    let known = match (at, bt) {
        (Type::S8 | Type::U8, Type::S8 | Type::U8) => {
            dt == Type::S32 && ct == Type::S32 && [(16, 8, 16), (16, 8, 32), (8, 8, 16)].contains(&shape)
        }
        (Type::F16, Type::F16) => {
            let sums = [Type::F32, Type::F16];
            sums.contains(&dt) && sums.contains(&ct) && [(16, 8, 8), (16, 8, 16)].contains(&shape)
        }
        (Type::Bf16, Type::Bf16) => dt == Type::F32 && ct == Type::F32 && [(16, 8, 8), (16, 8, 16)].contains(&shape),
        (Type::Tf32, Type::Tf32) => dt == Type::F32 && ct == Type::F32 && [(16, 8, 4), (16, 8, 8)].contains(&shape),
        _ => false,
    };
    if !known || (satfinite && dt != Type::S32) {
        return Err(format!("a product of {at:?} and {bt:?} in {ct:?} of m{m}n{n}k{k}"));
    }
    let (dr, ar, br, cr) = (d.vector(0)?, d.vector(1)?, d.vector(2)?, d.vector(3)?);
    let per = 32 / bits;
    let sums = |ty: Type| m * n / 32 * ty.bytes() / 4;
    if (dr.len(), ar.len(), br.len(), cr.len()) != (sums(dt), m * k / 32 / per, n * k / 32 / per, sums(ct)) {
        return Err("another number of registers".into());
    }
    Ok(Some(Action::Together(
        Members::All,
        boxed(move |lanes| {
            let (mut a, mut b, mut c) = (vec![0.0; m * k], vec![0.0; k * n], vec![0.0; m * n]);
            spread(
                lanes,
                &ar,
                bits,
                at,
                |lane, r, e| {
                    let row = lane / 4 + 8 * (r % (m / 8));
                    row * k + lane % 4 * per + r / (m / 8) * 4 * per + e
                },
                &mut a,
            );
            spread(lanes, &br, bits, bt, |lane, r, e| (lane % 4 * per + r * 4 * per + e) * n + lane / 4, &mut b);
            spread(lanes, &cr, ct.bits() as usize, ct, |lane, r, e| sum_at(ct, n, lane, r, e), &mut c);
            product(shape, &a, &b, &mut c);
            for (r, to) in dr.iter().enumerate() {
                let held = |lane: usize| {
                    (0..32 / dt.bits() as usize).fold(0, |v, e| {
                        v | bits_of(dt, c[sum_at(dt, n, lane, r, e)], satfinite) << (e * dt.bits() as usize)
                    })
                };
                lanes.set(*to, std::array::from_fn(held));
            }
            Ok(())
        }),
    )))
}

/// Where a sum's element is: two beside each other in a lane, those of register pairs eight rows apart.
fn sum_at(ty: Type, n: usize, lane: usize, register: usize, e: usize) -> usize {
    let i = register * (32 / ty.bits() as usize) + e;
    (lane / 4 + 8 * (i / 2)) * n + lane % 4 * 2 + i % 2
}

/// Puts the elements of registers in their places of a matrix.
fn spread(
    lanes: &Lanes<'_>,
    registers: &[Value],
    bits: usize,
    ty: Type,
    place: impl Fn(usize, usize, usize) -> usize,
    matrix: &mut [f64],
) {
    for (r, register) in registers.iter().enumerate() {
        let held = lanes.get(*register);
        for (lane, held) in held.iter().enumerate() {
            for e in 0..32 / bits {
                matrix[place(lane, r, e)] = element(ty, held >> (e * bits) & (u64::MAX >> (64 - bits)));
            }
        }
    }
}
