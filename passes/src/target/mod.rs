//! What has to run the written model, and what that can: a file and a row of [`TARGETS`] each.

mod in_blocks;
mod onnxruntime;
mod openvino;
mod portable;
mod qnn;
mod tensorrt;
mod xnnpack;

pub use onnxruntime::ForOnnxRuntime;

use crate::quant::scheme::{Granularity, Scheme, WeightBits};
use compress_compiler::{
    choice_of_rows,
    graph::Graph,
    op::{Op, Operator},
    pass::Pass,
    tensor::DType,
};

/// The targets.
const TARGETS: &[Target] = &[
    Target(&portable::TARGET),
    Target(&onnxruntime::TARGET),
    Target(&openvino::TARGET),
    Target(&tensorrt::TARGET),
    Target(&qnn::TARGET),
    Target(&xnnpack::TARGET),
];

/// What the written model has to run on.
#[derive(Debug, Clone, Copy)]
pub struct Target(&'static Capabilities);

/// What a target can run, and runs fast.
#[derive(Debug)]
pub struct Capabilities {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub means: &'static str,
    /// What channels come in multiples of, if it is fast for nothing else.
    pub channels: Option<usize>,
    /// The types of codes that its integer kernels read.
    pub codes: &'static [DType],
    /// What it needs of a scheme that is for any runtime.
    pub adapt: fn(Scheme) -> Scheme,
    /// Whether its depthwise convolutions may be slower on codes than in floats.
    pub slow_depthwise: bool,
    /// Whether it multiplies codes by the range of each run, as DynamicQuantizeLinear and MatMulInteger do.
    pub dynamic: bool,
    /// Whether rows of codes can be looked up there.
    pub looks_up_codes: bool,
    /// Whether it computes once, when it loads a model, what weights that are stored in fewer bits stand for.
    pub small_weights: bool,
    /// Whether it has DynamicQuantizeLSTM.
    pub lstm_by_codes: bool,
    /// Whether products by matrices of codes are an operator of its own there, MatMulNBits.
    pub by_bits: bool,
    /// What of a weight may share a scale there.
    pub granularities: &'static [Granularity],
    /// The pass that brings in operators for it alone, if there is one.
    pub lower: Option<fn() -> Box<dyn Pass>>,
}

impl Target {
    /// What it can.
    pub fn capabilities(self) -> &'static Capabilities {
        self.0
    }

    /// The scheme of weights of so many bits, as it needs it.
    pub fn scheme(self, bits: WeightBits) -> Scheme {
        (self.0.adapt)(bits.scheme())
    }

    /// Whether it differs from others in nothing but its codes.
    pub fn is_for_codes(self) -> bool {
        let adapts = !self.scheme(WeightBits::default()).is_placed_as(&WeightBits::default().scheme());
        adapts && self.0.lower.is_none()
    }

    /// Why it can't run what `scheme` makes, if so.
    pub fn obstacle(self, scheme: &Scheme) -> Option<String> {
        let codes = [scheme.activations.codes(), scheme.weights.codes];
        let strange = codes.into_iter().map(|c| c.stored).find(|c| !self.0.codes.contains(c));
        let granularity = scheme.weights.granularity;
        if scheme.activations.are_dynamic() && !self.0.dynamic {
            return Some(format!("{self} has no kernels for codes by the range of each run"));
        }
        match strange {
            Some(codes) => Some(format!("{self} has no integer kernels for {codes}")),
            None if !self.0.granularities.contains(&granularity) => {
                Some(format!("{self} has no integer kernels for weights with a scale for each {granularity}"))
            }
            None => None,
        }
    }
}

impl Default for Target {
    fn default() -> Self {
        Self(&portable::TARGET)
    }
}

choice_of_rows!(Target, "target", TARGETS);

/// The newest opset that every operator of a graph, and of the graphs inside it, can move to.
pub fn newest(graph: &Graph) -> i64 {
    let of = |op: &Op| match op {
        // Other domains have versions of their own.
        Op::Opaque(o) if matches!(&o.proto.domain[..], "" | "ai.onnx") => o.opset,
        op => op.until().unwrap_or(i64::MAX),
    };
    let ops = graph.operators().map(|n| graph.op(n));
    ops.map(|op| op.bodies().iter().map(|b| newest(b.graph())).fold(of(op), i64::min)).min().unwrap_or(i64::MAX)
}
