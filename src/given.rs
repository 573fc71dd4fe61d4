//! What a job is given by name (a path, a command), or by the program that runs it as a thing of its own (arrays, a
//! function). A recipe in a file has names only.

use crate::model::Model;
use compress_compiler::{
    error::{Error, Result},
    serde_as_text,
};
use compress_runtime::dataset::{Dataset, Given, InputSpec, Reading};
use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// How reports and saved recipes name what a program gave. A job can't be repeated from that alone.
pub(crate) const GIVEN: &str = "(given by the program)";

/// Where data is.
#[derive(Debug, Clone)]
pub enum DataSource {
    /// In a file or a folder.
    Path(PathBuf),
    /// In the memory of the program that runs the job.
    Given(Arc<Given>),
}

impl DataSource {
    /// The set, for a model with these inputs.
    ///
    /// # Errors
    /// As for [`Dataset::open`].
    pub(crate) fn open(&self, inputs: &[InputSpec], reading: &Reading) -> Result<Dataset> {
        match self {
            Self::Path(path) => Dataset::open(path, inputs, reading),
            Self::Given(data) => Dataset::given(data, inputs, reading.preprocess.as_ref()),
        }
    }

    /// Where it is on disk, if it is there.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Given(_) => None,
        }
    }
}

impl Default for DataSource {
    fn default() -> Self {
        Self::Path(PathBuf::new())
    }
}

impl PartialEq for DataSource {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Path(a), Self::Path(b)) => a == b,
            (Self::Given(a), Self::Given(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl From<OsString> for DataSource {
    fn from(path: OsString) -> Self {
        Self::Path(path.into())
    }
}

impl From<PathBuf> for DataSource {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

impl From<String> for DataSource {
    fn from(path: String) -> Self {
        Self::Path(path.into())
    }
}

impl serde::Serialize for DataSource {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Path(path) => path.serialize(to),
            Self::Given(_) => to.serialize_str(GIVEN),
        }
    }
}

impl<'de> serde::Deserialize<'de> for DataSource {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let path = PathBuf::deserialize(from)?;
        if path == Path::new(GIVEN) {
            return Err(serde::de::Error::custom(
                "the data was given by the program that ran the job: name a file or folder",
            ));
        }
        Ok(Self::Path(path))
    }
}

/// Says how good a model is: a function of the program that runs a job. A higher score is better.
pub trait Evaluate: Send + Sync {
    /// The score of `model`.
    ///
    /// # Errors
    /// Those of running the model, and its own; a job ends with them.
    fn evaluate(&self, model: &Model) -> Result<f64>;
}

/// What scores models in the user's own way.
#[derive(Clone)]
pub enum Scorer {
    /// A command, which is given the answers of both models.
    Command(String),
    /// A function, which runs one model after the other itself.
    Given(Arc<dyn Evaluate>),
}

impl Scorer {
    /// The score of a model, where it is a function that tells it.
    ///
    /// # Errors
    /// Those of the function; data for a score that is not a number.
    pub(crate) fn evaluated(&self, model: &Model) -> Result<Option<f64>> {
        let Self::Given(function) = self else { return Ok(None) };
        let score = function.evaluate(model)?;
        match score.is_finite() {
            true => Ok(Some(score)),
            false => Err(Error::data(format!("the function that scores models gave {score}"))),
        }
    }
}

impl fmt::Debug for Scorer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Scorer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Command(command) => f.write_str(command),
            Self::Given(_) => f.write_str(GIVEN),
        }
    }
}

impl PartialEq for Scorer {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Command(a), Self::Command(b)) => a == b,
            (Self::Given(a), Self::Given(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl FromStr for Scorer {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            GIVEN => Err("the function was given by the program that ran the job: name a command".into()),
            command => Ok(Self::Command(command.into())),
        }
    }
}

serde_as_text!(Scorer);
