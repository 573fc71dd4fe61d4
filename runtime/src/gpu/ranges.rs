//! Ranges with the names of nodes, for profilers such as Nsight Systems: [NVTX](https://nvidia.github.io/NVTX/), version 3.
//!
//! NVTX has no library of its own. A profiler names one of its own in `NVTX_INJECTION64_PATH`; whoever has ranges to tell loads that, and
//! gives it a table of places. The profiler's functions are put into these. Without a profiler nothing is loaded.

use crate::device::Device;
use ::burn::backend::DispatchDevice;
use cubecl::client::Client;
use libloading::Library;
use std::{
    ffi::{CString, c_char, c_int, c_void},
    mem::size_of,
    ptr::null,
    sync::{
        OnceLock,
        atomic::{AtomicPtr, Ordering},
    },
};

/// What a profiler is named by.
const VARIABLE: &str = "NVTX_INJECTION64_PATH";

/// Numbers of `nvtxTypes.h`: places in the table of core functions and how many there are, tables that can be asked for.
const PUSH: usize = 9;
const POP: usize = 11;
const PLACES: usize = 16;
const CORE: c_int = 1;
const CALLBACKS: u32 = 1;
const VERSIONS: u32 = 3;
/// The third version of NVTX.
const VERSION: u32 = 3;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// Where a profiler puts its functions. The place of number 0 isn't one.
static FUNCTIONS: [AtomicPtr<c_void>; PLACES] = [const { AtomicPtr::new(std::ptr::null_mut()) }; PLACES];

/// The places, as a profiler is shown them.
static TABLE: Table = {
    let mut table = [null(); PLACES];
    let mut i = 1;
    while i < PLACES {
        table[i] = &raw const FUNCTIONS[i];
        i += 1;
    }
    Table(table)
};

struct Table([*const AtomicPtr<c_void>; PLACES]);

// SAFETY: the pointers are those of atomics that live as long as the program.
unsafe impl Sync for Table {}

/// `NvtxExportTableCallbacks`.
#[repr(C)]
struct Callbacks {
    size: usize,
    table: unsafe extern "C" fn(c_int, *mut *const *const AtomicPtr<c_void>, *mut u32) -> c_int,
}

/// `NvtxExportTableVersionInfo`.
#[repr(C)]
struct Versions {
    size: usize,
    version: u32,
    reserved: u32,
    set: extern "C" fn(u32),
}

/// Shows the table of core functions, which alone are called here.
///
/// # Safety
/// The pointers are null, or may be written to.
unsafe extern "C" fn table(module: c_int, to: *mut *const *const AtomicPtr<c_void>, size: *mut u32) -> c_int {
    if module != CORE {
        return 0;
    }
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(TABLE.0.as_ptr()) };
    }
    if !size.is_null() {
        // SAFETY: the caller's promise.
        unsafe { size.write(PLACES as u32) };
    }
    1
}

extern "C" fn set(_: u32) {}

/// Shows what a profiler may ask for.
extern "C" fn export(table_id: u32) -> *const c_void {
    static SHOWN: Callbacks = Callbacks { size: size_of::<Callbacks>(), table };
    static MADE_FOR: Versions = Versions { size: size_of::<Versions>(), version: VERSION, reserved: 0, set };
    match table_id {
        CALLBACKS => (&raw const SHOWN).cast(),
        VERSIONS => (&raw const MADE_FOR).cast(),
        _ => null(),
    }
}

/// The functions of the profiler that runs this program, if one does.
fn profiler() -> Option<(Push, Pop)> {
    static FOUND: OnceLock<Option<(Push, Pop)>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        // SAFETY: the library is that of a profiler, which whoever set the variable wants here.
        let library = unsafe { Library::new(path) }.ok()?;
        type Initialise = unsafe extern "C" fn(extern "C" fn(u32) -> *const c_void) -> c_int;
        // SAFETY: the type is that of the name in NVTX.
        let initialise = unsafe { library.get::<Initialise>(b"InitializeInjectionNvtx2\0") }.ok()?;
        // SAFETY: as NVTX does it.
        let began = unsafe { initialise(export) } != 0;
        // Its functions stay where they are.
        std::mem::forget(library);
        let there = |place: usize| {
            let function = FUNCTIONS[place].load(Ordering::Acquire);
            (began && !function.is_null()).then_some(function)
        };
        // SAFETY: a profiler puts functions of these types there.
        Some(unsafe {
            (
                std::mem::transmute::<*mut c_void, Push>(there(PUSH)?),
                std::mem::transmute::<*mut c_void, Pop>(there(POP)?),
            )
        })
    })
}

/// For as long as it lives, what the device is given belongs to a name.
pub struct Range {
    client: Client,
    pop: Pop,
}

impl Range {
    /// Begins, if a profiler listens. Ranges are those of a thread, so it begins on the one that hands work over to the device.
    pub fn begin(device: &Device, name: &str) -> Option<Self> {
        let (push, pop) = profiler()?;
        let DispatchDevice::Cube(cube) = device.burn() else { return None };
        let (client, name) = (cube.client(), CString::new(name.replace('\0', " ")).ok()?);
        // SAFETY: the profiler copies the name.
        client.exclusive(move || unsafe { push(name.as_ptr()) }).ok()?;
        Some(Self { client, pop })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let pop = self.pop;
        // SAFETY: a range was begun on that thread. A device that is gone has no ranges.
        let _ = self.client.exclusive(move || unsafe { pop() });
    }
}
