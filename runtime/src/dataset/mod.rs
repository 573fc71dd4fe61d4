//! The data that a model is calibrated, trained and measured on.
//!
//! Sets stay where they are: files are kept open and a batch reads just what it is made of, so
//! memory does not grow with the set. Compressed files are unpacked once, to a temporary file
//! that has no name and goes with the process.

mod array;
mod encoded;
mod given;
mod idx;
mod images;
mod leaves;
mod numpy;
mod onnx_dir;
mod preprocess;
mod source;
mod synthetic;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod text;
mod tokens;
mod values;

pub use encoded::Encoder;
pub use given::{Given, GivenItem};
pub use preprocess::Preprocess;
pub use source::formats;
pub use synthetic::{hold_out, sample};
pub use text::{TEXT, USUAL_TOKENS, is_text};

use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
    value::Dim,
};
use sha2::{Digest, Sha256};
use source::SampleSource;
use std::{
    fmt::Write,
    io::{self, Read},
    path::{Path, PathBuf},
};
use synthetic::Synthetic;

/// How data becomes inputs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// What is done to pictures and arrays.
    pub preprocess: Option<Preprocess>,
    /// The tokenizer of text: a `tokenizer.json`.
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text, where the model leaves that open.
    pub tokens: Option<usize>,
}

impl From<Preprocess> for Reading {
    fn from(preprocess: Preprocess) -> Self {
        Self { preprocess: Some(preprocess), ..Self::default() }
    }
}

/// What the model wants of one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputSpec {
    /// Its name in the graph.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its axes. The first counts the samples, unless it is named and that name is found elsewhere too.
    pub shape: Vec<Dim>,
    /// What integers are made up of it, where there is no data.
    pub whole: MadeUpIntegers,
}

/// What made-up integers are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MadeUpIntegers {
    /// Zeros, which every model takes.
    #[default]
    Zeros,
    /// Ones: a mask that leaves everything.
    Ones,
    /// Drawn from 0 to below this: numbers of words.
    Below(i64),
}

impl InputSpec {
    /// An input called `name`; integers of it are zeros.
    pub fn new(name: impl Into<String>, dtype: DType, shape: Vec<Dim>) -> Self {
        Self { name: name.into(), dtype, shape, whole: MadeUpIntegers::Zeros }
    }

    /// The axes, `None` where any size will do.
    fn sizes(&self) -> Vec<Option<usize>> {
        self.shape.iter().map(size).collect()
    }
}

/// The size of an axis that has but one.
fn size(axis: &Dim) -> Option<usize> {
    axis.known().and_then(|n| usize::try_from(n).ok())
}

/// Some samples of a set, ready for the model.
#[derive(Debug, Clone)]
pub struct Batch {
    /// In the order of the specs. The first axis counts the samples; where the set does not
    /// [stack](Dataset::stacks) there is no such axis, and a single sample.
    pub inputs: Vec<Tensor>,
    /// The class of each sample, when the set has labels.
    pub labels: Option<Vec<i64>>,
    /// The number of samples.
    pub len: usize,
}

enum Samples {
    Given(Box<dyn SampleSource>),
    MadeUp(Synthetic),
}

/// A set of samples that fit a model, read at random.
pub struct Dataset {
    inputs: Vec<InputSpec>,
    samples: Samples,
    path: PathBuf,
}

impl Dataset {
    /// Opens the set at `path`, whatever its kind, for a model with these inputs.
    ///
    /// # Errors
    /// File when something cannot be read; data when it is broken or does not fit the model;
    /// usage when the preprocessing makes no sense for the model.
    pub fn open(path: &Path, inputs: &[InputSpec], reading: &Reading) -> Result<Self> {
        can_feed(inputs, reading.preprocess.as_ref())?;
        let source = source::open(path, inputs, reading).map_err(|e| e.in_file(path))?;
        let path = source.found_at().unwrap_or_else(|| path.to_owned());
        Ok(Self { inputs: inputs.to_vec(), samples: Samples::Given(source), path })
    }

    /// The set that a program gives, for a model with these inputs.
    ///
    /// # Errors
    /// Data when it does not fit the model; usage when the preprocessing makes no sense for the model.
    pub fn given(data: &Given, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Self> {
        can_feed(inputs, preprocess)?;
        let place = PathBuf::from(given::PLACE);
        let source = data.columns(inputs, preprocess).map_err(|e| e.in_file(&place))?;
        Ok(Self { inputs: inputs.to_vec(), samples: Samples::Given(Box::new(source)), path: place })
    }

    /// `samples` made-up samples, or a batch where the model takes no fewer: pictures of dead leaves for inputs that have
    /// the shape of one, standard normal floats for others, integers as [`InputSpec::whole`] says, and zeros for every
    /// other type.
    ///
    /// Axes of the same name get the same size: that of the batch where the name stands for it, else 1. What an
    /// input holds of a sample depends on `seed` and the sample's index alone; an input in which the samples are
    /// not counted by the first axis, and by no other, is made for the batch as a whole.
    ///
    /// # Errors
    /// Data when no sample is asked for; limit when one is too large; unsupported for text.
    pub fn synthetic(inputs: &[InputSpec], samples: usize, seed: u64) -> Result<Self> {
        if samples == 0 || inputs.is_empty() {
            return Err(Error::data("a made-up set needs a sample and an input at least"));
        }
        let samples = Samples::MadeUp(Synthetic::new(inputs, samples, seed, true)?);
        Ok(Self { inputs: inputs.to_vec(), samples, path: PathBuf::new() })
    }

    /// A [made-up](Self::synthetic) set without pictures.
    ///
    /// # Errors
    /// As [`Self::synthetic`].
    pub fn noise(inputs: &[InputSpec], samples: usize, seed: u64) -> Result<Self> {
        let made = Self::synthetic(inputs, samples, seed)?;
        let samples = Samples::MadeUp(Synthetic::new(inputs, samples, seed, false)?);
        Ok(Self { samples, ..made })
    }

    /// Whether samples are files of pictures, which have to be decoded.
    pub fn are_pictures(&self) -> bool {
        matches!(&self.samples, Samples::Given(source) if source.are_pictures())
    }

    /// Whether samples are made of text.
    pub fn is_text(&self) -> bool {
        matches!(&self.samples, Samples::Given(source) if source.files().first().is_some_and(|path| is_text(path)))
    }

    /// Whether it is made up, and has pictures.
    pub fn has_made_up_pictures(&self) -> bool {
        matches!(&self.samples, Samples::MadeUp(made) if made.has_pictures())
    }

    /// A [made-up](Self::synthetic) set with `change` made to its inputs, all of them: they are given and come back in
    /// batches, and are kept in memory. `None` for what was not made up, or has inputs in which the first axis does not
    /// count the samples.
    ///
    /// # Errors
    /// Those of `change`; malformed when it changes a shape; limit when the inputs are too large.
    pub fn changed(
        &self,
        batch: usize,
        change: impl FnOnce(Vec<Vec<Tensor>>) -> Result<Vec<Vec<Tensor>>>,
    ) -> Result<Option<Self>> {
        let Samples::MadeUp(noise) = &self.samples else { return Ok(None) };
        if !noise.apart() {
            return Ok(None);
        }
        let rows: Vec<usize> = (0..noise.len()).collect();
        let batches = rows.chunks(batch.max(1)).map(|rows| noise.inputs(&self.inputs, rows)).collect::<Result<_>>()?;
        let samples = Samples::MadeUp(noise.holding(&change(batches)?)?);
        Ok(Some(Self { inputs: self.inputs.clone(), samples, path: PathBuf::new() }))
    }

    /// What the model wants of each input.
    pub fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    fn source(&self) -> &dyn SampleSource {
        match &self.samples {
            Samples::Given(source) => &**source,
            Samples::MadeUp(made) => made,
        }
    }

    /// The number of samples.
    pub fn len(&self) -> usize {
        self.source().len()
    }

    /// Whether there is no sample, which no set that opens can be.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of what the set holds besides, such as arrays that feed no input.
    pub fn unread(&self) -> &[String] {
        self.source().unread()
    }

    /// Whether every sample has a class.
    pub fn is_labelled(&self) -> bool {
        self.source().is_labelled()
    }

    /// How many classes the samples are labelled with by names alone, that is folders that aren't called numbers.
    pub fn named_classes(&self) -> Option<usize> {
        self.source().named_classes()
    }

    /// Whether a batch may have several samples.
    ///
    /// For data that is given, that takes a first axis shared by all inputs. A model with a scalar input, or with a
    /// recurrent state that has the batch elsewhere, is fed one sample at a time.
    pub fn stacks(&self) -> bool {
        self.source().stacks()
    }

    /// How many samples the model takes at once, unless any number will do.
    pub fn fixed_batch(&self) -> Option<usize> {
        match &self.samples {
            _ if !self.stacks() => Some(1),
            Samples::MadeUp(synthetic) => synthetic.fixed,
            Samples::Given(_) => values::fixed_front(&self.inputs),
        }
    }

    /// The classes of the samples at `indices`, which there must be, in that order, if they have any.
    ///
    /// # Errors
    /// Data when a label is too large; file when the file cannot be read any more.
    pub fn labels(&self, indices: &[usize]) -> Result<Option<Vec<i64>>> {
        self.source().labels(indices)
    }

    /// Where a user finds the sample at `index`, which there must be.
    pub fn place(&self, index: usize) -> String {
        match self.source().file(index) {
            Some(file) => file.display().to_string(),
            None => format!("sample {index} (from 0) of {}", self.path.display()),
        }
    }

    /// The samples at `indices`, in that order.
    ///
    /// # Errors
    /// Data when a sample is broken or holds a NaN, or when samples don't stack; limit when the
    /// batch is too large; file when a file cannot be read any more; bug for an index that is
    /// out of range, or none.
    pub fn batch(&self, indices: &[usize]) -> Result<Batch> {
        let len = self.len();
        if let Some(index) = indices.iter().find(|index| **index >= len) {
            return Err(Error::bug(format!("sample {index} was asked for, of {len}")));
        }
        if indices.is_empty() {
            return Err(Error::bug("a batch without samples was asked for"));
        }
        if indices.len() > 1 && !self.stacks() {
            return Err(Error::data(
                "these samples cannot share a batch: not all the inputs have a \
                first axis that counts samples",
            )
            .help("use a batch of 1")
            .in_file(&self.path));
        }
        let inputs = self.source().inputs(&self.inputs, indices)?;
        Ok(Batch { inputs, labels: self.labels(indices)?, len: indices.len() })
    }

    /// The SHA-256 of what the set is made of, or `synthetic:SEED`, or `synthetic:SEED:matched` of one that was
    /// [changed](Self::changed).
    ///
    /// One file gives its own hash. Several give that of the lines which `sha256sum` prints for
    /// them, sorted by name, so that names (and with them the classes) count as well.
    ///
    /// # Errors
    /// File when something cannot be read.
    pub fn digest(&self) -> Result<String> {
        if let Samples::MadeUp(made) = &self.samples {
            let matched = if made.is_made() { ":matched" } else { "" };
            return Ok(format!("synthetic:{}{matched}", made.seed));
        }
        if let Some(digest) = self.source().digest() {
            return Ok(digest.into());
        }
        let mut files = self.source().files();
        if let [file] = &files[..] {
            return hash_file(file);
        }
        files.sort();
        let root = if self.path.is_dir() { Some(&*self.path) } else { self.path.parent() };
        let mut all = Sha256::new();
        for file in &files {
            let name = root.and_then(|root| file.strip_prefix(root).ok()).unwrap_or(file);
            all.update(hash_file(file)?);
            all.update("  ");
            all.update(name.as_os_str().as_encoded_bytes());
            all.update("\n");
        }
        Ok(hex(all))
    }

    /// A line for people, such as `60000 labelled samples from train-images-idx3-ubyte.gz`.
    pub fn describe(&self) -> String {
        let samples = match self.len() {
            1 => "sample",
            _ => "samples",
        };
        if let Samples::MadeUp(made) = &self.samples {
            return format!("{} synthetic {samples} (seed {})", made.len(), made.seed);
        }
        let labelled = if self.is_labelled() { "labelled " } else { "" };
        // A path such as `.` has no last part.
        let name = self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy();
        format!("{} {labelled}{samples} from {name}", self.len())
    }
}

/// # Errors
/// Data when there is nothing to feed; usage when the preprocessing makes no sense for these inputs.
fn can_feed(inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<()> {
    if inputs.is_empty() {
        return Err(Error::data("the model has no inputs to feed"));
    }
    match preprocess {
        Some(p) if p.has_arithmetic() && !inputs.iter().any(|spec| spec.dtype.is_float()) => Err(Error::usage(
            format!("the preprocessing `{p}` makes fractions, but the model takes whole numbers only"),
        )
        .help("leave out scale, mean and std")),
        _ => Ok(()),
    }
}

fn hash_file(path: &Path) -> Result<String> {
    let mut file = array::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex(hash)),
            Ok(n) => hash.update(&buffer[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::file(format!("cannot be read: {e}")).in_file(path)),
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
