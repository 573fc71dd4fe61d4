//! How many inputs and outputs a node may have.

use crate::{
    error::{Error, Result},
    node::Port,
    op::{Op, Operator},
};

/// How many operands an operator with bodies has before the captures.
pub fn own_operands(op: &Op) -> Option<usize> {
    match op {
        Op::If(_) => Some(1),
        Op::Loop(op) => Some(op.body.formals()),
        Op::Scan(op) => Some(op.body.formals()),
        Op::FlexAttention(_) => Some(3),
        _ => None,
    }
}

/// Checks that a node of `opset` that stands for `op` has not too many inputs and outputs.
///
/// # Errors
/// Malformed when it does.
pub fn check_given(op: &Op, opset: i64, inputs: usize, outputs: usize) -> Result<()> {
    // An old opset has as an attribute what is the last input now.
    let lowered = op.lower(opset).map(|(slot, _)| slot);
    let takes = own_operands(op).or(lowered).unwrap_or(*op.arity().end());
    if inputs > takes {
        return Err(Error::malformed(format!("{inputs} inputs are given, at most {takes} are taken")));
    }
    let makes = op.max_outputs();
    if outputs > makes {
        return Err(Error::malformed(format!("{outputs} outputs are asked for, at most {makes} are made")));
    }
    Ok(())
}

/// Checks that `operands` has the inputs that `op` can't do without.
///
/// # Errors
/// Malformed when it has not.
pub fn check_needed(op: &Op, operands: &[Option<Port>]) -> Result<()> {
    let arity = op.arity();
    if arity.contains(&operands.len()) && operands.iter().take(*arity.start()).all(Option::is_some) {
        return Ok(());
    }
    let given = operands.iter().flatten().count();
    Err(Error::malformed(format!("{given} inputs are given, {} are needed", arity.start())))
}
