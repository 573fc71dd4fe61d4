//! A number that multiplies what layers read moves into their weights.

use super::{beside_number, layer::is_layer, shared};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator},
    ops::binary::Binary,
    pass::Context,
    rewrite::{Edit, Rule, Verdict},
    tensor::{DType, Tensor},
};

/// `layer(x * s)` is the layer with its weight times `s`, and `layer(x * s + c)` reads `x + c / s`.
pub(super) struct ScalePast;

impl Rule for ScalePast {
    fn name(&self) -> &'static str {
        "scale-past"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Mul", "Div"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(fuse(graph, node).unwrap_or(Verdict::No))
    }
}

fn fuse(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let (x, scale) = numbered(graph, node, &[Binary::Mul, Binary::Div])?;
    let scale = if *graph.op(node) == Op::Binary(Binary::Div) { 1.0 / scale } else { scale };
    // A layer makes up for it itself.
    if is_layer(graph.op(x.node)) && graph.only_use(x).is_some() || !(scale.abs() as f32).is_normal() || scale == 1.0 {
        return None;
    }
    let uses = graph.uses(node.into());
    // A number may be added between.
    let added = match &uses[..] {
        [u] => numbered(graph, u.node, &[Binary::Add]).map(|(_, term)| (u.node, term)),
        _ => None,
    };
    let end: Port = added.map_or(node, |(n, _)| n).into();
    let readers = graph.uses(end);
    let reads = |u: &Use| u.slot == 0 && weight(graph, u.node).is_some();
    if graph.is_output(end) || graph.is_output(node.into()) || readers.is_empty() || !readers.iter().all(reads) {
        return None;
    }
    let mut edit = Edit::new();
    let new = match added {
        None => x.into(),
        Some((sum, term)) => {
            let term = edit.constant("shift", Tensor::f32(&[], &[(term / scale) as f32]));
            edit.node(&graph.node(sum).name, Binary::Add, &[Some(x.into()), Some(term)])
        }
    };
    for u in &readers {
        let (port, tensor) = weight(graph, u.node)?;
        if graph.only_use(port).is_none() {
            return Some(shared(graph, port));
        }
        let values: Vec<f32> = tensor.as_f32()?.iter().map(|w| (f64::from(*w) * scale) as f32).collect();
        if !values.iter().all(|v| v.is_finite()) {
            return Some(Verdict::Skip("the fused weights would not be finite".into()));
        }
        let mut operands: Vec<_> = graph.operands(u.node).into_iter().map(|p| p.map(Into::into)).collect();
        let weight = edit.constant(&graph.value(port).name, Tensor::f32(tensor.shape(), &values));
        edit.replace(port, weight);
        (operands[0], operands[1]) = (Some(new), Some(weight));
        let layer = edit.node(&graph.node(u.node).name, graph.op(u.node).clone(), &operands);
        edit.replace(u.node.into(), layer);
    }
    Some(Verdict::Apply(edit))
}

/// The weight of a layer, in floats.
fn weight(graph: &Graph, node: NodeId) -> Option<(Port, &Tensor)> {
    let op = graph.op(node);
    let port = graph.operand(node, op.weight()?.slot).filter(|_| is_layer(op))?;
    let tensor = graph.constant(port).filter(|t| t.dtype() == DType::F32)?;
    (op.weight()?.slot == 1).then_some((port, tensor))
}

/// The operand that is not a constant, and the number that the other one is, of one of these operators.
fn numbered(graph: &Graph, node: NodeId, ops: &[Binary]) -> Option<(Port, f64)> {
    let Op::Binary(op) = graph.op(node) else { return None };
    let (x, number) = beside_number(graph, node).filter(|_| ops.contains(op))?;
    // A quotient of the number is not a product.
    (*op != Binary::Div || graph.operand(node, 0) == Some(x)).then_some((x, number))
}

/// `conv(x + c)` is the convolution with another bias, where it pads nothing.
pub(super) struct ShiftPast;

impl Rule for ShiftPast {
    fn name(&self) -> &'static str {
        "shift-past"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Add"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(shift(graph, node).unwrap_or(Verdict::No))
    }
}

fn shift(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let (x, term) = numbered(graph, node, &[Binary::Add])?;
    let readers = graph.uses(node.into());
    let pads_nothing = |n: NodeId| matches!(graph.op(n), Op::Conv(conv) if conv.window.pads_nothing());
    let reads = |u: &Use| u.slot == 0 && pads_nothing(u.node) && weight(graph, u.node).is_some();
    // What a layer makes has a bias of its own.
    let has_bias = is_layer(graph.op(x.node)) && graph.only_use(x).is_some();
    if has_bias || graph.is_output(node.into()) || readers.is_empty() || !readers.iter().all(reads) {
        return None;
    }
    let mut edit = Edit::new();
    for u in &readers {
        let (port, tensor) = weight(graph, u.node)?;
        let values = tensor.as_f32()?;
        let each = values.len() / tensor.shape()[0].max(1);
        let sums = values.chunks(each.max(1)).map(|row| row.iter().map(|w| f64::from(*w)).sum::<f64>() * term);
        let old = graph.operand(u.node, 2);
        let bias = match old {
            Some(bias) => graph.constant(bias).filter(|t| t.dtype() == DType::F32)?.as_f32()?.into_owned(),
            None => vec![0.0; tensor.shape()[0]],
        };
        let bias: Vec<f32> = sums.zip(&bias).map(|(s, b)| (s + f64::from(*b)) as f32).collect();
        if !bias.iter().all(|v| v.is_finite()) {
            return Some(Verdict::Skip("the fused bias would not be finite".into()));
        }
        let name = old.map_or_else(|| format!("{}_bias", graph.value(port).name), |b| graph.value(b).name.clone());
        let bias = edit.constant(&name, Tensor::f32(&[bias.len()], &bias));
        let operands = [Some(x.into()), Some(port.into()), Some(bias)];
        let layer = edit.node(&graph.node(u.node).name, graph.op(u.node).clone(), &operands);
        edit.replace(u.node.into(), layer);
    }
    Some(Verdict::Apply(edit))
}
