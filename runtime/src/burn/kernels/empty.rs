//! Operators on tensors without elements, which Burn's kernels don't all accept.

use super::{Args, empty_value};
use crate::burn::{
    host::{IntArray, check_host},
    tensor::{Float, Value},
};
use compress_compiler::{
    error::{Error, Result},
    op::{Inputs, Op, Operator},
    tensor::DType,
    value::{Dim, Fact},
};

/// Runs `op`, one of whose inputs has no elements: mostly, neither has its output.
pub(super) fn eval(op: &Op, mut a: Args) -> Result<Vec<Value>> {
    match op {
        // These only look at the shape, or change nothing.
        Op::Shape(op) => return Ok(vec![super::fill::shape(op, a)?]),
        Op::Identity(_) => return Ok(vec![a.take(0)?]),
        Op::Dropout(op) => return super::elementwise::dropout(op, a),
        // The range of nothing.
        Op::DynamicQuantize(_) => {
            let shape = a.values.first().and_then(Option::as_ref).map_or(vec![], |x| x.shape().to_vec());
            let y = Float::from_vec(vec![], &shape, a.device)?.with_dtype(DType::U8);
            let scale = Float::from_vec(vec![1.0], &[], a.device)?;
            let zero = Float::from_vec(vec![0.0], &[], a.device)?.with_dtype(DType::U8);
            return Ok([y, scale, zero].map(Value::Float).into());
        }
        _ => {}
    }
    let facts: Vec<Option<Fact>> = a.values.iter().map(|v| v.as_ref().map(fact).transpose()).collect::<Result<_>>()?;
    let refs: Vec<Option<&Fact>> = facts.iter().map(Option::as_ref).collect();
    let made = op.infer(&Inputs(&refs))?;
    let shapes: Option<Vec<Vec<usize>>> = made.iter().map(Fact::fixed).collect();
    let unsupported = || Error::unsupported("this operator on an empty tensor");
    let shapes = shapes.ok_or_else(unsupported)?;
    if shapes.iter().all(|s| s.contains(&0)) {
        let dtype = |f: &Fact| f.dtype.ok_or_else(unsupported);
        return made.iter().zip(&shapes).map(|(f, s)| empty_value(dtype(f)?, s, a.device)).collect();
    }
    if let Op::Concat(op) = op {
        let full = a.values.into_iter().filter(|v| v.as_ref().is_some_and(|v| !v.shape().contains(&0)));
        return Ok(vec![super::movement::concat(op, Args::new(full.collect(), a.device))?]);
    }
    // A cache begins without entries.
    if let Op::GroupQueryAttention(op) = op {
        let full = |v: &Value| !v.shape().contains(&0);
        let caches = [3, 4].map(|slot| a.opt(slot).filter(full));
        if a.values.iter().flatten().all(full) {
            let [keys, values] = caches;
            a.values[3..5].clone_from_slice(&[keys, values]);
            return super::grouped::attend(op, a);
        }
        return Err(unsupported());
    }
    let start = op.neutral_element().ok_or_else(unsupported)?;
    let filled = match made[0].dtype {
        Some(dtype) if dtype.is_float() => Value::Float(Float::filled(&shapes[0], start.into(), dtype, a.device)?),
        Some(dtype) if start.is_finite() => {
            let elements = vec![start as i64; check_host(&shapes[0])?];
            Value::Int(IntArray::new(dtype, shapes[0].clone(), elements))
        }
        _ => return Err(unsupported()),
    };
    match (op, filled) {
        (Op::Gemm(op), Value::Float(product)) => {
            super::matmul::biased(op, product, a.opt_float(2)?).map(|y| vec![Value::Float(y)])
        }
        (_, filled) => Ok(vec![filled]),
    }
}

/// All that inference can use of a value: the elements matter where they are a shape.
fn fact(v: &Value) -> Result<Fact> {
    let shape = v.shape().iter().map(|d| Dim::from(*d)).collect();
    let mut fact = Fact::new(Some(v.dtype()), Some(shape));
    match v {
        Value::Int(a) if a.shape.len() <= 1 => {
            fact.elems = Some(a.data.iter().map(|v| Dim::Known(*v)).collect());
        }
        Value::Float(f) if f.elements() <= 16 && f.shape().len() == 1 => {
            // Values on a tape aren't read; a run that is recorded has to fail where it reads others.
            fact.floats = match f.is_tracked() {
                true => f.clone().into_vec().ok(),
                false => Some(f.clone().into_vec()?),
            };
        }
        _ => {}
    }
    Ok(fact)
}
