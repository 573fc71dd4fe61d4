//! The formats of data: one list of them, and what each gives.

use super::{InputSpec, Reading, idx, images, numpy, onnx_dir, text};
use compress_compiler::{
    error::{Error, Result},
    tensor::Tensor,
    words::any_of,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// The formats, in the order in which they are tried: a folder of ONNX tests may lie among pictures.
const FORMATS: &[Format] = &[numpy::FORMAT, text::FORMAT, onnx_dir::FORMAT, idx::FORMAT, images::FORMAT];

/// A format of data.
pub(super) struct Format {
    /// What a user can give, after "data can be".
    pub(super) means: &'static str,
    pub(super) open: fn(&Path, &Asked) -> Result<Recognized>,
}

/// The set at a path; `None` when it is of another format.
pub(super) type Recognized = Option<Box<dyn SampleSource>>;

/// What a set is opened for, and what stands at its path.
pub(super) struct Asked<'a> {
    pub(super) inputs: &'a [InputSpec],
    pub(super) reading: &'a Reading,
    pub(super) place: PathKind,
}

/// What stands at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PathKind {
    File,
    Folder,
    /// Nothing: the path may be what the names of several files start with.
    Nothing,
}

/// Where the samples of a set come from. Rows that are asked for exist, and one at least.
pub(super) trait SampleSource: Send + Sync {
    /// The number of samples, 1 at least.
    fn len(&self) -> usize;

    /// Whether a batch may have several samples: all inputs have a first axis that counts them.
    fn stacks(&self) -> bool;

    /// Whether samples are files of pictures, which have to be decoded.
    fn are_pictures(&self) -> bool {
        false
    }

    /// The samples of `rows` for these inputs, one tensor each; a single sample where they don't stack.
    ///
    /// # Errors
    /// Data when a sample is broken; limit when the batch is too large; file when a file can't be read any more.
    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>>;

    /// The files that it is made of.
    fn files(&self) -> Vec<PathBuf>;

    /// The SHA-256 of a set that is not made of files.
    fn digest(&self) -> Option<&str> {
        None
    }

    /// Whether every sample has a class.
    fn is_labelled(&self) -> bool {
        false
    }

    /// The classes of the samples of `rows`, if they have any.
    ///
    /// # Errors
    /// Data when a label is too large; file when the file can't be read any more.
    fn labels(&self, _rows: &[usize]) -> Result<Option<Vec<i64>>> {
        Ok(None)
    }

    /// How many classes have names that say nothing of their numbers.
    fn named_classes(&self) -> Option<usize> {
        None
    }

    /// The file that is the sample of `row` and no other.
    fn file(&self, _row: usize) -> Option<PathBuf> {
        None
    }

    /// What the set holds besides, which nothing reads, by name.
    fn unread(&self) -> &[String] {
        &[]
    }

    /// Where the set really is, if that is not where it was asked for.
    fn found_at(&self) -> Option<PathBuf> {
        None
    }
}

/// What data can be, in words.
pub fn formats() -> String {
    any_of(&FORMATS.iter().map(|f| f.means).collect::<Vec<_>>())
}

/// Opens the set at `path`.
pub(super) fn open(path: &Path, inputs: &[InputSpec], reading: &Reading) -> Result<Box<dyn SampleSource>> {
    let place = match path.metadata() {
        Ok(meta) if meta.is_dir() => PathKind::Folder,
        Ok(_) => PathKind::File,
        Err(e) if e.kind() == io::ErrorKind::NotFound => PathKind::Nothing,
        Err(e) => return Err(Error::file(format!("cannot be read: {e}"))),
    };
    let asked = Asked { inputs, reading, place };
    for format in FORMATS {
        if let Some(source) = (format.open)(path, &asked)? {
            return Ok(source);
        }
    }
    let found = match place {
        PathKind::Nothing => Error::file("no such file or folder"),
        PathKind::Folder => Error::data("the folder has no data of a known format"),
        PathKind::File => Error::data("the file is of no known format"),
    };
    Err(found.help(format!("data can be {}", formats())))
}

/// The error for a file that holds one sample of a set.
pub(super) fn single() -> Error {
    Error::data("it is a single sample").help("name the folder that it is in")
}
