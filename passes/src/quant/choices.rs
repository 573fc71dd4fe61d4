//! What is decided of how a graph is quantised, beyond what its scheme says of all of it.

use super::calibrators::Calibration;
use compress_compiler::node::{NodeId, Port};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

/// Decisions about single layers and values. The default decides nothing: every layer that can be quantised is, and every
/// range is as the scheme says.
#[derive(Debug, Clone, Default)]
pub struct Choices {
    /// Layers that stay in floats, and why.
    pub float: BTreeMap<NodeId, &'static str>,
    /// How the ranges of all values are chosen, if not as the scheme says.
    pub calibration: Option<Calibration>,
    /// How those of single values are, if not as all are.
    pub ranges: HashMap<Port, Calibration>,
    /// What weights are rounded to, and the scales that they are rounded with, by their constants.
    pub rounded: HashMap<NodeId, Arc<Rounded>>,
    /// What is added to the bias of a layer when it is quantised, one value a channel.
    pub biases: HashMap<NodeId, Arc<[f32]>>,
    /// Values that are quantised twice, the second time what the first left over: layers that read them see 16 bits.
    pub two_terms: BTreeSet<Port>,
    /// What those weights of layers in floats are rounded to that are stored as codes, by their constants; nothing before that was
    /// decided.
    pub stored: Option<BTreeMap<NodeId, Arc<Rounded>>>,
    /// Sums of an integer product and a float one, which stay in floats.
    pub sums: BTreeSet<NodeId>,
}

/// A weight that was rounded with a view to what its layer reads.
#[derive(Debug)]
pub struct Rounded {
    /// What the codes stand for, as the weight is stored.
    pub values: Vec<f32>,
    /// One scale an output channel.
    pub scales: Vec<f32>,
}
