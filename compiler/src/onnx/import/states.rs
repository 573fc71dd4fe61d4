//! What a loop hands from one repetition to the next.

use crate::{onnx::tensor, value::Fact};
use onnx_protobuf::{GraphProto, type_proto};

/// Takes the declared shape of each state that begins with another one from a loop's `body`: it changes as the loop goes
/// on, and ONNX Runtime doesn't look at it. `given` is what is known of the loop's operands.
pub(super) fn forget_shapes(body: &mut GraphProto, given: &dyn Fn(usize) -> Fact) {
    for (i, input) in body.input.iter_mut().enumerate().skip(2) {
        let Some(declared) = input.type_.as_mut() else { continue };
        let Ok(fact) = tensor::read_type(declared) else { continue };
        if fact.refined(&given(i)).is_err()
            && let Some(type_proto::Value::TensorType(t)) = &mut declared.value
        {
            t.shape = None.into();
        }
    }
}
