//! A profiler that NVTX finds where `NVTX_INJECTION64_PATH` names this library: each launch is recorded with the range that its thread
//! is in, as a real one would show it.

use std::{
    cell::RefCell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
};

thread_local! {
    static RANGES: RefCell<Vec<String>> = const { RefCell::new(vec![]) };
}

/// The innermost range of this thread.
pub fn range() -> Option<String> {
    RANGES.with_borrow(|ranges| ranges.last().cloned())
}

/// Begins a range, and returns its depth.
unsafe extern "C" fn push(name: *const c_char) -> c_int {
    // SAFETY: as NVTX says.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    RANGES.with_borrow_mut(|ranges| {
        ranges.push(name);
        ranges.len() as c_int - 1
    })
}

/// Ends the innermost range, and returns its depth; -1 where there is none.
unsafe extern "C" fn pop() -> c_int {
    RANGES.with_borrow_mut(|ranges| ranges.pop().map_or(-1, |_| ranges.len() as c_int))
}

type Table = *const *mut *const c_void;

/// `NvtxExportTableCallbacks`.
#[repr(C)]
pub struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut Table, *mut c_uint) -> c_int,
}

/// Takes the functions that begin and end ranges. It fails where the program doesn't have the tables of version 3.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn InitializeInjectionNvtx2(export: extern "C" fn(u32) -> *const c_void) -> c_int {
    let callbacks: *const Callbacks = export(1).cast();
    let versions: *const u32 = export(3).cast();
    if callbacks.is_null() || versions.is_null() {
        return 0;
    }
    let (mut table, mut size): (Table, c_uint) = (std::ptr::null(), 0);
    // SAFETY: as NVTX says; the version is behind the size of its table.
    let ready = unsafe {
        (*callbacks).size >= size_of::<Callbacks>()
            && *versions.add(2) == 3
            && ((*callbacks).table)(1, &raw mut table, &raw mut size) == 1
    };
    if !ready || size < 12 {
        return 0;
    }
    // As real ones do, which then would be called for nothing: the functions of domains, in another table.
    let (mut others, mut many): (Table, c_uint) = (std::ptr::null(), 0);
    // SAFETY: as NVTX says.
    let has_domains = unsafe { ((*callbacks).table)(5, &raw mut others, &raw mut many) == 1 && many == 16 };
    if !has_domains || std::ptr::eq(others, table) {
        return 0;
    }
    // SAFETY: there are as many places, and those of functions aren't null.
    unsafe {
        **table.add(9) = push as *const c_void;
        **table.add(11) = pop as *const c_void;
        **others.add(9) = pop as *const c_void;
        **others.add(11) = push as *const c_void;
    }
    1
}
