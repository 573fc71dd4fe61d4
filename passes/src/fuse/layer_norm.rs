//! LayerNormalization, which exporters write as arithmetic for opsets below 17.

use crate::normalise::{as_scale, ones, scaled, with_constant};
use compress_compiler::{
    error::Result,
    forms::normalised::{Normalised, reduced},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, layer_norm::LayerNorm, reduce::ReduceKind},
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::{DType, Tensor},
};

/// `(x - mean) / sqrt(mean((x - mean)²) + epsilon) * scale + bias` is one LayerNormalization.
pub(super) struct FindLayerNorm {
    /// The newest opset that the model can move to.
    pub(super) newest: i64,
}

impl Rule for FindLayerNorm {
    fn name(&self) -> &'static str {
        "layer-norm"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Div", "Mul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(match find(graph, node) {
            Some(_) if self.newest < 17 => Verdict::Skip("the model can't move to opset 17, which has it".into()),
            found => found.unwrap_or(Verdict::No),
        })
    }
}

fn find(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let norm = Normalised::of(graph, node)?;
    let x = centred(graph, norm.x, norm.axis)?;
    let mut edit = Edit::new();
    let mut result = Port::from(node);
    let scale = scaled(graph, result, norm.axis)
        .and_then(|(product, port, tensor)| Some((product, as_scale(graph, &mut edit, port, tensor, &norm.sizes)?)));
    let scale = match scale {
        Some((product, scale)) => {
            result = product;
            scale
        }
        None => edit.constant("scale", ones(&norm)?),
    };
    let mut operands = vec![Some(x.into()), Some(scale)];
    if let Some((sum, port, tensor)) = shifted(graph, result, norm.sizes.len())
        && let Some(bias) = as_scale(graph, &mut edit, port, tensor, &norm.sizes)
    {
        result = sum;
        operands.push(Some(bias));
    }
    let axis = norm.axis as i64 - graph.fact(x).rank()? as i64;
    let op = LayerNorm { axis, epsilon: norm.epsilon, stash_type: DType::F32, statistics: false };
    let fused = edit.node(&graph.node(result.node).name, op, &operands);
    edit.replace(result, fused);
    Some(Verdict::Apply(edit))
}

/// What `port` has without its mean along all axes from `axis` on.
fn centred(graph: &Graph, port: Port, axis: usize) -> Option<Port> {
    let Op::Binary(Binary::Sub) = graph.op(port.node) else { return None };
    let (x, mean) = (graph.operand(port.node, 0)?, graph.operand(port.node, 1)?);
    let of = reduced(graph, mean, ReduceKind::Mean, axis)?;
    (of == x).then_some(x)
}

/// The only reader of `port` if it adds a constant that runs over the last `axes` axes at most.
fn shifted(graph: &Graph, port: Port, axes: usize) -> Option<(Port, Port, &Tensor)> {
    let reader = graph.only_use(port)?.node;
    let Op::Binary(Binary::Add) = graph.op(reader) else { return None };
    with_constant(graph, reader, port, axes)
}
