//! How passes that choose between results learn which one is better.

use crate::{
    error::Result,
    graph::Graph,
    node::Port,
    op::{Op, Operator, Quant},
    ops::unary::Unary,
    verify::Verified,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Compares graphs with one that they stand in for, on samples that calibration does not see: what the search for a way to
/// quantise asks of the runtime.
pub trait Judges {
    /// A judge of graphs that have the inputs and outputs of `original`.
    ///
    /// # Errors
    /// Whatever running or reading the data can raise.
    fn beside(&self, original: &Verified) -> Result<Box<dyn Judge + '_>>;
}

/// Compares graphs with one.
pub trait Judge {
    /// How many samples there are.
    fn samples(&self) -> usize;

    /// What the answers of `graph` to the first `samples` samples keep of those of the original.
    ///
    /// # Errors
    /// Whatever running can raise; interrupted.
    fn judge(&self, graph: &Verified, samples: usize) -> Result<Likeness>;

    /// `graph` at the sizes that one sample has.
    ///
    /// # Errors
    /// What inference raises.
    fn sized(&self, graph: &Graph) -> Result<Graph>;
}

/// What the answers of one graph keep of those of another.
#[derive(Debug, Clone, Copy, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Likeness {
    /// The noise in the answers, in parts of the signal: a mean over the outputs. 0 where they are equal.
    pub noise: f64,
    /// That of the worst output.
    pub worst: f64,
    /// The noise of what a Softmax or a Sigmoid makes outputs of, where one does, as such functions make noise jump where an answer
    /// flips: a mean over the outputs.
    pub inner: f64,
    /// The noise in the answers to a sample, before such functions: the geometric mean over the samples, by how strong
    /// the answers to each are. It is that of pictures that show something to a detector.
    pub strong: f64,
    /// The same of all samples alike.
    pub typical: f64,
    /// By how much the metric drops that suits the outputs, if it is a share.
    pub drop: Option<f64>,
}

impl Likeness {
    /// Less noise in the answer to a sample is as good as none, and counts as this in the geometric means.
    pub const LEAST: f64 = 1e-8;

    /// More noise in the answer to a sample leaves nothing of it, and counts as this.
    pub const MOST: f64 = 1e4;

    /// Of answers that can't be compared: nothing is left.
    pub const LOST: Self = Self { noise: 1e30, worst: 1e30, inner: 1e30, strong: 1e30, typical: 1e30, drop: Some(1.0) };

    /// Signal to noise, in decibels.
    pub fn sqnr_db(&self) -> f64 {
        decibels(self.noise)
    }

    /// How near the answers are, in decibels, before functions that hide noise: the mean of signal to noise of strong samples and of
    /// typical ones. A few samples whose noise is large by chance do not rule it.
    pub fn nearness(&self) -> f64 {
        (decibels(self.strong) + decibels(self.typical)) / 2.0
    }

    /// Signal to noise of all samples together, before functions that hide noise, in decibels.
    pub fn inner_db(&self) -> f64 {
        decibels(self.inner)
    }
}

/// What an output is made of, if a function of a bounded range makes it, and other operators only move that.
pub fn unsaturated(graph: &Graph, mut port: Port) -> Option<Port> {
    loop {
        let before = graph.operand(port.node, 0)?;
        match graph.op(port.node) {
            Op::Softmax(_) | Op::Unary(Unary::Sigmoid) => return Some(before),
            op if op.quant() == Quant::Same => port = before,
            _ => return None,
        }
    }
}

/// A ratio of noise to signal, in decibels of signal to noise.
pub fn decibels(noise: f64) -> f64 {
    -10.0 * noise.max(1e-20).log10()
}

/// Something that a pass tried, and whether it kept that.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Trial {
    /// What it is called.
    pub name: &'static str,
    /// What was done, in words.
    pub what: String,
    /// What the answers were like with it.
    #[serde(flatten)]
    pub likeness: Likeness,
    /// The time that a run takes on ONNX Runtime, as predicted, in parts of that of the floats.
    pub time: f64,
    /// The size of the weights, in parts of that of the floats.
    pub size: f64,
    /// Whether it was kept.
    pub kept: bool,
}
