//! Arrays, read a sample at a time from where they lie: in files, or in the memory of a program.

use super::{
    InputSpec, Preprocess,
    source::SampleSource,
    values::{self, Values},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use rayon::prelude::*;
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Deflate cannot pack tighter than about 1032 to 1.
const MAX_RATIO: u64 = 1040;

/// Beyond this, a compressed set would crowd out everything else in the temporary folder.
const MAX_UNPACKED: u64 = 64 << 30;

/// The uncompressed elements of an array.
pub(super) struct Stored {
    pub(super) place: Place,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
}

/// Where the elements of an array lie.
pub(super) enum Place {
    /// Somewhere in an open file, from an offset on.
    File(Arc<File>, u64),
    /// In memory, in parts that follow one another along the first axis, each with the number of its first row.
    Memory(Vec<(usize, Tensor)>),
}

impl Stored {
    /// The number of samples and the shape of one.
    pub(super) fn split(&self) -> Result<(usize, &[usize])> {
        match self.shape.split_first() {
            Some((0, _)) => Err(Error::data("there are no samples in it")),
            Some((rows, sample)) => Ok((*rows, sample)),
            None => Err(Error::data("it is a single number").help(
                "the first axis of every array must count the samples; only what a scalar input takes may be one",
            )),
        }
    }

    fn read(&self, row: usize, out: &mut [u8]) -> io::Result<()> {
        match &self.place {
            Place::File(file, offset) => file.read_exact_at(out, offset + row as u64 * out.len() as u64),
            Place::Memory(parts) => {
                let after = parts.partition_point(|(first, _)| *first <= row);
                let within = after.checked_sub(1).map(|i| &parts[i]).and_then(|(first, part)| {
                    let start = (row - first) * out.len();
                    part.bytes().get(start..start + out.len())
                });
                within.map(|bytes| out.copy_from_slice(bytes)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
        }
    }
}

/// Opens a file for reading, unless that could block or never end.
pub(super) fn open(path: &Path) -> Result<File> {
    let failed = |e: io::Error| Error::file(format!("cannot be read: {e}")).in_file(path);
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(Error::file("is not a regular file").in_file(path));
    }
    File::open(path).map_err(failed)
}

/// The bytes that an array of `shape` takes.
pub(super) fn payload(dtype: DType, shape: &[usize]) -> Result<u64> {
    shape
        .iter()
        .try_fold(dtype.size() as u64, |n, d| n.checked_mul(*d as u64))
        .filter(|n| *n <= i64::MAX as u64)
        .ok_or_else(|| Error::data(format!("the size {shape:?} announced in it is impossible")))
}

/// Unpacks what is left of `reader`, which must be `expected` bytes, to a file without a name.
/// `packed` is the compressed size, which bounds what can honestly be expected.
pub(super) fn unpack(reader: &mut impl Read, expected: u64, packed: u64) -> Result<File> {
    let short = |got: String| {
        Error::data(format!("it announces {expected} bytes of data but has {got}"))
            .help("the file is truncated or damaged; fetch it again")
    };
    if expected / MAX_RATIO > packed {
        return Err(short(format!("only {packed}, compressed")));
    }
    if expected > MAX_UNPACKED {
        return Err(Error::limit(format!("it unpacks to {expected} bytes"))
            .help("store it uncompressed; it is then read in place"));
    }
    let no_room = |e: io::Error| {
        Error::file(format!("cannot be unpacked to the temporary folder: {e}"))
            .help("free some space, or set TMPDIR to a folder that has it")
    };
    let mut file = tempfile::tempfile().map_err(no_room)?;
    let got = io::copy(&mut reader.take(expected), &mut file).map_err(|e| match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => no_room(e),
        _ => damaged(&e),
    })?;
    if got < expected {
        return Err(short(got.to_string()));
    }
    // Reading to the end also makes the decoder verify its checksum.
    match reader.read(&mut [0]) {
        Ok(0) => Ok(file),
        Ok(_) => Err(short("more".to_owned())),
        Err(e) => Err(damaged(&e)),
    }
}

/// The error for bytes that a decoder does not accept.
pub(super) fn damaged(e: &io::Error) -> Error {
    match e.kind() {
        io::ErrorKind::UnexpectedEof => Error::data("it ends too early"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            return Error::file(format!("no space is left to unpack it: {e}"))
                .help("make room, or name another folder for temporary files in TMPDIR");
        }
        _ => Error::data(format!("it cannot be decoded: {e}")),
    }
    .help("the file is truncated or damaged; fetch it again")
}

/// The array that feeds one input.
struct Column {
    /// Whether every sample has the same, a single number.
    repeated: bool,
    /// What the file calls it.
    name: String,
    stored: Stored,
    sample: Vec<usize>,
    values: Values,
}

/// Sets kept as one array for each input, and perhaps one of labels.
pub(super) struct Columns {
    path: PathBuf,
    /// All that it is made of: the file at the path, and that of the labels if it is another.
    files: Vec<PathBuf>,
    columns: Vec<Column>,
    labels: Option<Stored>,
    rows: usize,
    stacked: bool,
    /// The digest of what lies in memory.
    digest: OnceLock<String>,
    /// Names of arrays that feed no input.
    pub(super) unread: Vec<String>,
}

impl Columns {
    /// A set without columns yet, from the file at `path`.
    /// `shapes` are those of the arrays.
    pub(super) fn new(path: &Path, inputs: &[InputSpec], shapes: &[&[usize]]) -> Self {
        let stacked = values::stacks(inputs) && !are_whole(inputs, shapes);
        Self {
            path: path.to_owned(),
            files: vec![path.to_owned()],
            columns: Vec::new(),
            labels: None,
            rows: 0,
            stacked,
            digest: OnceLock::new(),
            unread: vec![],
        }
    }

    /// Whether an array can feed `spec`: the check that needs no data, only the header.
    pub(super) fn fits(&self, spec: &InputSpec, shape: &[usize]) -> Result<()> {
        values::fit(spec, self.stacked, shape.get(1..).unwrap_or_default()).map(drop)
    }

    /// Adds the array for the next input. `picture` is as for [`Values::new`].
    pub(super) fn push(
        &mut self,
        spec: &InputSpec,
        name: &str,
        stored: Stored,
        preprocess: Option<&Preprocess>,
        picture: bool,
    ) -> Result<()> {
        let repeated = spec.shape.is_empty() && stored.shape.is_empty();
        let sample = if repeated {
            vec![]
        } else {
            let (rows, found) = stored.split().map_err(|e| e.about(format_args!("array `{name}`")))?;
            self.same_rows(name, rows)?;
            values::fit(spec, self.stacked, found)?
        };
        let (from, shape) = (stored.dtype, &sample);
        let values = Values::new(spec, self.stacked, from, shape, preprocess, picture)?;
        self.columns.push(Column { repeated, name: name.to_owned(), stored, sample, values });
        Ok(())
    }

    /// Adds the labels, once there is a column.
    pub(super) fn label(&mut self, name: &str, mut stored: Stored) -> Result<()> {
        if stored.dtype.int_range().is_none() {
            return Err(Error::data(format!("the labels `{name}` are {}", stored.dtype))
                .help("labels are class numbers: convert them with y.astype('int64')"));
        }
        let rows = match *stored.shape {
            [rows] | [rows, 1] => rows,
            _ => {
                let shape = &stored.shape;
                return Err(Error::data(format!("the labels `{name}` have the shape {shape:?}"))
                    .help("there must be one class number a sample: the shape [N] or [N, 1]"));
            }
        };
        self.same_rows(name, rows)?;
        stored.shape = vec![rows];
        self.labels = Some(stored);
        Ok(())
    }

    /// Adds the labels that a file of their own holds.
    pub(super) fn label_from(&mut self, path: PathBuf, name: &str, stored: Stored) -> Result<()> {
        self.label(name, stored).map_err(|e| e.in_file(&path))?;
        self.files.push(path);
        Ok(())
    }

    fn same_rows(&mut self, name: &str, rows: usize) -> Result<()> {
        match self.columns.iter().find(|c| !c.repeated) {
            None => self.rows = rows,
            Some(first) if self.rows != rows => {
                return Err(Error::data(format!("`{}` has {} samples but `{name}` has {rows}", first.name, self.rows))
                    .help("every array and the labels must hold the same samples in the same order"));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

impl SampleSource for Columns {
    fn len(&self) -> usize {
        self.rows
    }

    fn stacks(&self) -> bool {
        self.stacked
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }

    fn found_at(&self) -> Option<PathBuf> {
        Some(self.path.clone())
    }

    fn unread(&self) -> &[String] {
        &self.unread
    }

    fn digest(&self) -> Option<&str> {
        let arrays =
            || self.columns.iter().map(|c| (&c.name[..], &c.stored)).chain(self.labels.iter().map(|l| ("", l)));
        if arrays().any(|(_, stored)| matches!(stored.place, Place::File(..))) {
            return None;
        }
        Some(self.digest.get_or_init(|| {
            let mut all = Sha256::new();
            for (name, stored) in arrays() {
                all.update(format!("{name} {} {:?}\n", stored.dtype, stored.shape));
                if let Place::Memory(parts) = &stored.place {
                    parts.iter().for_each(|(_, part)| all.update(part.bytes()));
                }
            }
            super::hex(all)
        }))
    }

    fn is_labelled(&self) -> bool {
        self.labels.is_some()
    }

    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        let one = |(column, spec): (&Column, &InputSpec)| {
            column.read(spec.dtype, rows, self.stacked).map_err(|e| e.in_file(&self.path))
        };
        self.columns.iter().zip(inputs).map(one).collect()
    }

    fn labels(&self, rows: &[usize]) -> Result<Option<Vec<i64>>> {
        let Some(labels) = &self.labels else { return Ok(None) };
        let one = |row: &usize| {
            let mut bytes = [0; 8];
            let bytes = &mut bytes[..labels.dtype.size()];
            labels.read(*row, bytes).map_err(|e| unreadable(&e))?;
            let label = values::read_int(labels.dtype, bytes);
            i64::try_from(label).map_err(|_| Error::data(format!("the label {label} of sample {row} is too large")))
        };
        let labels: Result<_> = rows.iter().map(one).collect();
        labels.map(Some).map_err(|e| e.in_file(&self.path))
    }
}

impl Column {
    fn read(&self, dtype: DType, rows: &[usize], stacked: bool) -> Result<Tensor> {
        let stored_bytes = values::size_of(self.stored.dtype, &self.sample)?;
        let sample_bytes = values::size_of(dtype, &self.sample)?;
        let mut out = values::room(rows.len(), sample_bytes)?;
        // `fit` let no empty sample in, so a chunk is never of size zero.
        out.par_chunks_mut(sample_bytes).zip(rows).try_for_each_init(Vec::new, |buffer, (out, row)| {
            buffer.resize(stored_bytes, 0);
            let row = if self.repeated { 0 } else { *row };
            self.stored.read(row, buffer).map_err(|e| unreadable(&e))?;
            self.values
                .convert(buffer, out)
                .map_err(|e| Error::data(format!("array `{}`, sample {row}: {e}", self.name)))
        })?;
        Tensor::new(dtype, batch_shape(stacked, rows.len(), &self.sample), out)
    }
}

/// Whether arrays of such shapes hold whole inputs, each with an axis in front that counts the samples: for inputs whose
/// first axis is time, say. Samples that each have an axis that counts one are fed as rows of a batch all the same.
fn are_whole(inputs: &[InputSpec], shapes: &[&[usize]]) -> bool {
    let is_whole = |(spec, shape): (&InputSpec, &&[usize])| {
        let fits =
            spec.sizes().iter().zip(shape.iter().skip(1)).all(|(wanted, found)| wanted.is_none_or(|n| n == *found));
        shape.len() == spec.shape.len() + 1 && fits
    };
    let counts_one = |shape: &&[usize]| shape.get(1) == Some(&1);
    shapes.len() >= inputs.len()
        && inputs.iter().zip(shapes).all(is_whole)
        && !shapes[..inputs.len()].iter().all(counts_one)
}

/// The shape of a tensor of `count` samples.
pub(super) fn batch_shape(stacked: bool, count: usize, sample: &[usize]) -> Vec<usize> {
    stacked.then_some(count).into_iter().chain(sample.iter().copied()).collect()
}

/// A file that was whole when it was opened.
fn unreadable(e: &io::Error) -> Error {
    Error::file(format!("cannot be read any more: {e}"))
}
