//! Tile.

use crate::{
    axes::{Axis, Flow, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::{Dim, Fact, MAX_ELEMS},
};
use std::ops::RangeInclusive;

/// Repeats input 0 along each axis as often as input 1 says.
#[derive(Debug, Clone, PartialEq)]
pub struct Tile;

impl Operator for Tile {
    fn op_type(&self) -> &str {
        "Tile"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        let Some(repeats) = &x.get(1).elems else {
            return Ok(vec![Fact::new(dtype, Some(vec![Dim::Unknown; data.len()]))]);
        };
        if repeats.len() != data.len() || repeats.iter().any(|r| r.known().is_some_and(|r| r < 0)) {
            return Err(Error::malformed(format!("repeats do not fit an input of rank {}", data.len())));
        }
        let mut fact = Fact::new(dtype, Some(data.iter().zip(repeats).map(|(d, r)| d.times(r)).collect()));
        if let ([Dim::Known(times)], Some(elems)) = (&repeats[..], &x.get(0).elems) {
            let times = usize::try_from(*times).unwrap_or(0);
            let small = elems.len().checked_mul(times).is_some_and(|n| n <= MAX_ELEMS);
            fact.elems = small.then(|| (0..elems.len() * times).map(|i| elems[i % elems.len()].clone()).collect());
        }
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let times = sides.inputs.get(1).elems.as_deref().unwrap_or_default();
        sides.passes(at, "it repeats these", |axis| times.get(axis) != Some(&Dim::Known(1)))
    }

    fn since(&self) -> i64 {
        6
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn inflates(&self) -> bool {
        true
    }
}
