//! LSTM layers by codes: ONNX Runtime's DynamicQuantizeLSTM, whose input and states become codes by their own ranges.
//!
//! In ONNX Runtime it takes 0.12 to 0.5 of the time of floats from 256 states on, and 0.9 with 128 (`docs/quantisation.md`).
//! ONNX itself has no such operator.

use super::{
    choices::Choices,
    reduce_range::{ReduceRange, scale_for_any_codes},
    scheme::Scheme,
};
use crate::layers::{is_left_out, weight_slots};
use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        dynamic_lstm::DynamicLstm,
        recurrent::{Cell, Recurrent},
    },
    tensor::{DType, Tensor},
};
use regex::Regex;
use std::collections::HashMap;

/// Why a recurrent layer stays in floats for other runtimes.
pub(super) fn no_operator(g: &Graph, node: NodeId) -> &'static str {
    match g.op(node) {
        Op::Recurrent(Recurrent { cell: Cell::Lstm { .. }, .. }) => {
            "ONNX has no operator for it by codes; the target onnxruntime has one"
        }
        _ => "ONNX has no operator for it by codes",
    }
}

/// The greatest code of a weight.
const MOST: f32 = 127.0;

/// The recurrent layers of a graph.
pub(super) fn layers(g: &Graph) -> impl Iterator<Item = NodeId> + '_ {
    g.operators().filter(|n| matches!(g.op(*n), Op::Recurrent(_)))
}

/// Why a recurrent layer can't be computed by codes, if so.
pub(super) fn obstacle(g: &Graph, node: NodeId, exclude: &[Regex]) -> Option<&'static str> {
    let Op::Recurrent(op) = g.op(node) else { return Some("it is not recurrent") };
    let weight = |slot: usize| g.constant(g.operand(node, slot)?);
    let is_known = |slot: &usize| {
        weight(*slot).is_some_and(|t| t.dtype() == DType::F32 && t.shape().len() == 3 && t.is_finite() == Some(true))
    };
    match op {
        _ if is_left_out(g, node, exclude) => Some("it is excluded"),
        Recurrent { cell: Cell::Lstm { .. }, batch_first: false, .. } => {
            let sequences = g.operand(node, 4).map(|_| "its sequences may have different lengths");
            let known = weight_slots(g.op(node)).iter().all(is_known)
                && g.fact(Port { node, slot: 0 }).dtype == Some(DType::F32);
            sequences.or((!known).then_some("its weights are not constants of finite f32 values"))
        }
        Recurrent { cell: Cell::Lstm { .. }, .. } => Some("its batch is the first axis"),
        _ => Some("ONNX Runtime computes LSTM by codes, but not this"),
    }
}

/// The LSTM layers that are computed by codes: all that can be, and that `choices` don't leave in floats.
pub(super) fn by_codes<'a>(
    g: &'a Graph,
    exclude: &'a [Regex],
    choices: &'a Choices,
) -> impl Iterator<Item = NodeId> + 'a {
    layers(g).filter(|n| !choices.float.contains_key(n) && obstacle(g, *n, exclude).is_none())
}

/// Computes them by codes.
pub(super) fn to_codes(g: &mut Graph, exclude: &[Regex], scheme: &Scheme, choices: &Choices) {
    // Layers may share a weight.
    let mut made: HashMap<Port, [Port; 3]> = HashMap::new();
    for node in by_codes(g, exclude, choices).collect::<Vec<_>>() {
        let Op::Recurrent(lstm) = g.op(node).clone() else { continue };
        let mut operands = g.operands(node);
        operands.resize(8, None);
        for slot in weight_slots(g.op(node)) {
            let Some((port, t)) = operands[slot].and_then(|p| Some((p, g.constant(p)?.clone()))) else { continue };
            let [own, scales, zeros] = *made.entry(port).or_insert_with(|| {
                let name = g.value(port).name.clone();
                let (codes, scales, zeros) = codes(&t, scheme.reduce_range);
                [("quantized", codes), ("scale", scales), ("zero_point", zeros)]
                    .map(|(what, t)| g.add_constant(&format!("{name}_{what}"), t).into())
            });
            operands[slot] = Some(own);
            operands.extend([Some(scales), Some(zeros)]);
        }
        g.set_op(node, DynamicLstm { lstm }.into());
        g.set_operands(node, &operands);
    }
    for port in made.into_keys() {
        if g.uses(port).is_empty() && !g.is_output(port) {
            g.remove(port.node);
        }
    }
}

/// `[directions, rows, inner]` as codes `[directions, inner, rows]`, the scale of each row, and zero points.
fn codes(t: &Tensor, room: ReduceRange) -> (Tensor, Tensor, Tensor) {
    let (values, shape) = (t.as_f32().unwrap_or_default(), t.shape());
    let (directions, rows, inner) = (shape[0], shape[1], shape[2]);
    let mut codes = vec![0i64; values.len()];
    let mut scales = Vec::with_capacity(directions * rows);
    for (i, row) in values.chunks(inner.max(1)).enumerate() {
        let scale = scale_for_any_codes(row, room, MOST);
        for (k, v) in row.iter().enumerate() {
            let at = (i / rows * inner + k) * rows + i % rows;
            codes[at] = (v / scale).round_ties_even().clamp(-MOST, MOST) as i64;
        }
        scales.push(scale);
    }
    (
        Tensor::ints(DType::I8, &[directions, inner, rows], &codes),
        Tensor::f32(&[directions, rows], &scales),
        Tensor::ints(DType::I8, &[directions, rows], &vec![0; directions * rows]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_columns_stand_for_rows() {
        let t = Tensor::f32(&[1, 2, 3], &[1.27, 0.0, -0.635, 2.54, 0.0, 0.02]);
        let (codes, scales, zeros) = codes(&t, ReduceRange::Auto);
        assert_eq!((codes.shape(), scales.shape(), zeros.shape()), (&[1, 3, 2][..], &[1, 2][..], &[1, 2][..]));
        assert_eq!(codes.as_i64(), Some(vec![127, 127, 0, 0, -64, 1]));
        assert_eq!(scales.as_f32().unwrap().to_vec(), [0.01, 0.02]);
    }
}
