//! A model that is run once for each sample, where a sample's answer is always the same.

use crate::session::Session;
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes of answers that are kept on disk at most: the scores of a large vocabulary fill a disk in no time.
const MOST_KEPT: usize = 8 << 30;

/// The answers to samples.
struct Kept {
    file: File,
    /// The shape of each output for one sample, the first axis left out.
    shapes: Vec<Vec<usize>>,
    /// Those of the inputs: samples of a text are filled up to the longest of a batch, and answers of another length are others.
    asked: Vec<Vec<usize>>,
    /// Numbers of one sample.
    stride: usize,
    known: Vec<bool>,
}

/// A model, and its answers to samples of a set.
pub(crate) struct Once {
    /// Its file, which errors name.
    path: PathBuf,
    session: Arc<Session>,
    /// Answers on disk, in a file without a name that goes with the process.
    kept: Option<Kept>,
    /// How many samples answers can be kept of; 0 for none.
    samples: usize,
}

impl Once {
    /// The model in the file at `path`; the answers to so many `samples` may be kept.
    pub(crate) fn new(path: &Path, session: Arc<Session>, samples: usize) -> Self {
        Self { path: path.to_owned(), session, kept: None, samples }
    }

    /// What it says of a batch. `indices` names the samples where answers may be kept.
    ///
    /// # Errors
    /// As for [`Session::run`]; data when it gives no numbers; file when the disk is full.
    pub(crate) fn ask(&mut self, inputs: &[Tensor], indices: Option<&[usize]>) -> Result<Vec<Tensor>> {
        let Some(indices) = indices.filter(|_| self.samples > 0) else { return self.run(inputs) };
        if let Some(made) = self.recalled(inputs, indices)? {
            return Ok(made);
        }
        let made = self.run(inputs)?;
        self.keep(inputs, indices, &made)?;
        Ok(made)
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let made = self.session.run(inputs).map_err(|e| e.in_file(&self.path))?;
        if made.iter().any(|t| t.all_f32(f32::is_finite) == Some(false)) {
            return Err(Error::data("its outputs on the data have NaN or infinite values").in_file(&self.path));
        }
        Ok(made)
    }

    fn recalled(&self, inputs: &[Tensor], indices: &[usize]) -> Result<Option<Vec<Tensor>>> {
        let known = |k: &&Kept| k.asked == samples(inputs) && indices.iter().all(|i| k.known[*i]);
        let Some(kept) = self.kept.as_ref().filter(known) else { return Ok(None) };
        let mut parts: Vec<Vec<u8>> = vec![vec![]; kept.shapes.len()];
        let mut sample = vec![0; kept.stride * size_of::<f32>()];
        for index in indices {
            let place = (index * sample.len()) as u64;
            kept.file.read_exact_at(&mut sample, place).map_err(|e| failure(&self.path, &e))?;
            let mut rest = &sample[..];
            for (part, shape) in parts.iter_mut().zip(&kept.shapes) {
                let (own, behind) = rest.split_at(shape.iter().product::<usize>() * size_of::<f32>());
                part.extend_from_slice(own);
                rest = behind;
            }
        }
        let whole = |(bytes, shape): (Vec<u8>, &Vec<usize>)| {
            Tensor::new(DType::F32, [&[indices.len()], &shape[..]].concat(), bytes)
        };
        parts.into_iter().zip(&kept.shapes).map(whole).collect::<Result<_>>().map(Some)
    }

    fn keep(&mut self, inputs: &[Tensor], indices: &[usize], made: &[Tensor]) -> Result<()> {
        let own = |t: &Tensor| t.dtype() == DType::F32 && t.shape().first() == Some(&indices.len());
        let bytes: usize = made.iter().map(|t| t.bytes().len() / indices.len().max(1)).sum();
        if !made.iter().all(own) || bytes.saturating_mul(self.samples) > MOST_KEPT {
            // An output that isn't counted by samples can't be taken apart, and there may be too many bytes.
            self.samples = 0;
            return Ok(());
        }
        let (shapes, asked) = (samples(made), samples(inputs));
        if self.kept.is_none() {
            let stride = shapes.iter().map(|s| s.iter().product::<usize>()).sum();
            let file = tempfile::tempfile().map_err(|e| failure(&self.path, &e))?;
            self.kept = Some(Kept {
                file,
                shapes: shapes.clone(),
                asked: asked.clone(),
                stride,
                known: vec![false; self.samples],
            });
        }
        let Some(kept) = self.kept.as_mut().filter(|k| k.shapes == shapes && k.asked == asked) else { return Ok(()) };
        let mut sample = Vec::with_capacity(kept.stride * size_of::<f32>());
        for (row, index) in indices.iter().enumerate() {
            sample.clear();
            for t in made {
                let size = t.bytes().len() / indices.len();
                sample.extend_from_slice(&t.bytes()[row * size..][..size]);
            }
            kept.file.write_all_at(&sample, (index * sample.len()) as u64).map_err(|e| failure(&self.path, &e))?;
            kept.known[*index] = true;
        }
        Ok(())
    }
}

/// The shape of each for one sample, the first axis left out.
fn samples(tensors: &[Tensor]) -> Vec<Vec<usize>> {
    tensors.iter().map(|t| t.shape().iter().skip(1).copied().collect()).collect()
}

fn failure(path: &Path, e: &io::Error) -> Error {
    Error::file(format!("the answers of {} cannot be kept: {e}", path.display()))
        .in_file(std::env::temp_dir())
        .help("make room there, or name another folder in TMPDIR")
}
