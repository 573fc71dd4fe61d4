//! What a run costs on ONNX Runtime with one thread, predicted.
//!
//! The coefficients were fitted to times of ONNX Runtime 1.31 on a processor with AVX-512 VNNI (November 2026): single
//! operators of many sizes, and whole models. `docs/quantisation.md` has what the prediction is worth.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    ops::{activation::Activation, binary::Binary, pool::PoolKind, resize::Interpolation, unary::Unary},
    tensor::DType,
};

/// Nanoseconds that any operator takes.
const NODE: f64 = 350.0;

/// Nanoseconds of a layer, by its sizes.
#[derive(Clone, Copy)]
struct Layer {
    node: f64,
    /// For a multiply-accumulate, with output channels in whole blocks.
    mac: f64,
    /// For an element of the result, of the input, of the weight.
    output: f64,
    input: f64,
    weight: f64,
    /// For a position of the window of each group, for each tap at each, and for each element that it covers.
    row: f64,
    tap: f64,
    covered: f64,
}

const NONE: Layer =
    Layer { node: NODE, mac: 0.0, output: 0.0, input: 0.0, weight: 0.0, row: 0.0, tap: 0.0, covered: 0.0 };

const POINTWISE: Layer = Layer { mac: 0.0081, input: 0.029, ..NONE };
const CONV: Layer = Layer { mac: 0.0078, output: 0.2, weight: 0.096, ..NONE };
const FIRST: Layer = Layer { mac: 0.0077, output: 0.14, ..NONE };
const DEPTHWISE: Layer = Layer { mac: 0.0103, output: 0.047, input: 0.022, ..NONE };
/// Of groups of several channels, which fill blocks or don't.
const GROUPED: Layer = Layer { mac: 0.0115, output: 0.6, ..NONE };
const GROUPED_ODD: Layer = Layer { node: 900.0, mac: 0.021, output: 3.0, ..NONE };
/// In the layout of the file, where channels fill no blocks.
const PLAIN: Layer = Layer { node: 900.0, mac: 0.0092, output: 0.058, covered: 0.19, ..NONE };
const TRANSPOSED: Layer = Layer { node: 1000.0, mac: 0.0084, output: 0.15, input: 0.07, ..NONE };
const PRODUCT: Layer = Layer { mac: 0.0084, weight: 0.028, output: 0.02, ..NONE };

/// Rows are steps of a direction. The weights of the states are read in each, and may be too many for a cache.
const RECURRENT: Layer = Layer { node: 6000.0, mac: 0.031, row: 200.0, ..NONE };
const RECURRENT_LARGE: Layer = Layer { mac: 0.077, ..RECURRENT };
const INT_RECURRENT: Layer = Layer { node: 6000.0, mac: 0.0085, row: 1800.0, ..NONE };

const INT_POINTWISE: Layer = Layer { mac: 0.0019, output: 0.07, weight: 0.043, ..NONE };
const INT_POINTWISE_ODD: Layer = Layer { node: 1100.0, mac: 0.002, output: 0.18, row: 4.5, ..NONE };
const INT_CONV: Layer = Layer { node: 700.0, mac: 0.002, output: 0.032, weight: 0.023, tap: 0.8, ..NONE };
const INT_CONV_ODD: Layer =
    Layer { node: 1200.0, mac: 0.0019, output: 0.16, row: 10.8, tap: 0.33, covered: 0.026, ..NONE };
const INT_DEPTHWISE: Layer = Layer { node: 700.0, mac: 0.0119, output: 0.08, tap: 0.6, ..NONE };
const INT_DEPTHWISE_ODD: Layer = Layer { node: 900.0, mac: 0.048, output: 0.2, tap: 0.91, ..NONE };
const INT_GROUPED: Layer = Layer { node: 900.0, mac: 0.001, output: 0.55, row: 37.0, ..NONE };
const INT_PRODUCT: Layer = Layer { node: 600.0, mac: 0.0018, output: 0.2, weight: 0.01, ..NONE };

/// Channels in a block.
const BLOCK: usize = 16;

/// Nanoseconds for each element that changes its layout, in floats and in codes.
const REORDER: f64 = 0.07;
const TRANSPOSE: f64 = 0.045;

/// Nanoseconds for each element that becomes a code, and for each that a code becomes.
const QUANTIZE: f64 = 0.055;
const DEQUANTIZE: f64 = 0.086;

/// Nanoseconds of a run of a graph whose sizes are known.
pub(super) fn of(g: &Graph) -> f64 {
    g.operators().map(|n| of_node(g, n)).sum()
}

fn of_node(g: &Graph, n: NodeId) -> f64 {
    let output = elements(g, n.into());
    let input = g.operand(n, 0).map_or(0.0, |p| elements(g, p));
    let integer = is_integer(g, n);
    match g.op(n) {
        // It is computed once, when the model is loaded.
        Op::Cast(_) | Op::Dequantize(_) if g.operand(n, 0).is_some_and(|p| g.constant(p).is_some()) => 0.0,
        // What reads it or makes it takes codes.
        Op::Dequantize(_) if g.uses(n.into()).iter().all(|u| is_integer(g, u.node)) => 0.0,
        Op::Quantize(_) if g.operand(n, 0).is_some_and(|p| is_integer(g, p.node)) => 0.0,
        Op::Quantize(_) => NODE + QUANTIZE * output + moved(g, g.uses(n.into()).first().map(|u| u.node), output),
        // Each reader of floats gets one of its own.
        Op::Dequantize(_) => {
            let readers = g.uses(n.into()).iter().filter(|u| !is_integer(g, u.node)).count();
            readers as f64 * (NODE + DEQUANTIZE * output) + moved(g, g.operand(n, 0).map(|p| p.node), output)
        }
        Op::Recurrent(_) | Op::DynamicLstm(_) => of_recurrent(g, n),
        _ if g.macs(n) > 0 => of_layer(g, n, integer, (input, output)),
        op if op.reshapes() || output + input <= 256.0 => NODE,
        // Layers do it themselves.
        op if is_clamp(op) && g.operand(n, 0).is_some_and(|p| matches!(g.op(p.node), Op::Conv(_))) => 0.0,
        op => NODE + each(g, n, op, integer) * output.max(if reads_all(op) { input } else { 0.0 }),
    }
}

/// What it takes to change the layout for an integer convolution.
fn moved(g: &Graph, beside: Option<NodeId>, elements: f64) -> f64 {
    let is_conv = |n: NodeId| match g.op(n) {
        Op::Dequantize(_) => g.uses(n.into()).iter().any(|u| matches!(g.op(u.node), Op::Conv(_))),
        Op::Quantize(_) => {
            g.operand(n, 0).is_some_and(|p| matches!(g.op(p.node), Op::Conv(_)) || is_clamp(g.op(p.node)))
        }
        _ => false,
    };
    if beside.is_some_and(is_conv) { TRANSPOSE * elements } else { 0.0 }
}

fn of_layer(g: &Graph, n: NodeId, integer: bool, (input, output): (f64, f64)) -> f64 {
    let op = g.op(n);
    let weight = op.weight().and_then(|axes| g.operand(n, axes.slot));
    let weight = weight.map_or(&[][..], |p| g.fact(p).dims().unwrap_or_default());
    let sizes: Vec<usize> = weight.iter().map(|d| d.known().unwrap_or(1).max(1) as usize).collect();
    let taps: usize = sizes.iter().skip(2).product();
    let (outputs, inputs) = (sizes.first().copied().unwrap_or(1), sizes.get(1).copied().unwrap_or(1));
    let blocks = outputs.is_multiple_of(BLOCK);
    let groups = if let Op::Conv(conv) = op { conv.group.max(1) as usize } else { 1 };
    let (grouped, is_shared) = (groups > 1, groups > 1 && inputs > 1);
    let c = match (op, integer) {
        (Op::Conv(_), true) if is_shared => INT_GROUPED,
        (Op::Conv(_), false) if sizes.len() != 4 => PLAIN,
        (Op::Conv(_), false) if is_shared && inputs.is_multiple_of(BLOCK) => GROUPED,
        (Op::Conv(_), false) if is_shared => GROUPED_ODD,
        (Op::Conv(_), true) if grouped && blocks => INT_DEPTHWISE,
        (Op::Conv(_), true) if grouped => INT_DEPTHWISE_ODD,
        (Op::Conv(_), true) => match (taps == 1, inputs % 4 == 0 && outputs % 4 == 0 && outputs >= BLOCK) {
            (true, true) => INT_POINTWISE,
            (true, false) => INT_POINTWISE_ODD,
            (false, true) => INT_CONV,
            (false, false) => INT_CONV_ODD,
        },
        (Op::Conv(_), false) if !blocks => PLAIN,
        (Op::Conv(_), false) if grouped => DEPTHWISE,
        (Op::Conv(_), false) if inputs < BLOCK => FIRST,
        (Op::Conv(_), false) if taps == 1 => POINTWISE,
        (Op::Conv(_), false) => CONV,
        (Op::ConvTranspose(_), _) => TRANSPOSED,
        (_, true) => INT_PRODUCT,
        (_, false) => PRODUCT,
    };
    let is_conv = matches!(op, Op::Conv(_));
    let whole = if is_conv && !grouped { outputs.next_multiple_of(BLOCK) as f64 / outputs as f64 } else { 1.0 };
    let rows = output / outputs as f64;
    // Float convolutions have a layout of their own.
    let reorder = if is_conv && !integer && blocks && !follows_conv(g, n) { REORDER * (input + output) } else { 0.0 };
    let elements: usize = sizes.iter().product();
    c.node
        + c.mac * whole * g.macs(n) as f64
        + c.output * output
        + c.input * input
        + c.weight * elements as f64
        + c.row * rows * groups as f64
        + c.tap * rows * taps as f64
        + c.covered * rows * (taps * inputs) as f64
        + reorder
}

/// States of a direction whose weights don't fit a second-level cache.
const MANY_STATES: i64 = 400;

fn of_recurrent(g: &Graph, n: NodeId) -> f64 {
    let size = |axis: usize| g.fact(n.into()).dims().and_then(|d| d.get(axis)?.known()).unwrap_or(1).max(1);
    let c = match g.op(n) {
        Op::DynamicLstm(_) => INT_RECURRENT,
        _ if size(3) > MANY_STATES => RECURRENT_LARGE,
        _ => RECURRENT,
    };
    c.node + c.mac * g.macs(n) as f64 + c.row * (size(0) * size(1)) as f64
}

fn is_clamp(op: &Op) -> bool {
    matches!(op, Op::Unary(Unary::Relu) | Op::Clip(_))
}

/// Nanoseconds for each element of an operator that multiplies no weight.
fn each(g: &Graph, n: NodeId, op: &Op, integer: bool) -> f64 {
    match op {
        Op::Concat(_) if integer => 0.014,
        Op::Concat(_) => 0.07,
        Op::Pool(p) if integer && p.kind == PoolKind::Average => 7.0,
        Op::Pool(_) if integer => 0.2,
        // ONNX Runtime moves QuantizeLinear before it, and has no fast kernel for codes there.
        Op::Pool(p) if p.kind == PoolKind::Max && becomes_codes(g, n) => 19.0,
        Op::Pool(_) => 0.12,
        Op::GlobalPool(_) => {
            if integer {
                0.026
            } else {
                0.03
            }
        }
        Op::Resize(_) if integer => 0.6,
        Op::Resize(op) if op.mode == Interpolation::Nearest => 0.1,
        // In the layout of float convolutions there is a faster kernel.
        Op::Resize(_) => {
            if follows_conv(g, n) {
                0.7
            } else {
                1.2
            }
        }
        Op::Transpose(_) => {
            if integer {
                0.05
            } else {
                0.14
            }
        }
        Op::Softmax(_) => 0.25,
        Op::LayerNorm(_) => 0.4,
        Op::Gather(_) | Op::Slice(_) | Op::Split(_) => {
            if integer {
                0.015
            } else {
                0.08
            }
        }
        Op::Activation(Activation::Gelu { .. }) => 0.4,
        Op::Activation(_) => 0.1,
        Op::Unary(Unary::HardSwish) => 0.16,
        Op::Unary(Unary::Sigmoid | Unary::Tanh) => 0.22,
        Op::Unary(Unary::Erf | Unary::Sqrt) => 0.29,
        Op::Unary(_) => 0.1,
        Op::Binary(Binary::Div) => 0.15,
        // `x * sigmoid(x)` is one function, but not where each of both reads an x of its own.
        Op::Binary(Binary::Mul) if is_gate(g, n) => 0.0,
        Op::Binary(_) => 0.095,
        Op::Reduce(_) => 0.06,
        _ => 0.1,
    }
}

/// Whether what a node makes is only quantised.
fn becomes_codes(g: &Graph, n: NodeId) -> bool {
    let uses = g.uses(n.into());
    !uses.is_empty() && uses.iter().all(|u| matches!(g.op(u.node), Op::Quantize(_)))
}

/// Whether a node multiplies a value by its sigmoid.
fn is_gate(g: &Graph, n: NodeId) -> bool {
    let operands: Vec<Port> = g.operands(n).into_iter().flatten().collect();
    let is_sigmoid_of = |a: Port, b: Port| {
        let is_code = matches!(g.op(b.node), Op::Dequantize(_));
        !is_code && *g.op(a.node) == Op::Unary(Unary::Sigmoid) && g.operand(a.node, 0) == Some(b)
    };
    matches!(operands[..], [a, b] if is_sigmoid_of(a, b) || is_sigmoid_of(b, a))
}

/// Whether a float convolution made what a node reads, or what a function made that of.
fn follows_conv(g: &Graph, n: NodeId) -> bool {
    let Some(mut port) = g.operand(n, 0) else { return false };
    if matches!(g.op(port.node), Op::Unary(_) | Op::Activation(_) | Op::Clip(_) | Op::Pool(_)) {
        let Some(before) = g.operand(port.node, 0) else { return false };
        port = before;
    }
    matches!(g.op(port.node), Op::Conv(_)) && !is_integer(g, port.node)
}

/// Whether an operator reads more than it makes.
fn reads_all(op: &Op) -> bool {
    matches!(op, Op::Reduce(_) | Op::GlobalPool(_) | Op::Arg(_))
}

/// Whether a node reads codes, and makes codes or the sums of an integer product.
fn is_integer(g: &Graph, n: NodeId) -> bool {
    let is_code = |p: &Port| matches!(g.op(p.node), Op::Dequantize(_));
    let reads = g.operands(n).first().copied().flatten().is_some_and(|p| is_code(&p));
    let makes = || g.uses(n.into()).iter().any(|u| matches!(g.op(u.node), Op::Quantize(_)));
    match g.op(n).quant() {
        Quant::Float => false,
        Quant::Weighted => reads && (!matches!(g.op(n), Op::Conv(_)) || makes() || clamped(g, n)),
        _ => reads && makes(),
    }
}

/// Whether a Relu or Clip stands between a node and its codes.
fn clamped(g: &Graph, n: NodeId) -> bool {
    let uses = g.uses(n.into());
    let [only] = &uses[..] else { return false };
    g.clamps(only.node).is_some() && g.uses(only.node.into()).iter().any(|u| matches!(g.op(u.node), Op::Quantize(_)))
}

/// Elements of a value of floats or codes.
fn elements(g: &Graph, port: Port) -> f64 {
    let fact = g.fact(port);
    let counted = !matches!(fact.dtype, Some(DType::I64 | DType::Bool));
    let dims = fact.dims().unwrap_or_default().iter();
    if counted { dims.map(|d| d.known().unwrap_or(1).max(1) as f64).product() } else { 0.0 }
}
