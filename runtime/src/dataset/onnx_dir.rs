//! ONNX test data: folders of `input_0.pb`, `input_1.pb` and so on.

use super::{
    InputSpec, Preprocess,
    array::{self, batch_shape},
    source::{self, Format, PathKind, SampleSource},
    values::{self, Values},
};
use compress_compiler::{
    error::{Error, Result},
    onnx,
    tensor::Tensor,
};
use std::{
    ffi::OsString,
    fs,
    io::Read,
    path::{Path, PathBuf},
};

pub(super) const FORMAT: Format = Format {
    means: "a folder of ONNX test_data_set folders",
    open: |path, asked| match asked.place {
        PathKind::Folder => {
            let found = Folders::open(path, asked.inputs, asked.reading.preprocess.as_ref())?;
            Ok(found.map(|folders| Box::new(folders) as _))
        }
        PathKind::File if path.extension().is_some_and(|e| e == "pb") => Err(source::single()),
        PathKind::File | PathKind::Nothing => Ok(None),
    },
};

/// A tensor is parsed as a whole, and small numbers grow while parsing.
const MAX_FILE: u64 = 256 << 20;

/// One or several `test_data_set_*` folders.
struct Folders {
    folders: Vec<Folder>,
    rows: usize,
    preprocess: Option<Preprocess>,
}

struct Folder {
    path: PathBuf,
    /// How many samples come before those of this folder.
    first: usize,
    /// Whether its tensors share a first axis that counts samples.
    stacked: bool,
}

/// A tensor as its file has it.
struct Parsed {
    file: PathBuf,
    name: String,
    tensor: Tensor,
}

impl Folders {
    /// The data in `root`, or in the folders in it; `None` when there is nothing of the kind.
    fn open(root: &Path, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Option<Self>> {
        let mut paths = Vec::new();
        if input(root, 0).is_file() {
            paths.push(root.to_owned());
        } else {
            let unreadable = |e| Error::file(format!("cannot be listed: {e}"));
            for entry in fs::read_dir(root).map_err(unreadable)? {
                let path = entry.map_err(unreadable)?.path();
                if input(&path, 0).is_file() {
                    paths.push(path);
                }
            }
            paths.sort_by_cached_key(|path| numbered(path));
        }
        let mut set = Self { folders: vec![], rows: 0, preprocess: preprocess.cloned() };
        for path in paths {
            let parsed = read(&path, inputs)?;
            let rows = common_rows(inputs, &parsed);
            for (spec, parsed) in inputs.iter().zip(&parsed) {
                set.plan(spec, parsed, rows.is_some())?;
            }
            set.folders.push(Folder { path, first: set.rows, stacked: rows.is_some() });
            set.rows += rows.unwrap_or(1);
        }
        Ok((!set.folders.is_empty()).then_some(set))
    }

    /// The shape of a sample in the model, and the way there.
    fn plan(&self, spec: &InputSpec, parsed: &Parsed, stacked: bool) -> Result<(Vec<usize>, Values)> {
        let (from, shape) = (parsed.tensor.dtype(), parsed.tensor.shape());
        let found = if stacked { shape.get(1..).unwrap_or_default() } else { shape };
        let plan = || {
            let sample = values::fit(spec, stacked, found)?;
            let preprocess = self.preprocess.as_ref();
            let values = Values::new(spec, stacked, from, &sample, preprocess, false)?;
            Ok((sample, values))
        };
        plan().map_err(|e: Error| e.in_file(&parsed.file))
    }
}

impl SampleSource for Folders {
    fn len(&self) -> usize {
        self.rows
    }

    fn stacks(&self) -> bool {
        self.folders.iter().all(|folder| folder.stacked)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.folders.iter().flat_map(|folder| input_files(&folder.path)).collect()
    }

    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        // The first folder starts at zero, so at least one starts at or before any row.
        let folder = |row: usize| self.folders.partition_point(|f| f.first <= row) - 1;
        let mut slots: Vec<_> = rows.iter().enumerate().map(|(slot, row)| (folder(*row), *row, slot)).collect();
        // A folder is parsed as a whole, so its samples are best taken one after the other.
        slots.sort_unstable();
        let mut batch: Vec<(Vec<usize>, Vec<u8>)> = Vec::new();
        for group in slots.chunk_by(|a, b| a.0 == b.0) {
            let folder = &self.folders[group[0].0];
            for (i, (spec, parsed)) in inputs.iter().zip(read(&folder.path, inputs)?).enumerate() {
                let (sample, values) = self.plan(spec, &parsed, folder.stacked)?;
                let stored_bytes = values::size_of(parsed.tensor.dtype(), &sample)?;
                let sample_bytes = values::size_of(spec.dtype, &sample)?;
                if batch.len() == i {
                    let out = values::room(rows.len(), sample_bytes)?;
                    batch.push((sample.clone(), out));
                }
                let (shape, out) = &mut batch[i];
                let fails = |e: Error| e.in_file(&parsed.file);
                if *shape != sample {
                    return Err(fails(
                        Error::data(format!("its samples are {sample:?}, but others in the batch are {shape:?}"))
                            .help("samples of different shapes need a batch of their own each"),
                    ));
                }
                for (_, row, slot) in group {
                    let start = (row - folder.first) * stored_bytes;
                    let stored = parsed.tensor.bytes().get(start..start + stored_bytes);
                    // The file may have been replaced since it was opened.
                    let mut stored = stored.ok_or_else(|| fails(Error::file("has changed meanwhile")))?.to_vec();
                    let out = &mut out[slot * sample_bytes..(slot + 1) * sample_bytes];
                    values.convert(&mut stored, out).map_err(|e| fails(Error::data(format!("sample {row}: {e}"))))?;
                }
            }
        }
        let stacked = self.folders[slots[0].0].stacked;
        let tensors = batch
            .into_iter()
            .zip(inputs)
            .map(|((shape, bytes), spec)| Tensor::new(spec.dtype, batch_shape(stacked, rows.len(), &shape), bytes));
        tensors.collect()
    }
}

fn input(folder: &Path, index: usize) -> PathBuf {
    folder.join(format!("input_{index}.pb"))
}

fn input_files(folder: &Path) -> Vec<PathBuf> {
    (0..).map(|i| input(folder, i)).take_while(|path| path.is_file()).collect()
}

/// Sorts `test_data_set_2` before `test_data_set_10`.
fn numbered(path: &Path) -> (String, u64, OsString) {
    let name = path.file_name().unwrap_or_default();
    let text = name.to_string_lossy();
    let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
    (stem.to_owned(), text[stem.len()..].parse().unwrap_or(u64::MAX), name.to_owned())
}

/// The number of samples in the tensors, if their first axes count samples.
fn common_rows(inputs: &[InputSpec], parsed: &[Parsed]) -> Option<usize> {
    let rows = |p: &Parsed| p.tensor.shape().first().copied();
    let first = rows(parsed.first()?)?;
    let all = first > 0 && parsed.iter().all(|p| rows(p) == Some(first));
    (all && values::stacks(inputs)).then_some(first)
}

/// The tensors in `folder`, in the order of `inputs`.
fn read(folder: &Path, inputs: &[InputSpec]) -> Result<Vec<Parsed>> {
    let files = input_files(folder);
    let parsed = files.into_iter().map(|file| parse(&file).map_err(|e| e.in_file(&file)));
    let mut parsed = parsed.collect::<Result<Vec<_>>>()?;
    // The format goes by the order of the files. Where names are there too they say more, as
    // when the model has lost an input that it did not need.
    let place = |p: &Parsed| inputs.iter().position(|spec| spec.name == p.name);
    if inputs.iter().all(|spec| parsed.iter().any(|p| p.name == spec.name)) {
        parsed.retain(|p| place(p).is_some());
        parsed.sort_by_key(place);
    }
    if parsed.len() == inputs.len() {
        return Ok(parsed);
    }
    let list = |names: Vec<&str>| names.join(", ");
    Err(Error::data(format!(
        "it has {} inputs ({}), but the model takes {} ({})",
        parsed.len(),
        list(parsed.iter().take(20).map(|p| p.name.as_str()).collect()),
        inputs.len(),
        list(inputs.iter().map(|spec| spec.name.as_str()).collect()),
    ))
    .help("there must be input_0.pb, input_1.pb and so on, one for each input")
    .in_file(folder))
}

fn parse(file: &Path) -> Result<Parsed> {
    let opened = array::open(file)?;
    let size = opened.metadata().map_err(|e| Error::file(e.to_string()))?.len();
    if size > MAX_FILE {
        return Err(Error::limit(format!("{size} bytes are too many for a test tensor"))
            .help("give large sets as an .npz, which is read a sample at a time"));
    }
    let mut bytes = vec![];
    opened.take(MAX_FILE).read_to_end(&mut bytes).map_err(|e| Error::file(e.to_string()))?;
    let (name, tensor) = onnx::read_tensor(bytes).map_err(|e| Error::data(e.message()))?;
    Ok(Parsed { file: file.to_owned(), name, tensor })
}

#[cfg(test)]
mod tests {
    use super::super::{
        Dataset, Reading,
        testing::{named, spec},
    };
    use super::*;
    use compress_compiler::{error::Kind, tensor::DType};
    use onnx_protobuf::TensorProto;
    use protobuf::Message;

    fn write(folder: &Path, index: usize, proto: &TensorProto) {
        fs::create_dir_all(folder).unwrap();
        fs::write(input(folder, index), proto.write_to_bytes().unwrap()).unwrap();
    }

    fn floats(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
        TensorProto {
            name: name.to_owned(),
            data_type: DType::F32 as i32,
            dims: dims.to_vec(),
            float_data: values.to_vec(),
            ..Default::default()
        }
    }

    #[test]
    fn folders_are_samples_in_the_order_of_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        for (n, values) in [(10, vec![5.0, 6.0]), (2, vec![1.0, 2.0, 3.0, 4.0])] {
            let folder = dir.path().join(format!("test_data_set_{n}"));
            let mut a = floats("", &[values.len() as i64 / 2, 2], &[]);
            a.raw_data = values.iter().flat_map(|v: &f32| v.to_le_bytes()).collect();
            write(&folder, 0, &a);
            let b = TensorProto {
                data_type: DType::I64 as i32,
                dims: vec![values.len() as i64 / 2, 1],
                int64_data: vec![n; values.len() / 2],
                ..Default::default()
            };
            write(&folder, 1, &b);
            fs::write(folder.join("output_0.pb"), "ignored").unwrap();
        }
        let mut specs = [spec("a", &[None, Some(2)]), spec("b", &[None, None])];
        specs[1].dtype = DType::I64;
        let set = Dataset::open(dir.path(), &specs, &Reading::default()).unwrap();
        assert_eq!((set.len(), set.stacks()), (3, true));
        let batch = set.batch(&[2, 0, 1]).unwrap();
        assert_eq!(*batch.inputs[0].as_f32().unwrap(), [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(batch.inputs[1].as_i64().unwrap(), [10, 2, 2]);
        assert_eq!(batch.inputs[1].shape(), [3, 1]);
        let one = Dataset::open(&dir.path().join("test_data_set_10"), &specs, &Reading::default()).unwrap();
        assert_eq!((one.len(), one.is_labelled()), (1, false));
        assert_eq!(one.digest().unwrap().len(), 64);

        let e = Dataset::open(dir.path(), &specs[..1], &Reading::default()).err().unwrap();
        assert!(e.to_string().contains("2 inputs"), "{e}");
    }

    #[test]
    fn states_and_scalars_go_one_sample_at_a_time_and_names_beat_order() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, &floats("state", &[2, 1, 3], &[0.5; 6]));
        write(dir.path(), 1, &floats("rate", &[], &[8.0]));
        write(dir.path(), 2, &floats("gone", &[1], &[0.0]));
        let specs = [spec("rate", &[]), spec("state", &[Some(2), None, Some(3)])];
        let set = Dataset::open(dir.path(), &specs, &Reading::default()).unwrap();
        assert_eq!((set.len(), set.stacks()), (1, false));
        let batch = set.batch(&[0]).unwrap();
        assert_eq!(batch.inputs[0].shape(), [] as [usize; 0]);
        assert_eq!(batch.inputs[1].shape(), [2, 1, 3]);
        assert_eq!(set.batch(&[0, 0]).err().unwrap().kind(), Kind::Data);
    }

    #[test]
    fn a_first_axis_that_is_found_elsewhere_counts_no_samples() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), 0, &floats("mask", &[2, 2], &[0.0; 4]));
        write(dir.path(), 1, &floats("x", &[2, 2, 3], &[0.5; 12]));
        let set =
            Dataset::open(dir.path(), &[named("mask", "S, T"), named("x", "B, S, 3")], &Reading::default()).unwrap();
        assert_eq!((set.len(), set.fixed_batch()), (1, Some(1)));
        let batch = set.batch(&[0]).unwrap();
        assert_eq!((batch.inputs[0].shape(), batch.inputs[1].shape()), (&[2, 2][..], &[2, 2, 3][..]));
        // Names alone make no difference between two batches.
        let set =
            Dataset::open(dir.path(), &[named("mask", "B1, T"), named("x", "B2, S, 3")], &Reading::default()).unwrap();
        assert_eq!((set.len(), set.fixed_batch()), (2, None));
    }

    #[test]
    fn broken_tensors_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let specs = [spec("a", &[None, Some(2)])];
        for bad in [
            floats("", &[1, 2], &[1.0]),
            floats("", &[1, -2], &[]),
            floats("", &[0, 2], &[]),
            floats("", &[i64::MAX, 2], &[1.0]),
            floats("", &[1, 3], &[0.0; 3]),
        ] {
            write(dir.path(), 0, &bad);
            let e = Dataset::open(dir.path(), &specs, &Reading::default()).err().unwrap();
            assert!(e.kind() == Kind::Data && e.to_string().contains("input_0.pb"), "{e}");
        }
        // Groups inside groups would overflow the parser's stack.
        for bad in [vec![0xff; 40], vec![0xab; 1 << 20]] {
            fs::write(input(dir.path(), 0), bad).unwrap();
            assert_eq!(Dataset::open(dir.path(), &specs, &Reading::default()).err().unwrap().kind(), Kind::Data);
        }
        write(dir.path(), 0, &floats("", &[1, 2], &[1.0, f32::NAN]));
        let e = Dataset::open(dir.path(), &specs, &Reading::default()).unwrap().batch(&[0]).err().unwrap();
        assert!(e.to_string().contains("sample 0"), "{e}");
    }
}
