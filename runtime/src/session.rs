//! A model made ready to run.

mod backend;
mod decoding;
mod generation;
mod parts;
mod settled;

pub use backend::{Backend, Engine, EngineChoice};
pub use generation::Generation;

use crate::{burn::exec::Sink, cpu::Spent, onnxruntime};
use compress_compiler::{
    error::Result,
    node::Site,
    onnx::Model,
    tensor::Tensor,
    verify::{Verified, verify},
};
use decoding::{Decoding, Once};
use parts::Parts;
use std::time::{Duration, Instant};

/// A model made ready to run: on our executors, or on ONNX Runtime.
pub struct Session {
    executor: Executor,
    decoding: Option<Decoding>,
}

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
        let executor = match backend.engine {
            Engine::OnnxRuntime(provider) => {
                let file = backend.file.as_deref();
                Executor::OnnxRuntime(Box::new(onnxruntime::Session::new(graph, file, provider, watch)?))
            }
            Engine::Cpu(_) | Engine::Burn => Executor::Ours(Box::new(Parts::new(graph, backend, watch)?)),
        };
        Ok(Self { executor, decoding: Decoding::of(graph) })
    }

    /// Makes `model` ready to run: for ONNX Runtime as its files have it, which is how it would be deployed.
    ///
    /// # Errors
    /// As for [`Session::new`].
    pub fn of_model(model: &Model, backend: &Backend) -> Result<Self> {
        match backend.engine {
            Engine::OnnxRuntime(provider) => {
                let executor = Executor::OnnxRuntime(Box::new(onnxruntime::Session::of_file(model, provider)?));
                Ok(Self { executor, decoding: Decoding::of(&model.graph) })
            }
            Engine::Cpu(_) | Engine::Burn => Self::new(&verify(&model.graph)?, backend, &[]),
        }
    }

    /// Runs the model on `inputs`, in the order of its signature, and returns its outputs. Inputs
    /// with a default may all be left out. A [decoder with a cache](compress_compiler::forms::decoder) may be given whole
    /// sequences of tokens: it takes most of them at once, then the last ones one by one, with the cache that it made, and
    /// the scores are those of all tokens.
    ///
    /// # Errors
    /// Data when the inputs don't fit the signature; what a kernel raises, naming the node.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.each(inputs, &mut |inputs| self.once(inputs))
    }

    /// A text that the model continues, token by token.
    ///
    /// # Errors
    /// Unsupported for a model that is not a decoder with a cache, or whose inputs are not its tokens and its cache alone.
    pub fn generation(&self) -> Result<Generation<'_>> {
        Generation::new(self)
    }

    /// As [`Session::run`], and shows every watched floating-point value to `sink`, by its place
    /// in the list given to [`Session::new`], as soon as it exists; one of a graph inside each time
    /// that this one runs, and of a decoder in every run. Other values are not shown.
    ///
    /// # Errors
    /// As for [`Session::run`]; what `sink` returns.
    pub fn observe(&self, inputs: &[Tensor], sink: &mut Sink) -> Result<Vec<Tensor>> {
        self.each(inputs, &mut |inputs| match &self.executor {
            Executor::Ours(parts) => parts.observe(inputs, sink),
            Executor::OnnxRuntime(session) => session.observe(inputs, sink),
        })
    }

    /// As [`Session::run`], and says how long each node took, and for each part that Burn ran the time between its nodes. Of
    /// ONNX Runtime it is the time of the whole.
    ///
    /// # Errors
    /// As for [`Session::run`].
    pub fn profile(&self, inputs: &[Tensor]) -> Result<Vec<Spent>> {
        let mut all = vec![];
        if self.decoding.as_ref().is_none_or(|d| d.is_whole(inputs)) {
            return self.profile_once(inputs);
        }
        self.each(inputs, &mut |inputs| {
            all.extend(self.profile_once(inputs)?);
            self.once(inputs)
        })?;
        Ok(all)
    }

    /// Runs a decoder with a cache on whole sequences: of each run how many tokens of a sequence it took, and how long. Nothing of
    /// another model.
    ///
    /// # Errors
    /// As for [`Session::run`].
    pub fn steps(&self, inputs: &[Tensor]) -> Result<Vec<(usize, Duration)>> {
        let Some(decoding) = self.decoding.as_ref().filter(|d| !d.is_whole(inputs)) else { return Ok(vec![]) };
        let mut steps = vec![];
        self.each(inputs, &mut |inputs| {
            let began = Instant::now();
            let made = self.once(inputs)?;
            steps.push((decoding.tokens_of(inputs), began.elapsed()));
            Ok(made)
        })?;
        Ok(steps)
    }

    fn once(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        match &self.executor {
            Executor::Ours(parts) => parts.run(inputs),
            Executor::OnnxRuntime(session) => session.run(inputs),
        }
    }

    fn profile_once(&self, inputs: &[Tensor]) -> Result<Vec<Spent>> {
        match &self.executor {
            Executor::Ours(parts) => parts.profile(inputs),
            Executor::OnnxRuntime(session) => session.timed(inputs),
        }
    }

    /// Runs the model once, or as a decoder on the tokens of whole sequences.
    fn each(&self, inputs: &[Tensor], once: &mut Once) -> Result<Vec<Tensor>> {
        match self.decoding.as_ref().filter(|d| !d.is_whole(inputs)) {
            Some(decoding) => decoding.run(inputs, once),
            None => once(inputs),
        }
    }
}
