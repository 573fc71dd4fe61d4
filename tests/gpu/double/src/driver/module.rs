//! Modules and launches.

use super::{
    INVALID_PTX, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, Outcome, Pointer, SUCCESS,
    graph::{self, Kind},
    put, record,
};
use crate::{
    isa,
    machine::{Kernel, Launch, Ranges},
    ptx,
};
use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

/// A module: its kernels, and its variables.
struct Module {
    kernels: HashMap<String, Arc<Kernel>>,
    variables: Arc<[Box<[u64]>]>,
}

/// A kernel of a module. It keeps the module's variables.
struct Function {
    kernel: Arc<Kernel>,
    variables: Arc<[Box<[u64]>]>,
}

/// Reads PTX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(to: *mut *mut std::ffi::c_void, image: *const c_char) -> Outcome {
    // SAFETY: as the API says: a text with its end. Images of other kinds are not made for this device.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let file = record::module(&text);
    let module = match ptx::parse(&text) {
        Ok(module) => module,
        Err(why) => {
            eprintln!("cuda double: a module that it can't read: {why}");
            return INVALID_PTX;
        }
    };
    let kernels = module.entries.values().map(|e| (e.name.clone(), Arc::new(isa::decode(e)))).collect();
    record::record(&format!("{{\"module\": {file}}}"));
    let module = Module { kernels, variables: module.variables.into() };
    // SAFETY: as the API says.
    unsafe { put(to, Box::into_raw(Box::new(module)).cast()) }
}

/// A module is no longer needed; its functions keep what they need.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: Pointer) -> Outcome {
    // SAFETY: it was made by `cuModuleLoadData`, and the caller has given it up.
    drop(unsafe { Box::from_raw(module.cast::<Module>()) });
    SUCCESS
}

/// A kernel by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(to: *mut Pointer, module: Pointer, name: *const c_char) -> Outcome {
    // SAFETY: the module was made by `cuModuleLoadData`, the name has its end.
    let (module, name) = unsafe { (&*module.cast::<Module>(), CStr::from_ptr(name).to_string_lossy()) };
    let Some(kernel) = module.kernels.get(&*name) else { return NOT_FOUND };
    let function = Function { kernel: kernel.clone(), variables: module.variables.clone() };
    // SAFETY: as the API says.
    unsafe { put(to, Box::into_raw(Box::new(function)).cast()) }
}

/// How much shared memory a launch may ask for.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_: Pointer, _: c_int, _: c_int) -> Outcome {
    SUCCESS
}

/// Runs a kernel, to its end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Pointer,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: Pointer,
    arguments: *mut *mut u8,
    _: Pointer,
) -> Outcome {
    // SAFETY: it was made by `cuModuleGetFunction`.
    let Function { kernel, variables } = unsafe { &*function.cast::<Function>() };
    let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
    let threads = block.iter().map(|n| u64::from(*n)).product::<u64>();
    // The limits that `cuDeviceGetAttribute` tells.
    let too_large = grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 || block[2] > 64;
    if grid.contains(&0) || !(1..=1024).contains(&threads) || too_large {
        eprintln!("cuda double: {}: a grid of {grid:?} blocks of {block:?} threads", kernel.name);
        return INVALID_VALUE;
    }
    let bytes = kernel.params.last().map_or(0, |(at, n)| at + n);
    let mut params = vec![0u128; bytes.div_ceil(16)];
    for (i, (at, n)) in kernel.params.iter().enumerate() {
        // SAFETY: the caller gives a pointer for each parameter, to as many bytes as it has.
        unsafe { std::ptr::copy_nonoverlapping(*arguments.add(i), params.as_mut_ptr().cast::<u8>().add(*at), *n) };
    }
    let (kernel, variables) = (kernel.clone(), variables.clone());
    let on = stream as usize;
    let work = move || run(&kernel, &variables, &params, bytes, [grid, block], shared as usize, on);
    graph::ask(stream, Kind::Kernel, work)
}

/// Runs a kernel, to its end.
fn run(
    kernel: &Kernel,
    variables: &[Box<[u64]>],
    params: &[u128],
    param_bytes: usize,
    [grid, block]: [[u32; 3]; 2],
    dynamic: usize,
    stream: usize,
) -> Outcome {
    let mut ranges: Ranges = super::memory::ranges();
    ranges.extend(variables.iter().map(|v| (v.as_ptr() as u64, v.as_ptr() as u64 + size_of_val(&**v) as u64)));
    ranges.sort_unstable();
    let launch = Launch { kernel, params: params.to_vec(), param_bytes, grid, block, dynamic, ranges };
    super::nvml::LAUNCHES.fetch_add(1, Relaxed);
    let began = Instant::now();
    // A panic would be a defect of the double; it must not cross into the caller.
    let result = catch_unwind(AssertUnwindSafe(|| launch.run()));
    match result {
        Ok(Ok(counts)) => {
            record::record(&format!(
                "{{\"kernel\": \"{}\", \"grid\": {grid:?}, \"block\": {block:?}, \"shared\": {}, \"instructions\": {}, \
                 \"lanes\": {}, \"tensor\": {}, \"seconds\": {:.6}, \"stream\": {stream}{}}}",
                kernel.name,
                kernel.shared + dynamic,
                counts.steps,
                counts.lanes,
                counts.tensor,
                began.elapsed().as_secs_f64(),
                super::nvtx::range().map_or(String::new(), |name| format!(", \"range\": {name:?}")),
            ));
            SUCCESS
        }
        Ok(Err(fault)) => {
            eprintln!("cuda double: {fault}");
            record::record(&format!("{{\"kernel\": \"{}\", \"fault\": {}}}", kernel.name, fault.kind as i32));
            fault.kind as Outcome
        }
        Err(_) => 719,
    }
}

/// Tensor maps are of hardware that the double doesn't have.
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeTiled() -> Outcome {
    NOT_SUPPORTED
}

/// Tensor maps are of hardware that the double doesn't have.
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeIm2col() -> Outcome {
    NOT_SUPPORTED
}
