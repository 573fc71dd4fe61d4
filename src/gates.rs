//! Gates: what a result has to keep, decided before any work where it can't be measured.

use crate::{
    data::Sets,
    options::GateOptions,
    report::{Gate, Report, Speed, Verdict},
    shown,
};
use compress_compiler::{
    error::{Error, Result},
    words::{Opt, counted, option},
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
    gate(option::MAX_DROP, gates.max_drop.map(|v| v.get()), &drop, &|limit| match a?.before {
        // Nothing that it loses would be too much.
        Some(before) if !scored && before <= limit && limit < 1.0 => {
            Some(Found::new(f64::NAN, format!("nothing: the original itself has only {}", drop(before)), false))
        }
        _ => a?.drop.map(|v| Found::new(v, drop(v), v <= limit)),
    });
    gate(option::MIN_SQNR, gates.min_sqnr.map(|v| v.get()), &|v| format!("{v} dB"), &|limit| match a?.sqnr_db {
        // Equal outputs have no noise.
        None => a.filter(|a| a.equal && !a.silent).map(|_| Found::new(f64::MAX, "equal".into(), true)),
        Some(db) => Some(Found::new(db, format!("{db:.1} dB"), db >= limit)),
    });
    // Where the answers are not what they seemed to be, decibels stand in the place of the share that the limit is of.
    let a = a.filter(|a| a.reason.is_none());
    let metric = |v: f64| a.map_or_else(|| shown::percent(v), |a| a.metric.unit().show(v));
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

/// Says where a limit can't be told from nothing lost: one sample is more than it.
pub fn too_few(gates: &GateOptions, report: &Report) -> Option<String> {
    let (limit, a) = (gates.max_drop?.get(), report.accuracy.as_ref()?);
    let is_of_samples = match a.metric {
        Metric::Top1 | Metric::Top5 | Metric::Text => true,
        Metric::Agreement => a.agreement.is_some(),
        _ => false,
    };
    let (samples, wanted) = (a.samples as f64, (1.0 / limit).ceil());
    (is_of_samples && limit > 0.0 && samples > 0.0 && samples < wanted).then(|| {
        format!(
            "{} {} was held on {}, of which one is {}: give {} with {wanted} or more",
            option::MAX_DROP,
            shown::percent(limit),
            counted(a.samples, "sample"),
            shown::percent(1.0 / samples),
            option::EVAL
        )
    })
}

/// With `strict`, whether everything that was asked for was done is a gate too, as far as that is known by now.
pub fn strict(gates: &GateOptions, report: &mut Report) {
    if gates.strict {
        report.gates.retain(|gate| gate.name != option::STRICT);
        let n = report.undone.len();
        let verdict = if n == 0 { Verdict::Passed } else { Verdict::Failed };
        let (limit, found) = ("all done".into(), format!("{n} not done"));
        report.gates.push(Gate::new(option::STRICT, limit, 0.0, found, n as f64, verdict));
    }
}

impl Report {
    /// What the run amounts to.
    ///
    /// # Errors
    /// Gate when one failed, when the result is unusable, or, if `strict`, when something that was asked for was not done.
    pub fn verdict(&self, strict: bool) -> Result<()> {
        // What was not done is told below.
        let figures = || self.gates.iter().filter(|g| g.name != option::STRICT);
        if let Some(g) = figures().find(|g| g.verdict == Verdict::Failed) {
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
