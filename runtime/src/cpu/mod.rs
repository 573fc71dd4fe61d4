//! The executor for inference on the CPU: what it knows runs several times faster than on Burn.
//!
//! # From graph to steps
//! - **Lowering** (`lower`) happens once. Going from the outputs that are asked for towards the
//!   inputs, each value is asked for in a `Form`: as floats, or as the 8-bit codes for which the
//!   floats stand. Who makes it answers with a `Lowering`: which values it needs, in which form,
//!   and how its constants are packed. So QuantizeLinear over Relu over Conv over DequantizeLinear
//!   is one lowering that asks for codes, and what nobody asks for is never computed. `ops/` has one
//!   file for each family of operators.
//! - **Planning** (`plan`) happens once for each set of input shapes. Every value gets a layout
//!   (channels last where convolutions want it, converted at the edges), a place in one arena by
//!   its first and last use, and every lowered operator becomes steps: calls of kernels whose operands are
//!   known. A Concat whose parts nobody else reads costs nothing: they are written into it.
//! - **Running** allocates nothing but the outputs.
//!
//! The kernels themselves are the crate `compress-kernels`.
//!
//! # Exactness
//! Integer operators compute what ONNX Runtime's do, to the last bit: 32-bit sums, one
//! multiplication by `x_scale * w_scale / y_scale` in `f32`, rounding half to even. Signed 8-bit
//! activations are relabelled as unsigned ones, 128 higher, which changes nothing else. Means of whole
//! images, which ONNX Runtime computes in floats, are added up in its order; other averages that it
//! computes so (those behind a Pad or a Concat) may be one step off.

mod arena;
mod batch;
mod cost;
// Only programs built for a GPU read it.
#[cfg_attr(not(feature = "gpu"), allow(dead_code, unused_imports))]
pub(crate) mod device;
mod lower;
mod lowering;
mod ops;
mod plan;
mod program;
mod run;
mod scope;
mod steps;
mod window;

pub(crate) use arena::Workspaces;
pub(crate) use lower::{known, lower};
pub(crate) use lowering::{Form, Want};
pub(crate) use program::Program;
pub(crate) use scope::{constant, is_constant};
pub use steps::{Kernel, Spent};
