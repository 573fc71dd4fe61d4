//! Command line in, decisions out: everything is checked once, before any work.

use crate::args::{CompressArgs, DataArgs, DeviceArgs, GateArgs, RunArgs};
use compress_compiler::{
    error::{Error, Result},
    onnx::ReadOptions,
};
use compress_passes::{Options, quant::observe::Calibration, target::Target};
use compress_runtime::{dataset::Preprocess, device::DeviceChoice};
use regex::Regex;
use std::path::{Path, PathBuf};

/// What a compression run will do.
pub struct CompressPlan {
    pub model: PathBuf,
    pub output: PathBuf,
    pub options: Options,
    pub calibration_samples: usize,
    pub data: DataPlan,
    pub gates: Gates,
    pub run: RunPlan,
    pub read: ReadOptions,
    pub external_data: bool,
    /// Whether the models are run to measure them.
    pub check: bool,
    pub force: bool,
    pub dry_run: bool,
    pub bisect: bool,
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
}

/// The gates, in plain numbers.
pub struct Gates {
    pub max_drop: Option<f64>,
    pub min_speedup: Option<f64>,
    pub max_size: Option<f64>,
}

/// How to run and what to print.
pub struct RunPlan {
    pub batch: usize,
    pub device: DeviceChoice,
    pub seed: u64,
    pub report: Option<PathBuf>,
    pub json: bool,
    pub quiet: bool,
}

impl CompressPlan {
    /// # Errors
    /// Usage for contradictions and impossible values; file when the output can't be there.
    pub fn new(a: CompressArgs) -> Result<Self> {
        let model = a.model.ok_or_else(|| Error::usage("no model given"))?;
        let output = a.output.unwrap_or_else(|| model.with_extension("compressed.onnx"));
        if same_file(&model, &output) {
            return Err(Error::usage("the output is the input").in_file(&output).help("give another name with -o"));
        }
        if let Some(f) = a.prune
            && !(0.0..1.0).contains(&f)
        {
            return Err(Error::usage(format!("--prune {f} is not a fraction from 0 to below 1")));
        }
        if a.prune_ends && a.prune.is_none() {
            return Err(Error::usage("--prune-ends needs --prune"));
        }
        if a.calibration_samples == 0 {
            return Err(Error::usage("--calibration-samples must be 1 or more"));
        }
        if let Some(stop) = &a.stop_after
            && !compress_passes::STAGES.iter().any(|s| s.name == stop)
        {
            let known: Vec<&str> = compress_passes::STAGES.iter().map(|s| s.name).collect();
            return Err(Error::usage(format!("--stop-after {stop}")).help(format!("passes: {}", known.join(", "))));
        }
        replaceable(&output)?;
        if !a.force && !a.dry_run && !a.bisect && output.exists() {
            return Err(Error::file("exists already").in_file(&output).help("pass --force, or another name with -o"));
        }
        let exclude: Vec<Regex> = a
            .exclude
            .iter()
            .map(|r| Regex::new(r).map_err(|e| Error::usage(format!("--exclude {r}: {e}"))))
            .collect::<Result<_>>()?;
        let calibration: Calibration = a.calibration.parse()?;
        let target: Target = a.target.parse()?;
        let mut flags: Vec<String> = vec![];
        if let Some(f) = a.prune {
            flags.push(format!("--prune {f}"));
        }
        if a.prune_ends {
            flags.push("--prune-ends".into());
        }
        if a.int8 {
            flags.push("--int8".into());
            flags.push(format!("--calibration {}", a.calibration));
            flags.push(format!("--calibration-samples {}", a.calibration_samples));
        }
        if target != Target::Portable {
            flags.push(format!("--target {}", a.target));
        }
        flags.extend(a.exclude.iter().map(|e| format!("--exclude {e}")));
        flags.extend(a.data.preprocess.iter().map(|p| format!("--preprocess {p}")));
        flags.extend(a.stop_after.iter().map(|p| format!("--stop-after {p}")));
        if a.external_data {
            flags.push("--external-data".into());
        }
        if a.no_check && (a.gates.max_drop.is_some() || a.gates.min_speedup.is_some()) {
            return Err(Error::usage("--no-check leaves nothing for --max-drop and --min-speedup to look at"));
        }
        let run = RunPlan::new(a.run)?;
        let plan = Self {
            options: Options {
                prune: a.prune,
                prune_ends: a.prune_ends,
                int8: a.int8.then_some(calibration),
                exclude,
                target,
            },
            calibration_samples: a.calibration_samples,
            data: DataPlan::new(a.data)?,
            gates: Gates::new(a.gates)?,
            run,
            read: a.read.into(),
            external_data: a.external_data,
            check: !a.no_check,
            force: a.force,
            dry_run: a.dry_run,
            bisect: a.bisect,
            stop_after: a.stop_after,
            dump_ir: a.dump_ir,
            flags,
            model,
            output,
        };
        let report = plan.report_path();
        replaceable(&report)?;
        if same_file(&report, &plan.output) || same_file(&report, &plan.model) {
            return Err(Error::usage("the report would replace a model")
                .in_file(&report)
                .help("give another --report"));
        }
        if !plan.force && !plan.dry_run && !plan.bisect && report.exists() {
            return Err(Error::file("exists already").in_file(&report).help("pass --force, or another --report"));
        }
        if !plan.dry_run && !plan.bisect {
            writable(plan.output.parent())?;
            if let Some(dir) = &plan.run.report {
                std::fs::create_dir_all(dir).map_err(|e| Error::file(e.to_string()).in_file(dir))?;
                writable(Some(dir))?;
            }
        }
        Ok(plan)
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
        let preprocess = a.preprocess.map(|p| p.parse()).transpose()?;
        Ok(Self { data: a.data, eval: a.eval, preprocess })
    }
}

impl Gates {
    /// # Errors
    /// Usage for what is no number.
    pub fn new(a: GateArgs) -> Result<Self> {
        if let Some(r) = a.min_speedup
            && !(r.is_finite() && r > 0.0)
        {
            return Err(Error::usage(format!("--min-speedup {r} is not a positive number")));
        }
        Ok(Self {
            max_drop: a.max_drop.map(|s| percent(&s)).transpose()?,
            min_speedup: a.min_speedup,
            max_size: a.max_size.map(|s| bytes(&s)).transpose()?,
        })
    }
}

impl RunPlan {
    /// # Errors
    /// Usage for a bad --device or --batch.
    pub fn new(a: RunArgs) -> Result<Self> {
        let DeviceArgs { batch, device, seed, json } = a.device;
        batch_size(batch)?;
        Ok(Self { batch, device: device.parse()?, seed, report: a.report, json, quiet: a.quiet })
    }
}

/// # Errors
/// Usage for a batch of nothing, or of more than any timing needs.
pub fn batch_size(n: usize) -> Result<()> {
    if (1..=65_536).contains(&n) { Ok(()) } else { Err(Error::usage(format!("--batch {n} is not from 1 to 65536"))) }
}

fn same_file(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// Finds out before hours of work whether the result can be written.
/// # Errors
/// File when there is something at `path` that is no file: a device, a pipe or a folder would be gone.
fn replaceable(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() => Err(Error::file("is no regular file, and would be replaced").in_file(path)),
        _ => Ok(()),
    }
}

fn writable(folder: Option<&Path>) -> Result<()> {
    let folder = folder.filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new()
        .prefix(".compress-")
        .tempfile_in(folder)
        .map(drop)
        .map_err(|e| Error::file(format!("cannot write here: {e}")).in_file(folder))
}

/// `1%` or `0.01`.
fn percent(s: &str) -> Result<f64> {
    let bad = || Error::usage(format!("`{s}` is not a share such as 1% or 0.01"));
    let value = match s.strip_suffix('%') {
        Some(p) => p.trim().parse::<f64>().map_err(|_| bad())? / 100.0,
        // A bare 1 may be meant as one per cent.
        None => s.parse::<f64>().ok().filter(|v| *v < 1.0).ok_or_else(bad)?,
    };
    if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(bad()) }
}

/// `30MB`, `512kB`, `1.5GB` or a number of bytes.
fn bytes(s: &str) -> Result<f64> {
    let bad = || Error::usage(format!("`{s}` is not a size such as 30MB"));
    let number = s.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match s[number.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(bad()),
    };
    let value = number.trim().parse::<f64>().map_err(|_| bad())? * unit;
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_sizes() {
        assert_eq!(percent("1%").unwrap(), 0.01);
        assert_eq!(percent("0.5").unwrap(), 0.5);
        assert!(percent("120%").is_err() && percent("one").is_err() && percent("NaN").is_err());
        assert_eq!(bytes("30MB").unwrap(), 30e6);
        assert_eq!(bytes("1.5 GiB").unwrap(), 1.5 * 1024f64.powi(3));
        assert!(bytes("-3").is_err() && bytes("5 apples").is_err() && bytes("MB").is_err());
    }
}
