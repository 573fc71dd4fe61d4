//! Slice.

use crate::{
    attr::Reader,
    axes::{Axis, ChannelSlice, Flow, Kept, Sides},
    error::{Error, Result},
    op::{Inputs, Operator, Quant, Width},
    tensor::Tensor,
    value::{self, Dim, Fact},
};
use std::ops::RangeInclusive;

/// Takes every `step`th element from `start` to before `end` along some axes.
/// Inputs: data, starts, ends, axes, steps; the last two optional.
#[derive(Debug, Clone, PartialEq)]
pub struct Slice;

/// One axis of a slice, resolved: which indices are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The axis, counted from the front.
    pub axis: usize,
    /// The first index.
    pub start: i64,
    /// From one index to the next; may be negative.
    pub step: i64,
    /// How many.
    pub count: i64,
}

impl Slice {
    pub(super) fn read(r: &mut Reader) -> Result<Self> {
        if r.opset < 10 {
            for (slot, name) in [(1, "starts"), (2, "ends"), (3, "axes")] {
                if let Some(v) = r.opt_ints(name)? {
                    r.lift(slot, Tensor::i64s(&v));
                }
            }
        }
        Ok(Self)
    }

    /// The indices that a slice takes along one axis of `size`.
    ///
    /// # Errors
    /// Malformed when the step is 0.
    pub fn take(axis: usize, size: i64, start: i64, end: i64, step: i64) -> Result<Taken> {
        if step == 0 {
            return Err(Error::malformed("a slice with step 0"));
        }
        let wrap = |v: i64| if v < 0 { v.saturating_add(size) } else { v };
        let (start, end) = if step > 0 {
            (wrap(start).clamp(0, size), wrap(end).clamp(0, size))
        } else {
            (wrap(start).clamp(-1, size - 1), wrap(end).clamp(-1, size - 1))
        };
        let span = if step > 0 { end - start } else { start - end };
        let step_size = step.unsigned_abs().min(i64::MAX as u64) as i64;
        let count = if span <= 0 { 0 } else { (span - 1) / step_size + 1 };
        Ok(Taken { axis, start, step, count })
    }

    /// The axes that may be cut, one a bound, if it is known which.
    fn cut(x: &Inputs, rank: usize) -> Result<Option<Vec<usize>>> {
        let bounds = || x.dims(1)?.first()?.known().filter(|n| *n <= rank as i64);
        let axes: Option<Vec<i64>> = match x.opt(3) {
            Some(axes) => axes.known_elems(),
            None => bounds().map(|n| (0..n).collect()),
        };
        axes.map(|axes| axes.into_iter().map(|a| value::axis(a, rank)).collect()).transpose()
    }

    /// Which indices of `axis` are taken, and at which place the lists say so; `Some(None)` where they don't, so that all
    /// are taken, and `None` where that isn't known.
    fn along(sides: &Sides, axis: usize) -> Option<Option<(usize, Taken)>> {
        let (x, rank) = (sides.inputs, sides.inputs.get(0).rank()?);
        let axes = Self::cut(&x, rank).ok()??;
        let places: Vec<usize> = (0..axes.len()).filter(|i| axes[*i] == axis).collect();
        let entry = |slot, i: usize| x.ints(slot)?.get(i).copied();
        match places[..] {
            [] => Some(None),
            [i] => {
                let step = if x.opt(4).is_some() { entry(4, i)? } else { 1 };
                let taken = Self::take(axis, sides.size(Axis::In(0, axis))? as i64, entry(1, i)?, entry(2, i)?, step);
                Some(Some((i, taken.ok()?)))
            }
            _ => None,
        }
    }

    /// All axes of a slice, from the elements of its inputs.
    ///
    /// # Errors
    /// Malformed when the lists differ in length or name an axis wrongly.
    pub fn resolve(
        shape: &[i64],
        starts: &[i64],
        ends: &[i64],
        axes: Option<&[i64]>,
        steps: Option<&[i64]>,
    ) -> Result<Vec<Taken>> {
        let n = starts.len();
        let differ = ends.len() != n || axes.is_some_and(|a| a.len() != n) || steps.is_some_and(|s| s.len() != n);
        if differ {
            return Err(Error::malformed("starts, ends, axes and steps differ in length"));
        }
        (0..n)
            .map(|i| {
                let axis = value::axis(axes.map_or(i as i64, |a| a[i]), shape.len())?;
                Self::take(axis, shape[axis], starts[i], ends[i], steps.map_or(1, |s| s[i]))
            })
            .collect()
    }
}

impl Operator for Slice {
    fn op_type(&self) -> &str {
        "Slice"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        3..=5
    }

    fn infer(&self, x: &Inputs) -> Result<Vec<Fact>> {
        let dtype = x.get(0).dtype;
        let Some(data) = x.dims(0) else { return Ok(vec![Fact::new(dtype, None)]) };
        let list = |slot| match x.opt(slot) {
            None => Some(None),
            Some(f) => f.known_elems().map(Some),
        };
        let (Some(starts), Some(ends), Some(axes), Some(steps)) = (x.ints(1), x.ints(2), list(3), list(4)) else {
            let by_one = x.opt(4).is_none_or(|steps| steps.known_elems().is_some_and(|s| s.iter().all(|n| *n == 1)));
            // The first so many.
            let first = |place: usize| {
                let bound = |slot: usize| x.get(slot).elems.as_ref()?.get(place);
                bound(2).filter(|_| by_one && bound(1) == Some(&Dim::Known(0)))
            };
            let cut = Self::cut(x, data.len())?;
            let of = |axis: usize, place: usize| match (first(place), &data[axis]) {
                (Some(end @ Dim::Sym(_)), Dim::Known(n)) => end.at_most(*n),
                (Some(end @ Dim::Sym(_)), own) if end == own => end.clone(),
                _ => Dim::Unknown,
            };
            let mut shape = data.to_vec();
            match cut {
                Some(axes) => axes.iter().enumerate().for_each(|(place, axis)| shape[*axis] = of(*axis, place)),
                None => shape.fill(Dim::Unknown),
            }
            return Ok(vec![Fact::new(dtype, Some(shape))]);
        };
        // An unknown axis is taken as huge to find out which indices don't depend on its size.
        let sizes: Vec<i64> = data.iter().map(|d| d.known().unwrap_or(i64::MAX / 4)).collect();
        let taken = Self::resolve(&sizes, &starts, &ends, axes.as_deref(), steps.as_deref())?;
        let mut fact = Fact::new(dtype, Some(data.to_vec()));
        if let Some(shape) = &mut fact.shape {
            for (i, t) in taken.iter().enumerate() {
                let whole = starts[i] == 0 && ends[i] >= i32::MAX as i64 && t.step == 1;
                shape[t.axis] = match data[t.axis] {
                    Dim::Known(_) => Dim::Known(t.count),
                    _ if whole => data[t.axis].clone(),
                    _ => Dim::Unknown,
                };
            }
        }
        if let (Some(elems), [t]) = (&x.get(0).elems, &taken[..])
            && data.len() == 1
        {
            fact.elems = (0..t.count).map(|i| elems.get((t.start + i * t.step) as usize).cloned()).collect();
        }
        Ok(vec![fact])
    }

    fn axes_map(&self, at: Axis, sides: &Sides) -> Flow {
        let (Axis::In(_, axis) | Axis::Out(_, axis)) = at;
        match Self::along(sides, axis) {
            _ if !matches!(at, Axis::In(0, _) | Axis::Out(..)) => Flow::closed("an operand that is not data"),
            None => Flow::closed("it takes some of these by bounds that are not known"),
            Some(None) => sides.passes(at, "", |_| false),
            Some(Some((_, t))) if t.step != 1 => Flow::closed("it takes every n-th of these"),
            Some(Some((_, t))) => {
                let ends = [(Axis::In(0, axis), 0), (Axis::Out(0, axis), t.start as usize)];
                sides.labelled(at, ends.map(|(axis, start)| (axis, move |i| start + i)))
            }
        }
    }

    fn channel_slice(&self, kept: &Kept, sides: &Sides) -> Result<ChannelSlice> {
        let (Some(mut starts), Some(mut ends)) = (sides.inputs.ints(1), sides.inputs.ints(2)) else {
            return Ok(ChannelSlice::default());
        };
        for axis in 0..sides.inputs.get(0).rank().unwrap_or(0) {
            let (Some(Some((i, t))), Some(left)) = (Self::along(sides, axis), kept.get(Axis::In(0, axis))) else {
                continue;
            };
            let before = |end: i64| left.iter().filter(|index| (**index as i64) < end).count() as i64;
            let (start, end) = (before(t.start), before(t.start + t.count));
            let now = Self::take(axis, left.len() as i64, starts[i], ends[i], 1)?;
            // Bounds that still mean the same stay, as "to the end" does.
            if (now.start, now.count) != (start, end - start) {
                (starts[i], ends[i]) = (start, end);
            }
        }
        Ok(ChannelSlice::operands([sides.rewritten(1, &starts), sides.rewritten(2, &ends)]))
    }

    fn since(&self) -> i64 {
        10
    }

    fn quant(&self) -> Quant {
        Quant::Same
    }

    fn width(&self) -> Width {
        Width::Moving
    }

    fn is_unchanged(&self, x: &Inputs, y: &Fact) -> bool {
        let all = |slot: usize, test: &dyn Fn(i64) -> bool| x.ints(slot).is_some_and(|v| v.into_iter().all(test));
        let steps = |test: &dyn Fn(i64) -> bool| x.opt(4).is_none() || all(4, test);
        if x.get(0).has_shape_of(y) {
            // Nothing is left out, so only a step backwards could change the order.
            return steps(&|n| n > 0);
        }
        let whole = all(1, &|n| n == 0) && all(2, &|n| n >= i32::MAX.into()) && steps(&|n| n == 1);
        whole && x.dims(0).is_some()
    }
}
