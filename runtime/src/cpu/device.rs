//! What a lowering is on a device that has kernels for codes ([`crate::gpu`]): the same recognition, other kernels.

use super::{
    lowering::Want,
    ops,
    scope::{Scope, is_constant},
};
pub(crate) use super::{
    ops::{Sliding, Weight, average_window},
    scope::Affine,
    window::window,
};
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::pool::Pool,
    value::Fact,
};
use compress_kernels::{Add8, Finish8, Mul8, Rescale, UnaryOp};
use std::collections::HashSet;

/// A function of one code.
pub(crate) type Table = Box<[u8; 256]>;

/// An operator on a device.
pub(crate) enum DeviceOp {
    /// A product of codes, whose padding is `zero`.
    Codes { weight: Weight<i8>, at: Sliding, zero: u8, finish: Finish8, then: Option<UnaryOp> },
    /// A product of floats, and the second operand if there is one, within bounds, and a function of that.
    Floats { weight: Weight<f32>, at: Sliding, bias: Vec<f32>, bounds: [f32; 2], then: Option<UnaryOp> },
    /// A function of floats.
    Function(UnaryOp),
    /// The Softmax of rows, or its logarithm; whether a row is that of a pixel, along axis 1, instead of the last axis.
    Softmax { log: bool, of_pixels: bool },
    /// LayerNormalization of the last axis.
    LayerNorm { scale: Vec<f32>, bias: Option<Vec<f32>>, epsilon: f32 },
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
    /// The average of a window, as codes.
    Average(Pool, Rescale),
    /// The average of all pixels of an image, as codes.
    GlobalAverage(Rescale),
    /// The same, where the mean is one of floats; whether it keeps the axes of the image.
    Mean { rescale: Rescale, keeps: bool },
    /// The value itself.
    Same,
    /// The same elements under the shape that an operator infers, of whose other operands this is known.
    Reshape { op: Op, facts: Vec<Option<Fact>> },
    /// Axes in another order.
    Transpose(Vec<usize>),
    /// Codes one behind the other along an axis, each perhaps translated.
    Concat { axis: usize, tables: Vec<Option<Table>> },
}

/// Nodes that a device runs, and how their values are made where it has kernels for them.
pub(crate) struct DeviceScope<'g>(Scope<'g>);

impl<'g> DeviceScope<'g> {
    /// The nodes of `order` for which `part` is true; values in `pinned` are needed as they are.
    pub fn new(
        graph: &'g Graph,
        order: &[NodeId],
        part: &'g dyn Fn(NodeId) -> bool,
        pinned: &'g HashSet<Port>,
    ) -> Self {
        Self(Scope::new(graph, order, part, pinned, true))
    }

    /// Whether the device has a kernel for `want`.
    pub fn makes(&self, want: Want) -> bool {
        self.0.has(want.port.node)
            && !is_constant(self.0.graph, want.port)
            && ops::lowering(&self.0, want).is_some_and(|l| l.device.is_some())
    }

    /// The values that `want` is made of, and by what; `None` where the device has no kernel for that.
    ///
    /// # Errors
    /// What reading the constants raises.
    pub fn lowered(&self, want: Want) -> Result<Option<(Vec<Want>, DeviceOp)>> {
        if !self.makes(want) {
            return Ok(None);
        }
        let Some(lowering) = ops::lowering(&self.0, want) else { return Ok(None) };
        let Some(make) = lowering.device else { return Ok(None) };
        let label = || self.0.graph.node(want.port.node).label();
        Ok(Some((lowering.operands, make().map_err(|e| e.at(label()))?)))
    }
}
