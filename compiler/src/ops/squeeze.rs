//! Squeeze and Unsqueeze.

use crate::{
    attr::Reader,
    axes::{Axis, ChannelSlice, Flow, Kept, Sides, UNKNOWN},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    tensor::Tensor,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// Drops the axes in input 1, which have size 1; all such axes when it is absent.
#[derive(Debug, Clone, PartialEq)]
pub struct Squeeze;

/// Inserts axes of size 1 where input 1 says, counted in the output.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsqueeze;

/// The first opset in which axes may count from the end.
const SINCE: i64 = 11;

fn lowered_axes(opset: i64) -> Option<(usize, &'static str)> {
    (opset < 13).then_some((1, "axes"))
}

fn lift_axes(r: &mut Reader) -> Result<()> {
    if r.opset < 13
        && let Some(axes) = r.opt_ints("axes")?
    {
        r.lift(1, Tensor::i64s(&axes));
    }
    Ok(())
}

impl Squeeze {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        lift_axes(r)?;
        Ok(Self)
    }

    /// The axes that are dropped, if that is known.
    fn dropped(x: &Inputs) -> Result<Option<Vec<usize>>> {
        let Some(data) = x.dims(0) else { return Ok(None) };
        match (x.opt(1), x.ints(1)) {
            (Some(_), Some(axes)) => axes.iter().map(|a| value::axis(*a, data.len())).collect::<Result<_>>().map(Some),
            (None, _) if data.iter().all(|d| d.known().is_some()) => {
                Ok(Some((0..data.len()).filter(|i| data[*i] == Dim::Known(1)).collect()))
            }
            _ => Ok(None),
        }
    }
}

impl Unsqueeze {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        lift_axes(r)?;
        Ok(Self)
    }

    /// The output's axes that are new, ascending, for an input of `rank`.
    ///
    /// # Errors
    /// Malformed when an axis is out of range or named twice.
    pub fn axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        let mut out = axes.iter().map(|a| value::axis(*a, rank + axes.len())).collect::<Result<Vec<_>>>()?;
        out.sort_unstable();
        if out.windows(2).any(|w| w[0] == w[1]) {
            return Err(Error::malformed(format!("axes {axes:?} repeat one")));
        }
        Ok(out)
    }
}

impl Operator for Squeeze {
    fn op_type(&self) -> &str {
        "Squeeze"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (Some(data), Some(drop)) = (x.dims(0), Self::dropped(x)?) else {
            return Ok(vec![Fact::new(dtype, None)]);
        };
        if let Some(i) = drop.iter().find(|i| data[**i].known().is_some_and(|n| n != 1)) {
            return Err(Error::malformed(format!("axis {i} has size {}, not 1", data[*i])));
        }
        let shape = data.iter().enumerate().filter(|(i, _)| !drop.contains(i)).map(|(_, d)| d.clone());
        let mut fact = Fact::new(dtype, Some(shape.collect()));
        fact.elems = x.get(0).elems.clone();
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        match Self::dropped(&sides.inputs) {
            Ok(Some(gone)) => sides.reduces(at, "it drops this axis", &gone, false),
            _ => Flow::closed(UNKNOWN),
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        // Without a list of axes it would drop one more, of which a single index is left.
        let axes = match Self::dropped(&sides.inputs)? {
            Some(axes) if sides.inputs.opt(1).is_none() => axes,
            _ => return Ok(ChannelSlice::default()),
        };
        let rank = sides.inputs.get(0).rank().unwrap_or(0);
        let axes: Vec<i64> = axes.into_iter().map(|a| a as i64).collect();
        let more = (0..rank).any(|i| kept.count(Axis::In(0, i)) == Some(1));
        Ok(ChannelSlice::operands([more.then(|| (1, Tensor::i64s(&axes)))]))
    }

    fn since(&self) -> i64 {
        SINCE
    }

    fn lower(&self, opset: i64) -> Option<(usize, &'static str)> {
        lowered_axes(opset)
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

impl Operator for Unsqueeze {
    fn op_type(&self) -> &str {
        "Unsqueeze"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        2..=2
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let (Some(data), Some(axes)) = (x.dims(0), x.ints(1)) else { return Ok(vec![Fact::new(dtype, None)]) };
        let mut shape = data.to_vec();
        for a in Unsqueeze::axes(&axes, data.len())? {
            shape.insert(a, Dim::Known(1));
        }
        let mut fact = Fact::new(dtype, Some(shape));
        if fact.rank() == Some(1) {
            fact.elems = x.get(0).elems.clone();
        }
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let Some(rank) = sides.inputs.get(0).rank() else { return Flow::closed(UNKNOWN) };
        let Some(Ok(new)) = sides.inputs.ints(1).map(|axes| Self::axes(&axes, rank)) else {
            return Flow::closed(UNKNOWN);
        };
        let mut from: Vec<Option<usize>> = (0..rank).map(Some).collect();
        new.into_iter().for_each(|axis| from.insert(axis, None));
        sides.moves(at, "it adds this axis", &from)
    }

    fn since(&self) -> i64 {
        SINCE
    }

    fn lower(&self, opset: i64) -> Option<(usize, &'static str)> {
        lowered_axes(opset)
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
