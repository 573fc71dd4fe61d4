//! The bytes of tensors: in memory, in the memory of a program that lends them, or still in the file that they came from.

use std::{
    fmt,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    ops::{Deref, Range},
    sync::{Arc, OnceLock},
};

/// Bytes that tensors are parts of: a whole file, mapped or read into memory, or what a program lends.
pub enum Blob {
    /// A mapped file. Another process that truncates it makes the next read raise SIGBUS, as
    /// with every reader that maps. The file stays open where the kernel is to copy from it; the number says where in it
    /// the map begins.
    Map(memmap2::Mmap, Option<(Arc<File>, u64)>),
    /// Bytes in memory.
    Heap(Vec<u8>),
    /// Bytes that belong to another part of the program, such as an array of Python. As with a mapped file, somebody may
    /// write to them.
    Lent(Box<dyn AsRef<[u8]> + Send + Sync>),
}

impl Blob {
    /// Gives back the memory that holds whole pages of `range`, if the file is mapped.
    pub(crate) fn release(&self, range: Range<usize>) {
        let Blob::Map(map, _) = self else { return };
        let page = rustix::param::page_size();
        let (first, end) = (range.start.next_multiple_of(page), range.end / page * page);
        if first < end {
            // SAFETY: callers pass a range of this map, so these pages are its own. Nobody writes to it, so what is
            // read again is what the file has. Advice is all that it is: that it is not taken does no harm.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, end - first) };
        }
    }
}

impl Deref for Blob {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Blob::Map(map, _) => map,
            Blob::Heap(bytes) => bytes,
            Blob::Lent(owner) => (**owner).as_ref(),
        }
    }
}

/// The bytes of one tensor. Cheap to clone, never changed; what is found out about them once is
/// kept, as a look at every byte of a large model takes as long as a copy of it.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    data: Data,
    found: Arc<Found>,
}

/// Bytes from which on looking at all of a tensor leaves nothing of it in memory.
pub(crate) const LARGE: usize = 1 << 20;

/// Elements of a tensor, counted by their size.
#[derive(Clone, Copy)]
pub(crate) struct Census {
    pub nonzero: usize,
    pub tiny: usize,
    /// Those that are infinite, or not numbers.
    pub unsound: usize,
}

#[derive(Default)]
struct Found {
    census: OnceLock<Census>,
    digest: OnceLock<u64>,
}

enum Data {
    Owned(Vec<u8>),
    View(Arc<Blob>, Range<usize>),
}

impl Storage {
    fn new(data: Data) -> Self {
        Self(Arc::new(Inner { data, found: Arc::default() }))
    }

    /// A part of a file; `None` when the file ends before it.
    pub fn view(blob: &Arc<Blob>, range: Range<usize>) -> Option<Self> {
        let bytes = blob.get(range.clone())?;
        // Small ones may say how a graph is built; they must stay what they were when they were
        // checked, whatever happens to the file.
        if bytes.len() <= 4096 {
            return Some(bytes.to_vec().into());
        }
        Some(Self::new(Data::View(blob.clone(), range)))
    }

    /// A part of a file to which `original` was written: what is found out about one holds for the
    /// other.
    pub(crate) fn view_of_copy(blob: &Arc<Blob>, range: Range<usize>, original: &Self) -> Option<Self> {
        if blob.len() < range.end || range.len() != original.len() {
            return None;
        }
        Some(Self(Arc::new(Inner { data: Data::View(blob.clone(), range), found: original.0.found.clone() })))
    }

    /// The open file that the bytes are in, and where they begin.
    pub(crate) fn in_file(&self) -> Option<(&File, u64)> {
        match &self.0.data {
            Data::View(blob, range) => match &**blob {
                Blob::Map(_, Some((file, at))) => Some((file, at + range.start as u64)),
                _ => None,
            },
            Data::Owned(_) => None,
        }
    }

    /// Gives back the memory that holds a part of a mapped file, until it is read again. What is in memory otherwise
    /// stays.
    pub fn release(&self) {
        if let Data::View(blob, range) = &self.0.data {
            blob.release(range.clone());
        }
    }

    /// What `count` finds the first time. Of a large tensor in a mapped file no memory is kept: there may be many.
    pub(crate) fn census(&self, count: impl FnOnce(&[u8]) -> Census) -> Census {
        *self.0.found.census.get_or_init(|| {
            let found = count(self);
            if self.len() >= LARGE {
                self.release();
            }
            found
        })
    }

    /// A hash of all the bytes.
    pub fn digest(&self) -> u64 {
        *self.0.found.digest.get_or_init(|| {
            let mut h = DefaultHasher::new();
            self.hash(&mut h);
            h.finish()
        })
    }
}

impl From<Arc<Blob>> for Storage {
    fn from(blob: Arc<Blob>) -> Self {
        let all = 0..blob.len();
        Self::new(Data::View(blob, all))
    }
}

impl From<Vec<u8>> for Storage {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(Data::Owned(bytes))
    }
}

impl Deref for Storage {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0.data {
            Data::Owned(bytes) => bytes,
            Data::View(blob, range) => &blob[range.clone()],
        }
    }
}

impl AsRef<[u8]> for Storage {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self[..] == other[..]
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_parts_of_a_file() {
        let blob = Arc::new(Blob::Heap((0..10_000).map(|i| i as u8).collect()));
        let view = Storage::view(&blob, 1..9_000).unwrap();
        assert_eq!(view[..], blob[1..9_000]);
        assert_eq!(view.as_ptr(), blob[1..].as_ptr(), "a large view is not a copy");
        assert!(Storage::view(&blob, 9_000..10_001).is_none());
        assert_eq!(view, Storage::from(blob[1..9_000].to_vec()));
        assert_eq!(view.digest(), Storage::from(blob[1..9_000].to_vec()).digest());
    }
}
