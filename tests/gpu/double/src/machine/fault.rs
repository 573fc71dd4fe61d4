//! What goes wrong in a kernel.

use std::fmt;

/// The error that a launch reports, by the number that CUDA has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Memory that isn't there.
    Address = 700,
    /// A kernel that doesn't end.
    Timeout = 702,
    /// An instruction that the double doesn't have.
    Instruction = 715,
    /// An address that isn't a multiple of what is read or written.
    Misaligned = 716,
    /// Anything else: a race, lanes that wait for each other, memory that was never written.
    Failed = 719,
}

/// What went wrong, where.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Its kind.
    pub kind: Kind,
    /// The lane of the warp that it happened to, if one.
    pub lane: Option<usize>,
    /// What happened.
    pub what: String,
}

impl Fault {
    /// One that happened to a lane.
    pub fn new(kind: Kind, lane: usize, what: impl Into<String>) -> Self {
        Self { kind, lane: Some(lane), what: what.into() }
    }

    /// One that happened to a warp.
    pub fn of_warp(what: impl Into<String>) -> Self {
        Self { kind: Kind::Failed, lane: None, what: what.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
