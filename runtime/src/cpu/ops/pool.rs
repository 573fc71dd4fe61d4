//! Pools over windows and over whole images.

use crate::cpu::{
    cost,
    device::DeviceOp,
    lowering::{Form, Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::{Affine, Scope},
    window::window,
};
use compress_compiler::{
    error::Result,
    node::{NodeId, Port},
    op::Op,
    ops::{
        pool::{Pool, PoolKind},
        reduce::ReduceKind,
    },
    tensor::DType,
};
use compress_kernels::{self as kernels, Divisor, Rescale, Window};

/// What is pooled, and how.
enum Kind<'g> {
    Max(&'g Pool),
    Average(&'g Pool),
    /// The average of each image.
    Whole,
    /// The same as a ReduceMean.
    Mean,
    /// The average over all axes but the first and the last.
    Middle,
}

fn kind<'g>(s: &Scope<'g>, id: NodeId) -> Option<(Port, Kind<'g>)> {
    let g = s.graph;
    if !s.has(id) {
        return None;
    }
    let x = g.operand(id, 0)?;
    let rank = s.rank(x)?;
    let kind = match g.op(id) {
        Op::Pool(op) if op.kind == PoolKind::Max && !op.indices && matches!(rank, 3 | 4) => Kind::Max(op),
        Op::Pool(op) if op.kind == PoolKind::Average && matches!(rank, 3 | 4) => Kind::Average(op),
        Op::GlobalPool(op) if op.kind == PoolKind::Average && rank > 2 => Kind::Whole,
        Op::Reduce(op) if op.kind == ReduceKind::Mean && rank > 2 => {
            let axes = g.constant(g.operand(id, 1)?)?.as_i64()?;
            let mut axes = op.axes(Some(&axes), rank).ok()?;
            axes.sort_unstable();
            if axes.iter().copied().eq(2..rank) {
                Kind::Mean
            } else if axes.iter().copied().eq(1..rank - 1) {
                Kind::Middle
            } else {
                return None;
            }
        }
        _ => return None,
    };
    Some((x, kind))
}

/// The value `want`, where it is a pool: of floats, or the maximum of codes.
pub(super) fn lowering<'g>(s: &Scope<'g>, want: Want) -> Option<Lowering<'g>> {
    let (x, kind) = kind(s, want.port.node)?;
    let codes = || s.codes(x).map(|c| c.0).or(s.has_codes(x).then_some(Want::codes(x)));
    match (want.form, kind) {
        (Form::Codes, Kind::Max(op)) => {
            let op = op.clone();
            Some(Lowering::of(vec![codes()?], Max(op.clone())).on_device(move || Ok(DeviceOp::MaxPool(op))))
        }
        (Form::Codes, _) => None,
        (Form::Float, _) if s.graph.fact(x).dtype != Some(DType::F32) => None,
        (Form::Float, Kind::Max(op)) => Some(Lowering::of(vec![Want::float(x)], Max(op.clone()))),
        (Form::Float, Kind::Average(op)) => Some(Lowering::of(vec![Want::float(x)], Average::of(op.clone(), None))),
        (Form::Float, Kind::Whole | Kind::Mean) => Some(Lowering::of(vec![Want::float(x)], Whole::FLOATS)),
        (Form::Float, Kind::Middle) => {
            Some(Lowering::of(vec![Want::float(x)], Whole { layout: Layout::Plain, ..Whole::FLOATS }))
        }
    }
}

/// The codes under `y` of the value `port`, where it is an average of codes.
pub(super) fn requantized<'g>(s: &Scope<'g>, port: Port, y: Affine) -> Option<Lowering<'g>> {
    let id = s.inner(port)?;
    let (x, kind) = kind(s, id)?;
    let keeps = !matches!(s.graph.op(id), Op::Reduce(op) if !op.keepdims);
    let (codes, of) = s.codes(x)?;
    let rescale = Rescale { x_scale: of.scale, x_zero: of.zero, y_scale: y.scale, y_zero: y.zero };
    match kind {
        Kind::Max(_) | Kind::Middle => None,
        Kind::Average(op) => {
            let pool = op.clone();
            let lowering = Lowering::of(vec![codes], Average::of(op.clone(), Some(rescale)));
            Some(lowering.on_device(move || Ok(DeviceOp::Average(pool, rescale))))
        }
        Kind::Whole => Some(
            Lowering::of(vec![codes], Whole { codes: Codes::Whole(rescale), ..Whole::FLOATS })
                .on_device(move || Ok(DeviceOp::GlobalAverage(rescale))),
        ),
        Kind::Mean => Some(
            Lowering::of(vec![codes], Whole { codes: Codes::Mean(rescale), ..Whole::FLOATS })
                .on_device(move || Ok(DeviceOp::Mean { rescale, keeps })),
        ),
    }
}

/// The sizes of a window with a first axis of 1 where there is but one.
fn taps(kernel: &[i64]) -> [usize; 2] {
    match *kernel {
        [h, w] => [h as usize, w as usize],
        _ => [1, kernel.first().map_or(1, |w| *w as usize)],
    }
}

struct Max(Pool);

impl Lowered for Max {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let window = window(&self.0.window, taps(&self.0.kernel), p.dims(inputs[0]), p.dims(output));
        let (x, y) = (p.read(inputs[0], Layout::Pixels), p.output(output, Layout::Pixels));
        let (isa, taps) = (p.isa(), y.len() * window.taps());
        match p.form(output) {
            Form::Float => p.step("max_pool", output, &[x], y, 0, cost::bytes(4 * taps), move |o| {
                kernels::max_pool::<f32>(isa, o.read(0), &window, o.out(), o.parts);
            }),
            Form::Codes => p.step("max_pool_i8", output, &[x], y, 0, cost::bytes(taps), move |o| {
                kernels::max_pool::<u8>(isa, o.read(0), &window, o.out(), o.parts);
            }),
        }
        Ok(())
    }
}

/// The average of floats; or of codes, with what they stand for before and after.
struct Average {
    pool: Pool,
    codes: Option<Rescale>,
}

impl Average {
    fn of(pool: Pool, codes: Option<Rescale>) -> Self {
        Self { pool, codes }
    }

    /// How many taps count at each position along an axis: those inside of the image, or also
    /// those in the padding, but never those beyond it (the overhang of ceil_mode). Where none does, the sum of nothing is the average.
    fn counts(pool: &Pool, axis: usize, size: usize, positions: usize) -> Vec<usize> {
        let (w, taps) = (&pool.window, pool.kernel[axis] as usize);
        let (begin, end) = w.padding(axis, size as i64, taps as i64);
        let (begin, end) = (begin as usize, end as usize);
        let counted = if pool.count_include_pad { 0..begin + size + end } else { begin..begin + size };
        let (stride, dilation) = (w.stride(axis) as usize, w.dilation(axis) as usize);
        let inside = |at: usize| (0..taps).filter(|t| counted.contains(&(at * stride + t * dilation))).count().max(1);
        (0..positions).map(inside).collect()
    }
}

/// The window of an average of `x`, of shape `y`, and how many taps count at each of its rows and columns; whether it is the whole
/// image.
pub(crate) fn average_window(pool: &Pool, x: &[usize], y: &[usize]) -> (Window, [Vec<usize>; 2], bool) {
    let window = window(&pool.window, taps(&pool.kernel), x, y);
    let mut counts: Vec<Vec<usize>> = (2..x.len()).map(|i| Average::counts(pool, i - 2, x[i], y[i])).collect();
    let columns = counts.pop().unwrap_or_default();
    let counts = [counts.pop().unwrap_or_else(|| vec![1]), columns];
    let whole = window.kernel == window.input && window.output == [1, 1] && window.pad == [0, 0];
    let whole = whole && counts == [[window.kernel[0]], [window.kernel[1]]];
    (window, counts, whole)
}

impl Lowered for Average {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (dims, made) = (p.dims(inputs[0]).to_vec(), p.dims(output).to_vec());
        let (window, counts, whole) = average_window(&self.pool, &dims, &made);
        let (x, y) = (p.read(inputs[0], Layout::Pixels), p.output(output, Layout::Pixels));
        let (isa, work) = (p.isa(), cost::bytes(4 * y.len() * window.taps()));
        if let (Some(rescale), true) = (self.codes, whole) {
            // As ONNX Runtime has it, whose two pools round differently.
            p.step("global_average_pool_i8", output, &[x], y, 0, work, move |o| {
                kernels::global_average8(isa, o.read(0), window.batch, rescale, o.out(), o.parts);
            });
            return Ok(());
        }
        match self.codes {
            None => p.step("average_pool", output, &[x], y, 0, work, move |o| {
                let counts = [&counts[0][..], &counts[1][..]];
                let (x, parts) = (o.read(0), o.parts);
                kernels::average_pool(isa, x, &window, Divisor::Counts(counts), o.out(), parts);
            }),
            Some(rescale) => p.step("average_pool_i8", output, &[x], y, 0, work, move |o| {
                let counts = [&counts[0][..], &counts[1][..]];
                let (x, parts) = (o.read(0), o.parts);
                kernels::average_pool8(isa, x, &window, Divisor::Counts(counts), rescale, o.out(), parts);
            }),
        }
        Ok(())
    }
}

/// The average of each image: of all pixels of a channel.
struct Whole {
    codes: Codes,
    /// How images lie: with channels behind their axes, or as they are, where these come last.
    layout: Layout,
}

/// What averages are of; codes with what they stand for before and after.
#[derive(Clone, Copy)]
enum Codes {
    None,
    /// Averaged as ONNX Runtime does between integers.
    Whole(Rescale),
    /// As it does where floats are averaged.
    Mean(Rescale),
}

impl Whole {
    const FLOATS: Self = Self { codes: Codes::None, layout: Layout::Pixels };
}

impl Lowered for Whole {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let images = p.dims(inputs[0])[0];
        let x = p.read(inputs[0], self.layout);
        // One row an image: without the axes of the image, or where these are 1, both layouts are this.
        let made = match p.dims(output).len() {
            2 => p.output(output, Layout::Plain),
            _ => p.output(output, self.layout),
        };
        debug_assert_eq!((made.rows, made.width), (images, x.width));
        let isa = p.isa();
        match self.codes {
            Codes::None => p.step("global_average_pool", output, &[x], made, 0, cost::bytes(4 * x.len()), move |o| {
                kernels::global_average(isa, o.read(0), images, o.out(), o.parts);
            }),
            Codes::Whole(rescale) => {
                p.step("global_average_pool_i8", output, &[x], made, 0, cost::bytes(x.len()), move |o| {
                    kernels::global_average8(isa, o.read(0), images, rescale, o.out(), o.parts);
                });
            }
            Codes::Mean(rescale) => {
                p.step("reduce_mean_i8", output, &[x], made, 0, cost::bytes(4 * x.len()), move |o| {
                    kernels::global_mean8(isa, o.read(0), images, rescale, o.out(), o.parts);
                })
            }
        }
        Ok(())
    }
}
