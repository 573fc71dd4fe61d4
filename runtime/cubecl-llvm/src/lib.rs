//! Stands in for the crate of this name. The real one builds against an LLVM that its build
//! script downloads; with CubeCL's feature `cuda-cpp` nothing of it is ever called, as kernels
//! are emitted as CUDA C++ and compiled by NVRTC. Here are only the names that cubecl-cuda
//! mentions.

use cubecl_core::{ir::nvidia::SmArch, prelude::KernelDefinition};
use cubecl_server::{compiler::CompilationError, kernel::BufferIOAttr};

pub mod nvptx {
    pub mod ptx_version {
        /// A PTX version; none is ever chosen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PtxVersion {}

        impl PtxVersion {
            pub fn for_driver(_: i32) -> Option<Self> {
                None
            }
        }

        impl std::fmt::Display for PtxVersion {
            fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {}
            }
        }
    }
}

pub mod shared {
    pub mod lowered_features {
        #[derive(Clone, Copy, Debug)]
        pub enum GpuTarget {
            Nvptx,
        }

        pub fn restrict_features(_: &mut cubecl_core::ir::DeviceProperties, _: GpuTarget) {}
    }
}

#[derive(Clone, Copy, Debug)]
pub enum LlvmTarget {
    Nvptx,
}

#[derive(Clone, Debug)]
pub struct PlironCompiler {
    pub target: LlvmTarget,
}

#[derive(Clone, Debug, Default)]
pub struct PlironOptions {
    pub arch: Option<()>,
    pub sm_arch: Option<SmArch>,
    pub ptx_version: Option<nvptx::ptx_version::PtxVersion>,
    pub grid_constants: bool,
}

#[derive(Clone, Debug)]
pub struct NvptxModule {
    pub ir: String,
    pub ptx: Vec<i8>,
    pub shared_memory_size: usize,
    pub io: Vec<BufferIOAttr>,
}

pub enum PlironArtifact {
    NvptxCode(NvptxModule),
    Other,
}

impl PlironCompiler {
    pub fn compile(&mut self, _: KernelDefinition, _: &PlironOptions) -> Result<PlironArtifact, CompilationError> {
        Err(CompilationError::Generic {
            reason: "built without LLVM; kernels are CUDA C++".into(),
            backtrace: Default::default(),
        })
    }

    pub fn lang_tag(&self) -> &'static str {
        "llvm"
    }
}
