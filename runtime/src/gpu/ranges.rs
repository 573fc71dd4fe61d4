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

/// Numbers of `nvtxTypes.h`: places in the table of core functions, and tables that can be asked for.
const PUSH: usize = 9;
const POP: usize = 11;
const CORE: usize = 1;
const CALLBACKS: u32 = 1;
const VERSIONS: u32 = 3;
/// The third version of NVTX.
const VERSION: u32 = 3;

/// Places of each table, that of number 0 included, which isn't one: core, CUDA, OpenCL, CUDA's runtime, domains, and locks.
const PLACES: [usize; 7] = [0, 16, 9, 15, 7, 16, 7];
const MOST: usize = 16;

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// Where a profiler puts its functions, and takes them from when it goes.
static FUNCTIONS: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];
/// Where it puts those that nobody here calls.
static UNUSED: [AtomicPtr<c_void>; MOST] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MOST];

/// The places, as a profiler is shown them.
static CALLED: Table = Table::of(&FUNCTIONS);
static NOT_CALLED: Table = Table::of(&UNUSED);

struct Table([*const AtomicPtr<c_void>; MOST]);

// SAFETY: the pointers are those of atomics that live as long as the program.
unsafe impl Sync for Table {}

impl Table {
    const fn of(places: &'static [AtomicPtr<c_void>; MOST]) -> Self {
        let mut table = [null(); MOST];
        let mut i = 1;
        while i < MOST {
            table[i] = &raw const places[i];
            i += 1;
        }
        Self(table)
    }
}

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

/// Shows the table of a module: as NVTX does, each has one, as profilers write into all.
///
/// # Safety
/// The pointers are null, or may be written to.
unsafe extern "C" fn table(module: c_int, to: *mut *const *const AtomicPtr<c_void>, size: *mut u32) -> c_int {
    let module = usize::try_from(module).unwrap_or(0);
    let Some(places) = PLACES.get(module).filter(|places| **places > 0) else { return 0 };
    let table = if module == CORE { &CALLED } else { &NOT_CALLED };
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(table.0.as_ptr()) };
    }
    if !size.is_null() {
        // SAFETY: the caller's promise.
        unsafe { size.write(*places as u32) };
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

/// Whether a profiler runs this program.
fn is_profiled() -> bool {
    static BEGAN: OnceLock<bool> = OnceLock::new();
    let begin = || -> Option<bool> {
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
        Some(began)
    };
    *BEGAN.get_or_init(|| begin().unwrap_or(false))
}

/// The function that a profiler has put into a place.
fn function(place: usize) -> Option<*mut c_void> {
    Some(FUNCTIONS[place].load(Ordering::Acquire)).filter(|function| !function.is_null())
}

/// For as long as it lives, what the device is given belongs to a name. Ranges of several threads on one device mix: a device has one
/// thread that hands work over.
pub struct Range {
    client: Client,
}

impl Range {
    /// Begins, if a profiler listens. Ranges are those of a thread, so it begins on the one that hands work over to the device.
    pub fn begin(device: &Device, name: &str) -> Option<Self> {
        let DispatchDevice::Cube(cube) = device.burn() else { return None };
        if !is_profiled() {
            return None;
        }
        // SAFETY: a profiler puts a function of this type there.
        let push = unsafe { std::mem::transmute::<*mut c_void, Push>(function(PUSH)?) };
        let (client, name) = (cube.client(), CString::new(name.replace('\0', " ")).ok()?);
        // SAFETY: the profiler copies the name.
        client.exclusive(move || unsafe { push(name.as_ptr()) }).ok()?;
        Some(Self { client })
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let Some(function) = function(POP) else { return };
        // SAFETY: a profiler puts a function of this type there.
        let pop = unsafe { std::mem::transmute::<*mut c_void, Pop>(function) };
        // SAFETY: a range was begun on that thread. A device that is gone has no ranges.
        let _ = self.client.exclusive(move || unsafe { pop() });
    }
}
