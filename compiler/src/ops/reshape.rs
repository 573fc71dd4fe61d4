//! Reshape and Flatten.

use crate::{
    attr::{Attrs, Reader},
    error::{Error, Result},
    op::{Inputs, Operator, Quant},
    value::{Dim, Fact},
};
use std::ops::RangeInclusive;

/// Gives the elements of input 0 the shape in input 1: 0 copies an axis (unless
/// `allow_zero`), one -1 takes what is left.
#[derive(Debug, Clone, PartialEq)]
pub struct Reshape {
    /// Whether a 0 means an empty axis.
    pub allow_zero: bool,
}

impl Reshape {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { allow_zero: r.flag("allowzero", false)? })
    }

    /// The shape that `target` makes of `data`.
    ///
    /// # Errors
    /// Malformed when `target` has two -1, copies an axis that isn't there, or surely
    /// doesn't hold the elements.
    pub fn resolve(&self, data: Option<&[Dim]>, target: &[Dim]) -> Result<Vec<Dim>> {
        let mut out = Vec::with_capacity(target.len());
        let mut rest = None;
        for (i, t) in target.iter().enumerate() {
            out.push(match t {
                Dim::Known(0) if !self.allow_zero => match data {
                    Some(d) if i >= d.len() => {
                        return Err(Error::malformed(format!("shape copies axis {i} of an input of rank {}", d.len())));
                    }
                    Some(d) => d[i].clone(),
                    None => Dim::Unknown,
                },
                Dim::Known(-1) => {
                    if rest.replace(i).is_some() {
                        return Err(Error::malformed("shape has more than one -1"));
                    }
                    Dim::Unknown
                }
                Dim::Known(n) if *n < 0 => return Err(Error::malformed(format!("shape has {n}"))),
                d => d.clone(),
            });
        }
        let Some(data) = data else { return Ok(out) };
        // Equal symbols on both sides cancel; what is left must be numbers to conclude anything.
        let mut left: Vec<&Dim> = data.iter().collect();
        let mut right = vec![];
        for (_, d) in out.iter().enumerate().filter(|(i, _)| Some(*i) != rest) {
            match left.iter().position(|l| d.same(l) && d.known().is_none()) {
                Some(i) => {
                    left.swap_remove(i);
                }
                None => right.push(d),
            }
        }
        let product = |dims: &[&Dim]| dims.iter().try_fold(1i64, |n, d| n.checked_mul(d.known()?));
        if let Some(i) = rest {
            match (product(&left), product(&right)) {
                (Some(l), Some(r)) if r > 0 && l % r == 0 => out[i] = Dim::Known(l / r),
                (Some(l), Some(r)) if r > 0 => {
                    return Err(Error::malformed(format!("{l} elements do not divide by {r}")));
                }
                // One symbol left over a product of numbers that cancels: the symbol itself.
                (None, Some(r)) => {
                    let (syms, nums): (Vec<&Dim>, Vec<&Dim>) = left.iter().partition(|d| d.known().is_none());
                    if let ([s], Some(n)) = (&syms[..], product(&nums))
                        && n == r
                    {
                        out[i] = (*s).clone();
                    }
                }
                _ => {}
            }
        } else if let (Some(l), Some(r)) = (product(&left), product(&right))
            && l != r
        {
            return Err(Error::malformed(format!("{l} elements do not fit a shape of {r}")));
        }
        Ok(out)
    }
}

impl Operator for Reshape {
    fn op_type(&self) -> &str {
        "Reshape"
    }

    fn attrs(&self) -> Attrs {
        if self.allow_zero { vec![("allowzero", true.into())] } else { vec![] }
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match (&x.get(1).elems, x.get(1).fixed().as_deref()) {
            (Some(target), _) => Some(self.resolve(x.dims(0), target)?),
            (None, Some(&[rank])) if rank <= 64 => Some(vec![Dim::Unknown; rank]),
            _ => None,
        };
        let mut fact = Fact::new(x.get(0).dtype, shape);
        if fact.rank().is_some_and(|r| r <= 1) {
            fact.elems = x.get(0).elems.clone();
        }
        Ok(vec![fact])
    }

    fn since(&self) -> i64 {
        if self.allow_zero { 14 } else { 5 }
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }
}

/// Joins the axes before `axis`, and those from it on, into a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Flatten {
    /// Where the axes part; may count from the end, and may equal the rank.
    pub axis: i64,
}

impl Flatten {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { axis: r.int("axis", 1)? })
    }
}

impl Operator for Flatten {
    fn op_type(&self) -> &str {
        "Flatten"
    }

    fn attrs(&self) -> Attrs {
        vec![("axis", self.axis.into())]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else {
            return Ok(vec![Fact::new(dtype, Some(vec![Dim::Unknown; 2]))]);
        };
        let rank = data.len() as i64;
        let at = if self.axis < 0 { self.axis + rank } else { self.axis };
        if !(0..=rank).contains(&at) {
            return Err(Error::malformed(format!("axis {} is out of range for rank {rank}", self.axis)));
        }
        let join = |d: &[Dim]| match d {
            [one] => one.clone(),
            _ => d.iter().fold(Dim::Known(1), |a, b| a.zip(b, i64::checked_mul)),
        };
        let (a, b) = data.split_at(at as usize);
        Ok(vec![Fact::new(dtype, Some(vec![join(a), join(b)]))])
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }
}
