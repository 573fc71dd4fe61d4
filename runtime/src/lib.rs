//! What runs models.
//!
//! # Two executors
//! [`session::Session`] makes a graph ready to run. On the CPU, what [`cpu`] knows runs there: it
//! has its own kernels for convolutions, products and what lies between them, on floats and on
//! the 8-bit codes of quantised models, planned once and several times faster. All else, and all
//! on other devices, runs on Burn. On GPUs `gpu` has kernels for products and for codes.
//!
//! [`burn::Executable`] runs any graph whose operators have kernels, node after node, on Burn's
//! backend primitives. They don't carry a rank in their type, so one interpreter serves every
//! graph, on the CPU (burn-flex, always there) and on CUDA (the cargo feature `cuda`), and the
//! device is chosen when the program runs ([`device`]). The kernels are pure functions of their
//! inputs, so the same ones can run under Burn's autodiff.
//!
//! # Where Burn's values live
//! - **Floats** live on the device, `f64` as itself and all others as `f32`: narrower types are
//!   computed in `f32` and rounded when they leave.
//! - **Quantised activations** (8 or 16 bits between QuantizeLinear and DequantizeLinear) live
//!   there too, also as `f32`, which holds them exactly. The arithmetic around them is that of
//!   the ONNX specification; it gives the right values, not the speed of integer kernels. What
//!   `gpu` makes lies there as bytes.
//! - **Other integers and truth values** live on the host. In models they are shapes, indices and
//!   conditions: little data on which control depends, and a device would only add waiting.
//!
//! # What is done once, what each time
//! [`burn::Executable::new`] sends each constant to the device, dequantises quantised weights,
//! leaves out what no output needs, and finds the last reader of every value. A run then gives
//! each value to its last reader for good: Burn overwrites what nobody else holds, and memory
//! is that of the values still needed.
//!
//! # What models cannot do
//! Shapes are checked before Burn is called, which panics on those that don't fit, and a value
//! of more than 2^31 elements is refused before it is made.
//!
//! # Beside it
//! [`burn::BurnInterpreter`] runs single operators for constant folding. [`metrics`] says how
//! close two models are, [`mod@bench`] how fast.

#![warn(missing_docs)]

pub mod bench;
pub mod burn;
pub mod clock;
pub mod cpu;
pub mod dataset;
pub mod device;
mod gpu;
pub mod memory;
pub mod metrics;
pub mod onnxruntime;
pub mod session;
mod settings;
pub mod speculation;
pub mod train;
