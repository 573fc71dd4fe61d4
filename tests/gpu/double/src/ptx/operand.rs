//! What an instruction reads and writes.

/// A register, a number, a place in memory.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// A register by its number.
    Register(usize),
    /// A predicate whose negation is read.
    Not(usize),
    /// The bits of a number; of an integer 64, with its sign.
    Immediate(u64),
    /// A register that the machine fills.
    Special(Special),
    /// `[base + offset]`.
    Address(Base, i64),
    /// The address of a variable.
    Symbol(Base),
    /// `{a, b}`.
    Vector(Vec<Operand>),
    /// `p|q`: two destinations.
    Pair(Box<Operand>, Box<Operand>),
    /// A place in the code.
    Label(usize),
    /// Places in the code, to choose from.
    Labels(Vec<usize>),
    /// `_`: the value is not wanted.
    Discard,
}

/// Where an address starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// At what a register holds.
    Register(usize),
    /// At a byte of shared memory.
    Shared(u64),
    /// At a byte of the thread's local memory.
    Local(u64),
    /// At a byte of the parameters.
    Param(u64),
    /// At an address of global or constant memory.
    Absolute(u64),
}

impl Base {
    /// The place so many bytes on.
    pub fn moved(self, by: u64) -> Self {
        match self {
            Self::Register(_) => self,
            Self::Shared(at) => Self::Shared(at.wrapping_add(by)),
            Self::Local(at) => Self::Local(at.wrapping_add(by)),
            Self::Param(at) => Self::Param(at.wrapping_add(by)),
            Self::Absolute(at) => Self::Absolute(at.wrapping_add(by)),
        }
    }
}

/// A register that the machine fills. Axes are 0, 1, 2 for x, y, z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of PTX")]
pub enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Laneid,
    Warpid,
    LanemaskLt,
    LanemaskLe,
    LanemaskEq,
    LanemaskGe,
    LanemaskGt,
    Clock,
    DynamicSmemSize,
    TotalSmemSize,
}

impl Special {
    /// The register of this name, without its `%`.
    pub fn of(name: &str) -> Option<Self> {
        let (name, axis) = match name.rsplit_once('.') {
            Some((name, "x")) => (name, 0),
            Some((name, "y")) => (name, 1),
            Some((name, "z")) => (name, 2),
            _ => (name, 3),
        };
        Some(match (name, axis) {
            ("tid", 0..=2) => Self::Tid(axis),
            ("ntid", 0..=2) => Self::Ntid(axis),
            ("ctaid", 0..=2) => Self::Ctaid(axis),
            ("nctaid", 0..=2) => Self::Nctaid(axis),
            ("laneid", _) => Self::Laneid,
            ("warpid", _) => Self::Warpid,
            ("lanemask_lt", _) => Self::LanemaskLt,
            ("lanemask_le", _) => Self::LanemaskLe,
            ("lanemask_eq", _) => Self::LanemaskEq,
            ("lanemask_ge", _) => Self::LanemaskGe,
            ("lanemask_gt", _) => Self::LanemaskGt,
            ("clock" | "clock64" | "globaltimer", _) => Self::Clock,
            ("dynamic_smem_size", _) => Self::DynamicSmemSize,
            ("total_smem_size", _) => Self::TotalSmemSize,
            _ => return None,
        })
    }
}
