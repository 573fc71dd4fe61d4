//! QuantizeLinear and DequantizeLinear, with what lies between them.

use super::{
    elementwise::{self, Pair},
    movement, pool, product,
};
use crate::cpu::{
    cost,
    device::{DeviceOp, Table},
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::{Affine, CHAIN, Scope},
    steps::View,
};
use compress_compiler::{
    error::Result,
    node::Port,
    op::Op,
    ops::{binary::Binary, cast::Cast},
    tensor::DType,
};
use compress_kernels::{self as kernels, Add8, Isa, Mul8, Rows, RowsMut};

/// The floats for which the codes of `port` stand.
pub(super) fn dequantize<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let (codes, affine) = s.codes(port)?;
    Some(Lowering::of(vec![codes], Dequantize(affine)).on_device(move || Ok(DeviceOp::Dequantize(affine))))
}

/// The floats that a Cast makes of codes.
pub(super) fn widened<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let Op::Cast(Cast { to: DType::F32, .. }) = s.graph.op(port.node) else { return None };
    let x = s.graph.operand(port.node, 0).filter(|x| s.has(port.node) && s.has_codes(*x))?;
    let zero = if s.graph.fact(x).dtype == Some(DType::I8) { 128 } else { 0 };
    Some(Lowering::of(vec![Want::codes(x)], Dequantize(Affine { scale: 1.0, zero })))
}

/// The codes that a QuantizeLinear makes, and those that a Relu or Clip makes of codes.
pub(super) fn quantize<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let Op::Quantize(op) = g.op(port.node) else {
        // The same codes, within bounds.
        let (_, affine) = s.codes(port)?;
        let (low, high) = s.bounds(port.node)?;
        let (codes, _) = s.codes(g.operand(port.node, 0)?)?;
        let bounded = |code: u8| code.clamp(affine.quantize(low), affine.quantize(high));
        return Some(Lookup::of(bounded).lowering(codes));
    };
    let x = g.operand(port.node, 0)?;
    if op.grain.block != 0 {
        return None;
    }
    let y = s.parameters(g.operand(port.node, 1)?, g.operand(port.node, 2), g.fact(port).dtype?)?;
    product::requantized(s, x, y)
        .or_else(|| arithmetic(s, x, y))
        .or_else(|| pool::requantized(s, x, y))
        .or_else(|| movement::requantized_concat(s, x, y))
        .or_else(|| function(s, x, y))
        .or_else(|| {
            let op = Quantize { to: y, by_pixels: !s.is_read_in_order(port) };
            let lowering = || Lowering::of(vec![Want::float(x)], op).on_device(move || Ok(DeviceOp::Quantize(y)));
            (g.fact(x).dtype == Some(DType::F32)).then(lowering)
        })
}

/// Add or Mul of two values with codes, within bounds.
fn arithmetic<'g>(s: &Scope<'g>, x: Port, y: Affine) -> Option<Lowering<'g>> {
    let g = s.graph;
    s.inner(x)?;
    let (at, low, high) = s.unclamped(x);
    s.inner(at)?;
    let operand = |slot: usize| s.codes(g.operand(at.node, slot)?);
    let (min, max) = (y.quantize(low), y.quantize(high));
    let (y_scale, y_zero) = (y.scale, y.zero);
    let kernel = |a: Affine, b: Affine| {
        let (a_scale, a_zero, b_scale, b_zero) = (a.scale, a.zero, b.scale, b.zero);
        Some(match g.op(at.node) {
            Op::Binary(Binary::Add) => Pair::Add8(Add8 { a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, min, max }),
            Op::Binary(Binary::Mul) => Pair::Mul8(Mul8 { a_scale, a_zero, b_scale, b_zero, y_scale, y_zero, min, max }),
            _ => return None,
        })
    };
    let ((a, of_a), (b, of_b)) = (operand(0)?, operand(1)?);
    let pair = kernel(of_a, of_b)?;
    let lowering = Lowering::of(vec![a, b], pair);
    Some(match pair {
        Pair::Add8(op) => lowering.on_device(move || Ok(DeviceOp::Add(op))),
        Pair::Mul8(op) => lowering.on_device(move || Ok(DeviceOp::Mul(op))),
        Pair::Float(_) => lowering,
    })
}

/// Functions of one value with codes, one after the other: a table.
fn function<'g>(s: &Scope<'g>, x: Port, y: Affine) -> Option<Lowering<'g>> {
    let mut functions = vec![];
    let mut at = x;
    let (codes, affine) = loop {
        if let Some(found) = s.codes(at) {
            break found;
        }
        functions.push(elementwise::function(s, s.inner(at)?).filter(|_| functions.len() < CHAIN)?);
        at = s.graph.operand(at.node, 0)?;
    };
    if functions.is_empty() && affine == y {
        return Some(Lowering::of(vec![codes], movement::Same).on_device(|| Ok(DeviceOp::Same)));
    }
    let mut values: Vec<f32> = (0..=255).map(|code| affine.dequantize(code)).collect();
    for f in functions.iter().rev() {
        let mut made = vec![0.0; values.len()];
        kernels::unary(Isa::Portable, *f, Rows::dense(&values, 1, 256), RowsMut::dense(&mut made, 1, 256), 1);
        values = made;
    }
    Some(Lookup::of(|code| y.quantize(values[usize::from(code)])).lowering(codes))
}

/// A table of codes by codes.
pub(super) struct Lookup(Table);

impl Lookup {
    pub fn of(f: impl Fn(u8) -> u8) -> Self {
        Self(Box::new(std::array::from_fn(|code| f(code as u8))))
    }

    /// The table by which codes under `from` become codes under `to`; none where they are the same.
    pub fn between(from: Affine, to: Affine) -> Option<Self> {
        (from != to).then(|| Self::of(|code| to.quantize(from.dequantize(code))))
    }

    /// The table.
    pub fn table(&self) -> Table {
        self.0.clone()
    }

    /// What the table makes of `codes`.
    fn lowering<'g>(self, codes: Want) -> Lowering<'g> {
        let table = self.table();
        Lowering::of(vec![codes], self).on_device(move || Ok(DeviceOp::Lookup(table)))
    }

    /// Writes what the table makes of `x` to `y`.
    pub fn step(&self, p: &mut Planner, made: ValueId, x: View, y: View) {
        let (isa, table, work) = (p.isa(), self.0.clone(), cost::bytes(2 * y.len()));
        p.step("lookup", made, &[x], y, 0, work, move |o| {
            kernels::lookup(isa, o.read(0), &table, o.out(), o.parts);
        });
    }
}

impl Lowered for Lookup {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let layout = p.layout(inputs[0]);
        let (x, y) = (p.read(inputs[0], layout), p.output(output, layout));
        self.step(p, output, x, y);
        Ok(())
    }
}

struct Dequantize(Affine);

impl Lowered for Dequantize {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let layout = p.layout(inputs[0]);
        let (x, y) = (p.read(inputs[0], layout), p.output(output, layout));
        let (isa, Affine { scale, zero }, work) = (p.isa(), self.0, cost::bytes(5 * y.len()));
        p.step_from(1, "dequantize", output, &[x], y, 0, work, move |o| {
            kernels::dequantize(isa, o.read(0), scale, zero, o.out(), o.parts);
        });
        Ok(())
    }
}

struct Quantize {
    to: Affine,
    /// Whether what has channels is turned on the way to where readers want it.
    by_pixels: bool,
}

impl Lowered for Quantize {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let Affine { scale, zero } = self.to;
        let (isa, layout, dims) = (p.isa(), p.layout(inputs[0]), p.dims(inputs[0]).to_vec());
        if self.by_pixels && layout == Layout::Plain && dims.len() > 2 {
            let x = p.dense(inputs[0]);
            let y = p.output(output, Layout::Pixels);
            let (batch, channels, pixels) = (dims[0], dims[1], dims[2..].iter().product());
            p.step_from(size_of::<f32>(), "quantize", output, &[x], y, 0, cost::bytes(5 * y.len()), move |o| {
                let parts = o.parts;
                kernels::quantize_transpose(isa, o.slice(0), batch, channels, pixels, scale, zero, o.out(), parts);
            });
            return Ok(());
        }
        let (x, y) = (p.read(inputs[0], layout), p.output(output, layout));
        p.step_from(size_of::<f32>(), "quantize", output, &[x], y, 0, cost::bytes(5 * y.len()), move |o| {
            kernels::quantize(isa, o.read(0), scale, zero, o.out(), o.parts);
        });
        Ok(())
    }
}
