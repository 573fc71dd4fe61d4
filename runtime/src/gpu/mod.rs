//! Kernels for GPUs.

mod dense;
mod product;
#[cfg(test)]
mod tests;
