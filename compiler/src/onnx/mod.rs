//! ONNX files in and out.
//!
//! Reading: the bytes are mapped and walked once by [`wire`] before any parser sees them. The
//! parser gets a skeleton in which weights are references into the map, and there they stay
//! until a pass changes them. Nodes are then sorted and built one by one with inference.
//! Writing is the reverse: the skeleton's pieces and the weights between them go one by one into
//! a scratch file that takes its name at the end.

use crate::{graph::Graph, node::Remarks};

mod arity;
mod attribute;
mod digest;
mod external;
mod functions;
mod import;
mod limits;
mod listing;
mod opset;
mod order;
mod read;
mod remarks;
mod scratch;
mod source;
mod stream;
mod tensor;
mod wire;
mod write;

pub use listing::{FileNode, listing, weight_files};
pub use read::{ReadOptions, read, read_bytes, read_tensor, read_with};
pub use scratch::write_atomic;
pub use source::{Source, SourceFile};
pub use write::{LeftBehind, Staged, stage, to_bytes, write};

/// A model: its graph, and everything else its file said.
#[derive(Clone)]
pub struct Model {
    /// What the model computes.
    pub graph: Graph,
    /// The rest of the file, with an empty graph: versions, producer, metadata. The raw data of its
    /// tensors, and of those in operators kept as they came, are references into `source`.
    pub(crate) skeleton: onnx_protobuf::ModelProto,
    pub(crate) source: Source,
    /// Sentences about the file that its user should know.
    pub warnings: Vec<String>,
    /// Whether nodes and graphs are written without documentation and metadata. Those of the model stay: they hold class
    /// names and dictionaries.
    pub stripped: bool,
}

impl Model {
    /// A model around a graph that was built here.
    pub fn new(graph: Graph) -> Self {
        let skeleton = onnx_protobuf::ModelProto {
            ir_version: 8,
            producer_name: "compress".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            opset_import: vec![opset::import("", 13)],
            ..Default::default()
        };
        Self { graph, skeleton, source: Source::default(), warnings: vec![], stripped: false }
    }

    /// The files that the model came from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The version of the default operator set that the file was written for.
    pub fn opset(&self) -> i64 {
        opset::default_domain(&self.skeleton.opset_import).unwrap_or(0)
    }

    /// Bytes of the documentation and metadata of nodes and graphs.
    pub fn remark_bytes(&self) -> usize {
        let nodes = self.graph.and_bodies().into_iter().flat_map(|g| g.ids().map(move |n| g.node(n)));
        let of_node = |r: &Remarks| r.doc.len() + r.metadata.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        nodes.filter_map(|n| n.remarks.as_deref()).map(of_node).sum()
    }

    /// The value of a `metadata_props` entry.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.skeleton.metadata_props.iter().find(|p| p.key == key).map(|p| &p.value[..])
    }

    /// Sets a `metadata_props` entry.
    pub fn set_metadata(&mut self, key: &str, value: &str) {
        let props = &mut self.skeleton.metadata_props;
        props.retain(|p| p.key != key);
        props.push(onnx_protobuf::StringStringEntryProto {
            key: key.into(),
            value: value.into(),
            ..Default::default()
        });
    }
}
