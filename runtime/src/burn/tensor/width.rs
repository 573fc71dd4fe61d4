//! Tensors held in 16 bits, which training and inference in half precision make.

use super::{B, Float, Value};
use crate::{burn::precision::Precision, device::Device};
use ::burn::backend::{Backend, DType as BurnDType, FloatDType, TensorMetadata};

impl Precision {
    fn width(self) -> FloatDType {
        match self {
            Self::F32 => FloatDType::F32,
            Self::Bf16 => FloatDType::BF16,
            Self::F16 => FloatDType::F16,
        }
    }
}

impl Float {
    /// Whether the device can hold tensors in this width.
    pub fn can_hold(precision: Precision, device: &Device) -> bool {
        B::supports_dtype(device.burn(), precision.width().into())
    }

    /// Whether the device holds it in 16 bits. Its ONNX type is another matter.
    pub fn is_half(&self) -> bool {
        matches!(self.t.dtype(), BurnDType::F16 | BurnDType::BF16)
    }

    /// The same, held by the device in another width. What it is in ONNX stays, and so does `f64`.
    pub fn held_in(self, precision: Precision) -> Self {
        if self.t.dtype() == BurnDType::F64 { self } else { self.held(precision.width()) }
    }
}

impl Value {
    /// Has the device hold floats in another width, if they are not `f64`; integers stay as they are.
    pub fn hold(&mut self, precision: Precision) {
        if let Value::Float(x) = self
            && x.dtype().is_float()
        {
            *x = x.clone().held_in(precision);
        }
    }
}
