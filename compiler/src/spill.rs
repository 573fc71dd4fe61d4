//! Tensors that passes make of large models, on disk until they are written: memory doesn't grow with the result.

use crate::{
    error::{Error, Result},
    storage::{Blob, Storage},
    tensor::Tensor,
};
use memmap2::MmapOptions;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Tensors of fewer bytes stay in memory.
const LEAST: usize = 1 << 20;

/// A file without a name, to which tensors go. It is gone when the last of them is, or the program.
pub struct Spill {
    file: Arc<File>,
    end: Mutex<u64>,
}

impl Spill {
    /// One in `folder`.
    ///
    /// # Errors
    /// File when none can be made there.
    pub fn within(folder: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(folder).map_err(|e| failed(&e).in_file(folder))?;
        Ok(Self { file: Arc::new(file), end: Mutex::new(0) })
    }

    /// The same tensor, on disk if it is large.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn keep(&self, tensor: Tensor) -> Result<Tensor> {
        let bytes = tensor.bytes();
        if bytes.len() < LEAST {
            return Ok(tensor);
        }
        let at = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            let at = *end;
            *end = (at + bytes.len() as u64).next_multiple_of(rustix::param::page_size() as u64);
            at
        };
        self.file.write_all_at(bytes, at).map_err(|e| failed(&e))?;
        // SAFETY: the file has no name, and nobody writes to this part of it again.
        let map = unsafe { MmapOptions::new().offset(at).len(bytes.len()).map(&*self.file) }.map_err(|e| failed(&e))?;
        let blob = Arc::new(Blob::Map(map, Some((self.file.clone(), at))));
        Tensor::new(tensor.dtype(), tensor.shape().to_vec(), Storage::from(blob))
    }
}

fn failed(e: &std::io::Error) -> Error {
    Error::file(format!("the weights of a large model can't be kept on disk until they are written: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_the_same_on_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let spill = Spill::within(folder.path()).expect("a file");
        let values: Vec<Vec<f32>> = [LEAST / 4 + 3, 5, LEAST].map(|n| (0..n).map(|i| i as f32).collect()).into();
        let kept: Vec<Tensor> =
            values.iter().map(|v| spill.keep(Tensor::f32(&[v.len()], v)).expect("it is written")).collect();
        drop(spill);
        for (tensor, values) in kept.iter().zip(&values) {
            tensor.release();
            assert!(*tensor == Tensor::f32(&[values.len()], values));
        }
        assert_eq!(folder.path().read_dir().expect("a folder").count(), 0, "no file has a name");
    }
}
