//! What moves the operands of attention: Reshapes and Transposes that part the heads, and multiplications by numbers.

use crate::axes::AxisRuns;
use compress_compiler::{
    forms::attention::Factor,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
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
