//! The nodes of a file as they stand there, whatever domain they are of: nothing is lifted, replaced or checked.

use super::{
    external::{self, ExternalFiles},
    source::{self, Source},
    wire,
};
use crate::error::{Error, Result};
use onnx_protobuf::{Message, ModelProto, NodeProto};
use std::path::{Path, PathBuf};

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
    /// Its attributes that are whole numbers, but for zeros.
    pub ints: Vec<(String, i64)>,
    /// The nodes of the graphs inside it.
    pub inside: Vec<FileNode>,
}

impl FileNode {
    /// The attribute `name`, if it is a whole number other than zero.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.ints.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }

    // The depth of graphs inside graphs is bounded where the file is walked.
    fn of(node: NodeProto) -> Self {
        let (mut ints, mut inside) = (vec![], vec![]);
        for attribute in node.attribute {
            if attribute.i != 0 {
                ints.push((attribute.name, attribute.i));
            }
            let graphs = attribute.g.into_option().into_iter().chain(attribute.graphs);
            inside.extend(graphs.flat_map(|graph| graph.node).map(Self::of));
        }
        let (name, op, domain) = (node.name, node.op_type, node.domain);
        Self { name, op, domain, inputs: node.input, outputs: node.output, ints, inside }
    }
}

/// The files that the weights of the model at `path` are in, besides its own; none where it can't be read.
pub fn weight_files(path: &Path) -> Vec<PathBuf> {
    let read = || -> Result<Vec<PathBuf>> {
        let file = source::open(path)?;
        let skeleton = wire::skeleton(file.bytes(), wire::Message::Model)?;
        let mut proto = ModelProto::parse_from_bytes(&skeleton).map_err(|e| Error::malformed(e.to_string()))?;
        let mut source = Source::new(file);
        external::resolve(&mut proto, &mut source, &ExternalFiles::Beside { model: path, allow_hardlinks: true })?;
        Ok(source.files().iter().skip(1).map(|f| f.path().to_path_buf()).collect())
    };
    read().unwrap_or_default()
}

/// The nodes of the outermost graph of the file at `path`, in their order, with those of the graphs inside.
///
/// # Errors
/// File when it can't be read; malformed or limit for what is wrong inside.
pub fn listing(path: &Path) -> Result<Vec<FileNode>> {
    let read = || {
        let file = source::open(path)?;
        let skeleton = wire::skeleton(file.bytes(), wire::Message::Model)?;
        let proto = ModelProto::parse_from_bytes(&skeleton).map_err(|e| Error::malformed(format!("not ONNX: {e}")))?;
        let nodes = proto.graph.into_option().map(|g| g.node).unwrap_or_default();
        Ok(nodes.into_iter().map(FileNode::of).collect())
    };
    read().map_err(|e: Error| e.in_file(path))
}
