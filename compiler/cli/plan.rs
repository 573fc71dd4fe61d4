//! Command line in, decisions out: everything is checked once, before any work.

use crate::{
    args::{CompressArgs, DataArgs, DeviceArgs, Effort, GateArgs, InputShape, MeasureArgs, RunArgs},
    needs,
    recover::RecoverPlan,
};
use compress_compiler::{
    error::{Error, Result},
    onnx::ReadOptions,
};
use compress_passes::{
    Options, Training, WeightBits,
    prune::{
        recover::By,
        score::Score,
        structured::{Channels, Measure},
    },
    quant::observe::Calibration,
    target::Target,
};
use compress_runtime::{dataset::Preprocess, device::DeviceChoice, session::Backend};
use regex::Regex;
use std::path::{Path, PathBuf};

/// What a compression run will do.
pub struct CompressPlan {
    pub model: PathBuf,
    pub output: PathBuf,
    /// Whether the result goes to standard output, and that is where it is until then.
    pub to_stdout: bool,
    pub options: Options,
    pub training: RecoverPlan,
    /// Samples to calibrate on, if the user said how many.
    pub calibration_samples: Option<usize>,
    pub data: DataPlan,
    pub gates: GateArgs,
    pub measures: MeasureArgs,
    pub run: RunPlan,
    pub read: ReadOptions,
    pub external_data: bool,
    pub strip: bool,
    pub force: bool,
    pub dry_run: bool,
    pub bisect: bool,
    /// Whether each layer is pruned alone first, to show what that does.
    pub sensitivity: bool,
    pub stop_after: Option<String>,
    pub dump_ir: Option<PathBuf>,
    /// The flags that shape the output, for the recipe.
    pub flags: Vec<String>,
}

/// Where data comes from.
pub struct DataPlan {
    pub data: Option<PathBuf>,
    pub eval: Option<PathBuf>,
    pub preprocess: Option<Preprocess>,
    /// Sizes of inputs that the model leaves open.
    pub shapes: Vec<InputShape>,
}

/// How to run and what to print.
pub struct RunPlan {
    pub batch: usize,
    pub on: BackendPlan,
    pub seed: u64,
    pub report: Option<PathBuf>,
    pub json: bool,
    pub quiet: bool,
}

/// Where models run.
pub struct BackendPlan {
    device: DeviceChoice,
    engine: String,
    threads: Option<usize>,
}

impl CompressPlan {
    /// # Errors
    /// Usage for contradictions and impossible values; file when the output can't be there.
    pub fn new(mut a: CompressArgs) -> Result<Self> {
        let model = a.model.take().ok_or_else(|| Error::usage("no model given"))?;
        let output = a.output.take().unwrap_or_else(|| model.with_extension("compressed.onnx"));
        if same_file(&model, &output) {
            return Err(Error::usage("the output is the input").in_file(&output).help("give another name with -o"));
        }
        if a.no_check {
            a.measures.check = Effort::None;
        }
        needs::check(&a)?;
        let prunes = a.prune.is_some() || a.prune_pattern.is_some();
        let (each_layer, by) = (a.prune_budget == "layer", a.prune_by.as_deref());
        let channels = a.prune_channels.map(|fraction| Channels {
            fraction,
            of: match &a.channels_budget[..] {
                "parameters" => Measure::Parameters,
                "latency" => Measure::Latency,
                _ => Measure::Macs,
            },
            by: match a.channels_by.as_deref() {
                Some("l1") => Score::L1,
                Some("l2") => Score::L2,
                Some("median") => Score::Median,
                Some("scale") => Score::Scale,
                Some("activation") => Score::Activation,
                Some("taylor") => Score::Taylor,
                _ => Score::Solved,
            },
            round: a.round_channels,
            pays: !a.cut_anyway && a.channels_budget != "parameters",
            cuts: a.channels_cuts,
        });
        let recovers = prunes || channels.is_some();
        let reconstruct = recovers && by != Some("magnitude");
        if let Some(stop) = &a.stop_after
            && !compress_passes::STAGES.iter().any(|s| s.name == stop)
        {
            let known: Vec<&str> = compress_passes::STAGES.iter().map(|s| s.name).collect();
            return Err(Error::usage(format!("--stop-after {stop}")).help(format!("passes: {}", known.join(", "))));
        }
        let exclude: Vec<Regex> = a
            .exclude
            .iter()
            .map(|r| Regex::new(r).map_err(|e| Error::usage(format!("--exclude {r}: {e}"))))
            .collect::<Result<_>>()?;
        let calibration: Calibration = a.calibration.as_deref().map(str::parse).transpose()?.unwrap_or_default();
        let (int8, trains) = (a.int8 || a.qat, needs::trains(&a));
        let target: Target = a.target.parse()?;
        let mut flags: Vec<String> = vec![];
        if let Some(f) = a.prune {
            flags.push(format!("--prune {f}"));
        }
        flags.extend(a.prune_pattern.map(|p| format!("--prune-pattern {p}")));
        if let Some(f) = a.prune_channels {
            flags.push(format!("--prune-channels {f} --channels-budget {}", a.channels_budget));
            flags.extend(a.round_channels.map(|n| format!("--round-channels {n}")));
            flags.extend(a.channels_by.iter().map(|s| format!("--channels-by {s}")));
            flags.extend((a.channels_cuts > 1).then(|| format!("--channels-cuts {}", a.channels_cuts)));
            flags.extend(a.cut_anyway.then(|| "--cut-anyway".into()));
        }
        flags.extend(a.prune_by.iter().map(|s| format!("--prune-by {s}")));
        flags.extend(each_layer.then(|| "--prune-budget layer".into()));
        if a.prune_ends {
            flags.push("--prune-ends".into());
        }
        flags.extend(a.epochs.map(|n| format!("--epochs {n}")));
        flags.extend(a.lr.map(|v| format!("--lr {v}")));
        flags.extend(a.teacher.iter().map(|p| format!("--teacher {}", p.display())));
        if a.qat {
            flags.push("--qat".into());
        }
        if int8 {
            flags.push("--int8".into());
            flags.extend((a.weight_bits == "4").then(|| "--weight-bits 4".into()));
            flags.push(format!("--calibration {}", a.calibration.as_deref().unwrap_or("minmax")));
        }
        flags.extend(a.calibration_samples.map(|n| format!("--calibration-samples {n}")));
        if target != Target::Portable {
            flags.push(format!("--target {}", a.target));
        }
        flags.extend(a.exclude.iter().map(|e| format!("--exclude {e}")));
        flags.extend(a.data.preprocess.iter().map(|p| format!("--preprocess {p}")));
        flags.extend(a.stop_after.iter().map(|p| format!("--stop-after {p}")));
        flags.extend(a.strip.then(|| "--strip".into()));
        if a.external_data {
            flags.push("--external-data".into());
        }
        let plan = Self {
            options: Options {
                channels,
                prune: a.prune,
                pattern: a.prune_pattern,
                each_layer,
                reconstruct,
                prune_ends: a.prune_ends,
                training: (trains && recovers && !a.bisect).then(|| Training {
                    by: match by {
                        Some("magnitude") => By::Magnitude,
                        Some("taylor") => By::Taylor,
                        _ => By::Solved,
                    },
                    must: a.epochs.is_some(),
                }),
                int8: int8.then_some(calibration),
                weight_bits: if a.weight_bits == "4" { WeightBits::Four } else { WeightBits::Eight },
                // A search for a wrong change trains nothing.
                qat: a.qat && !a.bisect,
                exclude,
                target,
            },
            training: RecoverPlan { epochs: a.epochs, rate: a.lr, teacher: a.teacher },
            calibration_samples: a.calibration_samples,
            data: DataPlan { shapes: a.measures.shape.clone(), ..DataPlan::new(a.data)? },
            gates: a.gates,
            measures: a.measures,
            run: RunPlan::new(a.run)?,
            read: a.read.into(),
            external_data: a.external_data,
            strip: a.strip,
            force: a.force,
            dry_run: a.dry_run,
            bisect: a.bisect,
            sensitivity: a.sensitivity,
            stop_after: a.stop_after,
            dump_ir: a.dump_ir,
            flags,
            model,
            output,
            to_stdout: false,
        };
        plan.check_files()?;
        Ok(plan)
    }

    /// Whether everything can be written that has to be.
    fn check_files(&self) -> Result<()> {
        let report = self.report_path();
        if same_file(&report, &self.output) || same_file(&report, &self.model) {
            return Err(Error::usage("the report would replace a model")
                .in_file(&report)
                .help("give another --report"));
        }
        let writes = !self.dry_run && !self.bisect;
        for (path, flag) in [(&self.output, "-o"), (&report, "--report")] {
            replaceable(path)?;
            if !self.force && writes && path.exists() {
                let help = format!("pass --force, or give another place with {flag}");
                return Err(Error::file("exists already").in_file(path).help(help));
            }
        }
        if !writes {
            return Ok(());
        }
        let folder = self.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.exists() {
            let help = format!("make the folder {}, or give another place with -o", folder.display());
            return Err(Error::file("its folder is not there").in_file(&self.output).help(help));
        }
        writable(folder)?;
        self.run.report.iter().chain(&self.dump_ir).try_for_each(|folder| made(folder))
    }

    /// Whether the models are run to measure them.
    pub fn checks(&self) -> bool {
        self.measures.check != Effort::None
    }

    /// Whether something is trained.
    pub fn trains(&self) -> bool {
        self.options.qat || self.options.training.is_some()
    }

    /// Whether inputs are made up on which something is decided.
    pub fn makes_inputs(&self) -> bool {
        self.data.data.is_none() && (self.options.int8.is_some() || self.options.reconstruct)
    }

    /// Where the result is said to be.
    pub fn shown_output(&self) -> &Path {
        if self.to_stdout { Path::new("-") } else { &self.output }
    }

    /// Where the report goes.
    pub fn report_path(&self) -> PathBuf {
        match &self.run.report {
            Some(dir) => dir.join("report.json"),
            None => self.output.with_extension("report.json"),
        }
    }
}

impl DataPlan {
    /// # Errors
    /// Usage for a bad --preprocess.
    pub fn new(a: DataArgs) -> Result<Self> {
        Self::from_paths(a.data, a.eval, a.preprocess)
    }

    /// # Errors
    /// Usage for bad preprocessing.
    pub fn from_paths(data: Option<PathBuf>, eval: Option<PathBuf>, preprocess: Option<String>) -> Result<Self> {
        let preprocess = preprocess.map(|p| p.parse()).transpose()?;
        Ok(Self { data, eval, preprocess, shapes: vec![] })
    }
}

impl RunPlan {
    /// # Errors
    /// Usage for a bad --device.
    pub fn new(a: RunArgs) -> Result<Self> {
        let on = BackendPlan::new(&a.device)?;
        let DeviceArgs { batch, seed, json, .. } = a.device;
        Ok(Self { batch, on, seed, report: a.report, json, quiet: a.quiet })
    }
}

impl BackendPlan {
    /// # Errors
    /// Usage for a bad --device.
    pub fn new(a: &DeviceArgs) -> Result<Self> {
        Self::of(&a.device, &a.engine, a.threads)
    }

    /// # Errors
    /// Usage for a bad device.
    pub fn of(device: &str, engine: &str, threads: Option<usize>) -> Result<Self> {
        Ok(Self { device: device.parse()?, engine: engine.into(), threads })
    }

    /// Opens the device; from then on, work is shared among so many threads.
    ///
    /// # Errors
    /// Device when it is not there; usage for an engine that is not.
    pub fn open(&self) -> Result<Backend> {
        if let Some(n) = self.threads {
            Self::start(rayon::ThreadPoolBuilder::new().num_threads(n))?;
        }
        Backend::open(self.device, &self.engine)
    }

    /// The same, this thread being one of those: for work of many short steps, which are not to be handed over
    /// to others.
    ///
    /// # Errors
    /// Those of [`BackendPlan::open`].
    pub fn open_among(&self) -> Result<Backend> {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(self.threads.unwrap_or(0));
        Self::start(threads.use_current_thread())?;
        Backend::open(self.device, &self.engine)
    }

    fn start(threads: rayon::ThreadPoolBuilder) -> Result<()> {
        threads.build_global().map_err(|e| Error::limit(format!("the threads could not be started: {e}")))
    }
}

/// Whether two paths lead to one file.
pub fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// # Errors
/// File when there is something at `path` that is no file: a device, a pipe or a folder would be gone.
pub fn replaceable(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => Err(Error::file("is no regular file, and would be replaced").in_file(path)),
        _ => Ok(()),
    }
}

/// Makes a folder, unless it is there, to which files can be written.
///
/// # Errors
/// File when that can't be.
pub fn made(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(|e| Error::file(format!("cannot be made: {e}")).in_file(folder))?;
    writable(folder)
}

/// Finds out before hours of work whether files can be written to `folder`.
fn writable(folder: &Path) -> Result<()> {
    // The kind alone: the message names a file that the user never heard of.
    let fail = |e: std::io::Error| Error::file(format!("cannot write here: {}", e.kind())).in_file(folder);
    tempfile::tempfile_in(folder).map(drop).map_err(fail)
}

/// The largest `--batch`: more than any timing needs.
pub const MAX_BATCH: u32 = 65_536;

/// The largest `--epochs`: more than anybody waits for.
pub const MAX_EPOCHS: i64 = 1_000_000;
