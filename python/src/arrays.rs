//! Arrays of NumPy as tensors, without a copy, and tensors as arrays of NumPy.

use crate::errors::raised;
use compress::{Blob, DType, DataSource, Given, GivenItem, Storage, Tensor};
use pyo3::{
    buffer::PyUntypedBuffer,
    exceptions::PyTypeError,
    prelude::*,
    types::{PyByteArray, PyDict, PyList, PyTuple},
};
use std::sync::{Arc, Mutex};

/// The memory of an array, which stays where it is as long as this lives.
struct Lent {
    first: *const u8,
    len: usize,
    // Only kept: to let go of it takes the interpreter's lock, which `PyUntypedBuffer` sees to.
    _buffer: Mutex<PyUntypedBuffer>,
}

// SAFETY: the memory is only read. Python code that writes to it at the same time changes what is read, as it does for
// every extension that reads an array without the interpreter's lock.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the buffer is contiguous, has `len` bytes, and is exported until `_buffer` goes.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

/// A C-contiguous array as a tensor that lies in the same memory.
pub fn tensor(array: &Bound<PyAny>) -> PyResult<Tensor> {
    // A single number has a buffer without a shape, which can't be asked for.
    let is_number = array.getattr("ndim").and_then(|n| n.extract::<usize>()).is_ok_and(|n| n == 0);
    let array = if is_number { &array.call_method1("reshape", (1,))? } else { array };
    let buffer = PyUntypedBuffer::get(array)?;
    let format = buffer.format().to_string_lossy();
    let Some(dtype) = element_type(&format, buffer.item_size()) else {
        return Err(PyTypeError::new_err(format!("arrays of elements `{format}` are not supported")));
    };
    if !buffer.is_c_contiguous() {
        return Err(PyTypeError::new_err("the array is not contiguous: pass numpy.ascontiguousarray(x)"));
    }
    let shape = if is_number { vec![] } else { buffer.shape().to_vec() };
    let lent =
        Lent { first: buffer.buf_ptr().cast_const().cast(), len: buffer.len_bytes(), _buffer: Mutex::new(buffer) };
    let storage = Storage::from(Arc::new(Blob::Lent(Box::new(lent))));
    Tensor::new(dtype, shape, storage).map_err(|e| raised(array.py(), &e))
}

/// The element type of a format of the module `struct`.
fn element_type(format: &str, size: usize) -> Option<DType> {
    let kind = format.strip_prefix(['@', '=', '<']).unwrap_or(format);
    Some(match (kind, size) {
        ("e", _) => DType::F16,
        ("f", _) => DType::F32,
        ("d", _) => DType::F64,
        ("?", _) => DType::Bool,
        ("b" | "h" | "i" | "l" | "q", 1) => DType::I8,
        ("b" | "h" | "i" | "l" | "q", 2) => DType::I16,
        ("b" | "h" | "i" | "l" | "q", 4) => DType::I32,
        ("b" | "h" | "i" | "l" | "q", 8) => DType::I64,
        ("B" | "H" | "I" | "L" | "Q", 1) => DType::U8,
        ("B" | "H" | "I" | "L" | "Q", 2) => DType::U16,
        ("B" | "H" | "I" | "L" | "Q", 4) => DType::U32,
        ("B" | "H" | "I" | "L" | "Q", 8) => DType::U64,
        _ => return None,
    })
}

/// A tensor as an array of its own.
pub fn array<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    let name = match tensor.dtype() {
        DType::F16 => "float16",
        DType::F32 => "float32",
        DType::F64 => "float64",
        DType::Bool => "bool",
        DType::I8 => "int8",
        DType::I16 => "int16",
        DType::I32 => "int32",
        DType::I64 => "int64",
        DType::U8 => "uint8",
        DType::U16 => "uint16",
        DType::U32 => "uint32",
        DType::U64 => "uint64",
        other => return Err(PyTypeError::new_err(format!("NumPy has no arrays of {other}"))),
    };
    let flat = py.import("numpy")?.call_method1("frombuffer", (PyByteArray::new(py, tensor.bytes()), name))?;
    flat.call_method1("reshape", (PyTuple::new(py, tensor.shape())?,))
}

/// Data in memory: the items of a set.
#[pyclass(frozen)]
pub struct Data(Arc<Given>);

impl Data {
    /// The data of a job.
    pub fn source(&self) -> DataSource {
        DataSource::Given(self.0.clone())
    }
}

#[pymethods]
impl Data {
    /// Takes a list of items, each a dict or a list of C-contiguous arrays.
    #[new]
    fn new(items: &Bound<PyList>) -> PyResult<Self> {
        let mut all = vec![];
        for (i, item) in items.iter().enumerate() {
            all.push(one(&item).map_err(|e| PyTypeError::new_err(format!("item {i} (from 0) of the data: {e}")))?);
        }
        Given::new(all).map(|given| Self(Arc::new(given))).map_err(|e| raised(items.py(), &e))
    }
}

fn one(item: &Bound<PyAny>) -> PyResult<GivenItem> {
    if let Ok(named) = item.cast::<PyDict>() {
        let arrays = named.iter().map(|(name, array)| Ok((name.extract::<String>()?, tensor(&array)?)));
        return arrays.collect::<PyResult<_>>().map(GivenItem::Named);
    }
    let arrays = item.try_iter()?.map(|array| tensor(&array?));
    arrays.collect::<PyResult<_>>().map(GivenItem::InOrder)
}
