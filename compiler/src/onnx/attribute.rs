//! Attributes between ONNX's form and ours.

use super::tensor;
use crate::{
    attr::Attr,
    error::{Error, Result},
};
use onnx_protobuf::{AttributeProto, attribute_proto::AttributeType as Type};

/// Our form of an attribute.
///
/// # Errors
/// Unsupported for kinds we have no form for (graphs, sparse tensors, lists of strings).
pub fn read(mut a: AttributeProto) -> Result<(String, Attr)> {
    let kind = a.type_.enum_value_or(Type::UNDEFINED);
    let attr = match kind {
        Type::INT => Attr::Int(a.i),
        Type::FLOAT => Attr::Float(a.f),
        Type::STRING => Attr::Str(
            String::from_utf8(a.s).map_err(|_| Error::malformed(format!("attribute `{}` is not UTF-8", a.name)))?,
        ),
        Type::INTS => Attr::Ints(a.ints),
        Type::FLOATS => Attr::Floats(a.floats),
        Type::TENSOR => match a.t.take() {
            Some(t) => Attr::Tensor(tensor::read(t)?),
            None => return Err(Error::malformed(format!("attribute `{}` has no tensor", a.name))),
        },
        // Old files leave the type out: then the one field that is filled tells.
        Type::UNDEFINED if !a.ints.is_empty() => Attr::Ints(a.ints),
        Type::UNDEFINED if !a.floats.is_empty() => Attr::Floats(a.floats),
        other => return Err(Error::unsupported(format!("attribute `{}` of kind {other:?}", a.name))),
    };
    Ok((a.name, attr))
}

/// ONNX's form of an attribute.
pub fn write(name: &str, attr: Attr) -> AttributeProto {
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
        Attr::Tensor(v) => {
            a.t = Some(tensor::write("", &v)).into();
            Type::TENSOR
        }
    };
    a.type_ = kind.into();
    a
}
