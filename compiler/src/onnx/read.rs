//! From an ONNX file to a graph.

use super::{
    Model,
    external::{self, ExternalFiles},
    functions::Functions,
    import::{Importer, Listed},
    limits, opset, remarks,
    source::{self, Source, SourceFile},
    tensor, wire,
};
use crate::{
    error::{Error, Result},
    graph::Graph,
    op::{Op, Operator},
    storage::Blob,
    tensor::Tensor,
};
use onnx_protobuf::{Message, ModelProto, TensorProto, tensor_proto::DataLocation};
use std::path::Path;

/// What a reader is allowed.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Whether external data may be in files with several names (hard links), of which some may
    /// lie outside the model's folder.
    pub allow_hardlinks: bool,
    /// Whether an initializer that is listed among the graph's inputs stays an input, with a default that callers may
    /// replace. Exporters list their weights so (PyTorch's `keep_initializers_as_inputs`), and nobody replaces those:
    /// otherwise they are constants.
    pub keep_initializer_inputs: bool,
}

/// Reads the model at `path`.
///
/// # Errors
/// File when it or a file of its weights can't be read; malformed, limit or unsupported for what
/// is wrong inside, naming the node.
pub fn read(path: &Path) -> Result<Model> {
    read_with(path, &ReadOptions::default())
}

/// Reads the model at `path` with other options than [`read`] has.
///
/// # Errors
/// As [`read`].
pub fn read_with(path: &Path, options: &ReadOptions) -> Result<Model> {
    let place = ExternalFiles::Beside { model: path, allow_hardlinks: options.allow_hardlinks };
    let keep_inputs = options.keep_initializer_inputs;
    source::open(path).and_then(|file| import(file, &place, keep_inputs)).map_err(|e| e.in_file(path))
}

/// Reads a model from the bytes of an ONNX file, whose inputs all stay inputs.
///
/// # Errors
/// As [`read`], without the file's name; unsupported when weights are in other files.
pub fn read_bytes(bytes: &[u8]) -> Result<Model> {
    import(SourceFile::new(Path::new(""), Blob::Heap(bytes.to_vec())), &ExternalFiles::Nowhere, true)
}

/// Reads the name and the content of a tensor from the bytes of a file of its own, such as those of
/// ONNX's test data.
///
/// # Errors
/// Malformed, limit or unsupported for what is wrong inside.
pub fn read_tensor(bytes: Vec<u8>) -> Result<(String, Tensor)> {
    let skeleton = wire::skeleton(&bytes, wire::Message::Tensor)?;
    let proto = TensorProto::parse_from_bytes(&skeleton)
        .map_err(|e| Error::malformed(format!("not an ONNX tensor, or a damaged one: {e}")))?;
    if proto.data_location.enum_value() == Ok(DataLocation::EXTERNAL) {
        return Err(Error::unsupported("its elements are in another file"));
    }
    let source = Source::new(SourceFile::new(Path::new(""), Blob::Heap(bytes)));
    Ok((proto.name.clone(), tensor::read(proto, &source)?))
}

/// Reads a model whose own file is `file`; `keep_inputs` is [`ReadOptions::keep_initializer_inputs`].
///
/// # Errors
/// As [`read`], without the file's name.
pub(super) fn import(file: SourceFile, place: &ExternalFiles, keep_inputs: bool) -> Result<Model> {
    let model = import_up_to(file.clone(), place, keep_inputs, opset::NEWEST)?;
    // What is not understood may forbid the opset that other operators' newest form needs, and an old form that of what
    // another domain's operator stands for. Little is lost when these are kept as they came, too.
    let keeps = |g: &&Graph| g.operators().any(|n| matches!(g.op(n), Op::Opaque(_)));
    let others = model.skeleton.opset_import.iter().any(|i| !opset::is_default(&i.domain));
    let may_stay = others || model.graph.and_bodies().iter().any(keeps);
    if !may_stay || opset::lowest(&model.graph, model.opset()).is_ok() {
        return Ok(model);
    }
    import_up_to(file, place, keep_inputs, model.opset())
}

/// [`import`], where operators that need a newer opset than `newest` are kept as they came.
fn import_up_to(file: SourceFile, place: &ExternalFiles, keep_inputs: bool, newest: i64) -> Result<Model> {
    let size = file.bytes().len();
    if size as u64 > limits::MAX_FILE {
        return Err(Error::limit(format!("{size} bytes; a protobuf file ends at {}", limits::MAX_FILE)));
    }
    if size == 0 {
        return Err(Error::malformed("the file is empty"));
    }
    let skeleton = wire::skeleton(file.bytes(), wire::Message::Model)?;
    let mut proto = ModelProto::parse_from_bytes(&skeleton)
        .map_err(|e| Error::malformed(format!("not an ONNX file, or a damaged one: {e}")))?;
    let mut source = Source::new(file);
    external::resolve(&mut proto, &mut source, place)?;
    let graph = proto.graph.take().ok_or_else(|| Error::malformed("the file has no graph; is it an ONNX model?"))?;
    proto.graph = Some(remarks::of_graph(&graph)).into();
    if !(1..=64).contains(&proto.ir_version) {
        return Err(Error::malformed(format!("ir_version {}", proto.ir_version)));
    }
    let version = opset::imported(&mut proto, &graph)?;
    let functions = Functions::new(&proto.functions)?;
    let listed = match keep_inputs {
        _ if proto.ir_version < 4 => Listed::OldWeights,
        true => Listed::Inputs,
        false => Listed::Weights,
    };
    let importer = Importer::new(&graph.name, version, listed, &functions, &source);
    let mut importer = importer.up_to(newest);
    importer.model(graph)?;
    let Importer { graph, warnings, .. } = importer;
    if !keeps_call(&graph, &functions) {
        proto.functions.clear();
    }
    Ok(Model { graph, skeleton: proto, source, warnings, stripped: false })
}

/// Whether an operator that is kept as it came calls a function.
fn keeps_call(graph: &Graph, functions: &Functions) -> bool {
    graph.operators().any(|n| match graph.op(n) {
        Op::Opaque(o) => functions.needed_by(&o.proto),
        op => op.bodies().iter().any(|b| keeps_call(b.graph(), functions)),
    })
}
