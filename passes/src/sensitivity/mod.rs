//! How much the answers of a model mind what compression does to one layer, or one value, alone.
//!
//! Each is quantised, has weights set to zero, or loses channels, while all others stay as they are, and the graph runs on
//! samples that calibration does not see. Nothing is trained, and no other weight makes up for what goes. So the
//! figures compare layers; compression with training keeps more of the answers.

mod alone;
mod channels;
mod zeros;

pub use alone::LayerAlone;

pub use crate::quant::search::{CurvePoint, Left, ValueSensitivity};

use crate::{
    layers::{Layer, layers as layers_of},
    prune::mask::Scope,
    quant::{self, ptq::Int8, scheme::Scheme, search::figures},
    simplify,
    target::Target,
    widen::Widen,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    judge::Judge,
    node::Port,
    op::Operator,
    pass::{Context, Pass},
    tensor::DType,
    verify::verify,
};
use schemars::JsonSchema;
use serde::Serialize;

/// What to measure.
pub struct Measurement {
    /// The codes of INT8.
    pub scheme: Scheme,
    /// What has to run them.
    pub target: Target,
    /// Layers to leave alone.
    pub scope: Scope,
}

/// How much the answers mind.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Sensitivity {
    /// Samples that they were judged on; the measured points of the curve are of all that are held out.
    pub samples: usize,
    /// Each layer, in the order of the network.
    pub layers: Vec<LayerSensitivity>,
    /// The channels that go together.
    pub channels: Vec<ChannelSensitivity>,
    /// How many layers are inside If, Loop and Scan: those stay as they are.
    pub inside: usize,
    /// Each value that INT8 makes codes of: the noisiest first.
    pub values: Vec<ValueSensitivity>,
    /// What INT8 keeps and gains with more and more layers in floats.
    pub curve: Vec<CurvePoint>,
}

/// How much the answers mind a layer.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct LayerSensitivity {
    /// The layer.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Multiply-accumulates of a sample.
    pub macs: u64,
    /// Elements of its weight.
    pub weights: usize,
    /// With its input and its weight in codes, and the output of a convolution unless the target computes on; absent where it
    /// can't be quantised.
    pub int8: Option<Left>,
    /// Why it can't.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_obstacle: Option<String>,
    /// With its smallest weights zero, by fraction, in all layers that share the weight; empty where it is not pruned.
    pub zeros: Vec<Without>,
    /// Which of the groups of channels are its own, if they may go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<usize>,
}

/// How much the answers mind the loss of channels.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ChannelSensitivity {
    /// The layers that make them.
    pub nodes: Vec<String>,
    /// How many there are, where channels that go as one count as one.
    pub channels: usize,
    /// Without those of the smallest weights, by fraction.
    pub cut: Vec<Without>,
}

/// What is left without a fraction.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Without {
    /// The fraction that went.
    pub fraction: f64,
    /// What of the answers is left.
    #[serde(flatten)]
    pub left: Left,
}

/// Those that answers are compared with.
struct Answers<'a> {
    judge: &'a dyn Judge,
    samples: usize,
}

impl Answers<'_> {
    fn left(&self, g: &Graph, cx: &Context) -> Result<Left> {
        cx.check()?;
        Ok(Left::of(&self.judge.judge(&verify(g)?, self.samples)?))
    }
}

impl Measurement {
    /// `graph` as it is measured, simplified and in floats of 32 bits, and what would quantise it.
    fn prepared(&self, mut graph: Graph, cx: &Context) -> Result<(Int8, Graph)> {
        let exclude = self.scope.exclude.clone();
        let int8 = Int8 { target: self.target, exclude, ..Int8::of(self.scheme) };
        quant::feasible(&graph, int8.target, &int8.scheme, false).map_err(|e| e.help("give the model in floats"))?;
        simplify(&mut graph, cx)?;
        Widen.run(&mut graph, cx)?;
        graph.infer_all()?;
        Ok((int8, graph))
    }

    /// Measures `graph`, which is simplified first, and is widened if it computes in 16 bits.
    ///
    /// # Errors
    /// Unsupported for a graph that is quantised already; whatever running it can raise; interrupted.
    pub fn run(&self, graph: Graph, cx: &Context) -> Result<Sensitivity> {
        let (int8, graph) = self.prepared(graph, cx)?;
        let is_float = |p: Port| graph.fact(p).dtype.is_some_and(DType::is_float);
        if !graph.outputs().iter().any(|o| is_float(o.port)) {
            let what = "no output is of floats, so that there is no noise to measure";
            return Err(Error::unsupported(what).help("make the floats an output, from which the others are computed"));
        }
        let judges = cx.judges.ok_or_else(|| Error::bug("sensitivity without samples to judge by"))?;
        let judge = judges.beside(&verify(&graph)?)?;
        let found = figures(&int8, &graph, &*judge, cx)?;
        let answers = Answers { judge: &*judge, samples: found.samples };
        let zeros = zeros::of(&graph, &self.scope, &answers, cx)?;
        let (channels, group_of) = channels::of(&graph, &self.scope, &answers, cx)?;
        let sized = judge.sized(&graph)?;
        let layer = |l: Layer| {
            let node = graph.node(l.node).display_name().to_string();
            let skipped = found.skipped.iter().find(|s| s.node == node);
            LayerSensitivity {
                op: graph.op(l.node).op_type().into(),
                macs: sized.macs(l.node),
                weights: graph.constant(l.weight.into()).map_or(0, |t| t.len()),
                int8: found.layers.iter().find(|(n, _)| *n == l.node).map(|(_, likeness)| Left::of(likeness)),
                int8_obstacle: skipped.map(|s| s.reason.clone()),
                zeros: zeros.get(&l.weight).cloned().unwrap_or_default(),
                channels: group_of.get(&l.node).copied(),
                node,
            }
        };
        let mut values = found.values;
        let db = |v: &ValueSensitivity| v.left.typical_db.unwrap_or(f64::INFINITY);
        values.sort_by(|a, b| db(a).total_cmp(&db(b)));
        let layers = layers_of(&graph)?.into_iter().map(layer).collect();
        let mut inside = 0;
        for body in graph.and_bodies().into_iter().skip(1) {
            inside += layers_of(body)?.len();
        }
        Ok(Sensitivity { samples: found.samples, layers, channels, inside, values, curve: found.curve })
    }
}
