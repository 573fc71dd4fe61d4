//! Functions of single elements, and of pairs with broadcasting.

use crate::cpu::{
    cost,
    device::DeviceOp,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::{Element, Operands, View},
};
use compress_compiler::{
    error::Result,
    forms::gelu::Gelu,
    node::{NodeId, Port},
    op::Op,
    ops::{activation::Activation, binary::Binary, unary::Unary},
    tensor::DType,
};
use compress_kernels::{self as kernels, Add8, BinaryOp, Isa, Mul8, Rows, RowsMut, UnaryOp};

/// The float value `port`, where it is a function of floats.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let operands: Vec<Port> = g.operands(port.node).into_iter().flatten().collect();
    let is_float = |p: &Port| g.fact(*p).dtype == Some(DType::F32) && s.rank(*p).is_some();
    if !s.has(port.node) || !operands.first().is_some_and(is_float) {
        return None;
    }
    if let Some((f, x)) = applied(s, port) {
        return Some(Lowering::of(vec![Want::float(x)], Function(f)).on_device(move || Ok(DeviceOp::Function(f))));
    }
    if let Some(f) = function(s, port.node) {
        let lowering = Lowering::of(vec![Want::float(operands[0])], Function(f));
        return Some(lowering.on_device(move || Ok(DeviceOp::Function(f))));
    }
    if let Some(Gelu { x, tanh, .. }) = Gelu::of(g, port.node) {
        let f = if tanh { UnaryOp::GeluTanh } else { UnaryOp::Gelu };
        return Some(Lowering::of(vec![Want::float(x)], Function(f)).on_device(move || Ok(DeviceOp::Function(f))));
    }
    let Op::Binary(op) = g.op(port.node) else { return None };
    let op = match op {
        Binary::Add => BinaryOp::Add,
        Binary::Sub => BinaryOp::Sub,
        Binary::Mul => BinaryOp::Mul,
        Binary::Div => BinaryOp::Div,
        Binary::Min => BinaryOp::Min,
        Binary::Max => BinaryOp::Max,
        Binary::PRelu => BinaryOp::PRelu,
        Binary::Pow => BinaryOp::Pow,
        _ => return None,
    };
    let fits = operands.len() == 2 && operands.iter().all(is_float);
    fits.then(|| Lowering::of(operands.iter().map(|p| Want::float(*p)).collect(), Pair::Float(op)))
}

/// The function of single elements that a node is.
pub(super) fn function(s: &Scope, id: NodeId) -> Option<UnaryOp> {
    Some(match s.graph.op(id) {
        Op::Clip(_) => {
            let (low, high) = s.bounds(id)?;
            UnaryOp::Clip(low, high)
        }
        Op::Unary(op) => match op {
            Unary::Relu => UnaryOp::Relu,
            Unary::Sigmoid => UnaryOp::Sigmoid,
            Unary::Tanh => UnaryOp::Tanh,
            Unary::Exp => UnaryOp::Exp,
            Unary::Log => UnaryOp::Log,
            Unary::Sqrt => UnaryOp::Sqrt,
            Unary::Erf => UnaryOp::Erf,
            Unary::Neg => UnaryOp::Neg,
            Unary::Abs => UnaryOp::Abs,
            Unary::Ceil => UnaryOp::Ceil,
            Unary::Floor => UnaryOp::Floor,
            Unary::Round => UnaryOp::Round,
            Unary::Reciprocal => UnaryOp::Reciprocal,
            Unary::HardSwish => UnaryOp::HardSwish,
            Unary::Sin => UnaryOp::Sin,
            Unary::Cos => UnaryOp::Cos,
            _ => return None,
        },
        Op::Binary(Binary::Pow) => {
            let (x, power) = (s.graph.operand(id, 0)?, s.graph.operand(id, 1)?);
            match s.scalar(power).filter(|_| s.rank(power) <= s.rank(x))? {
                2.0 => UnaryOp::Square,
                3.0 => UnaryOp::Cube,
                _ => return None,
            }
        }
        Op::Activation(op) => match *op {
            Activation::LeakyRelu { alpha } => UnaryOp::LeakyRelu(alpha),
            Activation::HardSigmoid { alpha, beta } => UnaryOp::HardSigmoid(alpha, beta),
            Activation::Gelu { tanh: false } => UnaryOp::Gelu,
            Activation::Gelu { tanh: true } => UnaryOp::GeluTanh,
            Activation::Swish { alpha: 1.0 } => UnaryOp::Silu,
            _ => return None,
        },
        _ => return None,
    })
}

/// The function that `port` is of another value, where nobody else needs that, nor what comes between: a single node other
/// than bounds, `x * sigmoid(x)` and `x * hard_sigmoid(x)` in two, or GELU as arithmetic.
pub(super) fn applied(s: &Scope, port: Port) -> Option<(UnaryOp, Port)> {
    let g = s.graph;
    if !s.has(port.node) {
        return None;
    }
    let operand = |slot| g.operand(port.node, slot);
    if s.bounds(port.node).is_none()
        && let Some(f) = function(s, port.node)
    {
        let x = operand(0)?;
        return s.inner(x).map(|_| (f, x));
    }
    if let Some(gelu) = gelu(s, port) {
        let is_inner = |p: Port| s.has(p.node) && !s.is_pinned(p);
        return is_inner(gelu.x).then_some((if gelu.tanh { UnaryOp::GeluTanh } else { UnaryOp::Gelu }, gelu.x));
    }
    let Op::Binary(Binary::Mul) = g.op(port.node) else { return None };
    let (a, b) = (operand(0)?, operand(1)?);
    [(a, b), (b, a)].into_iter().find_map(|(x, gate)| {
        let f = match function(s, s.inner(gate)?)? {
            UnaryOp::Sigmoid => UnaryOp::Silu,
            UnaryOp::HardSigmoid(alpha, 0.5) if alpha == 1.0 / 6.0 => UnaryOp::HardSwish,
            _ => return None,
        };
        let gates = g.operand(gate.node, 0) == Some(x) && g.fact(x).dtype == Some(DType::F32);
        (gates && s.is_read_twice_here(x)).then_some((f, x))
    })
}

/// The GELU that `port` is as arithmetic whose values, and `x`, nobody else needs.
fn gelu(s: &Scope, port: Port) -> Option<Gelu> {
    let g = s.graph;
    let gelu = Gelu::of(g, port.node)?;
    let nodes = gelu.nodes(g, port.node);
    let read_inside = |p: Port| g.uses(p).iter().all(|u| nodes.contains(&u.node));
    let hidden = |id: NodeId| id == port.node || s.has(id) && !s.is_pinned(id.into()) && read_inside(id.into());
    (read_inside(gelu.x) && nodes.iter().all(|id| hidden(*id))).then_some(gelu)
}

struct Function(UnaryOp);

impl Lowered for Function {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let layout = p.layout(inputs[0]);
        let (x, y) = (p.read(inputs[0], layout), p.output(output, layout));
        let (isa, f) = (p.isa(), self.0);
        p.step("elementwise", output, &[x], y, 0, cost::math(y.len()), move |o| {
            kernels::unary(isa, f, o.read(0), o.out(), o.parts);
        });
        Ok(())
    }
}

/// A function of two values.
#[derive(Clone, Copy)]
pub(super) enum Pair {
    Float(BinaryOp),
    Add8(Add8),
    Mul8(Mul8),
}

/// How an operand lies in the result: elements from one block of rows to the next, for each axis
/// of blocks, and the rows and columns that it has within a block.
struct Spread {
    steps: Vec<usize>,
    rows: usize,
    width: usize,
}

/// Whether what is made of operands that are broadcast has samples of their samples.
pub(super) fn is_by_sample(inputs: &[Operand], output: &[usize]) -> bool {
    inputs.iter().all(|x| match x.is_constant {
        true => x.dims.len() < output.len() || x.dims[0] == 1,
        false => x.dims.len() == output.len(),
    })
}

impl Lowered for Pair {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        is_by_sample(inputs, output)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let dims = p.dims(output).to_vec();
        let layout = common(p, inputs, &dims);
        let storage = layout.storage(&dims);
        let spread: Vec<Vec<usize>> =
            inputs.iter().map(|id| layout.storage(&padded(p.dims(*id), dims.len()))).collect();
        // The last axes, in which every operand has all rows or one, and all columns or one.
        let simple = |t: &[usize], axes: usize| {
            let (s, t) = (&storage[axes..], &t[axes..]);
            let rows = s.len().saturating_sub(1);
            t[..rows].iter().all(|n| *n == 1) || t[..rows] == s[..rows]
        };
        let blocks = (0..=storage.len()).find(|axes| spread.iter().all(|t| simple(t, *axes))).unwrap_or(0);
        let y = p.output(output, layout);
        let mut reads = vec![];
        for (id, t) in inputs.iter().zip(&spread) {
            let view = operand(p, *id, layout, dims.len());
            reads.push(if *t == storage { view } else { p.gathered(*id, view) });
        }
        let (outer, inner) = storage.split_at(blocks);
        let (width, rows) = inner.split_last().map_or((1, 1), |(w, r)| (*w, r.iter().product()));
        let pair = *self;
        let size = if matches!(self, Pair::Float(_)) { size_of::<f32>() } else { 1 };
        let (isa, work) = (p.isa(), cost::bytes(3 * size * y.len()));
        if blocks == 0 {
            // All at once; an operand of a single row or column is seen as such.
            for ((id, view), t) in inputs.iter().zip(&mut reads).zip(&spread) {
                let width = t.last().copied().unwrap_or(1);
                let rows = t.iter().product::<usize>() / width.max(1);
                *view = match view.reshaped(rows, width) {
                    Some(view) => view,
                    None => View { rows, width, stride: width, ..p.gathered(*id, *view) },
                };
            }
            pair.step(p, output, &reads, y, work, move |o| pair.block(isa, o.parts, o));
            return Ok(());
        }
        let spread: Vec<Spread> = spread
            .iter()
            .map(|t| {
                let (outer, inner) = t.split_at(blocks);
                let mut size: usize = inner.iter().product();
                let width = inner.last().copied().unwrap_or(1);
                let mut steps = vec![0; outer.len()];
                for (step, n) in steps.iter_mut().zip(outer).rev() {
                    *step = if *n == 1 { 0 } else { size };
                    size *= n;
                }
                Spread { steps, rows: inner.iter().product::<usize>() / width.max(1), width }
            })
            .collect();
        // Operands that are as large as the result may have gaps; by blocks they must not.
        for (id, view) in inputs.iter().zip(&mut reads) {
            *view = p.gathered(*id, *view);
        }
        let outer = outer.to_vec();
        pair.step(p, output, &reads, y, work, move |o| {
            let blocks = Blocks { outer: &outer, spread: &spread, rows, width };
            match pair {
                Pair::Float(f) => blocks.run(o, |a, b, y| kernels::binary(isa, f, a, b, y, 1)),
                Pair::Add8(f) => blocks.run(o, |a, b, y| f.run(isa, a, b, y, 1)),
                Pair::Mul8(f) => blocks.run(o, |a, b, y| f.run(isa, a, b, y, 1)),
            }
        });
        Ok(())
    }
}

/// A result in blocks of rows, and where its operands lie.
struct Blocks<'a> {
    outer: &'a [usize],
    spread: &'a [Spread],
    rows: usize,
    width: usize,
}

impl Blocks<'_> {
    fn run<T: Element>(&self, o: &mut Operands, f: impl Fn(Rows<T>, Rows<T>, RowsMut<T>)) {
        let (a, b) = (o.slice::<T>(0), o.slice::<T>(1));
        let mut y = o.out::<T>();
        for block in 0..self.outer.iter().product() {
            let part = |x: &[T], s: &Spread| -> usize {
                let (mut rest, mut at) = (block, 0);
                for (n, step) in self.outer.iter().zip(&s.steps).rev() {
                    at += rest % n * step;
                    rest /= n;
                }
                debug_assert!(at < x.len().max(1));
                at
            };
            let (at_a, at_b) = (part(a, &self.spread[0]), part(b, &self.spread[1]));
            let a = Rows::dense(&a[at_a..], self.spread[0].rows, self.spread[0].width);
            let b = Rows::dense(&b[at_b..], self.spread[1].rows, self.spread[1].width);
            let (_, behind) = y.reborrow().split_at(block * self.rows);
            let (to, _) = behind.split_at(self.rows);
            debug_assert_eq!(to.width(), self.width);
            f(a, b, to);
        }
    }
}

impl Pair {
    fn step(
        self,
        p: &mut Planner,
        made: ValueId,
        reads: &[View],
        y: View,
        work: u64,
        call: impl Fn(&mut Operands) + Send + Sync + 'static,
    ) {
        let name = match self {
            Pair::Float(_) => "elementwise",
            Pair::Add8(_) => "add_i8",
            Pair::Mul8(_) => "mul_i8",
        };
        p.step(name, made, reads, y, 0, work, call);
    }

    fn block(self, isa: Isa, parts: usize, o: &mut Operands) {
        match self {
            Pair::Float(f) => kernels::binary(isa, f, o.read(0), o.read(1), o.out(), parts),
            Pair::Add8(f) => f.run(isa, o.read(0), o.read(1), o.out(), parts),
            Pair::Mul8(f) => f.run(isa, o.read(0), o.read(1), o.out(), parts),
        }
    }
}

/// Sizes with axes of 1 in front, up to `rank`.
fn padded(dims: &[usize], rank: usize) -> Vec<usize> {
    let mut out = vec![1; rank - dims.len()];
    out.extend_from_slice(dims);
    out
}

/// The layout in which a result is computed: that of pixels if an operand lies so and all others
/// can be read so. Sequences, which have three axes, are read as they are by most: one that lies
/// so already has the others follow.
fn common(p: &Planner, inputs: &[ValueId], dims: &[usize]) -> Layout {
    let readable = |id: &ValueId| {
        let own = p.dims(*id);
        let wide = padded(own, dims.len());
        own.len() == dims.len() || wide[1] == 1 || wide[2..].iter().all(|n| *n == 1)
    };
    let any = |layout| inputs.iter().any(|id| p.layout(*id) == layout && p.dims(*id) == dims);
    let fit = dims.len() > 3 || dims.len() == 3 && !any(Layout::Plain);
    match fit && any(Layout::Pixels) && inputs.iter().all(readable) {
        true => Layout::Pixels,
        false => Layout::Plain,
    }
}

/// Where an operand of a result of rank `rank` is read.
fn operand(p: &mut Planner, id: ValueId, layout: Layout, rank: usize) -> View {
    // With fewer axes, both layouts are one (see `common`).
    let layout = if p.dims(id).len() == rank { layout } else { Layout::Plain };
    p.read(id, layout)
}
