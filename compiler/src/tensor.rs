//! Element types, and tensors held in host memory.

use crate::error::{Error, Result};
use std::{borrow::Cow, fmt, sync::Arc};

/// An ONNX element type (`TensorProto.DataType`); the discriminants are ONNX's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    F32 = 1,
    U8 = 2,
    I8 = 3,
    U16 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    String = 8,
    Bool = 9,
    F16 = 10,
    F64 = 11,
    U32 = 12,
    U64 = 13,
    BF16 = 16,
}

impl DType {
    /// Every type, in the order of ONNX's numbers.
    pub const ALL: [DType; 14] = [
        DType::F32,
        DType::U8,
        DType::I8,
        DType::U16,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::String,
        DType::Bool,
        DType::F16,
        DType::F64,
        DType::U32,
        DType::U64,
        DType::BF16,
    ];

    /// The type with ONNX's number `code`, if this crate knows it.
    pub fn from_onnx(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as i32 == code)
    }

    /// Bytes an element; 0 for strings, which have no fixed size.
    pub fn size(self) -> usize {
        match self {
            DType::String => 0,
            DType::U8 | DType::I8 | DType::Bool => 1,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// The name used in the text form, e.g. `f32`.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::U16 => "u16",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::String => "str",
            DType::Bool => "bool",
            DType::F16 => "f16",
            DType::F64 => "f64",
            DType::U32 => "u32",
            DType::U64 => "u64",
            DType::BF16 => "bf16",
        }
    }

    /// The type called `name` in the text form.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The smallest and largest value of an integer type (bool counts as 0 and 1).
    pub fn int_range(self) -> Option<(i64, i64)> {
        Some(match self {
            DType::Bool => (0, 1),
            DType::U8 => (0, u8::MAX as i64),
            DType::I8 => (i8::MIN as i64, i8::MAX as i64),
            DType::U16 => (0, u16::MAX as i64),
            DType::I16 => (i16::MIN as i64, i16::MAX as i64),
            DType::I32 => (i32::MIN as i64, i32::MAX as i64),
            DType::U32 => (0, u32::MAX as i64),
            DType::I64 | DType::U64 => (i64::MIN, i64::MAX),
            _ => return None,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A dense tensor in host memory: little-endian elements, row-major, cheap to clone.
#[derive(Clone, PartialEq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    bytes: Arc<Vec<u8>>,
}

impl Tensor {
    /// A tensor from its raw little-endian bytes.
    ///
    /// # Errors
    /// Malformed when the bytes don't fill the shape exactly; limit when the shape overflows.
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self> {
        let need = shape
            .iter()
            .try_fold(dtype.size(), |n, &d| n.checked_mul(d))
            .ok_or_else(|| Error::limit(format!("the shape {shape:?} overflows")))?;
        if dtype == DType::String {
            return Err(Error::unsupported("string tensors are not supported"));
        }
        if need != bytes.len() {
            return Err(Error::malformed(format!("{dtype}{shape:?} needs {need} bytes, the file has {}", bytes.len())));
        }
        Ok(Self { dtype, shape, bytes: Arc::new(bytes) })
    }

    /// An `f32` tensor.
    ///
    /// # Panics
    /// When `data` does not fill `shape`: the caller computed both.
    pub fn f32(shape: &[usize], data: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "f32 tensor {shape:?}");
        let bytes = data.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { dtype: DType::F32, shape: shape.to_vec(), bytes: Arc::new(bytes) }
    }

    /// An integer or bool tensor; values are cut to the width of `dtype` as C does.
    ///
    /// # Panics
    /// When `data` does not fill `shape`, or `dtype` is not an integer type: the caller chose both.
    pub fn ints(dtype: DType, shape: &[usize], data: &[i64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "int tensor {shape:?}");
        assert!(dtype.int_range().is_some(), "{dtype} is not an integer type");
        let size = dtype.size();
        let bytes = data.iter().flat_map(|v| v.to_le_bytes().into_iter().take(size)).collect();
        Self { dtype, shape: shape.to_vec(), bytes: Arc::new(bytes) }
    }

    /// An `i64` vector.
    pub fn i64s(data: &[i64]) -> Self {
        Self::ints(DType::I64, &[data.len()], data)
    }

    /// A float tensor of `dtype` from `f32` values (rounded for f16 and bf16).
    ///
    /// # Panics
    /// When `data` does not fill `shape`, or `dtype` is not a float type: the caller chose both.
    pub fn floats(dtype: DType, shape: &[usize], data: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "float tensor {shape:?}");
        let bytes: Vec<u8> = match dtype {
            DType::F32 => return Self::f32(shape, data),
            DType::F64 => data.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect(),
            DType::F16 => data.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
            DType::BF16 => data.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
            _ => panic!("{dtype} is not a float type"),
        };
        Self { dtype, shape: shape.to_vec(), bytes: Arc::new(bytes) }
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The raw little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// Malformed when the number of elements differs.
    pub fn reshaped(mut self, shape: Vec<usize>) -> Result<Self> {
        if shape.iter().product::<usize>() != self.len() {
            return Err(Error::malformed(format!("{:?} cannot become {shape:?}", self.shape)));
        }
        self.shape = shape;
        Ok(self)
    }

    /// Float elements as `f32`: borrowed when they are stored so, converted otherwise.
    /// `None` for other types.
    pub fn as_f32(&self) -> Option<Cow<'_, [f32]>> {
        let b = &self.bytes[..];
        Some(match self.dtype {
            DType::F32 => match bytemuck::try_cast_slice(b) {
                Ok(s) => Cow::Borrowed(s),
                Err(_) => Cow::Owned(chunks(b, f32::from_le_bytes)),
            },
            DType::F64 => Cow::Owned(chunks(b, |c| f64::from_le_bytes(c) as f32)),
            DType::F16 => Cow::Owned(chunks(b, |c| half::f16::from_le_bytes(c).to_f32())),
            DType::BF16 => Cow::Owned(chunks(b, |c| half::bf16::from_le_bytes(c).to_f32())),
            _ => return None,
        })
    }

    /// Integer or bool elements as `i64`. `None` for other types.
    pub fn as_i64(&self) -> Option<Vec<i64>> {
        let b = &self.bytes[..];
        Some(match self.dtype {
            DType::U8 => b.iter().map(|v| i64::from(*v)).collect(),
            DType::Bool => b.iter().map(|v| i64::from(*v != 0)).collect(),
            DType::I8 => b.iter().map(|v| i64::from(*v as i8)).collect(),
            DType::U16 => chunks(b, |c| i64::from(u16::from_le_bytes(c))),
            DType::I16 => chunks(b, |c| i64::from(i16::from_le_bytes(c))),
            DType::I32 => chunks(b, |c| i64::from(i32::from_le_bytes(c))),
            DType::U32 => chunks(b, |c| i64::from(u32::from_le_bytes(c))),
            DType::I64 => chunks(b, i64::from_le_bytes),
            DType::U64 => chunks(b, |c| u64::from_le_bytes(c) as i64),
            _ => return None,
        })
    }

    /// How many elements are not zero.
    pub fn nonzero(&self) -> usize {
        match (self.as_f32(), self.dtype.size()) {
            (Some(values), _) => values.iter().filter(|v| **v != 0.0).count(),
            (None, 0) => self.len(),
            (None, size) => self.bytes.chunks_exact(size).filter(|c| c.iter().any(|b| *b != 0)).count(),
        }
    }
}

fn chunks<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|c| read(*c)).collect()
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}
