//! Which device runs a model: chosen by name, checked before anything is sent to it.

use crate::burn::precision::Precision;
use ::burn::backend::{DispatchDevice, FlexDevice};
use compress_compiler::{
    choice,
    error::{Error, Result},
    serde_as_text,
    words::option::DEVICE,
};
use compress_kernels::train::FactorWidth;
use serde::Serialize;
use std::{fmt, str::FromStr};

#[cfg(not(feature = "gpu"))]
mod absent;
#[cfg(not(feature = "cuda"))]
mod absent_nvml;
#[cfg(any(feature = "metal", feature = "vulkan"))]
mod adapters;
#[cfg(feature = "gpu")]
mod gpus;
mod load;
#[cfg(feature = "cuda")]
mod nvml;

#[cfg(not(feature = "gpu"))]
use absent::has_tensor_cores;
#[cfg(not(feature = "gpu"))]
pub use absent::{Gpu, found};
#[cfg(feature = "gpu")]
use gpus::has_tensor_cores;
#[cfg(feature = "gpu")]
pub use gpus::{Gpu, found};
pub use load::{Brake, GpuLoad, Load, Watch};

/// How a program reaches a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// CUDA, of NVIDIA.
    Cuda,
    /// Metal, of Apple.
    Metal,
    /// Vulkan, which most drivers have: those of AMD, Intel and NVIDIA, and Mesa's.
    Vulkan,
}

impl Api {
    /// All, the best for a device that has several first.
    pub const ALL: [Self; 3] = [Self::Cuda, Self::Metal, Self::Vulkan];

    /// Its name in an option, and that of the cargo feature.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Metal => "metal",
            Self::Vulkan => "vulkan",
        }
    }

    /// Its name in a sentence.
    pub fn title(self) -> &'static str {
        match self {
            Self::Cuda => "CUDA",
            Self::Metal => "Metal",
            Self::Vulkan => "Vulkan",
        }
    }

    /// Whether this program was built with it.
    pub fn is_built(self) -> bool {
        match self {
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Metal => cfg!(feature = "metal"),
            Self::Vulkan => cfg!(feature = "vulkan"),
        }
    }
}

/// What the user asked for to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// A GPU where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number.
    Gpu(Api, usize),
}

serde_as_text!(DeviceChoice);

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Gpu(api, n) => write!(f, "{}:{n}", api.name()),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let gpu = |api: Api| match s.strip_prefix(api.name())? {
            "" => Some(Self::Gpu(api, 0)),
            // `parse` takes a sign, too.
            n => {
                n.strip_prefix(':').filter(|n| !n.starts_with('+')).and_then(|n| Some(Self::Gpu(api, n.parse().ok()?)))
            }
        };
        let choice = match s {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            _ => Api::ALL.into_iter().find_map(gpu),
        };
        choice.ok_or_else(|| {
            Error::usage(format!("`{s}` is not a device"))
                .help("say auto, cpu, cuda, metal or vulkan; or cuda:N and the like with N from 0")
        })
    }
}

/// How a device multiplies floats of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FloatProducts {
    /// With all of their bits; on tensor cores with 22 of 24.
    #[default]
    F32,
    /// With 11 of the 24 bits of each operand, which tensor cores have an instruction for.
    Tf32,
    /// With the upper 16 bits of each operand. What products make stays so wide while operators only move, add or bound it.
    Bf16,
    /// The same with 11 bits of a number up to 65504.
    F16,
}

impl FloatProducts {
    /// How wide values are that products read and make.
    pub(crate) fn width(self) -> Precision {
        match self {
            Self::F32 | Self::Tf32 => Precision::F32,
            Self::Bf16 => Precision::Bf16,
            Self::F16 => Precision::F16,
        }
    }
}

choice!(FloatProducts, "precision", [
    F32 "f32" "32 bits",
    Tf32 "tf32" "11 of 24 bits of each operand, on tensor cores",
    Bf16 "bf16" "the upper 16 bits of f32, on tensor cores",
    F16 "f16" "16 bits, up to 65504, on tensor cores",
]);

/// What a driver says of a GPU.
#[derive(Debug, Clone, Serialize)]
pub struct About {
    /// What to call it in an option.
    pub device: String,
    /// The name that it has from its maker.
    pub name: String,
    /// Whether the driver computes on the CPU.
    pub software: bool,
    /// Its memory, if the driver says.
    pub memory_bytes: Option<u64>,
    /// The largest tensor.
    pub largest_bytes: u64,
    /// What the threads of a block share.
    pub shared_bytes: usize,
    /// The types of numbers that its memory holds.
    pub types: Vec<String>,
    /// The types that it multiplies as small matrices, by instructions of its own (tensor cores).
    pub matrix_types: Vec<String>,
}

/// A device that was found and can be used.
#[derive(Debug, Clone)]
pub struct Device {
    inner: DispatchDevice,
    is_cpu: bool,
    products: FloatProducts,
    description: String,
}

impl Device {
    /// Opens the device asked for.
    ///
    /// # Errors
    /// Device, when it is not there or this program was built without support for it.
    pub fn open(choice: DeviceChoice) -> Result<Self> {
        match choice {
            DeviceChoice::Cpu => Ok(Self::cpu()),
            DeviceChoice::Auto => {
                let mut passed_over = vec![];
                for gpu in Api::ALL.into_iter().flat_map(found) {
                    match gpu.why_not().map_or_else(|| gpu.open().map_err(|e| e.message().to_string()), Err) {
                        Ok(device) => return Ok(device),
                        Err(why) => passed_over.push(why),
                    }
                }
                let why = if passed_over.is_empty() { why_no_gpu() } else { passed_over.join("; ") };
                Ok(Self { description: format!("CPU ({why})"), ..Self::cpu() })
            }
            DeviceChoice::Gpu(api, n) => {
                // Opening a device that is not there panics inside Burn, so what exists is listed first.
                let (found, name) = (found(api), api.name());
                let count = found.len();
                match found.into_iter().nth(n) {
                    Some(gpu) => gpu.open(),
                    None if count == 1 => Err(Error::device(format!("there is no {} device {n}", api.title()))
                        .help(format!("one was found: {name}:0"))),
                    None if count > 0 => Err(Error::device(format!("there is no {} device {n}", api.title()))
                        .help(format!("{count} found; say {name}:0 to {name}:{}", count - 1))),
                    None if api.is_built() => Err(Error::device(format!("no {} device found", api.title()))
                        .help(format!("check that {}, or say {DEVICE} cpu", driver(api)))),
                    None => Err(Error::device(format!("this program was built without {}", api.title()))
                        .help(format!("build it with cargo's feature `{name}`, or say {DEVICE} cpu"))),
                }
            }
        }
    }

    /// The CPU, which is always there.
    pub fn cpu() -> Self {
        Self {
            inner: DispatchDevice::Flex(FlexDevice),
            is_cpu: true,
            products: FloatProducts::F32,
            description: "CPU".into(),
        }
    }

    /// The same device, which multiplies floats so.
    ///
    /// # Errors
    /// Unsupported, where it has no instruction for that.
    pub fn with_products(self, products: FloatProducts) -> Result<Self> {
        match products {
            FloatProducts::F32 => Ok(self),
            _ if has_tensor_cores(&self.inner) => {
                let description = format!("{}, {products}", self.description);
                Ok(Self { products, description, ..self })
            }
            _ => Err(Error::unsupported(format!("computing in {products} on {}", self.description))
                .help("NVIDIA GPUs have that from compute capability 8.0 on, through CUDA")),
        }
    }

    /// Gives memory back that the device holds for values to come.
    pub fn give_back(&self) {
        #[cfg(feature = "gpu")]
        gpus::give_back(&self.inner);
    }

    /// Bytes of its memory that this process holds, on a GPU.
    pub fn held_bytes(&self) -> Option<u64> {
        #[cfg(feature = "gpu")]
        return gpus::held_bytes(&self.inner);
        #[cfg(not(feature = "gpu"))]
        None
    }

    /// Whether training multiplies 16 bits faster than 32: on tensor cores, or by products of bf16 that a CPU has.
    pub fn multiplies_halves(&self) -> bool {
        if self.is_cpu { FactorWidth::Bf16.is_fast() } else { has_tensor_cores(&self.inner) }
    }

    /// How floats are multiplied.
    pub fn products(&self) -> FloatProducts {
        self.products
    }

    /// The device that unit tests run on: the CPU, unless `COMPRESS_TEST_DEVICE` names another (`tests/gpu/on_double`).
    #[cfg(test)]
    pub(crate) fn of_tests() -> Self {
        let device = Self::named_for_tests();
        #[cfg(feature = "gpu")]
        gpus::allocate_apart(&device);
        device
    }

    /// The same device, which takes memory from pools as it does for users.
    #[cfg(test)]
    pub(crate) fn named_for_tests() -> Self {
        let named = std::env::var("COMPRESS_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
        // A test that can't run where it should has to fail.
        Self::open(named.parse().unwrap()).unwrap()
    }

    /// What was taken, and why when it was not asked for by name.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.is_cpu
    }

    /// The device as Burn's tensors know it.
    pub fn tensors(&self) -> ::burn::tensor::Device {
        self.inner.clone().into()
    }

    /// The device as Burn knows it.
    pub fn burn(&self) -> &DispatchDevice {
        &self.inner
    }
}

/// The error of a device that failed, a limit where it is out of memory, of what Burn says: a line for each error, the one that led to all others last.
pub(crate) fn failed(said: &str) -> Error {
    let cause = said.rsplit("Caused by:").next().unwrap_or(said);
    let cause = cause.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it says nothing more");
    let size = |words: &str| cause.split_once(words)?.1.split_whitespace().next()?.parse::<f64>().ok();
    let help = format!("take a smaller batch, or say {DEVICE} cpu");
    if let Some(bytes) = size("out of device memory allocating ") {
        return Error::limit(format!("the device has no memory for a value of {:.1} MB", bytes / 1e6)).help(help);
    }
    if let Some(bytes) = size("allocate buffer of size: ") {
        let what = format!("the device has no room for a value of {:.1} MB", bytes / 1e6);
        return Error::limit(what).help(format!("`compress devices` says how large one may be; {help}"));
    }
    Error::device(format!("the device failed: {cause}"))
}

/// What to look for where a device is missing.
fn driver(api: Api) -> &'static str {
    match api {
        Api::Cuda => "the NVIDIA driver is installed (nvidia-smi)",
        Api::Metal => "this is a Mac",
        Api::Vulkan => "a driver for Vulkan is installed (vulkaninfo)",
    }
}

fn why_no_gpu() -> String {
    let built: Vec<_> = Api::ALL.into_iter().filter(|api| api.is_built()).map(Api::title).collect();
    if built.is_empty() { "built for no GPU".into() } else { format!("no {} device found", built.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::error::Kind;

    #[test]
    fn names_of_devices() {
        for (name, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Gpu(Api::Cuda, 0)),
            ("cuda:3", DeviceChoice::Gpu(Api::Cuda, 3)),
            ("vulkan:1", DeviceChoice::Gpu(Api::Vulkan, 1)),
            ("metal", DeviceChoice::Gpu(Api::Metal, 0)),
        ] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap(), choice);
        }
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda3", "cuda:+1", "vulkan:", "CPU"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap_err().kind(), Kind::Usage, "{name}");
        }
    }

    #[test]
    fn failures_of_devices_name_their_cause() {
        let chain = |root: &str| {
            failed(&format!("Several failures\nCaused by:\n  skipped one\nCaused by:\n  {root}\nNo backtrace"))
        };
        let large = chain("can't allocate buffer of size: 201867264");
        assert_eq!(large.kind(), Kind::Limit);
        assert!(
            large.to_string().contains("no room for a value of 201.9 MB") && large.to_string().contains("how large")
        );
        let full = chain("out of device memory allocating 201867264 bytes");
        assert_eq!(full.kind(), Kind::Limit);
        assert!(full.to_string().contains("no memory for a value of 201.9 MB"));
        let launch = chain("cuLaunchKernel failed with status 700").to_string();
        assert!(launch.contains("failed: cuLaunchKernel failed with status 700"));
        assert!(failed("").to_string().contains("nothing more"));
    }

    #[test]
    fn a_missing_device_is_an_error_with_advice() {
        for api in Api::ALL {
            let e = Device::open(DeviceChoice::Gpu(api, 999)).unwrap_err();
            assert_eq!(e.kind(), Kind::Device);
            assert!(e.to_string().contains("help:"), "{e}");
        }
        assert_eq!(Device::open(DeviceChoice::Cpu).unwrap().describe(), "CPU");
        assert!(!Device::open(DeviceChoice::Auto).unwrap().describe().is_empty());
    }
}
