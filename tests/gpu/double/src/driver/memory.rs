//! Memory of the device and of the host: both are the host's. What is allocated is known, so that a kernel that touches anything else
//! is found.

use super::{
    INVALID_VALUE, OUT_OF_MEMORY, Outcome, Pointer, SUCCESS,
    graph::{self, Kind},
    record::record,
};
use crate::machine::Ranges;
use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
    ffi::{c_int, c_uint},
    sync::{Mutex, MutexGuard},
};

/// Allocations, by their first byte: how many bytes they have, and whether they are on the device.
static LIVE: Mutex<BTreeMap<u64, (usize, bool)>> = Mutex::new(BTreeMap::new());

/// What the driver aligns allocations to.
const ALIGNMENT: usize = 512;

/// What memory holds that was never written. It reads as no number, and as -1.
const UNWRITTEN: u8 = 0xff;

fn live() -> MutexGuard<'static, BTreeMap<u64, (usize, bool)>> {
    LIVE.lock().unwrap_or_else(|e| e.into_inner())
}

/// The allocations of the device.
pub fn ranges() -> Ranges {
    live().iter().filter(|(_, (_, device))| *device).map(|(at, (n, _))| (*at, at + *n as u64)).collect()
}

/// Bytes of the device that are in use.
pub fn in_use() -> usize {
    live().values().filter(|(_, device)| *device).map(|(n, _)| n).sum()
}

/// Bytes behind each allocation that belong to none, so that what reaches a little out of one doesn't reach into the next.
const GAP: usize = 64 << 10;

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.checked_add(GAP)?, ALIGNMENT).ok()
}

unsafe fn allocate(to: *mut Pointer, bytes: usize, device: bool) -> Outcome {
    if bytes == 0 {
        return INVALID_VALUE;
    }
    let Some(layout) = layout(bytes) else { return INVALID_VALUE };
    if device && in_use() + bytes > super::device::memory() {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the layout has bytes; the pointer is the caller's.
    unsafe {
        let at = alloc(layout);
        if at.is_null() {
            return OUT_OF_MEMORY;
        }
        at.write_bytes(UNWRITTEN, bytes);
        live().insert(at as u64, (bytes, device));
        super::put(to, at.cast())
    }
}

unsafe fn free(at: Pointer) -> Outcome {
    if at.is_null() {
        return SUCCESS;
    }
    let Some((bytes, _)) = live().remove(&(at as u64)) else { return INVALID_VALUE };
    if let Some(layout) = layout(bytes) {
        // SAFETY: it was allocated with this layout, and is no longer known.
        unsafe { dealloc(at.cast(), layout) };
    }
    SUCCESS
}

/// Device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut Pointer, bytes: usize) -> Outcome {
    if let Some(error) = graph::forbidden("cuMemAlloc") {
        return error;
    }
    // SAFETY: as the API says.
    unsafe { allocate(to, bytes, true) }
}

/// Device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(to: *mut Pointer, bytes: usize, _: Pointer) -> Outcome {
    // A captured one would be a node that can't be launched twice.
    if let Some(error) = graph::forbidden("cuMemAllocAsync") {
        return error;
    }
    // SAFETY: as the API says.
    unsafe { allocate(to, bytes, true) }
}

/// Memory of the host that copies go fast from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(to: *mut Pointer, bytes: usize) -> Outcome {
    if let Some(error) = graph::forbidden("cuMemAllocHost") {
        return error;
    }
    // SAFETY: as the API says.
    unsafe { allocate(to, bytes, false) }
}

/// Frees device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(at: Pointer) -> Outcome {
    if let Some(error) = graph::forbidden("cuMemFree") {
        return error;
    }
    // SAFETY: as the API says.
    unsafe { free(at) }
}

/// Frees device memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(at: Pointer, _: Pointer) -> Outcome {
    // SAFETY: as the API says.
    unsafe { free(at) }
}

/// Frees memory of the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(at: Pointer) -> Outcome {
    // SAFETY: as the API says.
    unsafe { free(at) }
}

/// Whether all bytes are in one allocation of the device.
fn on_device(at: *const u8, bytes: usize) -> bool {
    let (at, live) = (at as u64, live());
    let before = live.range(..=at).next_back();
    let holds = before.is_some_and(|(from, (n, device))| *device && at + bytes as u64 <= from + *n as u64);
    if !holds {
        eprintln!("cuda double: a copy of {bytes} bytes at {at:#x}, which are not in an allocation of the device");
    }
    holds
}

unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize, which: &'static str, stream: Pointer) -> Outcome {
    let (to, from, on) = (to as usize, from as usize, stream as usize);
    graph::ask(stream, Kind::Copy, move || {
        record(&format!("{{\"copy\": \"{which}\", \"bytes\": {bytes}, \"stream\": {on}}}"));
        // SAFETY: both were found to have the bytes, or are the caller's, for as long as a graph of the copy is launched.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        SUCCESS
    })
}

/// From the host to the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: *mut u8, from: *const u8, bytes: usize, stream: Pointer) -> Outcome {
    if !on_device(to, bytes) {
        return INVALID_VALUE;
    }
    // SAFETY: checked, and as the API says.
    unsafe { copy(to, from, bytes, "to device", stream) }
}

/// From the device to the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u8, from: *const u8, bytes: usize, stream: Pointer) -> Outcome {
    if !on_device(from, bytes) {
        return INVALID_VALUE;
    }
    // SAFETY: checked, and as the API says.
    unsafe { copy(to, from, bytes, "to host", stream) }
}

/// On the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: *mut u8, from: *const u8, bytes: usize, stream: Pointer) -> Outcome {
    if !on_device(to, bytes) || !on_device(from, bytes) {
        return INVALID_VALUE;
    }
    // SAFETY: checked.
    unsafe { copy(to, from, bytes, "on device", stream) }
}

/// Fills bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemsetD8Async(to: *mut u8, v: u8, bytes: usize, stream: Pointer) -> Outcome {
    if !on_device(to, bytes) {
        return INVALID_VALUE;
    }
    let to = to as usize;
    graph::ask(stream, Kind::Fill, move || {
        // SAFETY: checked, and lives as long as a graph of it is launched.
        unsafe { (to as *mut u8).write_bytes(v, bytes) };
        SUCCESS
    })
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: c_uint,
    from_host: *const u8,
    from_device: *const u8,
    from_array: Pointer,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: c_uint,
    to_host: *mut u8,
    to_device: *mut u8,
    to_array: Pointer,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// `CU_MEMORYTYPE_HOST`.
const HOST: c_uint = 1;

/// Rows that lie apart.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(of: *const Copy2d, stream: Pointer) -> Outcome {
    if graph::is_captured(stream) {
        return graph::forbidden("cuMemcpy2DAsync, which the double can't capture,").unwrap_or(INVALID_VALUE);
    }
    // SAFETY: as the API says.
    let of = unsafe { &*of };
    let (from, to) = (of.from_kind == HOST, of.to_kind == HOST);
    let which = match (from, to) {
        (true, false) => "to device",
        (false, true) => "to host",
        _ => "on device",
    };
    record(&format!("{{\"copy\": \"{which}\", \"bytes\": {}, \"stream\": {}}}", of.width * of.height, stream as usize));
    for y in 0..of.height {
        let base = if from { of.from_host } else { of.from_device };
        let source = base.wrapping_add((y + of.from_y) * of.from_pitch + of.from_x);
        let base = if to { of.to_host } else { of.to_device };
        let target = base.wrapping_add((y + of.to_y) * of.to_pitch + of.to_x);
        if (!from && !on_device(source, of.width)) || (!to && !on_device(target, of.width)) {
            return INVALID_VALUE;
        }
        // SAFETY: checked on the device's side, and as the API says on the host's.
        unsafe { std::ptr::copy(source, target, of.width) };
    }
    SUCCESS
}

/// Pools give nothing back here.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(_: Pointer, _: usize) -> Outcome {
    SUCCESS
}

/// The pool that there is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(to: *mut usize, _: c_int) -> Outcome {
    // SAFETY: as the API says.
    unsafe { super::put(to, 0x40) }
}
