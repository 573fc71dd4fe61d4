//! Values that a device makes in other steps than node after node: several nodes in one kernel, or codes as bytes.

use super::tensor::Value;
use crate::cpu::Want;
use compress_compiler::error::Result;

/// A step that makes one value of others.
pub(crate) trait Fused: Send + Sync {
    /// Makes the value.
    ///
    /// # Errors
    /// What its kernel raises.
    fn run(&self, operands: Vec<Value>) -> Result<Value>;

    /// The name of its kernel.
    fn kernel(&self) -> &'static str;
}

/// How a value is made: of which others, and by which step.
pub(crate) struct Fusion {
    /// What is read.
    pub operands: Vec<Want>,
    /// The step.
    pub step: Box<dyn Fused>,
}

/// Says how a value is made, if not by its node. It is asked for values from the outputs backwards. Those in the form of codes
/// are made by such steps alone, and read by them alone.
pub(crate) type Fuse<'a> = dyn Fn(Want) -> Result<Option<Fusion>> + 'a;
