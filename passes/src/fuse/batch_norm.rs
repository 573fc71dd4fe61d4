//! BatchNormalization after a layer moves into the layer's weight and bias.

use super::{
    layer::{ConstantLayer, is_layer, widened},
    shared,
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    op::Op,
    pass::Context,
    rewrite::{Rule, Verdict},
};

/// `BatchNormalization(Conv(x))` is one Conv; so with ConvTranspose and Gemm.
pub(super) struct ConvBatchNorm;

impl Rule for ConvBatchNorm {
    fn name(&self) -> &'static str {
        "conv-batch-norm"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["BatchNormalization"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(fuse(graph, node).unwrap_or_else(|verdict| verdict))
    }
}

fn fuse(graph: &Graph, node: NodeId) -> Result<Verdict, Verdict> {
    let (Op::BatchNorm(norm), Some(x)) = (graph.op(node), graph.operand(node, 0)) else { return Err(Verdict::No) };
    if norm.training || !is_layer(graph.op(x.node)) {
        return Err(Verdict::No);
    }
    if graph.only_use(x).is_none() {
        return Err(shared(graph, x));
    }
    let mut layer = ConstantLayer::new(graph, x.node)?;
    // A MatMul of more than two axes has its channels last, BatchNormalization has them second.
    if layer.output.1 != 1 {
        return Err(Verdict::No);
    }
    let parameter = |slot| {
        let port = graph.operand(node, slot).ok_or(Verdict::No)?;
        let name = &graph.value(port).name;
        let tensor = graph.constant(port).ok_or_else(|| Verdict::Skip(format!("`{name}` is not constant")))?;
        widened(tensor).filter(|v| v.len() == layer.channels).ok_or(Verdict::No)
    };
    let (gamma, beta, mean, var) = (parameter(1)?, parameter(2)?, parameter(3)?, parameter(4)?);
    let var: Vec<f64> = var.iter().map(|v| v + f64::from(norm.epsilon)).collect();
    if !var.iter().all(|v| *v > 0.0) {
        return Err(Verdict::Skip("its variance is not positive".into()));
    }
    let scale: Vec<f64> = gamma.iter().zip(&var).map(|(g, v)| g / v.sqrt()).collect();
    let shift: Vec<f64> = beta.iter().zip(&mean).zip(&scale).map(|((b, m), s)| b - m * s).collect();
    layer.channel_scale = Some(gamma.iter().map(|v| *v as f32).collect());
    Ok(layer.absorb(node.into(), &scale, &shift))
}
