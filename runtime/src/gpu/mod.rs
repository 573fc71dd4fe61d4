//! Kernels for GPUs, and which values of a graph they make.
//!
//! The lowerings of the CPU executor ([`crate::cpu`]) say what is computed with codes, and what is folded into a product. Here
//! that runs on a device: codes stay there as bytes, channels last, between nodes. Integer results equal those of the CPU to the
//! last bit. What has no kernel here runs on Burn, on the same device.

#[cfg(not(feature = "cuda"))]
mod absent;
#[cfg(feature = "cuda")]
mod dense;
#[cfg(feature = "cuda")]
mod elementwise;
#[cfg(feature = "cuda")]
mod finish;
#[cfg(feature = "cuda")]
mod fuser;
#[cfg(feature = "cuda")]
mod product;
#[cfg(feature = "cuda")]
mod sliding;
#[cfg(feature = "cuda")]
mod steps;
#[cfg(all(test, feature = "cuda"))]
mod tests;
#[cfg(feature = "cuda")]
mod tile;
#[cfg(feature = "cuda")]
mod window;

#[cfg(not(feature = "cuda"))]
pub use absent::Fuser;
#[cfg(feature = "cuda")]
pub use fuser::Fuser;
