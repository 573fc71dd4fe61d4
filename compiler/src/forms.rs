//! What exporters write for operators that ONNX got later, or has not: what a group of nodes computes, found by its arithmetic.
//!
//! Passes make one operator of a group; the runtime computes it in one kernel as it stands.

pub mod attention;
pub mod decoder;
pub mod gelu;
pub mod normalised;
pub mod packed_rows;
pub mod rotary;
