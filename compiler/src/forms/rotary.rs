//! Rotary position embedding (Su et al., "RoFormer", 2021) as Hugging Face's models compute it: features that are half the width
//! apart are turned by an angle, `x * cos + turned(x) * sin`.

use crate::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, slice::Slice, split::Split, unary::Unary},
    value,
};

/// Pairs of features, turned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// What is turned: features lie along its last axis.
    pub x: Port,
    /// What the features are multiplied by, broadcast to `x`.
    pub cos: Port,
    /// What those are multiplied by that take their places: the second half, negated, comes before the first.
    pub sin: Port,
    /// The products that are added, by `cos` and by `sin`.
    pub products: [NodeId; 2],
}

impl Rotary {
    /// What the sum at `node` is, if it is that.
    pub fn of(graph: &Graph, node: NodeId) -> Option<Self> {
        let Op::Binary(Binary::Add) = graph.op(node) else { return None };
        let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
        [(a, b), (b, a)].into_iter().find_map(|(straight, across)| {
            let (p, q) = factors(graph, across)?;
            let (x, sin) = [(p, q), (q, p)].into_iter().find_map(|(t, sin)| Some((turned(graph, t)?, sin)))?;
            let (p, q) = factors(graph, straight)?;
            let cos = [(p, q), (q, p)].into_iter().find(|(of, _)| *of == x)?.1;
            let alike = graph.fact(node.into()).rank() == graph.fact(x).rank();
            alike.then_some(Self { x, cos, sin, products: [straight.node, across.node] })
        })
    }
}

/// What `port` is the product of.
fn factors(graph: &Graph, port: Port) -> Option<(Port, Port)> {
    let Op::Binary(Binary::Mul) = graph.op(port.node) else { return None };
    Some((graph.operand(port.node, 0)?, graph.operand(port.node, 1)?))
}

/// Of what `port` has the second half of the last axis, negated, before the first.
fn turned(graph: &Graph, port: Port) -> Option<Port> {
    let Op::Concat(op) = graph.op(port.node) else { return None };
    let [Some(second), Some(first)] = graph.operands(port.node)[..] else { return None };
    let Op::Unary(Unary::Neg) = graph.op(second.node) else { return None };
    let (x, y) = (half(graph, graph.operand(second.node, 0)?, 1)?, half(graph, first, 0)?);
    let rank = graph.fact(x).rank()?;
    (x == y && value::axis(op.axis, rank).is_ok_and(|axis| axis + 1 == rank)).then_some(x)
}

/// Of what `port` is one half of the last axis: half 0 or half 1.
fn half(graph: &Graph, port: Port, which: usize) -> Option<Port> {
    let x = graph.operand(port.node, 0)?;
    let ints = |slot: usize| graph.constant(graph.operand(port.node, slot)?)?.as_i64();
    let dims = graph.fact(x).dims()?;
    let (last, size) = (dims.len().checked_sub(1)?, dims.last()?.known().filter(|n| *n > 0 && n % 2 == 0)?);
    match graph.op(port.node) {
        Op::Slice(_) => {
            let steps = if graph.operand(port.node, 4).is_some() { ints(4)? } else { vec![1] };
            let ([start], [end], [axis], [1]) = (&ints(1)?[..], &ints(2)?[..], &ints(3)?[..], &steps[..]) else {
                return None;
            };
            let axis = value::axis(*axis, dims.len()).ok().filter(|axis| *axis == last)?;
            let taken = Slice::take(axis, size, *start, *end, 1).ok()?;
            ((taken.start, taken.count) == (which as i64 * size / 2, size / 2)).then_some(x)
        }
        Op::Split(op) => {
            let sizes = if graph.operand(port.node, 1).is_some() { Some(ints(1)?) } else { None };
            let of_last = value::axis(op.axis, dims.len()).is_ok_and(|axis| axis == last);
            let halves = Split::sizes(op, sizes.as_deref(), size).is_ok_and(|sizes| sizes == [size / 2; 2]);
            (of_last && halves && port.slot == which).then_some(x)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    fn found(halves: &str, sum: &str) -> bool {
        let source = format!(
            r#"graph "g" {{
                input %x: f32[B,3,S,8]
                input %cos: f32[B,1,S,8]
                input %sin: f32[B,1,S,8]
                const %zero: i64[1] = [0]
                const %half: i64[1] = [4]
                const %end: i64[1] = [9223372036854775807]
                const %last: i64[1] = [-1]
                {halves}
                %n = Neg(%b)
                %t = Concat(%n, %a) {{axis=-1}}
                %p = Mul(%x, %cos)
                %q = Mul(%sin, %t)
                %y = {sum}
                output %y
            }}"#
        );
        let graph = text::parse(&source).unwrap();
        let rotary = Rotary::of(&graph, graph.outputs()[0].port.node);
        let name = |port: Port| graph.value(port).name.clone();
        rotary.is_some_and(|r| [r.x, r.cos, r.sin].map(name) == ["x", "cos", "sin"])
    }

    #[test]
    fn halves_are_turned_however_they_were_taken() {
        let slices = "%a = Slice(%x, %zero, %half, %last) %b = Slice(%x, %half, %end, %last)";
        let swapped = "%b = Slice(%x, %zero, %half, %last) %a = Slice(%x, %half, %end, %last)";
        let split = "%a, %b = Split(%x) {axis=3, num_outputs=2}";
        assert!(found(slices, "Add(%p, %q)") && found(slices, "Add(%q, %p)") && found(split, "Add(%p, %q)"));
        assert!(!found(swapped, "Add(%p, %q)") && !found(slices, "Sub(%p, %q)"));
    }
}
