//! A walk over the protobuf wire format before any parser sees the file.
//!
//! The generated parser recurses into groups without a bound, allocates for every empty
//! message, and copies every weight. The walk descends into every message that ONNX defines, in
//! constant memory, and refuses what no exporter writes. What the parser gets is the *skeleton*:
//! the same messages, in which the raw data of every tensor is a [`Ref`] to where it lies.
//! As every raw data of a skeleton was put there by the walk, a file can't forge one.

use super::limits::{MAX_DEPTH, MAX_MESSAGES, PARSED_BYTES, PARSED_BYTES_PER_BYTE};
use crate::error::{Error, Result};
use onnx_protobuf::{AttributeProto, NodeProto, TensorProto, TypeProto, ValueInfoProto, tensor_shape_proto::Dimension};

/// The messages of ONNX that hold further messages.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Training,
    Function,
    Value,
    Type,
    TensorType,
    Shape,
    Sequence,
    Map,
    Leaf,
}

/// The field of a tensor that holds its elements as bytes.
pub(super) const RAW_DATA: u64 = 9;
/// Fields of one message are numbered up to this.
const MAX_FIELD: u64 = (1 << 29) - 1;

impl Message {
    /// The bytes that an empty message of this kind takes when it is parsed.
    fn parsed_size(self) -> usize {
        match self {
            Self::Node => size_of::<NodeProto>(),
            Self::Attribute => size_of::<AttributeProto>(),
            Self::Tensor => size_of::<TensorProto>(),
            Self::Value => size_of::<ValueInfoProto>(),
            Self::Type => size_of::<TypeProto>(),
            _ => size_of::<Dimension>(),
        }
    }

    /// The message in length-delimited field `field`; `None` for strings, bytes and numbers.
    pub(super) fn child(self, field: u64) -> Option<Message> {
        use Message::*;
        Some(match (self, field) {
            (Model, 7) => Graph,
            (Model, 8 | 14 | 26) => Leaf,
            (Model, 20) => Training,
            (Model, 25) => Function,
            (Graph, 1) => Node,
            (Graph, 5) => Tensor,
            (Graph, 11..=13) => Value,
            (Graph, 14 | 16) => Leaf,
            (Graph, 15) => Sparse,
            (Node, 5) => Attribute,
            (Node, 9 | 10) => Leaf,
            (Attribute, 5 | 10) => Tensor,
            (Attribute, 6 | 11) => Graph,
            (Attribute, 14 | 15) => Type,
            (Attribute, 22 | 23) => Sparse,
            (Tensor, 3 | 13 | 16) => Leaf,
            (Sparse, 1 | 2) => Tensor,
            (Value, 2) => Type,
            (Value, 4) => Leaf,
            (Type, 1 | 8) => TensorType,
            (Type, 4 | 9) => Sequence,
            (Type, 5) => Map,
            (Type, 7) => Leaf,
            (TensorType, 2) => Shape,
            (Shape, 1) => Leaf,
            (Sequence, 1) | (Map, 2) => Type,
            (Training, 1 | 2) => Graph,
            (Training, 3 | 4) => Leaf,
            (Function, 7) => Node,
            (Function, 9 | 14) => Leaf,
            (Function, 11) => Attribute,
            (Function, 12) => Value,
            _ => return None,
        })
    }

    /// Whether tensors may lie in it.
    pub(super) fn holds_tensors(self) -> bool {
        use Message::*;
        matches!(self, Model | Graph | Node | Attribute | Tensor | Sparse | Training | Function)
    }
}

/// Where the bytes of a tensor are, in place of its raw data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Ref {
    /// The place of the file in a [`Source`](super::source::Source).
    pub file: u16,
    /// The first byte; at most 48 bits.
    pub at: u64,
    /// The number of bytes.
    pub len: u64,
}

impl Ref {
    /// The length of every reference.
    pub(super) const LEN: usize = 16;

    /// The raw data that stands for the reference.
    pub(super) fn encode(self) -> [u8; Self::LEN] {
        let place = u64::from(self.file) << 48 | self.at;
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&place.to_le_bytes());
        out[8..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// The reference in a skeleton's raw data.
    ///
    /// # Errors
    /// A bug when that is none.
    pub(super) fn decode(raw: &[u8]) -> Result<Self> {
        let ([place, len], []) = raw.as_chunks::<8>() else {
            return Err(Error::bug(format!("raw data of {} bytes where a reference should be", raw.len())));
        };
        let place = u64::from_le_bytes(*place);
        Ok(Self { file: (place >> 48) as u16, at: place & ((1 << 48) - 1), len: u64::from_le_bytes(*len) })
    }
}

/// Walks a whole file that holds a message of kind `root`, and returns its skeleton.
///
/// # Errors
/// Malformed for truncation, varint overflow, groups and other broken wire data; limit for
/// depth and counts. Messages name the byte.
pub(super) fn skeleton(bytes: &[u8], root: Message) -> Result<Vec<u8>> {
    let room = bytes.len().saturating_mul(PARSED_BYTES_PER_BYTE).saturating_add(PARSED_BYTES);
    let mut walk = Walk { bytes, messages: 0, room, out: vec![], copied: 0 };
    walk.message(root, 0, bytes.len(), 0)?;
    walk.copy(bytes.len());
    Ok(walk.out)
}

struct Walk<'a> {
    bytes: &'a [u8],
    messages: usize,
    /// Bytes that the messages still to come may take when they are parsed.
    room: usize,
    out: Vec<u8>,
    /// Everything before this byte is in `out`, or left out for good.
    copied: usize,
}

impl Walk<'_> {
    fn message(&mut self, kind: Message, mut at: usize, end: usize, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::limit(format!("messages nested deeper than {MAX_DEPTH} at byte {at}")));
        }
        self.messages += 1;
        if self.messages > MAX_MESSAGES {
            return Err(Error::limit(format!("more than {MAX_MESSAGES} protobuf messages")));
        }
        self.room = self.room.checked_sub(kind.parsed_size()).ok_or_else(|| {
            Error::limit(format!("more than {} protobuf messages for its size", self.messages))
                .help("no exporter writes millions of empty messages")
        })?;
        let packed = if kind == Message::Tensor { packed_floats(self.bytes, at, end)? } else { None };
        while at < end {
            let start = at;
            let field = Field::read(self.bytes, &mut at, end)?;
            let Some((length_at, content)) = field.content else { continue };
            match kind.child(field.number) {
                Some(child) if child.holds_tensors() => {
                    self.copy(length_at);
                    self.copied = content;
                    let length = self.out.len();
                    self.out.extend([0; PADDED]);
                    self.message(child, content, at, depth + 1)?;
                    self.copy(at);
                    let len = self.out.len() - length - PADDED;
                    self.out[length..length + PADDED].copy_from_slice(&padded(len));
                }
                Some(child) => self.message(child, content, at, depth + 1)?,
                None if packed == Some(start) || kind == Message::Tensor && field.number == RAW_DATA => {
                    self.copy(start);
                    self.copied = at;
                    self.out.extend([(RAW_DATA << 3 | 2) as u8, Ref::LEN as u8]);
                    let here = Ref { file: 0, at: content as u64, len: (at - content) as u64 };
                    self.out.extend(here.encode());
                }
                None => {}
            }
        }
        Ok(())
    }

    fn copy(&mut self, to: usize) {
        self.out.extend_from_slice(&self.bytes[self.copied..to]);
        self.copied = to;
    }
}

/// Where the field of a tensor begins that holds many floats as raw data would, if there is one
/// and no other data: the parser would copy them, and we once more.
fn packed_floats(bytes: &[u8], mut at: usize, end: usize) -> Result<Option<usize>> {
    let (mut data_type, mut data) = (0, vec![]);
    while at < end {
        let start = at;
        let field = Field::read(bytes, &mut at, end)?;
        match field.number {
            2 => data_type = field.value,
            4..=7 | RAW_DATA | 10 | 11 => {
                data.push((field.number, start, field.content.map_or(0, |(_, from)| at - from)))
            }
            _ => {}
        }
        if data.len() > 1 {
            return Ok(None);
        }
    }
    Ok(match (data_type, &data[..]) {
        (1, [(4, start, 4096..)]) | (11, [(10, start, 4096..)]) => Some(*start),
        _ => None,
    })
}

/// Bytes of a length that is only known later.
const PADDED: usize = 5;

fn padded(len: usize) -> [u8; PADDED] {
    std::array::from_fn(|i| (len >> (7 * i)) as u8 & 0x7f | if i + 1 < PADDED { 0x80 } else { 0 })
}

/// One field of a message.
pub(super) struct Field {
    pub number: u64,
    /// For numbers of any length.
    value: u64,
    /// For what is length-delimited: where its length is, and where its content begins.
    pub content: Option<(usize, usize)>,
}

impl Field {
    /// Reads the field at `at`, which is moved behind it.
    ///
    /// # Errors
    /// Malformed, naming the byte.
    pub(super) fn read(bytes: &[u8], at: &mut usize, end: usize) -> Result<Self> {
        let start = *at;
        let tag = varint(bytes, at, end)?;
        let number = tag >> 3;
        if !(1..=MAX_FIELD).contains(&number) {
            return Err(broken(start, &format!("field number {number}")));
        }
        let (mut value, mut content) = (0, None);
        match tag & 7 {
            0 => value = varint(bytes, at, end)?,
            1 => *at = skip(*at, 8, end)?,
            2 => {
                let length_at = *at;
                let len = varint(bytes, at, end)?;
                content = Some((length_at, *at));
                *at = skip(*at, len, end)?;
            }
            5 => *at = skip(*at, 4, end)?,
            3 | 4 => return Err(broken(start, "a group, which ONNX does not have")),
            other => return Err(broken(start, &format!("wire type {other}"))),
        }
        Ok(Self { number, value, content })
    }
}

/// A message with its fields by rising number, those of one number in their order. Any order is valid, but OpenVINO does not
/// recognise a file in which two opsets stand before the graph.
///
/// # Errors
/// Malformed, naming the byte.
pub(super) fn by_number(bytes: &[u8]) -> Result<Vec<u8>> {
    let (mut at, mut fields) = (0, vec![]);
    while at < bytes.len() {
        let start = at;
        fields.push((Field::read(bytes, &mut at, bytes.len())?.number, start..at));
    }
    fields.sort_by_key(|(number, _)| *number);
    Ok(fields.into_iter().flat_map(|(_, range)| &bytes[range]).copied().collect())
}

fn varint(bytes: &[u8], at: &mut usize, end: usize) -> Result<u64> {
    let start = *at;
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let Some(&byte) = bytes[..end].get(*at) else { return Err(broken(start, "the end inside a number")) };
        *at += 1;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(broken(start, "a number of more than 64 bits"))
}

fn skip(at: usize, len: u64, end: usize) -> Result<usize> {
    usize::try_from(len).ok().and_then(|len| at.checked_add(len)).filter(|stop| *stop <= end).ok_or_else(|| {
        broken(at, &format!("a field of {len} bytes that ends after its message: the file is truncated"))
    })
}

fn broken(at: usize, what: &str) -> Error {
    Error::malformed(format!("not an ONNX file, or a damaged one: byte {at} begins {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn kind(bytes: &[u8]) -> Option<Kind> {
        skeleton(bytes, Message::Model).err().map(|e| e.kind())
    }

    #[test]
    fn refuses_broken_wire_data() {
        assert_eq!(kind(&[8, 7]), None);
        assert_eq!(kind(&[8]), Some(Kind::Malformed), "the value is missing");
        assert_eq!(kind(&[0x3a, 5, 0]), Some(Kind::Malformed), "a graph longer than the file");
        assert_eq!(kind(&[0xff; 12]), Some(Kind::Malformed), "a varint without an end");
        assert_eq!(kind(&[0x0b, 0x0c]), Some(Kind::Malformed), "a group");
        assert_eq!(kind(b"hello, world"), Some(Kind::Malformed), "text");
    }

    /// `content` inside `depth` messages with the tags `tags` by turns, the innermost first.
    fn nested(content: Vec<u8>, depth: usize, tags: &[u8]) -> Vec<u8> {
        (0..depth).fold(content, |inner, i| {
            let mut outer = vec![tags[i % tags.len()]];
            let mut len = inner.len();
            while len >= 0x80 {
                outer.push(len as u8 | 0x80);
                len >>= 7;
            }
            outer.push(len as u8);
            outer.extend(inner);
            outer
        })
    }

    #[test]
    fn refuses_depth_and_counts() {
        // Model > graph > node > attribute > graph > ...
        assert_eq!(kind(&nested(nested(vec![], 120, &[0x32, 0x2a, 0x0a]), 1, &[0x3a])), Some(Kind::Limit));
        // Model > graph > value > type > map > type > map > ...
        let types = nested(vec![], 120, &[0x12, 0x2a]);
        assert_eq!(kind(&nested(types, 3, &[0x12, 0x5a, 0x3a])), Some(Kind::Limit));

        let nodes = [0x0a, 0].repeat(1_000_000);
        let mut model = vec![0x3a, 0x80, 0x89, 0x7a];
        model.extend(nodes);
        assert_eq!(kind(&model), Some(Kind::Limit));
    }

    #[test]
    fn fields_are_sorted_and_keep_the_order_of_those_alike() {
        let bytes = [0x42, 1, b'b', 0x08, 9, 0x42, 1, b'a', 0x3a, 0];
        assert_eq!(by_number(&bytes).unwrap(), [0x08, 9, 0x3a, 0, 0x42, 1, b'b', 0x42, 1, b'a']);
        assert!(by_number(&bytes[..9]).is_err());
    }

    #[test]
    fn raw_data_becomes_a_reference() {
        // Model > graph > initializer > raw_data, with other fields around it.
        let raw: Vec<u8> = (0..200).collect();
        let mut tensor = vec![8, 7];
        tensor.extend(nested(raw.clone(), 1, &[0x4a]));
        tensor.extend([0x10, 1]);
        let model = nested(tensor, 2, &[0x2a, 0x3a]);
        let cut = skeleton(&model, Message::Model).unwrap();
        let place = cut.windows(2).position(|w| w == [0x4a, Ref::LEN as u8]).unwrap() + 2;
        let found = Ref::decode(&cut[place..place + Ref::LEN]).unwrap();
        assert_eq!(model[found.at as usize..][..found.len as usize], raw[..]);
        assert!(cut.ends_with(&[0x10, 1]) && cut.len() < 60);
    }

    #[test]
    fn many_floats_become_a_reference_too() {
        let floats = nested(vec![7; 8000], 1, &[0x22]);
        let tensor = |more: &[u8]| nested([&[0x10, 1], &floats[..], more].concat(), 2, &[0x2a, 0x3a]);
        let skeleton = |model: Vec<u8>| skeleton(&model, Message::Model);
        assert!(skeleton(tensor(&[])).unwrap().len() < 60);
        // Two fields of floats follow each other; other data besides is an error to be found.
        assert!(skeleton(tensor(&floats)).unwrap().len() > 16_000);
        assert!(skeleton(tensor(&[0x4a, 0])).unwrap().len() > 8000);
    }
}
