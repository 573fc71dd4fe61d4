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

/// Holds the measured figures against the gates. One whose figure turned out to have no value has failed.
pub fn judged(gates: &GateArgs, report: &Report) -> Vec<Gate> {
    // A figure of some samples says nothing of those that can't be compared.
    let a = report.accuracy.as_ref().filter(|a| a.unlike == 0);
    let bytes = |v: f64| terminal::bytes(v as usize);
    let plain = |v: f64| v.to_string();
    let held = |holds: bool| if holds { Verdict::Passed } else { Verdict::Failed };
    let mut out = vec![];
    let mut gate =
        |name, limit: Option<f64>, shown_as: &dyn Fn(f64) -> String, found: Option<(f64, String, Verdict)>| {
            let Some(limit) = limit else { return };
            let none = || (f64::NAN, "nothing (the notes say why)".to_string(), Verdict::Failed);
            let (value, shown, verdict) = found.unwrap_or_else(none);
            out.push(Gate::new(name, shown_as(limit), limit, shown, value, verdict));
        };
    let most = |limit: Option<f64>, value: f64| held(limit.is_none_or(|limit| value <= limit));
    let least = |limit: Option<f64>, value: f64| held(limit.is_none_or(|limit| value >= limit));
    let drop = a.and_then(|a| a.drop).map(|v| (v, terminal::percent(v), most(gates.max_drop, v)));
    gate("--max-drop", gates.max_drop, &terminal::percent, drop);
    let sqnr = a.and_then(|a| match a.sqnr_db {
        // Equal outputs have no noise.
        None => (a.equal && !a.silent).then(|| (f64::MAX, "equal".into(), Verdict::Passed)),
        Some(db) => Some((db, format!("{db:.1} dB"), least(gates.min_sqnr, db))),
    });
    gate("--min-sqnr", gates.min_sqnr, &|v| format!("{v} dB"), sqnr);
    let metric = |v: f64| a.map_or_else(|| plain(v), |a| terminal::metric(a.metric, v));
    let score = a.and_then(|a| a.after).map(|v| (v, metric(v), least(gates.min_score, v)));
    gate("--min-score", gates.min_score, &metric, score);
    let speed = report.speed.as_ref();
    let ratio = speed.zip(gates.min_speedup).map(|(s, limit)| {
        let verdict = match () {
            () if s.speedup >= limit => Verdict::Passed,
            () if s.interval[1] < limit => Verdict::Failed,
            () => Verdict::Unclear,
        };
        (s.speedup, format!("{:.2}x ({:.2}x to {:.2}x)", s.speedup, s.interval[0], s.interval[1]), verdict)
    });
    gate("--min-speedup", gates.min_speedup, &|v| format!("{v}x"), ratio);
    let latency = speed.map(|s| (s.after_ms, format!("{:.3} ms", s.after_ms), most(gates.max_latency, s.after_ms)));
    gate("--max-latency", gates.max_latency, &|v| format!("{v} ms"), latency);
    let memory = report.memory.as_ref().map(|m| m.after_bytes as f64);
    gate("--max-memory", gates.max_memory, &bytes, memory.map(|v| (v, bytes(v), most(gates.max_memory, v))));
    let size = report.output.as_ref().map(|o| o.bytes as f64);
    gate("--max-size", gates.max_size, &bytes, size.map(|v| (v, bytes(v), most(gates.max_size, v))));
    out
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
