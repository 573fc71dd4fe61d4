//! Options that several jobs share. They are fields of recipes; the command has a flag of the same name for each, and their
//! documentation is its help.

use crate::{
    given::{DataSource, Scorer},
    values::{Bytes, Count, Filter, Finite, InputShape, Milliseconds, Positive, Score, Seed, Share},
};
use clap::Args;
use compress_compiler::{
    choice,
    error::{Error, Result},
    onnx,
    words::{Opt, option},
};
use compress_runtime::{
    dataset::{Preprocess, Reading, TEXT, formats, is_text},
    device::{DeviceChoice, FloatProducts},
    metrics::{Wanted, metrics},
    session::{Backend, EngineChoice},
};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How models are read.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ReadOptions {
    /// Read weights from files with several names (hard links), some perhaps outside the model's folder.
    #[arg(long)]
    pub allow_hardlinks: bool,
    /// Keep initializers that are also graph inputs as inputs, for callers to replace. Without this flag they are weights.
    #[arg(long)]
    pub keep_initializer_inputs: bool,
}

impl From<&ReadOptions> for onnx::ReadOptions {
    fn from(o: &ReadOptions) -> Self {
        Self { allow_hardlinks: o.allow_hardlinks, keep_initializer_inputs: o.keep_initializer_inputs }
    }
}

/// Where data comes from.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DataOptions {
    /// Data to calibrate on. A fifth of it is held out for evaluation unless --eval is given.
    #[arg(long, value_name = "PATH", help = format!(
        "Data to calibrate on: {}. A fifth of it is held out for evaluation unless {} is given",
        formats(),
        option::EVAL.flag()
    ))]
    pub data: Option<DataSource>,
    /// Labelled data to measure accuracy on.
    #[arg(long, value_name = "PATH")]
    pub eval: Option<DataSource>,
    /// How pictures become inputs: `imagenet`, or e.g. resize=256,crop=224,scale=255,mean=0.1307,std=0.3081,bgr;
    /// resize and crop are for picture files, as arrays have the model's size.
    #[arg(long, value_name = "HOW")]
    pub preprocess: Option<Preprocess>,
    /// The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of 256 words].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text [default: 128].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tokens: Option<Count<1_048_576>>,
    /// The encoder whose outputs the model, a decoder, reads (as `encoder_hidden_states`). Data has the encoder's inputs, and
    /// `decoder_input_ids`.
    #[arg(long, value_name = "FILE")]
    pub encoder: Option<PathBuf>,
}

impl DataOptions {
    /// Whether there is any data.
    pub fn any(&self) -> bool {
        self.data.is_some() || self.eval.is_some()
    }

    /// All of one set, to measure on; text as these say.
    pub fn of(data: Option<DataSource>, tokenizer: Option<&PathBuf>, tokens: Option<Count<1_048_576>>) -> Self {
        Self { data: data.clone(), eval: data, tokenizer: tokenizer.cloned(), tokens, ..Self::default() }
    }

    pub(crate) fn has_text(&self) -> bool {
        let mut paths = [&self.data, &self.eval].into_iter().flatten().filter_map(DataSource::path);
        paths.any(is_text)
    }

    /// Whether its sets are what it says more about.
    ///
    /// # Errors
    /// Usage when it says how text becomes tokens, and no set is text.
    pub fn check(&self) -> Result<()> {
        let given = [(option::TOKENIZER, self.tokenizer.is_some()), (option::TOKENS, self.tokens.is_some())];
        if let Some((option, _)) = given.iter().find(|(_, given)| *given && !self.has_text()) {
            let error = Error::usage(format!("{option} needs data that is {TEXT}"));
            return Err(error.help(format!("leave {option} out, or give text with {}", option::DATA)));
        }
        Ok(())
    }

    /// The same for the model at `path`: with the tokenizer beside it for text, unless another is named.
    ///
    /// # Errors
    /// As for [`DataOptions::check`].
    pub fn beside(&self, path: &Path) -> Result<Self> {
        self.check()?;
        let beside = path.with_file_name("tokenizer.json");
        let found = || (self.has_text() && beside.is_file()).then_some(beside);
        Ok(Self { tokenizer: self.tokenizer.clone().or_else(found), ..self.clone() })
    }

    /// How it becomes inputs.
    pub fn reading(&self) -> Reading {
        Reading {
            preprocess: self.preprocess.clone(),
            tokenizer: self.tokenizer.clone(),
            tokens: self.tokens.map(|n| n.get()),
        }
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effort {
    /// What some seconds allow.
    #[default]
    Auto,
    /// Everything.
    Full,
    /// Nothing.
    None,
}

choice!(Effort, "check", [
    Auto "auto" "as many samples and layers as fit in about the time of the compression",
    Full "full" "all samples and layers",
    None "none" "nothing",
]);

/// What is measured, and how.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct MeasureOptions {
    /// The metric of accuracy, and perhaps the output that it is computed on.
    #[arg(long, value_name = "METRIC[:OUTPUT]", help = format!(
        "The metric of accuracy, and perhaps the output that it is computed on: {} [default: what suits the outputs]",
        metrics()
    ))]
    pub metric: Option<Wanted>,
    /// Score the models by a program. Its last argument is a folder with before/OUTPUT.npy, after/OUTPUT.npy and labels.npy;
    /// it prints the score after, or the scores before and after. A higher score is better.
    #[arg(long, value_name = "COMMAND")]
    pub score: Option<Scorer>,
    /// Sizes of an input, for made-up samples and for timing, e.g. image=1x3x320x320; may be repeated.
    #[arg(long, value_name = "NAME=SIZES")]
    pub shape: Vec<InputShape>,
    /// Time the original as it is. Without this flag it is simplified first, as deployment engines do when they load it.
    #[arg(long)]
    pub as_is: bool,
    /// How much is measured.
    #[arg(long, value_name = "HOW", default_value_t, value_parser = choices::<Effort>())]
    pub check: Effort,
}

/// What a result has to keep.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct GateOptions {
    /// Fail (exit 9) when accuracy drops by more, e.g. 1%. Without labels: when the results of more samples change.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true)]
    pub max_drop: Option<Share>,
    /// Fail (exit 9) when the worst output's signal to noise is lower, in decibels.
    #[arg(long, value_name = "DB", allow_hyphen_values = true)]
    pub min_sqnr: Option<Finite>,
    /// Fail (exit 9) when the metric, or what --score prints, is lower.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub min_score: Option<Score>,
    /// Fail (exit 9) when a metric of which less is better (perplexity, kl, max-error) is higher.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub max_score: Option<Score>,
    /// Fail (exit 9) when the result is measurably less than this many times as fast on our runtime.
    #[arg(long, value_name = "RATIO", allow_hyphen_values = true)]
    pub min_speedup: Option<Positive>,
    /// Fail (exit 9) when a run of the result takes longer on our runtime, e.g. 5ms.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub max_latency: Option<Milliseconds>,
    /// Fail (exit 9) when weights and activations of the result take more memory, e.g. 50MB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub max_memory: Option<Bytes>,
    /// Fail (exit 9) when the file is larger, e.g. 30MB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub max_size: Option<Bytes>,
    /// Allow gates on accuracy without data, on made-up inputs.
    #[arg(long)]
    pub allow_synthetic: bool,
    /// Fail (exit 9) when something that was asked for was not done, such as INT8 of a model without layers for it.
    #[arg(long)]
    pub strict: bool,
}

impl GateOptions {
    /// Whether there is any gate.
    pub fn any(&self) -> bool {
        self.measured().is_some() || self.max_size.is_some()
    }

    /// Whether a gate looks at the outputs.
    pub fn of_accuracy(&self) -> bool {
        [self.max_drop.is_some(), self.min_sqnr.is_some(), self.min_score.is_some(), self.max_score.is_some()]
            .contains(&true)
    }

    /// Whether a gate looks at the time of a run.
    pub fn of_speed(&self) -> bool {
        self.min_speedup.is_some() || self.max_latency.is_some()
    }

    /// A gate that is given and looks at what is measured.
    pub fn measured(&self) -> Option<Opt> {
        let gates = [
            (option::MAX_DROP, self.max_drop.is_some()),
            (option::MIN_SQNR, self.min_sqnr.is_some()),
            (option::MIN_SCORE, self.min_score.is_some()),
            (option::MAX_SCORE, self.max_score.is_some()),
            (option::MIN_SPEEDUP, self.min_speedup.is_some()),
            (option::MAX_LATENCY, self.max_latency.is_some()),
            (option::MAX_MEMORY, self.max_memory.is_some()),
        ];
        gates.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }
}

/// Where models run.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct DeviceOptions {
    /// Samples a batch when timing.
    #[arg(long, value_name = "N", default_value_t = Self::default().batch, allow_hyphen_values = true)]
    pub batch: Count<65_536>,
    /// Where to run: cpu, cuda, metal, vulkan (with :N for another than the first), or auto. `compress devices` lists them.
    #[arg(long, default_value_t)]
    pub device: DeviceChoice,
    /// How a GPU multiplies floats: f32; tf32, which keeps 11 of 24 bits of what weights are multiplied by; or bf16 or f16, in which
    /// values stay between products too. All but f32 are for NVIDIA's tensor cores. Training has types of its own.
    #[arg(long, value_name = "TYPE", default_value_t, value_parser = choices::<FloatProducts>())]
    pub precision: FloatProducts,
    /// What runs models: burn, or our kernels for portable, avx2, avxvnni, avx512vnni or amx, on 64-bit ARM neon, dotprod or
    /// i8mm; auto is the best. Or onnxruntime, if it is installed, also with a provider: onnxruntime:openvino, :cuda or :tensorrt.
    #[arg(long, default_value_t)]
    pub engine: EngineChoice,
    /// The library of ONNX Runtime, or the folder that it is in [default: that of the active Python environment].
    #[arg(long, value_name = "PATH")]
    pub ort: Option<PathBuf>,
    /// Threads on the CPU [default: one a core].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub threads: Option<Threads>,
    /// The seed of every random choice.
    #[arg(long, default_value_t, allow_hyphen_values = true)]
    pub seed: Seed,
}

/// A number of threads: no machine has more cores.
pub type Threads = Count<4096>;

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            // 1 is within the bounds.
            batch: Count::try_from(1).expect("1 sample"),
            device: DeviceChoice::Auto,
            precision: FloatProducts::F32,
            engine: EngineChoice::Auto,
            ort: None,
            threads: None,
            seed: Seed::default(),
        }
    }
}

impl DeviceOptions {
    /// The device, open.
    ///
    /// # Errors
    /// Device when it is not there; usage for an engine that is not; unsupported for a precision that the device doesn't have.
    pub(crate) fn open(&self) -> Result<Backend> {
        let mut backend = Backend::open(self.device, self.engine, self.ort.as_deref())?;
        backend.device = backend.device.with_products(self.precision)?;
        Ok(backend)
    }
}

/// The stack of each thread, that of a main thread: graphs within graphs take one frame each.
const STACK: usize = 8 << 20;

/// Does `work` with a pool of `threads` threads, if that many are asked for; `inside` says that a thread of the pool does it,
/// so that short steps are not handed over to others. Where the threads of the process are as asked, these do it.
///
/// # Errors
/// Limit when the threads can't be started; those of the work.
pub(crate) fn within<T: Send>(
    threads: Option<Threads>,
    inside: bool,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let here = rayon::current_num_threads();
    let wanted = threads.map_or(here, Threads::get);
    if wanted == here && (!inside || rayon::current_thread_index().is_some()) {
        return work();
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(wanted).stack_size(STACK).build();
    pool.map_err(|e| Error::limit(format!("the threads could not be started: {e}")))?.install(work)
}

/// The expressions of some filters.
pub(crate) fn expressions(filters: &[Filter]) -> Vec<regex::Regex> {
    filters.iter().map(|f| f.get().clone()).collect()
}

/// A parser of the command line for one of a few names.
pub(crate) fn choices<T: compress_compiler::choice::Choice + Send + Sync>()
-> impl clap::builder::TypedValueParser<Value = T> {
    use clap::builder::TypedValueParser;
    let value = |one: &T| clap::builder::PossibleValue::new(one.name_of()).help(one.means());
    clap::builder::PossibleValuesParser::new(T::ALL.iter().map(value)).try_map(|name| T::named(&name))
}
