//! From an ONNX file to a graph.

use super::{Model, attribute, limits, opset, tensor, wire};
use crate::{
    attr::{Attr, Reader},
    error::{Error, Result},
    graph::Graph,
    node::Port,
    op::{Op, Operator},
    ops::{opaque::Opaque, source::Input},
    tensor::{DType, Tensor},
    value::Fact,
};
use onnx_protobuf::{GraphProto, Message, ModelProto, NodeProto};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs::File,
    path::Path,
};

/// Reads the model at `path`.
///
/// # Errors
/// File when it can't be read; malformed, limit or unsupported for what is wrong inside,
/// naming the node.
pub fn read(path: &Path) -> Result<Model> {
    load(path).map_err(|e| e.in_file(path))
}

fn load(path: &Path) -> Result<Model> {
    let io = |e: std::io::Error| Error::file(e.to_string());
    let info = std::fs::metadata(path).map_err(io)?;
    if !info.is_file() {
        return Err(Error::file("not a regular file").help("give the path of an .onnx file"));
    }
    if info.len() > limits::MAX_FILE {
        return Err(Error::limit(format!("{} bytes; a protobuf file ends at {}", info.len(), limits::MAX_FILE)));
    }
    if info.len() == 0 {
        return Err(Error::malformed("the file is empty"));
    }
    let file = File::open(path).map_err(io)?;
    // SAFETY: the map is only read, and only until parsing is done. A file that another
    // process truncates meanwhile raises SIGBUS, as with every reader that maps.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    read_bytes(&map)
}

/// Reads a model from the bytes of an ONNX file.
///
/// # Errors
/// As [`read`], without the file's name.
pub fn read_bytes(bytes: &[u8]) -> Result<Model> {
    wire::check(bytes)?;
    let mut proto = ModelProto::parse_from_bytes(bytes)
        .map_err(|e| Error::malformed(format!("not an ONNX file, or a damaged one: {e}")))?;
    let graph = proto.graph.take().ok_or_else(|| Error::malformed("the file has no graph; is it an ONNX model?"))?;
    if !(1..=64).contains(&proto.ir_version) {
        return Err(Error::malformed(format!("ir_version {}", proto.ir_version)));
    }
    let version = opset::default_domain(&proto.opset_import)
        .ok_or_else(|| Error::malformed("the file imports no version of the default operator set"))?;
    if !(1..=opset::NEWEST).contains(&version) {
        return Err(Error::malformed(format!("opset {version}; versions 1 to {} exist", opset::NEWEST)));
    }
    if version < 7 {
        return Err(Error::unsupported(format!("opset {version}")).help("export the model at opset 7 or newer"));
    }
    if !proto.functions.is_empty() {
        return Err(Error::unsupported(format!("model-local functions such as `{}`", proto.functions[0].name))
            .help("inline them first: onnx.inliner.inline_local_functions"));
    }
    let mut importer =
        Importer { graph: Graph::new(&graph.name), values: HashMap::new(), opset: version, warnings: vec![] };
    importer.build(graph, proto.ir_version)?;
    Ok(Model { graph: importer.graph, skeleton: proto, warnings: importer.warnings })
}

struct Importer {
    graph: Graph,
    values: HashMap<String, Port>,
    opset: i64,
    warnings: Vec<String>,
}

impl Importer {
    fn build(&mut self, mut g: GraphProto, ir_version: i64) -> Result<()> {
        if g.node.len() > limits::MAX_NODES {
            return Err(Error::limit(format!("{} nodes; at most {} are read", g.node.len(), limits::MAX_NODES)));
        }
        if !g.sparse_initializer.is_empty() {
            return Err(Error::unsupported("sparse initializers"));
        }
        let mut declared = HashMap::new();
        for v in g.value_info.iter().chain(&g.output) {
            if let Some(t) = v.type_.as_ref() {
                declared.insert(v.name.clone(), tensor::read_type(t)?);
            }
        }
        self.sources(&mut g, ir_version)?;
        let output_names: HashSet<&str> = g.output.iter().map(|o| &o.name[..]).collect();
        for node in sorted(std::mem::take(&mut g.node))? {
            let label = format!(
                "`{}` ({})",
                if node.name.is_empty() { node.output.first().map_or("", |o| o) } else { &node.name },
                node.op_type
            );
            self.node(node, &declared, &output_names).map_err(|e| e.at(label))?;
        }
        for o in &g.output {
            let port = *self
                .values
                .get(&o.name)
                .ok_or_else(|| Error::malformed(format!("no node makes the graph output `{}`", o.name)))?;
            self.graph.add_output(&o.name, port);
        }
        if g.output.is_empty() {
            return Err(Error::malformed("the graph has no outputs"));
        }
        Ok(())
    }

    /// Graph inputs and initializers.
    fn sources(&mut self, g: &mut GraphProto, ir_version: i64) -> Result<()> {
        let mut initializers: HashMap<String, Tensor> = HashMap::new();
        let mut order = vec![];
        for t in std::mem::take(&mut g.initializer) {
            let name = t.name.clone();
            order.push(name.clone());
            if initializers.insert(name.clone(), tensor::read(t)?).is_some() {
                return Err(Error::malformed(format!("two initializers are called `{name}`")));
            }
        }
        let listed = g.input.iter().filter(|i| initializers.contains_key(&i.name)).count();
        // Up to IR version 3 every initializer had to be listed as an input too, and files of
        // version 4 that list them all still follow that habit: there it means nothing.
        let formality = listed > 0 && ir_version <= 4 && listed == initializers.len();
        for input in &g.input {
            let default = if formality && initializers.contains_key(&input.name) {
                continue;
            } else {
                initializers.remove(&input.name)
            };
            let mut fact = match input.type_.as_ref() {
                Some(t) => tensor::read_type(t)?,
                None => Fact::default(),
            };
            if let Some(t) = &default {
                // The caller may give another value, so only type and shape are known.
                fact = Fact::new(Some(t.dtype()), Fact::of(t).shape);
            }
            let node = self.graph.add_input(&input.name, fact, Op::Input(Input { default }))?;
            self.values.insert(input.name.clone(), node.into());
        }
        if formality {
            self.warnings.push(format!(
                "all {listed} weights are also listed as graph inputs (the rule before IR version 4); they are treated as constants"
            ));
        } else if listed > 0 {
            self.warnings.push(format!(
                "{listed} weights are also graph inputs: a caller may replace them, so they are left as they are"
            ));
        }
        for name in order {
            if let Some(t) = initializers.remove(&name) {
                self.constant(&name, t)?;
            }
        }
        Ok(())
    }

    fn constant(&mut self, name: &str, tensor: Tensor) -> Result<()> {
        let node = self.graph.add_constant(name, tensor);
        match self.values.insert(name.into(), node.into()) {
            None => Ok(()),
            Some(_) => Err(Error::malformed(format!("two values are called `{name}`"))),
        }
    }

    fn node(&mut self, node: NodeProto, declared: &HashMap<String, Fact>, outputs: &HashSet<&str>) -> Result<()> {
        if opset::is_default(&node.domain) && node.op_type == "Constant" {
            let [name] = &node.output[..] else { return Err(Error::malformed("a Constant has one output")) };
            let name = name.clone();
            // What we have no tensor type for (strings, sparse) stays opaque below.
            match constant(&node) {
                Ok(t) => return self.constant(&name, t),
                Err(e) if e.kind() == crate::error::Kind::Unsupported => {}
                Err(e) => return Err(e),
            }
        }
        let mut operands = node.input.iter().map(|n| self.operand(n)).collect::<Result<Vec<_>>>()?;
        while operands.last() == Some(&None) {
            operands.pop();
        }
        let first = operands.first().copied().flatten().map(|p| self.graph.fact(p).clone()).unwrap_or_default();
        // Trailing outputs that nobody named are not asked for.
        let wanted = node.output.iter().rposition(|o| !o.is_empty()).map_or(0, |i| i + 1);
        let known = if opset::is_default(&node.domain) {
            understand(&node, self.opset, operands.len(), wanted, first)
        } else {
            Err(Error::unsupported(format!("operator {}::{}", node.domain, node.op_type)))
        };
        let names: Vec<&str> = node.output[..wanted].iter().map(|s| &s[..]).collect();
        let id = match known {
            Ok((op, lifted)) => {
                for (slot, t) in lifted {
                    let base = node.output.first().map_or("", |o| o);
                    let id = self.graph.add_constant(&format!("{base}_in{slot}"), t);
                    if operands.len() <= slot {
                        operands.resize(slot + 1, None);
                    }
                    operands[slot] = Some(id.into());
                }
                check_arity(&op, &operands)?;
                self.graph.add_node(&node.name, op, &operands, &names)?
            }
            Err(e) if e.kind() == crate::error::Kind::Unsupported => {
                let mut captures = vec![];
                for name in captured(&node) {
                    // A name that the outer graph doesn't have is the subgraph's own affair.
                    if let Some(port) = self.values.get(&name) {
                        operands.push(Some(*port));
                        captures.push(name);
                    }
                }
                // Explicit inputs that are absent at the end must not shift the captures.
                let explicit = operands.len() - captures.len();
                let gap = node.input.len() - explicit;
                operands.splice(explicit..explicit, std::iter::repeat_n(None, gap));
                let names: Vec<&str> = node.output.iter().map(|s| &s[..]).collect();
                let op = Opaque { captures, reason: e.message().into(), proto: node.clone() };
                self.graph.add_node(&node.name, Op::Opaque(op), &operands, &names)?
            }
            Err(e) => return Err(e),
        };
        for (slot, name) in node.output.iter().enumerate().filter(|(_, n)| !n.is_empty()) {
            let port = Port { node: id, slot };
            if let Some(d) = declared.get(name) {
                let declared = self.graph.fact(port).clone().refined(d);
                // A contradiction is the file's fault, except where the file's output shape
                // is only what its exporter believed.
                match declared {
                    Ok(fact) => self.graph.set_fact(port, fact),
                    Err(e) if outputs.contains(&name[..]) && e.message().contains("shape") => {
                        self.warnings.push(format!("graph output `{name}`: {}", e.message()))
                    }
                    Err(e) => return Err(e),
                }
            }
            if self.values.insert(name.clone(), port).is_some() {
                return Err(Error::malformed(format!("two nodes make `{name}`")));
            }
        }
        Ok(())
    }

    fn operand(&self, name: &str) -> Result<Option<Port>> {
        if name.is_empty() {
            return Ok(None);
        }
        let port = self.values.get(name);
        port.map(|p| Some(*p)).ok_or_else(|| Error::malformed(format!("reads `{name}`, which nothing makes")))
    }
}

fn check_arity(op: &Op, operands: &[Option<Port>]) -> Result<()> {
    let arity = op.arity();
    if arity.contains(&operands.len()) && operands.iter().take(*arity.start()).all(Option::is_some) {
        return Ok(());
    }
    Err(Error::malformed(format!(
        "{} inputs are given, {} are needed",
        operands.iter().flatten().count(),
        arity.start()
    )))
}

/// The operator that a node of the default domain stands for, and its lifted inputs.
fn understand(
    node: &NodeProto,
    opset: i64,
    inputs: usize,
    outputs: usize,
    first: Fact,
) -> Result<(Op, Vec<(usize, Tensor)>)> {
    if outputs == 0 {
        return Err(Error::malformed("the node has no outputs"));
    }
    let attrs = node.attribute.iter().cloned().map(attribute::read).collect::<Result<Vec<_>>>()?;
    let mut reader = Reader::new(&node.op_type, opset, inputs, outputs, first, attrs);
    let op = Op::read(&mut reader)?;
    if outputs > op.max_outputs() {
        return Err(Error::unsupported(format!("{} with {outputs} outputs", node.op_type)));
    }
    if inputs > *op.arity().end() {
        return Err(Error::unsupported(format!("{} with {inputs} inputs", node.op_type)));
    }
    Ok((op, reader.finish()?))
}

/// The tensor of a Constant node.
fn constant(node: &NodeProto) -> Result<Tensor> {
    let mut tensor = None;
    for a in &node.attribute {
        let (name, attr) = attribute::read(a.clone())?;
        let t = match (name.as_str(), attr) {
            ("value", Attr::Tensor(t)) => t,
            ("value_float", Attr::Float(v)) => Tensor::f32(&[], &[v]),
            ("value_floats", Attr::Floats(v)) => Tensor::f32(&[v.len()], &v),
            ("value_int", Attr::Int(v)) => Tensor::ints(DType::I64, &[], &[v]),
            ("value_ints", Attr::Ints(v)) => Tensor::i64s(&v),
            _ => return Err(Error::unsupported(format!("Constant with attribute `{name}`"))),
        };
        if tensor.replace(t).is_some() {
            return Err(Error::malformed("a Constant with two values"));
        }
    }
    tensor.ok_or_else(|| Error::malformed("a Constant without a value"))
}

/// The names that a node's subgraphs read and don't make: values of an outer graph.
fn captured(node: &NodeProto) -> Vec<String> {
    let mut out = vec![];
    for g in opset::subgraphs(node) {
        let mut own: HashSet<&str> = g.input.iter().map(|v| &v.name[..]).collect();
        own.extend(g.initializer.iter().map(|t| &t.name[..]));
        own.extend(g.node.iter().flat_map(|n| n.output.iter().map(|o| &o[..])));
        let inner = g.node.iter().flat_map(|n| n.input.iter().cloned().chain(captured(n)));
        let results = g.output.iter().map(|o| o.name.clone());
        for name in inner.chain(results) {
            if !name.is_empty() && !own.contains(&name[..]) && !out.contains(&name) {
                out.push(name);
            }
        }
    }
    out
}

/// The nodes, each after those it reads from: files are meant to be sorted, many aren't.
fn sorted(nodes: Vec<NodeProto>) -> Result<Vec<NodeProto>> {
    let mut maker: HashMap<&str, usize> = HashMap::new();
    for (i, n) in nodes.iter().enumerate() {
        for o in n.output.iter().filter(|o| !o.is_empty()) {
            if maker.insert(o, i).is_some() {
                return Err(Error::malformed(format!("two nodes make `{o}`")));
            }
        }
    }
    let mut waiting = vec![0usize; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![vec![]; nodes.len()];
    for (i, n) in nodes.iter().enumerate() {
        let captures = captured(n);
        for name in n.input.iter().chain(&captures) {
            if let Some(&m) = maker.get(&name[..]) {
                waiting[i] += 1;
                readers[m].push(i);
            }
        }
    }
    let mut ready: VecDeque<usize> = (0..nodes.len()).filter(|i| waiting[*i] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    while let Some(i) = ready.pop_front() {
        order.push(i);
        for &r in &readers[i] {
            waiting[r] -= 1;
            if waiting[r] == 0 {
                ready.push_back(r);
            }
        }
    }
    if order.len() < nodes.len() {
        let stuck = waiting.iter().position(|w| *w > 0).map_or("", |i| &nodes[i].name);
        return Err(Error::malformed("the graph has a cycle").at(format!("`{stuck}`")));
    }
    // A file that is sorted already keeps its order.
    if readers.iter().enumerate().all(|(i, r)| r.iter().all(|r| *r > i)) {
        return Ok(nodes);
    }
    let mut slots: Vec<Option<NodeProto>> = nodes.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| slots[i].take()).collect())
}
