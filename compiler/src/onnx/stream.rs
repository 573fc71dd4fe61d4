//! From a skeleton back to a file, without ever holding the file: its pieces in order, some of
//! them still where they were read from.

use super::{
    digest,
    scratch::Scratch,
    source::{Blobs, Source},
    wire::{Field, Message, RAW_DATA},
};
use crate::{
    error::Result,
    storage::{LARGE, Storage},
};
use std::{
    collections::HashMap,
    fs::File,
    io::{BufWriter, Write},
    ops::Range,
};

/// A file to write, as pieces.
#[derive(Default)]
pub(super) struct Pieces {
    pieces: Vec<Piece>,
    len: u64,
}

enum Piece {
    Bytes(Vec<u8>),
    Zeros(usize),
    Weight(Storage),
}

const NOUGHT: [u8; 4096] = [0; 4096];

impl Pieces {
    /// The file that the skeleton of a model stands for.
    ///
    /// # Errors
    /// A bug when the skeleton is none.
    pub(super) fn of_model(skeleton: &[u8], blobs: &Blobs) -> Result<Self> {
        let mut fill = Fill { bytes: skeleton, blobs, parts: vec![] };
        let (len, _) = fill.message(Message::Model, 0, skeleton.len())?;
        let mut layout = Self { pieces: vec![], len };
        for part in fill.parts {
            match part {
                Part::Kept(range) => layout.text(&skeleton[range]),
                Part::Length(n) => layout.text(&varint(n)),
                Part::Weight(bytes) => layout.pieces.push(Piece::Weight(bytes)),
            }
        }
        Ok(layout)
    }

    fn text(&mut self, bytes: &[u8]) {
        match self.pieces.last_mut() {
            Some(Piece::Bytes(last)) => last.extend_from_slice(bytes),
            _ => self.pieces.push(Piece::Bytes(bytes.to_vec())),
        }
    }

    /// Appends a weight at the next multiple of `align`, at most 4096, and returns its place.
    pub(super) fn append(&mut self, bytes: &Storage, align: u64) -> u64 {
        let at = self.len.next_multiple_of(align);
        if at > self.len {
            self.pieces.push(Piece::Zeros((at - self.len) as usize));
        }
        self.pieces.push(Piece::Weight(bytes.clone()));
        self.len = at + bytes.len() as u64;
        at
    }

    /// Bytes of the file.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    fn slices(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|p| match p {
            Piece::Bytes(b) => &b[..],
            Piece::Zeros(n) => &NOUGHT[..*n],
            Piece::Weight(s) => s,
        })
    }

    /// The same, where large weights in other files leave memory behind what is looked at.
    fn passing(&self) -> impl Iterator<Item = &[u8]> {
        self.slices().enumerate().map(|(i, slice)| {
            if let Some(Piece::Weight(s)) = i.checked_sub(1).map(|before| &self.pieces[before])
                && s.len() >= LARGE
            {
                s.release();
            }
            slice
        })
    }

    /// The large weights by their places.
    pub(super) fn weights(&self) -> HashMap<u64, Storage> {
        let mut at = 0;
        let mut out = HashMap::new();
        for (piece, bytes) in self.pieces.iter().zip(self.slices()) {
            if let Piece::Weight(s) = piece
                && bytes.len() >= COPIED
            {
                out.insert(at, s.clone());
            }
            at += bytes.len() as u64;
        }
        out
    }

    /// Writes the file to `to`.
    ///
    /// # Errors
    /// What writing raises.
    pub(super) fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        self.slices().try_for_each(|s| to.write_all(s))
    }

    /// Writes the file to `scratch` and returns its SHA-256, which a second thread finds meanwhile,
    /// and with it that of the largest file of `source`.
    ///
    /// # Errors
    /// What writing raises.
    pub(super) fn save(&self, scratch: &mut Scratch, source: &Source) -> std::io::Result<String> {
        std::thread::scope(|scope| {
            let hash = scope.spawn(|| {
                let Some(file) = source.unhashed() else { return digest::sha256(self.passing()) };
                let [own, other] = digest::sha256_of_two(self.passing(), file.pieces());
                file.set_sha256(other);
                own
            });
            if self.len >= FLUSHED {
                scratch.begin_flush()?;
            }
            let file = scratch.file();
            let mut to = BufWriter::with_capacity(1 << 20, file);
            for (piece, bytes) in self.pieces.iter().zip(self.slices()) {
                let mut copied = 0;
                if let Piece::Weight(s) = piece
                    && bytes.len() >= COPIED
                    && let Some((from, at)) = s.in_file()
                {
                    to.flush()?;
                    copied = copy(from, at, file, bytes.len());
                }
                to.write_all(&bytes[copied..])?;
            }
            to.flush()?;
            drop(to);
            scratch.written();
            hash.join().map_err(|_| std::io::Error::other("hashing failed"))
        })
    }
}

/// From this size on, the kernel copies from file to file.
const COPIED: usize = 64 << 10;
/// From this size on, a file goes to disk while it is written.
const FLUSHED: u64 = 64 << 20;

/// Lets the kernel copy `len` bytes, and returns how many it did: not every system and file system can, and the rest can be written as any
/// bytes are.
#[cfg(target_os = "linux")]
fn copy(from: &File, mut at: u64, to: &File, len: usize) -> usize {
    let mut done = 0;
    while done < len {
        match rustix::fs::copy_file_range(from, Some(&mut at), to, None, len - done) {
            Ok(n) if n > 0 => done += n,
            _ => break,
        }
    }
    done
}

#[cfg(not(target_os = "linux"))]
fn copy(_: &File, _: u64, _: &File, _: usize) -> usize {
    0
}

/// A part of the file, as found in its skeleton.
enum Part {
    Kept(Range<usize>),
    Length(u64),
    Weight(Storage),
}

struct Fill<'a> {
    bytes: &'a [u8],
    blobs: &'a Blobs<'a>,
    parts: Vec<Part>,
}

impl Fill<'_> {
    /// Appends the parts of a message; returns its length, and whether a weight is in it.
    fn message(&mut self, kind: Message, mut at: usize, end: usize) -> Result<(u64, bool)> {
        let (mut from, mut len, mut found) = (at, 0, false);
        while at < end {
            let field = Field::read(self.bytes, &mut at, end)?;
            let Some((length_at, content)) = field.content else { continue };
            match kind.child(field.number) {
                Some(child) if child.holds_tensors() => {
                    let mark = self.parts.len();
                    self.parts.extend([Part::Kept(from..length_at), Part::Length(0)]);
                    let (inner, any) = self.message(child, content, at)?;
                    if any {
                        self.parts[mark + 1] = Part::Length(inner);
                        len += (length_at - from + varint(inner).len()) as u64 + inner;
                        (from, found) = (at, true);
                    } else {
                        self.parts.truncate(mark);
                    }
                }
                None if kind == Message::Tensor && field.number == RAW_DATA => {
                    let weight = self.blobs.resolve(&self.bytes[content..at])?;
                    let inner = weight.len() as u64;
                    len += (length_at - from + varint(inner).len()) as u64 + inner;
                    self.parts.extend([Part::Kept(from..length_at), Part::Length(inner), Part::Weight(weight)]);
                    (from, found) = (at, true);
                }
                _ => {}
            }
        }
        self.parts.push(Part::Kept(from..end));
        Ok((len + (end - from) as u64, found))
    }
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = vec![];
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

#[cfg(test)]
mod tests {
    use super::{
        super::{source::SourceFile, wire},
        *,
    };
    use crate::storage::Blob;
    use onnx_protobuf::{AttributeProto, GraphProto, Message as _, ModelProto, NodeProto, TensorProto};
    use std::path::Path;

    fn tensor(n: usize) -> TensorProto {
        TensorProto { dims: vec![n as i64], data_type: 2, raw_data: vec![n as u8; n], ..Default::default() }
    }

    fn model() -> ModelProto {
        let inner = GraphProto { initializer: vec![tensor(0), tensor(70_000)], ..Default::default() };
        let attribute = AttributeProto {
            t: Some(tensor(300)).into(),
            g: Some(inner).into(),
            floats: vec![1.0; 9],
            ..Default::default()
        };
        let graph = GraphProto {
            node: vec![
                NodeProto { op_type: "If".into(), attribute: vec![attribute], ..Default::default() },
                NodeProto { op_type: "Relu".into(), ..Default::default() },
            ],
            initializer: vec![tensor(3), tensor(100), TensorProto { float_data: vec![1.0; 99], ..Default::default() }],
            ..Default::default()
        };
        ModelProto { ir_version: 9, graph: Some(graph).into(), ..Default::default() }
    }

    #[test]
    fn a_file_comes_back_from_its_skeleton() {
        let bytes = model().write_to_bytes().unwrap();
        let skeleton = wire::skeleton(&bytes, Message::Model).unwrap();
        assert!(skeleton.len() < 1_000);
        // Through the parser and back, as models go.
        let parsed = ModelProto::parse_from_bytes(&skeleton).unwrap();
        let skeleton = parsed.write_to_bytes().unwrap();
        let source = Source::new(SourceFile::new(Path::new("x"), Blob::Heap(bytes.clone())));
        let layout = Pieces::of_model(&skeleton, &Blobs::new(&source)).unwrap();
        assert_eq!(layout.len(), bytes.len() as u64);
        let mut out = vec![];
        layout.write(&mut out).unwrap();
        assert!(out == bytes);
        let folder = tempfile::tempdir().unwrap();
        let sha = layout.save(&mut Scratch::beside(&folder.path().join("x")).unwrap(), &source).unwrap();
        assert_eq!(sha, digest::sha256([&bytes[..]].into_iter()));
        assert_eq!(source.files()[0].sha256(), sha);
    }

    #[test]
    fn damaged_files_are_errors_or_files() {
        let bytes = model().write_to_bytes().unwrap();
        let mut seed = 1u64;
        let mut random = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        let mut read = 0;
        for _ in 0..2_000 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + random(4) {
                let place = if random(2) == 0 { random(200) } else { random(bytes.len()) };
                bytes[place] = random(256) as u8;
            }
            let Ok(skeleton) = wire::skeleton(&bytes, Message::Model) else { continue };
            let Ok(parsed) = ModelProto::parse_from_bytes(&skeleton) else { continue };
            let source = Source::new(SourceFile::new(Path::new("x"), Blob::Heap(bytes.clone())));
            let layout = Pieces::of_model(&parsed.write_to_bytes().unwrap(), &Blobs::new(&source)).unwrap();
            let mut out = vec![];
            layout.write(&mut out).unwrap();
            assert_eq!(out.len() as u64, layout.len());
            read += 1;
            // The parser reads from it what it reads from the damaged file.
            assert_eq!(ModelProto::parse_from_bytes(&out).ok(), ModelProto::parse_from_bytes(&bytes).ok());
        }
        assert!(read > 500, "{read}");
    }

    #[test]
    fn weights_are_aligned() {
        let mut layout = Pieces::default();
        assert_eq!(layout.append(&vec![1; 10].into(), 64), 0);
        assert_eq!(layout.append(&vec![2; 10].into(), 64), 64);
        assert_eq!(layout.append(&vec![3; 10].into(), 4096), 4096);
        let mut out = vec![];
        layout.write(&mut out).unwrap();
        assert_eq!((out.len() as u64, out[63], out[64], out[4096]), (layout.len(), 0, 2, 3));
    }
}
