//! The command line, as clap sees it. `plan.rs` turns it into decisions.
//!
//! Numbers may begin with a hyphen: a negative one is then refused for what it is, not as an unknown flag.

use crate::{
    numbers,
    plan::{MAX_BATCH, MAX_EPOCHS},
    train_args::TrainArgs,
};
use clap::{Args, Parser, Subcommand, ValueEnum, builder::RangedI64ValueParser};
use compress_passes::prune::mask::Pattern;
use compress_runtime::metrics::Wanted;
use std::path::PathBuf;

/// A model compression compiler: ONNX in, a smaller and faster ONNX out, and a report of what that cost.
#[derive(Parser)]
#[command(
    version,
    after_help = passes_help(),
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    override_usage = "compress MODEL [-o OUT] [--int8] [--prune F] [--data PATH] ...\n       compress inspect|check|bench MODEL ...\n       compress distill STUDENT [--teacher T] --data D ...\n       compress run RECIPE.toml"
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub compress: CompressArgs,
}

#[derive(Subcommand)]
pub enum Command {
    /// Show what a model is made of: inputs, outputs, operators, layers.
    Inspect(InspectArgs),
    /// Compare a model with the original it came from, and gate on the result.
    Check(Box<CheckArgs>),
    /// Time a model on our runtime.
    Bench(BenchArgs),
    /// Train a model: by a teacher, by labels, or both.
    Distill(Box<DistillArgs>),
    /// Run a training job as a recipe says.
    Run(RunRecipeArgs),
}

#[derive(Args)]
pub struct DistillArgs {
    /// The ONNX model to train.
    pub student: PathBuf,
    #[command(flatten)]
    pub train: TrainArgs,
    /// Write what these flags say into a file for `compress run`.
    #[arg(long, value_name = "FILE")]
    pub save_recipe: Option<PathBuf>,
    #[command(flatten)]
    pub job: JobArgs,
}

#[derive(Args)]
pub struct RunRecipeArgs {
    /// The recipe, as --save-recipe writes it.
    pub recipe: PathBuf,
    #[command(flatten)]
    pub job: JobArgs,
}

/// How a job is run, which is not part of what it does.
#[derive(Args, Clone)]
pub struct JobArgs {
    /// Go on from the last checkpoint, if there is one.
    #[arg(long)]
    pub resume: bool,
    /// Overwrite what exists, checkpoints too.
    #[arg(long)]
    pub force: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Fail (exit 9) when no epoch is better than the model that the job began with.
    #[arg(long)]
    pub strict: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Args, Clone)]
pub struct CompressArgs {
    /// The ONNX model to compress.
    #[arg(required = true)]
    pub model: Option<PathBuf>,
    /// Where the result goes, - for standard output [default: MODEL with .compressed.onnx].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Quantise to INT8: static, QDQ, calibrated on --data.
    #[arg(long)]
    pub int8: bool,
    /// Train the quantised model, so that it gets used to being rounded (implies --int8; needs --data).
    #[arg(long)]
    pub qat: bool,
    /// Bits of a quantised weight: 8, or 4, of which each is kept in 8.
    #[arg(long, value_name = "BITS", default_value = "8", value_parser = ["4", "8"])]
    pub weight_bits: String,
    /// Zero this fraction of the weights of all layers together: those that the others, which are solved for, can best
    /// make up for, or the smallest where nothing is known of inputs. With --data what stays is trained then, for the model
    /// to stay as good as it was.
    #[arg(long, value_name = "FRACTION", allow_hyphen_values = true, value_parser = numbers::fraction)]
    pub prune: Option<f64>,
    /// Zero N of every M weights along the input channels, e.g. 2:4, which sparse tensor cores are made for. With --data
    /// what stays is trained then.
    #[arg(long, value_name = "N:M", conflicts_with = "prune", value_parser = str::parse::<Pattern>)]
    pub prune_pattern: Option<Pattern>,
    /// What decides which weights go: `reconstruct`, how well the others can make up for them on data, which they then
    /// do; their `magnitude`; or, under training, `taylor`, how much the loss feels them. Under training the last two go
    /// little by little [default: reconstruct]. `magnitude` also leaves the layers that read what --prune-channels keeps
    /// as they are.
    #[arg(long, value_name = "BY", value_parser = ["magnitude", "taylor", "reconstruct"])]
    pub prune_by: Option<String>,
    /// Whether the fraction is one of all weights together, or the same of each layer: `global` or `layer`.
    #[arg(long, value_name = "OF", default_value = "global", conflicts_with = "prune_pattern",
        value_parser = ["global", "layer"])]
    pub prune_budget: String,
    /// Prune by each of these fractions in turn, e.g. 0.5,0.7,0.9: a model and a report each, called after the fraction,
    /// and a table and a plot of all. Gates hold for each; it fails (exit 9) when no model passes them.
    #[arg(long, value_name = "FRACTIONS", value_delimiter = ',', value_parser = numbers::fraction,
        conflicts_with_all = ["prune", "prune_pattern", "bisect", "dump_ir"])]
    pub sweep: Vec<f64>,
    /// Remove channels, and with them this fraction of the multiply-accumulates. With --data the layers that read the
    /// others are solved for, and what stays is trained then.
    #[arg(long, value_name = "FRACTION", allow_hyphen_values = true, value_parser = numbers::fraction)]
    pub prune_channels: Option<f64>,
    /// What the fraction of --prune-channels is one of: `macs`, `parameters`, or the `latency` measured on this machine.
    #[arg(long, value_name = "OF", default_value = "macs", value_parser = ["macs", "parameters", "latency"])]
    pub channels_budget: String,
    /// Which channels go first: those that the layers reading them can best do without on data (`reconstruct`); whose
    /// weights have the smallest `l1` or `l2` norm, or are nearest to those of all others (`median`); which
    /// BatchNormalization scales least (`scale`); whose values are smallest on data (`activation`); or whose weights the
    /// loss on labels feels least (`taylor`) [default: reconstruct; l2 without --data, unless BatchNormalization tells which
    /// inputs to make up].
    #[arg(long, value_name = "BY",
        value_parser = ["reconstruct", "l1", "l2", "median", "scale", "activation", "taylor"])]
    pub channels_by: Option<String>,
    /// Remove channels in so many cuts, each of the same share of what is left, with training between them (needs --data).
    #[arg(long, value_name = "N", default_value = "1", value_parser = count(64))]
    pub channels_cuts: usize,
    /// The channels that stay are a multiple of this, which kernels like [default: 16, or a quarter of a small
    /// layer unless the target is onnxruntime].
    #[arg(long, value_name = "N", value_parser = count(1024))]
    pub round_channels: Option<usize>,
    /// Remove channels whether or not that makes the model faster on this machine, which is measured on our runtime
    /// otherwise, whatever the target is.
    #[arg(long)]
    pub cut_anyway: bool,
    /// Show how much the outputs change when one layer alone is pruned (needs --data); with --dry-run, only that.
    #[arg(long)]
    pub sensitivity: bool,
    /// Prune the first and the last layers too.
    #[arg(long)]
    pub prune_ends: bool,
    /// Times that training sees every sample, 0 for no training [default: by the size of model and data, at most
    /// some minutes].
    #[arg(long, value_name = "N", allow_hyphen_values = true,
        value_parser = RangedI64ValueParser::<usize>::new().range(0..=MAX_EPOCHS))]
    pub epochs: Option<usize>,
    /// The highest learning rate of training [default: 0.001]; --qat takes a tenth of it.
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = numbers::ratio)]
    pub lr: Option<f64>,
    /// The model that training learns from [default: MODEL itself].
    #[arg(long, value_name = "FILE")]
    pub teacher: Option<PathBuf>,
    /// Leave alone the layers whose node or weight name matches; may be repeated.
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<String>,
    /// What has to run the result: `portable`, or `onnxruntime` for newer operators that it has kernels for.
    #[arg(long, value_name = "RUNTIME", default_value = "portable")]
    pub target: String,
    /// How activation ranges are chosen: minmax, percentile or mse [default: minmax].
    #[arg(long, value_name = "HOW")]
    pub calibration: Option<String>,
    /// How many samples of --data are calibrated on [default: 256; to prune 1024, or fewer for a
    /// large model].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(u32::MAX))]
    pub calibration_samples: Option<usize>,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub gates: GateArgs,
    #[command(flatten)]
    pub measures: MeasureArgs,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub read: ReadArgs,
    /// Write the weights into a file of their own beside the result; models over 1.9 GB always are.
    #[arg(long)]
    pub external_data: bool,
    /// Leave out documentation and metadata of nodes, such as the stack traces of exporters; that of the model stays.
    #[arg(long)]
    pub strip: bool,
    /// Don't run the models to measure accuracy and speed (--check none).
    #[arg(long, conflicts_with = "check")]
    pub no_check: bool,
    /// Overwrite what exists.
    #[arg(long)]
    pub force: bool,
    /// Say what would be done, and do nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// End the pipeline after this pass.
    #[arg(long, value_name = "PASS")]
    pub stop_after: Option<String>,
    /// Compress nothing: run the graph before and after every pass, and name the change that alters its outputs.
    #[arg(long)]
    pub bisect: bool,
    /// Write the graph as text after every pass into this folder.
    #[arg(long, value_name = "DIR")]
    pub dump_ir: Option<PathBuf>,
}

#[derive(Args, Clone)]
pub struct ReadArgs {
    /// Read weights from files with several names (hard links), some perhaps outside the model's folder.
    #[arg(long)]
    pub allow_hardlinks: bool,
    /// Leave initializers that are also graph inputs to be replaced by callers: otherwise they are weights.
    #[arg(long)]
    pub keep_initializer_inputs: bool,
}

impl From<ReadArgs> for compress_compiler::onnx::ReadOptions {
    fn from(a: ReadArgs) -> Self {
        Self { allow_hardlinks: a.allow_hardlinks, keep_initializer_inputs: a.keep_initializer_inputs }
    }
}

#[derive(Args, Clone)]
pub struct DataArgs {
    /// Data to calibrate on: .npz, .npy, IDX (.gz too), a folder of pictures, or ONNX test_data_set folders.
    /// A fifth of it is held out for evaluation unless --eval is given.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Labelled data to measure accuracy on.
    #[arg(long, value_name = "PATH")]
    pub eval: Option<PathBuf>,
    /// How pictures become inputs: `imagenet`, or e.g. resize=256,crop=224,scale=255,mean=0.1307,std=0.3081,bgr;
    /// resize and crop are for picture files, as arrays have the model's size.
    #[arg(long, value_name = "HOW")]
    pub preprocess: Option<String>,
}

/// What is measured, and how.
#[derive(Args, Clone)]
pub struct MeasureArgs {
    /// What accuracy is measured as, and perhaps of which output: top1, top5, agreement, cosine, recall@10, iou, text, sqnr
    /// or max-error [default: what suits the outputs].
    #[arg(long, value_name = "METRIC[:OUTPUT]", value_parser = str::parse::<Wanted>)]
    pub metric: Option<Wanted>,
    /// Measure by a program: it is given a folder with before/OUTPUT.npy, after/OUTPUT.npy and labels.npy, and prints the
    /// score of the model after, or those before and after. More is better.
    #[arg(long, value_name = "COMMAND")]
    pub score: Option<String>,
    /// Sizes of an input, for made-up samples and for timing, e.g. image=1x3x320x320; may be repeated.
    #[arg(long, value_name = "NAME=SIZES", value_parser = str::parse::<InputShape>)]
    pub shape: Vec<InputShape>,
    /// Time the original as its file has it: otherwise it is simplified first, as deployment engines do when they load it.
    #[arg(long)]
    pub as_is: bool,
    /// How much is measured: `auto`, for about as long as the work itself takes; `full`, all samples and layers; `none`.
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub check: Effort,
}

/// How much is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Effort {
    /// What some seconds allow.
    Auto,
    /// Everything.
    Full,
    /// Nothing.
    None,
}

/// The sizes of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputShape {
    pub name: String,
    pub sizes: Vec<usize>,
}

impl std::str::FromStr for InputShape {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (name, sizes) = s.rsplit_once(['=', ':']).ok_or("not an input and its sizes, such as image=1x3x224x224")?;
        let sizes = sizes.split(['x', ',']).map(|n| n.trim().parse().ok().filter(|n| *n > 0));
        let sizes = sizes.collect::<Option<Vec<usize>>>().ok_or("sizes are whole numbers, such as 1x3x224x224")?;
        Ok(Self { name: name.into(), sizes })
    }
}

#[derive(Args, Clone, Default)]
pub struct GateArgs {
    /// Fail (exit 9) when accuracy drops by more, e.g. 1%; without labels, when more samples change their class, their text,
    /// or whatever is measured.
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = numbers::percent)]
    pub max_drop: Option<f64>,
    /// Fail (exit 9) when the worst output's signal to noise is lower, in decibels.
    #[arg(long, value_name = "DB", allow_hyphen_values = true, value_parser = numbers::finite)]
    pub min_sqnr: Option<f64>,
    /// Fail (exit 9) when the metric, or what --score prints, is lower.
    #[arg(long, value_name = "X", allow_hyphen_values = true, value_parser = numbers::score)]
    pub min_score: Option<f64>,
    /// Fail (exit 9) when the result is surely not this many times as fast on our runtime.
    #[arg(long, value_name = "RATIO", allow_hyphen_values = true, value_parser = numbers::ratio)]
    pub min_speedup: Option<f64>,
    /// Fail (exit 9) when a run of the result takes longer on our runtime, e.g. 5ms.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = numbers::milliseconds)]
    pub max_latency: Option<f64>,
    /// Fail (exit 9) when weights and activations of the result take more memory, e.g. 50MB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = numbers::bytes)]
    pub max_memory: Option<f64>,
    /// Fail (exit 9) when the file is larger, e.g. 30MB.
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = numbers::bytes)]
    pub max_size: Option<f64>,
    /// Gate on made-up inputs too: otherwise gates on accuracy need data.
    #[arg(long)]
    pub allow_synthetic: bool,
    /// Fail (exit 9) when something that was asked for was not done, such as INT8 of a model without layers for it.
    #[arg(long)]
    pub strict: bool,
}

impl GateArgs {
    /// Whether there is any gate.
    pub fn any(&self) -> bool {
        self.measured().is_some() || self.max_size.is_some()
    }

    /// A gate that is given and looks at what is measured.
    pub fn measured(&self) -> Option<&'static str> {
        let gates = [
            ("--max-drop", self.max_drop),
            ("--min-sqnr", self.min_sqnr),
            ("--min-score", self.min_score),
            ("--min-speedup", self.min_speedup),
            ("--max-latency", self.max_latency),
            ("--max-memory", self.max_memory),
        ];
        gates.into_iter().find(|(_, given)| given.is_some()).map(|(flag, _)| flag)
    }
}

#[derive(Args, Clone)]
pub struct RunArgs {
    #[command(flatten)]
    pub device: DeviceArgs,
    /// Write report.json into this folder [default: beside the result].
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// Print errors only.
    #[arg(short, long)]
    pub quiet: bool,
}

#[derive(Args, Clone)]
pub struct DeviceArgs {
    /// Samples a batch when timing.
    #[arg(long, value_name = "N", default_value_t = 1, allow_hyphen_values = true, value_parser = count(MAX_BATCH))]
    pub batch: usize,
    /// Where to run: cpu, cuda, cuda:N, or auto.
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// What runs on the CPU: burn, or our kernels for portable, avx2, avxvnni or avx512vnni; auto is the best.
    #[arg(long, default_value = "auto")]
    pub engine: String,
    /// Threads on the CPU [default: one a core].
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = count(MAX_THREADS))]
    pub threads: Option<usize>,
    /// The seed of every random choice.
    #[arg(long, default_value_t = 0, allow_hyphen_values = true, value_parser = numbers::seed)]
    pub seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct InspectArgs {
    /// The ONNX model.
    pub model: PathBuf,
    /// Print the graph as text.
    #[arg(long)]
    pub ir: bool,
    /// Print which channels can only be pruned together, and why some can't be, of the simplified model.
    #[arg(long, conflicts_with = "ir")]
    pub groups: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "ir")]
    pub json: bool,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Args)]
pub struct CheckArgs {
    /// The ONNX model to check.
    pub model: PathBuf,
    /// The model it came from.
    #[arg(long, value_name = "FILE")]
    pub against: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub gates: GateArgs,
    #[command(flatten)]
    pub measures: MeasureArgs,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub read: ReadArgs,
}

#[derive(Args)]
pub struct BenchArgs {
    /// The ONNX model.
    pub model: PathBuf,
    /// Data to run on, as for compressing; made up if there is none.
    #[arg(long, value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Sizes of an input, e.g. image=1x3x320x320; may be repeated.
    #[arg(long, value_name = "NAME=SIZES", value_parser = str::parse::<InputShape>)]
    pub shape: Vec<InputShape>,
    /// Timed runs.
    #[arg(long, value_name = "N", default_value_t = 50, allow_hyphen_values = true, value_parser = count(u32::MAX))]
    pub runs: usize,
    /// Run on this device too, and compare: outputs and time.
    #[arg(long, value_name = "DEVICE")]
    pub reference: Option<String>,
    #[command(flatten)]
    pub on: DeviceArgs,
    #[command(flatten)]
    pub read: ReadArgs,
}

/// More threads than any machine has cores.
const MAX_THREADS: u32 = 4096;

/// A whole number from 1 to `most`.
pub fn count(most: u32) -> RangedI64ValueParser<usize> {
    RangedI64ValueParser::new().range(1..=most.into())
}

fn passes_help() -> String {
    let mut text = String::from("Passes, in order:\n");
    for stage in compress_passes::STAGES {
        text += &format!("  {:<9} {}\n", stage.name, stage.does);
    }
    text += "\nExit codes: 0 fine, 1 our bug, 2 usage, 3 malformed model, 4 a limit, 5 unsupported,\n\
             6 file access, 7 data, 8 device, 9 a gate failed (the model is still written), 130 interrupted.";
    text
}
