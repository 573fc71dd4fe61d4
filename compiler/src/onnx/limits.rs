//! What we accept of a file, checked before memory is spent on it.

/// Bytes of one file. Above this, protobuf itself no longer holds (2 GB).
pub const MAX_FILE: u64 = (1 << 31) - 1;
/// Messages inside messages: subgraphs, nested types.
pub const MAX_DEPTH: usize = 64;
/// Messages in one file: ten of them (a node with its attributes) for each of a million nodes.
pub const MAX_MESSAGES: usize = 10_000_000;
/// Bytes that parsed messages may take whatever the file's size: those of some hundred thousand nodes.
pub const PARSED_BYTES: usize = 64 << 20;
/// Bytes that they may take for each byte of the file. An empty node takes two in the file and some hundred parsed.
pub const PARSED_BYTES_PER_BYTE: usize = 24;
/// Nodes of one graph.
pub const MAX_NODES: usize = 1_000_000;
/// Elements of one tensor.
pub const MAX_ELEMENTS: usize = 1 << 33;
/// Nodes that calls of model-local functions stand for.
pub const MAX_INLINED: usize = 200_000;
