//! Gates: what a result has to keep, decided before any work where it can't be measured.

use crate::{
    data::Sets,
    options::GateOptions,
    report::{Gate, Report, Speed, Verdict},
    shown,
};
use compress_compiler::{
    error::{Error, Result},
    words::{Opt, option},
};
use compress_runtime::metrics::{Measure, Metric};

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
pub fn feasible(gates: &GateOptions, can: &Measurable) -> Result<()> {
    let asked = [
        (option::MAX_DROP, gates.max_drop.is_some(), true),
        (option::MIN_SQNR, gates.min_sqnr.is_some(), true),
        (option::MIN_SCORE, gates.min_score.is_some(), true),
        (option::MAX_SCORE, gates.max_score.is_some(), true),
        (option::MIN_SPEEDUP, gates.min_speedup.is_some(), false),
        (option::MAX_LATENCY, gates.max_latency.is_some(), false),
        (option::MAX_MEMORY, gates.max_memory.is_some(), false),
    ];
    for (gate, _, of_accuracy) in asked.into_iter().filter(|(_, asked, _)| *asked) {
        let Some((measure, sets)) = &can.accuracy else {
            let why = can.why_not.clone().unwrap_or_else(|| "the models are not run".into());
            return Err(Error::data(format!("{gate} can't be measured: {why}"))
                .help(format!("remove {gate}, or give models that run here")));
        };
        if of_accuracy && sets.evaluation.synthetic && !gates.allow_synthetic {
            let what = format!("{gate} needs data: a figure on made-up inputs says little about real inputs");
            let help = format!(
                "give {} or {}; {} gates on made-up inputs",
                option::DATA,
                option::EVAL,
                option::ALLOW_SYNTHETIC
            );
            return Err(Error::data(what).help(help));
        }
        let metric = measure.metric;
        if gate == option::MAX_DROP && !metric.is_share() && !can.scored {
            let what = format!("{gate} needs a metric that is a share, but the outputs are measured as {metric}");
            if !metric.rises() {
                return Err(Error::data(what).help(format!(
                    "give {}, or another {}",
                    option::MAX_SCORE,
                    option::METRIC
                )));
            }
            return Err(Error::data(what).help(format!(
                "give {} in decibels, another {}, labels, or {} COMMAND",
                option::MIN_SQNR,
                option::METRIC,
                option::SCORE
            )));
        }
        if gate == option::MIN_SCORE && !can.scored && !metric.rises() {
            return Err(Error::data(format!("{gate} can't judge {metric}: a lower value is better there"))
                .help(format!("give {}, or another {}", option::MAX_SCORE, option::METRIC)));
        }
        if gate == option::MAX_SCORE && (can.scored || metric.rises()) {
            let what = if can.scored { "a score" } else { metric.name() };
            return Err(Error::data(format!("{gate} can't judge {what}: a higher value is better there"))
                .help(format!("give {}, or another {}", option::MIN_SCORE, option::METRIC)));
        }
    }
    Ok(())
}

/// A measured figure, how people read it, and what it makes of a gate.
struct Found {
    value: f64,
    shown: String,
    verdict: Verdict,
}

impl Found {
    fn new(value: f64, shown: String, holds: bool) -> Self {
        Self { value, shown, verdict: if holds { Verdict::Passed } else { Verdict::Failed } }
    }
}

/// What a ratio of speeds, which lies between the bounds of `interval`, makes of the least one asked for.
pub fn speedup(value: f64, [_, high]: [f64; 2], limit: f64) -> Verdict {
    match () {
        () if value >= limit => Verdict::Passed,
        () if high >= limit => Verdict::Unclear,
        () => Verdict::Failed,
    }
}

/// Holds the measured figures against the gates. One whose figure turned out to have no value has failed.
pub fn judged(gates: &GateOptions, report: &Report) -> Vec<Gate> {
    // A figure of some samples says nothing of those that can't be compared.
    let a = report.accuracy.as_ref().filter(|a| a.unlike == 0);
    let bytes = |v: f64| shown::bytes(v as usize);
    let mut out = vec![];
    let mut gate =
        |name: Opt, limit: Option<f64>, show: &dyn Fn(f64) -> String, find: &dyn Fn(f64) -> Option<Found>| {
            let Some(limit) = limit else { return };
            let none = || Found::new(f64::NAN, "nothing (the notes say why)".into(), false);
            let Found { value, shown, verdict } = find(limit).unwrap_or_else(none);
            out.push(Gate::new(name, show(limit), limit, shown, value, verdict));
        };
    // A score of the user's own need not be a share.
    let scored = a.is_some_and(|a| a.metric == Metric::Score);
    let drop = |v: f64| if scored { format!("{v:.4}") } else { shown::percent(v) };
    gate(option::MAX_DROP, gates.max_drop.map(|v| v.get()), &drop, &|limit| {
        a.and_then(|a| a.drop).map(|v| Found::new(v, drop(v), v <= limit))
    });
    gate(option::MIN_SQNR, gates.min_sqnr.map(|v| v.get()), &|v| format!("{v} dB"), &|limit| match a?.sqnr_db {
        // Equal outputs have no noise.
        None => a.filter(|a| a.equal && !a.silent).map(|_| Found::new(f64::MAX, "equal".into(), true)),
        Some(db) => Some(Found::new(db, format!("{db:.1} dB"), db >= limit)),
    });
    let metric = |v: f64| a.map_or_else(|| v.to_string(), |a| a.metric.unit().show(v));
    gate(option::MIN_SCORE, gates.min_score.map(|v| v.get()), &metric, &|limit| {
        a.and_then(|a| a.after).map(|v| Found::new(v, metric(v), v >= limit))
    });
    gate(option::MAX_SCORE, gates.max_score.map(|v| v.get()), &metric, &|limit| {
        a.and_then(|a| a.after).map(|v| Found::new(v, metric(v), v <= limit))
    });
    let speed = report.speed.as_ref();
    gate(option::MIN_SPEEDUP, gates.min_speedup.map(|v| v.get()), &|v| format!("{v}x"), &|limit| {
        let of = |s: &Speed| Found {
            value: s.speedup,
            shown: shown::speedup(s.speedup, s.interval),
            verdict: speedup(s.speedup, s.interval, limit),
        };
        speed.map(of)
    });
    gate(option::MAX_LATENCY, gates.max_latency.map(|v| v.get()), &|v| format!("{v} ms"), &|limit| {
        speed.map(|s| Found::new(s.after_ms, format!("{:.3} ms", s.after_ms), s.after_ms <= limit))
    });
    gate(option::MAX_MEMORY, gates.max_memory.map(|v| v.get()), &bytes, &|limit| {
        report.memory.as_ref().map(|m| m.after_bytes as f64).map(|v| Found::new(v, bytes(v), v <= limit))
    });
    gate(option::MAX_SIZE, gates.max_size.map(|v| v.get()), &bytes, &|limit| {
        report.output.as_ref().map(|o| o.bytes as f64).map(|v| Found::new(v, bytes(v), v <= limit))
    });
    out
}

impl Report {
    /// What the run amounts to.
    ///
    /// # Errors
    /// Gate when one failed, when the result is unusable, or, if `strict`, when something that was asked for was not done.
    pub fn verdict(&self, strict: bool) -> Result<()> {
        if let Some(g) = self.gates.iter().find(|g| g.verdict == Verdict::Failed) {
            return Err(Error::gate(format!("{} is {}, measured {}", g.name, g.limit_shown, g.shown)));
        }
        if let Some(why) = &self.unusable {
            return Err(Error::gate(format!("the result is unusable: {why}")));
        }
        match self.undone.first() {
            Some(what) if strict => Err(Error::gate(format!("{}: {what}", option::STRICT))),
            _ => Ok(()),
        }
    }
}
