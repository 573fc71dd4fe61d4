//! What models can run on.

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
    /// What can't be used: interfaces to GPUs that reach none, and GPUs.
    pub missing: Vec<Missing>,
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

/// What can't be used.
#[derive(Debug, Clone, Serialize)]
pub struct Missing {
    /// What an option would call it.
    pub device: String,
    /// Why.
    pub why: String,
}

impl Devices {
    /// Looks for them. It opens each GPU.
    pub fn find() -> Self {
        let kernels = Isa::ALL.into_iter().filter(|i| i.is_available()).map(Isa::name).collect();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let cpu = Cpu { threads, kernels, free_bytes: memory::available() };
        let mut all = Self { cpu, gpus: vec![], missing: vec![] };
        for api in Api::ALL {
            let found = device::found(api);
            if found.is_empty() {
                let why = match api.is_built() {
                    true => "no device found".into(),
                    false => format!("not built in: build with cargo's feature `{}`", api.name()),
                };
                all.missing.push(Missing { device: api.name().into(), why });
            }
            for gpu in found {
                match gpu.about() {
                    Ok(about) => all.gpus.push(about),
                    Err(e) => all.missing.push(Missing { device: gpu.name(), why: e.message().into() }),
                }
            }
        }
        all
    }
}
