//! `wmma`: products of matrices whose elements are in registers in an order that kernels don't know.
//!
//! Here lane `l` has the elements from `l * e` on by rows, where a matrix has `32 e` of them; a fragment with more room repeats them.

use super::{
    Decoder, Result, boxed,
    matrix::together,
    memory::space,
    mma::{Shape, bits_of, element, product, shape},
};
use crate::{
    machine::{Access, Action, Fault, Kind, Lanes, Members, Place, Space, Value},
    ptx::Type,
};

const SHAPES: &[Shape] = &[(16, 16, 16), (32, 8, 16), (8, 32, 16), (16, 16, 8)];

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    if d.opcode() != "wmma" {
        return Ok(None);
    }
    let part = d.one_of(&[("load", 0), ("store", 1), ("mma", 2)]).ok_or("an operation of this kind")?;
    for word in ["sync", "aligned"] {
        if !d.take(word) {
            return Err(format!("a product without `.{word}`"));
        }
    }
    if part == 2 {
        return multiply(d).map(Some);
    }
    let which = d.one_of(&[("a", 'a'), ("b", 'b'), ("c", 'c'), ("d", 'c')]).ok_or("which matrix")?;
    let by_columns = layout(d)?;
    let (m, n, k) = known(shape(d)?)?;
    let space = space(d)?;
    let ty = d.ty()?;
    let (rows, columns) = match which {
        'a' => (m, k),
        'b' => (k, n),
        _ => (m, n),
    };
    let load = part == 0;
    let (registers, (base, offset)) = if load { (d.vector(0)?, d.address(1)?) } else { (d.vector(1)?, d.address(0)?) };
    let stride =
        if d.operands() > 2 { d.value(2)? } else { Value::Immediate(if by_columns { rows } else { columns } as u64) };
    let fragment = Fragment::new(ty, rows * columns, registers)?;
    Ok(Some(Action::Together(
        Members::All,
        boxed(move |lanes| {
            together(lanes);
            // All lanes name the same place.
            let (base, stride) = (lanes.get(base)[0].wrapping_add(offset as u64), lanes.get(stride)[0] as usize);
            let whole = fragment.registers.len() as u64 * 4;
            if !base.is_multiple_of(whole) || !(stride * ty.bytes()).is_multiple_of(whole.min(16) as usize) {
                let what = format!("a matrix at {base:#x} with rows of {} bytes", stride * ty.bytes());
                return Err(Fault::new(Kind::Misaligned, 0, what));
            }
            let access = if load { Access::Read } else { Access::Write };
            let lines = Lines { lanes, space, base, stride, ty, access };
            let (lines, length) = match by_columns {
                true => (lines.places(columns, rows)?, rows),
                false => (lines.places(rows, columns)?, columns),
            };
            let at = |i: usize| {
                let (row, column) = (i / columns, i % columns);
                let (line, i) = if by_columns { (column, row) } else { (row, column) };
                (lines[line * length + i], ty.bytes())
            };
            if load {
                let held = fragment.pack(|i| at(i).0.load(0, ty.bytes()));
                fragment.registers.iter().zip(held).for_each(|(to, v)| lanes.set(*to, v));
            } else {
                let held = fragment.unpack(lanes);
                held.iter().enumerate().for_each(|(i, v)| at(i).0.store(0, ty.bytes(), *v));
            }
            together(lanes);
            Ok(())
        }),
    )))
}

fn known(shape: Shape) -> Result<Shape> {
    SHAPES.contains(&shape).then_some(shape).ok_or_else(|| format!("matrices of {shape:?}"))
}

fn layout(d: &mut Decoder<'_>) -> Result<bool> {
    d.one_of(&[("row", false), ("col", true)]).ok_or_else(|| "a layout".into())
}

/// The lines of a matrix in memory.
struct Lines<'a, 'b> {
    lanes: &'a mut Lanes<'b>,
    space: Space,
    base: u64,
    stride: usize,
    ty: Type,
    access: Access,
}

impl Lines<'_, '_> {
    /// The place of every element.
    fn places(self, lines: usize, length: usize) -> std::result::Result<Vec<Place>, Fault> {
        let bytes = self.ty.bytes();
        let mut out = Vec::with_capacity(lines * length);
        for line in 0..lines {
            for i in 0..length {
                let at = self.base + ((line * self.stride + i) * bytes) as u64;
                out.push(self.lanes.place(0, self.space, at, bytes, self.access)?);
            }
        }
        Ok(out)
    }
}

/// The elements of a matrix in registers.
struct Fragment {
    ty: Type,
    elements: usize,
    registers: Vec<Value>,
}

impl Fragment {
    fn new(ty: Type, elements: usize, registers: Vec<Value>) -> Result<Self> {
        let room = registers.len() * 4 / ty.bytes() * 32;
        let known = matches!(ty, Type::F16 | Type::Bf16 | Type::Tf32 | Type::F32 | Type::S8 | Type::U8 | Type::S32);
        match known && room >= elements && room.is_multiple_of(elements) {
            true => Ok(Self { ty, elements, registers }),
            false => Err(format!("{elements} elements of {ty:?} in {} registers", registers.len())),
        }
    }

    /// The registers of elements.
    fn pack(&self, of: impl Fn(usize) -> u64) -> Vec<[u64; 32]> {
        let (per, own) = (4 / self.ty.bytes(), self.elements / 32);
        let register = |r: usize| {
            std::array::from_fn(|lane| {
                (0..per).fold(0, |v, e| {
                    let i = lane * own + (r * per + e) % own;
                    v | self.ty.cut(of(i)) << (e as u32 * self.ty.bits())
                })
            })
        };
        (0..self.registers.len()).map(register).collect()
    }

    /// The elements of the registers.
    fn unpack(&self, lanes: &Lanes<'_>) -> Vec<u64> {
        let (per, own) = (4 / self.ty.bytes(), self.elements / 32);
        let held: Vec<_> = self.registers.iter().map(|r| lanes.get(*r)).collect();
        let of = |i: usize| {
            let (lane, j) = (i / own, i % own);
            self.ty.cut(held[j / per][lane] >> ((j % per) as u32 * self.ty.bits()))
        };
        (0..self.elements).map(of).collect()
    }

    fn values(&self, lanes: &Lanes<'_>) -> Vec<f64> {
        self.unpack(lanes).into_iter().map(|v| element(self.ty, v)).collect()
    }
}

fn multiply(d: &mut Decoder<'_>) -> Result<Action> {
    // What registers hold doesn't depend on how the matrices were laid out in memory.
    layout(d)?;
    layout(d)?;
    let satfinite = d.take("satfinite");
    let (m, n, k) = known(shape(d)?)?;
    let mut types = vec![];
    while let Ok(ty) = d.ty() {
        types.push(ty);
    }
    let [dt, at, bt, ct] = match types[..] {
        [dt, ct] => [dt, Type::F16, Type::F16, ct],
        [dt, at, bt, ct] => [dt, at, bt, ct],
        _ => return Err("its types".into()),
    };
    let tf32 = at == Type::Tf32;
    if (k == 8) != tf32 || at != bt || (satfinite && dt != Type::S32) {
        return Err(format!("a product of {at:?} and {bt:?} of m{m}n{n}k{k}"));
    }
    let to = Fragment::new(dt, m * n, d.vector(0)?)?;
    let a = Fragment::new(at, m * k, d.vector(1)?)?;
    let b = Fragment::new(bt, k * n, d.vector(2)?)?;
    let c = Fragment::new(ct, m * n, d.vector(3)?)?;
    Ok(Action::Together(
        Members::All,
        boxed(move |lanes| {
            let mut sum = c.values(lanes);
            product((m, n, k), (at, dt), &a.values(lanes), &b.values(lanes), &mut sum);
            let held = to.pack(|i| bits_of(dt, sum[i], satfinite));
            to.registers.iter().zip(held).for_each(|(to, v)| lanes.set(*to, v));
            Ok(())
        }),
    ))
}
