//! The module `compress._compress`: jobs, models and arrays, for the Python code in `python/compress`.
//!
//! A job runs on a thread of its own, without the interpreter's lock. All Python code, that of the user too, runs on the
//! thread that called: it waits for what the job tells or asks ([`job`]), and so Ctrl-C and exceptions reach the caller.

mod arrays;
mod errors;
mod job;
mod model;

use pyo3::prelude::*;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[pymodule(name = "_compress")]
mod module {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{
        arrays::Data,
        job::{Job, Predict},
        main,
        model::Model,
        offer_onnxruntime,
    };

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Says in which folder the library of ONNX Runtime is, for jobs that name none.
#[pyfunction]
fn offer_onnxruntime(folder: std::path::PathBuf) {
    compress::offer_onnxruntime(&folder);
}

/// Runs the command, and returns its exit code.
#[pyfunction]
fn main(py: Python, args: Vec<std::ffi::OsString>) -> u8 {
    py.detach(|| compress::cli::main(args))
}
