//! What multiplies and shifts a normalised value.

use compress_compiler::{
    forms::normalised::Normalised,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::binary::Binary,
    rewrite::{Edit, Ref},
    tensor::Tensor,
};

/// Scales of ones are made up to this many elements.
const MOST_ONES: usize = 1 << 16;

/// A scale of ones, unless it would be large.
pub(crate) fn ones(of: &Normalised) -> Option<Tensor> {
    let len = of.sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n <= MOST_ONES)?;
    Some(Tensor::floats(of.dtype, &of.sizes, &vec![1.0; len]))
}

/// The only reader of `port` if it multiplies by a constant that runs over the axes from `axis` on: the
/// product, and the constant.
pub fn scaled(graph: &Graph, port: Port, axis: usize) -> Option<(Port, Port, &Tensor)> {
    let reader = graph.only_use(port)?.node;
    let Op::Binary(Binary::Mul) = graph.op(reader) else { return None };
    with_constant(graph, reader, port, graph.fact(port).rank()? - axis)
}

/// What `node` makes of `port` and a constant that runs over the last `axes` axes at most, and the constant.
pub(crate) fn with_constant(graph: &Graph, node: NodeId, port: Port, axes: usize) -> Option<(Port, Port, &Tensor)> {
    let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
    let other = if a == port { b } else { a };
    let tensor = graph.constant(other)?;
    let shape = tensor.shape();
    let outer = shape.len().saturating_sub(axes);
    let fits = shape.len() <= graph.fact(port).rank()? && shape[..outer].iter().all(|d| *d == 1);
    (fits && tensor.dtype().is_float()).then_some((node.into(), other, tensor))
}

/// The constant at `port` with one element for each that is normalised.
pub(crate) fn as_scale(graph: &Graph, edit: &mut Edit, port: Port, tensor: &Tensor, sizes: &[usize]) -> Option<Ref> {
    if tensor.shape() == sizes {
        return Some(port.into());
    }
    // An axis of size 1 would grow to that of the constant.
    let aligned = tensor.shape().iter().rev().zip(sizes.iter().rev());
    if aligned.into_iter().any(|(d, size)| d != size && *d != 1) {
        return None;
    }
    let len = sizes.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).filter(|n| *n <= MOST_ONES)?;
    let tensor = match tensor.as_f32()?[..] {
        _ if tensor.len() == len => tensor.clone().reshaped(sizes.to_vec()).ok()?,
        [value] => Tensor::floats(tensor.dtype(), sizes, &vec![value; len]),
        _ => return None,
    };
    let new = edit.constant(&graph.value(port).name, tensor);
    if graph.only_use(port).is_some() {
        edit.replace(port, new);
    }
    Some(new)
}
