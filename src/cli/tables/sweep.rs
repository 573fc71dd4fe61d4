//! The figures of a sweep.

use super::report::{sqnr, training};
use compress::{report::SweepReport, shown};
use compress_compiler::words::counted;
use std::fmt::Write as _;

/// The figures of all fractions side by side.
pub fn sweep(r: &SweepReport) -> String {
    let mut t = String::new();
    let mut line = |cells: [String; 8]| {
        let [first, rest @ ..] = cells;
        let rest: String = rest.iter().map(|c| format!("{c:>13}")).collect();
        let _ = writeln!(t, "{}", format!("  {first:<9}{rest}").trim_end());
    };
    let metric = r.sweep.first().and_then(|p| p.accuracy.as_ref()).map(|a| a.metric);
    line(
        [
            "--prune",
            "zeros",
            metric.map_or("accuracy", |m| m.name()),
            "agreement",
            "SQNR",
            "size",
            "size, zstd",
            "latency",
        ]
        .map(String::from),
    );
    let time = |ms: f64| format!("{ms:.3} ms");
    let share = |v: Option<f64>| v.map_or("-".into(), shown::percent);
    let zstd = |b: Option<usize>| b.map_or("-".into(), shown::bytes);
    let of_first = r.sweep.first();
    line([
        "original".into(),
        shown::percent(1.0 - r.input.nonzero as f64 / r.input.parameters.max(1) as f64),
        of_first.and_then(|p| p.accuracy.as_ref()?.before).zip(metric).map_or("-".into(), |(v, m)| m.unit().show(v)),
        "-".into(),
        "-".into(),
        shown::bytes(r.input.bytes),
        zstd(r.input.zstd_bytes),
        of_first.and_then(|p| p.speed.as_ref()).map_or("-".into(), |s| time(s.before_ms)),
    ]);
    for p in &r.sweep {
        let a = p.accuracy.as_ref();
        line([
            p.fraction.to_string(),
            shown::percent(p.sparsity),
            a.and_then(|a| a.after).zip(metric).map_or("-".into(), |(v, m)| m.unit().show(v)),
            share(a.and_then(|a| a.agreement)),
            a.map_or("-".into(), sqnr),
            shown::bytes(p.output.bytes),
            zstd(p.output.zstd_bytes),
            p.speed.as_ref().map_or("-".into(), |s| time(s.after_ms)),
        ]);
    }
    if let Some(a) = of_first.and_then(|p| p.accuracy.as_ref()) {
        let made_up = if a.synthetic { ", made-up inputs" } else { "" };
        let _ = writeln!(t, "  measured on {}{made_up}", counted(a.samples, "sample"));
    }
    for p in &r.sweep {
        for g in p.gates.iter().filter(|g| !g.passed) {
            let _ = writeln!(
                t,
                "  --prune {}: gate {} FAILED (limit {}, measured {})",
                p.fraction, g.name, g.limit_shown, g.shown
            );
        }
        if let Some(why) = &p.unusable {
            let _ = writeln!(t, "  --prune {}: UNUSABLE: {why}", p.fraction);
        }
    }
    for w in &r.warnings {
        let _ = writeln!(t, "  note: {w}");
    }
    for p in &r.sweep {
        let _ = writeln!(t, "  --prune {}:", p.fraction);
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
