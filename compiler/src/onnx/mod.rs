//! ONNX files in and out.
//!
//! Reading: the bytes are mapped, walked once by [`wire`] before any parser sees them, then
//! parsed, sorted and built node by node with inference. Writing is the reverse, to a scratch
//! file that is renamed at the end.

use crate::graph::Graph;

mod attribute;
mod limits;
mod opset;
mod read;
mod tensor;
mod wire;
mod write;

pub use read::{read, read_bytes};
pub use write::{to_bytes, write, write_atomic};

/// A model: its graph, and everything else its file said.
#[derive(Clone)]
pub struct Model {
    /// What the model computes.
    pub graph: Graph,
    /// The rest of the file, with an empty graph: versions, producer, metadata.
    pub(crate) skeleton: onnx_protobuf::ModelProto,
    /// Sentences about the file that its user should know.
    pub warnings: Vec<String>,
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
        Self { graph, skeleton, warnings: vec![] }
    }

    /// The version of the default operator set that the file was written for.
    pub fn opset(&self) -> i64 {
        opset::default_domain(&self.skeleton.opset_import).unwrap_or(0)
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
