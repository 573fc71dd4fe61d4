//! From a graph to an ONNX file.

use super::{Model, attribute, opset, tensor};
use crate::{
    attr::Attr,
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::opaque::Opaque,
    verify::{Verified, verify},
};
use onnx_protobuf::{GraphProto, Message, NodeProto, ValueInfoProto};
use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::Write,
    path::Path,
};

/// Above this protobuf's own 2 GB limit comes near, and rust-protobuf writes corrupt files.
const MAX_OUTPUT: u64 = 1_900_000_000;

/// Writes `model` to `path`: to a scratch file beside it, which then takes the name.
///
/// # Errors
/// File when the place can't be written, or exists and `overwrite` is not set; unsupported
/// when an operator kept as it is can't move to the opset that others need.
pub fn write(model: &Model, path: &Path, overwrite: bool) -> Result<()> {
    write_atomic(path, &to_bytes(model)?, overwrite)
}

/// The bytes of `model` as an ONNX file.
///
/// # Errors
/// As [`write()`], save for the file's.
pub fn to_bytes(model: &Model) -> Result<Vec<u8>> {
    let graph = verify(&model.graph)?;
    let from = model.opset();
    // The lowest opset that has every operator as it is used, never below the source's.
    let target = graph.operators().map(|n| graph.op(n).since()).fold(from, i64::max);
    let mut proto = model.skeleton.clone();
    for import in proto.opset_import.iter_mut().filter(|i| opset::is_default(&i.domain)) {
        import.version = target;
    }
    proto.ir_version = proto.ir_version.max(opset::ir_version(target)).max(4);
    proto.graph = Some(Writer { graph: &graph, names: names(&graph), from, target }.graph()?).into();
    let size = proto.compute_size();
    if size > MAX_OUTPUT {
        return Err(Error::limit(format!("the model has {size} bytes; one file holds {MAX_OUTPUT}")));
    }
    proto.write_to_bytes().map_err(|e| Error::bug(e.to_string()))
}

/// Writes `bytes` to `path` so that it holds them all or is not there: a scratch file in the
/// same folder, flushed to disk, renamed.
///
/// # Errors
/// File, naming the path.
pub fn write_atomic(path: &Path, bytes: &[u8], overwrite: bool) -> Result<()> {
    let fail = |e: std::io::Error| Error::file(format!("cannot write: {e}")).in_file(path);
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let mut scratch = tempfile::Builder::new().prefix(".compress-").tempfile_in(folder).map_err(fail)?;
    scratch.write_all(bytes).map_err(fail)?;
    // Scratch files are private; the result gets the permissions any new file has.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o666 & !umask());
    scratch.as_file().set_permissions(mode).map_err(fail)?;
    scratch.as_file().sync_all().map_err(fail)?;
    if overwrite {
        scratch.persist(path).map_err(|e| fail(e.error))?;
    } else {
        scratch.persist_noclobber(path).map_err(|e| match e.error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Error::file("exists already").in_file(path).help("give another name with -o, or pass --force")
            }
            _ => fail(e.error),
        })?;
    }
    File::open(folder).and_then(|d| d.sync_all()).map_err(fail)
}

fn umask() -> u32 {
    // The mask can only be read by setting it, which would race with other threads; the
    // kernel also reports it here.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("Umask:")).map(str::trim);
    mask.and_then(|m| u32::from_str_radix(m, 8).ok()).unwrap_or(0o022)
}

/// The name under which each value is written: its own, but graph outputs have theirs.
fn names(graph: &Graph) -> HashMap<Port, String> {
    let reserved: HashSet<&str> = graph.outputs().iter().map(|o| &o.name[..]).collect();
    let mut names: HashMap<Port, String> = HashMap::new();
    for o in graph.outputs() {
        let source = matches!(graph.op(o.port.node), Op::Input(_) | Op::Constant(_));
        if !source {
            names.entry(o.port).or_insert_with(|| o.name.clone());
        }
    }
    for node in graph.ids() {
        for (slot, value) in graph.node(node).outputs.iter().enumerate() {
            let port = Port { node, slot };
            if names.contains_key(&port) {
                continue;
            }
            let is_input = matches!(graph.op(node), Op::Input(_));
            let name = match &value.name[..] {
                taken if reserved.contains(taken) && !is_input => graph.fresh(taken),
                own => own.into(),
            };
            names.insert(port, name);
        }
    }
    names
}

struct Writer<'a> {
    graph: &'a Verified<'a>,
    names: HashMap<Port, String>,
    from: i64,
    target: i64,
}

impl Writer<'_> {
    fn graph(&self) -> Result<GraphProto> {
        let g = self.graph;
        let mut out =
            GraphProto { name: if g.name.is_empty() { "main".into() } else { g.name.clone() }, ..Default::default() };
        for &n in g.inputs() {
            let name = &self.names[&n.into()];
            out.input.push(self.value(name, n.into())?);
            if let Op::Input(input) = g.op(n)
                && let Some(t) = &input.default
            {
                out.initializer.push(tensor::write(name, t));
            }
        }
        for &n in g.order() {
            match g.op(n) {
                Op::Input(_) => {}
                Op::Constant(c) => {
                    // A constant whose every reader took it as an attribute has no place in the file.
                    if self.is_read(n) {
                        out.initializer.push(tensor::write(&self.names[&n.into()], &c.0));
                    }
                }
                Op::Opaque(op) => {
                    out.node.push(self.opaque(n, op)?);
                    for (slot, _) in g.node(n).outputs.iter().enumerate() {
                        let port = Port { node: n, slot };
                        // Nobody can infer what this makes, so what the file declared is kept.
                        if !self.names[&port].is_empty() && g.fact(port).dtype.is_some() {
                            out.value_info.push(self.value(&self.names[&port], port)?);
                        }
                    }
                }
                op => out.node.push(self.node(n, op)?),
            }
        }
        for o in g.outputs() {
            if self.names[&o.port] != o.name {
                // An output that is an input, a constant, or another output's value.
                out.node.push(NodeProto {
                    name: o.name.clone(),
                    op_type: "Identity".into(),
                    input: vec![self.names[&o.port].clone()],
                    output: vec![o.name.clone()],
                    ..Default::default()
                });
            }
            out.output.push(self.value(&o.name, o.port)?);
        }
        out.value_info.retain(|v| !out.output.iter().any(|o| o.name == v.name));
        Ok(out)
    }

    fn value(&self, name: &str, port: Port) -> Result<ValueInfoProto> {
        let info = tensor::write_type(self.graph.fact(port));
        Ok(ValueInfoProto { name: name.into(), type_: info.into(), ..Default::default() })
    }

    /// Whether a constant has a reader that takes it as an input.
    fn is_read(&self, n: NodeId) -> bool {
        let g = self.graph;
        g.is_output(n.into())
            || g.uses(n.into()).iter().any(|u| g.op(u.node).lower(self.target).is_none_or(|(slot, _)| slot != u.slot))
    }

    fn node(&self, n: NodeId, op: &Op) -> Result<NodeProto> {
        let g = self.graph;
        let node = g.node(n);
        let mut operands = g.operands(n);
        let mut attrs = op.attrs();
        if let Some((slot, name)) = op.lower(self.target)
            && let Some(port) = operands.get_mut(slot).and_then(Option::take)
        {
            let list = g.constant(port).and_then(|t| t.as_i64()).ok_or_else(|| {
                Error::unsupported(format!("`{name}` is computed, which opset {} can't say", self.target))
                    .at(node.label())
            })?;
            attrs.push((name, Attr::Ints(list)));
        }
        while operands.last() == Some(&None) {
            operands.pop();
        }
        Ok(NodeProto {
            name: node.name.clone(),
            op_type: op.op_type().into(),
            input: operands.iter().map(|p| p.map_or_else(String::new, |p| self.names[&p].clone())).collect(),
            output: (0..node.outputs.len()).map(|slot| self.names[&Port { node: n, slot }].clone()).collect(),
            attribute: attrs.into_iter().map(|(name, a)| attribute::write(name, a)).collect(),
            ..Default::default()
        })
    }

    fn opaque(&self, n: NodeId, op: &Opaque) -> Result<NodeProto> {
        opset::check_raise(&op.proto, self.from, self.target)?;
        let mut proto = op.proto.clone();
        let operands = self.graph.operands(n);
        for (slot, input) in proto.input.iter_mut().enumerate() {
            *input = operands.get(slot).copied().flatten().map_or_else(String::new, |p| self.names[&p].clone());
        }
        for (slot, output) in proto.output.iter_mut().enumerate() {
            *output = self.names[&Port { node: n, slot }].clone();
        }
        let renamed: HashMap<&str, &str> = op
            .captures
            .iter()
            .zip(operands.iter().skip(op.proto.input.len()).flatten())
            .map(|(old, port)| (&old[..], &self.names[port][..]))
            .filter(|(old, new)| old != new)
            .collect();
        if !renamed.is_empty() {
            for a in &mut proto.attribute {
                a.g.0.iter_mut().map(|g| &mut **g).chain(&mut a.graphs).for_each(|g| rename(g, &renamed));
            }
        }
        Ok(proto)
    }
}

/// Renames outer values that a subgraph reads. ONNX forbids inner names that hide outer ones.
fn rename(g: &mut GraphProto, names: &HashMap<&str, &str>) {
    let take = |s: &mut String| {
        if let Some(new) = names.get(&s[..]) {
            *s = new.to_string();
        }
    };
    g.output.iter_mut().for_each(|o| take(&mut o.name));
    for node in &mut g.node {
        node.input.iter_mut().for_each(take);
        for a in &mut node.attribute {
            a.g.0.iter_mut().map(|g| &mut **g).chain(&mut a.graphs).for_each(|g| rename(g, names));
        }
    }
}
