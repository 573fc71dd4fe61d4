//! Runs single operators on host tensors: what constant folding asks for.

use super::{
    kernels::{self, Args},
    tensor::Value,
};
use crate::device::Device;
use compress_compiler::{error::Result, op::Op, pass::Interpreter, tensor::Tensor};

/// Evaluates operators by the interpreter's kernels. Floats are computed in `f32`, narrower
/// ones rounded back, and `f64` in itself.
pub struct BurnInterpreter {
    /// Where the kernels run.
    pub device: Device,
}

impl BurnInterpreter {
    /// An interpreter on the CPU, which suits the small tensors of folding best.
    pub fn cpu() -> Self {
        Self { device: Device::cpu() }
    }
}

impl Interpreter for BurnInterpreter {
    fn eval(&self, op: &Op, inputs: &[Option<Tensor>]) -> Result<Vec<Tensor>> {
        let upload = |t: &Option<Tensor>| t.as_ref().map(|t| Value::upload(t, &self.device)).transpose();
        let values = inputs.iter().map(upload).collect::<Result<_>>()?;
        kernels::eval(op, Args::new(values, &self.device))?.into_iter().map(Value::download).collect()
    }
}
