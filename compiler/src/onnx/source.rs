//! The files behind a model, and the bytes that references stand for.

use super::{digest, wire::Ref};
use crate::{
    error::{Error, Result},
    storage::{Blob, Storage},
};
use std::{
    cell::RefCell,
    collections::HashMap,
    fs::File,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// The files that a model was read from: its own, then those that hold weights outside it.
/// None for a model that was built here.
#[derive(Clone, Default)]
pub struct Source {
    files: Vec<SourceFile>,
}

/// A file of a model, mapped.
#[derive(Clone)]
pub struct SourceFile {
    path: PathBuf,
    blob: Arc<Blob>,
    sha256: Arc<OnceLock<String>>,
    /// The weights that were written to it here, by their places.
    written: Arc<HashMap<u64, Storage>>,
}

impl SourceFile {
    pub(super) fn new(path: &Path, blob: Blob) -> Self {
        Self { path: path.into(), blob: Arc::new(blob), sha256: Arc::default(), written: Arc::default() }
    }

    /// The same file, to which weights were written here, by their places.
    pub(super) fn written(self, weights: HashMap<u64, Storage>) -> Self {
        Self { written: Arc::new(weights), ..self }
    }

    fn view(&self, range: Range<usize>) -> Option<Storage> {
        let original = self.written.get(&(range.start as u64));
        original
            .and_then(|o| Storage::view_of_copy(&self.blob, range.clone(), o))
            .or_else(|| Storage::view(&self.blob, range))
    }

    /// Where it is, or will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.blob
    }

    /// Its SHA-256 in hex.
    pub fn sha256(&self) -> &str {
        self.sha256.get_or_init(|| digest::sha256(self.pieces()))
    }

    /// All its bytes in pieces, each of which leaves memory when the next is asked for, if there are several.
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        const PIECE: usize = 64 << 20;
        self.blob.chunks(PIECE).enumerate().map(|(i, piece)| {
            let before = (i * PIECE).saturating_sub(PIECE)..i * PIECE;
            self.blob.release(before);
            piece
        })
    }

    /// Says what its SHA-256 is.
    pub(super) fn set_sha256(&self, sha256: String) {
        // Whoever found it first found the same.
        let _ = self.sha256.set(sha256);
    }
}

impl Source {
    pub(super) fn new(model: SourceFile) -> Self {
        Self { files: vec![model] }
    }

    /// The files, the model's own first.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Bytes of all files.
    pub fn len(&self) -> u64 {
        self.files.iter().map(|f| f.bytes().len() as u64).sum()
    }

    /// Gives back the memory in which they are mapped, until they are read again.
    pub fn release(&self) {
        self.files.iter().for_each(|f| f.blob.release(0..f.blob.len()));
    }

    /// Whether there is nothing in them.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest file, unless its SHA-256 is known.
    pub(super) fn unhashed(&self) -> Option<&SourceFile> {
        self.files.iter().max_by_key(|f| f.bytes().len()).filter(|f| f.sha256.get().is_none())
    }

    /// Adds a file, and returns its place.
    ///
    /// # Errors
    /// Limit when there are too many.
    pub(super) fn add(&mut self, file: SourceFile) -> Result<u16> {
        let place = u16::try_from(self.files.len()).ok().filter(|n| *n < MADE);
        let place = place.ok_or_else(|| Error::limit(format!("weights in more than {MADE} files")))?;
        self.files.push(file);
        Ok(place)
    }

    /// The bytes that the raw data of a skeleton's tensor stands for.
    ///
    /// # Errors
    /// A bug when it stands for nothing here.
    pub(super) fn resolve(&self, raw: &[u8]) -> Result<Storage> {
        let Ref { file, at, len } = Ref::decode(raw)?;
        let range = usize::try_from(at).ok().zip(at.checked_add(len).and_then(|end| usize::try_from(end).ok()));
        let file = self.files.get(usize::from(file));
        file.zip(range)
            .and_then(|(file, (start, end))| file.view(start..end))
            .ok_or_else(|| Error::bug(format!("no file of the model has bytes {at} to {at} + {len}")))
    }
}

/// The place of what is in no file.
const MADE: u16 = u16::MAX;

/// The bytes of the tensors of a model that is being written: those of its source, and those of
/// the tensors in its graph.
pub(super) struct Blobs<'a> {
    source: &'a Source,
    made: RefCell<Vec<Storage>>,
}

impl<'a> Blobs<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self { source, made: RefCell::default() }
    }

    /// The raw data that stands for `bytes`.
    pub(super) fn add(&self, bytes: &Storage) -> Vec<u8> {
        let mut made = self.made.borrow_mut();
        made.push(bytes.clone());
        Ref { file: MADE, at: made.len() as u64 - 1, len: bytes.len() as u64 }.encode().into()
    }

    /// The bytes that raw data stands for.
    ///
    /// # Errors
    /// A bug when it stands for nothing.
    pub(super) fn resolve(&self, raw: &[u8]) -> Result<Storage> {
        match Ref::decode(raw)? {
            Ref { file: MADE, at, .. } => {
                let made = self.made.borrow();
                made.get(at as usize).cloned().ok_or_else(|| Error::bug(format!("no tensor {at} was made")))
            }
            _ => self.source.resolve(raw),
        }
    }
}

/// Opens the file of a model and maps it.
///
/// # Errors
/// File when it can't be read or is not a regular file.
pub(super) fn open(path: &Path) -> Result<SourceFile> {
    let io = |e: std::io::Error| Error::file(e.to_string());
    let mut options = File::options();
    // A FIFO without a writer would keep us waiting.
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let file = options.read(true).open(path).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(Error::file("not a regular file").help("give the path of an .onnx file"));
    }
    Ok(SourceFile::new(path, map(file, true).map_err(io)?))
}

/// Maps a whole file, which stays open if `keep` is set.
pub(super) fn map(file: File, keep: bool) -> std::io::Result<Blob> {
    if file.metadata()?.len() == 0 {
        return Ok(Blob::Heap(vec![]));
    }
    // SAFETY: the map is only read. What small tensors say is copied before it is relied on; a
    // file that another process changes meanwhile can change weights, never what was checked. One
    // that is truncated raises SIGBUS, which the command turns into an exit code.
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Blob::Map(map, keep.then(|| (Arc::new(file), 0))))
}
