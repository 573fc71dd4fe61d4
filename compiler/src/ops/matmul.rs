//! MatMul: a matrix product, batched and broadcast as numpy does.

use super::conv::size;
use crate::{
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, WeightAxes, Width},
    value::{Dim, Fact, Shape, broadcast},
};
use std::ops::RangeInclusive;

/// `Y = A * B` over the last two axes; the axes before broadcast.
#[derive(Debug, Clone, PartialEq)]
pub struct MatMul;

impl Operator for MatMul {
    fn op_type(&self) -> &str {
        "MatMul"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn parameters(&self) -> &'static [usize] {
        &[0, 1]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::new(x.get(0).dtype, output(x.dims(0), x.dims(1))?)])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let vector = [0, 1].map(|slot| usize::from(sides.inputs.get(slot).rank() == Some(1)));
        sides.alike(at, "", |axis| {
            let (Axis::In(_, i) | Axis::Out(_, i)) = axis;
            let back = sides.dims(axis)?.len().checked_sub(i + 1)?;
            // As if a vector were a matrix, whose one row or column the result lacks.
            let (names, back) = match axis {
                Axis::In(0, _) => ([Role::Inner, Role::Row], back),
                Axis::In(..) => ([Role::Column, Role::Inner], back + vector[1]),
                Axis::Out(..) if back + vector[1] == 0 => ([Role::Column, Role::Row], 0),
                Axis::Out(..) => ([Role::Column, Role::Row], back + vector[1] + vector[0]),
            };
            Some(names.get(back).copied().unwrap_or(Role::Batch(back)))
        })
    }

    fn quant(&self) -> Quant {
        Quant::Weighted
    }

    fn weight(&self) -> Option<WeightAxes> {
        Some(WeightAxes { slot: 1, output: 1, input: 0, rank: Some(2), bias: None })
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        size(x.dims(0).and_then(|a| a.last()).map(std::slice::from_ref)) * size(outputs[0].dims())
    }

    fn width(&self) -> Width {
        Width::Product
    }

    fn neutral_element(&self) -> Option<f32> {
        Some(0.0)
    }
}

/// What an axis of an operand or of the result is to a product.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    /// It is summed over.
    Inner,
    /// The first matrix's rows.
    Row,
    /// The second matrix's columns.
    Column,
    /// It broadcasts: the axis with so many behind it.
    Batch(usize),
}

/// The shape of a product, given those of its operands.
pub(super) fn output(a: Option<&[Dim]>, b: Option<&[Dim]>) -> Result<Shape> {
    let (Some(a), Some(b)) = (a, b) else { return Ok(None) };
    let (Some(k), Some(_)) = (a.last(), b.last()) else {
        return Err(Error::malformed("a scalar operand"));
    };
    let k2 = &b[b.len().saturating_sub(2)];
    if let (Some(p), Some(q)) = (k.known(), k2.known())
        && p != q
    {
        return Err(Error::malformed(format!("inner dimensions {p} and {q} differ")));
    }
    let batch = |d: &[_]| Some(d[..d.len().saturating_sub(2)].to_vec());
    Ok(broadcast(&batch(a), &batch(b))?.map(|mut s| {
        if a.len() > 1 {
            s.push(a[a.len() - 2].clone());
        }
        if b.len() > 1 {
            s.push(b[b.len() - 1].clone());
        }
        s
    }))
}
