//! The GPUs of this machine, and what they are.

use super::{About, Api, Device, FloatProducts};
use crate::gpu::By;
use burn::backend::DispatchDevice;
use compress_compiler::error::{Error, Result};
use cubecl::{
    client::Client,
    device::{CudaDevice, Device as Cube, WgpuDeviceKind},
    features::TypeUsage,
    ir::{ElemType, FloatKind, IntKind, UIntKind},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Mutex, PoisonError},
};

/// A GPU that was found.
#[derive(Debug, Clone)]
pub struct Gpu {
    api: Api,
    number: usize,
    cube: Cube,
    /// What its driver lacks, if it can't be used.
    lacks: Option<String>,
}

/// The GPUs that an interface reaches, in the order of their numbers; none where this program was built without it. For Vulkan and
/// Metal those with memory of their own come first, and software last.
pub fn found(api: Api) -> Vec<Gpu> {
    // Drivers take a while to answer, and some complain each time.
    static FOUND: Mutex<BTreeMap<Api, Vec<Gpu>>> = Mutex::new(BTreeMap::new());
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.entry(api).or_insert_with(|| find(api)).clone()
}

fn find(api: Api) -> Vec<Gpu> {
    let all: Vec<(Cube, Option<String>)> = match api {
        _ if !api.is_built() => vec![],
        Api::Cuda => {
            let all = Cube::enumerate(Cube::Cuda(CudaDevice::new(0)).to_id());
            all.into_iter().map(|id| (Cube::from_id(id), None)).collect()
        }
        #[cfg(any(feature = "metal", feature = "vulkan"))]
        Api::Metal | Api::Vulkan => super::adapters::adapters(api),
        #[cfg(not(any(feature = "metal", feature = "vulkan")))]
        Api::Metal | Api::Vulkan => vec![],
    };
    all.into_iter().enumerate().map(|(number, (cube, lacks))| Gpu { api, number, cube, lacks }).collect()
}

impl Gpu {
    /// What an option calls it.
    pub fn name(&self) -> String {
        format!("{}:{}", self.api.name(), self.number)
    }

    /// Whether the driver computes on the CPU.
    fn is_software(&self) -> bool {
        matches!(&self.cube, Cube::Wgpu(device) if device.kind == WgpuDeviceKind::Cpu)
    }

    /// Why models don't run there unless somebody names it.
    pub(super) fn why_not(&self) -> Option<String> {
        let name = self.name();
        match &self.lacks {
            Some(lacks) => Some(lacks.clone()),
            None if self.is_software() => Some(format!("{name} computes in software")),
            None => None,
        }
    }

    /// What its driver says.
    ///
    /// # Errors
    /// Device, where it can't be used.
    pub fn about(&self) -> Result<About> {
        let client = self.client()?;
        let of = client.properties();
        let stored = |e: ElemType| of.features.type_usage(e).contains(TypeUsage::Buffer);
        let types = [
            ElemType::Float(FloatKind::F32),
            ElemType::Float(FloatKind::F16),
            ElemType::Float(FloatKind::BF16),
            ElemType::Float(FloatKind::F64),
            ElemType::Int(IntKind::I8),
            ElemType::UInt(UIntKind::U8),
            ElemType::Int(IntKind::I64),
        ];
        let matmul = &of.features.matmul;
        let multiplied = matmul.mma.iter().chain(&matmul.cmma).flat_map(|m| [m.a_type, m.b_type]);
        let multiplied: BTreeSet<_> = multiplied.map(|e| e.to_string()).collect();
        Ok(About {
            device: self.name(),
            name: of.identity.name.clone(),
            software: self.is_software(),
            memory_bytes: of.memory.max_memory(),
            largest_bytes: of.memory.max_page_size,
            shared_bytes: of.hardware.max_shared_memory_size,
            types: types.into_iter().filter(|e| stored(*e)).map(|e| e.to_string()).collect(),
            matrix_types: multiplied.into_iter().collect(),
        })
    }

    /// Opens it.
    ///
    /// # Errors
    /// Device, where it can't be used.
    pub(super) fn open(&self) -> Result<Device> {
        let client = self.client()?;
        let name = &client.properties().identity.name;
        let description = format!("{} ({name})", self.name());
        Ok(Device {
            inner: DispatchDevice::Cube(self.cube.clone()),
            is_cpu: false,
            products: FloatProducts::F32,
            description,
        })
    }

    fn client(&self) -> Result<Client> {
        if let Some(lacks) = &self.lacks {
            return Err(
                Error::device(format!("{lacks}, which kernels need")).help("take a newer driver or another device")
            );
        }
        // A driver that fails is a panic there, whose message is what it said.
        catch_unwind(AssertUnwindSafe(|| self.cube.client())).map_err(|_| {
            Error::device(format!("{} was found, and can't be used", self.name()))
                .help("see what its driver said above")
        })
    }
}

/// Whether a device has tensor cores that kernels of ours use, which multiply in TF32 and in 16 bits too.
pub(super) fn has_tensor_cores(device: &DispatchDevice) -> bool {
    matches!(device, DispatchDevice::Cube(cube) if By::of(cube) == Some(By::TensorCores))
}

/// Gives memory back that pools hold.
pub(super) fn give_back(device: &DispatchDevice) {
    if let DispatchDevice::Cube(cube) = device {
        // A device that failed has said so already.
        let _ = cube.client().memory_cleanup();
    }
}

/// Bytes that pools hold.
pub(super) fn held_bytes(device: &DispatchDevice) -> Option<u64> {
    let DispatchDevice::Cube(cube) = device else { return None };
    Some(cube.client().memory_report(cubecl::MemoryScope::Device).usage().bytes_reserved)
}

/// Gives each tensor of this thread an allocation of its own, so that the double of a driver finds what reaches out of it.
#[cfg(test)]
pub(super) fn allocate_apart(device: &Device) {
    if let DispatchDevice::Cube(cube) = &device.inner {
        // SAFETY: it changes how this thread's stream allocates from here on; what was allocated stays as it is.
        unsafe { cube.client().allocation_mode(cubecl::MemoryAllocationMode::Dedicated) };
    }
}
