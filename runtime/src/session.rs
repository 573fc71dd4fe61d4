//! A model made ready to run.

mod backend;
mod parts;

pub use backend::{Backend, Engine, EngineChoice};

use crate::{burn::exec::Sink, cpu::Spent, onnxruntime};
use compress_compiler::{
    error::Result,
    node::Site,
    onnx::Model,
    tensor::Tensor,
    verify::{Verified, verify},
};
use parts::Parts;

/// A model made ready to run: on our executors, or on ONNX Runtime.
pub struct Session(Executor);

enum Executor {
    Ours(Box<Parts>),
    OnnxRuntime(Box<onnxruntime::Session>),
}

impl Session {
    /// Makes `graph` ready to run. [`Session::observe`] shows the values in `watch`.
    ///
    /// # Errors
    /// As for [`Executable::new`](crate::burn::Executable::new); unsupported for what ONNX Runtime refuses.
    pub fn new(graph: &Verified, backend: &Backend, watch: &[Site]) -> Result<Self> {
        Ok(Self(match backend.engine {
            Engine::OnnxRuntime(provider) => {
                let file = backend.file.as_deref();
                Executor::OnnxRuntime(Box::new(onnxruntime::Session::new(graph, file, provider, watch)?))
            }
            Engine::Cpu(_) | Engine::Burn => Executor::Ours(Box::new(Parts::new(graph, backend, watch)?)),
        }))
    }

    /// Makes `model` ready to run: for ONNX Runtime as its files have it, which is how it would be deployed.
    ///
    /// # Errors
    /// As for [`Session::new`].
    pub fn of_model(model: &Model, backend: &Backend) -> Result<Self> {
        match backend.engine {
            Engine::OnnxRuntime(provider) => {
                Ok(Self(Executor::OnnxRuntime(Box::new(onnxruntime::Session::of_file(model, provider)?))))
            }
            Engine::Cpu(_) | Engine::Burn => Self::new(&verify(&model.graph)?, backend, &[]),
        }
    }

    /// Runs the model on `inputs`, in the order of its signature, and returns its outputs. Inputs
    /// with a default may all be left out.
    ///
    /// # Errors
    /// Data when the inputs don't fit the signature; what a kernel raises, naming the node.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match &self.0 {
            Executor::Ours(parts) => parts.run(inputs),
            Executor::OnnxRuntime(session) => session.run(inputs),
        }
    }

    /// As [`Session::run`], and shows every watched floating-point value to `sink`, by its place
    /// in the list given to [`Session::new`], as soon as it exists; one of a graph inside each time
    /// that this one runs. Other values are not shown.
    ///
    /// # Errors
    /// As for [`Session::run`]; what `sink` returns.
    pub fn observe(&self, inputs: &[Tensor], sink: &mut Sink) -> Result<Vec<Tensor>> {
        match &self.0 {
            Executor::Ours(parts) => parts.observe(inputs, sink),
            Executor::OnnxRuntime(session) => session.observe(inputs, sink),
        }
    }

    /// As [`Session::run`], and says how long each node took, and for each part that Burn ran the time between its nodes. Of
    /// ONNX Runtime it is the time of the whole.
    ///
    /// # Errors
    /// As for [`Session::run`].
    pub fn profile(&self, inputs: &[Tensor]) -> Result<Vec<Spent>> {
        match &self.0 {
            Executor::Ours(parts) => parts.profile(inputs),
            Executor::OnnxRuntime(session) => session.timed(inputs),
        }
    }
}
