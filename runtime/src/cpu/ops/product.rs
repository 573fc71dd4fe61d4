//! Conv, Gemm and MatMul by constant weights, with what follows them: how they are recognised.

mod coded;
mod lowered;

use super::{elementwise::applied, norm};
use crate::cpu::{
    device::DeviceOp,
    lowering::{Lowering, Want},
    scope::{Affine, Scope},
};
use compress_compiler::{
    error::Result,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, window::Window as OpWindow},
    tensor::{DType, Tensor},
};
use compress_kernels::{Conv8, Finish8, UnaryOp};
pub(super) use lowered::End;
pub(crate) use lowered::Sliding;
use lowered::{CodeKernel, Coded, FloatKernel, Floating, InPlace};
use std::rc::Rc;

/// A product of an activation and a constant weight.
struct Product<'g> {
    /// The activation.
    x: Port,
    /// The weight's value.
    weight: Port,
    bias: Option<Port>,
    kind: Kind<'g>,
    /// What the product and the bias are multiplied by.
    alpha: f32,
    beta: f32,
    /// A BatchNormalization of the result.
    norm: Option<NodeId>,
}

#[derive(Clone, Copy)]
enum Kind<'g> {
    Conv {
        window: &'g OpWindow,
        groups: usize,
    },
    /// The last axis by a matrix; whether that is `[outputs, inputs]`.
    Rows {
        transposed: bool,
    },
}

/// A weight as `[outputs][taps][channels of a group]`.
pub(crate) struct Weight<T> {
    pub data: Vec<T>,
    pub outputs: usize,
    pub taps: usize,
    pub channels: usize,
    pub groups: usize,
    /// The sizes of the window, with a first axis of 1 where there is but one.
    pub kernel: [usize; 2],
}

fn product<'g>(s: &Scope<'g>, id: NodeId) -> Option<Product<'g>> {
    let g = s.graph;
    if !s.has(id) {
        return None;
    }
    let (x, weight) = (g.operand(id, 0)?, g.operand(id, 1)?);
    let shape = weight_shape(s, weight)?;
    let bias = g.operand(id, 2);
    if g.fact(x).dtype != Some(DType::F32) || s.is_constant(x) || bias.is_some_and(|b| !s.is_constant(b)) {
        return None;
    }
    let (kind, alpha, beta) = match g.op(id) {
        Op::Conv(op) if matches!(shape.len(), 3 | 4) && s.rank(x) == Some(shape.len()) => {
            (Kind::Conv { window: &op.window, groups: op.group as usize }, 1.0, 1.0)
        }
        Op::Gemm(op) if !op.trans_a => (Kind::Rows { transposed: op.trans_b }, op.alpha, op.beta),
        Op::MatMul(_) if shape.len() == 2 && s.rank(x)? >= 2 => (Kind::Rows { transposed: false }, 1.0, 1.0),
        _ => return None,
    };
    let outputs = match kind {
        Kind::Conv { .. } | Kind::Rows { transposed: true } => shape[0],
        Kind::Rows { transposed: false } => shape[1],
    };
    let channels: usize = shape.iter().product::<usize>().checked_div(outputs)?;
    let bias_fits = bias.is_none_or(|b| {
        let dims = s.graph.fact(b).fixed();
        dims.is_some_and(|d| {
            let n: usize = d.iter().product();
            n == 1 || n == outputs && d.last() == Some(&n)
        })
    });
    (channels > 0 && bias_fits).then_some(Product { x, weight, bias, kind, alpha, beta, norm: None })
}

/// The product `port`, or the one of which it is the BatchNormalization.
fn normalised<'g>(s: &Scope<'g>, port: Port) -> Option<Product<'g>> {
    let id = port.node;
    if !matches!(s.graph.op(id), Op::BatchNorm(_)) {
        return product(s, id);
    }
    let x = s.graph.operand(id, 0)?;
    s.inner(x)?;
    (s.has(id) && port.slot == 0 && norm::is_constant(s, id)).then_some(())?;
    // Only a convolution has its channels where the normalisation looks for them.
    product(s, x.node).filter(|p| matches!(p.kind, Kind::Conv { .. })).map(|p| Product { norm: Some(id), ..p })
}

fn weight_shape(s: &Scope, weight: Port) -> Option<Vec<usize>> {
    let shape = s.graph.fact(weight).fixed().filter(|_| s.is_constant(weight))?;
    (shape.len() >= 2).then_some(shape)
}

/// Brings a weight into the order that kernels take.
fn ordered<T: Copy>(kind: Kind, shape: &[usize], data: &[T]) -> Weight<T> {
    match kind {
        Kind::Conv { groups, .. } => {
            let (outputs, channels) = (shape[0], shape[1]);
            let kernel = match shape[2..] {
                [h, w] => [h, w],
                _ => [1, shape[2]],
            };
            let taps = kernel[0] * kernel[1];
            let mut to = Vec::with_capacity(data.len());
            for of_output in data.chunks_exact((channels * taps).max(1)) {
                for tap in 0..taps {
                    to.extend((0..channels).map(|c| of_output[c * taps + tap]));
                }
            }
            Weight { data: to, outputs, taps, channels, groups, kernel }
        }
        Kind::Rows { transposed } => {
            let (outputs, channels) = if transposed { (shape[0], shape[1]) } else { (shape[1], shape[0]) };
            let data = match transposed {
                true => data.to_vec(),
                false => (0..outputs).flat_map(|o| (0..channels).map(move |c| data[c * outputs + o])).collect(),
            };
            Weight { data, outputs, taps: 1, channels, groups: 1, kernel: [1, 1] }
        }
    }
}

/// A matrix `[inputs, outputs]` in the order that kernels take.
pub(super) fn rows_by_outputs<T: Copy>(shape: &[usize], data: &[T]) -> Weight<T> {
    ordered(Kind::Rows { transposed: false }, shape, data)
}

/// One entry an output.
pub(super) fn vector(t: Option<Tensor>, outputs: usize, factor: f32) -> Vec<f32> {
    match t.as_ref().and_then(Tensor::as_f32) {
        None => vec![0.0; outputs],
        Some(v) if v.len() == 1 => vec![v[0] * factor; outputs],
        Some(v) => v.iter().map(|v| v * factor).collect(),
    }
}

/// The float value `port`: a product, then perhaps a sum with another value, then bounds, then a function.
pub(super) fn float<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let (then, before) = applied(s, port).map_or((None, port), |(f, x)| (Some(f), x));
    let (at, low, high) = s.unclamped(before);
    let end = End { low, high, then };
    if let Some(p) = normalised(s, at) {
        return scaled(s, &p, end).or_else(|| floating(s, p, None, end));
    }
    if !matches!(s.graph.op(at.node), Op::Binary(Binary::Add)) || !s.has(at.node) {
        return None;
    }
    let (a, b) = (s.graph.operand(at.node, 0)?, s.graph.operand(at.node, 1)?);
    if let Some(p) = with_bias(s, at) {
        return scaled(s, &p, end).or_else(|| floating(s, p, None, end));
    }
    [(a, b), (b, a)].into_iter().find_map(|(a, b)| {
        s.inner(a)?;
        // On the CPU a sum behind a bias is no faster in the product: tinyvit on two threads took 4% to 10% longer.
        let p = normalised(s, a).or_else(|| with_bias(s, a).filter(|_| s.on_device));
        let p = p.filter(|p| s.codes(p.x).is_none())?;
        let dense = match p.kind {
            Kind::Conv { groups, .. } => groups == 1,
            Kind::Rows { .. } => true,
        };
        (dense && s.same_shape(a, b) && a != b).then(|| floating(s, p, Some(b), end)).flatten()
    })
}

/// The product of rows that `port` is with a bias of its own node.
fn with_bias<'g>(s: &Scope<'g>, port: Port) -> Option<Product<'g>> {
    let Op::Binary(Binary::Add) = s.graph.op(port.node) else { return None };
    s.has(port.node).then_some(())?;
    let (a, b) = (s.graph.operand(port.node, 0)?, s.graph.operand(port.node, 1)?);
    [(a, b), (b, a)].into_iter().find_map(|(a, b)| biased(s, a, b))
}

/// The product `a` of rows without a bias, with the constant `b` that is added to it as its bias.
fn biased<'g>(s: &Scope<'g>, a: Port, b: Port) -> Option<Product<'g>> {
    s.inner(a)?;
    let p = product(s, a.node).filter(|p| p.bias.is_none() && matches!(p.kind, Kind::Rows { .. }))?;
    let outputs = usize::try_from(s.graph.fact(a).dims()?.last()?.known()?).ok()?;
    (s.is_constant(b) && s.graph.fact(b).fixed()? == [outputs]).then_some(Product { bias: Some(b), beta: 1.0, ..p })
}

fn floating<'g>(s: &Scope<'g>, p: Product<'g>, add: Option<Port>, end: End) -> Option<Lowering<'g>> {
    if let (None, false, Some(lowering)) = (add, s.on_device, coded::lowering(s, &p, end)) {
        return Some(lowering);
    }
    let mut operands = vec![Want::float(p.x)];
    operands.extend(add.map(Want::float));
    let norm = match p.norm {
        Some(id) => Some(norm::factors(s, id)?),
        None => None,
    };
    let folded = Folded { weight: s.constant_later(p.weight), bias: p.bias.map(|b| s.constant_later(b)), norm, p };
    let folded = Rc::new(folded);
    let on_device = folded.clone();
    let lowering = Lowering::with(operands, move |isa| {
        let Folded { weight, bias, norm, p } = &*folded;
        let t = weight()?;
        if let (Kind::Rows { transposed }, None, true) = (p.kind, norm, p.alpha == 1.0) {
            let outputs = t.shape()[usize::from(!transposed)];
            let bias = vector(bias.as_ref().map(|b| b()).transpose()?, outputs, p.beta);
            if let Some(kernel) = InPlace::new(isa, &t, transposed, bias, end) {
                let (kernel, weight_bytes) = (FloatKernel::InPlace(kernel.into()), t.bytes().len());
                return Ok(Floating { kernel, at: Sliding::Rows, weight_bytes });
            }
        }
        let (w, bias) = folded.ordered(&t)?;
        let weight_bytes = size_of_val(&w.data[..]);
        let (kernel, at) = (FloatKernel::new(isa, &w, bias, end), Sliding::of(&p.kind, w.kernel));
        Ok(Floating { kernel, at, weight_bytes })
    });
    Some(lowering.on_device(move || {
        let (weight, bias) = on_device.ordered(&(on_device.weight)()?)?;
        let at = Sliding::of(&on_device.p.kind, weight.kernel);
        Ok(DeviceOp::Floats { weight, at, bias, bounds: [end.low, end.high], then: end.then })
    }))
}

/// A product of floats, and what is folded into its constants.
struct Folded<'g, F: Fn() -> Result<Tensor>> {
    weight: F,
    bias: Option<F>,
    /// What a BatchNormalization multiplies channels by, and what it adds.
    norm: Option<(Vec<f32>, Vec<f32>)>,
    p: Product<'g>,
}

impl<F: Fn() -> Result<Tensor>> Folded<'_, F> {
    /// The weight `t` and the bias as kernels take them.
    fn ordered(&self, t: &Tensor) -> Result<(Weight<f32>, Vec<f32>)> {
        let p = &self.p;
        let values = t.as_f32().unwrap_or_default();
        let mut w = ordered(p.kind, t.shape(), &values);
        w.data.iter_mut().filter(|_| p.alpha != 1.0).for_each(|v| *v *= p.alpha);
        let mut bias = vector(self.bias.as_ref().map(|b| b()).transpose()?, w.outputs, p.beta);
        if let Some((factors, offsets)) = &self.norm {
            let depth = w.taps * w.channels;
            for (of_output, factor) in w.data.chunks_exact_mut(depth).zip(factors) {
                of_output.iter_mut().for_each(|v| *v *= factor);
            }
            bias.iter_mut()
                .zip(factors.iter().zip(offsets))
                .for_each(|(b, (factor, offset))| *b = *b * factor + offset);
        }
        Ok((w, bias))
    }
}

/// An integer product: its weight and what it is made of.
struct Integer<'g> {
    p: Product<'g>,
    codes: Want,
    x: Affine,
    /// The quantised weight, its scales, and its zero point (of unsigned ones).
    weight: Tensor,
    scales: Vec<f32>,
    /// The bias in units of `x.scale * scales`, if it is quantised so.
    bias: Option<Vec<i32>>,
}

fn integer<'g>(s: &Scope<'g>, p: &Product<'g>) -> Option<Integer<'g>> {
    let g = s.graph;
    let (codes, x) = s.codes(p.x)?;
    let Op::Dequantize(op) = g.op(p.weight.node) else { return None };
    let operand = |slot: usize| g.operand(p.weight.node, slot);
    let (weight, scales) = (g.constant(operand(0)?)?, g.constant(operand(1)?)?);
    let zeros = match operand(2) {
        Some(z) => g.constant(z)?.as_i64()?,
        None => vec![0],
    };
    // Unsigned weights around 128 are signed ones around 0.
    let zero = match weight.dtype() {
        DType::I8 => 0,
        DType::U8 => 128,
        _ => return None,
    };
    let shape = weight.shape();
    let (axis, outputs) = match p.kind {
        Kind::Conv { .. } | Kind::Rows { transposed: true } => (0, shape[0]),
        Kind::Rows { transposed: false } => (1, shape[1]),
    };
    let along = op.grain.axis == axis || op.grain.axis == axis - shape.len() as i64;
    let per_output = scales.len() == 1 || along && scales.shape() == [outputs];
    let per_sum = weight.len() / outputs;
    let sound = op.grain.block == 0
        && p.norm.is_none()
        && per_output
        && scales.dtype() == DType::F32
        && zeros.iter().all(|z| *z == zero)
        && p.alpha == 1.0
        && Conv8::fits(per_sum);
    if !sound {
        return None;
    }
    let scales = scales.as_f32()?;
    let scales: Vec<f32> = if scales.len() == 1 { vec![scales[0]; outputs] } else { scales.to_vec() };
    let bias = match p.bias {
        None => Some(vec![0; outputs]),
        Some(b) if p.beta == 1.0 => integer_bias(s, b, x, &scales),
        Some(_) => None,
    };
    let p = Product { ..*p };
    Some(Integer { p, codes, x, weight: weight.clone(), scales, bias })
}

/// The bias in units of the sums: that behind a DequantizeLinear with their scale, or a float one
/// rounded, as ONNX Runtime does it.
fn integer_bias(s: &Scope, port: Port, x: Affine, scales: &[f32]) -> Option<Vec<i32>> {
    let g = s.graph;
    if let Some(bias) = g.constant(port) {
        let values = vector(Some(bias.clone()), scales.len(), 1.0);
        let units: Vec<f32> = values.iter().zip(scales).map(|(b, w)| (b / (x.scale * w)).round_ties_even()).collect();
        let fits = |v: &f32| v.abs() < 1e9;
        return units.iter().all(fits).then(|| units.iter().map(|v| *v as i32).collect());
    }
    let Op::Dequantize(_) = g.op(port.node) else { return None };
    let bias = g.constant(g.operand(port.node, 0)?).filter(|t| t.dtype() == DType::I32)?;
    let of = g.constant(g.operand(port.node, 1)?)?.as_f32()?.into_owned();
    if let Some(z) = g.operand(port.node, 2)
        && g.constant(z)?.as_i64()?.iter().any(|z| *z != 0)
    {
        return None;
    }
    let same = |(i, w): (usize, &f32)| {
        let own = of[if of.len() == 1 { 0 } else { i }];
        (own - x.scale * w).abs() <= 1e-5 * own.abs()
    };
    let fits = bias.len() == scales.len() && (of.len() == 1 || of.len() == scales.len());
    (fits && scales.iter().enumerate().all(same))
        .then(|| bias.as_i64().map(|v| v.into_iter().map(|v| v as i32).collect()))
        .flatten()
}

impl Integer<'_> {
    fn weight(&self) -> Weight<i8> {
        let flip = if self.weight.dtype() == DType::U8 { 128 } else { 0 };
        let data: Vec<i8> = self.weight.bytes().iter().map(|b| (b ^ flip) as i8).collect();
        ordered(self.p.kind, self.weight.shape(), &data)
    }

    fn lowering<'g>(self, then: Option<UnaryOp>, finish: impl Fn(&Self) -> Result<Finish8> + 'g) -> Lowering<'g>
    where
        Self: 'g,
    {
        let operands = vec![self.codes];
        let parts = move || {
            let weight = self.weight();
            let at = Sliding::of(&self.p.kind, weight.kernel);
            Ok((weight, at, self.x.zero, finish(&self)?))
        };
        let parts = Rc::new(parts);
        let on_device = parts.clone();
        let lowering = Lowering::with(operands, move |isa| {
            let (w, at, zero, finish) = parts()?;
            Ok(Coded { kernel: CodeKernel::new(isa, &w, zero, finish, then), at, weight_bytes: w.data.len() })
        });
        lowering.on_device(move || {
            let (weight, at, zero, finish) = on_device()?;
            Ok(DeviceOp::Codes { weight, at, zero, finish, then })
        })
    }
}

/// An integer product whose sums become floats.
fn scaled<'g>(s: &Scope<'g>, p: &Product<'g>, end: End) -> Option<Lowering<'g>> {
    let i = integer(s, p)?;
    let bias = p.bias.map(|b| s.constant_later(b));
    let beta = p.beta;
    Some(i.lowering(end.then, move |i| {
        let scale: Vec<f32> = i.scales.iter().map(|w| i.x.scale * w).collect();
        let bias = vector(bias.as_ref().map(|b| b()).transpose()?, scale.len(), beta);
        Ok(Finish8::Scale { bias, scale, min: end.low, max: end.high })
    }))
}

/// An integer product whose sums become the codes of what `port` is, under `y`.
pub(super) fn requantized<'g>(s: &Scope<'g>, port: Port, y: Affine) -> Option<Lowering<'g>> {
    s.inner(port)?;
    let (at, low, high) = s.unclamped(port);
    s.inner(at)?;
    let i = integer(s, &product(s, at.node)?)?;
    i.bias.as_ref()?;
    Some(i.lowering(None, move |i| {
        // In this order, as ONNX Runtime has it.
        let scale = i.scales.iter().map(|w| i.x.scale * w / y.scale).collect();
        let bias = i.bias.clone().unwrap_or_default();
        Ok(Finish8::Requantize { bias, scale, zero: y.zero, min: y.quantize(low), max: y.quantize(high) })
    }))
}
