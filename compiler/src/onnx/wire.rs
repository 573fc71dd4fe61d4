//! A walk over the protobuf wire format before any parser sees the file.
//!
//! The generated parser recurses into groups without a bound and allocates for every empty
//! message; both kill the process on a hostile file. The walk descends into every message
//! that ONNX defines, in constant memory, and refuses what no exporter writes.

use super::limits::{MAX_DEPTH, MAX_MESSAGES, MAX_MESSAGES_PER_KB};
use crate::error::{Error, Result};

/// The messages of ONNX that hold further messages.
#[derive(Clone, Copy)]
enum Message {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sparse,
    Value,
    Type,
    TypeOf,
    Shape,
    Training,
    Function,
    Leaf,
}

impl Message {
    /// The message in length-delimited field `field`; `None` for strings, bytes and numbers.
    fn child(self, field: u64) -> Option<Message> {
        use Message::*;
        Some(match (self, field) {
            (Model, 7) => Graph,
            (Model, 8 | 14) => Leaf,
            (Model, 20) => Training,
            (Model, 25) => Function,
            (Graph, 1) => Node,
            (Graph, 5) => Tensor,
            (Graph, 11..=13) => Value,
            (Graph, 14 | 16) => Leaf,
            (Graph, 15) => Sparse,
            (Node, 5) => Attribute,
            (Node, 9) => Leaf,
            (Attribute, 5 | 10) => Tensor,
            (Attribute, 6 | 11) => Graph,
            (Attribute, 14 | 15) => Type,
            (Attribute, 22 | 23) => Sparse,
            (Tensor, 3 | 13 | 16) => Leaf,
            (Sparse, 1 | 2) => Tensor,
            (Value, 2) => Type,
            (Value, 4) => Leaf,
            (Type, 1 | 4 | 5 | 8 | 9) => TypeOf,
            // Tensor types hold a shape where sequences hold a type; a map's type is field 2 too.
            (TypeOf, 1) => Type,
            (TypeOf, 2) => Shape,
            (Shape, 1) => Leaf,
            (Training, 1 | 2) => Graph,
            (Training, 3 | 4) => Leaf,
            (Function, 7) => Node,
            (Function, 9 | 14) => Leaf,
            (Function, 11) => Attribute,
            (Function, 12) => Value,
            _ => return None,
        })
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    messages: usize,
    budget: usize,
}

/// Walks a whole ONNX file.
///
/// # Errors
/// Malformed for truncation, varint overflow, groups and other broken wire data; limit for
/// depth and counts. Messages name the byte.
pub(super) fn check(bytes: &[u8]) -> Result<()> {
    let budget = (bytes.len() / 1024 + 8).saturating_mul(MAX_MESSAGES_PER_KB).min(MAX_MESSAGES);
    Walk { bytes, messages: 0, budget }.message(Message::Model, 0, bytes.len(), 0)
}

impl Walk<'_> {
    fn message(&mut self, kind: Message, mut at: usize, end: usize, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::limit(format!("messages nested deeper than {MAX_DEPTH} at byte {at}")));
        }
        self.messages += 1;
        if self.messages > self.budget {
            return Err(Error::limit(format!("more than {} protobuf messages for its size", self.budget)));
        }
        while at < end {
            let start = at;
            let tag = self.varint(&mut at, end)?;
            let field = tag >> 3;
            if field == 0 {
                return Err(broken(start, "field number 0"));
            }
            match tag & 7 {
                0 => {
                    self.varint(&mut at, end)?;
                }
                1 => at = skip(at, 8, end)?,
                2 => {
                    let len = self.varint(&mut at, end)?;
                    let stop = skip(at, len, end)?;
                    if let Some(child) = kind.child(field) {
                        self.message(child, at, stop, depth + 1)?;
                    }
                    at = stop;
                }
                5 => at = skip(at, 4, end)?,
                3 | 4 => return Err(broken(start, "a group, which ONNX does not have")),
                other => return Err(broken(start, &format!("wire type {other}"))),
            }
        }
        Ok(())
    }

    fn varint(&self, at: &mut usize, end: usize) -> Result<u64> {
        let start = *at;
        let mut value = 0u64;
        for shift in (0..70).step_by(7) {
            let Some(&byte) = self.bytes[..end].get(*at) else { return Err(broken(start, "the end inside a number")) };
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
        check(bytes).err().map(|e| e.kind())
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

    #[test]
    fn refuses_depth_and_counts() {
        // Model > graph > node > attribute > graph > ...: each level two bytes longer.
        let mut deep = vec![];
        for i in 0..120 {
            let tag = [0x32u8, 0x2a, 0x0a][i % 3];
            let mut outer = vec![tag];
            let mut len = deep.len();
            while len >= 0x80 {
                outer.push(len as u8 | 0x80);
                len >>= 7;
            }
            outer.push(len as u8);
            outer.extend(deep);
            deep = outer;
        }
        let mut model = vec![0x3a, (deep.len() & 0x7f) as u8 | 0x80, (deep.len() >> 7) as u8];
        model.extend(deep);
        assert_eq!(kind(&model), Some(Kind::Limit));

        let nodes = [0x0a, 0].repeat(100_000);
        let mut model = vec![0x3a, 0xc0, 0x9a, 0x0c];
        model.extend(nodes);
        assert_eq!(kind(&model), Some(Kind::Limit));
    }
}
