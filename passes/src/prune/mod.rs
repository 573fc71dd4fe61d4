//! Pruning.

mod budget;
pub mod choice;
pub mod cut;
pub mod groups;
pub mod mask;
mod moments;
pub mod reconstruct;
pub mod recover;
pub mod score;
mod select;
mod solve;
pub mod structured;
pub mod unstructured;
mod weight_matrix;
