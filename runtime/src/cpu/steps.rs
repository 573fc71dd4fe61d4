//! Steps: calls of kernels whose operands are known.

use compress_kernels::{Rows, RowsMut};
use std::time::Instant;

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In a buffer of the arena.
    Buffer(usize),
    /// In a tensor that is given.
    Input(usize),
    /// In a constant of the plan.
    Constant(usize),
}

/// Rows of elements somewhere. All numbers count elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct View {
    pub place: Place,
    pub offset: usize,
    pub rows: usize,
    pub width: usize,
    pub stride: usize,
}

impl View {
    /// Rows without gaps from the beginning of `place`.
    pub fn dense(place: Place, rows: usize, width: usize) -> Self {
        Self { place, offset: 0, rows, width, stride: width }
    }

    pub fn is_dense(&self) -> bool {
        self.stride == self.width || self.rows <= 1
    }

    pub fn len(&self) -> usize {
        self.rows * self.width
    }

    /// Elements from the first to the last.
    pub fn extent(&self) -> usize {
        self.rows.checked_sub(1).map_or(0, |n| n * self.stride + self.width)
    }

    /// The same elements as `rows` others, if they lie so.
    pub fn reshaped(&self, rows: usize, width: usize) -> Option<Self> {
        debug_assert_eq!(rows * width, self.len());
        match self.is_dense() {
            true => Some(Self { rows, width, stride: width, ..*self }),
            false => ((self.rows, self.width) == (rows, width)).then_some(*self),
        }
    }
}

/// A type of elements.
pub(super) trait Element: bytemuck::Pod + Send + Sync + Default {}
impl Element for f32 {}
impl Element for u8 {}

/// A view with its bytes.
#[derive(Clone, Copy)]
pub(super) struct Seen<'a> {
    pub bytes: &'a [u8],
    pub view: View,
}

/// What a step works on.
pub(super) struct Operands<'a> {
    pub reads: [Option<Seen<'a>>; READS],
    pub write: Option<(&'a mut [u8], View)>,
    pub scratch: &'a mut [u8],
    /// Into how many parts the work is divided.
    pub parts: usize,
}

/// The most values that a step reads.
pub(super) const READS: usize = 5;

impl<'a> Operands<'a> {
    /// Operand `i`.
    ///
    /// # Panics
    /// When the step has no such operand.
    pub fn read<T: Element>(&self, i: usize) -> Rows<'a, T> {
        let Seen { bytes, view } = self.reads[i].expect("an operand that the step was planned with");
        Rows::new(bytemuck::cast_slice(bytes), view.rows, view.width, view.stride)
    }

    /// The bytes of operand `i`, which may begin anywhere.
    ///
    /// # Panics
    /// When the step has no such operand.
    pub fn bytes(&self, i: usize) -> &'a [u8] {
        self.reads[i].expect("an operand that the step was planned with").bytes
    }

    /// Operand `i` as one slice.
    ///
    /// # Panics
    /// When it has gaps.
    pub fn slice<T: Element>(&self, i: usize) -> &'a [T] {
        let rows = self.read(i);
        assert!(rows.is_dense(), "a dense operand");
        rows.data()
    }

    /// What is written, and the scratch memory.
    ///
    /// # Panics
    /// When called twice: there is one value to write.
    pub fn write<T: Element>(&mut self) -> (RowsMut<'a, T>, &mut [u8]) {
        let (bytes, view) = self.write.take().expect("a step writes once");
        (RowsMut::new(bytemuck::cast_slice_mut(bytes), view.rows, view.width, view.stride), self.scratch)
    }

    /// What is written.
    ///
    /// # Panics
    /// As for [`Operands::write`].
    pub fn out<T: Element>(&mut self) -> RowsMut<'a, T> {
        self.write().0
    }
}

/// Calls a kernel.
pub(super) type Call = Box<dyn Fn(&mut Operands) + Send + Sync>;

/// What computes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// Whether it leaves out weights that are zero.
    pub skips_zeros: bool,
}

impl Kernel {
    /// Whether it computes with 8-bit codes: those kernels' names end so.
    pub fn on_codes(self) -> bool {
        self.name.ends_with("_i8")
    }

    /// Whether it changes the type or the layout of a value, and computes nothing.
    pub fn converts(self) -> bool {
        matches!(self.name, "quantize" | "dequantize" | "relabel" | "transpose" | "copy")
    }
}

impl From<&'static str> for Kernel {
    fn from(name: &'static str) -> Self {
        Self { name, skips_zeros: false }
    }
}

/// A call with its operands.
pub(super) struct Step {
    /// The instruction that it belongs to; none for conversions of inputs and outputs.
    pub instruction: Option<usize>,
    pub kernel: Kernel,
    /// What is read, and the bytes of its elements.
    pub reads: Vec<(View, usize)>,
    pub write: View,
    /// Bytes of an element that is written.
    pub size: usize,
    /// Into how many parts it is divided.
    pub parts: usize,
    pub call: Call,
}

/// The time that one step took.
#[derive(Debug, Clone)]
pub struct Spent {
    /// The node.
    pub node: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Milliseconds of the run that it accounts for: of several threads that take pieces of a batch, each does for a part.
    pub ms: f64,
    /// When it began.
    pub started: Instant,
    /// The thread that did it, and of how many that take pieces of a batch.
    pub worker: (usize, usize),
}
