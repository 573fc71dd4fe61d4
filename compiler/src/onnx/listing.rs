//! The nodes of a file as they stand there, whatever domain they are of: nothing is lifted, replaced or checked.

use super::{source, wire};
use crate::error::{Error, Result};
use onnx_protobuf::{Message, ModelProto};
use std::path::Path;

/// A node as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileNode {
    /// Its name, which may be empty.
    pub name: String,
    /// Its operator, without the domain.
    pub op: String,
    /// The domain of the operator; empty for ONNX's own.
    pub domain: String,
    /// The names of the values that it reads; empty for one that is left out.
    pub inputs: Vec<String>,
    /// The names of the values that it makes.
    pub outputs: Vec<String>,
}

/// The nodes of the outermost graph of the file at `path`, in their order.
///
/// # Errors
/// File when it can't be read; malformed or limit for what is wrong inside.
pub fn listing(path: &Path) -> Result<Vec<FileNode>> {
    let read = || {
        let file = source::open(path)?;
        let skeleton = wire::skeleton(file.bytes(), wire::Message::Model)?;
        let proto = ModelProto::parse_from_bytes(&skeleton).map_err(|e| Error::malformed(format!("not ONNX: {e}")))?;
        let nodes = proto.graph.into_option().map(|g| g.node).unwrap_or_default();
        let listed = |n: onnx_protobuf::NodeProto| FileNode {
            name: n.name,
            op: n.op_type,
            domain: n.domain,
            inputs: n.input,
            outputs: n.output,
        };
        Ok(nodes.into_iter().map(listed).collect())
    };
    read().map_err(|e: Error| e.in_file(path))
}
