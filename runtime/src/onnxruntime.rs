//! ONNX Runtime as an engine: its library is found and loaded when it is asked for, and never linked.
//!
//! The library is the one that Python's package `onnxruntime` has inside, or any other of version 1.17 or later. A process
//! loads one, and keeps it.

mod kernels;
mod library;
mod session;

pub use kernels::{Ran, ran};
pub use library::{active, load, offer};
pub use session::Session;

use compress_compiler::choice;

/// What runs the operators inside ONNX Runtime: an execution provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Provider {
    /// Its own kernels for the CPU.
    #[default]
    Cpu,
    /// OpenVINO, of the package onnxruntime-openvino.
    OpenVino,
    /// CUDA, of the package onnxruntime-gpu.
    Cuda,
    /// TensorRT, of the package onnxruntime-gpu.
    TensorRt,
}

choice!(Provider, "provider of ONNX Runtime", [
    Cpu "cpu" "its own kernels for the CPU",
    OpenVino "openvino" "OpenVINO, of the package onnxruntime-openvino",
    Cuda "cuda" "CUDA, of the package onnxruntime-gpu",
    TensorRt "tensorrt" "TensorRT, of the package onnxruntime-gpu",
]);

impl Provider {
    /// The engine, as options name it.
    pub fn engine(self) -> String {
        match self {
            Self::Cpu => "onnxruntime".into(),
            other => format!("onnxruntime:{other}"),
        }
    }

    /// The package of Python that has it.
    fn package(self) -> &'static str {
        match self {
            Self::Cpu => "onnxruntime",
            Self::OpenVino => "onnxruntime-openvino",
            Self::Cuda | Self::TensorRt => "onnxruntime-gpu",
        }
    }
}
