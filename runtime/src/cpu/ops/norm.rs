//! BatchNormalization of floats, where nothing before it takes it in.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::Result,
    node::{NodeId, Port},
    op::Op,
    tensor::DType,
};
use compress_kernels::{DepthwiseF, Window};
use std::sync::Arc;

/// Whether a node is a BatchNormalization by constants.
pub(super) fn is_constant(s: &Scope, id: NodeId) -> bool {
    let constants =
        (1..5).all(|slot| s.graph.operand(id, slot).is_some_and(|p| s.is_constant(p) && s.rank(p) == Some(1)));
    matches!(s.graph.op(id), Op::BatchNorm(op) if !op.training) && constants
}

/// What a BatchNormalization by constants multiplies each channel by, and what it adds.
pub(super) fn factors(s: &Scope, id: NodeId) -> Option<(Vec<f32>, Vec<f32>)> {
    let Op::BatchNorm(op) = s.graph.op(id) else { return None };
    let list = |slot: usize| Some(s.constant_later(s.graph.operand(id, slot)?)().ok()?.as_f32()?.into_owned());
    let (scale, bias, mean, variance) = (list(1)?, list(2)?, list(3)?, list(4)?);
    let factors: Vec<f32> = scale.iter().zip(&variance).map(|(s, v)| s / (v + op.epsilon).sqrt()).collect();
    let offsets = bias.iter().zip(mean.iter().zip(&factors)).map(|(b, (m, f))| b - m * f).collect();
    Some((factors, offsets))
}

/// The float value `port`, where it is a BatchNormalization.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let (at, low, high) = s.unclamped(port);
    let x = s.graph.operand(at.node, 0)?;
    let sound = s.has(at.node) && at.slot == 0 && is_constant(s, at.node) && s.rank(x)? >= 2;
    if !sound || s.graph.fact(x).dtype != Some(DType::F32) {
        return None;
    }
    let (factors, offsets) = factors(s, at.node)?;
    Some(Lowering::with(vec![Want::float(x)], move |isa| {
        let channels = factors.len();
        Ok(BatchNorm(Arc::new(DepthwiseF::new(isa, &factors, 1, channels, offsets, low, high))))
    }))
}

struct BatchNorm(Arc<DepthwiseF>);

impl Lowered for BatchNorm {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (x, y) = (p.read(inputs[0], Layout::Pixels), p.output(output, Layout::Pixels));
        let (window, kernel) = (Window::pixel(x.rows), self.0.clone());
        p.step("batch_norm", output, &[x], y, 0, cost::bytes(8 * y.len()), move |o| {
            let (x, parts) = (o.read(0), o.parts);
            let (y, scratch) = o.write();
            kernel.run(x, &window, y, scratch, parts);
        });
        Ok(())
    }
}
