//! NumPy's `.npy` and `.npz`.

use super::{
    InputSpec, Preprocess,
    array::{self, Columns, Place, Stored},
    source::{Format, PathKind, SampleSource},
};
use compress_compiler::{
    error::{Error, Result},
    tensor::DType,
    words::option::ENCODER,
};
use std::{
    fs::File,
    io::{BufReader, Read, Seek},
    path::Path,
    sync::Arc,
};
use zip::{CompressionMethod, ZipArchive, result::ZipError};

pub(super) const FORMAT: Format = Format {
    means: "an .npz or .npy",
    open: |path, asked| {
        let extension = path.extension().map(|e| e.to_ascii_lowercase()).unwrap_or_default();
        let columns = match extension.to_str() {
            _ if asked.place != PathKind::File => return Ok(None),
            Some("npz") => open_npz(path, asked.inputs, asked.reading.preprocess.as_ref())?,
            Some("npy") => open_npy(path, asked.inputs, asked.reading.preprocess.as_ref())?,
            _ => return Ok(None),
        };
        Ok(Some(Box::new(columns)))
    },
};

/// Names under which the data of a model's only input is also looked for.
pub(super) const DATA: [&str; 3] = ["x", "images", "data"];
/// Names of labels.
pub(super) const LABELS: [&str; 2] = ["y", "labels"];

/// Headers of plain arrays take about 100 bytes; only records have long ones.
const MAX_HEADER: usize = 1 << 16;

struct Header {
    dtype: DType,
    shape: Vec<usize>,
    /// Bytes before the first element.
    len: u64,
    /// Bytes of all the elements.
    payload: u64,
}

impl Header {
    fn read(reader: &mut impl Read) -> Result<Self> {
        let mut start = [0; 8];
        reader.read_exact(&mut start).map_err(|e| array::damaged(&e))?;
        if &start[..6] != b"\x93NUMPY" {
            return Err(Error::data("it is not a NumPy array: it lacks the mark at its start")
                .help("write it with numpy.save or numpy.savez"));
        }
        // From version 2 on, the length of the header takes four bytes.
        let mut size = [0; 4];
        let wide = if start[6] == 1 { 2 } else { 4 };
        reader.read_exact(&mut size[..wide]).map_err(|e| array::damaged(&e))?;
        let size = u32::from_le_bytes(size) as usize;
        if size > MAX_HEADER {
            return Err(Error::data(format!("its header of {size} bytes is not a plain array's")));
        }
        let mut text = vec![0; size];
        reader.read_exact(&mut text).map_err(|e| array::damaged(&e))?;
        let text = String::from_utf8_lossy(&text);
        let broken = |key| Error::data(format!("its header has no valid `{key}`"));
        if !value(&text, "fortran_order").ok_or_else(|| broken("fortran_order"))?.starts_with("False") {
            return Err(Error::data("it is stored in Fortran order")
                .help("write it with numpy.save(path, numpy.ascontiguousarray(x))"));
        }
        let dtype = element_type(value(&text, "descr").ok_or_else(|| broken("descr"))?)?;
        let shape = value(&text, "shape")
            .and_then(|v| v.strip_prefix('(')?.split_once(')'))
            .and_then(|(list, _)| {
                let axes = list.split(',').map(str::trim).filter(|axis| !axis.is_empty());
                axes.map(|axis| axis.parse().ok()).collect::<Option<Vec<usize>>>()
            })
            .ok_or_else(|| broken("shape"))?;
        let payload = array::payload(dtype, &shape)?;
        Ok(Self { dtype, shape, len: (8 + wide + size) as u64, payload })
    }

    fn check_size(&self, whole: u64) -> Result<()> {
        if self.len.checked_add(self.payload) == Some(whole) {
            return Ok(());
        }
        Err(Error::data(format!(
            "its header announces {}{:?}, which is {} bytes, but {} follow",
            self.dtype,
            self.shape,
            self.payload,
            whole.saturating_sub(self.len)
        ))
        .help("the file is truncated or damaged; write it again"))
    }

    fn stored(self, file: Arc<File>, offset: u64) -> Stored {
        Stored { place: Place::File(file, offset), dtype: self.dtype, shape: self.shape }
    }
}

/// The text after `'key':` in a Python dictionary.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("'{key}'"))?;
    Some(rest.trim_start().strip_prefix(':')?.trim_start())
}

fn element_type(descr: &str) -> Result<DType> {
    let name = descr.strip_prefix('\'').and_then(|d| d.split_once('\'')).map(|(name, _)| name);
    let Some((order, kind)) = name.and_then(|n| n.split_at_checked(1)) else {
        return Err(Error::data("its elements are records").help("save each field as an array of its own"));
    };
    let dtype = match kind {
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" => DType::Bool,
        _ => {
            return Err(Error::data(format!("its elements are of NumPy's type `{order}{kind}`"))
                .help("convert it with x.astype('float32') or x.astype('int64')"));
        }
    };
    if order == ">" && dtype.size() > 1 {
        return Err(Error::data("its elements are big-endian").help(format!("convert it with x.astype('<{kind}')")));
    }
    Ok(dtype)
}

/// A set that is one `.npy` file.
fn open_npy(path: &Path, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Columns> {
    let [spec] = inputs else {
        let names = inputs.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(Error::data(format!("it holds one array, but the model has {} inputs: {names}", inputs.len()))
            .help("give an .npz with an array named after each input"));
    };
    let file = array::open(path)?;
    let whole = file.metadata().map_err(|e| Error::file(e.to_string()))?.len();
    let header = Header::read(&mut BufReader::new(&file))?;
    header.check_size(whole)?;
    let offset = header.len;
    let mut columns = Columns::new(path, inputs, &[&header.shape]);
    columns.push(spec, &spec.name, header.stored(Arc::new(file), offset), preprocess, false)?;
    Ok(columns)
}

/// A set that is one `.npz` file.
fn open_npz(path: &Path, inputs: &[InputSpec], preprocess: Option<&Preprocess>) -> Result<Columns> {
    let file = Arc::new(array::open(path)?);
    let mut archive = ZipArchive::new(BufReader::new(&*file)).map_err(|e| not_a_zip(&e))?;
    let names: Vec<String> =
        archive.file_names().filter_map(|name| Some(name.ok()?.strip_suffix(".npy")?.to_owned())).collect();
    let has = |name: &&str| names.iter().any(|n| n == name);
    let mut wanted = Vec::new();
    for spec in inputs {
        let aliases: &[&str] = if inputs.len() == 1 { &DATA } else { &[] };
        let found = [spec.name.as_str()].into_iter().chain(aliases.iter().copied()).find(has);
        wanted.push(found.ok_or_else(|| lacking(spec, inputs, &names))?);
    }
    let labels = LABELS.into_iter().find(|label| has(label) && !wanted.contains(label));

    // Unpacking may take minutes, so everything that headers can tell is checked before.
    let mut headers = Vec::new();
    for name in wanted.iter().copied().chain(labels) {
        headers.push(header(&mut archive, name).map_err(|e| e.about(format_args!("array `{name}`")))?);
    }
    let shapes: Vec<&[usize]> = headers.iter().map(|h| &h.shape[..]).collect();
    let mut columns = Columns::new(path, inputs, &shapes);
    columns.unread = names.iter().filter(|n| !wanted.contains(&&n[..]) && labels != Some(n)).cloned().collect();
    for ((spec, name), header) in inputs.iter().zip(&wanted).zip(&headers) {
        columns.fits(spec, &header.shape).map_err(|e| e.about(format_args!("array `{name}`")))?;
    }
    for (i, (header, name)) in headers.into_iter().zip(wanted.iter().copied().chain(labels)).enumerate() {
        let stored = member(&mut archive, &file, name, header).map_err(|e| e.about(format_args!("array `{name}`")))?;
        match inputs.get(i) {
            Some(spec) => columns.push(spec, name, stored, preprocess, false)?,
            None => columns.label(name, stored)?,
        }
    }
    if columns.len() == 0 {
        return Err(Error::data("its arrays are single numbers, which say nothing of how many samples there are")
            .help("give one of them an axis that counts the samples"));
    }
    Ok(columns)
}

fn lacking(spec: &InputSpec, inputs: &[InputSpec], found: &[String]) -> Error {
    // An archive can list millions of names.
    let shown = found.iter().take(20).map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    let wanted = inputs.iter().map(|i| format!("`{}`", i.name)).collect::<Vec<_>>().join(", ");
    let e = Error::data(format!(
        "it has no array `{}`; it has {}; the model takes {wanted}",
        spec.name,
        if shown.is_empty() { "none" } else { &shown }
    ));
    match inputs {
        _ if spec.name == "encoder_hidden_states" => {
            e.help(format!("give the encoder that makes it with {ENCODER}, or save what it makes under that name"))
        }
        [_] => e.help("save it with numpy.savez(path, x=.., y=..); y, the labels, may be left out"),
        _ => e.help("save an array named after each input, and labels as y if there are any"),
    }
}

fn header<R: Read + Seek>(archive: &mut ZipArchive<R>, name: &str) -> Result<Header> {
    let mut member = archive.by_name(&format!("{name}.npy")).map_err(|e| not_a_zip(&e))?;
    if !matches!(member.compression(), CompressionMethod::Stored | CompressionMethod::Deflated) {
        return Err(Error::data(format!("it is compressed with {}", member.compression()))
            .help("write it with numpy.savez or numpy.savez_compressed"));
    }
    let header = Header::read(&mut member)?;
    header.check_size(member.size())?;
    Ok(header)
}

fn member<R: Read + Seek>(
    archive: &mut ZipArchive<R>,
    whole: &Arc<File>,
    name: &str,
    header: Header,
) -> Result<Stored> {
    let mut member = archive.by_name(&format!("{name}.npy")).map_err(|e| not_a_zip(&e))?;
    if member.compression() == CompressionMethod::Stored {
        let end = whole.metadata().map_err(|e| Error::file(e.to_string()))?.len();
        let start = member.data_start().and_then(|start| start.checked_add(header.len));
        return match start {
            Some(start) if start.checked_add(header.payload).is_some_and(|stop| stop <= end) => {
                Ok(header.stored(Arc::clone(whole), start))
            }
            _ => {
                Err(Error::data("it lies beyond the end of the archive").help("the file is truncated; write it again"))
            }
        };
    }
    let packed = member.compressed_size();
    let mut data = BufReader::new(&mut member);
    let again = Header::read(&mut data)?;
    let file = array::unpack(&mut data, again.payload, packed)?;
    Ok(header.stored(Arc::new(file), 0))
}

fn not_a_zip(e: &ZipError) -> Error {
    Error::data(format!("it is not a readable .npz archive: {e}"))
        .help("write it with numpy.savez or numpy.savez_compressed")
}
