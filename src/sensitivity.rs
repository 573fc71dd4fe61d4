//! How much each layer of a model minds being compressed: where to look before a model is compressed, and after.

mod parts;

pub(crate) use parts::PartFile;

use crate::{
    compress::{
        calibrator::DataCalibrator,
        judge,
        judged::{Dealt, Judged},
    },
    data::{Samples, Sets},
    events::{Events, Monitor, watched},
    facts, files,
    given::DataSource,
    options::{DataOptions, DeviceOptions, ReadOptions, expressions, within},
    plot::{Chart, Line, svg},
    recipe::Recipe,
    report::{self, Recorded},
    shard::Shard,
    values::{Count, Filter},
};
use clap::Args;
use compress_compiler::{
    error::{Error, Result},
    onnx,
    pass::{Calibrator, Context},
    words::{counted, option},
};
use compress_passes::{
    prune::mask::Scope,
    quant::scheme::WeightBits,
    sensitivity::{Measurement, Sensitivity as Found, Without},
    target::Target,
};
use compress_runtime::{burn::BurnInterpreter, dataset::Preprocess, session::Backend};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{cell::RefCell, path::PathBuf};

/// Shows how much the answers of a model mind INT8, zeros and the loss of channels: of one layer at a time.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Sensitivity {
    /// The ONNX model, in floats.
    pub model: PathBuf,
    /// Data to run on; part of it is for calibration.
    #[arg(long, value_name = "PATH", required = true)]
    pub data: DataSource,
    /// The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of 256 words].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text [default: 128].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tokens: Option<Count<1_048_576>>,
    /// How pictures become inputs, as for compressing.
    #[arg(long, value_name = "HOW")]
    pub preprocess: Option<Preprocess>,
    /// Where the plot goes, an SVG [default: MODEL with .sensitivity.svg].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Bits of a quantised weight.
    #[arg(long, value_name = "BITS", default_value_t, value_parser = crate::options::choices::<WeightBits>())]
    pub weight_bits: WeightBits,
    /// The runtime that has to run the result.
    #[arg(long, value_name = "RUNTIME", default_value_t, value_parser = crate::options::choices::<Target>())]
    pub target: Target,
    /// Leave out layers whose node or weight has a matching name; may be repeated.
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<Filter>,
    /// Judge a part of the layers alone, e.g. 2/4, for others who judge the rest: no plot is made. `compress merge` makes the figures and
    /// the plot of all, once all parts are done.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Where it runs.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
    /// Overwrite what exists.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

/// How much the layers mind.
#[derive(Debug, Clone, JsonSchema, Serialize)]
pub struct SensitivityReport {
    /// The model.
    pub model: String,
    /// The plot; absent after a part.
    pub plot: Option<String>,
    /// The figures; absent after a part.
    #[serde(flatten)]
    pub found: Option<Found>,
    /// How many graphs a part judged; absent after the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judged: Option<usize>,
    /// The file of the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// Graphs with several layers in floats, which depend on what all parts found.
const CURVE: usize = 4;
/// Samples to find activation ranges on.
const CALIBRATED: usize = 128;

impl Sensitivity {
    /// Measures the layers, and writes the plot; or a part of them, and writes what `compress merge` makes the whole of.
    ///
    /// # Errors
    /// Usage for a plot in the place of another file; file when it can't be written; unsupported for a model with operators
    /// that can't be run here, without outputs of floats, or quantised already; whatever reading and running it can raise;
    /// interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<SensitivityReport> {
        self.run_with(&[], events)
    }

    /// [`Sensitivity::run`] of which others did the parts, in these files.
    pub(crate) fn run_with(&self, parts: &[(PathBuf, PartFile)], events: &mut dyn Events) -> Result<SensitivityReport> {
        let file = self.file();
        if files::same(&file, &self.model) {
            return Err(Error::usage("the plot would replace the model").in_file(&file));
        }
        if self.data.path().is_some_and(|data| files::same(&file, data)) {
            return Err(Error::usage("the plot would replace the data").in_file(&file));
        }
        if self.output().as_os_str() == "-" {
            return Err(Error::usage(format!("{} -: a plot is a file", option::OUTPUT)));
        }
        if self.on.batch != DeviceOptions::default().batch {
            return Err(Error::usage(format!("{} has no effect: nothing is timed", option::BATCH)));
        }
        files::free(&file, self.force, &option::OUTPUT.to_string())?;
        files::placed(&file, &option::OUTPUT.to_string())?;
        let (found, part) = watched(events, |monitor| within(self.on.threads, false, || self.measure(parts, monitor)))?;
        let (model, at) = (self.model.display().to_string(), Some(file.display().to_string()));
        if let Some(shard) = self.shard {
            let count = Some(part.judged.len());
            if part.judged.is_empty() {
                let what = format!("{} {shard}: the model has too few layers for so many parts", option::SHARD);
                return Err(Error::usage(what).help("divide the job into fewer parts"));
            }
            onnx::write_atomic(&file, report::json(&part)?.as_bytes(), self.force)?;
            return Ok(SensitivityReport { model, plot: None, found: None, judged: count, file: at });
        }
        onnx::write_atomic(&file, svg(&self.charts(&found))?.as_bytes(), self.force)?;
        Ok(SensitivityReport { model, plot: at, found: Some(found), judged: None, file: None })
    }

    /// The file that it makes: the plot, or that of a part.
    pub(crate) fn file(&self) -> PathBuf {
        let plot = self.output();
        self.shard.map_or(plot.clone(), |shard| shard.of_path(&plot, "json"))
    }

    /// Where the plot goes.
    pub fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.model.with_extension("sensitivity.svg"))
    }

    fn measure(&self, parts: &[(PathBuf, PartFile)], monitor: &Monitor) -> Result<(Found, PartFile)> {
        let backend = self.on.open()?;
        let model = onnx::read_with(&self.model, &(&self.read).into())?;
        let in_model = |e: Error| e.in_file(&self.model);
        if let Some((label, reason)) = facts::first_unknown(&model.graph) {
            return Err(in_model(Error::unsupported(format!("node {label} can't be run here ({reason})"))));
        }
        let text = DataOptions::of(Some(self.data.clone()), self.tokenizer.as_ref(), self.tokens);
        let data = DataOptions { preprocess: self.preprocess.clone(), ..text }.beside(&self.model)?;
        let seed = self.on.seed.0;
        let sets = Sets::open_running(&data, &[], &model.graph, CALIBRATED, seed, (false, &backend));
        let mut sets = sets.map_err(in_model)?;
        sets.keep_apart(seed);
        let (samples, backend) = (&sets.calibration, &backend);
        let digest = samples.set.digest()?;
        let files: Vec<String> = model.source().files().iter().map(|file| file.sha256().to_string()).collect();
        parts.iter().try_for_each(|(path, part)| part.check(path, &files, &digest))?;
        let known: Judged = parts.iter().flat_map(|(_, part)| part.judged.clone()).collect();
        let scope = Scope { exclude: expressions(&self.exclude), ends: true };
        let measurement = Measurement { scheme: self.target.scheme(self.weight_bits), target: self.target, scope };
        let found = on_samples([samples, &sets.validation], backend, monitor, |cx| {
            let judges = cx.judges.ok_or_else(|| Error::bug("sensitivity without samples to judge by"))?;
            if self.shard.is_none() && parts.is_empty() {
                return Ok((measurement.run(model.graph, cx)?, Default::default()));
            }
            let judged = RefCell::new(known);
            let dealt = Dealt::new(judges, self.shard, &judged);
            let Context { interpreter, calibrator, stopped, progress, .. } = *cx;
            let context = Context { calibrator, judges: Some(&dealt), stopped, progress, ..Context::new(interpreter) };
            let found = measurement.run(model.graph, &context)?;
            let asked = dealt.asked();
            Ok((found, (judged.into_inner(), asked)))
        });
        let (found, (judged, unknown)) = found.map_err(|e| in_model(samples.unfit_if_given(e)))?;
        if !parts.is_empty() && unknown > CURVE {
            monitor.note(&format!(
                "{} were in no part, and were judged here: another kind of processor makes other graphs",
                counted(unknown, "graph")
            ));
        }
        let recipe = Recorded::new(&Recipe::Sensitivity(self.clone()), Some(digest));
        Ok((found, PartFile { model: files, judged, recipe }))
    }

    fn charts(&self, found: &Found) -> Vec<Chart> {
        let name = self.model.file_name().unwrap_or_default().to_string_lossy();
        let db = "signal to noise of a typical sample, dB";
        let chart = |title: String, across: &str, up: &str, lines| Chart {
            title,
            across: across.into(),
            up: up.into(),
            lines,
            level: None,
        };
        let alone = chart(format!("{name}: one layer alone"), "layer, in the order of the network", db, alone(found));
        let curve = |name: &str, of: &dyn Fn(&compress_passes::sensitivity::CurvePoint) -> Option<f64>| {
            let points = found.curve.iter().filter_map(|p| Some((p.float_layers as f64, of(p)?)));
            Line { name: name.into(), points: points.collect() }
        };
        let across = "layers in floats, the noisiest for what they gain first";
        let kept = vec![curve("predicted", &|p| p.predicted_db), curve("measured", &|p| p.measured?.typical_db)];
        let gained = vec![curve("", &|p| Some(p.predicted_speedup))];
        vec![
            alone,
            chart("INT8: what layers in floats keep".into(), across, db, kept),
            chart("INT8: what they cost".into(), across, "predicted speed-up on ONNX Runtime", gained),
        ]
    }
}

/// Measures what layers mind: they are calibrated on the first of these samples, and judged on the second.
///
/// # Errors
/// Those of `measure`.
pub(crate) fn on_samples<T>(
    [calibrated, judged]: [&Samples; 2],
    backend: &Backend,
    monitor: &Monitor,
    measure: impl FnOnce(&Context) -> Result<T>,
) -> Result<T> {
    let calibrator = DataCalibrator { samples: calibrated, backend, monitor };
    let most = judge::SAMPLES;
    let judges = judge::HeldOut { samples: judged, most, metric: None, scorer: None, backend, monitor };
    let interpreter = BurnInterpreter::cpu();
    measure(&Context {
        calibrator: Some(&calibrator as &dyn Calibrator),
        judges: Some(&judges),
        stopped: &|| monitor.stopped(),
        progress: &monitor.passes(),
        ..Context::new(&interpreter)
    })
}

/// A line for each thing that is done to layers.
fn alone(found: &Found) -> Vec<Line> {
    let at = |fraction: f64| move |all: &Vec<Without>| all.iter().find(|f| f.fraction == fraction)?.left.typical_db;
    let line = |name: &str, of: &dyn Fn(&compress_passes::sensitivity::LayerSensitivity) -> Option<f64>| {
        let points = found.layers.iter().enumerate().filter_map(|(i, l)| Some((i as f64 + 1.0, of(l)?)));
        Line { name: name.into(), points: points.collect() }
    };
    let lines = [
        line("INT8", &|l| l.int8?.typical_db),
        line("half zeros", &|l| at(0.5)(&l.zeros)),
        line("90% zeros", &|l| at(0.9)(&l.zeros)),
        line("half of the channels", &|l| at(0.5)(&found.channels[l.channels?].cut)),
    ];
    lines.into_iter().filter(|l| !l.points.is_empty()).collect()
}
