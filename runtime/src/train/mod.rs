//! Training: what feeds it, and what it leaves behind.

mod ahead;
pub mod augment;
pub mod checkpoint;
mod course;
mod form;
pub mod init;
pub mod job;
pub mod loader;
pub mod log;
pub mod lora;
pub mod loss;
pub mod masks;
pub mod matched;
pub mod model;
pub(crate) mod once;
pub mod optimiser;
mod probe;
mod random;
pub mod ranks;
pub mod replicas;
mod scaler;
pub mod schedule;
mod sender;
pub mod stored;
pub mod teacher;
pub mod tensorboard;
pub mod untie;
