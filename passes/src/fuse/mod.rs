//! Pass "fuse": several operators become one that computes the same.
//!
//! One file a rule. All take a value out of the graph, so it must have one reader and be no
//! graph output; a constant that others read too is left to them, the fused operator gets its
//! own. `tests/passes/golden/fuse` shows each rule at work, and where it must not apply.

mod affine;
mod attention;
mod batch_norm;
mod branch;
mod clamp;
mod constants;
mod dilate;
mod gelu;
mod hard_swish;
mod keepdims;
mod layer;
mod layer_norm;
mod layout;
mod matmul_add;
mod one_hot;
mod pad;
mod reshape;
mod scale_past;
mod scatter;
mod shape;
pub(crate) mod slice;
mod softmax;
mod split;
mod squeeze;
mod stack;
mod transpose;

use crate::target::newest;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Operator,
    pass::{Context, Outcome, Pass},
    rewrite::{Edit, Ref, Rule, Verdict, rewrite},
    tensor::Tensor,
};

/// The pass "fuse".
#[derive(Debug)]
pub struct Fuse;

impl Pass for Fuse {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let newest = newest(graph);
        let rules: Vec<Box<dyn Rule>> = vec![
            Box::new(batch_norm::ConvBatchNorm),
            Box::new(affine::LayerAffine),
            Box::new(matmul_add::MatMulAdd),
            Box::new(one_hot::OneHotProduct { newest }),
            Box::new(gelu::FindGelu { newest }),
            Box::new(hard_swish::FindHardSwish { newest }),
            Box::new(scale_past::ScalePast),
            Box::new(scale_past::ShiftPast),
            Box::new(layer_norm::FindLayerNorm { newest }),
            Box::new(attention::AttentionScale),
            Box::new(attention::KeyBias),
            Box::new(attention::ValueBias),
            Box::new(constants::ConstantPair),
            Box::new(pad::PadWindow),
            Box::new(dilate::DilatedTaps),
            Box::new(transpose::TransposePair),
            Box::new(transpose::TransposeMatrices),
            Box::new(squeeze::SqueezePair),
            Box::new(squeeze::BiasPastSqueeze),
            Box::new(softmax::FindSoftmax { newest }),
            Box::new(keepdims::KeepDims),
            Box::new(reshape::ReshapePair),
            Box::new(reshape::ReshapePast),
            Box::new(stack::ReshapedConcat),
            Box::new(shape::ShapePart { newest }),
            Box::new(slice::SliceAll),
            Box::new(slice::SlicePair),
            Box::new(scatter::ReadPastWrite),
            Box::new(scatter::WriteAll),
            Box::new(split::SplitSlices { newest }),
            Box::new(split::BeforeSplit),
            Box::new(clamp::ClampPair),
            Box::new(branch::IfNot),
            Box::new(branch::IfPair),
        ];
        rewrite(graph, &rules, cx)
    }
}

/// The integers that a constant at `port` holds.
fn ints(graph: &Graph, port: Port) -> Option<Vec<i64>> {
    graph.constant(port)?.as_i64()
}

/// The operand of a node that is not a constant, and the number that the other one is, which gives the result no more axes.
fn beside_number(graph: &Graph, node: NodeId) -> Option<(Port, f64)> {
    let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
    let (x, constant) = match (graph.constant(a), graph.constant(b)) {
        (None, Some(constant)) => (a, constant),
        (Some(constant), None) => (b, constant),
        _ => return None,
    };
    let rank = graph.fact(x).rank()?;
    match constant.as_f32()?[..] {
        [v] if constant.shape().len() <= rank => Some((x, f64::from(v))),
        _ => None,
    }
}

/// Adds `tensor` as the successor of the constant `old`, under its name if nobody else reads it.
fn succeed(graph: &Graph, edit: &mut Edit, old: Port, tensor: Tensor) -> Ref {
    let new = edit.constant(&graph.value(old).name, tensor);
    if graph.only_use(old).is_some() {
        edit.replace(old, new);
    }
    new
}

/// Why the producer of `value` stays.
fn shared(graph: &Graph, value: Port) -> Verdict {
    let node = graph.node(value.node);
    Verdict::Skip(format!("the result of {} `{}` is needed elsewhere too", node.op.op_type(), node.display_name()))
}
