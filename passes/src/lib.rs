//! The passes, and the one table that says in which order they run.

pub mod attention;
pub mod axes;
pub mod bisect;
pub mod bodies;
pub mod clean;
pub mod fold;
pub mod fuse;
pub mod layers;
pub mod loops;
pub mod low_rank;
mod moments;
pub mod nested;
pub mod normalise;
pub mod prune;
pub mod quant;
pub mod sensitivity;
pub mod target;
mod weight_matrix;
pub mod widen;

use compress_compiler::{
    choice,
    error::Result,
    graph::Graph,
    pass::{Context, Outcome, Pass},
    pipeline::Pipeline,
    words::{Opt, option},
};
use low_rank::LowRank;
use prune::{
    depth::KeepLayers,
    mask::{Pattern, Scope},
    reconstruct::Budget,
    recover::{Recover, WeightSaliency},
    structured::{Channels, PruneChannels},
    unstructured::Prune,
};
use quant::{
    dynamic::DynamicInt8,
    layer_forms::{self, LayerRule},
    ptq::Int8,
    scheme::Scheme,
    search::Budget as SearchBudget,
    tables::Tables,
    weight_only::{WeightFormat, WeightOnly},
};
use regex::Regex;
use std::ops::Deref;
use target::Target;
use widen::{Narrow, Widen};

/// What the user asked of the pipeline.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// How many layers of a decoder stay, if not all.
    pub layers: Option<usize>,
    /// The channels to remove.
    pub channels: Option<Channels>,
    /// The products to make of thinner weights.
    pub low_rank: Option<Factorised>,
    /// The fraction of the weights to zero.
    pub prune: Option<f64>,
    /// The zeros of every group of weights.
    pub pattern: Option<Pattern>,
    /// What that is the fraction of.
    pub prune_budget: PruneBudget,
    /// Whether what calibration data shows of the layers decides which weights go and what the others become, rather
    /// than their magnitude.
    pub reconstruct: bool,
    /// Whether the first and last layers are pruned too.
    pub prune_ends: bool,
    /// How the model is trained to win accuracy back, if it is.
    pub training: Option<Recovery>,
    /// The codes that activations and weights become, if they do.
    pub scheme: Option<Scheme>,
    /// What weights alone become, if they do.
    pub weights: Option<WeightFormat>,
    /// How many inputs share a scale there.
    pub block: usize,
    /// Layers whose form the user named.
    pub rules: Vec<LayerRule>,
    /// Whether there are data to round them by: made-up inputs don't tell what layers read.
    pub weights_by_data: bool,
    /// What the search for a better way to quantise may take, if there is one.
    pub search: Option<SearchBudget>,
    /// Train the quantised model (quantisation-aware training).
    pub qat: bool,
    /// Layers to leave alone.
    pub exclude: Vec<Regex>,
    /// What the result has to run on.
    pub target: Target,
    /// Whether what calibrates runs operators that are not known here.
    pub any_operator: bool,
}

/// Which products become two with thinner weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Factorised {
    /// The fraction of the multiply-accumulates to do without.
    pub fraction: f64,
    /// What ranks are a multiple of, if not of 16.
    pub round: Option<usize>,
    /// Whether only what makes the model faster here becomes factors.
    pub pays: bool,
    /// Whether there are data that tell what layers read.
    pub by_data: bool,
}

/// How a model is trained to win accuracy back.
#[derive(Debug, Clone, Copy)]
pub struct Recovery {
    /// What decides which weights go.
    pub by: WeightSaliency,
    /// Whether a model that can't be trained is an error.
    pub must: bool,
}

/// What the fraction of the weights that go is one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PruneBudget {
    /// All weights together.
    #[default]
    Global,
    /// The weights of each layer.
    Layer,
}

choice!(PruneBudget, "budget of weights", [
    Global "global" "of all weights together",
    Layer "layer" "of the weights of each layer",
]);

impl Options {
    /// Which weights may be pruned.
    pub fn scope(&self) -> Scope {
        Scope { exclude: self.exclude.clone(), ends: self.prune_ends }
    }

    /// Whether passes compute with weights that have to be floats of 32 bits.
    fn needs_floats(&self) -> bool {
        self.scheme.is_some() || self.stores_weights() || self.factorises()
    }

    /// Whether weights alone become codes.
    fn stores_weights(&self) -> bool {
        self.weights.is_some() || layer_forms::store_weights(&self.rules)
    }

    /// Whether channels are removed.
    fn narrows(&self) -> bool {
        self.channels.is_some_and(|c| c.fraction > 0.0)
    }

    /// Whether weights are factorised.
    fn factorises(&self) -> bool {
        self.low_rank.is_some_and(|of| of.fraction > 0.0)
    }

    fn budget(&self) -> Option<Budget> {
        let of = match self.prune_budget {
            PruneBudget::Global => Budget::Fraction,
            PruneBudget::Layer => Budget::Layers,
        };
        self.pattern.map(Budget::Pattern).or(self.prune.map(of))
    }
}

/// A step of the pipeline: its place, its name, and when it runs.
pub struct Stage {
    /// The name, as in reports.
    pub name: &'static str,
    /// What it does, in one line.
    pub does: &'static str,
    /// The options that ask for it; none where it always runs.
    pub asked_by: &'static [Opt],
    make: fn(&Asked) -> Option<Box<dyn Pass>>,
}

/// What is asked of the pipeline, as far as it goes.
struct Asked<'a> {
    options: &'a Options,
    /// The stages that it has.
    stages: &'a [Stage],
}

impl Deref for Asked<'_> {
    type Target = Options;

    fn deref(&self) -> &Options {
        self.options
    }
}

impl Asked<'_> {
    /// The passes after which the model is trained, in order. The last of them trains it for all.
    fn trainers(&self) -> Vec<&'static str> {
        let asked = [
            ("layers", self.layers.is_some()),
            ("channels", self.narrows()),
            ("low-rank", self.factorises()),
            ("recover", self.budget().is_some()),
        ];
        let runs = |name: &str| self.stages.iter().any(|stage| stage.name == name);
        asked.into_iter().filter(|(name, asked)| *asked && runs(name)).map(|(name, _)| name).collect()
    }

    /// Whether a later pass trains what `pass` made.
    fn is_followed(&self, pass: &str) -> bool {
        self.trainers().last() != Some(&pass)
    }

    /// Whether `pass` trains what passes before it made.
    fn is_deferred_to(&self, pass: &str) -> bool {
        self.trainers().first() != Some(&pass)
    }
}

/// Every pass, in the order in which they run.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "fold",
        does: "compute values that depend on constants and known shapes only",
        asked_by: &[],
        make: |_| Some(Box::new(fold::Fold)),
    },
    Stage {
        name: "clean",
        does: "remove dead nodes, identities, dropout, duplicates and unused weights",
        asked_by: &[],
        make: |_| Some(Box::new(clean::Clean)),
    },
    Stage {
        name: "fuse",
        does: "merge batch norms, biases, scales and pads into layers; merge chains of reshapes, transposes, slices",
        asked_by: &[],
        make: |_| Some(Box::new(fuse::Fuse)),
    },
    Stage {
        name: "simplify",
        does: "repeat the three above until nothing changes, also inside If, Loop and Scan",
        asked_by: &[],
        make: |_| Some(Box::new(Simplify)),
    },
    Stage {
        name: "widen",
        does: "widen models of 16-bit floats to 32 bits, so that they can be quantised or factorised",
        asked_by: &[option::INT8, option::WEIGHTS, option::LOW_RANK],
        make: |o| o.needs_floats().then(|| Box::new(Widen) as Box<dyn Pass>),
    },
    Stage {
        name: "layers",
        does: "take whole layers out of a decoder, and train the model",
        asked_by: &[option::KEEP_LAYERS],
        make: |o| {
            let followed = o.is_followed("layers");
            Some(Box::new(KeepLayers { keep: o.layers?, train: o.training.map(|t| t.must), followed }))
        },
    },
    Stage {
        name: "channels",
        does: "remove channels, adjust the layers that read the remaining ones, and train the model",
        asked_by: &[option::PRUNE_CHANNELS],
        make: |o| {
            let mut channels = o.channels.filter(|c| c.fraction > 0.0)?;
            let (exclude, train) = (o.exclude.clone(), o.training.map(|t| t.must));
            channels.round = channels.round.or(o.target.capabilities().channels);
            // What is pruned after that is trained after that.
            let followed = o.is_followed("channels");
            Some(Box::new(PruneChannels { channels, exclude, reconstruct: o.reconstruct, train, followed }))
        },
    },
    Stage {
        name: "low-rank",
        does: "replace weights of products by two thinner ones, and train the model",
        asked_by: &[option::LOW_RANK],
        make: |o| {
            let mut of = o.low_rank.filter(|_| o.factorises())?;
            of.round = of.round.or(o.target.capabilities().channels);
            let (exclude, train) = (o.exclude.clone(), o.training.map(|t| t.must));
            let (deferred, followed) = (o.is_deferred_to("low-rank"), o.is_followed("low-rank"));
            Some(Box::new(LowRank { of, exclude, train, deferred, followed }))
        },
    },
    Stage {
        name: "target",
        does: "replace operators by newer ones that ONNX Runtime has kernels for, and products with codes in blocks by MatMulNBits",
        asked_by: &[option::TARGET],
        make: |o| o.target.capabilities().lower.map(|lower| lower()),
    },
    Stage {
        name: "prune",
        does: "set weights to zero and, with data, adjust the others so that the outputs of layers change least",
        asked_by: &[option::PRUNE],
        make: |o| match o.training {
            Some(Recovery { by: WeightSaliency::Obs, .. }) | None => {
                Some(Box::new(Prune { budget: o.budget()?, scope: o.scope(), reconstruct: o.reconstruct }))
            }
            Some(_) => None,
        },
    },
    Stage {
        name: "recover",
        does: "train the pruned model with the original as teacher, or prune it step by step while it trains (with data)",
        asked_by: &[option::PRUNE],
        make: |o| {
            let Recovery { by, must } = o.training?;
            let deferred = o.is_deferred_to("recover");
            Some(Box::new(Recover { budget: o.budget()?, scope: o.scope(), by, must, deferred }))
        },
    },
    Stage {
        name: "tables",
        does: "quantise tables from which rows are looked up: in 8 bits with a scale for each row, or large ones in 4 with one for each block of it",
        asked_by: &[option::INT8, option::WEIGHTS],
        make: |o| {
            let able = o.target.capabilities().looks_up_codes || layer_forms::store_weights(&o.rules);
            let able = able && (o.scheme.is_some() || o.stores_weights());
            // INT8 makes codes of 8 bits of tables too.
            let others = o.weights.or(o.scheme.map(|_| WeightFormat::Int8));
            let (exclude, rules, block, target) = (o.exclude.clone(), o.rules.clone(), o.block, o.target);
            able.then(|| Box::new(Tables { exclude, rules, others, block, target }) as Box<dyn Pass>)
        },
    },
    Stage {
        name: "weights",
        does: "store weights of products in 4 or 8 bits, a scale for each block of inputs; activations stay floats",
        asked_by: &[option::WEIGHTS],
        make: |o| {
            let (format, block, rules) = (o.weights, o.block, o.rules.clone());
            let (by_data, target, exclude) = (o.weights_by_data, o.target, o.exclude.clone());
            let pass = WeightOnly { format, rules, block, by_data, train: o.qat, target, exclude };
            o.stores_weights().then(|| Box::new(pass) as Box<dyn Pass>)
        },
    },
    Stage {
        name: "int8",
        does: "quantise activations to U8 and weights to S8 per channel, as QDQ with biases in INT32 or by the range of each run; targets may want others",
        asked_by: &[option::INT8],
        make: |o| {
            let (scheme, target, exclude, rules) = (o.scheme?, o.target, o.exclude.clone(), o.rules.clone());
            if scheme.activations.are_dynamic() {
                return Some(Box::new(DynamicInt8 { scheme, target, exclude, rules }));
            }
            Some(Box::new(Int8 {
                scheme,
                target,
                exclude,
                rules,
                search: o.search,
                train: o.qat,
                any_operator: o.any_operator,
            }))
        },
    },
    Stage {
        name: "narrow",
        does: "store the float weights of models of 16-bit floats in 16 bits again",
        asked_by: &[option::INT8, option::WEIGHTS, option::LOW_RANK],
        make: |o| o.needs_floats().then(|| Box::new(Narrow) as Box<dyn Pass>),
    },
];

/// The passes that `options` ask for, up to `stop_after`.
pub fn pipeline(options: &Options, stop_after: Option<&str>) -> Pipeline {
    let last = stop_after.and_then(|s| STAGES.iter().position(|t| t.name == s)).unwrap_or(STAGES.len() - 1);
    let asked = Asked { options, stages: &STAGES[..=last] };
    Pipeline { passes: asked.stages.iter().filter_map(|s| (s.make)(&asked)).collect() }
}

/// How many passes of a pipeline run before any that makes codes of weights.
pub fn before_codes(pipeline: &Pipeline) -> usize {
    let codes = |name: &str| STAGES.iter().skip_while(|s| s.name != "tables").any(|s| s.name == name);
    pipeline.passes.iter().take_while(|pass| !codes(pass.name())).count()
}

/// How often [`simplify`] starts over at most. Three rounds are the rule; the bound is for
/// graphs made to need more.
const ROUNDS: usize = 8;

/// Folds, cleans and fuses until there is nothing left to do, inside If, Loop and Scan too.
///
/// # Errors
/// What the passes raise.
pub fn simplify(graph: &mut Graph, cx: &Context) -> Result<Outcome> {
    simplify_at(graph, cx, 0)
}

/// [`simplify`], for a graph inside `depth` others.
fn simplify_at(graph: &mut Graph, cx: &Context, depth: usize) -> Result<Outcome> {
    let fold = fold::FoldWithin::of(graph);
    let passes: [&dyn Pass; 3] = [&fold, &clean::Clean, &fuse::Fuse];
    let mut total = Outcome::default();
    let mut seen = bodies::Seen::default();
    let mut inside = Outcome::default();
    for _ in 0..ROUNDS {
        let before = total.edits;
        // What an earlier round left alone may be gone since.
        total.skipped.clear();
        for pass in passes {
            total.add(pass.run(graph, cx)?);
        }
        let done = bodies::run(graph, cx, depth, &mut seen)?;
        total.edits += done.edits;
        inside.add(done);
        if total.edits == before {
            break;
        }
    }
    total.skipped.append(&mut inside.skipped);
    total.warnings.append(&mut inside.warnings);
    Ok(total)
}

/// [`simplify`] as a pass.
#[derive(Debug)]
struct Simplify;

impl Pass for Simplify {
    fn name(&self) -> &'static str {
        "simplify"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        simplify(graph, cx)
    }
}
