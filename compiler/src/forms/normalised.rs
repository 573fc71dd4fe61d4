//! `x / sqrt(mean(x²) + epsilon)`, of which LayerNormalization and RMSNormalization are made.

use crate::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, reduce::ReduceKind, unary::Unary},
    tensor::DType,
    value::Dim,
};

/// A value divided by its root mean square.
pub struct Normalised {
    /// The value.
    pub x: Port,
    /// Its type.
    pub dtype: DType,
    /// The first axis that the mean is taken over; the last of them is the value's last.
    pub axis: usize,
    /// The sizes of these axes.
    pub sizes: Vec<usize>,
    /// What is added to the mean.
    pub epsilon: f32,
}

impl Normalised {
    /// What the quotient, or product with a reciprocal, at `node` is, if it is that.
    pub fn of(graph: &Graph, node: NodeId) -> Option<Self> {
        let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
        let candidates = match graph.op(node) {
            Op::Binary(Binary::Div) => vec![(a, root(graph, b)?)],
            Op::Binary(Binary::Mul) => {
                [(a, b), (b, a)].into_iter().filter_map(|(x, r)| Some((x, reciprocal_root(graph, r)?))).collect()
            }
            _ => return None,
        };
        candidates.into_iter().find_map(|(x, variance)| Self::found(graph, x, variance))
    }

    fn found(graph: &Graph, x: Port, variance: Port) -> Option<Self> {
        let Op::Binary(Binary::Add) = graph.op(variance.node) else { return None };
        let (a, b) = (graph.operand(variance.node, 0)?, graph.operand(variance.node, 1)?);
        let (mean, epsilon) = match (number(graph, a), number(graph, b)) {
            (None, Some(e)) => (a, e),
            (Some(e), None) => (b, e),
            _ => return None,
        };
        let fact = graph.fact(x);
        let dtype = fact.dtype.filter(|t| matches!(t, DType::F32 | DType::F16))?;
        let rank = fact.rank()?;
        let axis = (0..rank).find(|axis| {
            let square = reduced(graph, mean, ReduceKind::Mean, *axis);
            square.is_some_and(|s| squared(graph, s) == Some(x))
        })?;
        // ONNX Runtime has no kernel that normalises over nothing.
        let size = |d: &Dim| usize::try_from(d.known()?).ok().filter(|n| *n > 0);
        let sizes = fact.dims()?[axis..].iter().map(size);
        let sizes = sizes.collect::<Option<Vec<_>>>()?;
        (epsilon >= 0.0).then_some(Self { x, dtype, axis, sizes, epsilon })
    }
}

/// The single number that a constant is. One of more axes would give them to the result.
fn number(graph: &Graph, port: Port) -> Option<f32> {
    match graph.constant(port).filter(|t| t.shape().len() <= 1)?.as_f32()?[..] {
        [v] => Some(v),
        _ => None,
    }
}

/// What `port` is the square root of.
fn root(graph: &Graph, port: Port) -> Option<Port> {
    let x = graph.operand(port.node, 0)?;
    match graph.op(port.node) {
        Op::Unary(Unary::Sqrt) => Some(x),
        Op::Binary(Binary::Pow) => (number(graph, graph.operand(port.node, 1)?)? == 0.5).then_some(x),
        _ => None,
    }
}

/// What `port` is the reciprocal of the square root of.
fn reciprocal_root(graph: &Graph, port: Port) -> Option<Port> {
    let x = graph.operand(port.node, 0)?;
    match graph.op(port.node) {
        Op::Unary(Unary::Reciprocal) => root(graph, x),
        Op::Binary(Binary::Div) => (number(graph, x)? == 1.0).then(|| root(graph, graph.operand(port.node, 1)?))?,
        Op::Binary(Binary::Pow) => (number(graph, graph.operand(port.node, 1)?)? == -0.5).then_some(x),
        _ => None,
    }
}

/// What `port` is the square of.
fn squared(graph: &Graph, port: Port) -> Option<Port> {
    let (a, b) = (graph.operand(port.node, 0)?, graph.operand(port.node, 1)?);
    match graph.op(port.node) {
        Op::Binary(Binary::Pow) => (number(graph, b)? == 2.0).then_some(a),
        Op::Binary(Binary::Mul) => (a == b).then_some(a),
        _ => None,
    }
}

/// What is reduced to `port` over exactly the axes from `axis` on, which stay.
pub fn reduced(graph: &Graph, port: Port, kind: ReduceKind, axis: usize) -> Option<Port> {
    let Op::Reduce(op) = graph.op(port.node) else { return None };
    let x = graph.operand(port.node, 0)?;
    let rank = graph.fact(x).rank()?;
    let axes = match graph.operand(port.node, 1) {
        Some(axes) => graph.constant(axes)?.as_i64()?,
        None => vec![],
    };
    let axes = op.axes(Some(&axes), rank).ok()?;
    (op.kind == kind && op.keepdims && axis < rank && axes.into_iter().eq(axis..rank)).then_some(x)
}
