//! The command `compress`.

use std::process::ExitCode;

// Graphs are many small allocations, which this serves faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Mesa's layer for choosing a device, which nothing here needs, complains on stderr where there is no desktop.
    #[cfg(feature = "vulkan")]
    // SAFETY: there are no other threads yet.
    unsafe {
        std::env::set_var("NODEVICE_SELECT", "1");
    }
    compress::cli::main(std::env::args_os()).into()
}
