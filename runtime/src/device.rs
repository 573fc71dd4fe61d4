//! Which device runs a model: chosen by name, checked before anything is sent to it.

use ::burn::backend::{DispatchDevice, FlexDevice};
use compress_compiler::{
    error::{Error, Result},
    serde_as_text,
    words::option::DEVICE,
};
use std::{fmt, str::FromStr};

/// What the user asked for to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// A CUDA device where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
}

serde_as_text!(DeviceChoice);

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let cuda = |n: &str| n.parse().ok().map(Self::Cuda);
        let choice = match s {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(0)),
            _ => s.strip_prefix("cuda:").and_then(cuda),
        };
        choice.ok_or_else(|| {
            Error::usage(format!("`{s}` is not a device")).help("say auto, cpu, cuda, or cuda:N with N from 0")
        })
    }
}

/// A device that was found and can be used.
#[derive(Debug, Clone)]
pub struct Device {
    inner: DispatchDevice,
    kind: DeviceKind,
    description: String,
}

/// What kind of device it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// A GPU, through CUDA.
    Cuda,
}

impl Device {
    /// Opens the device asked for.
    ///
    /// # Errors
    /// Device, when it is not there or this program was built without support for it.
    pub fn open(choice: DeviceChoice) -> Result<Self> {
        // Opening a device that is not there panics inside Burn, so what exists is listed first.
        let found = cuda_devices();
        match choice {
            DeviceChoice::Cpu => Ok(Self::cpu()),
            DeviceChoice::Auto => Ok(match found.into_iter().next() {
                Some(inner) => Self::cuda(inner, 0),
                None => Self { description: format!("CPU ({})", why_no_cuda()), ..Self::cpu() },
            }),
            DeviceChoice::Cuda(n) => {
                let count = found.len();
                match found.into_iter().nth(n) {
                    Some(inner) => Ok(Self::cuda(inner, n)),
                    None if count > 0 => Err(Error::device(format!("there is no CUDA device {n}"))
                        .help(format!("{count} found; say cuda:0 to cuda:{}", count - 1))),
                    None if cfg!(feature = "cuda") => Err(Error::device(why_no_cuda())
                        .help(format!("check that the NVIDIA driver is installed (nvidia-smi), or say {DEVICE} cpu"))),
                    None => Err(Error::device("this program was built without CUDA")
                        .help(format!("build it with cargo's feature `cuda`, or say {DEVICE} cpu"))),
                }
            }
        }
    }

    /// The CPU, which is always there.
    pub fn cpu() -> Self {
        Self { inner: DispatchDevice::Flex(FlexDevice), kind: DeviceKind::Cpu, description: "CPU".into() }
    }

    /// The device that unit tests run on: the CPU, unless `COMPRESS_TEST_DEVICE` names another (`tests/gpu/on_double`).
    #[cfg(test)]
    pub(crate) fn of_tests() -> Self {
        let named = std::env::var("COMPRESS_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
        // A test that can't run where it should has to fail.
        Self::open(named.parse().unwrap()).unwrap()
    }

    fn cuda(inner: DispatchDevice, n: usize) -> Self {
        Self { inner, kind: DeviceKind::Cuda, description: format!("CUDA device {n}") }
    }

    /// What was taken, and why when it was not asked for by name.
    pub fn describe(&self) -> String {
        self.description.clone()
    }

    /// Whether this is the CPU.
    pub fn is_cpu(&self) -> bool {
        self.kind == DeviceKind::Cpu
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

#[cfg(feature = "cuda")]
fn cuda_devices() -> Vec<DispatchDevice> {
    ::burn::backend::Dispatch::enumerate_cube(::burn::backend::RuntimeId::Cuda)
}

#[cfg(not(feature = "cuda"))]
fn cuda_devices() -> Vec<DispatchDevice> {
    vec![]
}

fn why_no_cuda() -> &'static str {
    if cfg!(feature = "cuda") { "no CUDA device found" } else { "built without the cuda feature" }
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
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:3", DeviceChoice::Cuda(3)),
        ] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap(), choice);
        }
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap_err().kind(), Kind::Usage, "{name}");
        }
    }

    #[test]
    fn a_missing_device_is_an_error_with_advice() {
        let e = Device::open(DeviceChoice::Cuda(999)).unwrap_err();
        assert_eq!(e.kind(), Kind::Device);
        assert!(e.to_string().contains("help:"), "{e}");
        assert_eq!(Device::open(DeviceChoice::Cpu).unwrap().describe(), "CPU");
        assert!(!Device::open(DeviceChoice::Auto).unwrap().describe().is_empty());
    }
}
