//! What a lowering is on a device that has kernels for codes ([`crate::gpu`]): the same recognition, other kernels.

use super::{
    ops::{Sliding, Weight},
    scope::Affine,
};
use compress_compiler::{op::Op, ops::pool::Pool, value::Fact};
use compress_kernels::{Add8, Finish8, Mul8, Rescale};

/// A function of one code.
pub(crate) type Table = Box<[u8; 256]>;

/// An operator on a device.
pub(crate) enum DeviceOp {
    /// A product of codes, whose padding is `zero`.
    Codes { weight: Weight<i8>, at: Sliding, zero: u8, finish: Finish8 },
    /// A product of floats, within bounds.
    Floats { weight: Weight<f32>, at: Sliding, bias: Vec<f32>, bounds: [f32; 2] },
    /// A sum of codes.
    Add(Add8),
    /// A product of codes, one by one.
    Mul(Mul8),
    /// A function of codes.
    Lookup(Table),
    /// Codes of floats.
    Quantize(Affine),
    /// Floats of codes.
    Dequantize(Affine),
    /// The greatest code of a window.
    MaxPool(Pool),
    /// The average of all pixels of an image, as codes.
    GlobalAverage(Rescale),
    /// The value itself.
    Same,
    /// The same elements under the shape that an operator infers, of whose other operands this is known.
    Reshape { op: Op, facts: Vec<Option<Fact>> },
    /// Axes in another order.
    Transpose(Vec<usize>),
    /// Codes one behind the other along an axis, each perhaps translated.
    Concat { axis: usize, tables: Vec<Option<Table>> },
}
