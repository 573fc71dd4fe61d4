//! Text: a `.txt`, or a `.jsonl` whose lines have a `text` and perhaps a `label`.
//!
//! A model that is told which tokens count, by a mask, reads a line as a sample; samples of a batch are filled up to the same
//! length. Another, such as a decoder with a cache, reads all the text in pieces of the same length. The numbers of the tokens lie
//! in a temporary file.

use super::{
    InputSpec, MadeUpIntegers, array,
    source::{Asked, Format, PathKind, SampleSource},
    tokens::Tokens,
};
use compress_compiler::{
    error::{Error, Result},
    tensor::{DType, Tensor},
    words::option::TOKENS,
};
use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// What text is, after "data can be".
pub const TEXT: &str = "a .txt or .jsonl of text";

pub(super) const FORMAT: Format = Format {
    means: TEXT,
    open: |path, asked| match lines_are_json(path).filter(|_| asked.place == PathKind::File) {
        Some(json) => Ok(Some(Box::new(Text::open(path, json, asked)?))),
        None => Ok(None),
    },
};

/// Whether a file is one of text, by its name.
pub fn is_text(path: &Path) -> bool {
    lines_are_json(path).is_some()
}

/// Whether the lines of a file of text are objects of JSON; `None` for a file of another kind.
fn lines_are_json(path: &Path) -> Option<bool> {
    match path.extension()?.to_ascii_lowercase().to_str()? {
        "txt" => Some(false),
        "jsonl" => Some(true),
        _ => None,
    }
}

/// Tokens of a sample unless told otherwise.
pub const USUAL_TOKENS: usize = 128;
/// Samples are filled up to a multiple of this, so that batches have few different sizes.
const STEP: usize = 16;
/// The longest line: a longer one is no text.
const LONGEST: u64 = 16 << 20;
/// Bytes of text that are made tokens at once.
const CHUNK: usize = 1 << 16;
/// Bytes that a token has at most.
const TOKEN: usize = 256;

/// What an input is given of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Tokens,
    /// 1 for a token, 0 for what fills up.
    Mask,
    /// 0, 1, 2 and so on.
    Places,
    /// Which of two sentences it is of: there is one.
    Sentence,
}

impl Part {
    fn of(spec: &InputSpec) -> Result<Self> {
        let fits = matches!(spec.dtype, DType::I64 | DType::I32) && spec.shape.len() == 2;
        let has = |what: &str| spec.name.to_lowercase().contains(what);
        match () {
            () if fits && has("input_ids") => Ok(Self::Tokens),
            () if fits && has("mask") => Ok(Self::Mask),
            () if fits && has("position") => Ok(Self::Places),
            () if fits && has("token_type") => Ok(Self::Sentence),
            () => Err(Error::data(format!("text can't feed the input `{}`, {}{:?}", spec.name, spec.dtype, spec.sizes()))
                .help("text feeds whole numbers [samples, tokens] called input_ids, attention_mask, token_type_ids or position_ids; give an .npz")),
        }
    }
}

/// Where samples begin among the tokens.
enum Cut {
    /// Pieces of the same length.
    Pieces { length: usize, count: usize },
    /// Lines, the longest of so many tokens: where each begins, and where the last ends.
    Lines { longest: usize, starts: Vec<u64> },
}

struct Text {
    path: PathBuf,
    /// All that it is made of.
    files: Vec<PathBuf>,
    /// The tokens, u32 each.
    tokens: File,
    cut: Cut,
    parts: Vec<Part>,
    pad: u32,
    labels: Option<Vec<i64>>,
}

impl Text {
    fn open(path: &Path, json: bool, asked: &Asked) -> Result<Self> {
        let parts = asked.inputs.iter().map(Part::of).collect::<Result<Vec<_>>>()?;
        let read = parts.iter().position(|p| *p == Part::Tokens).and_then(|place| asked.inputs.get(place));
        let read = read.ok_or_else(|| Error::data("the model has no input of numbers of tokens (input_ids)"))?;
        let vocabulary = if let MadeUpIntegers::Below(n) = read.whole { Some(n) } else { None };
        let length = read.sizes()[1].or(asked.reading.tokens).unwrap_or(USUAL_TOKENS).max(1);
        let tokenizer = asked.reading.tokenizer.as_deref();
        let by_line = parts.contains(&Part::Mask).then_some(length);
        let mut writing = Writing {
            tokens: Tokens::open(tokenizer, vocabulary, by_line)?,
            vocabulary,
            by_line,
            file: BufWriter::new(tempfile::tempfile().map_err(|e| no_room(&e))?),
            count: 0,
            starts: vec![0],
        };
        let labels = if json { writing.documents(path)? } else { writing.lines(path)? };
        let (count, starts) = (writing.count, std::mem::take(&mut writing.starts));
        let cut = match writing.by_line {
            Some(_) => {
                Cut::Lines { longest: starts.windows(2).map(|s| (s[1] - s[0]) as usize).max().unwrap_or(1), starts }
            }
            None => Cut::Pieces { length, count: usize::try_from(count).unwrap_or(usize::MAX) / length },
        };
        let pad = Some(writing.tokens.pad()).filter(|pad| !writing.is_outside(*pad)).unwrap_or(0);
        let tokens = writing.file.into_inner().map_err(|e| no_room(e.error()))?;
        let files = [path].into_iter().chain(tokenizer).map(Path::to_owned).collect();
        let set = Self { path: path.to_owned(), files, tokens, cut, parts, pad, labels };
        match set.len() {
            0 if count == 0 => Err(Error::data("there is no text in it")),
            0 => Err(Error::data(format!("it has {count} tokens, fewer than a sample of {length}"))
                .help(format!("give more text, or shorter samples with {TOKENS}"))),
            _ => Ok(set),
        }
    }

    /// The tokens of a sample.
    fn sample(&self, row: usize) -> Result<Vec<u32>> {
        let (start, count) = match &self.cut {
            Cut::Pieces { length, .. } => ((row * length) as u64, *length),
            // A sample that is asked for exists, and has an end.
            Cut::Lines { starts, .. } => (starts[row], (starts[row + 1] - starts[row]) as usize),
        };
        let mut bytes = vec![0; count * size_of::<u32>()];
        let read = self.tokens.read_exact_at(&mut bytes, start * size_of::<u32>() as u64);
        read.map_err(|e| Error::file(format!("cannot be read any more: {e}")).in_file(&self.path))?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }
}

impl SampleSource for Text {
    fn len(&self) -> usize {
        match &self.cut {
            Cut::Pieces { count, .. } => *count,
            Cut::Lines { starts, .. } => starts.len() - 1,
        }
    }

    fn stacks(&self) -> bool {
        true
    }

    fn inputs(&self, inputs: &[InputSpec], rows: &[usize]) -> Result<Vec<Tensor>> {
        let samples = rows.iter().map(|row| self.sample(*row)).collect::<Result<Vec<_>>>()?;
        let longest = samples.iter().map(Vec::len).max().unwrap_or(1);
        let length = match &self.cut {
            Cut::Pieces { length, .. } => *length,
            Cut::Lines { longest: all, .. } => longest.next_multiple_of(STEP).min(*all),
        };
        let one = |(spec, part): (&InputSpec, &Part)| {
            let length = spec.sizes()[1].unwrap_or(length).max(longest);
            let value = |sample: &Vec<u32>, place: usize| match part {
                Part::Tokens => i64::from(sample.get(place).copied().unwrap_or(self.pad)),
                Part::Mask => i64::from(place < sample.len()),
                Part::Places => place as i64,
                Part::Sentence => 0,
            };
            let values: Vec<i64> = samples
                .iter()
                .flat_map(|s| (0..length).map(move |place| (s, place)))
                .map(|(s, i)| value(s, i))
                .collect();
            Tensor::ints(spec.dtype, &[rows.len(), length], &values)
        };
        Ok(inputs.iter().zip(&self.parts).map(one).collect())
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.clone()
    }

    fn is_labelled(&self) -> bool {
        self.labels.is_some()
    }

    fn labels(&self, rows: &[usize]) -> Result<Option<Vec<i64>>> {
        Ok(self.labels.as_ref().map(|labels| rows.iter().map(|row| labels[*row]).collect()))
    }
}

/// Writes the tokens of a text.
struct Writing {
    tokens: Tokens,
    vocabulary: Option<i64>,
    /// Whether each line is a sample, of at most so many tokens.
    by_line: Option<usize>,
    file: BufWriter<File>,
    /// Tokens written.
    count: u64,
    /// Where lines begin, and where the next will.
    starts: Vec<u64>,
}

impl Writing {
    /// Adds the tokens of a text: a sample by itself, or a piece of one long text, with `end` behind it.
    fn add(&mut self, text: &str, end: bool) -> Result<()> {
        // Of a line nothing is read that is cut off anyway.
        let read = self.by_line.map_or(text.len(), |most| most.saturating_mul(TOKEN).min(text.len()));
        let text = &text[..text.floor_char_boundary(read)];
        let mut ids = vec![];
        let parts = if self.by_line.is_some() { vec![text] } else { chunks(text) };
        for part in parts {
            ids.extend(self.tokens.of(part, self.by_line.is_some())?);
        }
        match self.by_line {
            Some(most) => ids.truncate(most),
            None if end => ids.extend(self.tokens.end()),
            None => {}
        }
        if let (Some(id), Some(words)) = (ids.iter().find(|id| self.is_outside(**id)), self.vocabulary) {
            return Err(Error::data(format!("token {id} is outside the model's vocabulary of {words}"))
                .help("give the tokenizer that the model was trained with"));
        }
        self.file.write_all(bytemuck::cast_slice(&ids)).map_err(|e| no_room(&e))?;
        self.count += ids.len() as u64;
        if self.by_line.is_some() && !ids.is_empty() {
            self.starts.push(self.count);
        }
        Ok(())
    }

    fn is_outside(&self, id: u32) -> bool {
        self.vocabulary.is_some_and(|words| i64::from(id) >= words)
    }

    /// Adds a text, of which empty lines are no samples.
    fn lines(&mut self, path: &Path) -> Result<Option<Vec<i64>>> {
        let mut waiting = String::new();
        each_line(path, &mut |text| {
            match self.by_line {
                Some(_) if text.trim().is_empty() => {}
                Some(_) => self.add(text.trim(), false)?,
                None => waiting.push_str(text),
            }
            match waiting.len() >= CHUNK {
                true => self.add(&std::mem::take(&mut waiting), false),
                false => Ok(()),
            }
        })?;
        if !waiting.is_empty() {
            self.add(&waiting, false)?;
        }
        Ok(None)
    }

    /// Adds documents, one a line in JSON; their labels, if all have one.
    fn documents(&mut self, path: &Path) -> Result<Option<Vec<i64>>> {
        let mut labels: Option<Vec<i64>> = None;
        let mut documents = 0;
        each_line(path, &mut |line| {
            if line.trim().is_empty() {
                return Ok(());
            }
            let value: serde_json::Value = serde_json::from_str(line)
                .map_err(|e| Error::data(format!("it is not JSON, column {}", e.column())))?;
            let text = value.get("text").and_then(serde_json::Value::as_str);
            let text = text.ok_or_else(|| {
                Error::data("it has no `text`")
                    .help(r#"write each line as {"text": "..", "label": 0}; the label may be left out"#)
            })?;
            let label = match value.get("label") {
                None | Some(serde_json::Value::Null) => None,
                Some(label) => Some(label.as_i64().ok_or_else(|| {
                    Error::data(format!("its label {label} is not a whole number")).help("number the classes from 0")
                })?),
            };
            if text.trim().is_empty() {
                return Err(Error::data("its text is empty"));
            }
            let before = self.starts.len();
            self.add(text, true)?;
            if self.by_line.is_some() && self.starts.len() == before {
                return Err(Error::data("the tokenizer makes no token of its text"));
            }
            if documents == 0 {
                labels = label.map(|_| vec![]);
            }
            documents += 1;
            match (&mut labels, label) {
                (Some(labels), Some(label)) => labels.push(label),
                (None, None) => {}
                _ => return Err(Error::data("some lines have a `label`, this one or those before have none")),
            }
            Ok(())
        })?;
        // A piece of several documents has no label.
        Ok(labels.filter(|_| self.by_line.is_some()))
    }
}

/// Hands out the lines of the file at `path`, with their ends.
fn each_line(path: &Path, take: &mut dyn FnMut(&str) -> Result<()>) -> Result<()> {
    let mut reader = BufReader::new(array::open(path)?);
    let mut bytes = vec![];
    for number in 1_usize.. {
        bytes.clear();
        let read = (&mut reader).take(LONGEST).read_until(b'\n', &mut bytes);
        let read = read.map_err(|e| Error::file(format!("cannot be read: {e}")))?;
        if read == 0 {
            break;
        }
        let line = match std::str::from_utf8(&bytes) {
            _ if read as u64 == LONGEST => {
                Err(Error::data(format!("it is longer than {} MB", LONGEST >> 20)).help("give text in lines"))
            }
            // Some editors begin a file with the mark of its encoding.
            Ok(line) if number == 1 => Ok(line.strip_prefix('\u{feff}').unwrap_or(line)),
            Ok(line) => Ok(line),
            Err(_) => Err(Error::data("it is not UTF-8").help("convert it: iconv -f ITS-ENCODING -t utf-8")),
        };
        line.and_then(&mut *take).map_err(|e| e.about(format_args!("line {number}")))?;
    }
    Ok(())
}

/// A text in pieces that are made tokens at once, cut where a word begins if there is one.
fn chunks(mut text: &str) -> Vec<&str> {
    let mut parts = vec![];
    while text.len() > CHUNK {
        let end = text.floor_char_boundary(CHUNK);
        let end = text[..end].rfind(char::is_whitespace).filter(|at| *at > 0).unwrap_or(end);
        let (part, rest) = text.split_at(end);
        parts.push(part);
        text = rest;
    }
    parts.push(text);
    parts
}

fn no_room(e: &std::io::Error) -> Error {
    Error::file(format!("the tokens can't be kept in the temporary folder: {e}"))
        .help("free some space, or set TMPDIR to a folder that has it")
}
