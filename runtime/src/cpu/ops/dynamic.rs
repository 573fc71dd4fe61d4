//! Codes by the range of a run: DynamicQuantizeLinear, and MatMulInteger with the Cast, the scales, the bias and the function behind it.

use super::{
    elementwise::applied,
    product::{End, Weight, rows_by_outputs, vector},
};
use crate::cpu::{
    cost,
    lowering::{Form, Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::Result,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, cast::Cast, integer::Accumulator},
    tensor::{DType, Tensor},
};
use compress_kernels::{self as kernels, CodeMatrix, CodeRows, Conv8, Dynamic8, Rows};
use std::sync::Arc;

/// An output of DynamicQuantizeLinear.
pub(super) fn by_own_range<'g>(s: &Scope<'g>, want: Want) -> Option<Lowering<'g>> {
    let g = s.graph;
    let Op::DynamicQuantize(_) = g.op(want.port.node) else { return None };
    let x = g.operand(want.port.node, 0)?;
    let made = match (want.port.slot, want.form) {
        (0, Form::Codes) => OwnRange::Codes,
        (1, Form::Float) => OwnRange::Scale,
        (2, Form::Codes) => OwnRange::Zero,
        _ => return None,
    };
    if !s.has(want.port.node) || g.fact(x).dtype != Some(DType::F32) {
        return None;
    }
    let mut operands = vec![Want::float(x)];
    if let OwnRange::Codes = made {
        let output = |slot| Port { node: want.port.node, slot };
        operands.extend([Want::float(output(1)), Want::codes(output(2))]);
    }
    Some(Lowering::of(operands, made))
}

/// Which output: the codes are made by the other two.
#[derive(Clone, Copy)]
enum OwnRange {
    Codes,
    Scale,
    Zero,
}

impl Lowered for OwnRange {
    fn is_by_sample(&self, _: &[Operand], _: &[usize]) -> bool {
        // The range is that of all samples.
        false
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (isa, layout, made) = (p.isa(), p.layout(inputs[0]), *self);
        let x = p.read(inputs[0], layout);
        let work = cost::bytes(8 * x.len());
        if let Self::Codes = made {
            let mut reads = vec![(x, p.size(inputs[0]))];
            reads.extend(inputs[1..].iter().map(|id| (p.dense(*id), p.size(*id))).collect::<Vec<_>>());
            let y = p.output(output, layout);
            p.step_of("quantize", output, reads, y, 0, work, move |o| {
                let (scale, zero) = (o.slice::<f32>(1)[0], o.slice::<u8>(2)[0]);
                kernels::quantize(isa, o.read(0), scale, zero, o.out(), o.parts);
            });
            return Ok(());
        }
        let y = p.output(output, Layout::Plain);
        p.step_from(size_of::<f32>(), "own_range", output, &[x], y, 0, work, move |o| {
            let (scale, zero) = kernels::own_range(isa, o.read(0), o.parts);
            match made {
                Self::Zero => o.out::<u8>().data().fill(zero as u8),
                _ => o.out::<f32>().data().fill(scale),
            }
        });
        Ok(())
    }
}

/// The sums of MatMulInteger by a constant matrix, as floats.
struct Sums<'g> {
    codes: Port,
    zero: Option<Port>,
    matrix: &'g Tensor,
    zeros: Option<&'g Tensor>,
}

/// The sums that `port`, a Cast, makes floats of.
fn sums<'g>(s: &Scope<'g>, port: Port) -> Option<Sums<'g>> {
    let g = s.graph;
    let Op::Cast(Cast { to: DType::F32, .. }) = g.op(port.node) else { return None };
    s.has(port.node).then_some(())?;
    let node = s.inner(g.operand(port.node, 0)?)?;
    let Op::IntegerMatMul(op) = g.op(node) else { return None };
    let operand = |slot| g.operand(node, slot);
    let (codes, zero) = (operand(0)?, operand(2));
    let matrix = g.constant(operand(1)?)?;
    let zeros = match operand(3) {
        Some(zeros) => Some(g.constant(zeros)?),
        None => None,
    };
    let [depth, outputs] = *matrix.shape() else { return None };
    let one = |port: Port| g.fact(port).fixed().is_some_and(|dims| dims.iter().product::<usize>() == 1);
    let fits = op.result == Accumulator::Kept
        && s.rank(codes)? >= 2
        && s.has_codes(codes)
        && zero.is_none_or(one)
        && matches!(matrix.dtype(), DType::I8 | DType::U8)
        && zeros.is_none_or(|z| z.len() == 1 || z.shape() == [outputs])
        && depth > 0
        && outputs > 0
        && Conv8::fits(depth);
    fits.then_some(Sums { codes, zero, matrix, zeros })
}

/// What multiplies sums: a scale that a run tells, and constants.
#[derive(Default)]
struct Factors {
    of_run: Option<Port>,
    constants: Vec<Port>,
}

impl Factors {
    /// Adds `port`, if it is a scale of all or one for each of `outputs`, or a product of such.
    fn add(&mut self, s: &Scope, port: Port, outputs: usize, depth: usize) -> Option<()> {
        let g = s.graph;
        if let (Op::Binary(Binary::Mul), true, true) = (g.op(port.node), s.has(port.node), depth > 0) {
            let (a, b) = (g.operand(port.node, 0)?, g.operand(port.node, 1)?);
            self.add(s, a, outputs, depth - 1)?;
            return self.add(s, b, outputs, depth - 1);
        }
        let fact = g.fact(port);
        let dims = fact.fixed()?;
        let n: usize = dims.iter().product();
        let fits = n == 1 && dims.len() <= 2 || dims == [outputs];
        if fact.dtype != Some(DType::F32) || !fits {
            return None;
        }
        match s.is_constant(port) {
            true => self.constants.push(port),
            false if self.of_run.is_none() && n == 1 => self.of_run = Some(port),
            false => return None,
        }
        Some(())
    }
}

/// How many products of scales are looked through.
const DEPTH: usize = 2;

/// The float value `port`, where it is made of sums of products of codes.
pub(super) fn product<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let (then, before) = applied(s, port).map_or((None, port), |(f, x)| (Some(f), x));
    let (at, min, max) = s.unclamped(before);
    let end = End { low: min, high: max, then };
    scaled(s, at, None, end).or_else(|| {
        let (a, b) = operands(s, at.node, Binary::Add)?;
        [(a, b), (b, a)].into_iter().find_map(|(a, bias)| {
            s.inner(a)?;
            s.is_constant(bias).then(|| scaled(s, a, Some(bias), end)).flatten()
        })
    })
}

/// The operands of the node, if it is `op`.
fn operands(s: &Scope, id: NodeId, op: Binary) -> Option<(Port, Port)> {
    let is_op = matches!(s.graph.op(id), Op::Binary(own) if *own == op) && s.has(id);
    is_op.then(|| Some((s.graph.operand(id, 0)?, s.graph.operand(id, 1)?))).flatten()
}

/// The sums that `port` is, or that it multiplies by scales: one of all rows and one of columns may come one after the other.
fn scaled_sums<'g>(s: &Scope<'g>, port: Port, factors: &mut Factors, depth: usize) -> Option<Sums<'g>> {
    if let Some(found) = sums(s, port) {
        return Some(found);
    }
    let (a, b) = operands(s, port.node, Binary::Mul).filter(|_| depth > 0)?;
    let outputs = usize::try_from(s.graph.fact(port).dims()?.last()?.known()?).ok()?;
    [(a, b), (b, a)].into_iter().find_map(|(inner, factor)| {
        s.inner(inner)?;
        let found = scaled_sums(s, inner, factors, depth - 1)?;
        factors.add(s, factor, outputs, DEPTH).map(|()| found)
    })
}

/// Sums, scaled or not, with a bias.
fn scaled<'g>(s: &Scope<'g>, at: Port, bias: Option<Port>, end: End) -> Option<Lowering<'g>> {
    let mut factors = Factors::default();
    let Sums { codes, zero, matrix, zeros } = scaled_sums(s, at, &mut factors, DEPTH)?;
    let outputs = matrix.shape()[1];
    if bias.is_some_and(|b| s.graph.fact(b).fixed().is_none_or(|dims| dims != [outputs])) {
        return None;
    }
    let mut wants = vec![Want::codes(codes)];
    wants.extend(zero.map(Want::codes));
    wants.extend(factors.of_run.map(Want::float));
    let later = |ports: Vec<Port>| ports.into_iter().map(|p| s.constant_later(p)).collect::<Vec<_>>();
    let (constants, bias) = (later(factors.constants), later(bias.into_iter().collect()));
    let takes = Takes { zero: zero.is_some(), scale: factors.of_run.is_some() };
    let no_zero = if s.graph.fact(codes).dtype == Some(DType::I8) { 128 } else { 0 };
    Some(Lowering::with(wants, move |isa| {
        let mut scales = vec![1.0; outputs];
        for constant in &constants {
            let by = vector(Some(constant()?), outputs, 1.0);
            scales.iter_mut().zip(by).for_each(|(scale, by)| *scale *= by);
        }
        let bias = vector(bias.first().map(|b| b()).transpose()?, outputs, 1.0);
        // Unsigned codes around a zero point are signed ones around another.
        let (flip, shift) = if matrix.dtype() == DType::U8 { (128, 128) } else { (0, 0) };
        let signed: Vec<i8> = matrix.bytes().iter().map(|b| (b ^ flip) as i8).collect();
        let Weight { data, .. } = rows_by_outputs(matrix.shape(), &signed);
        let own = zeros.and_then(Tensor::as_i64).unwrap_or_else(|| vec![0]);
        let zeros: Vec<i32> = (0..outputs).map(|i| own[if own.len() == 1 { 0 } else { i }] as i32 - shift).collect();
        matrix.release();
        let matrix = CodeMatrix { codes: &data, scales: &scales, zeros: Some(&zeros) };
        let end = kernels::End { min: end.low, max: end.high, then: end.then };
        Ok(Product { kernel: Arc::new(Dynamic8::new(isa, matrix, bias, end)), takes, no_zero, bytes: data.len() })
    }))
}

/// Which operands come behind the codes.
#[derive(Clone, Copy)]
struct Takes {
    zero: bool,
    scale: bool,
}

/// A product of codes.
struct Product {
    kernel: Arc<Dynamic8>,
    takes: Takes,
    /// The zero point where none is an operand.
    no_zero: u8,
    bytes: usize,
}

impl Lowered for Product {
    fn weight_bytes(&self) -> usize {
        self.bytes
    }

    fn is_by_sample(&self, inputs: &[Operand], _: &[usize]) -> bool {
        inputs[1..].iter().all(|x| x.is_constant) && !inputs[0].is_constant
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let rows = Layout::Plain.rows(p.dims(inputs[0])).0;
        let reads = inputs.iter().map(|id| (p.read(*id, Layout::Plain), p.size(*id))).collect();
        let y = p.output(output, Layout::Plain);
        let (kernel, Takes { zero, scale }, no_zero) = (self.kernel.clone(), self.takes, self.no_zero);
        let work = cost::macs8(p.isa(), kernel.macs(rows)).max(cost::bytes(self.bytes));
        let scratch = kernel.scratch_of_codes(rows, p.parts(work));
        p.step_of("gemm_dynamic_i8", output, reads, y, scratch, work, move |o| {
            let codes: Rows<u8> = o.read(0);
            let zero_point = if zero { o.slice::<u8>(1)[0] } else { no_zero };
            let scale = if scale { o.slice::<f32>(1 + usize::from(zero))[0] } else { 1.0 };
            let parts = o.parts;
            let (y, scratch) = o.write();
            kernel.run_codes(CodeRows { codes, scale, zero: zero_point }, y, scratch, parts);
        });
        Ok(())
    }
}
