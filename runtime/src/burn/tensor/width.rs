//! The width of tensors and of products in half precision.
//!
//! A GPU holds tensors in 16 bits. A CPU holds all in 32, and rounds what convolutions and products read
//! ([`FactorWidth`]).

use super::{B, Float, Value};
use crate::{burn::precision::Precision, device::Device};
use ::burn::backend::{Backend, DType as BurnDType, FloatDType, TensorMetadata};
use compress_kernels::train::FactorWidth;
use std::cell::Cell;

thread_local! {
    static FACTORS: Cell<FactorWidth> = const { Cell::new(FactorWidth::F32) };
}

/// The width in which this thread multiplies now.
pub(super) fn of_factors() -> FactorWidth {
    FACTORS.get()
}

/// Does `work`, and multiplies in this width where kernels of ours do. A gradient has the width of its forward pass.
pub fn multiplying<T>(width: FactorWidth, work: impl FnOnce() -> T) -> T {
    struct Before(FactorWidth);
    impl Drop for Before {
        fn drop(&mut self) {
            FACTORS.set(self.0);
        }
    }
    let _before = Before(FACTORS.replace(width));
    work()
}

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
