//! Element types, and tensors held in host memory.

use crate::{
    error::{Error, Result},
    narrow::{self, RoundMode},
    storage::{Census, Storage},
};
use std::{borrow::Cow, fmt};

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
    F8E4M3FN = 17,
    F8E4M3FNUZ = 18,
    F8E5M2 = 19,
    F8E5M2FNUZ = 20,
    U4 = 21,
    I4 = 22,
    F4E2M1 = 23,
    F8E8M0 = 24,
    U2 = 25,
    I2 = 26,
    F6E2M3 = 27,
    F6E3M2 = 28,
}

impl DType {
    /// Every type, in the order of ONNX's numbers.
    pub const ALL: [DType; 26] = [
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
        DType::F8E4M3FN,
        DType::F8E4M3FNUZ,
        DType::F8E5M2,
        DType::F8E5M2FNUZ,
        DType::U4,
        DType::I4,
        DType::F4E2M1,
        DType::F8E8M0,
        DType::U2,
        DType::I2,
        DType::F6E2M3,
        DType::F6E3M2,
    ];

    /// The type with ONNX's number `code`, if this crate knows it.
    pub(crate) fn from_onnx(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|d| *d as i32 == code)
    }

    /// Bits an element; 0 for strings, which have no fixed size.
    pub fn bits(self) -> usize {
        match self {
            DType::String => 0,
            DType::U2 | DType::I2 => 2,
            DType::U4 | DType::I4 | DType::F4E2M1 => 4,
            DType::F6E2M3 | DType::F6E3M2 => 6,
            DType::F8E4M3FN | DType::F8E4M3FNUZ | DType::F8E5M2 | DType::F8E5M2FNUZ | DType::F8E8M0 => 8,
            DType::U8 | DType::I8 | DType::Bool => 8,
            DType::U16 | DType::I16 | DType::F16 | DType::BF16 => 16,
            DType::F32 | DType::I32 | DType::U32 => 32,
            DType::F64 | DType::I64 | DType::U64 => 64,
        }
    }

    /// Bytes one element takes by itself; 0 for strings. Tensors pack elements of less than a
    /// byte: [`DType::bytes`] counts right.
    pub fn size(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// Bytes of a tensor of `shape`, unless they overflow.
    pub fn bytes(self, shape: &[usize]) -> Option<usize> {
        shape.iter().try_fold(self.bits(), |n, d| n.checked_mul(*d)).map(|bits| bits.div_ceil(8))
    }

    /// Whether this is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16) || narrow::is_narrow(self)
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
            DType::F8E4M3FN => "f8e4m3fn",
            DType::F8E4M3FNUZ => "f8e4m3fnuz",
            DType::F8E5M2 => "f8e5m2",
            DType::F8E5M2FNUZ => "f8e5m2fnuz",
            DType::U4 => "u4",
            DType::I4 => "i4",
            DType::F4E2M1 => "f4e2m1",
            DType::F8E8M0 => "f8e8m0",
            DType::U2 => "u2",
            DType::I2 => "i2",
            DType::F6E2M3 => "f6e2m3",
            DType::F6E3M2 => "f6e3m2",
        }
    }

    /// The type called `name` in the text form.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// The smallest and largest value of an integer type (bool counts as 0 and 1).
    pub fn int_range(self) -> Option<(i64, i64)> {
        Some(match self {
            DType::Bool => (0, 1),
            DType::U2 => (0, 3),
            DType::I2 => (-2, 1),
            DType::U4 => (0, 15),
            DType::I4 => (-8, 7),
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
    bytes: Storage,
}

impl Tensor {
    /// A tensor from its raw little-endian bytes.
    ///
    /// # Errors
    /// Malformed when the bytes don't fill the shape exactly; limit when the shape overflows.
    pub fn new(dtype: DType, shape: Vec<usize>, bytes: impl Into<Storage>) -> Result<Self> {
        let bytes = bytes.into();
        let need = dtype.bytes(&shape).ok_or_else(|| Error::limit(format!("the shape {shape:?} overflows")))?;
        if dtype == DType::String {
            return Err(Error::unsupported("string tensors are not supported"));
        }
        if need != bytes.len() {
            return Err(Error::malformed(format!("{dtype}{shape:?} needs {need} bytes, the file has {}", bytes.len())));
        }
        Ok(Self { dtype, shape, bytes })
    }

    /// An `f32` tensor.
    ///
    /// # Panics
    /// When `data` does not fill `shape`: the caller computed both.
    pub fn f32(shape: &[usize], data: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "f32 tensor {shape:?}");
        Self { dtype: DType::F32, shape: shape.to_vec(), bytes: encoded(data, f32::to_le_bytes).into() }
    }

    /// An `f64` tensor.
    ///
    /// # Panics
    /// When `data` does not fill `shape`: the caller computed both.
    pub fn f64(shape: &[usize], data: &[f64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "f64 tensor {shape:?}");
        Self { dtype: DType::F64, shape: shape.to_vec(), bytes: encoded(data, f64::to_le_bytes).into() }
    }

    /// An integer or bool tensor; values are cut to the width of `dtype` as C does.
    ///
    /// # Panics
    /// When `data` does not fill `shape`, or `dtype` is not an integer type: the caller chose both.
    pub fn ints(dtype: DType, shape: &[usize], data: &[i64]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "int tensor {shape:?}");
        assert!(dtype.int_range().is_some(), "{dtype} is not an integer type");
        let bytes = match dtype.bits() {
            bits @ ..8 => narrow::pack(bits, data.iter().map(|v| *v as u8)),
            8 => encoded(data, |v| (v as u8).to_le_bytes()),
            16 => encoded(data, |v| (v as u16).to_le_bytes()),
            32 => encoded(data, |v| (v as u32).to_le_bytes()),
            _ => encoded(data, i64::to_le_bytes),
        };
        Self { dtype, shape: shape.to_vec(), bytes: bytes.into() }
    }

    /// An `i64` vector.
    pub fn i64s(data: &[i64]) -> Self {
        Self::ints(DType::I64, &[data.len()], data)
    }

    /// A float tensor of `dtype` from `f32` values, rounded for narrower types; what an 8-bit type
    /// cannot hold saturates.
    ///
    /// # Panics
    /// When `data` does not fill `shape`, or `dtype` is not a float type: the caller chose both.
    pub fn floats(dtype: DType, shape: &[usize], data: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "float tensor {shape:?}");
        let bytes: Vec<u8> = match dtype {
            DType::F32 => return Self::f32(shape, data),
            DType::F64 => encoded(data, |v| f64::from(v).to_le_bytes()),
            DType::F16 => encoded(data, |v| half::f16::from_f32(v).to_le_bytes()),
            DType::BF16 => encoded(data, |v| half::bf16::from_f32(v).to_le_bytes()),
            _ => {
                assert!(narrow::is_narrow(dtype), "{dtype} is not a float type");
                let code = |v: &f32| narrow::encode(dtype, (*v).into(), !v.is_infinite(), RoundMode::Up);
                narrow::pack(dtype.bits(), data.iter().map(code))
            }
        };
        Self { dtype, shape: shape.to_vec(), bytes: bytes.into() }
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

    /// Tells the system that a copy of the bytes was made and they won't be read soon; see [`Storage::release`].
    pub fn release(&self) {
        self.bytes.release();
    }

    /// The raw bytes, wherever they are.
    pub fn storage(&self) -> &Storage {
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
            d if narrow::is_narrow(d) => {
                Cow::Owned(narrow::unpack(d.bits(), b, self.len()).map(|c| narrow::decode(d, c)).collect())
            }
            _ => return None,
        })
    }

    /// The elements of an `f64` tensor; `None` for other types.
    pub fn as_f64(&self) -> Option<Vec<f64>> {
        (self.dtype == DType::F64).then(|| chunks(&self.bytes, f64::from_le_bytes))
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
            d @ (DType::U2 | DType::U4) => narrow::unpack(d.bits(), b, self.len()).map(i64::from).collect(),
            d @ (DType::I2 | DType::I4) => {
                let shift = 8 - d.bits();
                narrow::unpack(d.bits(), b, self.len()).map(|c| i64::from((c << shift) as i8 >> shift)).collect()
            }
            _ => return None,
        })
    }

    /// Whether every float passes `test`, looked at where they are. `None` for other types.
    pub fn all_f32(&self, test: impl Fn(f32) -> bool) -> Option<bool> {
        match self.dtype {
            DType::F32 => Some(self.bytes.as_chunks().0.iter().all(|c| test(f32::from_le_bytes(*c)))),
            _ => self.as_f32().map(|v| v.iter().all(|v| test(*v))),
        }
    }

    /// Whether every float is a number, and not infinite. `None` for other types.
    pub fn is_finite(&self) -> Option<bool> {
        match self.dtype {
            DType::F32 => Some(self.census().unsound == 0),
            _ => self.all_f32(f32::is_finite),
        }
    }

    /// How many elements are not zero.
    pub fn nonzero(&self) -> usize {
        self.census().nonzero
    }

    /// How many elements of type `f32` are below [`TINY`], but not zero.
    pub fn tiny(&self) -> usize {
        self.census().tiny
    }

    /// Looks at every element once for all that is asked, as weights may still be in their file.
    fn census(&self) -> Census {
        self.bytes.census(|b| {
            // Everything but the sign of a float that is not zero.
            let nonzero = match self.dtype {
                DType::String => self.len(),
                DType::F16 | DType::BF16 => count(b, |c| u16::from_le_bytes(c) << 1 != 0),
                DType::F32 => {
                    let of = |v: f32| [v != 0.0, is_tiny(v), !v.is_finite()];
                    let [nonzero, tiny, unsound] = counts(b, |bits| of(f32::from_bits(bits)));
                    return Census { nonzero, tiny, unsound };
                }
                DType::F64 => count(b, |c| u64::from_le_bytes(c) << 1 != 0),
                d if d.is_float() => {
                    narrow::unpack(d.bits(), b, self.len()).filter(|c| narrow::decode(d, *c) != 0.0).count()
                }
                d if d.bits() < 8 => narrow::unpack(d.bits(), b, self.len()).filter(|c| *c != 0).count(),
                d => b.chunks_exact(d.size()).filter(|c| c.iter().any(|b| *b != 0)).count(),
            };
            Census { nonzero, tiny: 0, unsound: 0 }
        })
    }
}

/// Floats below this, and their products with others of usual size, are so small that some processors compute with them many times
/// more slowly.
pub const TINY: f32 = 1e-30;

/// Whether a float is below [`TINY`], but not zero.
pub fn is_tiny(v: f32) -> bool {
    v.abs() < TINY && v != 0.0
}

fn count<const N: usize>(bytes: &[u8], test: impl Fn([u8; N]) -> bool) -> usize {
    bytes.as_chunks::<N>().0.iter().filter(|c| test(**c)).count()
}

/// How many of 32 bits pass each of three tests. In short sums of 32 bits, which vectors add.
fn counts(bytes: &[u8], test: impl Fn(u32) -> [bool; 3]) -> [usize; 3] {
    let mut all = [0usize; 3];
    for block in bytes.as_chunks::<4>().0.chunks(1 << 16) {
        let mut few = [0u32; 3];
        for bits in block {
            let [a, b, c] = test(u32::from_le_bytes(*bits));
            few = [few[0] + u32::from(a), few[1] + u32::from(b), few[2] + u32::from(c)];
        }
        all = [all[0] + few[0] as usize, all[1] + few[1] as usize, all[2] + few[2] as usize];
    }
    all
}

fn chunks<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|c| read(*c)).collect()
}

/// The bytes of elements. A loop over chunks of a known size is a copy, whatever the compiler inlines.
pub(crate) fn encoded<const N: usize, T: Copy>(data: &[T], encode: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    let mut bytes = vec![0; data.len() * N];
    for (chunk, v) in bytes.as_chunks_mut::<N>().0.iter_mut().zip(data) {
        *chunk = encode(*v);
    }
    bytes
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}
