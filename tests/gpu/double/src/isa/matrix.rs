//! `ldmatrix` and `stmatrix`: matrices of 8 by 8 numbers of 16 bits, whose rows lanes name the addresses of.

use super::{Decoder, Result, boxed, memory::space};
use crate::machine::{Access, Action, Lanes, Members, Place, Space};

pub fn decode(d: &mut Decoder<'_>) -> Result<Option<Action>> {
    let load = match d.opcode() {
        "ldmatrix" => true,
        "stmatrix" => false,
        _ => return Ok(None),
    };
    for word in ["sync", "aligned", "m8n8"] {
        if !d.take(word) {
            return Err(format!("a matrix without `.{word}`"));
        }
    }
    let count = d.one_of(&[("x1", 1), ("x2", 2), ("x4", 4)]).ok_or("how many matrices")?;
    let transposed = d.take("trans");
    if space(d)? != Space::Shared {
        return Err("matrices of this space".into());
    }
    if !d.take("b16") {
        return Err("matrices of this type".into());
    }
    let (registers, (base, offset)) = if load { (d.vector(0)?, d.address(1)?) } else { (d.vector(1)?, d.address(0)?) };
    if registers.len() != count {
        return Err(format!("{} registers of {count}", registers.len()));
    }
    let access = if load { Access::Read } else { Access::Write };
    Ok(Some(Action::Together(
        Members::All,
        boxed(move |lanes| {
            together(lanes);
            let base = lanes.get(base);
            for (m, register) in registers.iter().enumerate() {
                let mut rows: Vec<Place> = vec![];
                for row in 0..8 {
                    let lane = m * 8 + row;
                    rows.push(lanes.place(lane, Space::Shared, base[lane].wrapping_add(offset as u64), 16, access)?);
                }
                // Lane 4 r + c has numbers 2 c and 2 c + 1 of row r.
                let of = |lane: usize, i: usize| {
                    let (row, column) = (lane / 4, lane % 4 * 2 + i);
                    if transposed { (rows[column], row * 2) } else { (rows[row], column * 2) }
                };
                let held = lanes.get(*register);
                if load {
                    let number = |lane: usize, i: usize| {
                        let (row, at) = of(lane, i);
                        row.load(at, 2)
                    };
                    lanes.set(*register, std::array::from_fn(|l| number(l, 0) | number(l, 1) << 16));
                } else {
                    for (lane, held) in held.iter().enumerate() {
                        for i in 0..2 {
                            let (row, at) = of(lane, i);
                            row.store(at, 2, held >> (16 * i));
                        }
                    }
                }
            }
            together(lanes);
            Ok(())
        }),
    )))
}

/// All lanes of a warp come to an instruction together: it separates what they did before from what they do after.
pub fn together(lanes: &mut Lanes<'_>) {
    lanes.warp.barriers += 1;
}
