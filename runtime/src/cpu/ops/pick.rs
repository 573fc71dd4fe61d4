//! Slice, Pad, Gather by a constant list, and Resize to the nearest pixel: every entry along an axis is one of the input's, or
//! the padding.

use crate::{
    burn::kernels::nearest_entries,
    cpu::{
        cost,
        lowering::{Form, Lowered, Lowering, Operand, ValueId, Want},
        plan::{Layout, Planner},
        scope::Scope,
        steps::{Element, Operands, View},
    },
};
use compress_compiler::{
    error::{Error, Result},
    op::Op,
    ops::{
        pad::{Pad, PadMode},
        resize::{Coordinates, Interpolation, Resize},
        slice::Slice,
    },
    value,
};
use compress_kernels::{self as kernels, Columns, PADDING};

/// The value `want`, where its entries are picked from operand 0, which is asked for as `x`.
pub(super) fn lowering<'g>(s: &Scope<'g>, want: Want, x: Want) -> Option<Lowering<'g>> {
    let g = s.graph;
    let id = want.port.node;
    let list = |slot: usize| match g.operand(id, slot) {
        None => Some(None),
        Some(p) => g.constant(p)?.as_i64().map(Some),
    };
    let kind = match g.op(id) {
        Op::Slice(_) => Kind::Slice { starts: list(1)??, ends: list(2)??, axes: list(3)?, steps: list(4)? },
        Op::Gather(op) if g.fact(g.operand(id, 1)?).rank() == Some(1) => {
            Kind::Gather { axis: value::axis(op.axis, s.rank(x.port)?).ok()?, indices: list(1)?? }
        }
        Op::Pad(op) if op.mode == PadMode::Constant => {
            let value = match g.operand(id, 2) {
                Some(v) => g.constant(v)?.as_f32()?.first().copied()?,
                None => 0.0,
            };
            let fill = match (want.form, s.codes(want.port)) {
                (Form::Float, _) => value,
                (Form::Codes, Some((_, affine))) => f32::from(affine.quantize(value)),
                (Form::Codes, None) => return None,
            };
            Kind::Pad { pads: list(1)??, axes: list(3)?, fill }
        }
        Op::Resize(op) if op.mode == Interpolation::Nearest && op.coordinates != Coordinates::CropAndResize => {
            let scales = match g.operand(id, 2) {
                Some(p) => Some(g.constant(p)?.as_f32()?.into_owned()).filter(|s| !s.is_empty()),
                None => None,
            };
            Kind::Resize { op: op.clone(), scales, sizes: list(3)? }
        }
        _ => return None,
    };
    Some(Lowering::of(vec![x], Pick(kind)))
}

enum Kind {
    Slice { starts: Vec<i64>, ends: Vec<i64>, axes: Option<Vec<i64>>, steps: Option<Vec<i64>> },
    Gather { axis: usize, indices: Vec<i64> },
    Pad { pads: Vec<i64>, axes: Option<Vec<i64>>, fill: f32 },
    Resize { op: Resize, scales: Option<Vec<f32>>, sizes: Option<Vec<i64>> },
}

/// An index along an axis of `size`, counted from the front.
///
/// # Errors
/// Malformed when there is no such entry.
pub(super) fn entry(index: i64, size: usize) -> Result<usize> {
    let at = if index < 0 { index + size as i64 } else { index };
    let at = usize::try_from(at).ok().filter(|at| *at < size);
    at.ok_or_else(|| Error::malformed(format!("index {index} of an axis of {size}")))
}

/// Which entry of the input each entry along an axis is; none is padding.
type Entries = Vec<Option<usize>>;

impl Kind {
    /// The entries along every axis of an input of shape `dims`.
    fn entries(&self, dims: &[usize]) -> Result<Vec<Entries>> {
        let mut all: Vec<Entries> = dims.iter().map(|n| (0..*n).map(Some).collect()).collect();
        match self {
            Kind::Slice { starts, ends, axes, steps } => {
                let sizes: Vec<i64> = dims.iter().map(|n| *n as i64).collect();
                for taken in Slice::resolve(&sizes, starts, ends, axes.as_deref(), steps.as_deref())? {
                    let at = |i: i64| usize::try_from(taken.start + i * taken.step).ok();
                    all[taken.axis] = (0..taken.count).map(at).collect();
                }
            }
            Kind::Gather { axis, indices } => {
                let found = indices.iter().map(|i| entry(*i, dims[*axis])).collect::<Result<Vec<_>>>()?;
                all[*axis] = found.into_iter().map(Some).collect();
            }
            Kind::Pad { pads, axes, .. } => {
                for (entries, (before, after)) in all.iter_mut().zip(Pad::resolve(dims.len(), pads, axes.as_deref())?) {
                    let n = entries.len() as i64;
                    let inside = |i: i64| usize::try_from(i).ok().filter(|i| (*i as i64) < n);
                    *entries = (-before..n + after).map(inside).collect();
                }
            }
            Kind::Resize { op, scales, sizes } => {
                let picked = nearest_entries(op, dims, scales.as_deref(), sizes.as_deref())?;
                all = picked.into_iter().map(|axis| axis.into_iter().map(Some).collect()).collect();
            }
        }
        Ok(all)
    }
}

struct Pick(Kind);

/// What [`kernels::pick`] takes: the rows, and the columns of each.
struct Picked {
    rows: Vec<u32>,
    columns: Columns,
}

/// The entries of the last axis as columns.
fn columns(entries: &Entries) -> Columns {
    let to = entries.iter().take_while(|e| e.is_none()).count();
    let first = entries.get(to).copied().flatten().unwrap_or(0);
    let width = entries[to..].iter().take_while(|e| e.is_some()).count();
    let follows = entries[to..to + width].iter().enumerate().all(|(i, e)| *e == Some(first + i));
    match follows && entries[to + width..].iter().all(Option::is_none) {
        true => Columns::Run { first, width, to },
        false => Columns::Each(entries.iter().map(|e| e.map_or(PADDING, |e| e as u32)).collect()),
    }
}

/// What is picked from a value of sizes `dims` that lies in `layout`.
fn picked(entries: &[Entries], dims: &[usize], layout: Layout) -> Option<Picked> {
    let order = layout.storage(&(0..dims.len()).collect::<Vec<_>>());
    let (last, front) = order.split_last()?;
    let mut rows = vec![0u32];
    for axis in front {
        let n = u32::try_from(dims[*axis]).ok()?;
        let mut next = Vec::with_capacity(rows.len() * entries[*axis].len());
        for at in rows {
            next.extend(entries[*axis].iter().map(|e| match e {
                Some(e) if at != PADDING => at * n + *e as u32,
                _ => PADDING,
            }));
        }
        rows = next;
    }
    Some(Picked { rows, columns: columns(&entries[*last]) })
}

impl Lowered for Pick {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        // What is picked along the first axis must be all of it.
        let whole =
            |dims: &[usize]| self.0.entries(dims).is_ok_and(|all| all[0].iter().copied().eq((0..dims[0]).map(Some)));
        inputs.iter().all(|x| !x.is_constant && whole(x.dims))
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let dims = p.dims(inputs[0]).to_vec();
        let entries = self.0.entries(&dims)?;
        if u32::try_from(dims.iter().product::<usize>()).is_err() {
            return Err(Error::unsupported(format!("picking from {dims:?}")));
        }
        if !entries.iter().map(Vec::len).eq(p.dims(output).iter().copied()) {
            return Err(Error::bug(format!("{dims:?} becomes {:?}", p.dims(output))));
        }
        // Rather where it lies; what has channels is most often read by pixels next.
        let has = p.layout(inputs[0]);
        let choices = if dims.len() == 4 { [Layout::Pixels, Layout::Plain] } else { [has, Layout::Plain] };
        let all = choices.map(|layout| picked(&entries, &dims, layout).map(|of| (layout, of)));
        // Columns one by one are slower.
        let is_run = |of: &(Layout, Picked)| matches!(of.1.columns, Columns::Run { .. });
        let [a, b] = all;
        let best = if a.as_ref().is_some_and(is_run) || !b.as_ref().is_some_and(is_run) { a.or(b) } else { b };
        let (layout, of) = best.ok_or_else(|| Error::unsupported("picking from a value without axes"))?;
        let (x, y) = (p.read(inputs[0], layout), p.output(output, layout));
        let fill = if let Kind::Pad { fill, .. } = self.0 { fill } else { 0.0 };
        match p.form(output) {
            Form::Float => step::<f32>(p, output, x, y, of, fill),
            Form::Codes => step::<u8>(p, output, x, y, of, fill as u8),
        }
        Ok(())
    }
}

/// A value that is broadcast to a shape.
pub(super) struct Expand;

impl Lowered for Expand {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant && x.dims.len() == output.len())
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (own, to) = (p.dims(inputs[0]), p.dims(output));
        let dims = [&vec![1; to.len() - own.len()][..], own].concat();
        if u32::try_from(dims.iter().product::<usize>()).is_err() {
            return Err(Error::unsupported(format!("picking from {dims:?}")));
        }
        let entries: Vec<Entries> =
            dims.iter().zip(to).map(|(n, to)| (0..*to).map(|i| Some(i % n)).collect()).collect();
        let of = picked(&entries, &dims, Layout::Plain);
        let of = of.ok_or_else(|| Error::unsupported("a value without axes"))?;
        let (x, y) = (p.read(inputs[0], Layout::Plain), p.output(output, Layout::Plain));
        match p.form(output) {
            Form::Float => step::<f32>(p, output, x, y, of, 0.0),
            Form::Codes => step::<u8>(p, output, x, y, of, 0),
        }
        Ok(())
    }
}

fn step<T: Element>(p: &mut Planner, made: ValueId, x: View, y: View, of: Picked, fill: T) {
    let bytes = match of.columns {
        Columns::Run { .. } => 2 * size_of::<T>(),
        // One at a time takes about a nanosecond for two.
        Columns::Each(_) => 16,
    };
    p.step("pick", made, &[x], y, 0, cost::bytes(bytes * y.len()), move |o: &mut Operands| {
        kernels::pick::<T>(o.read(0), &of.rows, &of.columns, fill, o.out(), o.parts);
    });
}
