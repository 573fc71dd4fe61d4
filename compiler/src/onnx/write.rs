//! From a graph to an ONNX file.

use super::{
    Model, attribute,
    external::{self, ExternalFiles},
    opset, read, remarks,
    scratch::{Scratch, failure},
    source::{self, Blobs, Source, SourceFile},
    stream::Pieces,
    tensor, wire,
};
use crate::{
    attr::Attr,
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{control::Body, opaque::Opaque},
    verify::{Verified, verify},
};
use onnx_protobuf::{GraphProto, Message, ModelProto, NodeProto, ValueInfoProto};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

/// Above this protobuf's own 2 GB limit comes near, and rust-protobuf writes corrupt files.
const MAX_OUTPUT: u64 = 1_900_000_000;

/// Writes `model` to `path`: to a scratch file beside it, which then takes the name.
///
/// # Errors
/// File when the place can't be written, or exists and `overwrite` is not set; unsupported
/// when an operator kept as it is can't move to the opset that others need.
pub fn write(model: &Model, path: &Path, overwrite: bool) -> Result<()> {
    stage(model, path, false)?.commit(overwrite)
}

/// The bytes of `model` as an ONNX file.
///
/// # Errors
/// As [`write()`], save for the file's; limit when one file can't hold them.
pub fn to_bytes(model: &Model) -> Result<Vec<u8>> {
    let blobs = Blobs::new(&model.source);
    let layout = layout(&to_proto(model, &blobs)?, &blobs)?;
    check_size(&layout)?;
    let mut bytes = Vec::with_capacity(layout.len() as usize);
    layout.write(&mut bytes).map_err(|e| Error::bug(e.to_string()))?;
    Ok(bytes)
}

/// A model that was written, but to files that have no name yet. Dropped, it is gone.
pub struct Staged {
    model: Written,
    /// The file of the weights, if they are in one of their own.
    data: Option<(String, Written)>,
}

struct Written {
    scratch: Scratch,
    file: SourceFile,
}

impl Written {
    /// Writes a file that is going to be called what `name` makes of its SHA-256.
    fn new(layout: &Pieces, source: &Source, path: &Path, name: impl Fn(&str) -> PathBuf) -> std::io::Result<Self> {
        let mut scratch = Scratch::beside(path)?;
        let sha256 = layout.save(&mut scratch, source)?;
        let blob = source::map(scratch.file().try_clone()?, false)?;
        let file = SourceFile::new(&name(&sha256), blob).written(layout.weights());
        file.set_sha256(sha256);
        Ok(Self { scratch, file })
    }
}

/// Writes `model` to scratch files beside `path`, weight by weight: no second copy of a weight is
/// ever in memory. Where one file can't hold it, or when `external` is set, the weights go into
/// a file of their own, called after `path` and what it holds.
///
/// # Errors
/// As [`write()`].
pub fn stage(model: &Model, path: &Path, external: bool) -> Result<Staged> {
    let fail = |e| failure(path, e);
    let blobs = Blobs::new(&model.source);
    let mut proto = to_proto(model, &blobs)?;
    let mut whole = layout(&proto, &blobs)?;
    let mut data = None;
    if external || whole.len() > MAX_OUTPUT {
        let weights = external::move_out(&mut proto, &blobs)?;
        if weights.len() > 0 {
            let name = |sha256: &str| path.with_file_name(format!("{}{}.data", data_prefix(path), &sha256[..16]));
            let written = Written::new(&weights, &model.source, path, name).map_err(fail)?;
            let name = written.file.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            external::set_location(&mut proto, &name)?;
            data = Some((name, written));
            whole = layout(&proto, &blobs)?;
        }
    }
    check_size(&whole)?;
    let model = Written::new(&whole, &model.source, path, |_| path.into()).map_err(fail)?;
    Ok(Staged { model, data })
}

/// How the names of data files for the model at `path` begin. 16 digits of a SHA-256 follow.
fn data_prefix(path: &Path) -> String {
    format!("{}-", path.file_stem().and_then(|s| s.to_str()).unwrap_or("model"))
}

/// Data files that a new result doesn't need.
#[derive(Default)]
pub struct LeftBehind {
    /// Those of the model that the result takes the place of.
    pub replaced: Vec<PathBuf>,
    /// Those of others, a copy of which may refer to them.
    pub others: Vec<PathBuf>,
}

/// Whether another model in its folder than `model` names a data file, as a copy of an earlier result does.
fn is_named_beside(data: &Path, model: &Path) -> bool {
    let (Some(folder), Some(name)) = (data.parent(), data.file_name().and_then(|n| n.to_str())) else { return true };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let Ok(files) = folder.read_dir() else { return true };
    let others = files.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "onnx"));
    let mut others = others.filter(|p| p.file_name() != model.file_name());
    others.any(|p| match source::open(&p) {
        Ok(file) => file.bytes().windows(name.len()).any(|w| w == name.as_bytes()),
        Err(_) => true,
    })
}

impl Staged {
    /// Data files of earlier results of this name, which neither this one nor the files that it was made of need.
    pub fn left_behind(&self, made_of: &Source) -> LeftBehind {
        let path = self.model.file.path();
        let needed: Vec<_> = made_of
            .files()
            .iter()
            .chain(self.data.iter().map(|(_, data)| &data.file))
            .filter_map(|file| file.path().canonicalize().ok())
            .collect();
        let prefix = data_prefix(path);
        let is_data = |name: &str| {
            let digits = name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".data"));
            digits.is_some_and(|d| d.len() == 16 && d.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let Ok(folder) = self.model.scratch.folder().read_dir() else { return LeftBehind::default() };
        let mut found: Vec<PathBuf> = folder
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(is_data))
            .filter(|entry| entry.path().canonicalize().is_ok_and(|p| !needed.contains(&p)))
            .map(|entry| path.with_file_name(entry.file_name()))
            .collect();
        found.sort();
        // What can't be read refers to nothing that is known.
        let there = if found.is_empty() { None } else { read::read(path).ok() };
        let referred: Vec<_> = there
            .iter()
            .flat_map(|model| model.source().files().iter().skip(1))
            .filter_map(|file| file.path().canonicalize().ok())
            .collect();
        let is_referred =
            |p: &PathBuf| p.canonicalize().is_ok_and(|p| referred.contains(&p)) && !is_named_beside(p, path);
        let (replaced, others) = found.into_iter().partition(is_referred);
        LeftBehind { replaced, others }
    }

    /// The model that was written, read back.
    ///
    /// # Errors
    /// Whatever reading raises.
    pub fn read_back(&self) -> Result<Model> {
        let data: Vec<_> = self.data.iter().map(|(name, w)| (name.clone(), w.file.clone())).collect();
        read::import(self.model.file.clone(), &ExternalFiles::Given(&data), true)
    }

    /// Flushes the files to disk and gives them their names, the model's last: it is whole or not
    /// there.
    ///
    /// # Errors
    /// File when a name can't be given, or the model's exists and `overwrite` is not set.
    pub fn commit(self, overwrite: bool) -> Result<()> {
        let path = self.model.file.path().to_path_buf();
        let mut made = None;
        if let Some((_, Written { scratch, file })) = self.data {
            // The name says what is in the file: one that has it already is the same.
            let there = file.path().exists();
            scratch.name(file.path(), true).map_err(|e| failure(file.path(), e))?;
            made = (!there).then_some(file);
        }
        self.model.scratch.name(&path, overwrite).map_err(|e| {
            if let Some(file) = made {
                // What the user should read is why the model could not be written.
                let _ = std::fs::remove_file(file.path());
            }
            failure(&path, e)
        })
    }
}

/// ONNX's form of a model, its weights in `blobs`.
fn to_proto(model: &Model, blobs: &Blobs) -> Result<ModelProto> {
    let graph = verify(&model.graph)?;
    let from = model.opset();
    let target = opset::lowest(&graph, from)?;
    let mut proto = model.skeleton.clone();
    for import in proto.opset_import.iter_mut().filter(|i| opset::is_default(&i.domain)) {
        import.version = target;
    }
    let is_microsofts = |op: &Op| op.op_type().starts_with("com.microsoft.");
    let written_by = |g: &&Graph| g.operators().any(|n| is_microsofts(g.op(n)));
    if graph.and_bodies().iter().any(written_by) && !proto.opset_import.iter().any(|i| i.domain == opset::MICROSOFT) {
        proto.opset_import.push(opset::import(opset::MICROSOFT, 1));
    }
    proto.ir_version = proto.ir_version.max(opset::ir_version(target)).max(4);
    let names = Scope::new(&graph, &[], None);
    let mut out = Writer { graph: &graph, names, captures: 0, target, blobs }.graph()?;
    if let Some(said) = proto.graph.take() {
        remarks::write_graph(&mut out, said);
    }
    proto.graph = Some(out).into();
    if model.stripped {
        remarks::strip(&mut proto);
    }
    Ok(proto)
}

fn layout(proto: &ModelProto, blobs: &Blobs) -> Result<Pieces> {
    let skeleton = proto.write_to_bytes().map_err(|e| Error::bug(e.to_string()))?;
    Pieces::of_model(&wire::by_number(&skeleton)?, blobs)
}

fn check_size(file: &Pieces) -> Result<()> {
    if file.len() <= MAX_OUTPUT {
        return Ok(());
    }
    Err(Error::limit(format!("the model has {} bytes; one file holds {MAX_OUTPUT}", file.len())))
}

/// The names under which the values of a graph are written. Those of a body must differ from
/// those of the graphs around it.
struct Scope<'a> {
    /// A value's own name, but graph outputs have theirs.
    values: HashMap<Port, String>,
    outputs: Vec<String>,
    all: HashSet<String>,
    outer: Option<&'a Scope<'a>>,
}

impl<'a> Scope<'a> {
    /// The names for `graph`, whose last inputs are the outer values `captured`.
    fn new(graph: &Graph, captured: &[String], outer: Option<&'a Scope<'a>>) -> Self {
        let hides = |name: &str| outer.is_some_and(|o| o.has(name));
        let fresh = |name: &str, also: &dyn Fn(&str) -> bool| {
            let mut new = graph.fresh(name);
            let mut i = 1;
            while hides(&new) || also(&new) {
                new = graph.fresh(&format!("{name}_{i}"));
                i += 1;
            }
            new
        };
        let mut outputs: Vec<String> = vec![];
        for o in graph.outputs() {
            outputs.push(if hides(&o.name) {
                fresh(&o.name, &|n| outputs.iter().any(|o| o == n))
            } else {
                o.name.clone()
            });
        }
        let reserved: HashSet<&str> = outputs.iter().map(|o| &o[..]).collect();
        let mut values: HashMap<Port, String> = HashMap::new();
        for (n, name) in graph.inputs().iter().rev().zip(captured.iter().rev()) {
            values.insert((*n).into(), name.clone());
        }
        for (o, name) in graph.outputs().iter().zip(&outputs) {
            let source = matches!(graph.op(o.port.node), Op::Input(_) | Op::Constant(_));
            if !source {
                values.entry(o.port).or_insert_with(|| name.clone());
            }
        }
        for node in graph.ids() {
            for (slot, value) in graph.node(node).outputs.iter().enumerate() {
                let is_input = matches!(graph.op(node), Op::Input(_));
                values.entry(Port { node, slot }).or_insert_with(|| match &value.name[..] {
                    taken if (reserved.contains(taken) && !is_input) || hides(taken) => {
                        fresh(taken, &|n| reserved.contains(n))
                    }
                    own => own.into(),
                });
            }
        }
        let all = values.values().chain(&outputs).filter(|n| !n.is_empty()).cloned().collect();
        Self { values, outputs, all, outer }
    }

    fn has(&self, name: &str) -> bool {
        self.all.contains(name) || self.outer.is_some_and(|o| o.has(name))
    }
}

struct Writer<'a> {
    graph: &'a Verified<'a>,
    names: Scope<'a>,
    /// How many of the inputs stand for outer values.
    captures: usize,
    target: i64,
    /// Where the bytes of tensors go.
    blobs: &'a Blobs<'a>,
}

impl Writer<'_> {
    fn graph(&self) -> Result<GraphProto> {
        let g = self.graph;
        let mut out =
            GraphProto { name: if g.name.is_empty() { "main".into() } else { g.name.clone() }, ..Default::default() };
        for &n in &g.inputs()[..g.inputs().len() - self.captures] {
            let name = self.name(n.into());
            out.input.push(self.value(name, n.into())?);
            if let Op::Input(input) = g.op(n)
                && let Some(t) = &input.default
            {
                out.initializer.push(tensor::write(name, t, self.blobs));
            }
        }
        for &n in g.order() {
            match g.op(n) {
                Op::Input(_) => {}
                Op::Constant(c) => {
                    // A constant whose every reader took it as an attribute has no place in the file.
                    if self.is_read(n) {
                        out.initializer.push(tensor::write(self.name(n.into()), &c.0, self.blobs));
                    }
                }
                Op::Opaque(op) => {
                    out.node.push(self.opaque(n, op));
                    for (slot, _) in g.node(n).outputs.iter().enumerate() {
                        let port = Port { node: n, slot };
                        // Nobody can infer what this makes, so what the file declared is kept.
                        if !self.name(port).is_empty() && g.fact(port).dtype.is_some() {
                            out.value_info.push(self.value(self.name(port), port)?);
                        }
                    }
                }
                op => out.node.push(self.node(n, op)?),
            }
        }
        let mut made = HashSet::new();
        for (o, name) in g.outputs().iter().zip(&self.names.outputs) {
            // The same output may be listed twice.
            if self.name(o.port) != name && made.insert(name) {
                // An output that is an input, a constant, or another output's value.
                out.node.push(NodeProto {
                    name: name.clone(),
                    op_type: "Identity".into(),
                    input: vec![self.name(o.port).into()],
                    output: vec![name.clone()],
                    ..Default::default()
                });
            }
            out.output.push(self.value(name, o.port)?);
        }
        out.value_info.retain(|v| !out.output.iter().any(|o| o.name == v.name));
        tell_apart(&mut out);
        Ok(out)
    }

    /// The name under which a value is written.
    fn name(&self, port: Port) -> &str {
        &self.names.values[&port]
    }

    /// The graph in an attribute of node `n`.
    fn body(&self, n: NodeId, body: &Body) -> Result<GraphProto> {
        let operands = self.graph.operands(n);
        let captured = &operands[operands.len().saturating_sub(body.captures())..];
        let captured: Vec<String> = captured.iter().flatten().map(|p| self.name(*p).into()).collect();
        let graph = verify(body.graph())?;
        let names = Scope::new(&graph, &captured, Some(&self.names));
        Writer { graph: &graph, names, captures: body.captures(), target: self.target, blobs: self.blobs }.graph()
    }

    fn value(&self, name: &str, port: Port) -> Result<ValueInfoProto> {
        let info = tensor::write_type(&self.graph.declared(name, port));
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
        // What bodies read from around them they read by name.
        operands.truncate(operands.len() - op.bodies().first().map_or(0, |b| b.captures().min(operands.len())));
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
        let (domain, op_type) = op.op_type().rsplit_once('.').unwrap_or(("", op.op_type()));
        let mut proto = NodeProto {
            name: node.name.clone(),
            domain: domain.into(),
            op_type: op_type.into(),
            input: operands.iter().map(|p| p.map_or_else(String::new, |p| self.name(p).into())).collect(),
            output: (0..node.outputs.len()).map(|slot| self.name(Port { node: n, slot }).into()).collect(),
            attribute: attrs
                .into_iter()
                .map(|(name, a)| attribute::write(name, a, self.blobs, &|body| self.body(n, body)))
                .collect::<Result<_>>()?,
            ..Default::default()
        };
        if let Some(said) = &node.remarks {
            remarks::write_node(&mut proto, said);
        }
        Ok(proto)
    }

    fn opaque(&self, n: NodeId, op: &Opaque) -> NodeProto {
        let mut proto = NodeProto::clone(&op.proto);
        let operands = self.graph.operands(n);
        for (slot, input) in proto.input.iter_mut().enumerate() {
            *input = operands.get(slot).copied().flatten().map_or_else(String::new, |p| self.name(p).into());
        }
        for (slot, output) in proto.output.iter_mut().enumerate() {
            *output = self.name(Port { node: n, slot }).into();
        }
        let renamed: HashMap<&str, &str> = op
            .captures
            .iter()
            .zip(operands.iter().skip(op.proto.input.len()).flatten())
            .map(|(old, port)| (&old[..], self.name(*port)))
            .filter(|(old, new)| old != new)
            .collect();
        if !renamed.is_empty() {
            for a in &mut proto.attribute {
                a.g.0.iter_mut().map(|g| &mut **g).chain(&mut a.graphs).for_each(|g| rename(g, &renamed));
            }
        }
        proto
    }
}

/// Gives nodes that would have the name of another one their own: ONNX Runtime refuses a file with two of one name.
fn tell_apart(g: &mut GraphProto) {
    let mut names: HashSet<String> = g.node.iter().map(|n| n.name.clone()).collect();
    let mut met: HashMap<String, usize> = HashMap::new();
    for node in g.node.iter_mut().filter(|n| !n.name.is_empty()) {
        let count = met.entry(node.name.clone()).or_insert(0);
        *count += 1;
        if *count > 1 {
            let base = node.name.clone();
            while !names.insert(node.name.clone()) {
                node.name = format!("{base}_{count}");
                *count += 1;
            }
        }
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
