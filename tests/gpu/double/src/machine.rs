//! The machine that kernels run on: blocks of threads, in warps of 32 lanes.

mod block;
mod fault;
mod launch;
mod memory;
mod shadow;
mod warp;

pub use fault::{Fault, Kind};
pub use launch::{Counts, Launch};
pub use memory::{Access, LOCAL, Place, Ranges, SHARED, Space};
pub use warp::{Copying, Lanes, Value, bits};

use std::ops::Deref;

/// Lanes of a warp.
pub const WARP: usize = 32;

/// What a kernel's instruction does to the lanes that it runs for.
pub type Step = Box<dyn Fn(&mut Lanes<'_>) -> Result<(), Fault> + Send + Sync>;

/// What an instruction does.
pub enum Action {
    /// Every lane does something for itself.
    Lanes(Step),
    /// The lanes go elsewhere.
    Branch(usize),
    /// Each lane goes to one of the places, by the value.
    Choose(Value, Vec<usize>),
    /// The threads end.
    Exit,
    /// The lanes wait for threads of the block.
    Barrier(Barrier),
    /// Lanes of a warp do something together, when all that take part are there.
    Together(Members, Step),
}

/// Which lanes take part in what a warp does.
#[derive(Debug, Clone, Copy)]
pub enum Members {
    /// All of the warp, as `.aligned` says.
    All,
    /// Those of a mask.
    Mask(Value),
    /// Those that are there.
    Present,
}

/// `bar.sync`, `bar.red` and their like.
pub struct Barrier {
    /// Its number.
    pub id: Value,
    /// How many threads take part, where that is said.
    pub threads: Option<Value>,
    /// Whether all lanes of a warp have to come to the same instruction.
    pub aligned: bool,
    /// What is made of a predicate of all threads.
    pub reduce: Option<Reduce>,
}

/// A reduction over the threads of a barrier.
pub struct Reduce {
    /// Where the result goes.
    pub to: Value,
    /// The predicate.
    pub of: Value,
    /// From how many threads hold it true and how many there are.
    pub by: fn(usize, usize) -> u64,
}

/// An instruction, ready to run.
pub struct Code {
    /// The predicate that it runs under, and whether that is negated.
    pub guard: Option<(usize, bool)>,
    /// What it does.
    pub action: Action,
    /// Its text, for messages.
    pub text: String,
    /// Whether it runs on tensor cores.
    pub tensor: bool,
}

/// A kernel, ready to run.
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Where each parameter is among the bytes of all, and how long it is.
    pub params: Vec<(usize, usize)>,
    /// Virtual registers of a thread.
    pub registers: usize,
    /// Bytes of shared memory that it declares.
    pub shared: usize,
    /// Bytes of local memory of a thread.
    pub local: usize,
    /// The code.
    pub code: Vec<Code>,
}

/// The instructions of a kernel.
impl Deref for Kernel {
    type Target = [Code];

    fn deref(&self) -> &[Code] {
        &self.code
    }
}
