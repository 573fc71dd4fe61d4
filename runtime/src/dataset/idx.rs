//! The IDX files of MNIST and its kin, plain or gzipped.

use super::{
    InputSpec, Preprocess,
    array::{self, Columns, Place, Stored},
    source::{Format, PathKind, SampleSource},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
};
use flate2::read::MultiGzDecoder;
use std::{
    fs,
    io::{BufReader, Read, Seek},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

const NAMING: &str = "name the file with the pictures, such as train-images-idx3-ubyte.gz; \
    the labels are found beside it";

pub(super) const FORMAT: Format = Format {
    means: "an IDX file such as train-images-idx3-ubyte.gz",
    open: |path, asked| {
        let set = match asked.place {
            PathKind::File if is_likely(path) => path.to_owned(),
            PathKind::File => return Ok(None),
            PathKind::Nothing => match by_prefix(path) {
                Some(found) => found?,
                None => return Ok(None),
            },
            PathKind::Folder => match &in_folder(path, "")?[..] {
                [] => return Ok(None),
                [one] => one.clone(),
                all => return Err(several(all)),
            },
        };
        let columns = open(&set, asked.inputs, asked.reading.preprocess.as_ref()).map_err(|e| e.in_file(&set))?;
        Ok(Some(Box::new(columns)))
    },
};

/// Whether the file starts as an IDX file does, or is compressed and so may be one.
fn is_likely(path: &Path) -> bool {
    let mut start = [0; 3];
    let read = array::open(path).is_ok_and(|file| file.read_exact_at(&mut start, 0).is_ok());
    read && (start == [0, 0, 8] || is_gzip(start))
}

fn is_gzip(start: [u8; 3]) -> bool {
    start[..2] == [0x1f, 0x8b]
}

/// The files with pictures in `folder` whose names start with `prefix`, one for each set. A set
/// that is there both plain and gzipped counts once, as the plain one.
fn in_folder(folder: &Path, prefix: &str) -> Result<Vec<PathBuf>> {
    let unreadable = |e| Error::file(format!("cannot be listed: {e}")).in_file(folder);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let Some(name) = path.file_name().and_then(|n| n.to_str()) else { continue };
        if name.starts_with(prefix) && name.contains("images") && name.contains("idx3") {
            found.push(path);
        }
    }
    found.sort();
    let plain = found.clone();
    found.retain(|path| path.extension().is_none_or(|e| e != "gz") || !plain.contains(&path.with_extension("")));
    Ok(found)
}

/// The set whose files start with `prefix`, as `folder/mnist-train` does for
/// `folder/mnist-train-images-idx3-ubyte.gz`. `None` when there is nothing of the kind.
fn by_prefix(prefix: &Path) -> Option<Result<PathBuf>> {
    let name = prefix.file_name()?.to_str()?;
    let folder = match prefix.parent()? {
        parent if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent,
    };
    let found = in_folder(folder, name).ok()?;
    let exact = |path: &&PathBuf| {
        let rest = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start_matches(['-', '_', '.']).starts_with("images"))
    };
    match (found.iter().find(exact), &found[..]) {
        (_, []) => None,
        (Some(path), _) => Some(Ok(path.clone())),
        (None, [path]) => Some(Ok(path.clone())),
        (None, _) => Some(Err(several(&found).in_file(prefix))),
    }
}

/// The error for sets among which the user has to choose.
fn several(found: &[PathBuf]) -> Error {
    let name = |path: &PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let shown: Vec<_> = found.iter().take(10).map(name).collect();
    let first = found.first().map(|path| path.display().to_string()).unwrap_or_default();
    Error::data(format!("there are {} sets: {}", found.len(), shown.join(", ")))
        .help(format!("name one of them, such as {first}"))
}

/// The set whose pictures are in the file at `path`.
fn open(path: &Path, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Columns> {
    let [spec] = inputs else {
        return Err(Error::data(format!("it holds pictures for one input, but the model has {}", inputs.len()))
            .help("give an .npz with an array named after each input"));
    };
    let mut columns = Columns::new(path, inputs, &[]);
    let pictures = load(path, 3, |shape| columns.fits(spec, shape))?;
    columns.push(spec, "pictures", pictures, preprocess, true)?;
    if let Some(path) = labels_beside(path) {
        let rows = columns.len();
        let labels = load(&path, 1, |shape| match *shape {
            [found] if found != rows => {
                Err(Error::data(format!("it has {found} labels, but there are {rows} pictures"))
                    .help("the files are not of the same set; fetch both again"))
            }
            _ => Ok(()),
        });
        let labels = labels.map_err(|e| e.in_file(&path))?;
        columns.label_from(path, "labels", labels)?;
    }
    Ok(columns)
}

fn labels_beside(path: &Path) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    if !name.contains("images") {
        return None;
    }
    let same = name.replace("images", "labels").replace("idx3", "idx1");
    let other = match same.strip_suffix(".gz") {
        Some(plain) => plain.to_owned(),
        None => format!("{same}.gz"),
    };
    [same, other].into_iter().map(|name| path.with_file_name(name)).find(|path| path.is_file())
}

/// Opens the array in an IDX file; `check` sees the announced shape before anything is unpacked.
fn load(path: &Path, axes: u8, check: impl FnOnce(&[usize]) -> Result<()>) -> Result<Stored> {
    let mut file = array::open(path)?;
    let size = file.metadata().map_err(|e| Error::file(e.to_string()))?.len();
    let mut start = [0; 3];
    file.read_exact(&mut start).map_err(|e| array::damaged(&e))?;
    file.rewind().map_err(|e| Error::file(e.to_string()))?;
    if is_gzip(start) {
        let mut reader = MultiGzDecoder::new(BufReader::new(file));
        let shape = header(&mut reader, axes)?;
        let expected = array::payload(DType::U8, &shape)?;
        check(&shape)?;
        let file = Arc::new(array::unpack(&mut reader, expected, size)?);
        return Ok(Stored { place: Place::File(file, 0), dtype: DType::U8, shape });
    }
    let shape = header(&mut file, axes)?;
    let (expected, offset) = (array::payload(DType::U8, &shape)?, 4 + 4 * u64::from(axes));
    if size - offset != expected {
        return Err(Error::data(format!(
            "its header announces {shape:?}, which is {expected} bytes, but {} follow",
            size - offset
        ))
        .help("the file is truncated or damaged; fetch it again"));
    }
    check(&shape)?;
    Ok(Stored { place: Place::File(Arc::new(file), offset), dtype: DType::U8, shape })
}

fn header(reader: &mut impl Read, axes: u8) -> Result<Vec<usize>> {
    let mut word = [0; 4];
    reader.read_exact(&mut word).map_err(|e| array::damaged(&e))?;
    if word != [0, 0, 8, axes] {
        return Err(Error::data(format!(
            "its first bytes are {word:02x?}; an IDX file of {} starts with {:02x?}",
            if axes == 3 { "pictures" } else { "labels" },
            [0, 0, 8, axes]
        ))
        .help(NAMING));
    }
    (0..axes)
        .map(|_| {
            reader.read_exact(&mut word).map_err(|e| array::damaged(&e))?;
            Ok(u32::from_be_bytes(word) as usize)
        })
        .collect()
}
