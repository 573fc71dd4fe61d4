//! The figures of a sweep.

use crate::rows::{sqnr, training};
use crate::{report::SweepReport, shown};
use compress_compiler::words::{counted, option::PRUNE};
use std::fmt::Write as _;

/// The figures of all fractions side by side.
pub fn sweep(r: &SweepReport) -> String {
    let mut t = figures(r);
    for p in &r.sweep {
        let of = format!("  {PRUNE} {}:", p.fraction);
        for g in p.gates.iter().filter(|g| !g.passed) {
            let _ = writeln!(t, "{of} gate {} FAILED (limit {}, measured {})", g.name, g.limit_shown, g.shown);
        }
        if let Some(why) = &p.unusable {
            let _ = writeln!(t, "{of} UNUSABLE: {why}");
        }
    }
    for w in &r.warnings {
        let _ = writeln!(t, "  note: {w}");
    }
    for p in &r.sweep {
        let _ = writeln!(t, "  {PRUNE} {}:", p.fraction);
        for done in &p.trained {
            let [before, after, course] = training(done);
            let _ = writeln!(t, "    {}: {before} -> {after}, {course}", done.name);
        }
        for w in &p.warnings {
            let _ = writeln!(t, "    note: {w}");
        }
    }
    let files: Vec<&str> = r.sweep.iter().map(|p| &p.output.path[..]).chain(r.plot.as_deref()).collect();
    let _ = writeln!(t, "  written: {}", files.join(", "));
    t
}

/// A line for the original and one for each fraction.
fn figures(r: &SweepReport) -> String {
    let mut t = String::new();
    let mut line = |cells: [String; 8]| {
        let [first, rest @ ..] = cells;
        let rest: String = rest.iter().map(|c| format!("{c:>13}")).collect();
        let _ = writeln!(t, "{}", format!("  {first:<9}{rest}").trim_end());
    };
    let accuracy = r.sweep.first().and_then(|p| p.accuracy.as_ref());
    let metric = accuracy.map(|a| a.metric);
    let none = || "-".to_string();
    let time = |ms: f64| format!("{ms:.3} ms");
    let share = |v: Option<f64>| v.map_or_else(none, shown::percent);
    let zstd = |b: Option<usize>| b.map_or_else(none, shown::bytes);
    let score = |v: Option<f64>| v.zip(metric).map_or_else(none, |(v, m)| m.unit().show(v));
    let name = metric.map_or("accuracy", |m| m.name());
    let prune = PRUNE.to_string();
    line([&prune, "zeros", name, "agreement", "SQNR", "size", "size, zstd", "latency"].map(String::from));
    line([
        "original".into(),
        shown::percent(1.0 - r.input.nonzero as f64 / r.input.parameters.max(1) as f64),
        score(accuracy.and_then(|a| a.before)),
        none(),
        none(),
        shown::bytes(r.input.bytes),
        zstd(r.input.zstd_bytes),
        r.sweep.first().and_then(|p| p.speed.as_ref()).map_or_else(none, |s| time(s.before_ms)),
    ]);
    for p in &r.sweep {
        let a = p.accuracy.as_ref();
        line([
            p.fraction.to_string(),
            shown::percent(p.sparsity),
            score(a.and_then(|a| a.after)),
            share(a.and_then(|a| a.agreement)),
            a.map_or_else(none, sqnr),
            shown::bytes(p.output.bytes),
            zstd(p.output.zstd_bytes),
            p.speed.as_ref().map_or_else(none, |s| time(s.after_ms)),
        ]);
    }
    if let Some(a) = accuracy {
        let made_up = if a.synthetic { ", made-up inputs" } else { "" };
        let _ = writeln!(t, "  measured on {}{made_up}", counted(a.samples, "sample"));
    }
    t
}
