//! Options that say nothing without others: giving them alone is a mistake, and not passed over.

use crate::args::{CompressArgs, DataArgs, Effort, InputShape};
use compress_compiler::error::{Error, Result};

/// An option, whether it was given, what it needs, and whether that was given.
type Row<'a> = (&'a str, bool, &'a str, bool);

const CHECKED: &str = "a check, which --check none and --no-check leave out";

/// # Errors
/// Usage, naming the first option that says nothing.
pub fn check(a: &CompressArgs) -> Result<()> {
    let prunes = a.prune.is_some() || a.prune_pattern.is_some() || !a.sweep.is_empty();
    let channels = a.prune_channels.is_some();
    let int8 = a.int8 || a.qat;
    let has_data = a.data.data.is_some();
    let by = a.prune_by.as_deref();
    let on_data = matches!(a.channels_by.as_deref(), Some("activation" | "taylor"));
    let checks = a.measures.check != Effort::None;
    let (weights, any_prune) = ("--prune or --prune-pattern", "--prune, --prune-pattern or --prune-channels");
    let quantises = "--int8 or --qat";
    let training = "--prune, --prune-channels or --qat";
    let rows: &[Row] = &[
        ("--prune-by", by.is_some(), any_prune, prunes || channels),
        (
            "--prune-by taylor",
            by == Some("taylor"),
            "--prune or --prune-pattern; for channels there is --channels-by taylor",
            prunes,
        ),
        ("--prune-by taylor", by == Some("taylor"), "--data with labels", has_data),
        ("--prune-budget", a.prune_budget == "layer", weights, prunes),
        ("--prune-ends", a.prune_ends, "--prune, --prune-pattern or --sensitivity", prunes || a.sensitivity),
        ("--channels-by", a.channels_by.is_some(), "--prune-channels", channels),
        ("--channels-budget", a.channels_budget != "macs", "--prune-channels", channels),
        ("--channels-cuts", a.channels_cuts > 1, "--prune-channels", channels),
        ("--round-channels", a.round_channels.is_some(), "--prune-channels", channels),
        ("--cut-anyway", a.cut_anyway, "--prune-channels", channels),
        ("--channels-by activation and taylor", on_data, "--data", has_data),
        ("--sensitivity", a.sensitivity, "--data", has_data),
        ("--weight-bits", a.weight_bits != "8", quantises, int8),
        ("--calibration", a.calibration.is_some(), quantises, int8),
        (
            "--calibration-samples",
            a.calibration_samples.is_some(),
            "--int8, --qat or one of --prune, --prune-pattern and --prune-channels",
            int8 || prunes || channels,
        ),
        ("--calibration-samples", a.calibration_samples.is_some(), "--data", has_data),
        (
            "--exclude",
            !a.exclude.is_empty(),
            "--int8, --qat, --sensitivity or one of --prune, --prune-pattern and --prune-channels",
            int8 || prunes || channels || a.sensitivity,
        ),
        ("--epochs", a.epochs.is_some(), training, a.qat || prunes || channels),
        ("--lr", a.lr.is_some(), training, a.qat || prunes || channels),
        ("--teacher", a.teacher.is_some(), training, a.qat || prunes || channels),
        ("--metric", a.measures.metric.is_some(), CHECKED, checks),
        ("--score", a.measures.score.is_some(), CHECKED, checks),
        ("--as-is", a.measures.as_is, CHECKED, checks),
    ];
    first(rows)?;
    let judged = [("--json", a.run.device.json), ("--strict", a.gates.strict), ("gates", a.gates.any())];
    if let Some((flag, _)) = judged.iter().find(|(_, given)| a.bisect && *given) {
        return Err(Error::usage(format!("--bisect compresses nothing, and has nothing for {flag}: leave one away")));
    }
    data(&a.data)?;
    shapes(&a.measures.shape, has_data)?;
    let for_training = [
        ("--qat", a.qat),
        ("--prune-by taylor", by == Some("taylor")),
        ("--epochs", a.epochs.is_some_and(|n| n > 0)),
        ("--lr", a.lr.is_some()),
        ("--teacher", a.teacher.is_some()),
        ("--channels-cuts", a.channels_cuts > 1),
    ];
    if let Some((flag, _)) = for_training.iter().find(|(_, given)| *given && !trains(a)) {
        let help = "without data, --epochs N trains on made-up pictures";
        return Err(
            Error::usage(format!("{flag} is for training: it needs --data, and --epochs other than 0")).help(help)
        );
    }
    match a.gates.measured().filter(|_| !checks) {
        Some(flag) => Err(Error::usage(format!("--check none leaves nothing for {flag} to look at"))),
        None => Ok(()),
    }
}

/// Whether something is trained, if there is something to train: on data, or on made-up pictures where epochs are asked for.
pub fn trains(a: &CompressArgs) -> bool {
    a.epochs.map_or(a.data.data.is_some(), |n| n > 0)
}

/// What is said of data.
///
/// # Errors
/// As for [`check`].
pub fn data(data: &DataArgs) -> Result<()> {
    let any = data.data.is_some() || data.eval.is_some();
    first(&[("--preprocess", data.preprocess.is_some(), "--data or --eval", any)])
}

/// What is said of inputs that are made up, where `given` says that there is data for all.
///
/// # Errors
/// As for [`check`].
pub fn shapes(shapes: &[InputShape], given: bool) -> Result<()> {
    first(&[(
        "--shape",
        !shapes.is_empty(),
        "inputs that are made up: the data that is given has its own sizes",
        !given,
    )])
}

fn first(rows: &[Row]) -> Result<()> {
    match rows.iter().find(|(_, given, _, has)| *given && !has) {
        Some((flag, _, needs, _)) => Err(Error::usage(format!("{flag} needs {needs}"))),
        None => Ok(()),
    }
}
