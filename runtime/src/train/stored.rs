//! Answers of a teacher that a job of its own found, perhaps in parts on several machines: files of safetensors, which other programs read
//! too. A file has a tensor for each output, and the numbers of the samples that these answer.

use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The numbers of the samples.
const SAMPLES: &str = "samples";
/// Of whom answers are, and the shapes of the inputs.
const OF: &str = "answers";
const ASKED: &str = "inputs";
const EXTENSION: &str = "safetensors";
/// What readers of safetensors accept.
const HEADER_LIMIT: u64 = 100_000_000;

/// The shape of each tensor for one sample, the first axis left out.
type Shapes = Vec<Vec<usize>>;

fn shapes(tensors: &[Tensor]) -> Shapes {
    tensors.iter().map(|t| t.shape().iter().skip(1).copied().collect()).collect()
}

fn elements(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Writes answers, batch by batch.
pub struct AnswersWriter {
    names: Vec<String>,
    /// The answers of each output, in files without names.
    outputs: Vec<BufWriter<File>>,
    shapes: Option<(Shapes, Shapes)>,
    samples: Vec<i64>,
}

impl AnswersWriter {
    /// A writer of the answers of a model with these outputs.
    ///
    /// # Errors
    /// File where there is no room for them.
    pub fn new(names: Vec<String>) -> Result<Self> {
        let file = |_| tempfile::tempfile().map(BufWriter::new);
        let outputs = (0..names.len()).map(file).collect::<io::Result<_>>().map_err(|e| no_room(&e))?;
        Ok(Self { names, outputs, shapes: None, samples: vec![] })
    }

    /// Takes the answers to samples, which had these inputs; rows behind those of the samples are left out.
    ///
    /// # Errors
    /// Unsupported for answers that are not floats, or not those of one sample each, and where samples are of different sizes; file where
    /// there is no room.
    pub fn add(&mut self, inputs: &[Tensor], indices: &[usize], answers: &[Tensor]) -> Result<()> {
        if answers.len() != self.names.len() {
            return Err(Error::bug(format!("{} answers of {} outputs", answers.len(), self.names.len())));
        }
        let rows = inputs.first().and_then(|t| t.shape().first()).copied().unwrap_or(indices.len());
        let own = |t: &Tensor| t.dtype() == DType::F32 && t.shape().first() == Some(&rows);
        if rows < indices.len() || !answers.iter().all(own) {
            return Err(Error::unsupported(
                "an output is not of floats, or not of one row a sample: it can't be stored",
            ));
        }
        let now = (shapes(inputs), shapes(answers));
        if self.shapes.get_or_insert_with(|| now.clone()) != &now {
            let what =
                "samples have different sizes, so that answers depend on the batch they are in: they can't be stored";
            return Err(Error::unsupported(what));
        }
        for (file, answer) in self.outputs.iter_mut().zip(answers) {
            let bytes = answer.bytes().len() / rows.max(1) * indices.len();
            file.write_all(&answer.bytes()[..bytes]).map_err(|e| no_room(&e))?;
        }
        self.samples.extend(indices.iter().map(|i| *i as i64));
        Ok(())
    }

    /// Writes the file, whose answers are those `of` a teacher to data.
    ///
    /// # Errors
    /// File when it can't be written.
    pub fn finish(self, path: &Path, of: &str) -> Result<u64> {
        let fail = |e: io::Error| Error::file(format!("cannot be written: {e}")).in_file(path);
        let (asked, shapes) = self.shapes.unwrap_or_default();
        let rows = self.samples.len();
        let mut at = 0;
        let mut info = |dtype: Dtype, shape: Vec<usize>, size: usize| {
            let begin = at;
            at += elements(&shape) * size;
            TensorInfo { dtype, shape, data_offsets: (begin, at) }
        };
        // Wider numbers first, as readers ask for.
        let mut tensors = vec![(SAMPLES.to_string(), info(Dtype::I64, vec![rows], size_of::<i64>()))];
        for (name, shape) in self.names.iter().zip(&shapes) {
            let whole = [&[rows], &shape[..]].concat();
            tensors.push((tensor_name(name), info(Dtype::F32, whole, size_of::<f32>())));
        }
        let asked = serde_json::to_string(&asked).map_err(|e| Error::bug(e.to_string()))?;
        let head = HashMap::from([(OF.to_string(), of.to_string()), (ASKED.to_string(), asked)]);
        let metadata = Metadata::new(Some(head), tensors).map_err(|e| Error::bug(e.to_string()))?;
        let mut header = serde_json::to_vec(&metadata).map_err(|e| Error::bug(e.to_string()))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let folder = path.parent().unwrap_or(Path::new("."));
        // Others read it who found no part of it.
        let readable = fs::Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(folder).map_err(fail)?;
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(fail)?;
        file.write_all(&header).map_err(fail)?;
        self.samples.iter().try_for_each(|sample| file.write_all(&sample.to_le_bytes())).map_err(fail)?;
        for output in self.outputs {
            let mut output = output.into_inner().map_err(|e| no_room(e.error()))?;
            output.seek(SeekFrom::Start(0)).and_then(|_| io::copy(&mut output, &mut file)).map_err(fail)?;
        }
        file.as_file().sync_all().map_err(fail)?;
        let bytes = file.as_file().metadata().map_err(fail)?.len();
        file.persist(path).map_err(|e| fail(e.error))?;
        Ok(bytes)
    }
}

/// In what answers differ that are described so.
fn differing(a: &str, b: &str) -> Vec<String> {
    let parts = |text: &str| serde_json::from_str::<serde_json::Map<_, _>>(text).unwrap_or_default();
    let (a, b) = (parts(a), parts(b));
    let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
    names.filter(|name| a.get(*name) != b.get(*name)).cloned().collect()
}

/// An output may be called as the samples are.
fn tensor_name(output: &str) -> String {
    format!("output {output}")
}

fn no_room(e: &io::Error) -> Error {
    Error::file(format!("answers cannot be kept: {e}"))
        .in_file(std::env::temp_dir())
        .help("make room there, or name another folder in TMPDIR")
}

/// Answers in files.
#[derive(Debug)]
pub struct StoredAnswers {
    folder: PathBuf,
    files: Vec<AnswersFile>,
    /// Where the answer to each sample is: its file, and its row.
    places: HashMap<usize, (usize, usize)>,
}

#[derive(Debug)]
struct AnswersFile {
    path: PathBuf,
    file: File,
    asked: Shapes,
    /// The shape of each output, and where its rows begin.
    outputs: Vec<(Vec<usize>, u64)>,
}

impl StoredAnswers {
    /// Opens the files of a folder, which have to be `of` this teacher and data, and have these `outputs`.
    ///
    /// # Errors
    /// File for a folder without such files, and for damaged ones; usage for answers of another teacher or to other data.
    pub fn open(folder: &Path, of: &str, outputs: &[String]) -> Result<Self> {
        let fail = |what: String| Error::file(what).in_file(folder);
        let entries = fs::read_dir(folder).map_err(|e| fail(format!("cannot be read: {e}")))?;
        let mut paths: Vec<PathBuf> = vec![];
        for entry in entries {
            let path = entry.map_err(|e| fail(format!("cannot be read: {e}")))?.path();
            paths.extend(path.extension().is_some_and(|e| e == EXTENSION).then_some(path));
        }
        paths.sort();
        let mut this = Self { folder: folder.to_path_buf(), files: vec![], places: HashMap::new() };
        for path in paths {
            let (file, samples) = AnswersFile::open(&path, of, outputs)?;
            for (row, sample) in samples.into_iter().enumerate() {
                this.places.entry(sample).or_insert((this.files.len(), row));
            }
            this.files.push(file);
        }
        if this.files.is_empty() {
            return Err(fail("has no answers".into()));
        }
        Ok(this)
    }

    /// How many of these samples have no answer, and the first of them.
    pub fn missing(&self, samples: &[usize]) -> Option<(usize, usize)> {
        let missing: Vec<usize> = samples.iter().copied().filter(|i| !self.places.contains_key(i)).collect();
        Some((missing.len(), *missing.first()?))
    }

    /// The answers to samples, which have these inputs.
    ///
    /// # Errors
    /// Data where one has none, or other inputs than when it was answered; file when they can't be read.
    pub(crate) fn answer(&self, inputs: &[Tensor], indices: &[usize]) -> Result<Vec<Tensor>> {
        let here = |what: String| Error::data(what).in_file(&self.folder);
        let shapes = shapes(inputs);
        let count = self.files.first().map_or(0, |file| file.outputs.len());
        let mut parts: Vec<Vec<u8>> = vec![vec![]; count];
        let mut whole = vec![];
        for index in indices {
            let place = self.places.get(index).ok_or_else(|| here(format!("sample {index} has no answer")))?;
            let (file, row) = (&self.files[place.0], place.1);
            if file.asked != shapes {
                return Err(here(format!("sample {index} was answered with inputs of other sizes")));
            }
            whole = file.outputs.iter().map(|(shape, _)| shape.clone()).collect();
            for (part, (shape, begin)) in parts.iter_mut().zip(&file.outputs) {
                let bytes = elements(shape) * size_of::<f32>();
                let old = part.len();
                part.resize(old + bytes, 0);
                let read = file.file.read_exact_at(&mut part[old..], begin + (row * bytes) as u64);
                read.map_err(|e| Error::file(format!("cannot be read: {e}")).in_file(&file.path))?;
            }
        }
        let tensor = |(bytes, shape): (Vec<u8>, Vec<usize>)| {
            Tensor::new(DType::F32, [&[indices.len()], &shape[..]].concat(), bytes)
        };
        parts.into_iter().zip(whole).map(tensor).collect()
    }
}

impl AnswersFile {
    /// The file, and the samples that it answers.
    fn open(path: &Path, of: &str, outputs: &[String]) -> Result<(Self, Vec<usize>)> {
        let fail = |what: String| Error::file(what).in_file(path);
        let damaged = || fail("is damaged, or has no answers".into()).help("find these answers again");
        let io = |e: io::Error| fail(format!("cannot be read: {e}"));
        let mut file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(|_| damaged())?;
        let size = u64::from_le_bytes(size);
        if size > HEADER_LIMIT.min(length) {
            return Err(damaged());
        }
        let mut header = vec![0; size as usize];
        file.read_exact(&mut header).map_err(|_| damaged())?;
        let metadata: Metadata = serde_json::from_slice(&header).map_err(|_| damaged())?;
        let begin = 8 + size;
        if (metadata.data_len() as u64).checked_add(begin) != Some(length) {
            return Err(damaged());
        }
        let head = metadata.metadata().as_ref().ok_or_else(damaged)?;
        let found = head.get(OF).ok_or_else(damaged)?;
        if found != of {
            let what = format!("has other answers than these: they differ in {}", differing(found, of).join(", "));
            return Err(Error::usage(what).in_file(path).help("give another folder, or find the answers again"));
        }
        let asked: Shapes = head.get(ASKED).and_then(|a| serde_json::from_str(a).ok()).ok_or_else(damaged)?;
        let samples = metadata.info(SAMPLES).filter(|info| info.dtype == Dtype::I64).ok_or_else(damaged)?;
        let rows = match samples.shape[..] {
            [rows] => rows,
            _ => return Err(damaged()),
        };
        let mut numbers = vec![0; rows * size_of::<i64>()];
        file.read_exact_at(&mut numbers, begin + samples.data_offsets.0 as u64).map_err(io)?;
        let number = |bytes: &[u8; 8]| usize::try_from(i64::from_le_bytes(*bytes)).map_err(|_| damaged());
        let samples = numbers.as_chunks().0.iter().map(number).collect::<Result<Vec<_>>>()?;
        let of_output = |name: &String| {
            let info = metadata.info(&tensor_name(name)).filter(|info| info.dtype == Dtype::F32)?;
            let (first, shape) = info.shape.split_first()?;
            (*first == rows).then(|| (shape.to_vec(), begin + info.data_offsets.0 as u64))
        };
        let outputs = outputs.iter().map(of_output).collect::<Option<Vec<_>>>().ok_or_else(damaged)?;
        Ok((Self { path: path.to_path_buf(), file, asked, outputs }, samples))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_A_TEACHER: &str = r#"{"data":"1","teacher":"a"}"#;

    fn rows(from: usize, count: usize) -> (Tensor, Vec<usize>, Tensor) {
        let indices: Vec<usize> = (from..from + count).collect();
        let answers: Vec<f32> = indices.iter().flat_map(|i| [*i as f32, -(*i as f32)]).collect();
        (Tensor::f32(&[count, 3], &vec![0.0; count * 3]), indices, Tensor::f32(&[count, 2], &answers))
    }

    fn write(path: &Path, from: usize) {
        let mut writer = AnswersWriter::new(vec!["samples".into()]).unwrap();
        for at in [from, from + 2] {
            let (inputs, indices, answers) = rows(at, 2);
            writer.add(&[inputs], &indices, &[answers]).unwrap();
        }
        writer.finish(path, OF_A_TEACHER).unwrap();
    }

    #[test]
    fn answers_of_parts_are_found() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("1-of-2.safetensors"), 0);
        write(&folder.path().join("2-of-2.safetensors"), 4);
        let outputs = ["samples".to_string()];
        let stored = StoredAnswers::open(folder.path(), OF_A_TEACHER, &outputs).unwrap();
        assert_eq!((stored.missing(&[0, 7, 3]), stored.missing(&[0, 9, 8])), (None, Some((2, 9))));
        let inputs = [Tensor::f32(&[3, 3], &[0.0; 9])];
        let answers = stored.answer(&inputs, &[6, 1, 4]).unwrap();
        assert_eq!(answers, [Tensor::f32(&[3, 2], &[6.0, -6.0, 1.0, -1.0, 4.0, -4.0])]);
        let wider = [Tensor::f32(&[1, 4], &[0.0; 4])];
        assert!(stored.answer(&wider, &[1]).unwrap_err().to_string().contains("other sizes"));
        let other = StoredAnswers::open(folder.path(), r#"{"data":"1","teacher":"b"}"#, &outputs).unwrap_err();
        assert!(other.to_string().contains("they differ in teacher"), "{other}");
    }

    #[test]
    fn damaged_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1-of-1.safetensors");
        write(&path, 0);
        let whole = fs::read(&path).unwrap();
        let outputs = ["samples".to_string()];
        for length in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(StoredAnswers::open(folder.path(), OF_A_TEACHER, &outputs).is_err(), "{length} bytes");
        }
        let mut header = whole.clone();
        header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        fs::write(&path, header).unwrap();
        assert!(StoredAnswers::open(folder.path(), OF_A_TEACHER, &outputs).is_err());
        fs::write(&path, whole).unwrap();
        assert!(StoredAnswers::open(folder.path(), OF_A_TEACHER, &["y".to_string()]).is_err(), "it has no such output");
    }

    #[test]
    fn samples_of_different_sizes_are_refused() {
        let mut writer = AnswersWriter::new(vec!["y".into()]).unwrap();
        let (inputs, indices, answers) = rows(0, 2);
        writer.add(&[inputs], &indices, std::slice::from_ref(&answers)).unwrap();
        // Two rows of three are of samples, as a batch may be filled up.
        let (filled, _, more) = rows(0, 3);
        writer.add(&[filled], &indices, &[more]).unwrap();
        assert_eq!(writer.samples, [0, 1, 0, 1]);
        let longer = [Tensor::f32(&[2, 5], &[0.0; 10])];
        assert!(writer.add(&longer, &indices, &[answers]).unwrap_err().to_string().contains("different sizes"));
    }
}
