//! The flags of a training job, and the recipe that says the same in a file.

use crate::{args::count, numbers, plan};
use clap::Args;
use compress_compiler::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// What a training job is: as flags, and as a recipe in TOML under the same names. Paths are those of the command
/// line also there.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TrainArgs {
    /// The model to learn from; without it, labels are learnt.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<PathBuf>,
    /// Where the trained model goes [default: STUDENT with .trained.onnx].
    #[arg(short, long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
    /// Data to train on: .npz, .npy, IDX, a folder of pictures, or ONNX test_data_set folders. A fifth of it is held
    /// out to score the model unless --eval is given. Inputs that have a default in the model keep it.
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
    /// Data to score the model on.
    #[arg(long, value_name = "PATH")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eval: Option<PathBuf>,
    /// How pictures become inputs, as for compress MODEL.
    #[arg(long, value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preprocess: Option<String>,
    /// Random changes to pictures: e.g. flip,crop=4,mixup=0.2.
    #[arg(long, value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub augment: Option<String>,
    /// Times that every sample is seen [default: 10].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<usize>,
    /// Samples a batch, or `auto` for the most that fit the memory [default: 64].
    #[arg(long, value_name = "N", value_parser = batch)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// Batches whose gradients make one step [default: 1].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<usize>,
    /// The highest learning rate [default: 0.001 for adamw, 0.05 for sgd, 1 for lars].
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = numbers::ratio)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    /// How the learning rate falls: cosine, constant, or step=EVERY,FACTOR [default: cosine].
    #[arg(long, value_name = "HOW")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<String>,
    /// The share of the training in which the learning rate rises [default: 0.05].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true, value_parser = numbers::fraction)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmup: Option<f64>,
    /// How gradients change weights: adamw, sgd or lars [default: adamw].
    #[arg(long, value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimiser: Option<String>,
    /// The share of the last step that stays, for sgd and lars [default: 0.9].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true, value_parser = numbers::fraction)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub momentum: Option<f64>,
    /// Look ahead by the momentum (Nesterov).
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub nesterov: bool,
    /// The pull of weights to zero [default: 0.01 for adamw, 0.0005 for sgd and lars].
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = numbers::not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
    /// The largest norm of the gradients, 0 for any [default: 5].
    #[arg(long, value_name = "NORM", allow_hyphen_values = true, value_parser = numbers::not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// The weight of cross-entropy with the labels [default: 0.1 beside a teacher, else 1].
    #[arg(long, value_name = "WEIGHT", allow_hyphen_values = true, value_parser = numbers::not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<f64>,
    /// What a label gives away to all classes alike [default: 0].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true, value_parser = numbers::fraction)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothing: Option<f64>,
    /// The weight of the divergence from the teacher's classes [default: 0.9 where outputs are classes].
    #[arg(long, value_name = "WEIGHT", allow_hyphen_values = true, value_parser = numbers::not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distill: Option<f64>,
    /// The temperature of both distributions there [default: 4].
    #[arg(long, value_name = "T", allow_hyphen_values = true, value_parser = numbers::ratio)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The weight of the squared error to the teacher's outputs [default: 1 where outputs are no classes].
    #[arg(long, value_name = "WEIGHT", allow_hyphen_values = true, value_parser = numbers::not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mse: Option<f64>,
    /// Bring this value of the student near that of the teacher; may be repeated.
    #[arg(long = "match", value_name = "STUDENT=TEACHER")]
    #[serde(skip_serializing_if = "Vec::is_empty", rename = "match")]
    pub matched: Vec<String>,
    /// The weight of the squared error of --match [default: 1].
    #[arg(long, value_name = "WEIGHT", allow_hyphen_values = true, value_parser = numbers::not_negative)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub features: Option<f64>,
    /// Keep an average of the weights, of which this share stays in a step, e.g. 0.999.
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true, value_parser = numbers::fraction)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<f64>,
    /// Leave weights with matching names as they are; may be repeated.
    #[arg(long, value_name = "REGEX")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Begin with random weights.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub from_nothing: bool,
    /// Compute cheap operators (normalisation, activations, sums) again in the backward pass, instead of keeping what
    /// they made: less memory, more time, the same result.
    #[arg(long)]
    #[serde(skip_serializing_if = "is_false")]
    pub recompute: bool,
    /// In which width convolutions and products compute: f32, bf16 or f16. Weights, statistics and the loss stay in
    /// f32; f16 scales the loss. It does not pay on a CPU [default: f32].
    #[arg(long, value_name = "TYPE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// Parts of each batch that are trained on side by side, on threads of their own: faster for small models on a CPU.
    /// Each part normalises by its own statistics [default: 1].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<usize>,
    /// End after this time, e.g. 90s, 30m, 8h.
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// End after so many epochs without a better score.
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(1_000_000))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<usize>,
    /// Threads that prepare samples [default: as many as --threads, up to 8].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(1024))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<usize>,
    /// Where checkpoints, metrics.jsonl and TensorBoard events go [default: OUT with .job].
    #[arg(long, value_name = "DIR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<PathBuf>,
    /// How often a checkpoint is written [default: 60s].
    #[arg(long, value_name = "TIME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every: Option<String>,
    /// Where to train: cpu, cuda, cuda:N, or auto.
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Threads on the CPU [default: one a core].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(4096))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The seed of every random choice [default: 0].
    #[arg(long, allow_hyphen_values = true, value_parser = numbers::seed)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// How many samples a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Batch {
    /// So many.
    Fixed(usize),
    /// As many as fit the memory.
    Auto(Auto),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// As it says.
    Auto,
}

fn batch(s: &str) -> Result<Batch, &'static str> {
    match s {
        "auto" => Ok(Batch::Auto(Auto::Auto)),
        _ => match s.parse() {
            Ok(n) if (1..=plan::MAX_BATCH as usize).contains(&n) => Ok(Batch::Fixed(n)),
            _ => Err("not a number of samples from 1 to 65536, nor auto"),
        },
    }
}

fn is_false(v: &bool) -> bool {
    !v
}

/// A training job in a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Recipe {
    /// The model to train.
    pub student: PathBuf,
    /// What is done to it.
    #[serde(default)]
    pub train: TrainArgs,
}

impl Recipe {
    /// Reads a recipe.
    ///
    /// # Errors
    /// File when it can't be read; usage when it says what no flag says.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| match e.kind() {
            ErrorKind::InvalidData => Error::usage("is no recipe, which is a text").in_file(path),
            _ => Error::file(format!("cannot be read: {e}")).in_file(path),
        })?;
        let recipe: Self = toml::from_str(&text).map_err(|e| {
            Error::usage(e.to_string().trim_end().to_string())
                .in_file(path)
                .help("keys are the flags of compress distill")
        })?;
        recipe.train.check().map_err(|e| e.in_file(path))?;
        Ok(recipe)
    }

    /// What of the recipe decides the result: all but where that goes and what it is made with.
    ///
    /// # Errors
    /// As for [`Recipe::text`].
    pub fn essence(&self) -> Result<String> {
        let mut essence = self.clone();
        let t = &mut essence.train;
        (t.output, t.checkpoint, t.save_every) = (None, None, None);
        (t.workers, t.threads) = (None, None);
        essence.text()
    }

    /// The recipe as a file.
    ///
    /// # Errors
    /// Bug: all of it can be written.
    pub fn text(&self) -> Result<String> {
        let text = toml::to_string(self).map_err(|e| Error::bug(e.to_string()))?;
        Ok(format!("# Run it with: compress run THIS_FILE\n{text}"))
    }
}

impl TrainArgs {
    /// Whether the numbers are such that the command line would take them.
    fn check(&self) -> Result<()> {
        let shares =
            [("warmup", self.warmup), ("momentum", self.momentum), ("smoothing", self.smoothing), ("ema", self.ema)];
        let weights = [
            ("weight-decay", self.weight_decay),
            ("clip", self.clip),
            ("labels", self.labels),
            ("distill", self.distill),
            ("mse", self.mse),
            ("features", self.features),
        ];
        let positive = [("lr", self.lr), ("temperature", self.temperature)];
        let counts = [
            ("epochs", self.epochs),
            ("accumulate", self.accumulate),
            ("patience", self.patience),
            ("workers", self.workers),
            ("threads", self.threads),
            ("replicas", self.replicas),
            ("batch", if let Some(Batch::Fixed(n)) = self.batch { Some(n) } else { None }),
        ];
        let wrong = |name: &str, what: &str| Err(Error::usage(format!("{name}: {what}")));
        for (name, v) in shares.into_iter().filter_map(|(n, v)| Some((n, v?))) {
            if !(0.0..1.0).contains(&v) {
                return wrong(name, "not a fraction from 0 to below 1");
            }
        }
        for (name, v) in weights.into_iter().filter_map(|(n, v)| Some((n, v?))) {
            if !(v.is_finite() && v >= 0.0) {
                return wrong(name, "not a number from 0 on");
            }
        }
        for (name, v) in positive.into_iter().filter_map(|(n, v)| Some((n, v?))) {
            if !(v.is_finite() && v > 0.0) {
                return wrong(name, "not a positive number");
            }
        }
        for (name, v) in counts.into_iter().filter_map(|(n, v)| Some((n, v?))) {
            if v == 0 || v > 1_000_000 {
                return wrong(name, "not a number from 1 to 1000000");
            }
        }
        Ok(())
    }
}
