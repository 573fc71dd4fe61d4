//! Training: what feeds it, and what it leaves behind.

mod ahead;
pub mod augment;
pub mod loader;
mod random;
