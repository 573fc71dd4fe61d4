//! The report of a job as a short table.

use crate::{
    Report,
    report::{Gate, Verdict},
    rows::{Row, rows},
};
use std::fmt::Write as _;

/// The report as a short table.
pub fn report(r: &Report) -> String {
    let mut t = String::new();
    let head = Row { name: String::new(), before: "before".into(), after: "after".into(), note: String::new() };
    for Row { name, before, after, note } in std::iter::once(head).chain(rows(r)) {
        let _ = writeln!(t, "{}", format!("  {name:<14}{before:>14}{after:>14}   {note}").trim_end());
    }
    t + &verdicts(r)
}

/// What became of the gates, and what there is to know.
fn verdicts(r: &Report) -> String {
    let mut t = String::new();
    for Gate { name, verdict, limit_shown, shown, .. } in &r.gates {
        let verdict = match verdict {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::Unclear => "too noisy to judge",
        };
        let _ = writeln!(t, "  gate {name}: {verdict} (limit {limit_shown}, measured {shown})");
    }
    for w in &r.warnings {
        let kind = if w.starts_with("WARNING") { "" } else { "note: " };
        let _ = writeln!(t, "  {kind}{w}");
    }
    t
}

/// What comes first of all where a result is not fit for use, and what was asked for and not done.
pub fn headline(r: &Report) -> String {
    let mut t = String::new();
    if let Some(why) = &r.unusable {
        let advice = r.advice.as_ref().map_or(String::new(), |a| format!(". {a}"));
        let _ = writeln!(t, "UNUSABLE: {why}{advice}");
    }
    for g in r.gates.iter().filter(|g| g.verdict == Verdict::Failed) {
        let _ = writeln!(t, "FAILED: {} is {}, measured {}", g.name, g.limit_shown, g.shown);
    }
    t
}
