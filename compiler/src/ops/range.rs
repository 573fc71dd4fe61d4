//! Range.

use crate::{
    attr::Reader,
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact, MAX_ELEMS},
};
use std::ops::RangeInclusive;

/// `start, start + delta, ...` up to before `limit`. Inputs: three scalars of one type.
#[derive(Debug, Clone, PartialEq)]
pub struct Range;

impl Range {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        match r.int("stash_type", 1)? {
            1 => Ok(Self),
            other => Err(Error::unsupported(format!("Range computed in element type {other}"))),
        }
    }

    /// How many integers there are. In 128 bits nothing overflows.
    ///
    /// # Errors
    /// Malformed when the step is 0.
    pub fn count(start: i64, limit: i64, delta: i64) -> Result<i128> {
        if delta == 0 {
            return Err(Error::malformed("a range with step 0"));
        }
        let (span, step) = (i128::from(limit) - i128::from(start), i128::from(delta));
        Ok(if (span > 0) == (step > 0) { (span.abs() + step.abs() - 1) / step.abs() } else { 0 })
    }
}

impl Operator for Range {
    fn op_type(&self) -> &str {
        "Range"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=3
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = (0..3).find_map(|i| x.get(i).dtype);
        let elem = |slot: usize| match x.get(slot).elems.as_deref() {
            Some([d]) => d.clone(),
            _ => Dim::Unknown,
        };
        let mut fact = Fact::new(dtype, Some(vec![Dim::Unknown]));
        match (elem(0), elem(1), elem(2)) {
            (Dim::Known(s), Dim::Known(l), Dim::Known(d)) => {
                let count = Self::count(s, l, d)?;
                if let Ok(n) = i64::try_from(count) {
                    fact.shape = Some(vec![Dim::Known(n)]);
                }
                if count <= MAX_ELEMS as i128 {
                    let at =
                        |i: i64| i.checked_mul(d).and_then(|i: i64| i.checked_add(s)).map_or(Dim::Unknown, Dim::Known);
                    fact.elems = Some((0..count as i64).map(at).collect());
                }
            }
            (Dim::Known(0), size @ Dim::Sym(_), Dim::Known(1)) => fact.shape = Some(vec![size]),
            _ => {}
        }
        Ok(vec![fact])
    }

    fn inflates(&self) -> bool {
        true
    }

    fn since(&self) -> i64 {
        11
    }
}
