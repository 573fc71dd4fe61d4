//! Einsum and Det.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, Flow, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator},
    value::{Dim, Fact, broadcast},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// The product of all inputs, summed over the labels that the output lacks.
#[derive(Debug, Clone, PartialEq)]
pub struct Einsum {
    /// A label for each axis of each input, and perhaps of the output.
    pub equation: String,
}

/// An axis of an equation. What an ellipsis stands for is numbered from the last axis on, so that
/// ellipses of different ranks broadcast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Label {
    Letter(u8),
    Ellipsis(usize),
}

/// A term of an equation: its labels, and where among them the ellipsis is.
#[derive(Default)]
struct Term {
    letters: Vec<u8>,
    ellipsis: Option<usize>,
}

impl Term {
    fn parse(text: &str) -> Result<Self> {
        let mut term = Self::default();
        let mut rest = text.as_bytes();
        while let Some((first, tail)) = rest.split_first() {
            rest = match first {
                b' ' => tail,
                c if c.is_ascii_alphabetic() => {
                    term.letters.push(*c);
                    tail
                }
                _ if rest.starts_with(b"...") && term.ellipsis.is_none() => {
                    term.ellipsis = Some(term.letters.len());
                    &rest[3..]
                }
                _ => return Err(Error::malformed(format!("the term `{text}` of an equation"))),
            };
        }
        Ok(term)
    }

    /// The labels of the axes, of which an ellipsis stands for `wide`.
    fn labels(&self, wide: usize) -> Vec<Label> {
        let mut out: Vec<Label> = self.letters.iter().map(|c| Label::Letter(*c)).collect();
        if let Some(at) = self.ellipsis {
            out.splice(at..at, (0..wide).rev().map(Label::Ellipsis));
        }
        out
    }
}

impl Einsum {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        let this = Self { equation: r.string("equation", "")? };
        this.terms()?;
        Ok(this)
    }

    fn terms(&self) -> Result<(Vec<Term>, Option<Term>)> {
        let (inputs, output) = match self.equation.split_once("->") {
            Some((inputs, output)) => (inputs, Some(Term::parse(output)?)),
            None => (&self.equation[..], None),
        };
        Ok((inputs.split(',').map(Term::parse).collect::<Result<_>>()?, output))
    }

    /// The labels of the axes of each input, and of the output, for inputs of these ranks.
    ///
    /// # Errors
    /// Malformed when the equation doesn't fit them.
    pub fn labels(&self, ranks: &[usize]) -> Result<(Vec<Vec<Label>>, Vec<Label>)> {
        let (terms, output) = self.terms()?;
        let misfit = || Error::malformed(format!("`{}` does not fit inputs of ranks {ranks:?}", self.equation));
        if terms.len() != ranks.len() {
            return Err(misfit());
        }
        let mut inputs = vec![];
        let mut widest = 0;
        for (term, rank) in terms.iter().zip(ranks) {
            let wide = rank.checked_sub(term.letters.len()).ok_or_else(misfit)?;
            if wide > 0 && term.ellipsis.is_none() {
                return Err(misfit());
            }
            widest = widest.max(wide);
            inputs.push(term.labels(wide));
        }
        let output = match output {
            Some(term) => term.labels(widest),
            None => {
                let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
                terms.iter().flat_map(|t| &t.letters).for_each(|c| *counts.entry(*c).or_default() += 1);
                let once = counts.into_iter().filter(|(_, n)| *n == 1).map(|(c, _)| c).collect();
                Term { letters: once, ellipsis: Some(0) }.labels(widest)
            }
        };
        let known: BTreeSet<&Label> = inputs.iter().flatten().collect();
        let unique: BTreeSet<&Label> = output.iter().collect();
        if unique.len() != output.len() || !unique.is_subset(&known) {
            return Err(misfit());
        }
        Ok((inputs, output))
    }
}

impl Operator for Einsum {
    fn op_type(&self) -> &str {
        "Einsum"
    }

    fn attrs(&self) -> Attrs {
        vec![("equation", self.equation.clone().into())]
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }

    fn parameters(&self) -> &'static [usize] {
        &[0, 1]
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.present().find_map(|f| f.dtype);
        let dims: Option<Vec<&[Dim]>> = x.present().map(Fact::dims).collect();
        let Some(dims) = dims else { return Ok(vec![Fact::new(dtype, None)]) };
        let (inputs, output) = self.labels(&dims.iter().map(|d| d.len()).collect::<Vec<_>>())?;
        let mut sizes: BTreeMap<Label, Option<Vec<Dim>>> = BTreeMap::new();
        for (label, dim) in inputs.iter().flatten().zip(dims.iter().copied().flatten()) {
            let size = sizes.entry(*label).or_insert_with(|| Some(vec![Dim::Known(1)]));
            *size = broadcast(size, &Some(vec![dim.clone()]))?;
        }
        let size = |l: &Label| sizes.get(l).cloned().flatten().and_then(|mut s| s.pop()).unwrap_or(Dim::Unknown);
        Ok(vec![Fact::new(dtype, Some(output.iter().map(size).collect()))])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let ranks: Option<Vec<usize>> = sides.inputs.present().map(Fact::rank).collect();
        let Some(Ok((inputs, output))) = ranks.map(|ranks| self.labels(&ranks)) else { return Flow::closed(UNKNOWN) };
        sides.alike(at, "it sums over these", |axis| {
            let label = match axis {
                Axis::In(slot, i) => *inputs.get(slot)?.get(i)?,
                Axis::Out(_, i) => *output.get(i)?,
            };
            let operands = inputs.iter().filter(|labels| labels.contains(&label)).count();
            (output.contains(&label) || operands > 1).then_some(label)
        })
    }

    fn since(&self) -> i64 {
        12
    }
}

/// The determinants of square matrices.
#[derive(Debug, Clone, PartialEq)]
pub struct Det;

impl Operator for Det {
    fn op_type(&self) -> &str {
        "Det"
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let shape = match x.dims(0) {
            Some([batch @ .., m, n]) => {
                if let (Some(m), Some(n)) = (m.known(), n.known())
                    && m != n
                {
                    return Err(Error::malformed(format!("a matrix of {m} by {n} has no determinant")));
                }
                Some(batch.to_vec())
            }
            Some(_) => return Err(Error::malformed("the input of Det is not a matrix")),
            None => None,
        };
        Ok(vec![Fact::new(x.get(0).dtype, shape)])
    }

    fn since(&self) -> i64 {
        11
    }
}
