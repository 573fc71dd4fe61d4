//! Model-local functions: found by the nodes that call them, copied with the call's attributes.

use super::{limits, opset};
use crate::error::{Error, Result};
use onnx_protobuf::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use std::{cell::Cell, collections::HashMap};

/// Domain, name and overload: what tells functions apart.
pub type Key = (String, String, String);

/// A function that can be put where it is called.
pub struct Function {
    /// What tells it apart.
    pub key: Key,
    /// As the file has it.
    pub proto: FunctionProto,
    /// The version of the default operator set that it was written for, if it says.
    pub opset: Option<i64>,
}

/// The functions of a model.
#[derive(Default)]
pub struct Functions {
    all: HashMap<Key, Function>,
    /// Nodes that calls have made.
    made: Cell<usize>,
}

impl Functions {
    /// Takes the functions of a file.
    ///
    /// # Errors
    /// Malformed when two are the same; unsupported for an operator set we don't read.
    pub fn new(protos: &[FunctionProto]) -> Result<Self> {
        let mut all = HashMap::new();
        for proto in protos {
            let key = (domain(&proto.domain), proto.name.clone(), proto.overload.clone());
            let version = opset::default_domain(&proto.opset_import);
            if let Some(v) = version.filter(|v| !(7..=opset::NEWEST).contains(v)) {
                return Err(Error::unsupported(format!("function `{}` of opset {v}", proto.name))
                    .help("export the model at opset 7 or newer"));
            }
            let function = Function { key: key.clone(), proto: proto.clone(), opset: version };
            if all.insert(key, function).is_some() {
                return Err(Error::malformed(format!("two functions are called `{}`", proto.name)));
            }
        }
        Ok(Self { all, made: Cell::new(0) })
    }

    /// The function that a node calls.
    pub fn of(&self, node: &NodeProto) -> Option<&Function> {
        if self.all.is_empty() {
            return None;
        }
        self.all.get(&(domain(&node.domain), node.op_type.clone(), node.overload.clone()))
    }

    /// Whether a node that stays as it is, or one in its subgraphs, calls a function.
    pub fn needed_by(&self, node: &NodeProto) -> bool {
        self.of(node).is_some() || opset::subgraphs(node).flat_map(|g| &g.node).any(|n| self.needed_by(n))
    }
}

fn domain(name: &str) -> String {
    if opset::is_default(name) { String::new() } else { name.into() }
}

impl Function {
    /// The nodes of the function for a call with `attributes`.
    ///
    /// # Errors
    /// Limit when calls have made too many nodes: functions that call each other twice grow
    /// without a bound. Unsupported for a call that hands a graph over.
    pub fn nodes(&self, attributes: &[AttributeProto], functions: &Functions) -> Result<Vec<NodeProto>> {
        let made = functions.made.get() + self.proto.node.len();
        functions.made.set(made);
        if made > limits::MAX_INLINED {
            return Err(Error::limit(format!("its functions stand for more than {} nodes", limits::MAX_INLINED)));
        }
        if let Some(a) = attributes.iter().find(|a| a.g.is_some() || !a.graphs.is_empty()) {
            return Err(Error::unsupported(format!("a function that is given the graph `{}`", a.name))
                .help("inline it first: onnx.inliner.inline_local_functions"));
        }
        // What the call gives wins over the function's defaults.
        let given = self.proto.attribute_proto.iter().chain(attributes).map(|a| (&a.name[..], a)).collect();
        let mut nodes = self.proto.node.clone();
        nodes.iter_mut().for_each(|n| bind(n, &given));
        Ok(nodes)
    }
}

/// Replaces attributes that refer to the function's own. What the call leaves out is left out.
fn bind(node: &mut NodeProto, given: &HashMap<&str, &AttributeProto>) {
    node.attribute.retain_mut(|a| {
        if !a.ref_attr_name.is_empty() {
            let Some(value) = given.get(&a.ref_attr_name[..]) else { return false };
            *a = AttributeProto { name: std::mem::take(&mut a.name), ..AttributeProto::clone(value) };
        }
        let graphs = a.g.0.iter_mut().map(|g| &mut **g).chain(&mut a.graphs);
        graphs.for_each(|g: &mut GraphProto| g.node.iter_mut().for_each(|n| bind(n, given)));
        true
    });
}
