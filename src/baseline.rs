//! Gates with a memory: the figures of a check beside those that were accepted last.
//!
//! A baseline is a TOML file with a table for each model, sorted, so that a change of it reads well. Speed is kept as a ratio to
//! the original, timed in the same run: another machine of the same kind gives nearly the same.

use crate::{
    files,
    report::{Gate, Report, Verdict},
    shown,
};
use compress_compiler::{
    error::{Error, Result},
    onnx,
    words::option::{BASELINE, UPDATE_BASELINE},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::File,
    io::{ErrorKind, Read},
    path::Path,
};

/// How much of a figure may be lost, in parts of it.
const TOLERANCE: f64 = 0.01;

/// The same of a speed-up, beyond its interval. The ratio of small models moves by an eighth when another job takes the other
/// thread of a core (2.60x and 2.92x on the digits), so that less would fail by chance.
const SPEED_TOLERANCE: f64 = 0.15;

/// More bytes than any baseline has.
const LARGEST: u64 = 16 << 20;

const HEAD: &str =
    "# Figures of models that a check accepted last. A check with `update-baseline` writes this file.\n\n";

/// The models of a file.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Baseline(BTreeMap<String, Figures>);

/// What was accepted of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Figures {
    /// The size of the model in bytes.
    size: usize,
    /// What its accuracy was measured by.
    metric: String,
    /// The accuracy by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    /// The signal to noise of the worst output, in decibels: infinite where the outputs are equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    sqnr_db: Option<f64>,
    /// How many times as fast as the original it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    speedup: Option<f64>,
    /// On what that was: engine, threads, samples a batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    timed_on: Option<String>,
    /// SHA-256 of the original.
    against: String,
    /// The digest of the data.
    data: String,
}

impl Figures {
    /// The figures of a report, rounded as people read them.
    fn of(report: &Report) -> Result<Self> {
        let (Some(accuracy), Some(output)) = (&report.accuracy, &report.output) else {
            return Err(Error::data(format!("{BASELINE}: nothing was measured")));
        };
        // Figures of some samples say nothing of those that can't be compared.
        let whole = accuracy.unlike == 0;
        let round = |v: f64, digits: i32| (v * 10f64.powi(digits)).round() / 10f64.powi(digits);
        let on = |s: &crate::report::Speed| format!("{}, threads {}, batch {}", s.engine, s.threads, s.batch);
        Ok(Self {
            size: output.bytes,
            metric: accuracy.metric.to_string(),
            score: accuracy.after.filter(|_| whole).map(|v| round(v, 5)),
            sqnr_db: match accuracy.sqnr_db.filter(|_| whole) {
                None if accuracy.equal && !accuracy.silent => Some(f64::INFINITY),
                db => db.map(|v| round(v, 2)),
            },
            speedup: report.speed.as_ref().map(|s| round(s.speedup, 3)),
            timed_on: report.speed.as_ref().map(on),
            against: report.input.sha256.clone(),
            data: report.recipe.data.clone().unwrap_or_default(),
        })
    }
}

/// Holds the figures of a report against those in the file at `path`, or has the file accept them.
///
/// # Errors
/// File when there is no baseline, or it can't be read or written; usage for a file that is not one; data when it is of other
/// data, of another original or by another metric, so that comparing would mean nothing.
pub fn judge(path: &Path, model: &Path, report: &mut Report, update: bool) -> Result<()> {
    let mut baseline = read(path, update)?;
    let name = model.to_string_lossy().into_owned();
    let found = Figures::of(report)?;
    if update {
        let unlike = report.accuracy.as_ref().is_some_and(|a| a.unlike > 0);
        if unlike || report.unusable.is_some() || report.gates.iter().any(|g| g.verdict == Verdict::Failed) {
            let why = match unlike {
                true => "answers to some samples can't be compared, so the figures were not accepted",
                false => "a gate failed, or the result is unusable, so the figures were not accepted",
            };
            report.undone.push(format!("{UPDATE_BASELINE}: {why}"));
            return Ok(());
        }
        baseline.0.insert(name, found);
        let text = toml::to_string(&baseline).map_err(|e| Error::bug(e.to_string()))?;
        onnx::write_atomic(path, (HEAD.to_string() + &text).as_bytes(), true)?;
        report.warnings.push(format!("{} has the figures of this run now", path.display()));
        return Ok(());
    }
    let Some(accepted) = baseline.0.get(&name) else {
        return Err(Error::file(format!("has no figures of {name}")).in_file(path).help(accept()));
    };
    let differ = [
        ("data", &accepted.data, &found.data),
        ("model to compare with", &accepted.against, &found.against),
        ("metric", &accepted.metric, &found.metric),
    ];
    if let Some((what, old, new)) = differ.into_iter().find(|(_, old, new)| old != new) {
        let what = format!("the figures of {name} are of another {what}: {}, now {}", short(old), short(new));
        return Err(Error::data(what).in_file(path).help(accept()));
    }
    let gates = gates(accepted, &found, report);
    report.gates.extend(gates);
    Ok(())
}

fn gates(accepted: &Figures, found: &Figures, report: &Report) -> Vec<Gate> {
    let unit = report.accuracy.as_ref().map(|a| (a.metric.unit(), a.metric.rises()));
    let mut gates = vec![];
    let mut add = |figure: &'static str, limit: (f64, String), value: (f64, String), verdict: Verdict| {
        let shown = format!("{figure} {}", value.1);
        gates.push(Gate::new(BASELINE, limit.1, limit.0, shown, value.0, verdict).of_figure(figure));
    };
    let holds = |holds| if holds { Verdict::Passed } else { Verdict::Failed };
    let size = accepted.size as f64 * (1.0 + TOLERANCE);
    let bytes = |v: f64| shown::bytes(v as usize);
    add("size", (size, bytes(size)), (found.size as f64, bytes(found.size as f64)), holds(found.size as f64 <= size));
    if let (Some((unit, rises)), Some(old)) = (unit, accepted.score) {
        let limit = if rises { old - TOLERANCE * old.abs() } else { old + TOLERANCE * old.abs() };
        let new = found.score.unwrap_or(f64::NAN);
        let kept = if rises { new >= limit } else { new <= limit };
        add("accuracy", (limit, unit.show(limit)), (new, unit.show(new)), holds(kept));
    }
    if let Some(old) = accepted.sqnr_db {
        // Equal outputs have no noise; a report has no infinite numbers.
        let limit = if old.is_infinite() { f64::MAX } else { old - TOLERANCE * old.abs() };
        let new = found.sqnr_db.map_or(f64::NAN, |db| db.min(f64::MAX));
        let shown = |db: f64| if db == f64::MAX { "equal".into() } else { format!("{db:.1} dB") };
        add("output SQNR", (limit, shown(limit)), (new, shown(new)), holds(new >= limit));
    }
    if let (Some(old), Some(s)) = (accepted.speedup, &report.speed) {
        let (limit, verdict) = speed_against(old, s.speedup, s.interval[1]);
        let shown = format!("{:.2}x ({:.2}x to {:.2}x)", s.speedup, s.interval[0], s.interval[1]);
        match accepted.timed_on == found.timed_on {
            true => {
                add("speed", (limit, format!("{limit:.2}x")), (s.speedup, shown), verdict);
            }
            false => {
                let on = accepted.timed_on.as_deref().unwrap_or_default();
                add("speed", (limit, format!("{limit:.2}x on {on}")), (s.speedup, shown), Verdict::Unclear);
            }
        }
    }
    gates
}

/// What a speed-up has to be, given the one that was accepted, and what is said of one whose interval ends at `high`.
fn speed_against(accepted: f64, speedup: f64, high: f64) -> (f64, Verdict) {
    let limit = accepted * (1.0 - SPEED_TOLERANCE);
    let verdict = match () {
        () if speedup >= limit => Verdict::Passed,
        () if high >= limit => Verdict::Unclear,
        () => Verdict::Failed,
    };
    (limit, verdict)
}

fn accept() -> String {
    format!("{UPDATE_BASELINE} accepts the figures of this run")
}

/// A digest as far as people compare it.
fn short(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

fn read(path: &Path, update: bool) -> Result<Baseline> {
    files::replaceable(path)?;
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text)) {
        Ok(_) => toml::from_str(&text)
            .map_err(|e| Error::usage(format!("is not a baseline: {}", e.message())).in_file(path).help(accept())),
        Err(e) if e.kind() == ErrorKind::NotFound && update => Ok(Baseline::default()),
        Err(e) => Err(Error::file(format!("cannot be read: {}", e.kind())).in_file(path).help(accept())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_up_may_lose_what_load_takes_and_not_more() {
        let verdict = |speedup, high| speed_against(2.0, speedup, high).1;
        assert_eq!(verdict(1.72, 1.73), Verdict::Passed);
        assert_eq!(verdict(1.68, 1.69), Verdict::Failed);
        assert_eq!(verdict(1.68, 1.75), Verdict::Unclear);
    }
}
