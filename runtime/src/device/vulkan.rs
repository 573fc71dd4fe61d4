//! What kernels need of a Vulkan driver.

use compress_compiler::error::{Error, Result};
use cubecl::device::{Device, WgpuDeviceKind};
use wgpu::{Backends, DeviceType, Instance, InstanceDescriptor, hal::api::Vulkan};

/// The extension without which CubeCL writes kernels with shared memory that no driver can read (docs/upstream).
const LAYOUT: &std::ffi::CStr = c"VK_KHR_workgroup_memory_explicit_layout";

/// The environment variable by which a program that was built with the mended compiler says so (`tests/gpu/on_lavapipe`).
const MENDED: &str = "COMPRESS_VULKAN_MENDED";

/// Finds out whether kernels can be compiled for a device: with a driver that lacks what they need, the program would crash.
///
/// # Errors
/// Device, where they can't.
pub fn check(device: &Device) -> Result<()> {
    let Device::Wgpu(device) = device else { return Ok(()) };
    if std::env::var_os(MENDED).is_some() {
        return Ok(());
    }
    let (kind, number) = match device.kind {
        WgpuDeviceKind::DiscreteGpu(n) => (DeviceType::DiscreteGpu, n),
        WgpuDeviceKind::IntegratedGpu(n) => (DeviceType::IntegratedGpu, n),
        WgpuDeviceKind::VirtualGpu(n) => (DeviceType::VirtualGpu, n),
        WgpuDeviceKind::Cpu => (DeviceType::Cpu, 0),
        _ => (DeviceType::Other, 0),
    };
    let instance = Instance::new(InstanceDescriptor {
        backends: Backends::VULKAN,
        ..InstanceDescriptor::new_without_display_handle()
    });
    let all = cubecl::future::block_on(instance.enumerate_adapters(Backends::VULKAN));
    let Some(adapter) = all.into_iter().filter(|a| a.get_info().device_type == kind).nth(number) else {
        return Ok(());
    };
    // SAFETY: the driver's own object is only asked for the names of its extensions.
    let has = unsafe { adapter.as_hal::<Vulkan>() }
        .is_some_and(|a| a.physical_device_capabilities().supports_extension(LAYOUT));
    match has {
        true => Ok(()),
        false => Err(Error::device(format!(
            "the driver of {} lacks {}, which kernels need",
            adapter.get_info().name,
            LAYOUT.to_string_lossy()
        ))
        .help("take a newer driver or another device")),
    }
}
