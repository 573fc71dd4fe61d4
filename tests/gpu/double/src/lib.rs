//! A test double for the CUDA driver: a `libcuda.so` whose device is the CPU.
//!
//! All above the driver is the program's own: it loads this library, compiles kernels with the real NVRTC, and launches them.
//! [`ptx`] reads the text that NVRTC makes, [`isa`] decodes each instruction, [`machine`] runs the blocks, and [`driver`] is what the
//! program calls. README.md says how it is used and what it can't show.

pub mod driver;
pub mod isa;
pub mod machine;
pub mod ptx;
