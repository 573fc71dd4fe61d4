//! Attributes of an operator, in the one form that ONNX files and the text form share.

use crate::{
    error::{Error, Result},
    ops::control::Body,
    tensor::{DType, Tensor},
    value::Fact,
};

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Attr {
    Int(i64),
    Float(f32),
    Str(String),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strs(Vec<String>),
    Tensor(Tensor),
    Graph(Body),
}

/// Attributes by name, in the order in which the operator declares them.
pub type Attrs = Vec<(&'static str, Attr)>;

macro_rules! from {
    ($($t:ty => $variant:ident),*) => {$(
        impl From<$t> for Attr {
            fn from(v: $t) -> Self { Attr::$variant(v.into()) }
        }
    )*};
}
from!(i64 => Int, f32 => Float, &str => Str, String => Str, Vec<i64> => Ints, &[i64] => Ints, Tensor => Tensor, Body => Graph);

impl From<bool> for Attr {
    fn from(v: bool) -> Self {
        Attr::Int(v as i64)
    }
}

/// Reads a node: its attributes are taken one by one, and what older opsets kept in
/// attributes is lifted into constant inputs, so that an operator has one form only.
pub struct Reader {
    /// The operator's ONNX name.
    pub op_type: String,
    /// The version of the default operator set that the node was written for.
    pub opset: i64,
    /// The number of inputs the node has, absent ones in between counted.
    pub inputs: usize,
    /// What is known of the first input.
    pub first: Fact,
    /// What is known of the second input.
    pub second: Fact,
    /// The number of outputs the node has.
    pub outputs: usize,
    attrs: Vec<(String, Attr)>,
    inputs_now: NewInputs,
}

/// How the inputs of the canonical form differ from those of an older one.
#[derive(Debug, Default)]
pub struct NewInputs {
    /// Inputs that now have another slot: (from, to).
    pub moved: Vec<(usize, usize)>,
    /// Constants that were attributes, by slot.
    pub lifted: Vec<(usize, Tensor)>,
}

impl Reader {
    /// A reader over a node's attributes.
    pub fn new(
        op_type: &str,
        opset: i64,
        inputs: usize,
        outputs: usize,
        first: Fact,
        mut attrs: Vec<(String, Attr)>,
    ) -> Self {
        // A hint to runtimes that opset 6 did away with.
        attrs.retain(|(name, _)| opset >= 6 || name != "consumed_inputs");
        let (second, inputs_now) = (Fact::default(), NewInputs::default());
        Self { op_type: op_type.into(), opset, inputs, outputs, first, second, attrs, inputs_now }
    }

    fn take(&mut self, name: &str) -> Option<Attr> {
        let i = self.attrs.iter().position(|(n, _)| n == name)?;
        Some(self.attrs.swap_remove(i).1)
    }

    /// An integer attribute, if present.
    ///
    /// # Errors
    /// Malformed when the attribute has another type; so for all readers below.
    pub(crate) fn opt_int(&mut self, name: &str) -> Result<Option<i64>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Int(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "an integer", &other)),
        }
    }

    /// An integer attribute, or its default.
    pub fn int(&mut self, name: &str, default: i64) -> Result<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    /// A 0/1 attribute, or its default.
    pub fn flag(&mut self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, default as i64)? != 0)
    }

    /// A float attribute, or its default.
    pub fn float(&mut self, name: &str, default: f32) -> Result<f32> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    /// A float attribute, if present.
    pub fn opt_float(&mut self, name: &str) -> Result<Option<f32>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Float(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "a float", &other)),
        }
    }

    /// A string attribute, or its default.
    pub fn string(&mut self, name: &str, default: &str) -> Result<String> {
        match self.take(name) {
            None => Ok(default.into()),
            Some(Attr::Str(v)) => Ok(v),
            Some(other) => Err(wrong(name, "a string", &other)),
        }
    }

    /// A list of integers, if present.
    pub fn opt_ints(&mut self, name: &str) -> Result<Option<Vec<i64>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Ints(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "a list of integers", &other)),
        }
    }

    /// A list of floats, if present.
    pub(crate) fn opt_floats(&mut self, name: &str) -> Result<Option<Vec<f32>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Floats(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "a list of floats", &other)),
        }
    }

    /// A list of strings, if present.
    pub(crate) fn opt_strings(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Strs(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "a list of strings", &other)),
        }
    }

    /// A tensor attribute, if present.
    pub(crate) fn opt_tensor(&mut self, name: &str) -> Result<Option<Tensor>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Tensor(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "a tensor", &other)),
        }
    }

    /// A graph, if present.
    pub(crate) fn opt_body(&mut self, name: &str) -> Result<Option<Body>> {
        match self.take(name) {
            None => Ok(None),
            Some(Attr::Graph(v)) => Ok(Some(v)),
            Some(other) => Err(wrong(name, "a graph", &other)),
        }
    }

    /// A graph, which must be present.
    pub fn body(&mut self, name: &str) -> Result<Body> {
        self.opt_body(name)?.ok_or_else(|| Error::malformed(format!("attribute `{name}` is missing")))
    }

    /// An element type given by its ONNX number, if present.
    pub(crate) fn opt_dtype(&mut self, name: &str) -> Result<Option<DType>> {
        let Some(code) = self.opt_int(name)? else { return Ok(None) };
        let known = i32::try_from(code).ok().and_then(DType::from_onnx);
        known.map(Some).ok_or_else(|| Error::unsupported(format!("element type {code} in `{name}`")))
    }

    /// Makes `tensor` the constant input `slot`, as newer opsets have it.
    pub(crate) fn lift(&mut self, slot: usize, tensor: Tensor) {
        self.inputs_now.lifted.push((slot, tensor));
    }

    /// Gives the input at slot `from` the slot `to`, as newer opsets have it.
    pub(crate) fn move_input(&mut self, from: usize, to: usize) {
        self.inputs_now.moved.push((from, to));
    }

    /// Makes a scalar of the first input's type the constant input `slot`.
    pub(crate) fn lift_scalar(&mut self, slot: usize, value: f32) {
        let dtype = self.first.dtype.filter(|d| d.is_float()).unwrap_or(DType::F32);
        self.lift(slot, Tensor::floats(dtype, &[], &[value]));
    }

    /// What [`Reader::lift`] and [`Reader::move_input`] asked for.
    ///
    /// # Errors
    /// Unsupported when an attribute was left unread: an operator whose attributes we
    /// don't all know is not one we understand.
    pub fn finish(self) -> Result<NewInputs> {
        match self.attrs.first() {
            None => Ok(self.inputs_now),
            Some((name, _)) => Err(Error::unsupported(format!("attribute `{name}` of {}", self.op_type))),
        }
    }
}

fn wrong(name: &str, expected: &str, got: &Attr) -> Error {
    Error::malformed(format!("attribute `{name}` should be {expected}, it is {got:?}"))
}
