//! The parts of a graph: nodes, the values they make, and how both are addressed.

use crate::{
    op::{Op, Operator},
    value::Fact,
};
use std::{fmt, sync::Arc};

/// Addresses a node; stays valid while other nodes come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(crate) u32);

/// Addresses one output of a node, i.e. a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Port {
    /// The node that makes the value.
    pub node: NodeId,
    /// Which of its outputs.
    pub slot: usize,
}

impl From<NodeId> for Port {
    /// The first output.
    fn from(node: NodeId) -> Self {
        Port { node, slot: 0 }
    }
}

/// Addresses a value of a graph, or of one that its operators run (If, Loop, Scan).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Site {
    /// From the outermost graph in: the operator, and which of its bodies. Empty for a value of that graph itself.
    pub within: Vec<(NodeId, usize)>,
    /// The value.
    pub port: Port,
}

impl Site {
    /// The value, if the graph itself has it.
    pub fn here(&self) -> Option<Port> {
        self.within.is_empty().then_some(self.port)
    }

    /// The node of the outermost graph that makes the value, or that runs the graph which does.
    pub fn outermost(&self) -> NodeId {
        self.within.first().map_or(self.port.node, |w| w.0)
    }
}

impl From<Port> for Site {
    /// A value of the graph itself.
    fn from(port: Port) -> Self {
        Site { within: vec![], port }
    }
}

/// One place where a value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Use {
    /// The node that reads.
    pub node: NodeId,
    /// Which of its inputs.
    pub slot: usize,
}

/// A value: its ONNX name, unique in the graph, and what is known of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// The name; empty for an optional output that nobody asked for.
    pub name: String,
    /// Type, shape, elements.
    pub fact: Fact,
    /// The scale of each channel, axis 1, from a BatchNormalization that was folded into the node that makes the value.
    pub channel_scale: Option<Arc<[f32]>>,
}

impl Value {
    /// A value of which `fact` is known.
    pub fn new(name: impl Into<String>, fact: Fact) -> Self {
        Self { name: name.into(), fact, channel_scale: None }
    }
}

/// What a file says of a node besides what it computes.
#[derive(Debug, Clone, PartialEq)]
pub struct Remarks {
    /// Its documentation.
    pub doc: String,
    /// Metadata, by key.
    pub metadata: Vec<(String, String)>,
}

/// An operator with the values it makes. Its inputs are the graph's edges.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The ONNX node name; may be empty, need not be unique.
    pub name: String,
    /// What it computes.
    pub op: Op,
    /// The values it makes, one an output slot.
    pub outputs: Vec<Value>,
    /// What else the file said of it; few have any.
    pub remarks: Option<Box<Remarks>>,
}

impl Node {
    /// How messages call this node: its name, else its first output's, with the operator.
    pub fn label(&self) -> String {
        format!("`{}` ({})", self.display_name(), self.op.op_type())
    }

    /// The name a user knows this node by: its own, else its first output's.
    pub fn display_name(&self) -> &str {
        match &self.name[..] {
            "" => self.outputs.first().map_or("", |v| &v.name),
            name => name,
        }
    }
}

/// A graph output: a value under the name by which callers ask for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The name.
    pub name: String,
    /// The value.
    pub port: Port,
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
