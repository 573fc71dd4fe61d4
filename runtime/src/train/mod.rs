//! Training: what feeds it, and what it leaves behind.

mod ahead;
pub mod augment;
pub mod checkpoint;
pub mod loader;
pub mod log;
mod random;
pub mod tensorboard;
