//! Passes "widen" and "narrow": models of 16-bit floats are quantised as those of 32 bits are, and what stays float keeps the
//! size that it had. Inputs and outputs keep their types.

use crate::layers::weight_slots;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator},
    ops::{
        cast::{Cast, Rounding},
        quantize::Dequantize,
        signal::MelWeightMatrix,
    },
    pass::{Context, Outcome, Pass},
    tensor::{DType, Tensor},
    value::Fact,
};

/// Smaller constants are kept in 32 bits: a Cast would take more room than it saves.
pub(crate) const SMALL: usize = 1024;

/// The pass "widen": everything between inputs and outputs computes in 32 bits.
#[derive(Debug)]
pub struct Widen;

/// The pass "narrow": constants that were of 16 bits, and still are such numbers, are stored in 16 again.
#[derive(Debug)]
pub struct Narrow;

fn is_half(dtype: Option<DType>) -> bool {
    matches!(dtype, Some(DType::F16 | DType::BF16))
}

/// Why a graph can't be widened: a node whose types are its own affair.
fn obstacle(graph: &Graph) -> Option<String> {
    let own = |n: &NodeId| {
        let op = graph.op(*n);
        let typed = matches!(op, Op::EyeLike(_) | Op::BitCast(_) | Op::CastLike(_) | Op::SignalWindow(_));
        matches!(op, Op::Opaque(_)) || !op.bodies().is_empty() || typed
    };
    graph.operators().find(own).map(|n| graph.node(n).label())
}

impl Pass for Widen {
    fn name(&self) -> &'static str {
        "widen"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        if half_type(graph).is_none() {
            return Ok(out);
        }
        if let Some(node) = obstacle(graph) {
            out.warnings.push(format!("16-bit floats are left as they are: {node} may depend on their type"));
            return Ok(out);
        }
        if !cx.edits.allow("widen", String::new) {
            return Ok(out);
        }
        let ends: Vec<(Port, DType)> = graph
            .outputs()
            .iter()
            .filter_map(|o| Some((o.port, graph.fact(o.port).dtype.filter(|d| is_half(Some(*d)))?)))
            .collect();
        for node in graph.ids().collect::<Vec<_>>() {
            widen(graph, node)?;
            out.edits += 1;
        }
        // Facts of the old types would contradict what is inferred now.
        for node in graph.operators().collect::<Vec<_>>() {
            for slot in 0..graph.node(node).outputs.len() {
                let port = Port { node, slot };
                let fact = graph.fact(port).clone();
                if is_half(fact.dtype) {
                    graph.set_fact(port, Fact { dtype: None, ..fact });
                }
            }
        }
        graph.infer_all()?;
        for (port, dtype) in ends {
            // Several outputs may be of one value.
            if graph.fact(port).dtype != Some(dtype) && graph.is_output(port) {
                cast(graph, port, dtype, Readers::Outputs)?;
            }
        }
        Ok(out)
    }
}

fn widen(graph: &mut Graph, node: NodeId) -> Result<()> {
    let port = Port::from(node);
    let op = match graph.op(node) {
        Op::Input(_) if is_half(graph.fact(port).dtype) => return cast(graph, port, DType::F32, Readers::Nodes),
        Op::Constant(c) if is_half(Some(c.0.dtype())) => {
            let of_layer = |u: &Use| {
                let op = graph.op(u.node);
                let is_bias =
                    op.weight().and_then(|w| w.bias) == Some(u.slot) || matches!(op, Op::Recurrent(_)) && u.slot == 3;
                let is_table = matches!(op, Op::Gather(_)) && u.slot == 0;
                is_bias || is_table || weight_slots(op).contains(&u.slot)
            };
            let is_weight = graph.uses(port).iter().any(of_layer);
            if c.0.len() >= SMALL && !is_weight {
                return cast(graph, port, DType::F32, Readers::Nodes);
            }
            let Some(values) = c.0.as_f32() else { return Ok(()) };
            let wide = Tensor::f32(c.0.shape(), &values);
            graph.set_constant(node, wide);
            return Ok(());
        }
        Op::Cast(c) if is_half(Some(c.to)) => Cast { to: DType::F32, ..c.clone() }.into(),
        Op::ConstantOfShape(c) if is_half(Some(c.value.dtype())) => {
            let Some(value) = c.value.as_f32().map(|v| Tensor::f32(c.value.shape(), &v)) else { return Ok(()) };
            compress_compiler::ops::expand::ConstantOfShape { value }.into()
        }
        Op::Dequantize(d) if is_half(d.output) => Dequantize { output: Some(DType::F32), ..d.clone() }.into(),
        Op::MelWeightMatrix(m) if is_half(Some(m.dtype)) => MelWeightMatrix { dtype: DType::F32 }.into(),
        _ => return Ok(()),
    };
    graph.set_op(node, op);
    Ok(())
}

/// Who takes a value in its other type.
#[derive(Clone, Copy, PartialEq)]
enum Readers {
    Nodes,
    Outputs,
}

/// Puts a Cast behind a value, for the nodes that read it or for the graph's outputs.
fn cast(graph: &mut Graph, port: Port, to: DType, readers: Readers) -> Result<()> {
    let name = graph.fresh(&format!("{}_{to}", graph.value(port).name));
    let nodes: Vec<_> = graph.uses(port);
    let made = graph.add_node("", Cast { to, rounding: Rounding::default() }.into(), &[Some(port)], &[&name])?;
    match readers {
        Readers::Nodes => {
            for reader in nodes {
                graph.set_operand(reader.node, reader.slot, Some(made.into()));
            }
        }
        Readers::Outputs => {
            let mut except: Vec<NodeId> = nodes.iter().map(|u| u.node).collect();
            except.push(made);
            graph.redirect(port, made.into(), &except);
        }
    }
    graph.infer(made)
}

impl Pass for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        let Some(dtype) = cx.original.and_then(half_type) else { return Ok(out) };
        for node in graph.ids().collect::<Vec<_>>() {
            let Some(t) = graph.constant(node.into()).filter(|t| t.dtype() == DType::F32 && t.len() >= SMALL) else {
                continue;
            };
            let Some(values) = t.as_f32() else { continue };
            let half = Tensor::floats(dtype, t.shape(), &values);
            if half.as_f32().as_deref() != Some(&values[..]) || !cx.edits.allow("narrow", || graph.node(node).label()) {
                continue;
            }
            store(graph, node, half)?;
            out.edits += 1;
        }
        Ok(out)
    }
}

/// Stores the constant at `node` as `half`, which a Cast makes floats of 32 bits for those that read it.
///
/// # Errors
/// What inference raises.
pub(crate) fn store(graph: &mut Graph, node: NodeId, half: Tensor) -> Result<()> {
    graph.set_constant(node, half);
    cast(graph, node.into(), DType::F32, Readers::Nodes)
}

/// The 16-bit type of the weights of layers, if they have one.
fn half_type(graph: &Graph) -> Option<DType> {
    let weights = |n: NodeId| {
        weight_slots(graph.op(n)).into_iter().filter_map(move |slot| graph.constant(graph.operand(n, slot)?))
    };
    graph.operators().flat_map(weights).map(Tensor::dtype).find(|d| is_half(Some(*d)))
}
