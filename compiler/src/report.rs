//! The report of a run: `report.json`, schema 1.

use crate::pass::{PassReport, Trained};
use serde::Serialize;

/// Everything a run found out. Fields are only ever added within a schema.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The version of this layout.
    pub schema: u32,
    /// The model that came in.
    pub input: FileFacts,
    /// The model that went out; absent after a dry run and in `check`.
    pub output: Option<FileFacts>,
    /// What each pass did, in order.
    pub passes: Vec<PassReport>,
    /// How much the outputs change when one layer alone is pruned, where that was asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Sensitivity>,
    /// What the change cost, measured.
    pub accuracy: Option<Accuracy>,
    /// What the change gained on our runtime, measured.
    pub speed: Option<Speed>,
    /// The layers of the output.
    pub layers: Vec<LayerFacts>,
    /// The gates that were asked for.
    pub gates: Vec<Gate>,
    /// Sentences that a user should read.
    pub warnings: Vec<String>,
    /// What is needed to run it again.
    pub recipe: Recipe,
}

/// A model file in numbers.
#[derive(Debug, Clone, Default, Serialize)]
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
#[derive(Debug, Clone, Serialize)]
pub struct DataFacts {
    /// Where it is.
    pub path: String,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
    /// Its size.
    pub bytes: usize,
}

/// How the outputs before and after compare.
#[derive(Debug, Clone, Serialize)]
pub struct Accuracy {
    /// `top1` with labels, else `agreement` of the two argmaxes, else `sqnr`.
    pub metric: &'static str,
    /// Samples measured on.
    pub samples: usize,
    /// Whether the samples are made up, so that only the divergence means something.
    pub synthetic: bool,
    /// The metric of the original.
    pub before: Option<f64>,
    /// The metric of the output.
    pub after: Option<f64>,
    /// `before - after`.
    pub drop: Option<f64>,
    /// The share of samples on which both have the same argmax.
    pub agreement: Option<f64>,
    /// Signal to quantisation noise of the outputs, in decibels; absent when they are equal, and when the original's are
    /// no numbers or zero throughout.
    pub sqnr_db: Option<f64>,
    /// Whether all outputs are equal, and numbers.
    pub equal: bool,
}

/// Latency of one batch, interleaved.
#[derive(Debug, Clone, Serialize)]
pub struct Speed {
    /// Where it ran.
    pub device: String,
    /// Which executor ran it.
    pub engine: String,
    /// Threads the executor may use.
    pub threads: usize,
    /// Samples a batch.
    pub batch: usize,
    /// Median of the original, in milliseconds.
    pub before_ms: f64,
    /// Median of the output, in milliseconds.
    pub after_ms: f64,
    /// `before_ms / after_ms`.
    pub speedup: f64,
    /// The 90th percentile of the original and of the output, in milliseconds.
    pub p90: [f64; 2],
}

/// One layer of the output.
#[derive(Debug, Clone, Serialize)]
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
}

/// What pruning one layer alone does to the outputs.
#[derive(Debug, Clone, Serialize)]
pub struct Sensitivity {
    /// The layer, or the first of those that share the weight.
    pub node: String,
    /// Elements of its weight.
    pub weights: usize,
    /// What happens as more of them go.
    pub pruned: Vec<PrunedAlone>,
}

/// A layer with a fraction of its weights zero, all others as they were.
#[derive(Debug, Clone, Serialize)]
pub struct PrunedAlone {
    /// The fraction, of the smallest magnitude.
    pub fraction: f64,
    /// The accuracy of the model, with labels.
    pub accuracy: Option<f64>,
    /// The share of samples on which it has the same argmax as before.
    pub agreement: Option<f64>,
    /// Signal to noise of its outputs, in decibels; absent when they are equal.
    pub sqnr_db: Option<f64>,
}

/// The report of `--sweep`: what each fraction cost and gained.
#[derive(Debug, Clone, Serialize)]
pub struct SweepReport {
    /// The version of this layout.
    pub schema: u32,
    /// The model that came in.
    pub input: FileFacts,
    /// As in a report of one model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sensitivity: Vec<Sensitivity>,
    /// The models that went out, by rising fraction.
    pub sweep: Vec<SweepPoint>,
    /// The plot of the figures, an SVG; absent where there was nothing to plot.
    pub plot: Option<String>,
    /// Sentences that are in the report of each.
    pub warnings: Vec<String>,
    /// What is needed to run it again.
    pub recipe: Recipe,
}

/// One model of a sweep.
#[derive(Debug, Clone, Serialize)]
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
    /// Whether it passed all of them.
    pub passed: bool,
    /// Trainings that were part of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub trained: Vec<Trained>,
    /// Sentences that are in its report, and not in that of every other.
    pub warnings: Vec<String>,
}

/// A gate and what became of it.
#[derive(Debug, Clone, Serialize)]
pub struct Gate {
    /// The flag.
    pub name: &'static str,
    /// What was asked.
    pub limit: f64,
    /// What was measured.
    pub value: f64,
    /// Whether it holds.
    pub passed: bool,
}

/// So many of something, for people: `1 sample`, `2 samples`.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// What is needed to run it again.
#[derive(Debug, Clone, Serialize)]
pub struct Recipe {
    /// The version of this program.
    pub version: &'static str,
    /// The passes and options that shape the output, as flags.
    pub flags: Vec<String>,
    /// The seed of every random choice.
    pub seed: u64,
    /// Which data was calibrated on: a digest, or how it was made up.
    pub data: Option<String>,
}
