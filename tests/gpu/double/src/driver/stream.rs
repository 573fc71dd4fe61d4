//! Streams and events. Work is done when it is asked for, so that all have happened.

use super::{Outcome, Pointer, graph, nothing, put};
use std::{
    ffi::{c_int, c_uint},
    sync::{
        LazyLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

nothing! {
    cuStreamDestroy_v2(Pointer);
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

/// Waits for a stream, which has nothing left to do. No stream is waited for while one is captured.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(_: Pointer) -> Outcome {
    graph::forbidden("cuStreamSynchronize").unwrap_or(super::SUCCESS)
}

/// Whether a stream has nothing left to do.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(_: Pointer) -> Outcome {
    graph::forbidden("cuStreamQuery").unwrap_or(super::SUCCESS)
}

/// An event.
pub struct Event {
    /// The nanoseconds at which it happened.
    at: AtomicU64,
    /// Whether it belongs to a capture, so that it never happens by itself.
    captured: AtomicBool,
}

/// A stream waits for an event: both are of a capture, or none is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: Pointer, event: *const Event, _: c_uint) -> Outcome {
    // SAFETY: it was made by `cuEventCreate`.
    let captured = unsafe { &*event }.captured.load(Relaxed);
    match captured == graph::is_captured(stream) {
        true => super::SUCCESS,
        false => {
            graph::forbidden("a stream and an event, of which one alone is captured,");
            graph::CAPTURE_ISOLATION
        }
    }
}

/// An event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut *mut Event, _: c_uint) -> Outcome {
    let event = Event { at: AtomicU64::new(0), captured: AtomicBool::new(false) };
    // SAFETY: as the API says.
    unsafe { put(to, Box::into_raw(Box::new(event))) }
}

/// An event is no longer needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: *mut Event) -> Outcome {
    // SAFETY: it was made by `cuEventCreate`, and the caller has given it up.
    drop(unsafe { Box::from_raw(event) });
    super::SUCCESS
}

/// An event happens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: *const Event, stream: Pointer) -> Outcome {
    // SAFETY: it was made by `cuEventCreate`.
    let event = unsafe { &*event };
    event.captured.store(graph::is_captured(stream), Relaxed);
    event.at.store(BEGAN.elapsed().as_nanos() as u64, Relaxed);
    super::SUCCESS
}

/// Waits for an event, which has happened unless it belongs to a capture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: *const Event) -> Outcome {
    // SAFETY: it was made by `cuEventCreate`.
    match unsafe { &*event }.captured.load(Relaxed) {
        true => graph::forbidden("cuEventSynchronize").unwrap_or(graph::CAPTURE_UNSUPPORTED),
        false => super::SUCCESS,
    }
}

/// Whether an event has happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventQuery(event: *const Event) -> Outcome {
    // SAFETY: as the API says.
    unsafe { cuEventSynchronize(event) }
}

/// Milliseconds between two events, on the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(to: *mut f32, from: *const Event, until: *const Event) -> Outcome {
    // SAFETY: both were made by `cuEventCreate`.
    let (from, until) = unsafe { ((*from).at.load(Relaxed), (*until).at.load(Relaxed)) };
    // SAFETY: as the API says.
    unsafe { put(to, until.saturating_sub(from) as f32 / 1e6) }
}

/// Milliseconds between two events, on the CPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(to: *mut f32, from: *const Event, until: *const Event) -> Outcome {
    // SAFETY: as the API says.
    unsafe { cuEventElapsedTime(to, from, until) }
}
