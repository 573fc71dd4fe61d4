//! A protobuf message as a tree, by ONNX's own field numbers, so that it can be changed and
//! written again with lengths that are right.

/// A kind of message in which there are others.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Model,
    Graph,
    Function,
    Node,
    Attribute,
    Tensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    Dimension,
    Opset,
}

/// The kind of the messages in field `number`; `None` where it holds no message that matters.
fn child(of: Kind, number: u64) -> Option<Kind> {
    Some(match (of, number) {
        (Kind::Model, 7) | (Kind::Attribute, 6 | 11) => Kind::Graph,
        (Kind::Model, 8) | (Kind::Function, 9) => Kind::Opset,
        (Kind::Model, 25) => Kind::Function,
        (Kind::Graph, 1) | (Kind::Function, 7) => Kind::Node,
        (Kind::Graph, 5) | (Kind::Attribute, 5 | 10) => Kind::Tensor,
        (Kind::Graph, 11..=13) => Kind::ValueInfo,
        (Kind::Node, 5) | (Kind::Function, 11) => Kind::Attribute,
        (Kind::ValueInfo, 2) => Kind::Type,
        (Kind::Type, 1) => Kind::TensorType,
        (Kind::TensorType, 2) => Kind::Shape,
        (Kind::Shape, 1) => Kind::Dimension,
        _ => return None,
    })
}

#[derive(Clone)]
pub struct Field {
    pub number: u64,
    pub value: Value,
}

#[derive(Clone)]
pub enum Value {
    Number(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(Vec<u8>),
    Message(Kind, Vec<Field>),
}

/// The fields of a message; `None` when it is broken.
pub fn parse(kind: Kind, mut bytes: &[u8]) -> Option<Vec<Field>> {
    let mut fields = vec![];
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let number = tag >> 3;
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)?),
            1 => Value::Fixed64(u64::from_le_bytes(*take(&mut bytes, 8)?.first_chunk()?)),
            2 => {
                let len = usize::try_from(varint(&mut bytes)?).ok()?;
                let inner = take(&mut bytes, len)?;
                let message = child(kind, number).and_then(|k| Some((k, parse(k, inner)?)));
                message.map_or_else(|| Value::Bytes(inner.to_vec()), |(k, f)| Value::Message(k, f))
            }
            5 => Value::Fixed32(u32::from_le_bytes(*take(&mut bytes, 4)?.first_chunk()?)),
            _ => return None,
        };
        fields.push(Field { number, value });
    }
    Some(fields)
}

pub fn write(fields: &[Field]) -> Vec<u8> {
    let mut out = vec![];
    for f in fields {
        let tag = |out: &mut Vec<u8>, kind| put(out, f.number << 3 | kind);
        match &f.value {
            Value::Number(n) => {
                tag(&mut out, 0);
                put(&mut out, *n);
            }
            Value::Fixed64(n) => {
                tag(&mut out, 1);
                out.extend(n.to_le_bytes());
            }
            Value::Fixed32(n) => {
                tag(&mut out, 5);
                out.extend(n.to_le_bytes());
            }
            Value::Bytes(b) => {
                tag(&mut out, 2);
                put(&mut out, b.len() as u64);
                out.extend(b);
            }
            Value::Message(_, inner) => {
                tag(&mut out, 2);
                let inner = write(inner);
                put(&mut out, inner.len() as u64);
                out.extend(inner);
            }
        }
    }
    out
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(first)
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn put(out: &mut Vec<u8>, mut n: u64) {
    while n > 0x7f {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}
