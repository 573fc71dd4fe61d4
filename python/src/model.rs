//! Models that run.

use crate::{arrays, errors::raised};
use compress::{
    Tensor,
    options::{DeviceOptions, ReadOptions},
};
use pyo3::{
    exceptions::{PyKeyError, PyTypeError},
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::{path::PathBuf, sync::Mutex};

/// A model on our runtime.
#[pyclass(frozen)]
pub struct Model {
    // One run at a time: a run has all threads to itself.
    model: Mutex<compress::Model>,
    inputs: Vec<(String, String)>,
    outputs: Vec<(String, String)>,
}

/// Names and types.
pub fn described(signature: &[compress::Signature]) -> Vec<(String, String)> {
    signature.iter().map(|s| (s.name.clone(), s.r#type.clone())).collect()
}

/// The arrays of a call, in the order of `inputs`: by position, by name, or in one dict.
pub fn tensors(
    inputs: &[(String, String)],
    args: &Bound<PyTuple>,
    named: Option<&Bound<PyDict>>,
) -> PyResult<Vec<Tensor>> {
    let first = args.iter().next();
    let dict = first.as_ref().and_then(|a| a.cast::<PyDict>().ok());
    let Some(named) = dict.or(named.filter(|n| !n.is_empty())) else {
        return args.iter().map(|a| arrays::tensor(&a)).collect();
    };
    if args.len() > usize::from(dict.is_some()) {
        return Err(PyTypeError::new_err("give all inputs by position, or all by name"));
    }
    for name in named.keys().iter() {
        let name: String = name.extract()?;
        if !inputs.iter().any(|(input, _)| *input == name) {
            let known: Vec<&str> = inputs.iter().map(|(name, _)| &name[..]).collect();
            return Err(PyKeyError::new_err(format!("the model has no input `{name}`; it has {}", known.join(", "))));
        }
    }
    // Inputs with a default may all be left out.
    let given = inputs.iter().filter_map(|(name, _)| named.get_item(name).transpose());
    given.map(|a| arrays::tensor(&a?)).collect()
}

/// Outputs by name, in their order.
pub fn by_name<'py>(py: Python<'py>, outputs: &[(String, String)], made: &[Tensor]) -> PyResult<Bound<'py, PyDict>> {
    let named = PyDict::new(py);
    for ((name, _), tensor) in outputs.iter().zip(made) {
        named.set_item(name, arrays::array(py, tensor)?)?;
    }
    Ok(named)
}

#[pymethods]
impl Model {
    #[new]
    fn new(py: Python, path: PathBuf, device: &str, engine: &str) -> PyResult<Self> {
        let open = || {
            let on = DeviceOptions { device: device.parse()?, engine: engine.parse()?, ..DeviceOptions::default() };
            compress::Model::open(&path, &ReadOptions::default(), &on)
        };
        let model = py.detach(open).map_err(|e| raised(py, &e))?;
        let (inputs, outputs) = (described(model.inputs()), described(model.outputs()));
        Ok(Self { model: Mutex::new(model), inputs, outputs })
    }

    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        self.inputs.clone()
    }

    #[getter]
    fn outputs(&self) -> Vec<(String, String)> {
        self.outputs.clone()
    }

    #[pyo3(signature = (*args, **named))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        named: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let inputs = tensors(&self.inputs, args, named)?;
        let run = || self.model.lock().unwrap_or_else(std::sync::PoisonError::into_inner).run(&inputs);
        let made = py.detach(run).map_err(|e| raised(py, &e))?;
        by_name(py, &self.outputs, &made)
    }
}
