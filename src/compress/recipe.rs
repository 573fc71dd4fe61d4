//! The recipe of the main job.

use crate::{
    options::{DataOptions, DeviceOptions, GateOptions, MeasureOptions, ReadOptions, choices},
    values::{Count, Filter, Finite, FormRule, Fraction, Int8, Milliseconds, Positive, Whole},
};
use clap::Args;
use compress_passes::{
    PruneBudget,
    prune::{mask::Pattern, recover::WeightSaliency, score::ChannelSaliency, structured::ChannelBudget},
    quant::{
        calibrators::Calibration,
        reduce_range::ReduceRange,
        scheme::WeightBits,
        search::Effort,
        weight_only::{Block, WeightFormat},
    },
    target::Target,
};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Compresses a model: prunes and quantises it, trains it to win accuracy back, measures that, and writes the result and
/// its report.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
// Where the command has it beside subcommands, it is there when the model is.
#[group(args = ["model"])]
pub struct Compress {
    /// The ONNX model to compress.
    #[arg(required = true)]
    pub model: PathBuf,
    /// Where the result goes, - for standard output [default: MODEL with .compressed.onnx].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Quantise to INT8: static, QDQ, calibrated on --data; or dynamic, by the range of each run [default way: static].
    #[arg(long, value_name = "WAY", num_args = 0..=1, require_equals = true, default_missing_value = "static",
        value_parser = choices::<Int8>())]
    #[serde(with = "crate::values::int8")]
    pub int8: Option<Int8>,
    /// Train the quantised model, so that its weights adapt to rounding (implies --int8 unless there is --weights; needs --data).
    #[arg(long)]
    pub qat: bool,
    /// Bits of a quantised weight.
    #[arg(long, value_name = "BITS", default_value_t, value_parser = choices::<WeightBits>())]
    pub weight_bits: WeightBits,
    /// Store the weights of products in 4 or 8 bits, activations stay floats: smaller files, and as fast as memory where few rows
    /// are multiplied. With --data, codes are rounded by what their layers read (GPTQ).
    #[arg(long, value_name = "FORMAT", conflicts_with = "int8", value_parser = choices::<WeightFormat>())]
    pub weights: Option<WeightFormat>,
    /// Inputs of a product whose weights share a scale, for --weights [default: 32].
    #[arg(long, value_name = "N", value_parser = choices::<Block>())]
    pub block: Option<Block>,
    /// What single layers become, whatever --int8 or --weights make of the others: the layers whose node or weight has a matching
    /// name get this form, which is float, int8, weights-int8 or weights-int4. May be repeated; the first that matches holds.
    #[arg(long, value_name = "REGEX=FORM")]
    pub layer: Vec<FormRule>,
    /// Set this fraction of the weights to zero. With --data, the other weights are adjusted so that the output of each layer
    /// changes least, and then the model is trained. Without data, layers are adjusted on made-up inputs, or the smallest
    /// weights are removed where those are noise.
    #[arg(long, value_name = "FRACTION", allow_hyphen_values = true)]
    pub prune: Option<Fraction>,
    /// Set N of every M weights along the input channels to zero, e.g. 2:4 for sparse tensor cores. With --data, the other
    /// weights are adjusted and trained.
    #[arg(long, value_name = "N:M", conflicts_with = "prune")]
    pub prune_pattern: Option<Pattern>,
    /// How the weights are chosen [default: reconstruct]. With training, `magnitude` and `taylor` prune step by step. With
    /// --prune-channels, `magnitude` leaves the weights of the layers that read the remaining channels unadjusted.
    #[arg(long, value_name = "BY", value_parser = choices::<WeightSaliency>())]
    pub prune_by: Option<WeightSaliency>,
    /// Which weights the fraction of --prune counts.
    #[arg(long, value_name = "OF", default_value_t, conflicts_with = "prune_pattern", value_parser = choices::<PruneBudget>())]
    pub prune_budget: PruneBudget,
    /// Keep N layers of a decoder with a cache, the first one, the last one and others between, and leave the rest out. With --data
    /// the model is trained then.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub keep_layers: Option<Count<1024>>,
    /// Remove channels, and with them this fraction of the multiply-accumulates. With --data, the layers that read the
    /// remaining channels are adjusted, and then the model is trained.
    #[arg(long, value_name = "FRACTION", allow_hyphen_values = true)]
    pub prune_channels: Option<Fraction>,
    /// What the fraction of --prune-channels counts.
    #[arg(long, value_name = "OF", default_value_t, value_parser = choices::<ChannelBudget>())]
    pub channels_budget: ChannelBudget,
    /// The saliency of a channel: the least salient are removed first [default: reconstruct; l2 without --data
    /// where made-up inputs are noise].
    #[arg(long, value_name = "BY", value_parser = choices::<ChannelSaliency>())]
    pub channels_by: Option<ChannelSaliency>,
    /// Remove channels in N cuts, with training between them (needs --data). Each cut removes the same share of the
    /// remaining multiply-accumulates, or of what --channels-budget names [default: 1].
    #[arg(long, value_name = "N")]
    pub channels_cuts: Option<Count<64>>,
    /// Replace weights of products and 1x1 convolutions by two thinner ones (low rank), so that this fraction of the
    /// multiply-accumulates goes. With --data, what the layers read decides on ranks and weights, and then the model is trained.
    #[arg(long, value_name = "FRACTION", allow_hyphen_values = true)]
    pub low_rank: Option<Fraction>,
    /// Keep a multiple of N channels, for which kernels are faster [default: 16, or a quarter of a small layer unless the target
    /// is onnxruntime]; with --low-rank, ranks that are multiples of N [default: 16].
    #[arg(long, value_name = "N")]
    pub round_channels: Option<Count<1024>>,
    /// Remove channels, or make thinner weights, even where that does not make the model faster on this machine. Without this flag
    /// our runtime measures it, whatever the target is.
    #[arg(long)]
    pub cut_anyway: bool,
    /// Prune the first and the last layers too.
    #[arg(long)]
    pub prune_ends: bool,
    /// Epochs of training, 0 for no training [default: by the size of model and data, at most some minutes].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub epochs: Option<Whole<0, 1_000_000>>,
    /// The highest learning rate of training [default: chosen by short trainings at several rates]; --qat takes a tenth of it.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub lr: Option<Positive>,
    /// The model that training learns from [default: MODEL itself].
    #[arg(long, value_name = "FILE")]
    pub teacher: Option<PathBuf>,
    /// Leave layers unchanged whose node or weight has a matching name; may be repeated.
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<Filter>,
    /// The runtime that has to run the result.
    #[arg(long, value_name = "RUNTIME", default_value_t, value_parser = choices::<Target>())]
    pub target: Target,
    /// How the ranges of activations are chosen [default: minmax].
    #[arg(long, value_name = "HOW", value_parser = choices::<Calibration>())]
    pub calibration: Option<Calibration>,
    /// Whether scales of weights leave room for processors with AVX2 and without VNNI, which add two products in 16 bits.
    #[arg(long, value_name = "WHEN", default_value_t, value_parser = choices::<ReduceRange>())]
    pub reduce_range: ReduceRange,
    /// How long --int8 searches for the layers to leave in floats, the ranges and the rounding that keep the answers (needs
    /// --data).
    #[arg(long, value_name = "EFFORT", default_value_t, value_parser = choices::<Effort>())]
    pub effort: Effort,
    /// Try nothing else after so long a search, e.g. 60s. What is found in a time differs from machine to machine.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub time: Option<Milliseconds>,
    /// What the search of --int8 aims for: signal to noise of the worst output, at any cost, e.g. 35. It fails nothing where that is not
    /// reached [default: what --min-sqnr or --max-drop ask for; else 30 at little cost].
    #[arg(long, value_name = "DB", allow_hyphen_values = true, conflicts_with_all = ["min_sqnr", "max_drop"])]
    pub aim: Option<Finite>,
    /// Samples of --data for calibration [default: 256; to prune 1024, or fewer for a large model].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub calibration_samples: Option<Count<4_294_967_295>>,
    /// Samples of --data that are kept apart to choose between results: nothing is calibrated or trained on them [default: one in
    /// 20 for training and for the search of --int8].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub validation_samples: Option<Count<4_294_967_295>>,
    /// Where data comes from.
    #[command(flatten)]
    #[serde(flatten)]
    pub data: DataOptions,
    /// What the result has to keep.
    #[command(flatten)]
    #[serde(flatten)]
    pub gates: GateOptions,
    /// What is measured.
    #[command(flatten)]
    #[serde(flatten)]
    pub measures: MeasureOptions,
    /// Where models run.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// Write report.json into this folder [default: beside the result].
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
    /// Write the weights into a file of their own beside the result; models over 1.9 GB always are.
    #[arg(long)]
    pub external_data: bool,
    /// Leave out documentation and metadata of nodes, such as the stack traces of exporters; that of the model stays.
    #[arg(long)]
    pub strip: bool,
    /// End the pipeline after this pass.
    #[arg(long, value_name = "PASS")]
    pub stop_after: Option<String>,
    /// Write the graph as text after every pass into this folder.
    #[arg(long, value_name = "DIR")]
    pub dump_ir: Option<PathBuf>,
    /// Overwrite what exists.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
    /// What the report calls the result, if not by its path.
    #[arg(skip)]
    #[serde(skip)]
    pub shown_as: Option<PathBuf>,
}
