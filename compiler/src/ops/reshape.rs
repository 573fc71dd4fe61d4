//! Reshape and Flatten.

use crate::{
    attr::{Attrs, Reader},
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
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

    /// The shape operand as numbers: sizes that aren't known copy an axis, or one takes what is left.
    fn target(&self, sides: &Sides) -> Option<Vec<i64>> {
        let (target, data) = (sides.inputs.get(1).elems.as_ref()?, sides.inputs.dims(0)?);
        let mut rest = target.contains(&Dim::Known(-1)) || self.allow_zero;
        let number = |(i, entry): (usize, &Dim)| match entry {
            Dim::Known(n) => Some(*n),
            _ if !self.allow_zero && data.get(i).is_some_and(|d| d.same(entry)) => Some(0),
            _ => (!std::mem::replace(&mut rest, true)).then_some(-1),
        };
        target.iter().enumerate().map(number).collect()
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

/// As many of the first axes of two shapes, at least one of each, as hold equally many elements.
fn equal(from: &[Dim], to: &[Dim]) -> Option<[usize; 2]> {
    let (first, second) = (from.first()?, to.first()?);
    if first.same(second) {
        return Some([1, 1]);
    }
    let (mut p, mut q, mut taken) = (first.known()?, second.known()?, [1, 1]);
    while p != q {
        let (product, i, dims) = if p < q { (&mut p, 0, from) } else { (&mut q, 1, to) };
        *product = product.checked_mul(dims.get(taken[i])?.known()?)?;
        taken[i] += 1;
    }
    Some(taken)
}

/// An axis of a shape, longer than one index, and its size.
type Long<'a> = (Axis, &'a Dim);

/// The axes of two shapes of the same elements in runs that hold equally many, as far as sizes are known from the first
/// axis on and from the last one back.
fn runs<'a>(mut from: &[Long<'a>], mut to: &[Long<'a>]) -> Vec<[Vec<Long<'a>>; 2]> {
    let dims = |axes: &[Long], back: bool| -> Vec<Dim> {
        let dims = axes.iter().map(|(_, d)| (*d).clone());
        if back { dims.rev().collect() } else { dims.collect() }
    };
    let mut out = vec![];
    while let Some([a, b]) = equal(&dims(from, false), &dims(to, false)) {
        out.push([from[..a].to_vec(), to[..b].to_vec()]);
        (from, to) = (&from[a..], &to[b..]);
    }
    while let Some([a, b]) = equal(&dims(from, true), &dims(to, true)) {
        let (a, b) = (from.len() - a, to.len() - b);
        out.push([from[a..].to_vec(), to[b..].to_vec()]);
        (from, to) = (&from[..a], &to[..b]);
    }
    out
}

/// An operator that gives the elements of its operand another shape.
fn rearranged(at: Axis, sides: &Sides) -> Flow {
    let long = |axis: fn(usize) -> Axis| -> Option<Vec<Long>> {
        let axes = sides.dims(axis(0))?.iter().enumerate().map(|(i, d)| (axis(i), d));
        Some(axes.filter(|(_, d)| **d != Dim::Known(1)).collect())
    };
    let (Some(from), Some(to)) = (long(|i| Axis::In(0, i)), long(|i| Axis::Out(0, i))) else {
        return Flow::closed(UNKNOWN);
    };
    let runs = runs(&from, &to);
    let run = runs.iter().find(|run| run.iter().flatten().any(|(axis, _)| *axis == at));
    let (merged, factors) = match run {
        Some([one, many]) | Some([many, one]) if one.len() == 1 => (one[0].0, many),
        Some(_) => return Flow::closed("it cuts these anew"),
        None if sides.size(at) == Some(1) => return Flow::closed("there is one of these"),
        None => return Flow::closed(UNKNOWN),
    };
    // The factor's index is that of the merged axis over the size of what lies behind it, modulo its own size.
    let mut ties = vec![];
    let mut behind = 1usize;
    for (factor, _) in factors.iter().rev() {
        let Some(size) = sides.size(*factor) else { return Flow::closed(UNKNOWN) };
        let of_merged = move |i: usize| i / behind.max(1) % size.max(1);
        let tie = sides.tie([(merged, &of_merged as &dyn Fn(usize) -> usize), (*factor, &|i| i)]);
        let Some(tie) = tie else { return Flow::closed(UNKNOWN) };
        if tie.iter().any(|(axis, _)| *axis == at) {
            ties.insert(0, tie);
        }
        behind = behind.saturating_mul(size);
    }
    if ties.len() == 1 { Flow::Tied(ties.remove(0)) } else { Flow::Either(ties) }
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

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        match self.target(sides) {
            Some(_) => rearranged(at, sides),
            None => Flow::closed("the shape that it makes is not known"),
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let Some(mut target) = self.target(sides) else { return Ok(ChannelSlice::default()) };
        for (i, entry) in target.iter_mut().enumerate() {
            let size = kept.size(Axis::Out(0, i), sides);
            let stays = match *entry {
                -1 => true,
                0 if !self.allow_zero => kept.size(Axis::In(0, i), sides) == size,
                _ => false,
            };
            if let (false, Some(n)) = (stays, size) {
                *entry = n as i64;
            }
        }
        Ok(ChannelSlice::operands([sides.rewritten(1, &target)]))
    }

    fn since(&self) -> i64 {
        if self.allow_zero { 14 } else { 5 }
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn reshapes(&self) -> bool {
        true
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

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        rearranged(at, sides)
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn reshapes(&self) -> bool {
        true
    }
}
