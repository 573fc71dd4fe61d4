//! Tensors and types between ONNX's form and ours.

use super::{
    limits::MAX_ELEMENTS,
    source::{Blobs, Source},
};
use crate::{
    error::{Error, Result},
    narrow,
    storage::Storage,
    tensor::{DType, Tensor, encoded},
    value::{Dim, Fact},
};
use onnx_protobuf::{
    TensorProto, TensorShapeProto, TypeProto,
    tensor_shape_proto::{Dimension, dimension},
    type_proto,
};

/// Our form of a tensor of a skeleton; its bytes stay in `source` when they are raw.
///
/// # Errors
/// Malformed when the data doesn't fit the shape; unsupported for types we don't know.
pub fn read(t: TensorProto, source: &Source) -> Result<Tensor> {
    let what = |e: Error| e.about(format_args!("tensor `{}`", t.name));
    let dtype = element_type(t.data_type)
        .and_then(|d| d.ok_or_else(|| Error::unsupported(format!("element type {}", t.data_type))))
        .map_err(what)?;
    if dtype == DType::String && !t.raw_data.is_empty() {
        return Err(what(Error::malformed("strings cannot be raw data")));
    }
    let shape = shape(&t.dims).map_err(what)?;
    let typed: Option<Vec<u8>> = match dtype {
        DType::F32 if !t.float_data.is_empty() => Some(encoded(&t.float_data, f32::to_le_bytes)),
        DType::F64 if !t.double_data.is_empty() => Some(encoded(&t.double_data, f64::to_le_bytes)),
        DType::I64 if !t.int64_data.is_empty() => Some(encoded(&t.int64_data, i64::to_le_bytes)),
        DType::U32 | DType::U64 if !t.uint64_data.is_empty() => {
            let n = dtype.size();
            Some(t.uint64_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(n)).collect())
        }
        // One code an entry, where raw data packs them. Types of 4 and 2 bits are packed in both.
        DType::F6E2M3 | DType::F6E3M2 if !t.int32_data.is_empty() => {
            Some(narrow::pack(6, t.int32_data.iter().map(|v| *v as u8)))
        }
        _ if dtype.size() <= 4 && !t.int32_data.is_empty() => {
            let n = dtype.size();
            Some(t.int32_data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(n)).collect())
        }
        _ => None,
    };
    let raw = if t.raw_data.is_empty() { vec![].into() } else { source.resolve(&t.raw_data)? };
    if typed.is_some() && !raw.is_empty() {
        return Err(Error::malformed(format!("tensor `{}` has both raw and typed data", t.name)));
    }
    Tensor::new(dtype, shape, typed.map_or(raw, Storage::from)).map_err(what)
}

fn shape(dims: &[i64]) -> Result<Vec<usize>> {
    let mut count = 1usize;
    dims.iter()
        .map(|d| {
            let n = usize::try_from(*d).map_err(|_| Error::malformed(format!("dimension {d}")))?;
            count = count
                .checked_mul(n.max(1))
                .filter(|c| *c <= MAX_ELEMENTS)
                .ok_or_else(|| Error::limit(format!("shape {dims:?} has more than {MAX_ELEMENTS} elements")))?;
            Ok(n)
        })
        .collect()
}

/// ONNX's form of a tensor, whose raw data stands for its bytes in `blobs`.
pub fn write(name: &str, t: &Tensor, blobs: &Blobs) -> TensorProto {
    TensorProto {
        name: name.into(),
        dims: t.shape().iter().map(|d| *d as i64).collect(),
        data_type: t.dtype() as i32,
        raw_data: blobs.add(t.storage()),
        ..Default::default()
    }
}

/// What a declared type says. Types other than tensors say nothing we can use.
///
/// # Errors
/// Malformed for an element type that does not exist.
pub fn read_type(t: &TypeProto) -> Result<Fact> {
    let Some(type_proto::Value::TensorType(t)) = &t.value else { return Ok(Fact::default()) };
    let dims = t.shape.as_ref().map(|s| s.dim.iter().map(read_dim).collect());
    // A type that is left open says nothing.
    let dtype = if t.elem_type == 0 { None } else { element_type(t.elem_type)? };
    Ok(Fact::new(dtype, dims))
}

/// The type with ONNX's number `code`; `None` for one that we have no form for.
///
/// # Errors
/// Malformed when there is no such type.
fn element_type(code: i32) -> Result<Option<DType>> {
    match DType::from_onnx(code) {
        // Complex numbers.
        None if !(14..=15).contains(&code) => Err(Error::malformed(format!("there is no element type {code}"))),
        dtype => Ok(dtype),
    }
}

fn read_dim(d: &Dimension) -> Dim {
    match &d.value {
        // Some exporters (Paddle's) write -1 for a dimension of any size.
        Some(dimension::Value::DimValue(n)) if *n < 0 => Dim::Unknown,
        Some(dimension::Value::DimValue(n)) => Dim::Known(*n),
        // Nor do these name a size.
        Some(dimension::Value::DimParam(s)) if matches!(s.as_str(), "" | "?" | "-1" | "None" | "*") => Dim::Unknown,
        Some(dimension::Value::DimParam(s)) => Dim::Sym(s.as_str().into()),
        _ => Dim::Unknown,
    }
}

/// The declared type of a value; `None` when not even its element type is known.
pub fn write_type(fact: &Fact) -> Option<TypeProto> {
    let mut t = type_proto::Tensor { elem_type: fact.dtype? as i32, ..Default::default() };
    if let Some(dims) = &fact.shape {
        let dim = dims
            .iter()
            .map(|d| Dimension {
                value: match d {
                    Dim::Known(n) => Some(dimension::Value::DimValue(*n)),
                    Dim::Sym(s) => Some(dimension::Value::DimParam(s.to_string())),
                    Dim::Unknown => None,
                },
                ..Default::default()
            })
            .collect();
        t.shape = Some(TensorShapeProto { dim, ..Default::default() }).into();
    }
    Some(TypeProto { value: Some(type_proto::Value::TensorType(t)), ..Default::default() })
}
