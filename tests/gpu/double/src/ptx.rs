//! The text of a module, as NVRTC writes it: [PTX ISA 9](https://docs.nvidia.com/cuda/parallel-thread-execution/), with
//! the code of a function wherever it is called.

mod call;
mod operand;
mod parse;
mod token;
mod types;

pub use operand::{Base, Operand, Special};
pub use parse::parse;
pub use types::Type;

use std::collections::HashMap;

/// A module: its kernels, and the variables that they share.
#[derive(Debug, Default)]
pub struct Module {
    /// The kernels by name.
    pub entries: HashMap<String, Entry>,
    /// The bytes of `.global` and `.const` variables. They keep their place: code has their addresses.
    pub variables: Vec<Box<[u64]>>,
}

/// A kernel.
#[derive(Debug, Default)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Where each parameter is among the bytes of all, and how long it is.
    pub params: Vec<(usize, usize)>,
    /// Virtual registers of a thread.
    pub registers: usize,
    /// Bytes of shared memory that it declares; those that a launch adds come behind them.
    pub shared: usize,
    /// Bytes of local memory of a thread.
    pub local: usize,
    /// The code.
    pub code: Vec<Instruction>,
}

impl Entry {
    /// Bytes of all parameters.
    pub fn param_bytes(&self) -> usize {
        self.params.last().map_or(0, |(at, n)| at + n)
    }
}

/// `@%p add.rn.f32 %f1, %f2, %f3;`
#[derive(Debug)]
pub struct Instruction {
    /// The predicate that it runs under, and whether that is negated.
    pub guard: Option<(usize, bool)>,
    /// The first word: `add`.
    pub opcode: String,
    /// The others: `rn`, `f32`.
    pub modifiers: Vec<String>,
    /// What it reads and writes.
    pub operands: Vec<Operand>,
    /// All of it, for messages.
    pub text: String,
}
