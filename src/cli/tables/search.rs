//! What a search found.

use crate::{
    report::Verdict,
    search::{Objectives, SearchPoint, SearchReport, lost},
    shown,
};
use compress_compiler::words::counted;
use std::fmt::Write as _;
use std::time::Duration;

/// The front, the ways of flags alone, and which became the result.
pub fn search(r: &SearchReport) -> String {
    let mut t = String::new();
    let time = shown::duration(Duration::from_secs_f64(r.seconds));
    let failed = if r.failed > 0 { format!(", {} of them came to nothing", r.failed) } else { String::new() };
    let _ = writeln!(
        t,
        "{} tried in {time}{failed}; {} is {}",
        counted(r.tried, "way"),
        r.input.path,
        shown::bytes(r.input.bytes)
    );
    let _ = writeln!(t, "  {:>4} {:>15} {:>8} {:>9} {:>7} {:>10}  way", "", "accuracy", "SQNR", "ms", "faster", "size");
    for p in r.points.iter().filter(|p| p.front) {
        let mark = if Some(p.number) == r.picked { "->" } else { "" };
        let _ = writeln!(t, "{mark:>2}{}{}", line(p, r), if p.plain { " (flags alone)" } else { "" });
    }
    let others: Vec<&SearchPoint> = r.points.iter().filter(|p| !p.front).collect();
    if !others.is_empty() {
        let _ =
            writeln!(t, "  flags alone that others beat, on the {} that chose:", counted(r.samples.chose, "sample"));
        others.iter().for_each(|p| {
            let _ = writeln!(t, "  {}", line(p, r));
        });
    }
    let of_original = before(r).map_or(String::new(), |score| format!("; {} of the original {score}", r.metric));
    let _ = match r.samples.measured {
        0 => writeln!(t, "  on the {} that chose", counted(r.samples.chose, "sample")),
        measured => writeln!(t, "  accuracy on {} that no choice saw{of_original}", counted(measured, "sample")),
    };
    if let Some(last) = r.reached.last() {
        let share = |v: f64| format!("{:.1}%", 100.0 * v);
        let _ = writeln!(
            t,
            "  reached (hypervolume, on the samples that chose): {}, by flags alone {}",
            share(last.hypervolume),
            share(r.plain)
        );
    }
    for g in &r.gates {
        let verdict = match g.verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::Unclear => "can't be told",
        };
        let _ = writeln!(t, "  {} {}: {} {verdict}", g.name, g.limit_shown, g.shown);
    }
    for w in &r.warnings {
        let _ = writeln!(t, "  note: {w}");
    }
    let _ = match &r.output {
        Some(output) => writeln!(t, "  written: {}; models and recipes of the others: {}", output.path, r.folder),
        None => writeln!(t, "  written: {}; `compress merge` makes a result of all parts", r.folder),
    };
    t
}

fn before(r: &SearchReport) -> Option<String> {
    let before = r.points.iter().find_map(|p| p.before)?;
    Some(r.metric.unit().show(before))
}

fn line(p: &SearchPoint, r: &SearchReport) -> String {
    let Objectives { lost: by, time, .. } = p.measured.unwrap_or(p.chosen_by);
    let ms = p.ms.map_or_else(|| "-".into(), |ms| format!("{ms:.3}"));
    let db = p.sqnr_db.map_or_else(|| "equal".into(), |db| format!("{db:.1} dB"));
    let (lost, size) = (lost(by, r.of_share), shown::bytes(p.bytes));
    format!("{:>4} {lost:>15} {db:>8} {ms:>9} {:>6.2}x {size:>10}  {}", p.number, 1.0 / time.max(1e-9), p.way)
}
