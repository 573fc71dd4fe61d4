//! A model that is ready to run.

use crate::{
    inspect::{Signature, signature},
    measure,
    options::{DeviceOptions, ReadOptions},
};
use compress_compiler::{error::Result, graph::Graph, onnx, tensor::Tensor};
use compress_runtime::session::{Backend, Session};
use std::path::Path;

/// A model on our runtime.
///
/// ```no_run
/// # fn main() -> compress::Result<()> {
/// use compress::{Model, Tensor, options::{DeviceOptions, ReadOptions}};
///
/// let model = Model::open("model.onnx".as_ref(), &ReadOptions::default(), &DeviceOptions::default())?;
/// let outputs = model.run(&[Tensor::f32(&[1, 3, 2, 2], &[0.0; 12])])?;
/// println!("{}: {:?}", model.outputs()[0].name, outputs[0].shape());
/// # Ok(())
/// # }
/// ```
pub struct Model {
    session: Session,
    inputs: Vec<Signature>,
    outputs: Vec<Signature>,
}

impl Model {
    /// Reads a model and makes it ready.
    ///
    /// # Errors
    /// File, malformed, limit and unsupported for the model; device.
    pub fn open(path: &Path, read: &ReadOptions, on: &DeviceOptions) -> Result<Self> {
        let model = onnx::read_with(path, &read.into())?;
        Self::of_model(&model, &on.open()?).map_err(|e| e.in_file(path))
    }

    /// A model as its files have it, ready to run.
    pub(crate) fn of_model(model: &onnx::Model, backend: &Backend) -> Result<Self> {
        let (inputs, outputs) = signature(&model.graph);
        Ok(Self { session: Session::of_model(model, backend)?, inputs, outputs })
    }

    /// A graph, ready to run.
    pub(crate) fn of(graph: &Graph, backend: &Backend) -> Result<Self> {
        let session = measure::session(graph, backend)?;
        let (inputs, outputs) = signature(graph);
        Ok(Self { session, inputs, outputs })
    }

    /// Runs the model on `inputs`, in its order, and returns its outputs.
    ///
    /// # Errors
    /// Data when the inputs don't fit; what an operator raises, naming the node.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        self.session.run(inputs)
    }

    /// Its inputs.
    pub fn inputs(&self) -> &[Signature] {
        &self.inputs
    }

    /// Its outputs.
    pub fn outputs(&self) -> &[Signature] {
        &self.outputs
    }
}
