//! The device: its name, its limits, its context.

use super::{INVALID_DEVICE, INVALID_VALUE, Outcome, Pointer, SUCCESS, nothing, put, setting};
use std::ffi::{c_char, c_int, c_uint};

/// The architecture: `CUDA_DOUBLE_ARCH`, 90 unless it says 80 or another.
fn architecture() -> c_int {
    setting("CUDA_DOUBLE_ARCH", 90) as c_int
}

/// Bytes of device memory: `CUDA_DOUBLE_MEMORY` in MiB, 8 GiB otherwise.
pub fn memory() -> usize {
    setting("CUDA_DOUBLE_MEMORY", 8192) << 20
}

nothing! {
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxSetCurrent(Pointer);
    cuCtxSynchronize();
}

/// One device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(to: *mut c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 1) }
}

/// Device 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, n: c_int) -> Outcome {
    if n != 0 {
        return INVALID_DEVICE;
    }
    // SAFETY: as the API says.
    unsafe { put(to, 0) }
}

/// Copies a text with its end into `room` characters.
unsafe fn text(to: *mut c_char, room: c_int, text: &str) -> Outcome {
    let Ok(room) = usize::try_from(room - 1) else { return INVALID_VALUE };
    let n = room.min(text.len());
    // SAFETY: the caller has that much room.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), n);
        to.add(n).write(0);
    }
    SUCCESS
}

/// A name that no card has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(to: *mut c_char, room: c_int, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { text(to, room, &format!("test double of sm_{} on the CPU", architecture())) }
}

/// A place on no bus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, room: c_int, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { text(to, room, "0000:01:00.0") }
}

/// Always the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(to: *mut [u8; 16], _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, [1; 16]) }
}

/// Bytes of memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(to: *mut usize, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, memory()) }
}

/// Bytes that are free, and all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Outcome {
    // SAFETY: as the API says.
    unsafe {
        put(free, memory() - super::memory::in_use());
        put(total, memory())
    }
}

/// The limits of an A100 or an H100, by the architecture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(to: *mut c_int, attribute: c_int, _: c_int) -> Outcome {
    let new = architecture() >= 90;
    let value = match attribute {
        // Threads of a block, in all and along x and y; along z.
        1..=3 => 1024,
        4 => 64,
        // Blocks along x, y and z.
        5 => c_int::MAX,
        6 | 7 => 65_535,
        // Shared memory of a block that nobody asked for more.
        8 => 49_152,
        // Lanes of a warp.
        10 => 32,
        // Registers of a block, and of a multiprocessor.
        12 | 82 => 65_536,
        // Multiprocessors.
        16 if new => 132,
        16 => 108,
        // Threads of a multiprocessor.
        39 => 2048,
        75 => architecture() / 10,
        76 => architecture() % 10,
        // Shared memory of a multiprocessor, and what a block may ask for.
        81 if new => 233_472,
        81 => 167_936,
        97 if new => 232_448,
        97 => 166_912,
        // Memory pools.
        115 => 1,
        _ => 0,
    };
    // SAFETY: as the API says.
    unsafe { put(to, value) }
}

/// The context that there is.
const CONTEXT: usize = 0x10;

/// The one context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(to: *mut usize, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, CONTEXT) }
}

/// The one context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(to: *mut usize) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, CONTEXT) }
}

/// Device 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetDevice(to: *mut c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 0) }
}

/// Priorities of streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe {
        put(least, 0);
        put(greatest, -5)
    }
}

/// The API's number of a peer is not known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(to: *mut c_int, _: c_int, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 0) }
}

/// Flags of the context: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetFlags(to: *mut c_uint) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 0) }
}
