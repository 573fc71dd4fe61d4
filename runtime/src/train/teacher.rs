//! The model that is learnt from: run for each batch, or once for each sample where that is the same.

use crate::session::{Backend, Session};
use compress_compiler::{
    error::{Error, Result},
    forms::decoder::Decoder,
    graph::Graph,
    node::Port,
    tensor::{DType, Tensor},
    verify::verify,
};
use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Bytes of answers that are kept on disk at most: the scores of a large vocabulary fill a disk in no time.
const MOST_KEPT: usize = 8 << 30;

/// A teacher's answer to one sample: what comes of it, output after output.
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

/// A model that is learnt from.
pub struct Teacher {
    /// Its file, which errors name.
    path: PathBuf,
    session: Session,
    outputs: usize,
    /// Answers on disk, in a file without a name that goes with the process.
    kept: Option<Kept>,
    /// How many samples answers can be kept of; 0 for none.
    samples: usize,
}

/// What a teacher says of a batch: nothing, without one.
#[derive(Default)]
pub struct Answer {
    /// Its outputs.
    pub outputs: Vec<Tensor>,
    /// Its features, as they were asked for.
    pub features: Vec<Tensor>,
}

impl Teacher {
    /// Makes a teacher ready, read from the file at `path`, that also gives the values called `features`; a decoder gives the
    /// scores of whole sequences, and no cache. `keep` is
    /// the number of samples whose answers may be kept on disk: where every epoch asks the same, and samples have
    /// answers of their own.
    ///
    /// # Errors
    /// As for [`Session::new`]; usage when a feature is not a value of the graph.
    pub fn new(path: &Path, graph: &Graph, features: &[String], backend: &Backend, keep: usize) -> Result<Self> {
        Self::of(path, graph.clone(), features, backend, keep).map_err(|e| e.in_file(path))
    }

    fn of(path: &Path, mut graph: Graph, features: &[String], backend: &Backend, keep: usize) -> Result<Self> {
        Decoder::forget(&mut graph);
        let outputs = graph.outputs().len();
        for name in features {
            let port = named(&graph, name)?;
            let output = graph.fresh(&format!("feature {name}"));
            graph.add_output(&output, port);
        }
        let session = Session::new(&verify(&graph)?, backend, &[])?;
        Ok(Self { path: path.to_owned(), session, outputs, kept: None, samples: keep })
    }

    /// What it says of a batch. `indices` names the samples where answers may be kept.
    ///
    /// # Errors
    /// As for [`Session::run`]; data when it gives no numbers; file when the disk is full.
    pub fn answer(&mut self, inputs: &[Tensor], indices: Option<&[usize]>) -> Result<Answer> {
        let made = match indices.filter(|_| self.samples > 0) {
            None => self.ask(inputs)?,
            Some(indices) => match self.recalled(inputs, indices)? {
                Some(made) => made,
                None => {
                    let made = self.ask(inputs)?;
                    self.keep(inputs, indices, &made)?;
                    made
                }
            },
        };
        let mut outputs = made;
        let features = outputs.split_off(self.outputs.min(outputs.len()));
        Ok(Answer { outputs, features })
    }

    fn ask(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let made = self.session.run(inputs).map_err(|e| e.in_file(&self.path))?;
        if made.iter().any(|t| t.all_f32(f32::is_finite) == Some(false)) {
            return Err(Error::data("the teacher's outputs have NaN or infinite values").in_file(&self.path));
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
            kept.file.read_exact_at(&mut sample, place).map_err(|e| failure(&e))?;
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
            let file = tempfile::tempfile().map_err(|e| failure(&e))?;
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
            kept.file.write_all_at(&sample, (index * sample.len()) as u64).map_err(|e| failure(&e))?;
            kept.known[*index] = true;
        }
        Ok(())
    }
}

/// The shape of each for one sample, the first axis left out.
fn samples(tensors: &[Tensor]) -> Vec<Vec<usize>> {
    tensors.iter().map(|t| t.shape().iter().skip(1).copied().collect()).collect()
}

fn failure(e: &io::Error) -> Error {
    Error::file(format!("the teacher's answers cannot be kept: {e}"))
        .in_file(std::env::temp_dir())
        .help("make room there, or name another folder in TMPDIR")
}

/// The value that is called `name`, or that the node of this name makes first.
///
/// # Errors
/// Usage when there is none.
pub fn named(graph: &Graph, name: &str) -> Result<Port> {
    let ports = |node| (0..graph.node(node).outputs.len()).map(move |slot| Port { node, slot });
    let is = |p: &Port| graph.value(*p).name == name || p.slot == 0 && graph.node(p.node).name == name;
    graph.ids().flat_map(ports).find(is).ok_or_else(|| {
        Error::usage(format!("the model has no value or node `{name}`"))
            .help("the text form of the graph (inspect, ir) lists them")
    })
}
