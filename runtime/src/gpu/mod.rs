//! Kernels for GPUs, and which values of a graph they make.
//!
//! The lowerings of the CPU executor ([`crate::cpu`]) say what is computed with codes, and what is folded into a product. Here
//! that runs on a device: codes stay there as bytes, channels last, between nodes. Integer results equal those of the CPU to the
//! last bit. What has no kernel here runs on Burn, on the same device.

#[cfg(not(feature = "gpu"))]
mod absent;
#[cfg(feature = "gpu")]
mod dense;
#[cfg(feature = "gpu")]
mod elementwise;
#[cfg(feature = "gpu")]
mod finish;
#[cfg(feature = "gpu")]
mod functions;
#[cfg(feature = "gpu")]
mod fuser;
#[cfg(feature = "gpu")]
mod patches;
#[cfg(feature = "gpu")]
mod plain;
#[cfg(feature = "gpu")]
mod product;
#[cfg(feature = "gpu")]
mod ranges;
#[cfg(feature = "gpu")]
mod recorder;
#[cfg(feature = "gpu")]
mod rows;
#[cfg(feature = "gpu")]
mod sliding;
#[cfg(feature = "gpu")]
mod steps;
#[cfg(all(test, feature = "gpu"))]
mod tests;
#[cfg(feature = "gpu")]
mod tile;
#[cfg(feature = "gpu")]
mod timer;
#[cfg(feature = "gpu")]
mod window;

#[cfg(not(feature = "gpu"))]
pub use absent::{Elapsed, Fuser, Given, Range, Recorder, Sizes, Timer, reading};
#[cfg(feature = "gpu")]
pub use dense::By;
#[cfg(feature = "gpu")]
pub use fuser::Fuser;
#[cfg(feature = "gpu")]
pub use ranges::Range;
#[cfg(feature = "gpu")]
pub use recorder::{Given, Recorder, Sizes, reading};
#[cfg(feature = "gpu")]
pub use timer::{Elapsed, Timer};
