//! Operators that move elements: they work on floats and on codes alike.

use super::{pick, quant::Lookup};
use crate::cpu::{
    cost,
    device::DeviceOp,
    lowering::{Form, Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::{Affine, Scope},
    steps::{Element, Operands, View},
};
use compress_compiler::{error::Result, node::Port, op::Op, ops::slice::Slice, tensor::DType, value};
use compress_kernels as kernels;

/// The value `want`, where it is made by moving elements.
pub(super) fn lowering<'g>(s: &Scope<'g>, want: Want) -> Option<Lowering<'g>> {
    let g = s.graph;
    let id = want.port.node;
    if !s.has(id) {
        return None;
    }
    let operand = |slot: usize| asked(s, g.operand(id, slot)?, want.form);
    let list = |slot: usize| g.operand(id, slot).map(|p| g.constant(p).and_then(|t| t.as_i64()));
    let rank = s.rank(g.operand(id, 0)?)?;
    s.rank(want.port)?;
    match g.op(id) {
        Op::Identity(_) => Some(Lowering::of(vec![operand(0)?], Same).on_device(|| Ok(DeviceOp::Same))),
        Op::Cast(op) if op.to == DType::F32 && g.fact(g.operand(id, 0)?).dtype == Some(DType::F32) => {
            Some(Lowering::of(vec![operand(0)?], Same))
        }
        Op::Expand(_) if g.fact(g.operand(id, 1)?).elems.is_some() => {
            Some(Lowering::of(vec![operand(0)?], pick::Expand))
        }
        Op::Dropout(op) if want.port.slot == 0 && !op.trains => {
            Some(Lowering::of(vec![operand(0)?], Same).on_device(|| Ok(DeviceOp::Same)))
        }
        Op::Reshape(_) | Op::Flatten(_) | Op::Squeeze(_) | Op::Unsqueeze(_) => {
            let lowering = Lowering::of(vec![operand(0)?], Reshape);
            let (op, known) =
                (g.op(id).clone(), g.operands(id).iter().skip(1).flatten().all(|p| g.constant(*p).is_some()));
            let facts = g.operands(id).into_iter().skip(1).map(|p| p.map(|p| g.fact(p).clone())).collect();
            Some(if known { lowering.on_device(move || Ok(DeviceOp::Reshape { op, facts })) } else { lowering })
        }
        Op::Transpose(op) if rank <= MOST_AXES => {
            let order = op.resolve(rank).ok()?;
            let lowering = Lowering::of(vec![operand(0)?], Transpose(order.clone()));
            Some(lowering.on_device(move || Ok(DeviceOp::Transpose(order))))
        }
        Op::Concat(op) => {
            let operands: Vec<Want> = (0..g.operands(id).len()).map(operand).collect::<Option<_>>()?;
            let tables = operands.iter().map(|_| None).collect();
            Some(concat(operands, value::axis(op.axis, rank).ok()?, tables))
        }
        Op::Slice(_) => slice(s, want, rank)
            .and_then(|take| Some(Lowering::of(vec![operand(0)?], take)))
            .or_else(|| pick::lowering(s, want, operand(0)?)),
        Op::Gather(op) if g.fact(g.operand(id, 1)?).rank() == Some(0) => {
            let [index] = list(1)??[..] else { return None };
            Some(Lowering::of(vec![operand(0)?], Entry { axis: value::axis(op.axis, rank).ok()?, index }))
        }
        Op::Pad(_) | Op::Resize(_) | Op::Gather(_) => pick::lowering(s, want, operand(0)?),
        Op::Split(op) => {
            let sizes = list(1).map_or(Some(None), |s| s.map(Some))?;
            let part =
                Take::Part { split: op.clone(), axis: value::axis(op.axis, rank).ok()?, slot: want.port.slot, sizes };
            Some(Lowering::of(vec![operand(0)?], part))
        }
        _ => None,
    }
}

/// A slice of successive entries along one axis.
fn slice(s: &Scope, want: Want, rank: usize) -> Option<Take> {
    let g = s.graph;
    let list = |slot: usize| g.constant(g.operand(want.port.node, slot)?)?.as_i64();
    let (starts, ends) = (list(1)?, list(2));
    let axis = match g.operand(want.port.node, 3) {
        None => 0,
        Some(_) => value::axis(*list(3)?.first()?, rank).ok()?,
    };
    let by_one = g.operand(want.port.node, 4).is_none() || list(4)? == [1];
    let [start] = starts[..] else { return None };
    match ends {
        Some(ends) => (by_one && ends.len() == 1).then(|| Take::Slice { axis, start, end: ends[0] }),
        // Where it ends follows from shapes: no plan could be made of what data say.
        None => {
            let follows = g.fact(g.operand(want.port.node, 2)?).elems.is_some();
            usize::try_from(start).ok().filter(|_| by_one && follows).map(|start| Take::From { axis, start })
        }
    }
}

/// The operand `port` in a form: as the codes behind it, or as it is.
fn asked(s: &Scope, port: Port, form: Form) -> Option<Want> {
    match (form, s.graph.fact(port).dtype?) {
        (Form::Float, DType::F32) => Some(Want::float(port)),
        (Form::Codes, DType::F32) => s.codes(port).map(|c| c.0),
        (Form::Codes, DType::U8 | DType::I8) => Some(Want::codes(port)),
        (Form::Codes, DType::Bool) if !s.on_device => Some(Want::codes(port)),
        _ => None,
    }
}

/// The codes under `y` of a Concat of values that have codes.
pub(super) fn requantized_concat<'g>(s: &Scope<'g>, port: Port, y: Affine) -> Option<Lowering<'g>> {
    let g = s.graph;
    let id = s.inner(port)?;
    let Op::Concat(op) = g.op(id) else { return None };
    let axis = value::axis(op.axis, s.rank(port)?).ok()?;
    let parts: Vec<(Want, Affine)> = g.operands(id).into_iter().map(|p| s.codes(p?)).collect::<Option<_>>()?;
    let tables = parts.iter().map(|(_, from)| Lookup::between(*from, y)).collect();
    Some(concat(parts.into_iter().map(|p| p.0).collect(), axis, tables))
}

fn concat<'g>(operands: Vec<Want>, axis: usize, tables: Vec<Option<Lookup>>) -> Lowering<'g> {
    let on_device = tables.iter().map(|t| t.as_ref().map(Lookup::table)).collect();
    let lowering = Lowering::of(operands, Concat { axis, tables });
    lowering.on_device(move || Ok(DeviceOp::Concat { axis, tables: on_device }))
}

/// The value itself.
pub(super) struct Same;

impl Lowered for Same {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let layout = p.layout(inputs[0]);
        let view = p.read(inputs[0], layout);
        p.alias(output, view, layout);
        Ok(())
    }
}

struct Reshape;

impl Lowered for Reshape {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let x = p.dense(inputs[0]);
        let (rows, width) = Layout::Plain.rows(p.dims(output));
        p.alias(output, View { rows, width, stride: width, ..x }, Layout::Plain);
        Ok(())
    }
}

/// Calls `f` of the elements of `T`, by the form in which a value is held.
macro_rules! by_form {
    ($p:expr, $id:expr, $f:ident ( $($arg:expr),* )) => {
        match $p.form($id) {
            Form::Float => $f::<f32>($($arg),*),
            Form::Codes => $f::<u8>($($arg),*),
        }
    };
}

/// The most axes that can be permuted.
const MOST_AXES: usize = 8;

struct Transpose(Vec<usize>);

impl Lowered for Transpose {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        self.0.first() == Some(&0) && inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let rank = self.0.len();
        let layout = p.layout(inputs[0]);
        // Axes in the order in which they lie.
        let lie: Vec<usize> = layout.storage(&(0..rank).collect::<Vec<_>>());
        let view = p.read(inputs[0], layout);
        // Either end may already lie as the other wants it. Where an axis of one entry lies makes no difference.
        let sizes = p.dims(inputs[0]).to_vec();
        let long = |axes: &[usize]| axes.iter().copied().filter(|axis| sizes[*axis] != 1).collect::<Vec<_>>();
        for to in [Layout::Plain, Layout::Pixels] {
            let (rows, width) = to.rows(p.dims(output));
            if long(&to.storage(&self.0)) == long(&lie)
                && let Some(view) = view.reshaped(rows, width)
            {
                p.alias(output, view, to);
                return Ok(());
            }
        }
        let dims = layout.storage(&sizes);
        let perm = self.0.iter().map(|axis| lie.iter().position(|l| l == axis).unwrap_or(*axis)).collect();
        let view = p.gathered(inputs[0], view);
        let y = p.fresh(output, Layout::Plain);
        by_form!(p, output, permute(p, output, view, y, dims, perm));
        Ok(())
    }
}

fn permute<T: Element + kernels::Element>(
    p: &mut Planner,
    id: ValueId,
    x: View,
    y: View,
    dims: Vec<usize>,
    perm: Vec<usize>,
) {
    let rank = perm.len();
    let front = rank.saturating_sub(2);
    let (isa, work) = (p.isa(), cost::bytes(2 * x.len() * size_of::<T>()));
    if rank >= 2 && perm[..front].iter().copied().eq(0..front) {
        // Only the last two axes trade places.
        let (batch, rows, columns) = (dims[..front].iter().product(), dims[front], dims[front + 1]);
        return p.step("transpose", id, &[x], y, 0, work, move |o| {
            let parts = o.parts;
            let mut y = o.out::<T>();
            let y = kernels::RowsMut::dense(y.data(), batch * columns, rows);
            kernels::transpose::<T>(isa, o.slice(0), batch, rows, columns, y, parts);
        });
    }
    p.step("transpose", id, &[x], y, 0, work, move |o| {
        let (x, parts) = (o.slice::<T>(0), o.parts);
        kernels::permute(x, &dims, &perm, o.out::<T>().data(), parts);
    });
}

fn copy<T: Element>(p: &mut Planner, id: ValueId, x: View, y: View) {
    p.step("copy", id, &[x], y, 0, 0, |o: &mut Operands| kernels::copy::<T>(o.read(0), o.out()));
}

/// Values one behind the other along an axis; codes may be translated on the way.
struct Concat {
    axis: usize,
    tables: Vec<Option<Lookup>>,
}

impl Lowered for Concat {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        self.axis > 0 && inputs.iter().all(|x| !x.is_constant)
    }

    fn joins_along(&self) -> Option<usize> {
        self.tables.iter().all(Option::is_none).then_some(self.axis)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let dims = p.dims(output).to_vec();
        let any_pixels = inputs.iter().any(|id| p.layout(*id) == Layout::Pixels);
        let layout = match p.placed(output) {
            Some(layout) => layout,
            None if dims.len() > 2 && any_pixels => Layout::Pixels,
            None => Layout::Plain,
        };
        let at = layout.place_of(self.axis, dims.len());
        let all = layout.storage(&dims);
        let last = at + 1 == all.len();
        let whole = match p.placed(output) {
            Some(_) => p.read(output, layout),
            None if last => p.output(output, layout),
            None => p.fresh(output, layout),
        };
        let behind: usize = all[at + 1..].iter().product();
        let mut start = 0;
        for (id, table) in inputs.iter().zip(&self.tables) {
            let own = layout.storage(p.dims(*id));
            if own.contains(&0) {
                continue;
            }
            let view = p.read(*id, layout);
            let (rows, width) = (own[..at].iter().product(), own[at..].iter().product());
            // Rows of the part within rows of the whole.
            let stride = if last { whole.stride } else { all[at] * behind };
            let to = View { place: whole.place, offset: whole.offset + start * behind, rows, width, stride };
            // What was written there already is there.
            if (view.place, view.offset) != (to.place, to.offset) {
                let from = match view.reshaped(rows, width) {
                    Some(from) => from,
                    None => View { rows, width, stride: width, ..p.gathered(*id, view) },
                };
                match table {
                    Some(table) => table.step(p, output, from, to),
                    None => by_form!(p, output, copy(p, output, from, to)),
                }
            }
            start += own[at];
        }
        Ok(())
    }
}

/// One entry along an axis, which the result does not have.
struct Entry {
    axis: usize,
    /// May count from the end.
    index: i64,
}

impl Lowered for Entry {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        self.axis > 0 && inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let x = p.dense(inputs[0]);
        let dims = p.dims(inputs[0]).to_vec();
        let at = pick::entry(self.index, dims[self.axis])?;
        let (outer, behind): (usize, usize) =
            (dims[..self.axis].iter().product(), dims[self.axis + 1..].iter().product());
        let offset = x.offset + at * behind;
        let from = View { offset, rows: outer, width: behind, stride: dims[self.axis] * behind, ..x };
        if outer == 1 {
            let (rows, width) = Layout::Plain.rows(p.dims(output));
            p.alias(output, View { rows, width, stride: width, ..from }, Layout::Plain);
            return Ok(());
        }
        let y = p.fresh(output, Layout::Plain);
        let to = View { rows: outer, width: behind, stride: behind, ..y };
        by_form!(p, output, copy(p, output, from, to));
        Ok(())
    }
}

/// One range along one axis.
enum Take {
    Slice {
        axis: usize,
        start: i64,
        end: i64,
    },
    /// As many entries as the result has, from the front.
    From {
        axis: usize,
        start: usize,
    },
    Part {
        split: compress_compiler::ops::split::Split,
        axis: usize,
        slot: usize,
        sizes: Option<Vec<i64>>,
    },
}

impl Take {
    fn axis(&self) -> usize {
        match self {
            Self::Slice { axis, .. } | Self::From { axis, .. } | Self::Part { axis, .. } => *axis,
        }
    }

    /// The axis, the first entry, and how many.
    fn range(&self, dims: &[usize], made: &[usize]) -> Result<(usize, usize, usize)> {
        Ok(match self {
            Self::From { axis, start } => (*axis, (*start).min(dims[*axis].saturating_sub(made[*axis])), made[*axis]),
            Self::Slice { axis, start, end } => {
                let taken = Slice::take(*axis, dims[*axis] as i64, *start, *end, 1)?;
                (*axis, taken.start as usize, taken.count as usize)
            }
            Self::Part { split, axis, slot, sizes } => {
                let sizes = split.sizes(sizes.as_deref(), dims[*axis] as i64)?;
                (*axis, sizes[..*slot].iter().sum::<i64>() as usize, sizes[*slot] as usize)
            }
        })
    }
}

impl Lowered for Take {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        self.axis() > 0 && inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let layout = p.layout(inputs[0]);
        let view = p.read(inputs[0], layout);
        let dims = p.dims(inputs[0]).to_vec();
        let (axis, first, count) = self.range(&dims, p.dims(output))?;
        let at = layout.place_of(axis, dims.len());
        let all = layout.storage(&dims);
        let behind: usize = all[at + 1..].iter().product();
        let (rows, width) = layout.rows(p.dims(output));
        if at + 1 == all.len() {
            // Columns of every row.
            p.alias(output, View { offset: view.offset + first, rows, width, ..view }, layout);
            return Ok(());
        }
        let view = p.gathered(inputs[0], view);
        let outer: usize = all[..at].iter().product();
        let offset = view.offset + first * behind;
        let taken = View { offset, rows: outer, width: count * behind, stride: all[at] * behind, ..view };
        if outer == 1 {
            p.alias(output, View { rows, width, stride: width, ..taken }, layout);
            return Ok(());
        }
        let y = p.fresh(output, layout);
        let to = View { rows: outer, width: count * behind, stride: count * behind, ..y };
        by_form!(p, output, copy(p, output, taken, to));
        Ok(())
    }
}
