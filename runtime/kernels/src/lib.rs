//! The loops of CPU inference: convolutions, products, pools and what lies between them, on 8-bit
//! integers and on floats, for each instruction set. The loops of training are in [`train`]; what
//! follows is not about them.
//!
//! # The form of data
//! Every activation is [`Rows`]: elements in order, one row a pixel, a row as wide as there are
//! channels (NHWC). Rows may lie further apart than they are wide, so that a layer can read or
//! write some of the channels of a wider value.
//!
//! # Safety
//! [`Rows`] proves its extents when it is made, and [`Window`] says which pixels are touched. A
//! kernel is reached through one safe function, which asserts that its operands fit each other
//! before it enters an instruction set's loop. Those loops read and write nothing outside of
//! their operands, not even to throw it away: the tests run them on memory that ends at a page
//! which must not be touched.
//!
//! # Threads
//! A kernel divides its work into as many parts as its argument `threads` says. They run at the
//! same time while a [`Team`] is assembled, one after the other otherwise; results are the same.
//!
//! # Instruction sets
//! [`Isa::detect`] finds the best that the machine has. `isa/` has one file for each: the tiles of
//! a matrix product and what else needs intrinsics. Simple loops are plain Rust, compiled once
//! for each set.

#![warn(missing_docs)]
#![deny(unsafe_op_in_unsafe_fn)]

mod attention;
mod broadcast;
mod coded;
mod coded4;
mod conv;
mod depthwise;
mod dynamic;
mod elementwise;
mod finish;
mod gemv;
pub mod isa;
mod layout;
mod math;
mod multiversion;
mod parallel;
mod pool;
mod quant;
mod recurrent;
mod reduce;
mod resample;
mod rows;
mod spread;
mod table;
mod team;
#[cfg(test)]
mod testing;
mod tile;
pub mod train;
mod window;
mod zip;

pub use attention::{Attention, Head, Heads, MASKS, Mask};
pub use coded::{Bits, Coded, CodedF};
pub use coded4::Coded4;
pub use conv::{Conv8, ConvF, GemmF, SparseF};
pub use depthwise::{Depthwise8, DepthwiseF};
pub use dynamic::{CodeMatrix, CodeRows, Dynamic8, End, own_range};
pub use elementwise::{BinaryOp, UnaryOp, binary, layer_norm, log_softmax, rms_norm, rotate, softmax, unary};
pub use finish::Finish8;
pub use gemv::{GemvF, Raw};
pub use isa::Isa;
pub use layout::{Columns, Element, PADDING, copy, permute, pick, quantize_transpose, transpose};
pub use pool::{
    Divisor, Pooled, Rescale, average_pool, average_pool8, global_average, global_average8, global_mean8, max_pool,
};
pub use quant::{Add8, Mul8, dequantize, lookup, quantize, xor_sign};
pub use recurrent::{Recurrence, Recurrent, StateWeights};
pub use reduce::{ReduceOp, reduce};
pub use resample::{Mix, Resample};
pub use rows::{Rows, RowsMut};
pub use spread::Spread;
pub use table::{Pairs, Table, look_up, look_up_codes, take};
pub use team::{Helped, Team, traced};
pub use window::Window;
pub use zip::{Broadcast, zip};
