//! Words that messages share: numbers of things, and names of options.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{borrow::Cow, fmt, sync::OnceLock};

/// A number of things, for people: `1 sample`, `2 samples`.
pub fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// Alternatives in a sentence: `a`, `a or b`, `a, b, or c`.
pub fn any_of(all: &[&str]) -> String {
    match all {
        [one, other] => format!("{one} or {other}"),
        [others @ .., last] if !others.is_empty() => format!("{}, or {last}", others.join(", ")),
        _ => all.concat(),
    }
}

/// How a figure is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// A share, shown in percent.
    #[default]
    Share,
    /// Decibels.
    Decibels,
    /// A number of a usual size.
    Number,
    /// A number of any size.
    Scientific,
}

impl Unit {
    /// The figure for people.
    pub fn show(self, value: f64) -> String {
        match self {
            // What training gives models whose outputs are not numbers.
            _ if value == f64::MIN => "no number".into(),
            Self::Share => format!("{:.2}%", value * 100.0),
            Self::Decibels => format!("{value:.1} dB"),
            // What rounding leaves is nothing.
            Self::Number if value.abs() < 5e-7 => "0.0000".into(),
            Self::Number if value.abs() < 0.01 => format!("{value:.6}"),
            Self::Number => format!("{value:.4}"),
            Self::Scientific => format!("{value:.2e}"),
        }
    }
}

/// An option of a job, as messages name it: each front end writes options in its own way. A recipe has `prune-by`, the
/// command `--prune-by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opt(pub &'static str);

static STYLE: OnceLock<fn(&str) -> String> = OnceLock::new();

/// Says how options are written in all messages from now on: `` `prune-by` `` if nobody says. The first call holds.
pub fn write_options(style: fn(&str) -> String) {
    // A front end that comes second finds its messages in the style of the first.
    let _ = STYLE.set(style);
}

/// The option of this name, as messages name it.
pub fn written(option: &str) -> String {
    match STYLE.get() {
        Some(style) => style(option),
        None => format!("`{option}`"),
    }
}

impl Serialize for Opt {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&self.flag())
    }
}

impl<'de> Deserialize<'de> for Opt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let flag = Cow::<str>::deserialize(from)?;
        let named = option::ALL.iter().find(|option| option.flag() == *flag);
        named.copied().ok_or_else(|| D::Error::custom(format!("unknown option {flag}")))
    }
}

impl JsonSchema for Opt {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Opt".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^--" })
    }
}

impl Opt {
    /// The option as a report has it, whatever the front end.
    pub fn flag(self) -> String {
        format!("--{}", self.0)
    }
}

impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&written(self.0))
    }
}

/// The options that messages name.
pub mod option {
    use super::Opt;

    macro_rules! options {
        ($($name:ident $text:literal),* $(,)?) => {
            $(#[doc = concat!("`", $text, "`")] pub const $name: Opt = Opt($text);)*

            /// All of them.
            pub const ALL: &[Opt] = &[$($name),*];
        };
    }

    options! {
        ACCUMULATE "accumulate",
        AGAINST "against",
        AIM "aim",
        ALLOW_HARDLINKS "allow-hardlinks",
        ALLOW_SYNTHETIC "allow-synthetic",
        ANSWERS "answers",
        AS_IS "as-is",
        AUGMENT "augment",
        BASELINE "baseline",
        BATCH "batch",
        BISECT "bisect",
        BLOCK "block",
        CALIBRATION "calibration",
        CALIBRATION_SAMPLES "calibration-samples",
        CHANNELS_BUDGET "channels-budget",
        CHANNELS_BY "channels-by",
        CHANNELS_CUTS "channels-cuts",
        CHECK "check",
        CHECKPOINT "checkpoint",
        CLIP "clip",
        CUT_ANYWAY "cut-anyway",
        DATA "data",
        DEVICE "device",
        DRAFTS_FOR "drafts-for",
        DRAFT_TOKENS "draft-tokens",
        DUMP_IR "dump-ir",
        EFFORT "effort",
        ENCODER "encoder",
        ENGINE "engine",
        ORT "ort",
        EPOCHS "epochs",
        EVAL "eval",
        EXCLUDE "exclude",
        FORCE "force",
        FREEZE "freeze",
        FROM_NOTHING "from-nothing",
        GROUPS "groups",
        INT8 "int8",
        IR "ir",
        JSON "json",
        KEEP_INITIALIZER_INPUTS "keep-initializer-inputs",
        KEEP_LAYERS "keep-layers",
        LAYER "layer",
        LORA "lora",
        LOW_RANK "low-rank",
        LR "lr",
        MATCH "match",
        MAX_DROP "max-drop",
        MAX_LATENCY "max-latency",
        MAX_MEMORY "max-memory",
        MAX_SCORE "max-score",
        MAX_SIZE "max-size",
        METRIC "metric",
        MIN_ACCEPTANCE "min-acceptance",
        MIN_SCORE "min-score",
        MIN_SPEEDUP "min-speedup",
        MIN_SQNR "min-sqnr",
        MLFLOW "mlflow",
        OUTPUT "output",
        PRECISION "precision",
        PREPROCESS "preprocess",
        TRACE "trace",
        PRUNE "prune",
        PRUNE_BUDGET "prune-budget",
        PRUNE_BY "prune-by",
        PRUNE_CHANNELS "prune-channels",
        PRUNE_ENDS "prune-ends",
        PRUNE_PATTERN "prune-pattern",
        QAT "qat",
        RECOMPUTE "recompute",
        REDUCE_RANGE "reduce-range",
        REPLICAS "replicas",
        REPORT "report",
        RESUME "resume",
        ROUND_CHANNELS "round-channels",
        SAVE_EVERY "save-every",
        SAVE_RECIPE "save-recipe",
        SCORE "score",
        SHAPE "shape",
        SHARD "shard",
        STOP_AFTER "stop-after",
        STRICT "strict",
        STRIP "strip",
        SWEEP "sweep",
        TARGET "target",
        TEACHER "teacher",
        UPDATE_BASELINE "update-baseline",
        TEMPERATURE "temperature",
        TIME "time",
        TOKENIZER "tokenizer",
        TOKENS "tokens",
        VALIDATION_SAMPLES "validation-samples",
        WEIGHTS "weights",
        WEIGHT_BITS "weight-bits",
        WORKERS "workers",
    }
}
