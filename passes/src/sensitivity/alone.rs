//! Each layer alone in few bits: what a search for a mix of forms begins with.

use super::Measurement;
use crate::{
    layers::layers,
    quant::{
        search::alone,
        weight_only::{Block, WeightFormat, WeightOnly},
    },
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    op::Operator,
    pass::Context,
    verify::verify,
};
use serde::{Deserialize, Serialize};

/// A layer, and what it costs and gains in few bits, alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerAlone {
    /// The layer.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// Multiply-accumulates of a sample.
    pub macs: u64,
    /// Elements of its weight.
    pub weights: usize,
    /// The noise in the answers to a typical sample with the layer in INT8, in parts of the signal; absent where it can't be.
    pub int8: Option<f64>,
    /// The share of the time of floats that this is predicted to save on ONNX Runtime.
    pub gain: f64,
    /// The same noise with its weight in blocks of 4 bits; absent where it can't be.
    pub int4: Option<f64>,
}

/// Samples to judge weights of 4 bits by.
const SAMPLES: usize = 8;

impl Measurement {
    /// Measures each layer of `graph` in INT8, and with its weight in 4 bits, alone.
    ///
    /// # Errors
    /// As for [`Measurement::run`].
    pub fn alone(&self, graph: Graph, cx: &Context) -> Result<Vec<LayerAlone>> {
        let (int8, graph) = self.prepared(graph, cx)?;
        let judges = cx.judges.ok_or_else(|| Error::bug("sensitivity without samples to judge by"))?;
        let judge = judges.beside(&verify(&graph)?)?;
        let found = alone(&int8, &graph, &*judge, cx)?;
        let weights = WeightOnly {
            format: Some(WeightFormat::Int4),
            rules: vec![],
            block: Block::default().get(),
            by_data: false,
            train: false,
            target: self.target,
            exclude: self.scope.exclude.clone(),
        };
        let int4 = weights.alone(&graph, &*judge, SAMPLES.min(judge.samples()), cx)?;
        let sized = judge.sized(&graph)?;
        let layer = |l: &crate::layers::Layer| LayerAlone {
            node: graph.node(l.node).display_name().into(),
            op: graph.op(l.node).op_type().into(),
            macs: sized.macs(l.node),
            weights: graph.constant(l.weight.into()).map_or(0, |t| t.len()),
            int8: found.layers.iter().find(|(n, _)| *n == l.node).map(|(_, likeness)| likeness.typical),
            gain: found.gains.get(&l.node).copied().unwrap_or_default(),
            int4: int4.get(&l.node).copied(),
        };
        Ok(layers(&graph)?.iter().map(layer).collect())
    }
}
