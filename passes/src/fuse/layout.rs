//! What the rules about shapes agree on.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator},
    ops::binary::Binary,
    value::{self, Dim},
};

/// A value with more readers than this is left alone: every one of them would look at all others.
const READERS: usize = 32;

/// Whether `node` hands on the elements of its first operand in their order, so that it could
/// be a Reshape.
pub(super) fn reshapes(graph: &Graph, node: NodeId) -> bool {
    let Some(x) = graph.operand(node, 0) else { return false };
    match graph.op(node) {
        op if op.reshapes() => true,
        Op::Transpose(t) => t.keeps_order(graph.fact(x)),
        // One entry of an axis that has one.
        Op::Gather(g) => {
            let one = graph.operand(node, 1).and_then(|i| graph.constant(i)).is_some_and(|i| i.len() == 1);
            one && graph
                .fact(x)
                .dims()
                .is_some_and(|d| value::axis(g.axis, d.len()).is_ok_and(|a| d[a] == Dim::Known(1)))
        }
        _ => false,
    }
}

/// Whether nobody needs `value` any more once the readers that pass `test` have found another.
pub(super) fn freed(graph: &Graph, value: Port, test: impl Fn(Use) -> bool) -> bool {
    let uses = graph.uses(value);
    !graph.is_output(value) && uses.len() <= READERS && uses.into_iter().all(test)
}

/// Whether axes of these sizes have surely equally many entries, and some.
pub(super) fn same_count(a: &[Dim], b: &[Dim]) -> bool {
    let count = |dims: &[Dim]| {
        let mut symbols: Vec<String> = dims.iter().filter(|d| d.known().is_none()).map(ToString::to_string).collect();
        symbols.sort_unstable();
        let known = dims.iter().filter_map(Dim::known).try_fold(1i64, i64::checked_mul);
        known.filter(|n| *n > 0 && !dims.contains(&Dim::Unknown)).map(|n| (n, symbols))
    };
    count(a).is_some_and(|n| Some(n) == count(b))
}

/// The axis of `to` that is `axis` of `from` when both shapes hold the same elements in one order.
pub(super) fn same_axis(from: &[Dim], axis: usize, to: &[Dim]) -> Option<usize> {
    (0..to.len()).find(|i| to[*i].same(&from[axis]) && same_count(&from[..axis], &to[..*i]))
}

/// The slot through which `node` computes each element from one of its operand's, all else
/// that it reads being constant, and how many of the last axes that constant has.
pub(super) fn elementwise(graph: &Graph, node: NodeId) -> Option<(usize, usize)> {
    match graph.op(node) {
        Op::Unary(_) | Op::Activation(_) | Op::IsInf(_) | Op::Cast(_) | Op::Clip(_) => {
            let fixed = graph.operands(node).into_iter().skip(1).flatten().all(|p| graph.constant(p).is_some());
            fixed.then_some((0, 0))
        }
        Op::Binary(op) => {
            let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
            let (slot, x, constant) = match (graph.constant(a), graph.constant(b)) {
                (None, Some(c)) => (0, a, c),
                (Some(c), None) if *op != Binary::PRelu => (1, b, c),
                _ => return None,
            };
            let shape = constant.shape();
            let axes = shape.len() - shape.iter().take_while(|n| **n == 1).count();
            // More axes would give the result more than the operand has.
            graph.fact(x).rank().filter(|r| *r >= shape.len()).map(|_| (slot, axes))
        }
        _ => None,
    }
}

/// Whether `node` is an operator on single elements with nothing but constants of one element.
pub(super) fn scalar(graph: &Graph, node: NodeId) -> Option<usize> {
    elementwise(graph, node).filter(|(_, axes)| *axes == 0).map(|(slot, _)| slot)
}
