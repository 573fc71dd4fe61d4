//! Checkpoints: what a training job writes from time to time, so that it can go on after it was
//! stopped.
//!
//! A checkpoint is a safetensors file, which other programs read too. Its metadata has one entry,
//! JSON with all that isn't a tensor; its last tensor is the SHA-256 of every byte before.

use crate::memory;
use compress_compiler::{
    error::{Error, Kind, Result},
    tensor::{DType, Tensor},
    words::option::{CHECKPOINT, FORCE, RESUME},
};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    fs::{self, File, Permissions, TryLockError},
    io::{self, BufReader, BufWriter, ErrorKind, Read, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// The metadata's only entry, as several would be written in random order. The number is raised
/// when a change makes older files unreadable.
const HEAD: &str = "compress-checkpoint-1";
/// The last tensor, a digest of all that comes before it.
const SUM: &str = "__sha256__";
const SUM_BYTES: usize = 32;
/// What readers of safetensors accept.
const HEADER_LIMIT: usize = 100_000_000;
const BUFFER: usize = 1 << 20;
const KEPT: usize = 2;
const LOCK: &str = ".lock";
const TEMPORARY: &str = ".checkpoint-";

/// What a training job needs to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct Checkpoint {
    /// Optimiser steps done.
    pub step: u64,
    /// The epoch to go on with.
    pub epoch: u64,
    /// Batches done in that epoch.
    pub batch: u64,
    /// A digest of the recipe: a job resumes only its own.
    pub digest: String,
    /// The little else there is to know: the loss scaler, the best score. Numbers that aren't
    /// finite have no JSON.
    pub state: serde_json::Value,
    /// Weights and the optimiser's moments, `f32` or `i64`, each under a name of its own.
    pub tensors: Vec<(String, Tensor)>,
}

#[derive(Serialize, Deserialize)]
struct Head<'a> {
    step: u64,
    epoch: u64,
    batch: u64,
    digest: Cow<'a, str>,
    state: Cow<'a, serde_json::Value>,
}

/// A folder of checkpoints, held by one job.
#[derive(Debug)]
pub struct Checkpoints {
    folder: PathBuf,
    /// Held for its lock, which ends with the process however that ends.
    lock: File,
    /// The steps whose files this job goes on from or wrote itself.
    kept: Mutex<Vec<u64>>,
}

impl Checkpoints {
    /// Opens the folder, which is made where it is missing, and locks it. What a job that was
    /// killed left half-written is deleted.
    ///
    /// # Errors
    /// File, when the folder can't be made or written, or when another job holds it.
    pub fn open(folder: &Path) -> Result<Self> {
        let failure = |e: io::Error| Error::file(format!("cannot open the folder: {e}")).in_file(folder);
        fs::create_dir_all(folder).map_err(failure)?;
        let path = folder.join(LOCK);
        let lock = File::options().create(true).truncate(false).write(true).open(path).map_err(failure)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::file("another training job keeps its checkpoints here")
                    .in_file(folder)
                    .help(format!("wait for its end, or give another {CHECKPOINT} folder")));
            }
            Err(TryLockError::Error(e)) => return Err(failure(e)),
        }
        for entry in fs::read_dir(folder).map_err(failure)? {
            let entry = entry.map_err(failure)?;
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                fs::remove_file(entry.path()).map_err(failure)?;
            }
        }
        Ok(Self { folder: folder.to_path_buf(), lock, kept: Mutex::default() })
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a checkpoint, which is whole on disk or not there at all, and only then deletes
    /// all others but the one before. A job that never asked for the latest one begins anew: its
    /// first checkpoint replaces all that were there.
    ///
    /// # Errors
    /// File, when it can't be written; then those before are as they were. Bug, for tensors of
    /// other types or two of one name.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf> {
        let header = header(checkpoint)?;
        let path = self.path(checkpoint.step);
        self.write(checkpoint, &header, &path).map_err(|e| {
            let error = Error::file(format!("cannot write the checkpoint: {e}")).in_file(&path);
            match e.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                    error.help("make room and start again: the job goes on from the checkpoint before")
                }
                _ => error,
            }
        })?;
        let mut kept = self.kept();
        kept.retain(|step| *step != checkpoint.step);
        kept.push(checkpoint.step);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
        self.delete(|step| !kept.contains(&step))?;
        Ok(path)
    }

    /// The newest checkpoint that is whole, and a warning for each newer one that isn't; `None`
    /// when there is none at all.
    ///
    /// # Errors
    /// Usage, when it was made by another recipe than that of `digest`. File, when there are
    /// checkpoints and none is whole. Limit, when it doesn't fit the memory.
    pub fn latest(&self, digest: &str) -> Result<Option<(Checkpoint, Vec<String>)>> {
        let mut steps = self.steps()?;
        let mut skipped = Vec::new();
        while let Some(step) = steps.pop() {
            let path = self.path(step);
            match read(&path, step) {
                Ok(found) if found.digest == digest => {
                    steps.push(step);
                    *self.kept() = steps;
                    return Ok(Some((found, skipped)));
                }
                Ok(found) => {
                    let both = format!("made by the recipe {}, and this is the recipe {digest}", found.digest);
                    return Err(Error::usage(both).in_file(path).help(format!(
                        "give another {CHECKPOINT} folder, or {FORCE} without {RESUME} to begin anew in this one",
                    )));
                }
                Err(e) if e.kind() == Kind::File => {
                    skipped.push(format!("skipped {}: {}", path.display(), e.message()));
                }
                Err(e) => return Err(e),
            }
        }
        if skipped.is_empty() {
            return Ok(None);
        }
        Err(Error::file(format!("no checkpoint is whole: {}", skipped.join("; ")))
            .in_file(&self.folder)
            .help(format!("{FORCE} without {RESUME} begins anew")))
    }

    /// Deletes all checkpoints.
    ///
    /// # Errors
    /// File, naming what can't be deleted.
    pub fn clear(&self) -> Result<()> {
        self.kept().clear();
        self.delete(|_| true)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<u64>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("checkpoint-{step:012}.safetensors"))
    }

    /// The steps that have a file, in order.
    fn steps(&self) -> Result<Vec<u64>> {
        let failure = |e: io::Error| Error::file(format!("cannot read the folder: {e}")).in_file(&self.folder);
        let mut steps = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failure)? {
            let path = entry.map_err(failure)?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let digits = name.strip_prefix("checkpoint-").and_then(|name| name.strip_suffix(".safetensors"));
            let step = digits.and_then(|digits| digits.parse().ok());
            // Other names, such as 5 without zeros, are copies that somebody made.
            steps.extend(step.filter(|step| self.path(*step) == path));
        }
        steps.sort_unstable();
        Ok(steps)
    }

    fn delete(&self, which: impl Fn(u64) -> bool) -> Result<()> {
        for step in self.steps()?.into_iter().filter(|step| which(*step)) {
            let path = self.path(step);
            fs::remove_file(&path).map_err(|e| Error::file(format!("cannot delete: {e}")).in_file(path))?;
        }
        Ok(())
    }

    fn write(&self, checkpoint: &Checkpoint, header: &[u8], path: &Path) -> io::Result<()> {
        // As for any new file, the kernel takes from the mode what the user's mask says.
        let mode = Permissions::from_mode(0o666);
        let scratch = tempfile::Builder::new().prefix(TEMPORARY).permissions(mode).tempfile_in(&self.folder)?;
        write_to(BufWriter::with_capacity(BUFFER, scratch.as_file()), checkpoint, header)?;
        scratch.as_file().sync_all()?;
        scratch.persist(path).map_err(|e| e.error)?;
        File::open(&self.folder)?.sync_all()
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // Closing wouldn't be enough while a process that is being started still has the file, and
        // there is nothing to do about a failure.
        let _ = self.lock.unlock();
    }
}

/// What passes through is added to a sum.
struct Summed<T> {
    inner: T,
    sum: Sha256,
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.sum.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.sum.update(&bytes[..n]);
        Ok(n)
    }
}

impl Checkpoint {
    /// The bytes of its file.
    ///
    /// # Errors
    /// As for [`Checkpoints::save`].
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![];
        let written = write_to(&mut bytes, self, &header(self)?);
        written.map_err(|e| Error::bug(format!("a checkpoint in memory: {e}")))?;
        Ok(bytes)
    }

    /// The checkpoint of `step` that another rank has read and sent.
    ///
    /// # Errors
    /// File, when it is damaged; limit, when it doesn't fit the memory.
    pub(super) fn from_bytes(bytes: &[u8], step: u64) -> Result<Self> {
        read_from(bytes, bytes.len() as u64, Path::new("the checkpoint of rank 0"), step)
    }
}

/// Writes the tensors from where they are.
fn write_to(out: impl Write, checkpoint: &Checkpoint, header: &[u8]) -> io::Result<()> {
    let mut out = Summed { inner: out, sum: Sha256::new() };
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header)?;
    for (_, tensor) in &checkpoint.tensors {
        out.write_all(tensor.bytes())?;
    }
    out.inner.write_all(&out.sum.finalize())?;
    out.inner.flush()
}

fn header(checkpoint: &Checkpoint) -> Result<Vec<u8>> {
    let Checkpoint { step, epoch, batch, digest, state, tensors } = checkpoint;
    let head = Head { step: *step, epoch: *epoch, batch: *batch, digest: digest.into(), state: Cow::Borrowed(state) };
    let bug = |e: &dyn std::fmt::Display| Error::bug(format!("cannot describe the checkpoint: {e}"));
    let head = serde_json::to_string(&head).map_err(|e| bug(&e))?;

    let mut names = HashSet::from([SUM]);
    let mut infos = Vec::with_capacity(tensors.len() + 1);
    let mut end = 0;
    let mut place = |dtype, shape: &[usize], bytes| {
        let start = end;
        end += bytes;
        TensorInfo { dtype, shape: shape.to_vec(), data_offsets: (start, end) }
    };
    for (name, tensor) in tensors {
        let dtype = match tensor.dtype() {
            DType::F32 => Dtype::F32,
            DType::I64 => Dtype::I64,
            other => return Err(bug(&format_args!("{name} is {other}"))),
        };
        if !names.insert(name) {
            return Err(bug(&format_args!("two tensors are called {name}")));
        }
        infos.push((name.clone(), place(dtype, tensor.shape(), tensor.bytes().len())));
    }
    infos.push((SUM.to_owned(), place(Dtype::U8, &[SUM_BYTES], SUM_BYTES)));

    let metadata = Metadata::new(Some(HashMap::from([(HEAD.to_owned(), head)])), infos).map_err(|e| bug(&e))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| bug(&e))?;
    // Readers that map the file want what follows aligned.
    header.resize(header.len().next_multiple_of(8), b' ');
    match header.len() > HEADER_LIMIT {
        true => Err(Error::limit("the checkpoint has too many tensors, or too much state, for a safetensors header")),
        false => Ok(header),
    }
}

/// Reads the checkpoint of `step`.
fn read(path: &Path, step: u64) -> Result<Checkpoint> {
    let open = || {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok((BufReader::with_capacity(BUFFER, file), length))
    };
    let (file, length) = open().map_err(|e: io::Error| Error::file(format!("cannot read: {e}")).in_file(path))?;
    read_from(file, length, path, step)
}

/// Reads a checkpoint of `length` bytes. Nothing is allocated before its header agrees with its
/// length, and nothing is believed before its sum is right.
fn read_from(file: impl Read, length: u64, path: &Path, step: u64) -> Result<Checkpoint> {
    let damaged = |why: &dyn std::fmt::Display| Error::file(format!("the checkpoint is damaged: {why}")).in_file(path);
    let failure = |e: io::Error| match e.kind() {
        ErrorKind::UnexpectedEof => damaged(&"it is cut short"),
        _ => Error::file(format!("cannot read: {e}")).in_file(path),
    };
    let mut input = Summed { inner: file, sum: Sha256::new() };
    let mut size = [0; 8];
    input.read_exact(&mut size).map_err(failure)?;
    let size = u64::from_le_bytes(size);
    if size > length.min(HEADER_LIMIT as u64) {
        return Err(damaged(&format_args!("a header of {size} bytes in a file of {length}")));
    }
    let mut header = vec![0; size as usize];
    input.read_exact(&mut header).map_err(failure)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| damaged(&e))?;
    let data = metadata.data_len();
    if (data as u64).checked_add(8 + size) != Some(length) {
        return Err(damaged(&format_args!("{length} bytes long, but {data} of data behind a header of {size}")));
    }
    memory::check(data, || format!("the checkpoint {}", path.display()))?;

    let mut names = metadata.offset_keys();
    let sum = names.pop().filter(|name| name == SUM).and_then(|name| metadata.info(&name));
    if sum.is_none_or(|info| (info.dtype, &info.shape[..]) != (Dtype::U8, &[SUM_BYTES])) {
        return Err(damaged(&"the checksum at its end is missing"));
    }
    let mut tensors = Vec::with_capacity(names.len());
    for name in names {
        let found = metadata.info(&name).and_then(|info| match info.dtype {
            Dtype::F32 => Some((DType::F32, info)),
            Dtype::I64 => Some((DType::I64, info)),
            _ => None,
        });
        let Some((dtype, info)) = found else { return Err(damaged(&format_args!("the type of {name}"))) };
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        input.read_exact(&mut bytes).map_err(failure)?;
        let tensor = Tensor::new(dtype, info.shape.clone(), bytes).map_err(|e| damaged(&e))?;
        tensors.push((name, tensor));
    }
    let mut sum = [0; SUM_BYTES];
    input.inner.read_exact(&mut sum).map_err(failure)?;
    if input.sum.finalize()[..] != sum {
        return Err(damaged(&"its sum is wrong"));
    }

    let head = metadata.metadata().as_ref().and_then(|entries| entries.get(HEAD)).ok_or_else(|| {
        Error::unsupported("not a checkpoint of this version of compress")
            .in_file(path)
            .help(format!("go on with the version that wrote it, or begin anew: {FORCE} without {RESUME}"))
    })?;
    let head: Head = serde_json::from_str(head).map_err(|e| damaged(&e))?;
    if head.step != step {
        return Err(damaged(&format_args!("it is of step {}", head.step)));
    }
    let (digest, state) = (head.digest.into_owned(), head.state.into_owned());
    Ok(Checkpoint { step, epoch: head.epoch, batch: head.batch, digest, state, tensors })
}

#[cfg(test)]
mod tests;
