//! Values at run time, and the only file (with its children) that names Burn's primitives.
//!
//! Burn panics where shapes don't fit, so every operation here that could meet shapes that
//! don't fit checks them first and returns an error. A value without axes is held as one of
//! shape `[1]` on the device, as not every backend knows scalars; [`Float::shape`] is ONNX's.

use super::host::{self, IntArray};
use crate::{device::Device, memory};
use ::burn::backend::{
    Backend, BoolDType, DType as BurnDType, Dispatch, FloatDType, Scalar, Shape, TensorData, TensorMetadata,
    get_or_init_device_settings, ops::FloatTensorOps, tensor::FloatTensor,
};

#[cfg(not(feature = "gpu"))]
mod absent;
mod extension;
#[cfg(feature = "gpu")]
mod gpu;
pub(crate) mod hearing;
mod layers;
mod lines;
mod math;
mod moving;
mod operators;
mod product;
mod training;
mod width;

#[cfg(not(feature = "gpu"))]
use absent::{borrowed, drops_nan, on_gpu};
#[cfg(feature = "gpu")]
use gpu::{borrowed, drops_nan, on_gpu};

use compress_compiler::{
    error::{Error, Result},
    narrow::{RoundMode, decode, encode, is_narrow},
    tensor::{DType, Tensor},
};

pub use layers::Geometry;
pub use training::Gradients;
pub(super) use width::multiplying;

/// The backend: picks the real one by the device of the tensors.
type B = Dispatch;
/// A float tensor on some device.
type Prim = FloatTensor<B>;

/// Values with more elements than this are refused: 8 GiB as floats.
pub const MAX_ELEMENTS: usize = 1 << 31;

/// Constants up to this size keep their host copy beside the one on the device, so that
/// kernels which read scales and bounds never wait for the device.
const HOST_COPY: usize = 1024;

/// A value while the model runs.
// Floats are by far the most frequent; a box would cost each of them an allocation.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
pub enum Value {
    /// On the device: `f64` as itself, and held as `f32` all other floats, and integers of up to
    /// 16 bits that are quantised activations (which `f32` holds exactly). Between operators
    /// nothing is rounded to `f16` or `bf16`, only by a cast and at the end: ONNX Runtime does the
    /// same on a CPU, as it takes away the casts that it put between operators itself.
    Float(Float),
    /// On the host: shapes, indices, conditions.
    Int(IntArray),
}

impl Value {
    /// Sends `t` where its kind of value lives: floats to the device, all others stay.
    ///
    /// # Errors
    /// Unsupported for strings.
    pub(crate) fn upload(t: &Tensor, device: &Device) -> Result<Self> {
        if t.dtype().is_float() {
            Float::upload(t, device).map(Value::Float)
        } else {
            IntArray::from_tensor(t).map(Value::Int)
        }
    }

    /// An input of a model, sent where its kind lives. Pictures come as bytes, and belong on the device; short
    /// lists of bytes don't.
    ///
    /// # Errors
    /// As for [`Value::upload`].
    pub fn input(t: &Tensor, device: &Device) -> Result<Self> {
        let value = Self::upload(t, device)?;
        match matches!(t.dtype(), DType::U8 | DType::I8) && t.shape().len() > 1 {
            true => Ok(Value::Float(value.into_device(device)?)),
            false => Ok(value),
        }
    }

    /// Brings the value to the host as what it is in ONNX.
    ///
    /// # Errors
    /// Device, when reading from it fails.
    pub fn download(self) -> Result<Tensor> {
        match self {
            Value::Float(f) => f.download(),
            Value::Int(a) => a.into_tensor(),
        }
    }

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        match self {
            Value::Float(f) => &f.shape,
            Value::Int(a) => &a.shape,
        }
    }

    /// The ONNX element type.
    pub fn dtype(&self) -> DType {
        match self {
            Value::Float(f) => f.dtype,
            Value::Int(a) => a.dtype,
        }
    }

    /// The same elements under another shape.
    ///
    /// # Errors
    /// Malformed when the number of elements differs.
    pub fn reshape(self, shape: &[usize]) -> Result<Self> {
        Ok(match self {
            Value::Float(f) => Value::Float(f.reshape(shape)?),
            Value::Int(a) => Value::Int(a.reshape(shape)?),
        })
    }

    /// The entry `at` of `axis`, without that axis.
    ///
    /// # Errors
    /// Malformed when it is out of range.
    pub fn entry(self, axis: usize, at: usize) -> Result<Self> {
        let mut shape = self.shape().to_vec();
        if shape.get(axis).is_none_or(|n| at >= *n) {
            return Err(Error::malformed(format!("entry {at} of axis {axis} of {shape:?}")));
        }
        shape.remove(axis);
        match self {
            Value::Float(f) => Value::Float(f.slice(axis, at, 1, 1)?),
            Value::Int(a) => Value::Int(a.select(axis, &[at as i64])?),
        }
        .reshape(&shape)
    }

    /// The same elements off the tape, for what changes with them by jumps only: its derivative is 0.
    pub fn detached(self) -> Self {
        match self {
            Value::Float(f) => Value::Float(f.detached()),
            ints => ints,
        }
    }

    /// The value on the host, as integers.
    ///
    /// # Errors
    /// Malformed when it is of a float type; device when reading fails.
    pub(crate) fn into_ints(self) -> Result<IntArray> {
        match self {
            Value::Int(a) => Ok(a),
            Value::Float(f) if f.dtype.is_float() => {
                Err(Error::malformed(format!("an input is {}, where integers are expected", f.dtype)))
            }
            Value::Float(f) => {
                let (dtype, shape) = (f.dtype, f.shape.clone());
                let data = f.detached().into_vec()?.into_iter().map(|v| v as i64).collect();
                Ok(IntArray::new(dtype, shape, data))
            }
        }
    }

    /// The value on the device: integers of up to 16 bits are sent there.
    ///
    /// # Errors
    /// Unsupported for wider integers.
    pub(crate) fn into_device(self, device: &Device) -> Result<Float> {
        match self {
            Value::Float(f) => Ok(f),
            Value::Int(a) if a.dtype != DType::Bool && a.dtype.int_range().is_some() && a.dtype.bits() <= 16 => {
                let data = a.data.iter().map(|v| *v as f32).collect();
                Ok(Float::from_vec(data, &a.shape, device)?.with_dtype(a.dtype))
            }
            Value::Int(a) => Err(Error::unsupported(format!("this operator on {} values", a.dtype))),
        }
    }
}

/// A tensor on the device, held as `f64` if that is its type and as `f32` otherwise.
#[derive(Clone, Debug)]
pub struct Float {
    t: Prim,
    shape: Vec<usize>,
    dtype: DType,
    host: Option<Tensor>,
}

fn scalar(v: impl Into<f64>) -> Scalar {
    Scalar::Float(v.into())
}

/// How the device holds what is `dtype` in ONNX.
fn held_as(dtype: DType) -> FloatDType {
    if dtype == DType::F64 { FloatDType::F64 } else { FloatDType::F32 }
}

/// How the device of `t` holds truth values.
fn bool_dtype(t: &Prim) -> BoolDType {
    get_or_init_device_settings::<B>(&t.device()).bool_dtype
}

fn prim_shape(shape: &[usize]) -> Shape {
    Shape::from(if shape.is_empty() { vec![1] } else { shape.to_vec() })
}

/// # Errors
/// Limit when a value of `shape` would be too large, or larger than the memory that is free.
pub fn check_size(shape: &[usize]) -> Result<usize> {
    let n = host::elements(shape).filter(|n| *n <= MAX_ELEMENTS);
    let n =
        n.ok_or_else(|| Error::limit(format!("a value of shape {shape:?} has more than {MAX_ELEMENTS} elements")))?;
    memory::check(n.saturating_mul(size_of::<f32>()), || format!("a value of shape {shape:?}"))?;
    Ok(n)
}

impl Float {
    // --- between host and device ---

    /// Sends a float tensor to the device. Narrower types are widened to `f32`.
    ///
    /// # Errors
    /// Unsupported for other types, and where the device knows no `f64`.
    pub(crate) fn upload(t: &Tensor, device: &Device) -> Result<Self> {
        let host = (t.len() <= HOST_COPY).then(|| t.clone());
        if let Some(data) = t.as_f64() {
            return Ok(Self { host, ..Self::from_f64s(data, t.shape(), DType::F64, device)? });
        }
        if let Some(data) = borrowed(t).filter(|_| !device.is_cpu()) {
            check_size(t.shape())?;
            let sent = B::float_from_data(data, device.burn());
            return Ok(Self { host, ..Self::wrap(sent, t.shape().to_vec(), DType::F32) });
        }
        let data = t.as_f32().ok_or_else(|| Error::unsupported(format!("computing with {} values", t.dtype())))?;
        Ok(Self { host, ..Self::from_vec(data.into_owned(), t.shape(), device)?.with_dtype(t.dtype()) })
    }

    /// Sends `data` to the device as a tensor of a float type, to which it is rounded.
    ///
    /// # Errors
    /// As for [`Float::from_vec`].
    pub(crate) fn from_f64s(data: Vec<f64>, shape: &[usize], dtype: DType, device: &Device) -> Result<Self> {
        if dtype != DType::F64 {
            // Rounded once: through `f32` a number could be rounded up twice.
            let round = |v: f64| match dtype {
                DType::F16 => half::f16::from_f64(v).to_f32(),
                DType::BF16 => half::bf16::from_f64(v).to_f32(),
                d if is_narrow(d) => decode(d, encode(d, v, false, RoundMode::Up)),
                _ => v as f32,
            };
            return Ok(Self::from_vec(data.into_iter().map(round).collect(), shape, device)?.with_dtype(dtype));
        }
        if check_size(shape)? != data.len() {
            return Err(Error::bug(format!("{} elements for shape {shape:?}", data.len())));
        }
        if !B::supports_dtype(device.burn(), BurnDType::F64) {
            return Err(Error::unsupported("computing with f64 values on this device"));
        }
        let data = TensorData::new(data, prim_shape(shape));
        Ok(Self::wrap(B::float_from_data(data, device.burn()), shape.to_vec(), DType::F64))
    }

    /// Sends `data` to the device as an `f32` tensor.
    ///
    /// # Errors
    /// Limit when it is too large; a bug when `data` doesn't fill `shape`.
    pub(crate) fn from_vec(data: Vec<f32>, shape: &[usize], device: &Device) -> Result<Self> {
        if check_size(shape)? != data.len() {
            return Err(Error::bug(format!("{} elements for shape {shape:?}", data.len())));
        }
        let data = TensorData::new(data, prim_shape(shape));
        Ok(Self::wrap(B::float_from_data(data, device.burn()), shape.to_vec(), DType::F32))
    }

    /// An `f32` tensor filled with `v`.
    ///
    /// # Errors
    /// Limit when it is too large.
    pub fn full(shape: &[usize], v: impl Into<f64>, device: &Device) -> Result<Self> {
        check_size(shape)?;
        let t = B::float_full(prim_shape(shape), scalar(v), device.burn(), FloatDType::F32);
        Ok(Self::wrap(t, shape.to_vec(), DType::F32))
    }

    /// A tensor of a float type filled with `v`.
    ///
    /// # Errors
    /// Limit when it is too large; unsupported where the device knows no `f64`.
    pub fn filled(shape: &[usize], v: f64, dtype: DType, device: &Device) -> Result<Self> {
        Self::from_f64s(vec![v], &[], dtype, device)?.expand(shape)
    }

    /// The elements, read from the device.
    ///
    /// # Errors
    /// Device, when reading fails; unsupported for `f64`, which would lose digits: see
    /// [`Float::into_f64s`].
    pub fn into_vec(self) -> Result<Vec<f32>> {
        match &self.host {
            _ if self.dtype == DType::F64 => Err(Error::unsupported("this operator on f64 values")),
            Some(t) if t.dtype().is_float() => Ok(t.as_f32().map(|v| v.into_owned()).unwrap_or_default()),
            _ => {
                let data = self.held(FloatDType::F32).into_data()?;
                data.try_into_vec::<f32>().map_err(|e| Error::device(format!("reading a tensor: {e:?}")))
            }
        }
    }

    /// The elements of any float type, read from the device.
    ///
    /// # Errors
    /// Device, when reading fails.
    pub(crate) fn into_f64s(self) -> Result<Vec<f64>> {
        if self.dtype != DType::F64 {
            return Ok(self.into_vec()?.into_iter().map(f64::from).collect());
        }
        if let Some(data) = self.host.as_ref().and_then(Tensor::as_f64) {
            return Ok(data);
        }
        self.into_data()?.try_into_vec::<f64>().map_err(|e| Error::device(format!("reading a tensor: {e:?}")))
    }

    /// Shows the elements as `f32` to `see` without copying them where that can be avoided.
    ///
    /// # Errors
    /// Device, when reading fails, and what `see` returns.
    pub fn view<T>(&self, see: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
        let data = self.clone().held(FloatDType::F32).into_data()?;
        see(data.as_slice::<f32>().map_err(|e| Error::device(format!("reading a tensor: {e:?}")))?)
    }

    fn into_data(self) -> Result<TensorData> {
        // What a kernel makes of elements on the host has no gradient.
        if self.is_tracked() {
            return Err(Error::unsupported("this operator cannot be trained through: it has no gradient"));
        }
        let _reading = crate::gpu::reading()?;
        match ::burn::backend::try_read_sync(B::float_into_data(self.t)) {
            Some(Ok(data)) => Ok(data),
            Some(Err(e)) => Err(crate::device::failed(&format!("{e:?}"))),
            None => Err(Error::device("reading a tensor: the device cannot be waited for")),
        }
    }

    fn download(self) -> Result<Tensor> {
        let (dtype, shape) = (self.dtype, self.shape.clone());
        if let Some(t) = self.host {
            return Ok(t);
        }
        if dtype == DType::F64 {
            return Ok(Tensor::f64(&shape, &self.into_f64s()?));
        }
        let data = self.into_vec()?;
        if dtype.is_float() {
            return Ok(Tensor::floats(dtype, &shape, &data));
        }
        let ints: Vec<i64> = data.iter().map(|v| *v as i64).collect();
        Ok(Tensor::ints(dtype, &shape, &ints))
    }

    fn wrap(t: Prim, shape: Vec<usize>, dtype: DType) -> Self {
        Self { t, shape, dtype, host: None }
    }

    /// The same tensor, held in another width. What is made of it may have another type.
    fn held(mut self, width: FloatDType) -> Self {
        if self.t.dtype() != width.into() {
            self.t = B::float_cast(self.t, width);
        }
        self
    }

    /// Held as `other` is: Burn does not mix widths.
    fn widened_like(self, other: &Self) -> Self {
        self.held(other.t.dtype().into())
    }

    fn map(self, f: impl FnOnce(Prim) -> Prim) -> Self {
        Self::wrap(f(self.t), self.shape, self.dtype)
    }

    // --- reading ---

    /// The shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The ONNX element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The one element of a constant that is known on the host.
    pub(crate) fn known_scalar(&self) -> Option<f64> {
        let host = self.host.as_ref().filter(|t| t.len() == 1)?;
        host.as_f64().and_then(|v| v.first().copied()).or_else(|| host.as_f32()?.first().map(|v| f64::from(*v)))
    }

    /// The one element, read from the device if need be.
    ///
    /// # Errors
    /// Malformed when there are more.
    pub fn scalar(self) -> Result<f64> {
        if let Some(v) = self.known_scalar() {
            return Ok(v);
        }
        let shape = self.shape.clone();
        match self.into_f64s()?[..] {
            [v] => Ok(v),
            _ => Err(Error::malformed(format!("an input of shape {shape:?}, where one element is expected"))),
        }
    }

    /// The same elements under another ONNX type; they are not changed, but for digits that `f64`
    /// alone has.
    pub(crate) fn with_dtype(mut self, dtype: DType) -> Self {
        self = self.held(held_as(dtype));
        if dtype != self.dtype {
            self.host = None;
        }
        self.dtype = dtype;
        self
    }

    /// Rounds the elements to what `dtype`, a float type of 16 bits or more, can hold.
    pub(crate) fn rounded_to(self, dtype: DType) -> Self {
        let narrow = match dtype {
            DType::F16 => FloatDType::F16,
            DType::BF16 => FloatDType::BF16,
            _ => return self.with_dtype(dtype),
        };
        self.map(|t| B::float_cast(B::float_cast(t, narrow), FloatDType::F32)).with_dtype(dtype)
    }

    /// The primitive with axes of size 1 in front, up to `rank` axes.
    fn padded(&self, rank: usize) -> Prim {
        let have = self.shape.len().max(1);
        if rank <= have {
            return self.t.clone();
        }
        let mut shape = vec![1; rank - self.shape.len()];
        shape.extend_from_slice(&self.shape);
        B::float_reshape(self.t.clone(), prim_shape(&shape))
    }
}
