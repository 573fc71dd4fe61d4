//! How one value is made.

use super::{device::DeviceOp, plan::Planner};
use compress_compiler::{error::Result, node::Port};
use compress_kernels::Isa;

/// What a value is held as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Form {
    /// The floats themselves.
    Float,
    /// The unsigned 8-bit codes which stand for them, or which are the value: of a bool, 0 or what isn't. Of integers of 32 or 64 bits,
    /// which come from elsewhere and choose rows of tables, all their bytes.
    Codes,
}

/// A value that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Want {
    /// The value.
    pub port: Port,
    /// The form.
    pub form: Form,
}

impl Want {
    pub fn float(port: Port) -> Self {
        Self { port, form: Form::Float }
    }

    pub fn codes(port: Port) -> Self {
        Self { port, form: Form::Codes }
    }
}

/// An input as [`Lowered::is_by_sample`] looks at it.
pub(super) struct Operand<'a> {
    pub dims: &'a [usize],
    pub is_constant: bool,
}

/// Places of values in a program.
pub(super) type ValueId = usize;

/// A lowered operator: its constants are packed, shapes are open.
pub(super) trait Lowered: Send + Sync {
    /// Adds the steps that make `output`.
    ///
    /// # Errors
    /// Unsupported where the shapes of the inputs don't allow it.
    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()>;

    /// Whether each sample of `output`, along axis 0, is made of the same sample of the inputs that
    /// are not constants, and of nothing else. Both have as many samples.
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool;

    /// Whether it has no inputs, and makes the same at all times.
    fn is_constant(&self) -> bool {
        false
    }

    /// The rows of the table that its first operand chooses from; a negative number counts from behind.
    fn rows(&self) -> Option<usize> {
        None
    }

    /// Bytes of the weights that it reads.
    fn weight_bytes(&self) -> usize {
        0
    }

    /// For a Concat that copies its inputs as they are: along which axis. They may then be written
    /// where the whole lies.
    fn joins_along(&self) -> Option<usize> {
        None
    }

    /// Whether an input may have no elements, as a cache that begins.
    fn may_be_empty(&self) -> bool {
        self.joins_along().is_some()
    }
}

/// Makes a lowered operator when the instruction set is known.
pub(super) type Make<'g> = Box<dyn FnOnce(Isa) -> Result<Box<dyn Lowered>> + 'g>;

/// How one value is made: from which others, and by which lowered operator.
pub(super) struct Lowering<'g> {
    /// The values that are read.
    pub operands: Vec<Want>,
    /// Values that are not made, whose shapes planning looks at: they follow the operands.
    pub shapes: Vec<Port>,
    /// Packs the constants.
    pub make: Make<'g>,
    /// The same on a device, where that has a kernel for it.
    pub device: Option<Box<dyn FnOnce() -> Result<DeviceOp> + 'g>>,
}

impl<'g> Lowering<'g> {
    /// A lowering whose operator needs no packing.
    pub fn of(operands: Vec<Want>, op: impl Lowered + 'g + 'static) -> Self {
        Self { operands, shapes: vec![], make: Box::new(move |_| Ok(Box::new(op))), device: None }
    }

    /// A lowering whose operator is made by `make`.
    pub fn with<L: Lowered + 'static>(operands: Vec<Want>, make: impl FnOnce(Isa) -> Result<L> + 'g) -> Self {
        Self { operands, shapes: vec![], make: Box::new(move |isa| Ok(Box::new(make(isa)?))), device: None }
    }

    /// The same lowering, which looks at the shapes of values that are not made.
    pub fn with_shapes(self, shapes: Vec<Port>) -> Self {
        Self { shapes, ..self }
    }

    /// The same lowering, which is `make` on a device.
    pub fn on_device(self, make: impl FnOnce() -> Result<DeviceOp> + 'g) -> Self {
        Self { device: Some(Box::new(make)), ..self }
    }
}
