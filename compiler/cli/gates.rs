//! Gates: what a result has to keep, decided before any work where it can't be measured.

use crate::{args::GateArgs, data::Sets, terminal};
use compress_compiler::{
    error::{Error, Result},
    report::{Gate, Report, Verdict},
};
use compress_runtime::metrics::Measure;

/// What can be measured, as far as that is known before any work.
pub struct Measurable<'a> {
    /// What the models are compared by and on which data; `None` where they are not run.
    pub accuracy: Option<(Measure, &'a Sets)>,
    /// Why they are not run.
    pub why_not: Option<String>,
    /// Whether the user's own program scores them.
    pub scored: bool,
}

/// Refuses gates on what won't be measured, or would mean nothing.
///
/// # Errors
/// Data, with what to give instead.
pub fn feasible(gates: &GateArgs, can: &Measurable) -> Result<()> {
    let flags = [
        ("--max-drop", gates.max_drop.is_some(), true),
        ("--min-sqnr", gates.min_sqnr.is_some(), true),
        ("--min-score", gates.min_score.is_some(), true),
        ("--min-speedup", gates.min_speedup.is_some(), false),
        ("--max-latency", gates.max_latency.is_some(), false),
        ("--max-memory", gates.max_memory.is_some(), false),
    ];
    for (flag, _, of_accuracy) in flags.into_iter().filter(|(_, asked, _)| *asked) {
        let Some((measure, sets)) = &can.accuracy else {
            let why = can.why_not.clone().unwrap_or_else(|| "the models are not run".into());
            return Err(Error::data(format!("{flag} can't be measured: {why}"))
                .help(format!("leave {flag} away, or make the models run")));
        };
        if of_accuracy && sets.evaluation.synthetic && !gates.allow_synthetic {
            let what = format!("{flag} would be measured on made-up inputs, which says little of real ones");
            return Err(Error::data(what).help("give --data or --eval; --allow-synthetic gates on made-up inputs"));
        }
        let metric = measure.metric;
        match flag {
            "--max-drop" if !metric.is_share() && !can.scored => {
                let what =
                    format!("--max-drop needs a metric that is a share, but the outputs are measured as {metric}");
                return Err(
                    Error::data(what).help("give --min-sqnr in decibels, another --metric, labels, or --score COMMAND")
                );
            }
            "--min-score" if !can.scored && !metric.is_share() && metric.name() != "sqnr" => {
                return Err(Error::data(format!("--min-score of {metric} means nothing: less is better there"))
                    .help("give another --metric, or --score COMMAND"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Holds the measured figures against the gates.
///
/// # Errors
/// Data for a gate on what turned out not to be measured.
pub fn judged(gates: &GateArgs, report: &Report) -> Result<Vec<Gate>> {
    let mut out = vec![];
    let missing = |flag: &str| {
        Error::data(format!("{flag} was asked for, but its figure was not measured"))
            .help("the warnings of the report say why")
    };
    let verdict = |holds: bool| if holds { Verdict::Passed } else { Verdict::Failed };
    let a = report.accuracy.as_ref();
    if let Some(limit) = gates.max_drop {
        let value = a.and_then(|a| a.drop).ok_or_else(|| missing("--max-drop"))?;
        out.push(Gate::new(
            "--max-drop",
            terminal::percent(limit),
            limit,
            terminal::percent(value),
            value,
            verdict(value <= limit),
        ));
    }
    if let Some(limit) = gates.min_sqnr {
        let a = a.ok_or_else(|| missing("--min-sqnr"))?;
        // Equal outputs have no noise.
        let value = a.sqnr_db.or(a.equal.then_some(f64::MAX)).ok_or_else(|| missing("--min-sqnr"))?;
        let shown = a.sqnr_db.map_or("equal".into(), |db| format!("{db:.1} dB"));
        out.push(Gate::new("--min-sqnr", format!("{limit} dB"), limit, shown, value, verdict(value >= limit)));
    }
    if let Some(limit) = gates.min_score {
        let a = a.ok_or_else(|| missing("--min-score"))?;
        let value = a.after.ok_or_else(|| missing("--min-score"))?;
        let shown = |v: f64| terminal::metric(a.metric, v);
        out.push(Gate::new("--min-score", shown(limit), limit, shown(value), value, verdict(value >= limit)));
    }
    if let Some(limit) = gates.min_speedup {
        let s = report.speed.as_ref().ok_or_else(|| missing("--min-speedup"))?;
        let held = match () {
            () if s.speedup >= limit => Verdict::Passed,
            () if s.interval[1] < limit => Verdict::Failed,
            () => Verdict::Unclear,
        };
        let shown = format!("{:.2}x ({:.2}x to {:.2}x)", s.speedup, s.interval[0], s.interval[1]);
        out.push(Gate::new("--min-speedup", format!("{limit}x"), limit, shown, s.speedup, held));
    }
    if let Some(limit) = gates.max_latency {
        let value = report.speed.as_ref().ok_or_else(|| missing("--max-latency"))?.after_ms;
        out.push(Gate::new(
            "--max-latency",
            format!("{limit} ms"),
            limit,
            format!("{value:.3} ms"),
            value,
            verdict(value <= limit),
        ));
    }
    let bytes = |v: f64| terminal::bytes(v as usize);
    if let Some(limit) = gates.max_memory {
        let value = report.memory.as_ref().ok_or_else(|| missing("--max-memory"))?.after_bytes as f64;
        out.push(Gate::new("--max-memory", bytes(limit), limit, bytes(value), value, verdict(value <= limit)));
    }
    if let (Some(limit), Some(o)) = (gates.max_size, &report.output) {
        let value = o.bytes as f64;
        out.push(Gate::new("--max-size", bytes(limit), limit, bytes(value), value, verdict(value <= limit)));
    }
    Ok(out)
}

/// What the run amounts to.
///
/// # Errors
/// Gate when one failed, when the result is unusable, or, if `strict`, when something that was asked for was not done.
pub fn verdict(report: &Report, strict: bool) -> Result<()> {
    if let Some(g) = report.gates.iter().find(|g| g.verdict == Verdict::Failed) {
        return Err(Error::gate(format!("{} is {}, measured {}", g.name, g.limit_shown, g.shown)));
    }
    if let Some(why) = &report.unusable {
        return Err(Error::gate(format!("the result is unusable: {why}")));
    }
    match report.undone.first() {
        Some(what) if strict => Err(Error::gate(format!("--strict: {what}"))),
        _ => Ok(()),
    }
}
