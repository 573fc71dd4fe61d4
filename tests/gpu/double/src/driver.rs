//! What a program calls: the functions of `libcuda.so` that cudarc and CubeCL reach.
//!
//! Streams do their work at once, so that they never have anything to wait for. Arguments are those of the
//! [driver API](https://docs.nvidia.com/cuda/cuda-driver-api/); results are its numbers, 0 for success.
#![allow(non_snake_case, reason = "the names are those of the driver API")]
#![allow(clippy::missing_safety_doc, reason = "pointers are as the driver API says")]

mod device;
mod graph;
mod memory;
mod module;
mod nvml;
mod nvtx;
mod record;
mod stream;

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A number of `CUresult`.
pub type Outcome = c_int;

/// A handle or an address.
pub type Pointer = *mut c_void;

pub(crate) const SUCCESS: Outcome = 0;
const INVALID_VALUE: Outcome = 1;
const OUT_OF_MEMORY: Outcome = 2;
const INVALID_DEVICE: Outcome = 101;
const INVALID_PTX: Outcome = 218;
const NOT_FOUND: Outcome = 500;
const NOT_SUPPORTED: Outcome = 801;

/// Functions that have nothing to do here.
macro_rules! nothing {
    ($($name:ident($($ty:ty),*);)*) => {
        $(
            /// Nothing has to be done for it.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($(_: $ty),*) -> $crate::driver::Outcome {
                $crate::driver::SUCCESS
            }
        )*
    };
}
use nothing;

/// Writes through a pointer of the caller's.
///
/// # Safety
/// The pointer is one that a `T` may be written to.
unsafe fn put<T>(to: *mut T, v: T) -> Outcome {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(v) };
    SUCCESS
}

/// A number of the environment.
fn setting(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(otherwise)
}

nothing! {
    cuInit(c_uint);
}

/// CUDA 13.2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(to: *mut c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 13020) }
}

/// The name of a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(result: Outcome, to: *mut *const c_char) -> Outcome {
    let name = match result {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_PTX => c"CUDA_ERROR_INVALID_PTX",
        NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        702 => c"CUDA_ERROR_LAUNCH_TIMEOUT",
        715 => c"CUDA_ERROR_ILLEGAL_INSTRUCTION",
        716 => c"CUDA_ERROR_MISALIGNED_ADDRESS",
        719 => c"CUDA_ERROR_LAUNCH_FAILED",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        graph::CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
        graph::CAPTURE_ISOLATION => c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: as the API says.
    unsafe { put(to, name.as_ptr()) }
}

/// What a result means: the double has printed more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(result: Outcome, to: *mut *const c_char) -> Outcome {
    let text =
        if result == SUCCESS { c"no error" } else { c"an error of the test double, which printed what went wrong" };
    // SAFETY: as the API says.
    unsafe { put(to, text.as_ptr()) }
}
