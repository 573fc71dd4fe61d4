//! Functions of whole rows: Softmax, LayerNormalization, RMSNormalization.

use crate::cpu::{
    cost,
    device::DeviceOp,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::Result,
    forms::normalised::Normalised,
    node::Port,
    op::Op,
    ops::{binary::Binary, cast::Cast, softmax::SoftmaxKind},
    tensor::{DType, Tensor},
    value,
};
use compress_kernels as kernels;
use std::{rc::Rc, sync::Arc};

/// The float value `port`, where it is made row by row.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let x = g.operand(port.node, 0)?;
    let rank = s.rank(x).filter(|r| *r > 0)?;
    if !s.has(port.node) || g.fact(x).dtype != Some(DType::F32) || port.slot != 0 {
        return None;
    }
    match g.op(port.node) {
        Op::Softmax(op) if !op.coerced && op.kind != SoftmaxKind::Hard => {
            let axis = value::axis(op.axis, rank).ok()?;
            // The axis that lies last, in one layout or the other.
            let layout = match axis {
                _ if axis + 1 == rank => Layout::Plain,
                1 if rank > 2 => Layout::Pixels,
                _ => return None,
            };
            let (log, of_pixels) = (op.kind == SoftmaxKind::Log, layout == Layout::Pixels);
            let lowering = Lowering::of(vec![Want::float(x)], Softmax { log, layout });
            Some(lowering.on_device(move || Ok(DeviceOp::Softmax { log, of_pixels })))
        }
        Op::LayerNorm(op) if !op.statistics && op.stash_type == DType::F32 => {
            let last = value::axis(op.axis, rank).ok()? + 1 == rank;
            let scale = g.operand(port.node, 1)?;
            let bias = g.operand(port.node, 2);
            // One that is broadcast along the axis is left to Burn.
            let width = g.fact(x).dims()?.last()?.known();
            let vector = |p: Port| {
                let fits = |shape: Vec<usize>| matches!(shape[..], [n] if width == i64::try_from(n).ok());
                s.is_constant(p) && g.fact(p).fixed().is_some_and(fits)
            };
            if !last || !vector(scale) || !bias.is_none_or(vector) {
                return None;
            }
            let epsilon = op.epsilon;
            let (scale, bias) = (s.constant_later(scale), bias.map(|b| s.constant_later(b)));
            let constants = Rc::new(move || {
                let list = |t: Tensor| t.as_f32().map(|v| v.to_vec()).unwrap_or_default();
                Ok((list(scale()?), bias.as_ref().map(|b| b()).transpose()?.map(list)))
            });
            let on_device = constants.clone();
            let lowering = Lowering::with(vec![Want::float(x)], move |_| {
                let (scale, bias) = constants()?;
                Ok(LayerNorm(Arc::new((scale, bias, epsilon))))
            });
            Some(lowering.on_device(move || {
                let (scale, bias) = on_device()?;
                Ok(DeviceOp::LayerNorm { scale, bias, epsilon })
            }))
        }
        Op::RmsNorm(op) if op.stash_type == DType::F32 => {
            let scale = g.operand(port.node, 1)?;
            let width = g.fact(x).dims()?.last()?.known();
            let fits = |shape: Vec<usize>| matches!(shape[..], [n] if width == i64::try_from(n).ok());
            let last = value::axis(op.axis, rank).ok()? + 1 == rank;
            let is_vector = s.is_constant(scale) && g.fact(scale).fixed().is_some_and(fits);
            (last && is_vector).then(|| rms_norm(s, x, Some(scale), op.epsilon))
        }
        _ => None,
    }
}

/// The float value `port`, where it is a value divided by the root mean square of its rows as exporters write it, perhaps times a
/// constant for each column.
pub(super) fn root_mean_square<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let normalised = |port: Port| {
        let norm = Normalised::of(g, port.node).filter(|_| s.has(port.node))?;
        (norm.dtype == DType::F32 && norm.sizes.len() == 1).then_some(norm)
    };
    if let Some(norm) = normalised(port) {
        return Some(rms_norm(s, norm.x, None, norm.epsilon));
    }
    let Op::Binary(Binary::Mul) = g.op(port.node) else { return None };
    let (a, b) = (g.operand(port.node, 0)?, g.operand(port.node, 1)?);
    [(a, b), (b, a)].into_iter().filter(|_| s.has(port.node)).find_map(|(mut of, scale)| {
        if let Op::Cast(Cast { to: DType::F32, .. }) = g.op(s.inner(of)?) {
            of = g.operand(of.node, 0)?;
        }
        let norm = s.inner(of).and_then(|_| normalised(of))?;
        let dims = g.fact(scale).fixed()?;
        let is_row = dims.last() == norm.sizes.first() && dims.iter().rev().skip(1).all(|n| *n == 1);
        let fits = s.is_constant(scale) && is_row && Some(dims.len()) <= s.rank(norm.x);
        fits.then(|| rms_norm(s, norm.x, Some(scale), norm.epsilon))
    })
}

fn rms_norm<'g>(s: &Scope<'g>, x: Port, scale: Option<Port>, epsilon: f32) -> Lowering<'g> {
    let scale = scale.map(|scale| s.constant_later(scale));
    Lowering::with(vec![Want::float(x)], move |_| {
        let scale = scale.map(|scale| scale()).transpose()?;
        let scale = scale.map(|t| t.as_f32().map(|v| v.to_vec()).unwrap_or_default());
        Ok(RootMeanSquare(Arc::new((scale, epsilon))))
    })
}

struct Softmax {
    log: bool,
    layout: Layout,
}

impl Lowered for Softmax {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant && x.dims.len() > 1)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (x, y) = (p.read(inputs[0], self.layout), p.output(output, self.layout));
        let (isa, log) = (p.isa(), self.log);
        p.step("softmax", output, &[x], y, 0, cost::math(y.len()), move |o| match log {
            false => kernels::softmax(isa, o.read(0), o.out(), o.parts),
            true => kernels::log_softmax(isa, o.read(0), o.out(), o.parts),
        });
        Ok(())
    }
}

struct LayerNorm(Arc<(Vec<f32>, Option<Vec<f32>>, f32)>);

impl Lowered for LayerNorm {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant && x.dims.len() > 1)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (x, y) = (p.read(inputs[0], Layout::Plain), p.output(output, Layout::Plain));
        let (isa, of) = (p.isa(), self.0.clone());
        p.step("layer_norm", output, &[x], y, 0, cost::bytes(16 * y.len()), move |o| {
            let (scale, bias, epsilon) = &*of;
            kernels::layer_norm(isa, o.read(0), scale, bias.as_deref(), *epsilon, o.out(), o.parts);
        });
        Ok(())
    }
}

/// A scale, if there is one, and what is added to the mean.
struct RootMeanSquare(Arc<(Option<Vec<f32>>, f32)>);

impl Lowered for RootMeanSquare {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant && x.dims.len() > 1)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (x, y) = (p.read(inputs[0], Layout::Plain), p.output(output, Layout::Plain));
        let (isa, of) = (p.isa(), self.0.clone());
        p.step("rms_norm", output, &[x], y, 0, cost::bytes(16 * y.len()), move |o| {
            let (scale, epsilon) = &*of;
            kernels::rms_norm(isa, o.read(0), scale.as_deref(), *epsilon, o.out(), o.parts);
        });
        Ok(())
    }
}
