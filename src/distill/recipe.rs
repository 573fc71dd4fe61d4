//! The recipe of a training job.

use super::weights::LossWeights;
use crate::{
    given::DataSource,
    options::{ReadOptions, Threads, choices},
    values::{Batch, Count, Filter, Fraction, Matched, NotNegative, Positive, Seed, Time},
};
use clap::Args;
use compress_compiler::words::option;
use compress_runtime::{
    burn::precision::Precision,
    dataset::{Preprocess, formats},
    device::DeviceChoice,
    train::{augment::Augment, optimiser::Method, schedule::Schedule},
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Trains a model: by a teacher, by labels, or both. A job keeps checkpoints, and goes on from the last when it resumes.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Distill {
    /// The ONNX model to train.
    pub student: PathBuf,
    /// The model to learn from; without it, labels are learnt.
    #[arg(long, value_name = "FILE")]
    pub teacher: Option<PathBuf>,
    /// A folder with the answers of the teacher to the data, which `compress answers` found: the teacher is not run while training.
    #[arg(long, value_name = "DIR", requires = "teacher")]
    pub answers: Option<PathBuf>,
    /// Where the trained model goes [default: STUDENT with .trained.onnx].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Data to train on. A fifth of it is held out to score the model unless --eval is given. Inputs that have a default
    /// in the model keep it.
    #[arg(long, value_name = "PATH", help = format!(
        "Data to train on: {}. A fifth of it is held out to score the model unless {} is given. Inputs that have a \
         default in the model keep it",
        formats(),
        option::EVAL.flag()
    ))]
    pub data: Option<DataSource>,
    /// Data to score the model on.
    #[arg(long, value_name = "PATH")]
    pub eval: Option<DataSource>,
    /// How pictures become inputs, as for compress MODEL.
    #[arg(long, value_name = "HOW")]
    pub preprocess: Option<Preprocess>,
    /// The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of 256 words].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text [default: 128].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tokens: Option<Count<1_048_576>>,
    /// The encoder whose outputs the model, a decoder, reads, as for compress MODEL.
    #[arg(long, value_name = "FILE")]
    pub encoder: Option<PathBuf>,
    /// Random changes to pictures: e.g. flip,crop=4,mixup=0.2.
    #[arg(long, value_name = "HOW")]
    pub augment: Option<Augment>,
    /// Epochs [default: 10].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub epochs: Option<Count>,
    /// Samples a batch, or `auto` for the most that fit the memory [default: 64].
    #[arg(long, value_name = "N")]
    pub batch: Option<Batch>,
    /// Batches whose gradients make one step [default: 1].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub accumulate: Option<Count>,
    /// The highest learning rate [default: 0.001 for adamw, 0.05 for sgd, 1 for lars].
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub lr: Option<Positive>,
    /// How the learning rate falls: cosine, constant, or step=EVERY,FACTOR [default: cosine].
    #[arg(long, value_name = "HOW")]
    pub schedule: Option<Schedule>,
    /// The share of the training in which the learning rate rises [default: 0.05].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub warmup: Option<Fraction>,
    /// How gradients change weights: adamw, sgd or lars [default: adamw].
    #[arg(long, value_name = "NAME", value_parser = choices::<Method>())]
    pub optimiser: Option<Method>,
    /// The momentum of sgd and lars [default: 0.9].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub momentum: Option<Fraction>,
    /// Use Nesterov momentum.
    #[arg(long)]
    pub nesterov: bool,
    /// The weight decay [default: 0.01 for adamw, 0.0005 for sgd and lars].
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub weight_decay: Option<NotNegative>,
    /// The largest norm of the gradients, 0 for any [default: 5].
    #[arg(long, value_name = "NORM", allow_hyphen_values = true)]
    pub clip: Option<NotNegative>,
    /// The weights of the parts of the loss.
    #[command(flatten)]
    #[serde(flatten)]
    pub weights: LossWeights,
    /// Label smoothing: the share of each label that goes to all classes alike [default: 0].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub smoothing: Option<Fraction>,
    /// The temperature of the distillation [default: 4; of next tokens 1].
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub temperature: Option<Positive>,
    /// Train this value of the student towards this value of the teacher; may be repeated.
    #[arg(long = "match", value_name = "STUDENT=TEACHER")]
    #[serde(rename = "match")]
    pub matched: Vec<Matched>,
    /// Keep an exponential moving average of the weights with this decay, e.g. 0.999.
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub ema: Option<Fraction>,
    /// Freeze weights with matching names; may be repeated.
    #[arg(long, value_name = "REGEX")]
    pub freeze: Vec<Filter>,
    /// Train updates of this rank in the place of the matrices of MatMul and Gemm, and add them to these at the end (LoRA): less
    /// memory, for models that are too large to be trained whole.
    #[arg(long, value_name = "RANK", allow_hyphen_values = true)]
    pub lora: Option<Count<4096>>,
    /// Start from random weights.
    #[arg(long)]
    pub from_nothing: bool,
    /// Compute cheap operators (normalisation, activations, sums) again in the backward pass, instead of keeping
    /// their results: less memory, more time, the same result.
    #[arg(long)]
    pub recompute: bool,
    /// The float type in which convolutions and products compute: f32, bf16 or f16. Weights, statistics and the loss stay in
    /// f32; f16 scales the loss. On a CPU bf16 is faster where the processor multiplies it (AVX-512 BF16, or BF16 of ARM), and
    /// f16 is slower [default: f32].
    #[arg(long, value_name = "TYPE", value_parser = choices::<Precision>())]
    pub precision: Option<Precision>,
    /// Split each batch into N parts that are trained on in parallel, on threads of their own: faster for small models on a CPU.
    /// Each part normalises by its own statistics [default: 1].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub replicas: Option<Count<4096>>,
    /// Stop after this time, e.g. 90s, 30m, 8h.
    #[arg(long, value_name = "TIME")]
    pub time: Option<Time>,
    /// Stop after N epochs without a better score.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub patience: Option<Count>,
    /// Threads that prepare samples [default: as many as --threads, up to 8].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub workers: Option<Count<1024>>,
    /// Where checkpoints, metrics.jsonl and TensorBoard events go [default: OUT with .job].
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// How often a checkpoint is written [default: 60s].
    #[arg(long, value_name = "TIME")]
    pub save_every: Option<Time>,
    /// Where to train: cpu, cuda, metal, vulkan (with :N for another than the first), or auto.
    #[arg(long)]
    pub device: Option<DeviceChoice>,
    /// Threads on the CPU [default: one a core].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub threads: Option<Threads>,
    /// The seed of every random choice [default: 0].
    #[arg(long, allow_hyphen_values = true)]
    pub seed: Option<Seed>,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
    /// Go on from the last checkpoint, if there is one.
    #[arg(long)]
    #[serde(skip)]
    pub resume: bool,
    /// Overwrite what exists, checkpoints too.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

impl Distill {
    /// Where the trained model goes.
    pub fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.student.with_extension("trained.onnx"))
    }

    /// Where checkpoints and logs go.
    pub fn folder(&self) -> PathBuf {
        self.checkpoint.clone().unwrap_or_else(|| self.output().with_extension("job"))
    }

    /// What of it shapes the result: all but where that goes and what it is made with.
    pub(crate) fn essence(&self) -> Self {
        let (output, checkpoint, save_every, workers, threads, answers) = Default::default();
        Self { output, checkpoint, save_every, workers, threads, answers, ..self.clone() }
    }
}
