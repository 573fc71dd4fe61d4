//! The command `compress`.

use std::process::ExitCode;

// Graphs are many small allocations, which this serves faster than the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    compress::cli::main(std::env::args_os()).into()
}
