//! Where.

use crate::{
    axes::{Axis, Flow, Sides},
    error::Result,
    op::{Inputs, Operator},
    value::{Dim, Fact, MAX_ELEMS, broadcast},
};
use std::ops::RangeInclusive;

/// The elements of a vector or scalar that broadcasts.
fn elems<'a>(x: &Inputs<'a>, slot: usize) -> Option<&'a [Dim]> {
    let fact = x.get(slot);
    fact.elems.as_deref().filter(|e| !e.is_empty() && fact.rank().is_some_and(|r| r <= 1))
}

/// `condition ? x : y`, elementwise, broadcast. Inputs: condition, x, y.
#[derive(Debug, Clone, PartialEq)]
pub struct Where;

impl Operator for Where {
    fn op_type(&self) -> &str {
        "Where"
    }
    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = broadcast(&broadcast(x.shape(0), x.shape(1))?, x.shape(2))?;
        let mut fact = Fact::new(x.get(1).dtype.or(x.get(2).dtype), shape);
        if let (Some(&[n]), Some(c), Some(p), Some(q)) =
            (fact.fixed().as_deref(), elems(x, 0), elems(x, 1), elems(x, 2))
            && n <= MAX_ELEMS
        {
            let pick = |i: usize| match (&c[i % c.len()], &p[i % p.len()], &q[i % q.len()]) {
                (_, p, q) if p.same(q) => p.clone(),
                (Dim::Known(0), _, q) => q.clone(),
                (Dim::Known(_), p, _) => p.clone(),
                _ => Dim::Unknown,
            };
            fact.elems = Some((0..n).map(pick).collect());
        }
        Ok(vec![fact])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        sides.broadcast(at, 0..3)
    }
    fn since(&self) -> i64 {
        9
    }
}
