//! What a run costs on ONNX Runtime, predicted from times that were measured there.

use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    tensor::DType,
};

/// Nanoseconds of one thread.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// A multiply-accumulate of a convolution, in floats and in codes.
    conv: [f64; 2],
    /// One of a convolution with a group for each channel.
    depthwise: [f64; 2],
    /// One of a product of matrices.
    product: [f64; 2],
    /// An element that another operator makes, in floats and in codes.
    element: [f64; 2],
    /// An element that becomes a code or that a code becomes.
    convert: f64,
    /// What any node costs.
    node: f64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            conv: [1.0 / 60.0, 1.0 / 180.0],
            depthwise: [1.0 / 10.0, 1.0 / 10.0],
            product: [1.0 / 75.0, 1.0 / 350.0],
            element: [0.3, 0.3],
            convert: 0.15,
            node: 500.0,
        }
    }
}

impl Costs {
    /// Nanoseconds of a run of a graph whose sizes are known.
    pub fn of(&self, g: &Graph) -> f64 {
        g.operators().map(|n| self.of_node(g, n)).sum()
    }

    fn of_node(&self, g: &Graph, n: NodeId) -> f64 {
        let elements = elements(g, n.into());
        match g.op(n) {
            Op::Dequantize(_) if g.operand(n, 0).is_some_and(|p| g.constant(p).is_some()) => 0.0,
            // What reads it or makes it takes codes.
            Op::Dequantize(_) if g.uses(n.into()).iter().all(|u| is_integer(g, u.node)) => 0.0,
            Op::Quantize(_) if g.operand(n, 0).is_some_and(|p| is_integer(g, p.node)) => 0.0,
            Op::Quantize(_) | Op::Dequantize(_) => self.node + self.convert * elements,
            op => {
                let at = usize::from(is_integer(g, n));
                let macs = g.macs(n) as f64;
                let each = match op {
                    Op::Conv(conv) if conv.group > 1 => self.depthwise[at],
                    Op::Conv(_) | Op::ConvTranspose(_) => self.conv[at],
                    _ => self.product[at],
                };
                self.node + macs * each + elements * if macs > 0.0 { 0.0 } else { self.element[at] }
            }
        }
    }
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

fn elements(g: &Graph, port: Port) -> f64 {
    let fact = g.fact(port);
    let floats = !matches!(fact.dtype, Some(DType::I64 | DType::Bool));
    let dims = fact.dims().unwrap_or_default().iter();
    if floats { dims.map(|d| d.known().unwrap_or(1).max(1) as f64).product() } else { 0.0 }
}
