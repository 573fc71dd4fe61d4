//! Errors as exceptions: `compress._errors` has a class for each kind.

use compress::{Error, Kind};
use pyo3::prelude::*;

/// The exception for an error.
pub fn raised(py: Python, e: &Error) -> PyErr {
    let class = match e.kind() {
        Kind::Bug => "InternalError",
        Kind::Usage => "UsageError",
        Kind::Malformed => "MalformedError",
        Kind::Limit => "LimitError",
        Kind::Unsupported => "UnsupportedError",
        Kind::File => "FileError",
        Kind::Data => "DataError",
        Kind::Device => "DeviceError",
        Kind::Gate => "GateError",
        Kind::Interrupted => "InterruptedJob",
    };
    let made = py.import("compress._errors").and_then(|m| m.getattr(class)?.call1((e.to_string(),)));
    made.map_or_else(|e| e, PyErr::from_value)
}
