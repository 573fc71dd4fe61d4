//! Pruning.

pub mod unstructured;
