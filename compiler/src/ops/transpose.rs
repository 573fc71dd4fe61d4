//! Transpose.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    value::{Dim, Fact},
};

/// Reorders axes: output axis i is input axis `perm[i]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Transpose {
    /// The permutation; empty reverses the axes.
    pub perm: Vec<i64>,
}

impl Transpose {
    /// Whether it surely leaves all axes that are longer than 1 in their order.
    pub fn keeps_order(&self, input: &Fact) -> bool {
        let Some(dims) = input.dims() else { return false };
        let Ok(perm) = self.resolve(dims.len()) else { return false };
        perm.into_iter().filter(|axis| dims[*axis] != Dim::Known(1)).is_sorted()
    }

    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        Ok(Self { perm: r.opt_ints("perm")?.unwrap_or_default() })
    }

    /// The permutation for an input of `rank`.
    ///
    /// # Errors
    /// Malformed when it is none.
    pub fn resolve(&self, rank: usize) -> Result<Vec<usize>> {
        if self.perm.is_empty() {
            return Ok((0..rank).rev().collect());
        }
        let mut seen = vec![false; rank];
        let ok = self.perm.len() == rank
            && self.perm.iter().all(|p| {
                usize::try_from(*p).ok().and_then(|p| seen.get_mut(p)).is_some_and(|s| !std::mem::replace(s, true))
            });
        if !ok {
            return Err(Error::malformed(format!("perm {:?} is not a permutation of {rank} axes", self.perm)));
        }
        Ok(self.perm.iter().map(|p| *p as usize).collect())
    }
}

impl Operator for Transpose {
    fn op_type(&self) -> &str {
        "Transpose"
    }
    fn attrs(&self) -> Attrs {
        if self.perm.is_empty() { vec![] } else { vec![("perm", self.perm.clone().into())] }
    }
    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match x.dims(0) {
            Some(d) => Some(self.resolve(d.len())?.into_iter().map(|p| d[p].clone()).collect()),
            None => None,
        };
        let mut fact = Fact::new(x.get(0).dtype, shape);
        if fact.rank().is_some_and(|r| r <= 1) {
            fact.elems = x.get(0).elems.clone();
        }
        Ok(vec![fact])
    }
    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let from = sides.inputs.get(0).rank().and_then(|rank| self.resolve(rank).ok()).unwrap_or_default();
        sides.moves(at, UNKNOWN, &from.into_iter().map(Some).collect::<Vec<_>>())
    }
    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn is_unchanged(&self, x: &Inputs, y: &Fact) -> bool {
        x.get(0).has_shape_of(y) && self.keeps_order(x.get(0))
    }
}
