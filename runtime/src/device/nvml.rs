//! [NVML](https://docs.nvidia.com/deploy/nvml-api/): what NVIDIA's driver says of a GPU, to anybody.

use super::{
    Device,
    load::{Brake, Load},
};
use burn::backend::DispatchDevice;
use cubecl::device::Device as Cube;
use cudarc::driver::result::device;
use nvml_wrapper::{
    Nvml,
    bitmasks::device::ThrottleReasons,
    enum_wrappers::device::{Clock, TemperatureSensor},
};
use std::{collections::BTreeSet, sync::OnceLock};

/// Reads what NVML says of a GPU.
pub(super) struct Meter(nvml_wrapper::Device<'static>);

impl Meter {
    /// Of a GPU that CUDA reaches; `None` where NVML is missing or doesn't know it.
    pub(super) fn of(device: &Device) -> Option<Self> {
        let DispatchDevice::Cube(Cube::Cuda(cuda)) = &device.inner else { return None };
        static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
        let nvml = NVML.get_or_init(|| Nvml::init().ok()).as_ref()?;
        // Both count from 0, in orders of their own: only this name is the same.
        let uuid = device::get_uuid(device::get(i32::try_from(cuda.index).ok()?).ok()?).ok()?;
        let hex: String = uuid.bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect();
        let part = |from, to| &hex[from..to];
        let name = format!("GPU-{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32));
        nvml.device_by_uuid(name).ok().map(Self)
    }

    /// The GPU now.
    pub(super) fn load(&self) -> Load {
        let memory = self.0.memory_info().ok();
        Load {
            busy: self.0.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
            used_bytes: memory.as_ref().map(|memory| memory.used),
            memory_bytes: memory.map(|memory| memory.total),
            watts: self.0.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            celsius: self.0.temperature(TemperatureSensor::Gpu).ok(),
            clock_mhz: self.0.clock_info(Clock::SM).ok(),
            highest_clock_mhz: self.0.max_clock_info(Clock::SM).ok(),
            slowed_by: self.0.current_throttle_reasons().map_or_else(|_| BTreeSet::new(), brakes),
        }
    }

    /// The energy that it took since its driver was loaded.
    pub(super) fn joules(&self) -> Option<f64> {
        self.0.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1e3)
    }
}

fn brakes(reasons: ThrottleReasons) -> BTreeSet<Brake> {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    let power = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let all = [(heat, Brake::Heat), (power, Brake::Power)];
    let known: BTreeSet<Brake> =
        all.into_iter().filter(|(of, _)| reasons.intersects(*of)).map(|(_, brake)| brake).collect();
    // Older GPUs say this alone.
    match known.is_empty() && reasons.intersects(ThrottleReasons::HW_SLOWDOWN) {
        true => BTreeSet::from([Brake::Protection]),
        false => known,
    }
}
