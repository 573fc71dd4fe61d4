//! An operator we don't know: kept byte for byte, a barrier to passes, not executable.

use crate::{
    error::Result,
    op::{Inputs, Operator},
    value::Fact,
};
use std::{fmt, ops::RangeInclusive};

/// A node kept as it came. Its operands are its explicit inputs followed by the outer
/// values that its subgraphs read by name ([`Opaque::captures`]).
#[derive(Clone, PartialEq)]
pub struct Opaque {
    /// The node as it stood in the file, names included; the raw data of its tensors stands for
    /// places in the files of the model.
    pub proto: Box<onnx_protobuf::NodeProto>,
    /// The outer values that its subgraphs read, by the names they use.
    pub captures: Vec<String>,
    /// The version of the default operator set that the node was written for.
    pub opset: i64,
    /// Why the node is not understood.
    pub reason: String,
}

impl fmt::Debug for Opaque {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Opaque({}::{})", self.proto.domain, self.proto.op_type)
    }
}

impl Operator for Opaque {
    fn op_type(&self) -> &str {
        &self.proto.op_type
    }
    fn arity(&self) -> RangeInclusive<usize> {
        0..=usize::MAX
    }
    fn max_outputs(&self) -> usize {
        self.proto.output.len()
    }
    fn since(&self) -> i64 {
        self.opset
    }
    fn infer(&self, _: &Inputs) -> Result<Vec<Fact>> {
        Ok(vec![Fact::default(); self.proto.output.len()])
    }

    fn is_random(&self) -> bool {
        // Nobody knows.
        true
    }
}
