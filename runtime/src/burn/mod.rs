//! The interpreter on Burn's backend primitives: see the crate's page.

pub(crate) mod control;
pub mod exec;
pub(crate) mod fused;
pub mod host;
pub(crate) mod inputs;
pub mod interpreter;
pub mod kernels;
pub(crate) mod order;
pub mod precision;
pub mod tensor;
#[cfg(test)]
mod tests;

pub use exec::Executable;
pub use interpreter::BurnInterpreter;
pub use tensor::Value;
