//! Attributes between ONNX's form and ours.

use super::{
    source::{Blobs, Source},
    tensor,
};
use crate::{
    attr::Attr,
    error::{Error, Result},
    ops::control::Body,
    tensor::{DType, Tensor},
};
use onnx_protobuf::{AttributeProto, GraphProto, NodeProto, attribute_proto::AttributeType as Type};

/// Our form of an attribute.
///
/// # Errors
/// Unsupported for kinds we have no form for (graphs, sparse tensors).
pub fn read(mut a: AttributeProto, source: &Source) -> Result<(String, Attr)> {
    let kind = a.type_.enum_value_or(Type::UNDEFINED);
    if kind != Type::UNDEFINED && held(&a).any(|k| k != kind) {
        return Err(Error::malformed(format!(
            "attribute `{}` is said to be {kind:?} and holds something else",
            a.name
        )));
    }
    let attr = match kind {
        Type::INT => Attr::Int(a.i),
        Type::FLOAT => Attr::Float(a.f),
        Type::STRING => Attr::Str(utf8(&a.name, a.s)?),
        Type::STRINGS => Attr::Strs(a.strings.into_iter().map(|s| utf8(&a.name, s)).collect::<Result<_>>()?),
        Type::INTS => Attr::Ints(a.ints),
        Type::FLOATS => Attr::Floats(a.floats),
        Type::TENSOR => match a.t.take() {
            Some(t) => Attr::Tensor(tensor::read(t, source)?),
            None => return Err(Error::malformed(format!("attribute `{}` has no tensor", a.name))),
        },
        // Old files leave the type out: then the one field that is filled tells.
        Type::UNDEFINED if !a.ints.is_empty() => Attr::Ints(a.ints),
        Type::UNDEFINED if !a.floats.is_empty() => Attr::Floats(a.floats),
        other => return Err(Error::unsupported(format!("attribute `{}` of kind {other:?}", a.name))),
    };
    Ok((a.name, attr))
}

/// The kinds of what an attribute holds; a zero is not seen.
fn held(a: &AttributeProto) -> impl Iterator<Item = Type> {
    [
        (a.i != 0, Type::INT),
        (a.f != 0.0, Type::FLOAT),
        (!a.s.is_empty(), Type::STRING),
        (!a.ints.is_empty(), Type::INTS),
        (!a.floats.is_empty(), Type::FLOATS),
        (!a.strings.is_empty(), Type::STRINGS),
        (a.t.is_some(), Type::TENSOR),
        (a.g.is_some(), Type::GRAPH),
    ]
    .into_iter()
    .filter_map(|(holds, kind)| holds.then_some(kind))
}

fn utf8(name: &str, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|_| Error::malformed(format!("attribute `{name}` is not UTF-8")))
}

/// ONNX's form of an attribute. The graph in one is written by `body`.
///
/// # Errors
/// What `body` raises.
pub fn write(
    name: &str,
    attr: Attr,
    blobs: &Blobs,
    body: &dyn Fn(&Body) -> Result<GraphProto>,
) -> Result<AttributeProto> {
    let mut a = AttributeProto { name: name.into(), ..Default::default() };
    let kind = match attr {
        Attr::Int(v) => {
            a.i = v;
            Type::INT
        }
        Attr::Float(v) => {
            a.f = v;
            Type::FLOAT
        }
        Attr::Str(v) => {
            a.s = v.into_bytes();
            Type::STRING
        }
        Attr::Ints(v) => {
            a.ints = v;
            Type::INTS
        }
        Attr::Floats(v) => {
            a.floats = v;
            Type::FLOATS
        }
        Attr::Strs(v) => {
            a.strings = v.into_iter().map(String::into_bytes).collect();
            Type::STRINGS
        }
        Attr::Tensor(v) => {
            a.t = Some(tensor::write("", &v, blobs)).into();
            Type::TENSOR
        }
        Attr::Graph(v) => {
            a.g = Some(body(&v)?).into();
            Type::GRAPH
        }
    };
    a.type_ = kind.into();
    Ok(a)
}

/// The tensor of a Constant node.
///
/// # Errors
/// Unsupported for what we have no tensor type for; malformed when it has no value, or two.
pub fn constant(node: &NodeProto, source: &Source) -> Result<Tensor> {
    let mut tensor = None;
    for a in &node.attribute {
        let (name, attr) = read(AttributeProto::clone(a), source)?;
        let t = match (name.as_str(), attr) {
            ("value", Attr::Tensor(t)) => t,
            ("value_float", Attr::Float(v)) => Tensor::f32(&[], &[v]),
            ("value_floats", Attr::Floats(v)) => Tensor::f32(&[v.len()], &v),
            ("value_int", Attr::Int(v)) => Tensor::ints(DType::I64, &[], &[v]),
            ("value_ints", Attr::Ints(v)) => Tensor::i64s(&v),
            _ => return Err(Error::unsupported(format!("Constant with attribute `{name}`"))),
        };
        if tensor.replace(t).is_some() {
            return Err(Error::malformed("a Constant with two values"));
        }
    }
    tensor.ok_or_else(|| Error::malformed("a Constant without a value"))
}
