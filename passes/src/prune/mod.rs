//! Pruning.

mod budget;
pub mod choice;
pub mod cut;
pub mod depth;
pub mod groups;
pub mod mask;
pub mod reconstruct;
pub mod recover;
pub mod score;
mod select;
pub(crate) mod solve;
pub mod structured;
pub mod unstructured;
