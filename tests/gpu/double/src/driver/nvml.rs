//! NVML of the same device: `libnvidia-ml.so.1` may be another name of this library. Its figures are made up, but for memory and for the
//! energy: a joule a launch.

use super::{NOT_FOUND, Outcome, Pointer, SUCCESS, nothing, put, setting};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Launches so far.
pub static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// The first is that of the software against heat.
const HOT: c_ulonglong = 0x20;

/// The numbers of `nvmlReturn_t` that aren't those of the driver.
const NVML_NOT_FOUND: Outcome = 6;

/// Of `nvmlClockType_t`: multiprocessors.
const MULTIPROCESSORS: c_uint = 1;

nothing! {
    nvmlInit_v2();
    nvmlShutdown();
}

/// What `cuDeviceGetUuid_v2` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(name: *const c_char, to: *mut Pointer) -> Outcome {
    // SAFETY: as the API says.
    let name = unsafe { CStr::from_ptr(name) };
    if name != c"GPU-01010101-0101-0101-0101-010101010101" {
        return NVML_NOT_FOUND;
    }
    // SAFETY: as the API says.
    unsafe { put(to, std::ptr::dangling_mut()) }
}

/// `CUDA_DOUBLE_BUSY` in percent, 37 otherwise; and of its memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(_: Pointer, to: *mut [c_uint; 2]) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, [setting("CUDA_DOUBLE_BUSY", 37) as c_uint, 12]) }
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// Bytes in all, free and in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(_: Pointer, to: *mut Memory) -> Outcome {
    let (total, used) = (super::device::memory() as c_ulonglong, super::memory::in_use() as c_ulonglong);
    // SAFETY: as the API says.
    let version = unsafe { (*to).version };
    // SAFETY: as the API says.
    unsafe { put(to, Memory { version, total, reserved: 0, free: total - used, used }) }
}

/// Milliwatts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(_: Pointer, to: *mut c_uint) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 123_456) }
}

/// Millijoules since the beginning.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(_: Pointer, to: *mut c_ulonglong) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 1000 * LAUNCHES.load(Relaxed)) }
}

/// Degrees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(_: Pointer, _: c_int, to: *mut c_uint) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 71) }
}

/// MHz of the multiprocessors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(_: Pointer, clock: c_uint, to: *mut c_uint) -> Outcome {
    if clock != MULTIPROCESSORS {
        return NOT_FOUND;
    }
    // SAFETY: as the API says.
    unsafe { put(to, 1200) }
}

/// MHz of the multiprocessors at most.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(_: Pointer, clock: c_uint, to: *mut c_uint) -> Outcome {
    if clock != MULTIPROCESSORS {
        return NOT_FOUND;
    }
    // SAFETY: as the API says.
    unsafe { put(to, 1980) }
}

/// Nothing, or heat where `CUDA_DOUBLE_HOT` is 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(_: Pointer, to: *mut c_ulonglong) -> Outcome {
    let reasons = if setting("CUDA_DOUBLE_HOT", 0) == 1 { HOT } else { 0 };
    // SAFETY: as the API says.
    unsafe { put(to, reasons) };
    SUCCESS
}
