//! Where models run, and what runs them.

use crate::{
    device::{Device, DeviceChoice},
    onnxruntime::{self, Provider},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    onnx::Model,
    serde_as_text,
    words::option,
};
use compress_kernels::Isa;
use std::{fmt, path::Path, str::FromStr, sync::Arc};

/// What runs the operators that the CPU executor knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// The CPU executor, with the kernels of an instruction set.
    Cpu(Isa),
    /// Burn, as all others.
    Burn,
    /// ONNX Runtime, which runs all of a model.
    OnnxRuntime(Provider),
}

/// What the user wants to run models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// What the environment variable `COMPRESS_ISA` says, otherwise the best kernels of this machine.
    #[default]
    Auto,
    /// Burn.
    Burn,
    /// The CPU executor, with the kernels of an instruction set.
    Cpu(Isa),
    /// ONNX Runtime.
    OnnxRuntime(Provider),
}

serde_as_text!(EngineChoice);

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Burn => f.write_str("burn"),
            Self::Cpu(isa) => write!(f, "{isa}"),
            Self::OnnxRuntime(provider) => f.write_str(&provider.engine()),
        }
    }
}

impl FromStr for EngineChoice {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        match s {
            "auto" => Ok(Self::Auto),
            "burn" => Ok(Self::Burn),
            "onnxruntime" => Ok(Self::OnnxRuntime(Provider::Cpu)),
            named if named.starts_with("onnxruntime:") => named["onnxruntime:".len()..].parse().map(Self::OnnxRuntime),
            isa => isa.parse().map(Self::Cpu).map_err(|()| absent(option::ENGINE, isa)),
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Engine::Cpu(isa) => write!(f, "{isa}"),
            Engine::Burn => f.write_str("burn"),
            Engine::OnnxRuntime(provider) => f.write_str(&provider.engine()),
        }
    }
}

/// Where models run, and what runs them.
#[derive(Clone)]
pub struct Backend {
    /// Where.
    pub device: Device,
    /// What runs the operators that the CPU executor knows.
    pub engine: Engine,
    /// The model whose graphs run, without its graph, for an engine that reads files: it has what a graph lacks, such as the
    /// versions of operator sets.
    pub file: Option<Arc<Model>>,
}

impl Backend {
    /// A device, and what runs there.
    pub fn new(device: Device, engine: Engine) -> Self {
        Self { device, engine, file: None }
    }

    /// The same for graphs that come from `model`.
    pub fn of(&self, model: &Model) -> Self {
        let around = || {
            let mut file = model.clone();
            file.graph = Graph::new("");
            Arc::new(file)
        };
        Self { file: self.runs_any_operator().then(around), ..self.clone() }
    }

    /// Whether it runs operators that are not known here.
    pub fn runs_any_operator(&self) -> bool {
        matches!(self.engine, Engine::OnnxRuntime(_))
    }

    /// Burn on the CPU.
    pub fn burn() -> Self {
        Self::new(Device::cpu(), Engine::Burn)
    }

    /// The CPU, with the best kernels of this machine.
    pub fn cpu() -> Self {
        Self::new(Device::cpu(), Engine::Cpu(Isa::detect()))
    }

    /// A device, and an engine for it. On another device than the CPU that is Burn. `library` is where ONNX Runtime is, if it
    /// was said.
    ///
    /// # Errors
    /// Device as for [`Device::open`], and where there is no ONNX Runtime; usage for an engine that this machine or that device
    /// doesn't have.
    pub fn open(device: DeviceChoice, engine: EngineChoice, library: Option<&Path>) -> Result<Self> {
        if let EngineChoice::OnnxRuntime(provider) = engine {
            if !matches!(device, DeviceChoice::Auto | DeviceChoice::Cpu) {
                return Err(Error::usage("ONNX Runtime chooses its device by the provider")
                    .help("say onnxruntime:cuda or onnxruntime:tensorrt, and no device"));
            }
            onnxruntime::load(library)?;
            return Ok(Self::new(Device::cpu(), Engine::OnnxRuntime(provider)));
        }
        // Kernels for instructions of the CPU ask for it.
        let device = match (device, engine) {
            (DeviceChoice::Auto, EngineChoice::Cpu(_)) => Device::cpu(),
            _ => Device::open(device)?,
        };
        let named = std::env::var(ISA).ok();
        let engine = match (engine, named) {
            (EngineChoice::Auto, _) if !device.is_cpu() => Engine::Burn,
            (EngineChoice::Auto, None) => Engine::Cpu(Isa::detect()),
            (EngineChoice::Auto, Some(name)) => {
                let isa = name.parse().map_err(|()| absent(ISA, &name))?;
                Engine::Cpu(available(isa, ISA)?)
            }
            (EngineChoice::Burn, _) => Engine::Burn,
            (EngineChoice::Cpu(isa), _) if device.is_cpu() => Engine::Cpu(available(isa, option::ENGINE)?),
            (EngineChoice::OnnxRuntime(_), _) => return Err(Error::bug("ONNX Runtime was opened before")),
            (EngineChoice::Cpu(isa), _) => {
                return Err(Error::usage(format!("{} runs on burn, not on `{isa}`", device.describe()))
                    .help("say auto or burn as the engine, or cpu as the device"));
            }
        };
        Ok(Self::new(device, engine))
    }
}

/// The environment variable that chooses kernels where nothing else does.
const ISA: &str = "COMPRESS_ISA";

/// `isa`, which `source` asks for, if this machine has it.
fn available(isa: Isa, source: impl fmt::Display) -> Result<Isa> {
    if isa.is_available() { Ok(isa) } else { Err(absent(source, isa)) }
}

fn absent(source: impl fmt::Display, name: impl fmt::Display) -> Error {
    let here: Vec<&str> = Isa::ALL.into_iter().filter(|i| i.is_available()).map(Isa::name).collect();
    Error::usage(format!("{source} is `{name}`")).help(format!("say auto, burn, onnxruntime, {}", here.join(", ")))
}
