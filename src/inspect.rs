//! What a model is made of.

use crate::{
    compress::needs,
    events::{Events, watched},
    facts,
    options::ReadOptions,
    report::{FileFacts, LayerFacts},
};
use clap::Args;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::Port,
    onnx,
    op::{Op, Operator},
    pass::Context,
    words::option,
};
use compress_passes::{
    layers::Layer,
    prune::groups::{Group, Groups, Unit},
    simplify,
};
use compress_runtime::burn::BurnInterpreter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

/// Shows what a model is made of.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Inspect {
    /// The ONNX model.
    pub model: PathBuf,
    /// Print the graph as text.
    #[arg(long, conflicts_with = "json")]
    pub ir: bool,
    /// Print which channels can only be pruned together, and why some can't be, of the simplified model.
    #[arg(long, conflicts_with = "ir")]
    pub groups: bool,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
}

/// What was asked for of a model.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Inspected {
    /// Its inputs, outputs, operators and layers.
    Whole(Box<Inspection>),
    /// Its graph as text.
    Text(String),
    /// Its channels.
    Groups(Vec<ChannelGroup>),
}

/// What a model is made of.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Inspection {
    /// The file.
    pub file: FileFacts,
    /// Its opset.
    pub opset: i64,
    /// The graph's inputs.
    pub inputs: Vec<Signature>,
    /// The graph's outputs.
    pub outputs: Vec<Signature>,
    /// How many there are of each operator.
    pub operators: BTreeMap<String, usize>,
    /// Nodes that are not understood, and why.
    pub opaque: Vec<(String, String)>,
    /// Layers.
    pub layers: Vec<LayerFacts>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
    /// Whether sizes besides the batch are open, so that multiply-accumulates are those of the least.
    pub sizes_open: bool,
}

/// An input or an output.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Signature {
    /// Its name.
    pub name: String,
    /// Its element type and sizes.
    pub r#type: String,
}

/// Channels that can only be pruned together.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct ChannelGroup {
    /// The layers that make them.
    pub made_by: Vec<String>,
    /// The layers that read them.
    pub read_by: Vec<String>,
    /// How many can go on their own, if several in turn, those as one.
    pub units: usize,
    /// How many of these may go.
    pub open: usize,
    /// Why the others may not.
    pub closed: Vec<String>,
}

impl Inspect {
    /// Looks at the model.
    ///
    /// # Errors
    /// Usage for options that exclude each other; file, malformed, limit: whatever reading can raise; interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<Inspected> {
        needs::apart(&[(&option::IR, self.ir), (&option::GROUPS, self.groups)])?;
        let model = onnx::read_with(&self.model, &(&self.read).into())?;
        let g = &model.graph;
        if self.ir {
            return Ok(Inspected::Text(g.to_string()));
        }
        if self.groups {
            let found = watched(events, |m| {
                groups(g, &Context { stopped: &|| m.stopped(), ..Context::new(&BurnInterpreter::cpu()) })
            });
            return found.map(Inspected::Groups);
        }
        let mut operators = BTreeMap::new();
        let mut opaque = vec![];
        for (g, n) in g.and_bodies().into_iter().flat_map(|g| g.operators().map(move |n| (g, n))) {
            *operators.entry(g.op(n).op_type().to_string()).or_insert(0) += 1;
            if let Op::Opaque(o) = g.op(n) {
                opaque.push((g.node(n).display_name().to_string(), o.reason.clone()));
            }
        }
        let (inputs, outputs) = signature(g);
        Ok(Inspected::Whole(Box::new(Inspection {
            file: facts::file(&self.model, &model),
            opset: model.opset(),
            inputs,
            outputs,
            operators,
            opaque,
            layers: facts::all_layers(g),
            warnings: model.warnings.clone(),
            sizes_open: facts::has_open_sizes(g),
        })))
    }
}

/// The groups of a graph as pruning of channels sees them: simplified.
fn groups(g: &Graph, cx: &Context) -> Result<Vec<ChannelGroup>> {
    let mut g = g.clone();
    simplify(&mut g, cx)?;
    let all = Groups::find(&g)?;
    let name = |l: &Layer| g.node(l.node).display_name().to_string();
    let group = |group: &Group| {
        let whole = all.closed(&g, group);
        let why = |unit: &Unit| all.obstacle(unit).or(whole.as_deref()).map(String::from);
        let why: Vec<Option<String>> = group.units.iter().map(why).collect();
        ChannelGroup {
            made_by: all.makers(group).map(name).collect(),
            read_by: all.readers(group).map(name).collect(),
            units: why.len(),
            open: why.iter().filter(|why| why.is_none()).count(),
            closed: why.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect(),
        }
    };
    Ok(all.groups.iter().map(group).collect())
}

/// The inputs and the outputs of a graph.
pub(crate) fn signature(g: &Graph) -> (Vec<Signature>, Vec<Signature>) {
    let of = |name: &str, port: Port| Signature { name: name.into(), r#type: g.fact(port).to_string() };
    let inputs = g.inputs().iter().map(|n| of(&g.value((*n).into()).name, (*n).into()));
    (inputs.collect(), g.outputs().iter().map(|o| of(&o.name, o.port)).collect())
}
