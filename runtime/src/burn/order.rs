//! What a graph's outputs need, and in which order it is made: by nodes, or by other steps.

use super::{
    control::Branches,
    fused::{Fuse, Fusion},
};
use crate::cpu::{self, Form, Want};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    tensor::Tensor,
};
use std::collections::{HashMap, HashSet};

/// How else than node after node a graph is run.
pub(crate) struct Ways<'a> {
    /// What runs branches of If.
    pub branches: &'a Branches<'a>,
    /// What makes values in other steps than their nodes.
    pub fuse: &'a Fuse<'a>,
    /// Values that have to exist, besides outputs.
    pub shown: &'a [Port],
}

/// What makes a value.
pub(super) enum Maker {
    Node(NodeId),
    Fusion(Want, Fusion),
}

impl Maker {
    /// The node whose value it is.
    pub fn node(&self) -> NodeId {
        match self {
            Self::Node(id) => *id,
            Self::Fusion(want, _) => want.port.node,
        }
    }

    /// Its turn among those of one node: what changes only the form of a value comes behind what makes the value.
    fn turn(&self) -> usize {
        match self {
            Self::Node(_) => 0,
            Self::Fusion(want, fusion) => 1 + usize::from(fusion.operands.iter().any(|o| o.port == want.port)),
        }
    }
}

/// What outputs depend on, back to what is given, in an order in which it can be made.
pub(super) struct Order {
    pub makers: Vec<Maker>,
    /// The values that are read.
    pub asked: HashSet<Want>,
}

impl Order {
    /// `place` says where every node stands in the graph's order.
    ///
    /// # Errors
    /// What `ways` raise; a bug for codes that nothing makes.
    pub fn of(
        graph: &Graph,
        place: &HashMap<NodeId, usize>,
        given: &HashSet<Port>,
        outputs: &[Port],
        ways: &Ways,
    ) -> Result<Self> {
        let (mut nodes, mut fusions, mut asked) = (HashSet::new(), vec![], HashSet::new());
        let mut open: Vec<Want> = outputs.iter().chain(ways.shown).map(|p| Want::float(*p)).collect();
        while let Some(want) = open.pop() {
            if !asked.insert(want) || want.form == Form::Float && given.contains(&want.port) {
                continue;
            }
            if let Some(fusion) = (ways.fuse)(want)? {
                open.extend(fusion.operands.iter().copied());
                fusions.push(Maker::Fusion(want, fusion));
            } else if want.form == Form::Codes {
                return Err(Error::bug("codes that nothing makes").at(graph.node(want.port.node).label()));
            } else if nodes.insert(want.port.node) && !is_made_once(graph, want.port.node, given) {
                open.extend(graph.operands(want.port.node).into_iter().flatten().map(Want::float));
            }
        }
        let mut makers: Vec<Maker> = nodes.into_iter().map(Maker::Node).chain(fusions).collect();
        makers.sort_by_key(|maker| (place[&maker.node()], maker.turn()));
        Ok(Self { makers, asked })
    }
}

/// Whether a node makes of constants that are not `given` a weight, which is then made once.
fn is_made_once(graph: &Graph, node: NodeId, given: &HashSet<Port>) -> bool {
    let is_given =
        |port: Port| given.contains(&port) || graph.operands(port.node).iter().flatten().any(|p| given.contains(p));
    graph.constant(node.into()).is_none()
        && cpu::is_constant(graph, node.into())
        && !graph.operands(node).into_iter().flatten().any(is_given)
}

/// The weight that a node makes of constants: by DequantizeLinear, Cast, or Cast and Mul.
pub(super) fn made_once(graph: &Graph, node: NodeId, given: &HashSet<Port>) -> Result<Option<Tensor>> {
    if !is_made_once(graph, node, given) {
        return Ok(None);
    }
    cpu::constant(graph, node.into()).map(Some).ok_or_else(|| Error::malformed("constants that don't fit each other"))
}
