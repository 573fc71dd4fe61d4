//! The interpreter on Burn's backend primitives: see the crate's page.

mod control;
pub mod evaluator;
pub mod exec;
pub mod host;
pub mod kernels;
pub mod precision;
pub mod tensor;
#[cfg(test)]
mod tests;

pub use evaluator::BurnEvaluator;
pub use exec::Executable;
pub use tensor::Value;
