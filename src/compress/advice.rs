//! What a user should know of how a result was made, and what would help where it is not fit for use.

use super::{CompressPlan, Opened};
use crate::{
    assess::compared_by,
    data::Sets,
    events::{Ask, Event, Monitor},
    explain::{Remedy, Trial, find_remedy},
    measure, remarks,
    report::Report,
};
use compress_compiler::{
    error::{Kind, Result},
    words::option::{DATA, EXCLUDE, PRUNE},
};
use compress_passes::Options;
use compress_runtime::{
    device::DeviceChoice,
    onnxruntime::Provider,
    session::{Backend, EngineChoice},
};
use std::time::{Duration, Instant};

/// Fractions that are tried, how long that may take, and on how many samples each is measured.
const TRIED: usize = 6;
const TIME: Duration = Duration::from_secs(8);
const SAMPLES: usize = 32;

/// Says what would help, if the result of `plan` is not fit for use.
///
/// # Errors
/// Whatever running the model can raise.
pub fn of(opened: &Opened, plan: &CompressPlan, report: &Report, monitor: &Monitor) -> Result<Option<String>> {
    if report.unusable.is_none() {
        return Ok(None);
    }
    let mut ways = vec![];
    if plan.recipe.data.data.is_none() {
        ways.push(format!("Give {DATA}: some hundred samples of what the model will be given"));
    }
    if let Some(fraction) = largest(opened, plan, monitor)? {
        ways.push(format!("{PRUNE} {fraction:.2} is fit for use even without solving or training for what is left"));
    } else if plan.options.prune.is_some() {
        ways.push("Ask for a lower fraction".into());
    }
    if ways.is_empty() || plan.options.scheme.is_some() {
        ways.push(format!("{EXCLUDE} the layers that lose most (`layers` in the report)"));
    }
    Ok(Some(ways.join(". ")))
}

/// The largest fraction found whose result is fit for use, when the smallest weights are zeroed and that is all; `None` where
/// none is found in time, or nothing of the kind was asked for.
fn largest(opened: &Opened, plan: &CompressPlan, monitor: &Monitor) -> Result<Option<f64>> {
    let (Some(asked), None) = (plan.options.prune, &plan.recipe.dump_ir) else { return Ok(None) };
    let began = Instant::now();
    let progress = monitor.step("try fractions", TRIED);
    let silent = Silent(*monitor);
    let (mut holds, mut fails) = (0.0, asked);
    for _ in 0..TRIED {
        if began.elapsed() >= TIME {
            break;
        }
        let fraction = (holds + fails) / 2.0;
        match is_usable(opened, plan, fraction, &Monitor(&silent)) {
            Ok(true) => holds = fraction,
            Ok(false) => fails = fraction,
            Err(e) if e.kind() == Kind::Interrupted => return Err(e),
            // Advice is not worth an error.
            Err(_) => return Ok(None),
        }
        progress.advance(1);
    }
    // Down to what is printed.
    Ok(Some((holds * 100.0).floor() / 100.0).filter(|f| *f > 0.0))
}

/// The layers to leave out of INT8, if the result is slower than the original on ONNX Runtime, and that helps.
///
/// # Errors
/// Interrupted.
pub fn for_deployment(
    opened: &Opened,
    plan: &CompressPlan,
    report: &Report,
    monitor: &Monitor,
) -> Result<Option<Remedy>> {
    let (Some(deployed), Some(sets)) = (&report.deployed, &opened.sets) else { return Ok(None) };
    if deployed.speed.interval[1] >= 1.0 || plan.options.scheme.is_none() || plan.recipe.dump_ir.is_some() {
        return Ok(None);
    }
    let on = &plan.recipe.on;
    let backend = Backend::open(DeviceChoice::Cpu, EngineChoice::OnnxRuntime(Provider::Cpu), on.ort.as_deref())?;
    let silent = Silent(*monitor);
    let trial = Trial {
        opened,
        plan,
        samples: &sets.evaluation,
        backend: &backend,
        batch: on.batch.get(),
        monitor: &Monitor(&silent),
    };
    match find_remedy(deployed.speed.speedup, &deployed.parts, &|layers| trial.without(layers)) {
        Err(e) if e.kind() == Kind::Interrupted => Err(e),
        // Advice is not worth an error.
        found => Ok(found.ok().flatten().filter(|remedy| !remedy.layers.is_empty())),
    }
}

/// Asks whether to stop, and tells nothing.
struct Silent<'a>(Monitor<'a>);

impl Ask for Silent<'_> {
    fn tell(&self, _: Event) {}

    fn stopped(&self) -> bool {
        self.0.stopped()
    }
}

fn is_usable(opened: &Opened, plan: &CompressPlan, fraction: f64, monitor: &Monitor) -> Result<bool> {
    let (Some(sets), Some(before)) = (&opened.sets, &opened.before) else { return Ok(false) };
    let options = Options {
        prune: Some(fraction),
        reconstruct: false,
        training: None,
        search: None,
        qat: false,
        ..opened.options(plan)
    };
    let made = opened.compile(plan, &plan.pipeline(&options), &mut Report::default(), monitor)?;
    let after = measure::session(&made.graph, &opened.backend)?;
    let samples = sets.evaluation.first(SAMPLES);
    let compared = compared_by([&opened.original.graph, &made.graph], &plan.recipe.measures, sets)?;
    let accuracy = measure::accuracy(before, &after, &samples, &compared, (Kind::Data, None), monitor)?;
    Ok(remarks::unusable(&accuracy).is_none())
}

/// What was done on which inputs, where none were given.
pub fn without_data(plan: &CompressPlan, sets: &Sets, failed: Option<String>) -> String {
    let why = failed.map_or("the model has no BatchNormalization to match them to".into(), |e| {
        format!("they could not be matched to its BatchNormalizations: {e}")
    });
    let solves = plan.options.reconstruct && !sets.is_noise();
    let what = match (solves, plan.recipe.calibrates()) {
        (true, true) => Some("layers were pruned and activation ranges calibrated"),
        (true, false) => Some("layers were pruned"),
        (false, true) => Some("activation ranges were calibrated"),
        (false, false) => None,
    };
    let inputs = match sets.matched {
        Some([first, last]) => format!(
            "{} made-up inputs: noise, changed until the BatchNormalizations read about the means and variances that they \
             saw in training (squared error {first:.3} at first, {last:.3} then)",
            sets.calibration.indices.len()
        ),
        None if sets.is_noise() => format!("made-up inputs (standard normal noise: {why})"),
        None => format!("made-up pictures (dead leaves, with a mean of 0 and a variance of 1: {why})"),
    };
    let done = match what {
        Some(what) => format!("{what} on {inputs}"),
        None => format!("weights were chosen by magnitude, as made-up inputs would be mere noise ({why})"),
    };
    format!("NO DATA: {done}; accuracy on real inputs may be far lower than any figure here. Give {DATA}")
}
