//! What a node of another operator set stands for: a list of nodes of the default one.

use super::{Declared, Importer};
use crate::{
    attr::Reader,
    error::Result,
    node::Port,
    onnx::attribute,
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use onnx_protobuf::{AttributeProto, NodeProto, attribute_proto::AttributeType};
use std::collections::HashSet;

/// The opset as of which operators are listed, if they are not newer.
const OPSET: i64 = 13;

/// The opset that an operator is listed as of.
fn opset_of(op_type: &str) -> i64 {
    match op_type {
        "HardSwish" => 14,
        // With blocks.
        "DequantizeLinear" => 21,
        "LayerNormalization" => 17,
        "Gelu" => 20,
        "RotaryEmbedding" => 23,
        _ => OPSET,
    }
}

/// The nodes that `node` stands for, as far as they are listed. Values in between have names of their own.
pub(super) struct Listing<'a> {
    importer: &'a Importer<'a>,
    /// The node.
    pub(super) node: &'a NodeProto,
    /// Names that a value in between must not have.
    taken: HashSet<String>,
    /// The names of the values in between.
    own: Vec<String>,
    constants: Vec<(String, Tensor)>,
    nodes: Vec<NodeProto>,
}

impl<'a> Listing<'a> {
    fn new(importer: &'a Importer<'a>, node: &'a NodeProto) -> Self {
        let taken = node.input.iter().chain(&node.output).cloned().collect();
        Self { importer, node, taken, own: vec![], constants: vec![], nodes: vec![] }
    }

    /// Something if the node has at most so many inputs and outputs, and makes the first of these.
    pub(super) fn fits(&self, inputs: usize, outputs: usize) -> Option<()> {
        let used = |names: &[String]| names.iter().rposition(|name| !name.is_empty()).map_or(0, |i| i + 1);
        let fits = used(&self.node.input) <= inputs && used(&self.node.output) <= outputs;
        (fits && self.wants(0)).then_some(())
    }

    /// Whether the node's output `slot` is asked for.
    pub(super) fn wants(&self, slot: usize) -> bool {
        self.node.output.get(slot).is_some_and(|name| !name.is_empty())
    }

    /// The name of the node's input `slot`, if it is given.
    pub(super) fn given(&self, slot: usize) -> Option<&'a str> {
        let name = self.node.input.get(slot).filter(|name| !name.is_empty())?;
        self.port(name)?;
        Some(name)
    }

    /// Where the value called `name` comes from.
    fn port(&self, name: &str) -> Option<Port> {
        self.importer.values.get(name).copied().flatten()
    }

    /// What is known of the node's input `slot`, if it is given.
    pub(super) fn fact(&self, slot: usize) -> Option<&'a Fact> {
        let port = self.port(self.given(slot)?)?;
        Some(self.importer.graph.fact(port))
    }

    /// The dimensions of the node's input `slot`, if it is given and they are known.
    pub(super) fn dims(&self, slot: usize) -> Option<&'a [Dim]> {
        self.fact(slot)?.dims()
    }

    /// The constant that the node's input `slot` is, in its graph or around it.
    pub(super) fn tensor(&self, slot: usize) -> Option<&'a Tensor> {
        self.importer.constant_at(self.port(self.given(slot)?)?)
    }

    /// The element type of the node's input `slot`, if it is one that models compute in.
    pub(super) fn float(&self, slot: usize) -> Option<DType> {
        self.fact(slot)?.dtype.filter(|t| matches!(t, DType::F32 | DType::F64 | DType::F16 | DType::BF16))
    }

    /// The attributes of the node, if each is given once.
    pub(super) fn reader(&self) -> Option<Reader> {
        let names: HashSet<&str> = self.node.attribute.iter().map(|a| &a.name[..]).collect();
        if names.len() != self.node.attribute.len() {
            return None;
        }
        let attrs = self.node.attribute.iter().map(|a| attribute::read(a.clone(), self.importer.source).ok());
        let attrs = attrs.collect::<Option<Vec<_>>>()?;
        let (inputs, outputs) = (self.node.input.len(), self.node.output.len());
        Some(Reader::new(&self.node.op_type, self.importer.opset, inputs, outputs, Fact::default(), attrs))
    }

    /// A name that nothing has, for what is said to be a `what`.
    fn name(&mut self, what: &str) -> String {
        let base = format!("{}/{what}", self.node.output.first().map_or("", |name| name));
        let number = |i: usize| if i == 0 { base.clone() } else { format!("{base}.{i}") };
        let is_free = |name: &String| !self.importer.values.contains_key(name) && !self.taken.contains(name);
        // The numbers don't end before the memory does.
        let name = (self.own.len()..).map(number).find(is_free).unwrap_or_default();
        self.taken.insert(name.clone());
        self.own.push(name.clone());
        name
    }

    /// Lists a constant, and says how it is called.
    pub(super) fn constant(&mut self, tensor: Tensor) -> String {
        let name = self.name("constant");
        self.constants.push((name.clone(), tensor));
        name
    }

    /// Lists a vector of whole numbers.
    pub(super) fn ints(&mut self, values: &[i64]) -> String {
        self.constant(Tensor::i64s(values))
    }

    /// Lists a whole number.
    pub(super) fn int(&mut self, value: i64) -> String {
        self.constant(Tensor::ints(DType::I64, &[], &[value]))
    }

    /// Lists a number of the float type `dtype`.
    pub(super) fn number(&mut self, dtype: DType, value: f32) -> String {
        self.constant(Tensor::floats(dtype, &[], &[value]))
    }

    /// Lists an operator without attributes, and says how its result is called.
    pub(super) fn op(&mut self, op_type: &str, inputs: &[&str]) -> String {
        self.with(op_type, inputs, vec![])
    }

    /// Lists an operator, and says how its result is called.
    pub(super) fn with(&mut self, op_type: &str, inputs: &[&str], attributes: Vec<AttributeProto>) -> String {
        let [result] = self.many(op_type, inputs, attributes);
        result
    }

    /// Lists an operator of `N` results, and says how they are called.
    pub(super) fn many<const N: usize>(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) -> [String; N] {
        let results: [String; N] = std::array::from_fn(|_| self.name(op_type));
        self.nodes.push(NodeProto {
            op_type: op_type.into(),
            input: inputs.iter().map(|name| String::from(*name)).collect(),
            output: results.to_vec(),
            attribute,
            ..Default::default()
        });
        results
    }

    /// Makes the operator listed last the one that has the node's name, and all that is said of it.
    pub(super) fn keeps_name(&mut self) {
        if let Some(last) = self.nodes.last_mut() {
            last.name = self.node.name.clone();
            last.doc_string = self.node.doc_string.clone();
            last.metadata_props = self.node.metadata_props.clone();
        }
    }

    /// Makes the listed `value` the node's output `slot`, if that is asked for. What is listed later must not read it.
    pub(super) fn result(&mut self, slot: usize, value: &str) {
        let Some(name) = self.node.output.get(slot).filter(|name| !name.is_empty()) else { return };
        for n in &mut self.nodes {
            n.input.iter_mut().chain(&mut n.output).filter(|v| v.as_str() == value).for_each(|v| v.clone_from(name));
        }
    }
}

impl Importer<'_> {
    /// Adds the nodes that `node` stands for, if `list` knows them and the model may have them, and says whether that
    /// is so.
    pub(super) fn stands_for(
        &mut self,
        node: &NodeProto,
        declared: &Declared,
        list: impl FnOnce(&mut Listing) -> Option<()>,
    ) -> Result<bool> {
        // A value that nothing makes is an error, which is raised where the node is kept as it came.
        if node.input.iter().any(|name| !name.is_empty() && !self.values.contains_key(name)) {
            return Ok(false);
        }
        let mut listing = Listing::new(self, node);
        if list(&mut listing).is_none() {
            return Ok(false);
        }
        let Listing { own, constants, nodes, .. } = listing;
        let opset = nodes.iter().map(|n| opset_of(&n.op_type)).max().unwrap_or(OPSET);
        if opset > self.newest {
            return Ok(false);
        }
        for (name, tensor) in constants {
            self.constant(&name, tensor)?;
        }
        let outer = self.opset;
        self.opset = outer.max(opset);
        let nothing = Declared::default();
        let added = nodes.iter().try_for_each(|n| {
            let is_result = n.output.iter().any(|name| node.output.contains(name));
            self.node(n, if is_result { declared } else { &nothing })
        });
        self.opset = outer;
        added?;
        let read = node.input.iter().filter_map(|name| self.values.get(name).copied().flatten());
        self.spent.extend(read.filter(|port| self.graph.constant(*port).is_some()).map(|port| port.node));
        // Others may have these names.
        own.iter().for_each(|name| _ = self.values.remove(name));
        Ok(true)
    }
}

fn typed(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.into(), type_: kind.into(), ..Default::default() }
}

/// A whole number as an attribute.
pub(super) fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: value, ..typed(name, AttributeType::INT) }
}

/// A list of whole numbers as an attribute.
pub(super) fn ints(name: &str, values: &[i64]) -> AttributeProto {
    AttributeProto { ints: values.to_vec(), ..typed(name, AttributeType::INTS) }
}

/// A number as an attribute.
pub(super) fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: value, ..typed(name, AttributeType::FLOAT) }
}

/// A word as an attribute.
pub(super) fn text(name: &str, value: &str) -> AttributeProto {
    AttributeProto { s: value.into(), ..typed(name, AttributeType::STRING) }
}
