//! What no input changes: constants by another name, sizes that are known, and numbers that follow from both. Files have them as
//! nodes, which hide from the executors that a weight is constant, or a scale.

use crate::burn::interpreter::BurnInterpreter;
use compress_compiler::{
    captured,
    error::Result,
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    pass::Interpreter,
    tensor::{DType, Tensor},
    value::MAX_ELEMS,
    verify::Verified,
};
use std::collections::HashMap;

/// `graph` with constants where such values are read; `None` where none are. All nodes stay, with their ids.
///
/// # Errors
/// What inference raises.
pub(super) fn settled(graph: &Verified) -> Result<Option<Graph>> {
    let moved = captured::moved_in(graph)?;
    let mut found: HashMap<Port, Settled> = HashMap::new();
    for id in graph.order().iter().copied().filter(|id| !matches!(graph.op(*id), Op::Input(_) | Op::Constant(_))) {
        let port = Port::from(id);
        if let Some(value) = value(graph, id, &found) {
            found.insert(port, value);
        }
    }
    if found.is_empty() {
        return Ok(moved);
    }
    let mut made = moved.unwrap_or_else(|| Graph::clone(graph));
    for id in graph.order() {
        let port = Port::from(*id);
        let Some(value) = found.remove(&port) else { continue };
        let constant = match value {
            Settled::Named(constant) => constant,
            Settled::Made(tensor) => {
                let name = made.fresh(&graph.value(port).name);
                made.add_constant(&name, tensor).into()
            }
        };
        for reader in graph.uses(port) {
            made.set_operand(reader.node, reader.slot, Some(constant));
        }
    }
    Ok(Some(made))
}

/// A value that no input changes.
enum Settled {
    /// A constant that the graph has.
    Named(Port),
    /// Few elements.
    Made(Tensor),
}

fn value(graph: &Graph, id: NodeId, found: &HashMap<Port, Settled>) -> Option<Settled> {
    let (op, fact) = (graph.op(id), graph.fact(id.into()));
    let constant = |port: Port| match found.get(&port) {
        Some(Settled::Made(tensor)) => Some(tensor),
        Some(Settled::Named(of)) => graph.constant(*of),
        None => graph.constant(port),
    };
    let operands = graph.operands(id);
    if let (Op::Identity(_), Some(Some(x))) = (op, operands.first()) {
        let of = if let Some(Settled::Named(of)) = found.get(x) { *of } else { *x };
        return graph.constant(of).map(|_| Settled::Named(of));
    }
    let is_one = graph.node(id).outputs.len() == 1;
    if let (true, Some(dtype @ (DType::I64 | DType::I32)), Some(dims), Some(elems)) =
        (is_one, fact.dtype, fact.fixed(), fact.known_elems())
    {
        return Some(Settled::Made(Tensor::ints(dtype, &dims, &elems)));
    }
    // Weights that are stored as codes stay so, and what is drawn anew in each run.
    let is_kept =
        matches!(op, Op::Opaque(_) | Op::Dequantize(_) | Op::Quantize(_)) || op.is_random() || !op.bodies().is_empty();
    let inputs: Option<Vec<Option<Tensor>>> = operands
        .iter()
        .map(|port| port.map_or(Some(None), |p| constant(p).filter(|t| t.len() <= MAX_ELEMS).map(|t| Some(t.clone()))))
        .collect();
    let count = fact.fixed().and_then(|dims| dims.iter().try_fold(1usize, |n, d| n.checked_mul(*d)));
    let small = count.is_some_and(|n| n <= MAX_ELEMS);
    let (true, false, true, Some(inputs)) = (is_one && !operands.is_empty(), is_kept, small, inputs) else {
        return None;
    };
    // What can't be computed says so when it is run.
    BurnInterpreter::cpu().eval(op, &inputs).ok()?.into_iter().next().map(Settled::Made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::{text, verify::verify};

    #[test]
    fn constants_are_read_where_nodes_made_them() {
        let source = r#"graph "g" {
            input %x: f32[N,4]
            const %w: f32[4] = [1.0, 2.0, 3.0, 4.0]
            const %one: i64[1] = [1]
            const %end: i64[1] = [2]
            %again = Identity(%w)
            %third = Identity(%again)
            %s = Shape(%x)
            %size = Slice(%s, %one, %end)
            %f = Cast(%size) {to=1}
            %root = Sqrt(%f)
            %a = Mul(%x, %third)
            %y = Div(%a, %root)
            output %y
            output %again
        }"#;
        let graph = text::parse(source).unwrap();
        let made = settled(&verify(&graph).unwrap()).unwrap().unwrap();
        verify(&made).unwrap();
        let y = made.outputs()[0].port.node;
        let a = made.operand(y, 0).unwrap().node;
        assert_eq!(made.constant(made.operand(a, 1).unwrap()).unwrap().as_f32().unwrap()[..], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(made.constant(made.operand(y, 1).unwrap()).unwrap().as_f32().unwrap()[..], [2.0]);
        assert_eq!(made.outputs()[1].port, graph.outputs()[1].port);
    }

    #[test]
    fn graphs_without_such_values_stay() {
        let graph = text::parse(r#"graph "g" { input %x: f32[N,4] %y = Relu(%x) output %y }"#).unwrap();
        assert!(settled(&verify(&graph).unwrap()).unwrap().is_none());
    }
}
