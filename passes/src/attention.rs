//! How exporters write attention: `Softmax(Q * K' * scale + mask) * V`, around which Reshapes and
//! Transposes part the heads. Found by what is computed, not by one spelling.

use crate::axes::AxisRuns;
use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{binary::Binary, softmax::SoftmaxKind},
    value,
};

/// As many nodes move a value at most.
const MOVES: usize = 16;

/// What moves a value and multiplies it by numbers, up to where it is read.
pub struct Chain {
    /// The nodes, the first first.
    pub nodes: Vec<NodeId>,
    /// What the first of them reads.
    pub source: Port,
}

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

impl Chain {
    /// The chain that ends in `port`. Each of its values, and the source, has one reader.
    pub fn to(graph: &Graph, port: Port) -> Self {
        let mut nodes = vec![];
        let mut source = port;
        while nodes.len() < MOVES && graph.only_use(source).is_some() {
            let x = match graph.op(source.node) {
                Op::Transpose(_) => graph.operand(source.node, 0),
                op if op.reshapes() => graph.operand(source.node, 0),
                _ => Factor::of(graph, source.node).map(|f| f.x),
            };
            let Some(x) = x else { break };
            nodes.push(source.node);
            source = x;
        }
        nodes.reverse();
        Self { nodes, source }
    }

    /// The multiplications, the last first.
    pub fn factors(&self, graph: &Graph) -> Vec<Factor> {
        self.nodes.iter().rev().filter_map(|n| Factor::of(graph, *n)).collect()
    }

    /// The runs at the chain's end of the value that its node `from` reads, or ends in.
    pub fn layout(&self, graph: &Graph, from: usize) -> Option<AxisRuns> {
        let port = match from.checked_sub(1) {
            Some(before) => Port::from(*self.nodes.get(before)?),
            None => self.source,
        };
        let mut layout = AxisRuns::of(graph.fact(port).dims()?);
        for n in self.nodes.get(from..)? {
            if Factor::of(graph, *n).is_none() {
                layout = layout.through(graph, *n)?;
            }
        }
        Some(layout)
    }
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

/// What a Softmax makes weights of: products of queries and keys, scaled and masked.
pub struct Scores {
    /// The MatMul of queries and transposed keys.
    pub products: NodeId,
    /// Multiplications of the products before the mask, the last first.
    pub factors: Vec<Factor>,
    /// What is added behind.
    pub masks: Vec<Port>,
    /// Whether a Where replaces some of the products.
    pub replaced: bool,
}

/// Masks and scales that are looked through at most; each is tried on both sides of an Add.
const STEPS: usize = 4;

impl Scores {
    /// What `softmax` reads, if that is what this type describes and no other node reads any of it.
    pub fn of(graph: &Graph, softmax: NodeId) -> Option<Self> {
        let port = weighed(graph, softmax)?;
        Self::made(graph, port, graph.fact(port).rank()?, STEPS)
    }

    fn made(graph: &Graph, port: Port, rank: usize, steps: usize) -> Option<Self> {
        let steps = steps.checked_sub(1)?;
        if graph.only_use(port).is_none() || graph.fact(port).rank() != Some(rank) {
            return None;
        }
        let node = port.node;
        match graph.op(node) {
            Op::MatMul(_) => {
                let constant = graph.operands(node).into_iter().flatten().any(|p| graph.constant(p).is_some());
                (!constant).then(|| Self { products: node, factors: vec![], masks: vec![], replaced: false })
            }
            Op::Binary(Binary::Add) => {
                let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
                let (mut scores, mask) = Self::made(graph, a, rank, steps)
                    .map(|s| (s, b))
                    .or_else(|| Self::made(graph, b, rank, steps).map(|s| (s, a)))?;
                scores.masks.push(mask);
                Some(scores)
            }
            Op::Where(_) => {
                let made = |slot| Self::made(graph, graph.operand(node, slot)?, rank, steps);
                Some(Self { replaced: true, ..made(1).or_else(|| made(2))? })
            }
            _ => {
                let factor = Factor::of(graph, node)?;
                let mut scores = Self::made(graph, factor.x, rank, steps)?;
                // A mask that is scaled too is none that could be left where it is.
                if !scores.masks.is_empty() || scores.replaced {
                    return None;
                }
                scores.factors.insert(0, factor);
                Some(scores)
            }
        }
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
}

/// What `softmax` makes weights of, if its rows are the last axis.
pub fn weighed(graph: &Graph, softmax: NodeId) -> Option<Port> {
    let Op::Softmax(op) = graph.op(softmax) else { return None };
    let port = graph.operand(softmax, 0)?;
    let rank = graph.fact(port).rank().filter(|r| *r >= 2)?;
    let last = value::axis(op.axis, rank).is_ok_and(|a| a + 1 == rank);
    (op.kind == SoftmaxKind::Soft && !op.coerced && last).then_some(port)
}
