//! Attention: `Softmax(Q * K' * scale + mask) * V`. Found by what is computed, not by one spelling.

use crate::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, softmax::SoftmaxKind, unary::Unary},
    value,
};

/// A multiplication by a number.
#[derive(Debug, Clone, Copy)]
pub struct Factor {
    /// The product.
    pub product: Port,
    /// What is multiplied.
    pub x: Port,
    /// The number.
    pub value: f64,
}

impl Factor {
    /// The factor that `node` multiplies by, if it does that and leaves the shape.
    pub fn of(graph: &Graph, node: NodeId) -> Option<Self> {
        let &Op::Binary(op) = graph.op(node) else { return None };
        let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
        let (x, constant) = match (op, graph.constant(a), graph.constant(b)) {
            (Binary::Mul | Binary::Div, None, Some(t)) => (a, t),
            (Binary::Mul, Some(t), None) => (b, t),
            _ => return None,
        };
        if constant.shape().len() > graph.fact(x).rank()? || constant.len() != 1 || !constant.dtype().is_float() {
            return None;
        }
        let value = f64::from(*constant.as_f32()?.first()?);
        let value = if op == Binary::Div { 1.0 / value } else { value };
        (value.is_finite() && value != 0.0).then_some(Self { product: node.into(), x, value })
    }
}

/// What takes scores out of the sum: those of keys that a query must not see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mask {
    /// It is added.
    Added(Port),
    /// A Where puts something else in the place of some.
    Chosen {
        /// What decides.
        condition: Port,
        /// Whether the scores stay where that is true, rather than where it is false.
        keeps: bool,
        /// What the others become.
        other: Port,
    },
}

/// What a Softmax makes weights of: products of queries and keys, scaled and masked.
pub struct Scores {
    /// The MatMul of queries and transposed keys.
    pub products: NodeId,
    /// Multiplications of the products before the masks, the last first.
    pub factors: Vec<Factor>,
    /// What is made of them then, the first first.
    pub masks: Vec<Mask>,
}

/// Whether nobody but the nodes of a form reads a value.
pub type Hidden<'a> = &'a dyn Fn(Port) -> bool;

/// Masks and scales that are looked through at most; each is tried on both sides of an Add.
const STEPS: usize = 4;

impl Scores {
    /// What `softmax` reads, if that is what this type describes and no other node reads any of it.
    pub fn of(graph: &Graph, softmax: NodeId) -> Option<Self> {
        Self::hidden(graph, softmax, &|port| graph.only_use(port).is_some())
    }

    /// As [`Scores::of`]; `hidden` says of a value whether no other node reads it.
    pub fn hidden(graph: &Graph, softmax: NodeId, hidden: Hidden) -> Option<Self> {
        let port = weighed(graph, softmax)?;
        Self::made(graph, port, hidden, STEPS)
    }

    fn made(graph: &Graph, port: Port, hidden: Hidden, steps: usize) -> Option<Self> {
        let steps = steps.checked_sub(1)?;
        if !hidden(port) {
            return None;
        }
        let node = port.node;
        let rank = graph.fact(port).rank();
        let alike = |scores: &Self| graph.fact(scores.products.into()).rank() == rank;
        let made = |slot| Self::made(graph, graph.operand(node, slot)?, hidden, steps).filter(alike);
        let scores = match graph.op(node) {
            Op::MatMul(_) => {
                let constant = graph.operands(node).into_iter().flatten().any(|p| graph.constant(p).is_some());
                (!constant).then(|| Self { products: node, factors: vec![], masks: vec![] })?
            }
            Op::Binary(Binary::Add) => {
                let (mut scores, mask) = made(0).map(|s| (s, 1)).or_else(|| made(1).map(|s| (s, 0)))?;
                scores.masks.push(Mask::Added(graph.operand(node, mask)?));
                scores
            }
            Op::Where(_) => {
                let (mut scores, keeps) = made(1).map(|s| (s, true)).or_else(|| made(2).map(|s| (s, false)))?;
                let other = graph.operand(node, if keeps { 2 } else { 1 })?;
                scores.masks.push(Mask::Chosen { condition: graph.operand(node, 0)?, keeps, other });
                scores
            }
            _ => {
                let factor = Factor::of(graph, node)?;
                let mut scores = Self::made(graph, factor.x, hidden, steps)?;
                // A mask that is scaled too is not one that could be left where it is.
                if !scores.masks.is_empty() {
                    return None;
                }
                scores.factors.insert(0, factor);
                scores
            }
        };
        Some(scores)
    }

    /// What becomes of the products that `node` makes, if it does.
    pub fn from(graph: &Graph, node: NodeId) -> Option<Self> {
        let mut softmax = node;
        for _ in 0..=STEPS {
            softmax = graph.only_use(softmax.into())?.node;
            if let Op::Softmax(_) = graph.op(softmax) {
                break;
            }
        }
        Self::of(graph, softmax).filter(|s| s.products == node)
    }

    /// The queries, `[.., queries, size]`, and the transposed keys, `[.., size, keys]`.
    pub fn operands(&self, graph: &Graph) -> Option<(Port, Port)> {
        Some((graph.operand(self.products, 0)?, graph.operand(self.products, 1)?))
    }

    /// Whether something else comes into the place of some of the products.
    pub fn are_replaced(&self) -> bool {
        self.masks.iter().any(|m| matches!(m, Mask::Chosen { .. }))
    }
}

/// What `softmax` makes weights of, if its rows are the last axis.
pub fn weighed(graph: &Graph, softmax: NodeId) -> Option<Port> {
    let Op::Softmax(op) = graph.op(softmax) else { return None };
    let port = graph.operand(softmax, 0)?;
    let rank = graph.fact(port).rank().filter(|r| *r >= 2)?;
    let last = value::axis(op.axis, rank).is_ok_and(|a| a + 1 == rank);
    (op.kind == SoftmaxKind::Soft && !op.coerced && last).then_some(port)
}

/// Weights of keys as they are multiplied by values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// The Softmax that makes them.
    pub softmax: NodeId,
    /// Whether those of a query that sees no key, which the Softmax makes NaN, become 0.
    pub guarded: bool,
}

impl Weights {
    /// The weights `port`: a Softmax, perhaps with what PyTorch writes behind it, `Where(IsNaN(w), 0, w)`. `hidden` says of a
    /// value whether no other node reads it; of `w`, whether none but these two do.
    pub fn hidden(graph: &Graph, port: Port, hidden: Hidden) -> Option<Self> {
        let softmax = |port: Port| matches!(graph.op(port.node), Op::Softmax(_)).then_some(port.node);
        if !hidden(port) {
            return None;
        }
        if let Some(softmax) = softmax(port) {
            return Some(Self { softmax, guarded: false });
        }
        let Op::Where(_) = graph.op(port.node) else { return None };
        let [condition, zero, weights] = graph.operands(port.node)[..] else { return None };
        let (condition, zero, weights) = (condition?, zero?, weights?);
        let is_zero = graph.constant(zero).is_some_and(|t| t.len() == 1 && t.all_f32(|v| v == 0.0) == Some(true));
        let guards = matches!(graph.op(condition.node), Op::Unary(Unary::IsNaN))
            && graph.operand(condition.node, 0) == Some(weights)
            && hidden(condition)
            && hidden(weights);
        (is_zero && guards).then_some(Self { softmax: softmax(weights)?, guarded: true })
    }
}
