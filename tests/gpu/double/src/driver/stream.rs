//! Streams and events. Work is done when it is asked for, so that all have happened.

use super::{Outcome, Pointer, nothing, put};
use std::{
    ffi::{c_int, c_uint},
    sync::{
        LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

nothing! {
    cuStreamDestroy_v2(Pointer);
    cuStreamSynchronize(Pointer);
    cuStreamQuery(Pointer);
    cuStreamWaitEvent(Pointer, Pointer, c_uint);
    cuEventSynchronize(Pointer);
    cuEventQuery(Pointer);
}

/// When the library was loaded.
static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// A number for each stream.
static STREAMS: AtomicUsize = AtomicUsize::new(0x20);

/// A stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut usize, _: c_uint) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, STREAMS.fetch_add(1, Relaxed)) }
}

/// A stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(to: *mut usize, _: c_uint, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, STREAMS.fetch_add(1, Relaxed)) }
}

/// Nothing is captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(_: Pointer, to: *mut c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, 0) }
}

/// An event: the nanoseconds at which it happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut *mut AtomicU64, _: c_uint) -> Outcome {
    // SAFETY: as the API says.
    unsafe { put(to, Box::into_raw(Box::new(AtomicU64::new(0)))) }
}

/// An event is no longer needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut AtomicU64) -> Outcome {
    // SAFETY: it was made by `cuEventCreate`, and the caller has given it up.
    drop(unsafe { Box::from_raw(event) });
    super::SUCCESS
}

/// An event happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *const AtomicU64, _: Pointer) -> Outcome {
    // SAFETY: it was made by `cuEventCreate`.
    unsafe { &*event }.store(BEGAN.elapsed().as_nanos() as u64, Relaxed);
    super::SUCCESS
}

/// Milliseconds between two events, on the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(to: *mut f32, from: *const AtomicU64, until: *const AtomicU64) -> Outcome {
    // SAFETY: both were made by `cuEventCreate`.
    let (from, until) = unsafe { ((*from).load(Relaxed), (*until).load(Relaxed)) };
    // SAFETY: as the API says.
    unsafe { put(to, until.saturating_sub(from) as f32 / 1e6) }
}

/// Milliseconds between two events, on the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(
    to: *mut f32,
    from: *const AtomicU64,
    until: *const AtomicU64,
) -> Outcome {
    // SAFETY: as the API says.
    unsafe { cuEventElapsedTime(to, from, until) }
}
