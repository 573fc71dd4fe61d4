//! `mma.sync`: products of small matrices whose elements are spread over the registers of a warp.
//!
//! Sums of floats are cut off as tensor cores do (Fasi et al., "Numerical behavior of NVIDIA tensor cores", 2021): a few products and
//! what they are added to are shifted to the greatest exponent, and the bits behind its last ones are lost, toward zero. So an error
//! has a direction, and grows with the depth. How many products and bits these are differs between architectures; here they are those
//! of the A100, whose error is the greater one.

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

/// A product of matrices of `of` by rows, with what is added to it, in sums of `sums`.
pub fn product((m, n, k): Shape, (of, sums): (Type, Type), a: &[f64], b: &[f64], c: &mut [f64]) {
    // What a tensor core adds at once; integers are exact in any order.
    let at_once = if sums == Type::F32 { 16 / of.bytes() } else { k };
    for row in 0..m {
        for from in (0..k).step_by(at_once) {
            for column in 0..n {
                let products = (from..from + at_once).map(|i| a[row * k + i] * b[i * n + column]);
                let sum = &mut c[row * n + column];
                *sum = if sums == Type::F32 { cut(*sum, products) } else { *sum + products.sum::<f64>() };
            }
        }
    }
}

/// What a tensor core makes of a sum of `f32` and exact products.
fn cut(sum: f64, products: impl Iterator<Item = f64> + Clone) -> f64 {
    let terms = || std::iter::once(sum).chain(products.clone());
    let greatest = terms().fold(0.0, |m: f64, v| m.max(v.abs()));
    if greatest == 0.0 || !greatest.is_finite() || terms().any(f64::is_nan) {
        return terms().sum();
    }
    // One bit more than a float has behind its first, and no more than subnormal numbers have.
    let exponent = (greatest.to_bits() >> 52) as i32 - 1023;
    let unit = f64::from_bits(((exponent.max(-126) - 24 + 1023) as u64) << 52);
    let whole: f64 = terms().map(|v| (v * (1.0 / unit)).trunc()).sum::<f64>() * unit;
    let rounded = whole as f32;
    match f64::from(rounded).abs() > whole.abs() {
        true => f64::from(f32::from_bits(rounded.to_bits() - 1)),
        false => f64::from(rounded),
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
            product(shape, (at, dt), &a, &b, &mut c);
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
