//! What models can run on.

use compress_compiler::error::Result;
use compress_kernels::isa::Isa;
use compress_runtime::{
    device::{self, About, Api},
    memory,
};
use serde::Serialize;

/// What models can run on, on this machine with this program.
#[derive(Debug, Clone, Serialize)]
pub struct Devices {
    /// The CPU.
    pub cpu: Cpu,
    /// The GPUs that can be used.
    pub gpus: Vec<About>,
    /// Interfaces to GPUs that reach none, and why.
    pub missing: Vec<(Api, String)>,
}

/// What a CPU has.
#[derive(Debug, Clone, Serialize)]
pub struct Cpu {
    /// Threads that run at once.
    pub threads: usize,
    /// The kernels for its instructions, the best last.
    pub kernels: Vec<&'static str>,
    /// The memory that is free, if the system says.
    pub free_bytes: Option<usize>,
}

impl Devices {
    /// Looks for them. It opens each GPU.
    pub fn find() -> Self {
        let kernels = Isa::ALL.into_iter().filter(|i| i.is_available()).map(Isa::name).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut all =
            Self { cpu: Cpu { threads, kernels, free_bytes: memory::available() }, gpus: vec![], missing: vec![] };
        for api in Api::ALL {
            let found: Result<Vec<About>> = device::found(api).iter().map(device::Gpu::about).collect();
            match found {
                Ok(found) if !found.is_empty() => all.gpus.extend(found),
                Ok(_) if !api.is_built() => {
                    all.missing.push((api, format!("not built in: build with cargo's feature `{}`", api.name())));
                }
                Ok(_) => all.missing.push((api, "no device found".into())),
                Err(e) => all.missing.push((api, e.message().into())),
            }
        }
        all
    }
}
