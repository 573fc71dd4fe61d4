//! A graph on ONNX Runtime.

use super::{Provider, library};
use crate::{burn::exec::Sink, cpu::Spent};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::{NodeId, Site},
    onnx::{self, Model},
    op::Op,
    tensor::{DType, Tensor},
    verify::{Verified, verify},
};
use ort::{
    environment::Environment,
    ep,
    logging::LogLevel,
    memory::Allocator,
    session::{SessionInputValue, builder::SessionBuilder},
    value::{DynTensor, DynTensorValueType, DynValue, TensorElementType},
};
use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// A graph that ONNX Runtime made ready to run, with all of its optimisations.
pub struct Session {
    // A run has all threads to itself.
    session: Mutex<ort::session::Session>,
    /// The names of the inputs, and whether they have a default.
    inputs: Vec<(String, bool)>,
    outputs: usize,
    /// For each output after these, the place of the watched value that it is.
    watched: Vec<usize>,
}

impl Session {
    /// Hands a graph over, which is of `file` if that is known. [`Session::observe`] shows the values in `watch`, but for those
    /// of graphs inside.
    ///
    /// # Errors
    /// Device where there is no ONNX Runtime, or not the provider; unsupported for a graph that it refuses.
    pub fn new(graph: &Verified, file: Option<&Model>, provider: Provider, watch: &[Site]) -> Result<Self> {
        let environment = &library::loaded(None)?.environment;
        let mut shown = Graph::clone(graph);
        let outputs = shown.outputs().len();
        let mut watched = vec![];
        for (i, site) in watch.iter().enumerate() {
            let Some(port) = site.here() else {
                return Err(Error::unsupported("values inside If, Loop and Scan can't be seen through ONNX Runtime")
                    .help("leave the engine to our runtime"));
            };
            if graph.fact(port).dtype.is_none_or(|d| d.is_float()) {
                let name = shown.fresh(&format!("watched_{i}"));
                shown.add_output(&name, port);
                watched.push(i);
            }
        }
        let mut framed = file.cloned().unwrap_or_else(|| Model::new(Graph::new("")));
        verify(&shown)?;
        framed.graph = shown;
        let session = commit_graph(configured(environment, provider)?, &framed)?;
        Ok(Self { session: Mutex::new(session), inputs: inputs(graph), outputs, watched })
    }

    /// Hands over a model as its files have it.
    ///
    /// # Errors
    /// As for [`Session::new`].
    pub fn of_file(model: &Model, provider: Provider) -> Result<Self> {
        commit(configured(&library::loaded(None)?.environment, provider)?, model)
    }

    /// Runs the model on `inputs`, in the order of its signature. Inputs with a default may all be left out.
    ///
    /// # Errors
    /// Data for inputs that don't fit; unsupported for outputs that are not tensors.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut made = self.all(inputs)?;
        made.truncate(self.outputs);
        Ok(made)
    }

    /// As [`Session::run`], and shows the values that are watched.
    ///
    /// # Errors
    /// As for [`Session::run`]; what `sink` returns.
    pub fn observe(&self, inputs: &[Tensor], sink: &mut Sink) -> Result<Vec<Tensor>> {
        let mut made = self.all(inputs)?;
        for (tensor, place) in made.drain(self.outputs..).zip(&self.watched) {
            if let Some(values) = tensor.as_f32() {
                sink(*place, &values)?;
            }
        }
        Ok(made)
    }

    /// As [`Session::run`], and says how long it took as a whole.
    ///
    /// # Errors
    /// As for [`Session::run`].
    pub fn timed(&self, inputs: &[Tensor]) -> Result<Vec<Spent>> {
        let given = self.given(inputs)?;
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let made = session.run(given).map_err(|e| failed(&e))?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        drop(made);
        Ok(vec![Spent {
            node: "(the whole model)".into(),
            kernel: "ONNX Runtime".into(),
            ms,
            started: start,
            worker: (0, 1),
        }])
    }

    /// Ends a profile that the session was built with, and returns the path of its file.
    ///
    /// # Errors
    /// Device when it can't be written.
    pub(super) fn end_profile(self) -> Result<PathBuf> {
        let mut session = self.session.into_inner().unwrap_or_else(PoisonError::into_inner);
        session.end_profiling().map(PathBuf::from).map_err(|e| unset(&e))
    }

    fn all(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let given = self.given(inputs)?;
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let made = session.run(given).map_err(|e| failed(&e))?;
        made.into_iter().map(|(_, value)| to_ours(value)).collect()
    }

    /// The inputs under their names.
    fn given(&self, inputs: &[Tensor]) -> Result<Vec<(String, SessionInputValue<'static>)>> {
        let asked: Vec<&String> = match inputs.len() == self.inputs.len() {
            true => self.inputs.iter().map(|(name, _)| name).collect(),
            false => self.inputs.iter().filter(|(_, has_default)| !has_default).map(|(name, _)| name).collect(),
        };
        if asked.len() != inputs.len() {
            return Err(Error::data(format!("{} inputs were given, the model takes {}", inputs.len(), asked.len())));
        }
        let one = |(name, tensor): (&String, &Tensor)| Ok((name.clone(), to_theirs(tensor)?.into_dyn().into()));
        asked.into_iter().zip(inputs).map(one).collect()
    }
}

/// A session of a model as its files have it.
///
/// # Errors
/// Unsupported for what ONNX Runtime refuses.
pub(super) fn commit(mut builder: SessionBuilder, model: &Model) -> Result<Session> {
    let session = match model.source().files() {
        [file] => builder.commit_from_memory(file.bytes()).map_err(refused)?,
        [file, ..] if file.path().exists() => builder.commit_from_file(file.path()).map_err(refused)?,
        // It has no name yet under which its weights could be found.
        _ => {
            verify(&model.graph)?;
            commit_graph(builder, model)?
        }
    };
    let (inputs, outputs) = (inputs(&model.graph), model.graph.outputs().len());
    Ok(Session { session: Mutex::new(session), inputs, outputs, watched: vec![] })
}

/// A session of a model that is written for it.
fn commit_graph(mut builder: SessionBuilder, model: &Model) -> Result<ort::session::Session> {
    match onnx::to_bytes(model) {
        Ok(bytes) => builder.commit_from_memory(&bytes).map_err(refused),
        // Too large for one message: the weights go into a file of their own.
        Err(e) if e.kind() == Kind::Limit => {
            let no_room = |e: std::io::Error| Error::file(format!("no folder for the model: {e}"));
            let folder = tempfile::Builder::new().prefix("compress-model-").tempdir().map_err(no_room)?;
            let path = folder.path().join("model.onnx");
            onnx::write(model, &path, true)?;
            builder.commit_from_file(&path).map_err(refused)
        }
        Err(e) => Err(e),
    }
}

/// The names of the inputs, and whether they have a default.
fn inputs(graph: &Graph) -> Vec<(String, bool)> {
    let has_default = |n: NodeId| matches!(graph.op(n), Op::Input(i) if i.default.is_some());
    graph.inputs().iter().map(|n| (graph.value((*n).into()).name.clone(), has_default(*n))).collect()
}

/// Options of a session: those of a program that sets none, and as many threads as our runtime has.
pub(super) fn configured(environment: &Environment, provider: Provider) -> Result<SessionBuilder> {
    let threads = rayon::current_num_threads();
    let builder = ort::session::Session::builder(environment).map_err(|e| unset(&e))?;
    // Its warnings are about how models are written.
    let builder = builder.with_log_level(LogLevel::Fatal).map_err(|e| unset(&e))?;
    let builder = builder.with_intra_threads(threads).map_err(|e| unset(&e))?;
    let provided = match provider {
        Provider::Cpu => return Ok(builder),
        Provider::OpenVino => ep::OpenVINO::default().with_device_type("CPU").with_num_threads(threads).build(),
        Provider::Cuda => ep::CUDA::default().build(),
        Provider::TensorRt => ep::TensorRT::default().build(),
    };
    builder
        .with_execution_providers([provided.error_on_failure()])
        .map_err(|e| unset(&e).help(format!("pip install {}, in place of onnxruntime", provider.package())))
}

/// An option that ONNX Runtime refuses.
pub(super) fn unset(e: &dyn std::fmt::Display) -> Error {
    Error::device(format!("ONNX Runtime: {e}"))
}

/// A message of ONNX Runtime, on one line.
fn plain(e: &ort::Error) -> String {
    e.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn refused(e: ort::Error) -> Error {
    Error::unsupported(format!("ONNX Runtime refuses the model: {}", plain(&e)))
}

fn failed(e: &ort::Error) -> Error {
    Error::data(format!("ONNX Runtime: {}", plain(e)))
}

/// Our element types and theirs.
const TYPES: &[(DType, TensorElementType)] = &[
    (DType::F32, TensorElementType::Float32),
    (DType::F64, TensorElementType::Float64),
    (DType::F16, TensorElementType::Float16),
    (DType::BF16, TensorElementType::Bfloat16),
    (DType::I8, TensorElementType::Int8),
    (DType::I16, TensorElementType::Int16),
    (DType::I32, TensorElementType::Int32),
    (DType::I64, TensorElementType::Int64),
    (DType::U8, TensorElementType::Uint8),
    (DType::U16, TensorElementType::Uint16),
    (DType::U32, TensorElementType::Uint32),
    (DType::U64, TensorElementType::Uint64),
    (DType::Bool, TensorElementType::Bool),
];

fn to_theirs(tensor: &Tensor) -> Result<DynTensor> {
    let dtype = tensor.dtype();
    let Some((_, theirs)) = TYPES.iter().find(|(ours, _)| *ours == dtype) else {
        return Err(Error::unsupported(format!("inputs of {dtype} can't be handed to ONNX Runtime")));
    };
    let shape: Vec<i64> = tensor.shape().iter().map(|d| *d as i64).collect();
    let mut made = DynTensor::new(&Allocator::default(), *theirs, shape).map_err(|e| unset(&e))?;
    let bytes = tensor.bytes();
    if !bytes.is_empty() {
        // SAFETY: the tensor is on the CPU, is this function's own, and has as many elements of the same size.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), made.data_ptr_mut().cast::<u8>(), bytes.len()) };
    }
    Ok(made)
}

fn to_ours(value: DynValue) -> Result<Tensor> {
    let unknown = |what: String| Error::unsupported(format!("an output of ONNX Runtime is {what}"));
    let what = value.dtype().to_string();
    let Ok(tensor) = value.downcast::<DynTensorValueType>() else { return Err(unknown(what)) };
    let theirs = *tensor.data_type();
    let dtype = TYPES.iter().find(|(_, known)| *known == theirs).map(|(ours, _)| *ours);
    let dtype = dtype.ok_or_else(|| unknown(format!("a tensor of {theirs}")))?;
    let shape: Vec<usize> = tensor.shape().iter().map(|d| *d as usize).collect();
    let len = dtype.bytes(&shape).ok_or_else(|| unknown("too large".into()))?;
    let bytes = match len {
        0 => vec![],
        // SAFETY: the tensor is on the CPU, and has so many bytes, which live as long as it.
        len => unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), len) }.to_vec(),
    };
    Tensor::new(dtype, shape, bytes)
}
