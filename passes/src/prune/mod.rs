//! Pruning.

mod budget;
pub mod choice;
mod layout;
pub mod mask;
mod moments;
pub mod reconstruct;
pub mod recover;
mod solve;
pub mod unstructured;
