//! What of a graph is learnt, and the graph as training runs it.

use compress_compiler::{
    error::Result,
    forms::{gelu::Gelu, packed_rows},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    ops::{activation::Activation, source::Input},
    tensor::{DType, Tensor},
    value::Fact,
};
use std::collections::BTreeSet;

/// The constants that training learns.
pub(super) fn parameters(graph: &Graph) -> BTreeSet<NodeId> {
    let learns = |node: NodeId| {
        let op = graph.op(node);
        // A single number beside a tensor is a setting: the scale of an attention, an epsilon.
        let least = if matches!(op, Op::Binary(_)) { 2 } else { 1 };
        let read = op.parameters().iter().filter_map(move |slot| graph.operand(node, *slot));
        read.flat_map(|port| origins(graph, port)).filter(move |node| {
            let trained = |t: &Tensor| t.dtype().is_float() && t.dtype() != DType::F64 && t.len() >= least;
            graph.constant((*node).into()).is_some_and(trained)
        })
    };
    // What bytes stand for is not learnt: a table of codes is read by it.
    let levels: BTreeSet<NodeId> = graph.operators().filter_map(|n| packed_rows::levels(graph, n)).collect();
    graph.operators().flat_map(learns).filter(|n| !levels.contains(n)).collect()
}

/// The constants that scale what QuantizeLinear reads.
pub(super) fn scales(graph: &Graph) -> BTreeSet<NodeId> {
    let quantize = graph.operators().filter(|n| matches!(graph.op(*n), Op::Quantize(_)));
    let scales = quantize.filter_map(|n| graph.operand(n, 1)).filter(|p| graph.constant(*p).is_some());
    scales.map(|p| p.node).collect()
}

/// The constants of which the elements at `port` are, moved and joined perhaps: exporters transpose a weight in the
/// graph before they multiply by it.
pub(super) fn origins(graph: &Graph, port: Port) -> Vec<NodeId> {
    let (mut found, mut seen, mut open) = (vec![], BTreeSet::new(), vec![port]);
    while let Some(port) = open.pop() {
        if !seen.insert(port) {
            continue;
        }
        match graph.op(port.node) {
            Op::Constant(_) => found.push(port.node),
            Op::Cast(_) | Op::Quantize(_) | Op::Dequantize(_) => open.extend(graph.operand(port.node, 0)),
            op => match op.quant() {
                Quant::Same => open.extend(graph.operand(port.node, 0)),
                Quant::Tied => open.extend(graph.operands(port.node).into_iter().flatten()),
                _ => {}
            },
        }
    }
    found
}

/// A graph rewritten for training.
pub(super) struct TrainingForm {
    pub graph: Graph,
    /// The constant of each running statistic, and where the moved one is made.
    pub statistics: Vec<(NodeId, Port)>,
    /// How many seeds follow the model's own inputs.
    pub dropouts: usize,
}

impl TrainingForm {
    /// The form of `graph` in which the constants `trained` are learnt.
    ///
    /// # Errors
    /// Those of a graph that is changed.
    pub fn of(graph: &Graph, trained: &BTreeSet<NodeId>) -> Result<Self> {
        let mut g = graph.clone();
        let (mut statistics, mut dropouts) = (vec![], 0);
        for node in graph.operators() {
            // Of what has been put in the place of others already.
            let operands = g.operands(node);
            let constant = |slot: usize| operands.get(slot).copied().flatten().filter(|p| graph.constant(*p).is_some());
            match graph.op(node) {
                Op::BatchNorm(op) if !op.training => {
                    // One whose scale is frozen keeps its statistics too.
                    let (Some(scale), Some(mean), Some(variance)) = (constant(1), constant(3), constant(4)) else {
                        continue;
                    };
                    if !trained.contains(&scale.node) {
                        continue;
                    }
                    let mut op = op.clone();
                    op.training = true;
                    let made = replace(&mut g, node, op.into(), &operands, 3)?;
                    statistics.push((mean.node, Port { node: made, slot: 1 }));
                    statistics.push((variance.node, Port { node: made, slot: 2 }));
                }
                Op::Dropout(op) if !op.mask => {
                    let seed = g.add_input(
                        &format!("seed of dropout {dropouts}"),
                        Fact::new(Some(DType::I64), Some(vec![])),
                        Input { default: None }.into(),
                    )?;
                    dropouts += 1;
                    let ratio = operands.get(1).copied().flatten();
                    replace(&mut g, node, op.clone().into(), &[operands[0], ratio, None, Some(seed.into())], 1)?;
                }
                // One operator keeps one value for the backward pass, and the arithmetic around Erf five.
                Op::Binary(_) => {
                    if let Some(gelu) = Gelu::of(&g, node).filter(|gelu| !gelu.tanh) {
                        replace(&mut g, node, Activation::Gelu { tanh: false }.into(), &[Some(gelu.x)], 1)?;
                    }
                }
                _ => {}
            }
        }
        Ok(Self { graph: g, statistics, dropouts })
    }
}

/// Puts an operator with `outputs` outputs in the place of `node`, whose first output is read as before.
fn replace(g: &mut Graph, node: NodeId, op: Op, operands: &[Option<Port>], outputs: usize) -> Result<NodeId> {
    let (name, value) = (g.node(node).name.clone(), g.value(node.into()).name.clone());
    let names: Vec<String> = (0..outputs).map(|i| format!("{value} in training {i}")).collect();
    let names: Vec<&str> = names.iter().map(|n| &n[..]).collect();
    let made = g.add_node(&name, op, operands, &names)?;
    g.redirect(node.into(), made.into(), &[]);
    g.take_name(node.into(), made.into());
    g.remove(node);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;
    use compress_compiler::{text, verify::verify};

    fn form(source: &str) -> TrainingForm {
        let graph = text::parse(source).unwrap();
        let form = TrainingForm::of(&graph, &parameters(&graph)).unwrap();
        verify(&form.graph).unwrap();
        form
    }

    #[test]
    fn what_is_replaced_may_read_what_was() {
        let form = form(
            r#"graph "g" {
                input %x: f32[N,2]
                const %scale: f32[2] = [1, 2]
                const %zero: f32[2] = [0, 0]
                const %one: f32[2] = [1, 1]
                const %ratio: f32[] = [0.5]
                %norm = BatchNormalization(%x, %scale, %zero, %zero, %one)
                %y = Dropout(%norm, %ratio)
                output %y
            }"#,
        );
        let output = form.graph.outputs()[0].port.node;
        let read = form.graph.operand(output, 0).unwrap();
        assert!(matches!(form.graph.op(output), Op::Dropout(_)) && form.dropouts == 1);
        assert!(matches!(form.graph.op(read.node), Op::BatchNorm(op) if op.training));
    }

    #[test]
    fn arithmetic_around_erf_is_one_operator() {
        let form = form(
            r#"graph "g" {
                input %x: f32[N,2]
                const %w: f32[2,2] = [1, 2, 3, 4]
                const %root: f32[] = [1.4142135]
                const %one: f32[] = [1]
                const %half: f32[] = [0.5]
                %a = MatMul(%x, %w)
                %b = Div(%a, %root)
                %erf = Erf(%b)
                %sum = Add(%erf, %one)
                %both = Mul(%a, %sum)
                %y = Mul(%both, %half)
                output %y
                output %erf
            }"#,
        );
        let [y, erf] = [0, 1].map(|i| form.graph.outputs()[i].port.node);
        assert_eq!(*form.graph.op(y), Op::from(Activation::Gelu { tanh: false }));
        assert!(matches!(form.graph.op(form.graph.operand(y, 0).unwrap().node), Op::MatMul(_)));
        // What else reads a value of it gets that as before.
        assert!(matches!(form.graph.op(erf), Op::Unary(_)));
        assert_eq!(form.graph.value(y.into()).name, "y");
    }
}
