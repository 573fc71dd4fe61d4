//! MatMul: a matrix product, batched and broadcast as numpy does.

use super::conv::size;
use crate::{
    error::{Error, Result},
    op::{Inputs, Operator, Quant, WeightAxes},
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

    fn quant(&self) -> Quant {
        Quant::Weighted
    }

    fn weight(&self) -> Option<WeightAxes> {
        Some(WeightAxes { slot: 1, output: 1, bias: None })
    }

    fn macs(&self, x: &Inputs, outputs: &[&Fact]) -> u64 {
        size(x.dims(0).and_then(|a| a.last()).map(std::slice::from_ref)) * size(outputs[0].dims())
    }
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
