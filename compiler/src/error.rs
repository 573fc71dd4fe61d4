//! The one error type of the project: what went wrong, where, and the way out.

use std::{fmt, path::PathBuf};

/// What kind of failure this is. The kind fixes the exit code of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Our own defect: exit 1.
    Bug = 1,
    /// The command line contradicts itself: exit 2.
    Usage = 2,
    /// The model breaks the ONNX specification: exit 3.
    Malformed = 3,
    /// A size or count beyond what we accept: exit 4.
    Limit = 4,
    /// Valid, but not something this version can do: exit 5.
    Unsupported = 5,
    /// A file is missing, unreadable, unwritable or in the way: exit 6.
    File = 6,
    /// The data set does not fit the model, or is itself broken: exit 7.
    Data = 7,
    /// The device asked for is not there: exit 8.
    Device = 8,
    /// A gate failed: exit 9.
    Gate = 9,
    /// Stopped by the user: exit 130.
    Interrupted = 130,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Kind::Bug => "internal error",
            Kind::Usage => "usage",
            Kind::Malformed => "malformed model",
            Kind::Limit => "limit exceeded",
            Kind::Unsupported => "unsupported",
            Kind::File => "file",
            Kind::Data => "data",
            Kind::Device => "device",
            Kind::Gate => "gate failed",
            Kind::Interrupted => "interrupted",
        })
    }
}

/// An error that names the file, the node, what was expected, and what to do.
#[derive(Debug, Clone)]
pub struct Error(Box<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    kind: Kind,
    message: String,
    file: Option<PathBuf>,
    node: Option<String>,
    help: Option<String>,
}

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {$(
        #[doc = concat!("A [`Kind::", stringify!($kind), "`] error.")]
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(Kind::$kind, message)
        }
    )*};
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), file: None, node: None, help: None }))
    }

    constructors! {
        bug => Bug, usage => Usage, malformed => Malformed, limit => Limit,
        unsupported => Unsupported, file => File, data => Data, device => Device,
        gate => Gate,
    }

    /// The user asked to stop.
    pub fn interrupted() -> Self {
        Self::new(Kind::Interrupted, "stopped before the end; no unfinished file is left")
    }

    /// Names the file, unless an inner error already did.
    pub fn in_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.0.file.get_or_insert_with(|| file.into());
        self
    }

    /// Names the node, unless an inner error already did.
    pub fn at(mut self, node: impl Into<String>) -> Self {
        self.0.node.get_or_insert_with(|| node.into());
        self
    }

    /// Says first what the message is about.
    pub fn about(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{what}: {}", self.0.message);
        self
    }

    /// Says what the user can do about it.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help.get_or_insert_with(|| help.into());
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The message alone, without file, node and advice.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The exit code of the command for this error.
    pub fn exit_code(&self) -> u8 {
        self.0.kind as u8
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let e = &self.0;
        if let Some(file) = &e.file {
            write!(f, "{}: ", file.display())?;
        }
        if let Some(node) = &e.node {
            write!(f, "node {node}: ")?;
        }
        f.write_str(&e.message)?;
        if let Some(help) = &e.help {
            write!(f, "\n  help: {help}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}
