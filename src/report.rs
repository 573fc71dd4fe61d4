//! The report of a run: `report.json`, schema 1.

use crate::{
    drafting::Drafting,
    explain::{ExplainedPart, Remedy},
    facts::sha256,
    recipe::Recipe,
    saturation::Saturation,
};
use compress_compiler::{
    error::{Error, Result},
    onnx::{Model, SourceFile},
    pass::Trained,
    pipeline::PassReport,
    words::Opt,
};
use compress_runtime::metrics::Metric;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use toml::{Table, Value};

/// The version of the layout of reports.
pub const SCHEMA: u32 = 1;

/// Everything a run found out. Fields are only ever added within a schema.
#[derive(Debug, Clone, Default, JsonSchema, Serialize)]
pub struct Report {
    /// The version of this layout.
    pub schema: u32,
    /// The model that came in.
    pub input: FileFacts,
    /// The model that went out; absent after a dry run and in `check`.
    pub output: Option<FileFacts>,
    /// What each pass did, in order.
    pub passes: Vec<PassReport>,
    /// What the change cost, measured.
    pub accuracy: Option<Accuracy>,
    /// What the change gained on our runtime, measured.
    pub speed: Option<Speed>,
    /// The same through ONNX Runtime, where it is in the active Python environment: accuracy and speed as deployed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployed: Option<Deployed>,
    /// What the model gains as a draft, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafting: Option<Drafting>,
    /// What processors without VNNI make of the result, where it multiplies 8-bit codes that may be too large for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saturation: Option<Saturation>,
    /// What a run needs in memory.
    pub memory: Option<Memory>,
    /// The layers of the output.
    pub layers: Vec<LayerFacts>,
    /// Operators that are not known here, of which no multiply-accumulates are counted.
    pub unknown_operators: usize,
    /// How far what was asked for was done.
    pub coverage: Vec<Coverage>,
    /// What was asked for and was not done at all, or only in part.
    pub undone: Vec<String>,
    /// Why the result is not fit for use, if it is not.
    pub unusable: Option<String>,
    /// What would help then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// The gates that were asked for.
    pub gates: Vec<Gate>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
    /// What is needed to run it again.
    pub recipe: Recorded,
}

/// A model file in numbers.
#[derive(Debug, Clone, Default, JsonSchema, Serialize, Deserialize)]
pub struct FileFacts {
    /// Where it is.
    pub path: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    /// The size of the model: of this file and of those in `data`.
    pub bytes: usize,
    /// The same after zstd at level 3: what a download or a container layer sees. Absent for
    /// large models, which take too long to compress.
    pub zstd_bytes: Option<usize>,
    /// The files of weights that lie outside this one.
    pub data: Vec<DataFacts>,
    /// Operators; constants are not counted.
    pub nodes: usize,
    /// Elements of all constants.
    pub parameters: usize,
    /// How many of them are not zero.
    pub nonzero: usize,
    /// Multiply-accumulates of one sample.
    pub macs: u64,
}

/// A file of weights (ONNX's external data).
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct DataFacts {
    /// Where it is.
    pub path: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    /// Its size.
    pub bytes: usize,
}

/// How the outputs before and after compare.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct Accuracy {
    /// What was measured.
    pub metric: Metric,
    /// The output that this looks at.
    pub output: Option<String>,
    /// What that output is taken for.
    pub meaning: String,
    /// Why it is not the metric that the output seems to ask for.
    pub reason: Option<Cow<'static, str>>,
    /// Samples measured on.
    pub samples: usize,
    /// Whether a function of the program that ran the job gave the metric, on samples of its own choice; `samples` are those
    /// of the other figures.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scored_apart: bool,
    /// Further samples for which the models find another number of things, so that their outputs can't be compared.
    pub unlike: usize,
    /// Whether the samples are made up, so that only the divergence means something.
    pub synthetic: bool,
    /// The metric of the original, where labels or a program say what is right.
    pub before: Option<f64>,
    /// The metric of the model that went out; where nothing says what is right, beside the original's answers.
    pub after: Option<f64>,
    /// `before - after`; of a share beside the original's answers, `1 - after`.
    pub drop: Option<f64>,
    /// The share of samples on which both have the same argmax.
    pub agreement: Option<f64>,
    /// Other figures of the same output.
    pub beside: Vec<Figure>,
    /// Signal to quantisation noise of the worst output, and of the worse of two kinds of values in it, in decibels; absent
    /// when all are equal, and when the original's are not numbers or zero throughout.
    pub sqnr_db: Option<f64>,
    /// The output of which that is.
    pub worst_output: Option<String>,
    /// Each output.
    pub outputs: Vec<OutputFacts>,
    /// Whether all outputs are equal, and numbers.
    pub equal: bool,
    /// Whether the original's outputs are zero throughout, so that they measure nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub silent: bool,
}

/// A metric and what it is.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct Figure {
    /// The metric's name.
    pub metric: Metric,
    /// Its value of the original, where that has one by itself.
    pub before: Option<f64>,
    /// Its value; null where it is infinite.
    #[schemars(with = "Option<f64>")]
    #[serde(deserialize_with = "number")]
    pub value: f64,
}

/// How far one output is from what it was.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct OutputFacts {
    /// Its name.
    pub name: String,
    /// What it is taken for.
    pub meaning: String,
    /// Signal to quantisation noise, in decibels; absent as for all outputs.
    pub sqnr_db: Option<f64>,
    /// Of which values that is, where an output holds values of two kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The largest absolute difference; null where it is infinite.
    #[schemars(with = "Option<f64>")]
    #[serde(deserialize_with = "number")]
    pub max_error: f64,
}

/// Latency of one batch, interleaved.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct Speed {
    /// Where it ran.
    pub device: String,
    /// Which executor ran it.
    pub engine: String,
    /// Threads the executor may use.
    pub threads: usize,
    /// Samples a batch.
    pub batch: usize,
    /// The inputs that were timed, with their shapes.
    pub inputs: String,
    /// Whether the original ran as its file has it, and not simplified as deployment engines do when they load it.
    pub as_is: bool,
    /// Milliseconds of the original: of each step the least, as other work on the machine only adds to it; the median of
    /// all rounds.
    pub before_ms: f64,
    /// Milliseconds of the output.
    pub after_ms: f64,
    /// How many times as fast the output is: the median of all rounds.
    pub speedup: f64,
    /// Between which bounds that lies, with a confidence of 95%.
    pub interval: [f64; 2],
    /// Rounds of interleaved runs.
    pub rounds: usize,
    /// The 90th percentile of the original and of the output as the machine was, in milliseconds.
    pub p90: [f64; 2],
    /// How much of its fastest clock the processor had at its slowest, on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_clock: Option<f64>,
}

/// What ONNX Runtime makes of both models.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Deployed {
    /// The engine, with its provider.
    pub engine: String,
    /// What the change cost.
    pub accuracy: Accuracy,
    /// What it gained.
    pub speed: Speed,
    /// The layers to leave out of INT8, where the result is slower than the original and that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Remedy>,
    /// The parts of the result.
    #[serde(skip)]
    pub(crate) parts: Vec<ExplainedPart>,
}

/// What one run needs in memory: the weights, and the values that have to be there at once.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Memory {
    /// Bytes of the original.
    pub before_bytes: u64,
    /// Bytes of the output.
    pub after_bytes: u64,
}

/// How far something that was asked for was done.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Coverage {
    /// What: `int8`, `prune`, `channels`.
    pub request: &'static str,
    /// Layers to which it was done.
    pub layers: usize,
    /// Layers of the model, recurrent ones among them.
    pub of_layers: usize,
    /// The share of the multiply-accumulates that are in the former; absent where those of some operators are not known.
    pub macs: Option<f64>,
    /// The others: where they are and why, the largest share first.
    pub left: Vec<Left>,
}

/// Layers to which something was not done.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct Left {
    /// Their operator.
    pub op: String,
    /// How many.
    pub layers: usize,
    /// Their share of the multiply-accumulates, where it is known.
    pub macs: Option<f64>,
    /// Why.
    pub reason: String,
}

/// One layer of the output.
#[derive(Debug, Clone, Default, JsonSchema, Serialize)]
pub struct LayerFacts {
    /// Its node.
    pub node: String,
    /// Its operator.
    pub op: String,
    /// `int8` or the weight's float type.
    pub precision: String,
    /// The share of its weights that are zero.
    pub sparsity: f64,
    /// Bytes of its weights that are not zero.
    pub live_bytes: usize,
    /// Bytes of those that are: the file has them all the same.
    pub dead_bytes: usize,
    /// Whether our runtime left its zeros out, and so was faster for them; absent where it did not run the layer.
    pub skips_zeros: Option<bool>,
    /// How far its output is from the original's, where that has the same value.
    pub sqnr_db: Option<f64>,
    /// Multiply-accumulates of one sample.
    pub macs: u64,
    /// What computes it on our runtime; absent where that was not timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<LayerKernel>,
    /// What computes it on ONNX Runtime, as deployed there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deployed: Option<LayerKernel>,
    /// Why ONNX Runtime multiplies in floats, in a model with 8-bit codes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_because: Option<String>,
}

/// What computes a layer on an engine, together with what the engine computes in one go with it.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct LayerKernel {
    /// The names of the kernels, in the order in which they run.
    pub kernel: String,
    /// Milliseconds of them; absent where they are counted at another layer, which they compute too.
    pub ms: Option<f64>,
    /// Whether the one that takes longest works on 8-bit codes.
    pub int8: bool,
}

/// The report of a sweep: what each fraction cost and gained.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct SweepReport {
    /// The version of this layout.
    pub schema: u32,
    /// The model that came in.
    pub input: FileFacts,
    /// The models that went out, by rising fraction.
    pub sweep: Vec<SweepPoint>,
    /// The plot of the figures, an SVG; absent where there was nothing to plot.
    pub plot: Option<String>,
    /// Sentences that are in the report of each.
    pub warnings: Vec<String>,
    /// Where this report is.
    pub file: String,
    /// What is needed to run it again.
    pub recipe: Recorded,
}

/// One model of a sweep.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct SweepPoint {
    /// The fraction that was asked for.
    pub fraction: f64,
    /// The share of all parameters that is zero.
    pub sparsity: f64,
    /// The file.
    pub output: FileFacts,
    /// Its own report.
    pub report: String,
    /// What the change cost, measured.
    pub accuracy: Option<Accuracy>,
    /// What the change gained on our runtime, measured.
    pub speed: Option<Speed>,
    /// The gates that were asked for.
    pub gates: Vec<Gate>,
    /// Whether it passed all of them and is fit for use, and nothing that was asked for was left undone where that counts.
    pub passed: bool,
    /// What was asked for and not done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undone: Vec<String>,
    /// Trainings that were part of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<Trained>,
    /// Sentences that are in its report, and not in that of every other.
    pub warnings: Vec<String>,
    /// Why it is not fit for use, if it is not.
    pub unusable: Option<String>,
    /// What is needed to make it alone.
    pub recipe: Recorded,
}

/// A gate and what became of it.
#[derive(Debug, Clone, JsonSchema, Serialize, Deserialize)]
pub struct Gate {
    /// The option.
    pub name: Opt,
    /// Which figure it is about, where the option is about several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure: Option<Cow<'static, str>>,
    /// What was asked.
    pub limit: f64,
    /// What was measured; null where nothing could be, and where it is infinite.
    #[schemars(with = "Option<f64>")]
    #[serde(deserialize_with = "number")]
    pub value: f64,
    /// Whether it does not fail.
    pub passed: bool,
    /// Whether it holds, fails, or can't be told.
    pub verdict: Verdict,
    /// The limit for people.
    pub limit_shown: String,
    /// What was measured, for people.
    pub shown: String,
}

/// What became of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// The figure is too noisy to tell.
    Unclear,
}

impl Gate {
    /// A gate that is done, with its figures for people.
    pub fn new(name: Opt, limit_shown: String, limit: f64, shown: String, value: f64, verdict: Verdict) -> Self {
        Self { name, figure: None, limit, value, passed: verdict != Verdict::Failed, verdict, limit_shown, shown }
    }

    /// The same, of one of several figures.
    pub fn of_figure(self, figure: &'static str) -> Self {
        Self { figure: Some(figure.into()), ..self }
    }
}

/// What is needed to run a job again.
#[derive(Debug, Clone, Default, JsonSchema, Serialize, Deserialize)]
pub struct Recorded {
    /// The version of this program.
    pub version: String,
    /// The options that shape the output.
    pub flags: Vec<String>,
    /// The seed of every random choice.
    pub seed: u64,
    /// Which data was calibrated on, or compared on: a digest, or how it was made up.
    pub data: Option<String>,
    /// The recipe: `compress run` takes it from here.
    #[schemars(with = "Map<String, Json>")]
    pub run: Table,
    /// What of it shapes the output.
    #[serde(skip)]
    essence: Table,
}

impl Recorded {
    /// The record of a recipe and of the data that it was run on, if that is known.
    ///
    pub fn new(recipe: &Recipe, data: Option<String>) -> Self {
        // A path that is not Unicode can't be recorded: the job is done all the same, and can't be run again from its report.
        let (essence, run) = (recipe.essence().unwrap_or_default(), recipe.table().unwrap_or_default());
        let flags = |(name, value): (&String, &Value)| match value {
            Value::Boolean(_) => vec![flag(name)],
            Value::Array(many) if many.iter().all(Value::is_str) => {
                many.iter().map(|one| format!("{} {}", flag(name), plain(one))).collect()
            }
            Value::Array(many) => {
                vec![format!("{} {}", flag(name), many.iter().map(plain).collect::<Vec<_>>().join(","))]
            }
            one => vec![format!("{} {}", flag(name), plain(one))],
        };
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            flags: essence.iter().flat_map(flags).collect(),
            seed: recipe.seed(),
            data,
            run,
            essence,
        }
    }

    /// A digest of what shapes the output: version, options, seed, data, and the models that it is made from, wherever
    /// these lie.
    ///
    /// # Errors
    /// Bug: JSON has all of it.
    pub fn digest<'a>(&self, models: impl IntoIterator<Item = &'a Model>) -> Result<String> {
        let mut recipe = self.essence.clone();
        recipe.retain(|key, _| !["student", "teacher", "data", "eval"].contains(&key));
        let models: Vec<&str> = models.into_iter().flat_map(|m| m.source().files()).map(SourceFile::sha256).collect();
        // A part of the data is held out without it.
        let scored_apart = self.run.contains_key("eval");
        let all = json!({
            "version": self.version, "recipe": recipe, "seed": self.seed,
            "data": self.data, "scored-apart": scored_apart, "models": models,
        });
        Ok(sha256(json(&all)?.as_bytes()))
    }
}

/// An option of a recipe, as the command line has it.
fn flag(key: &str) -> String {
    format!("--{key}")
}

/// Text without its quotes.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// A number, which JSON has not where it is infinite or none.
fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Pretty JSON with a newline.
///
/// # Errors
/// Bug: what we serialise has no map keys that JSON lacks.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map(|s| s + "\n").map_err(|e| Error::bug(e.to_string()))
}
