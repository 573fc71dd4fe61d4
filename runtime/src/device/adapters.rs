//! What wgpu finds: the devices of Vulkan and Metal.

use super::Api;
use cubecl::{
    device::{Device, WgpuBackend, WgpuDevice, WgpuDeviceKind},
    future::block_on,
};
use wgpu::{Adapter, Backends, DeviceType, Instance, InstanceDescriptor};

/// The devices that an interface reaches, those with memory of their own first and software last, and what a driver lacks without
/// which the program would crash.
pub fn adapters(api: Api) -> Vec<(Device, Option<String>)> {
    let (backends, backend) = match api {
        Api::Metal => (Backends::METAL, WgpuBackend::Metal),
        _ => (Backends::VULKAN, WgpuBackend::Vulkan),
    };
    let instance = Instance::new(InstanceDescriptor { backends, ..InstanceDescriptor::new_without_display_handle() });
    // Devices are counted by kind.
    let mut kinds: [Vec<Adapter>; 5] = Default::default();
    for adapter in block_on(instance.enumerate_adapters(backends)) {
        let kind = match adapter.get_info().device_type {
            DeviceType::DiscreteGpu => 0,
            DeviceType::IntegratedGpu => 1,
            DeviceType::VirtualGpu => 2,
            DeviceType::Other => 3,
            DeviceType::Cpu => 4,
        };
        kinds[kind].push(adapter);
    }
    // CubeCL tells one device of this kind.
    kinds[4].truncate(1);
    let named = |kind: usize, n: usize| match kind {
        0 => WgpuDeviceKind::DiscreteGpu(n),
        1 => WgpuDeviceKind::IntegratedGpu(n),
        2 => WgpuDeviceKind::VirtualGpu(n),
        3 => WgpuDeviceKind::Other(n),
        _ => WgpuDeviceKind::Cpu,
    };
    let all = kinds.iter().enumerate().flat_map(|(kind, of)| of.iter().enumerate().map(move |(n, a)| (kind, n, a)));
    all.map(|(kind, n, adapter)| (Device::Wgpu(WgpuDevice::new(named(kind, n)).on(backend)), lacks(adapter))).collect()
}

#[cfg(feature = "vulkan")]
fn lacks(adapter: &Adapter) -> Option<String> {
    /// Without this extension CubeCL writes kernels with shared memory that no driver can read (docs/upstream).
    const LAYOUT: &std::ffi::CStr = c"VK_KHR_workgroup_memory_explicit_layout";
    /// By this environment variable a program that was built with the mended compiler says so (`tests/gpu/on_lavapipe`).
    const MENDED: &str = "COMPRESS_VULKAN_MENDED";
    // SAFETY: the driver's own object is only asked for the names of its extensions.
    let driver = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let has = driver.physical_device_capabilities().supports_extension(LAYOUT) || std::env::var_os(MENDED).is_some();
    (!has).then(|| format!("the driver of {} lacks {}", adapter.get_info().name, LAYOUT.to_string_lossy()))
}

#[cfg(not(feature = "vulkan"))]
fn lacks(_: &Adapter) -> Option<String> {
    None
}
