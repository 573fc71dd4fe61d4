//! Markdown, as GitHub and GitLab show it in a summary or a comment.

use crate::{
    Report,
    report::Verdict,
    rows::{Row, rows},
};
use std::fmt::Write as _;

/// The report as a section in Markdown.
pub fn markdown(r: &Report) -> String {
    let output = r.output.as_ref().map_or("", |o| &o.path);
    let failed = r.unusable.is_some() || r.gates.iter().any(|g| g.verdict == Verdict::Failed);
    let verdict = if failed { "failed" } else { "passed" };
    let verdict = if r.gates.is_empty() && !failed { String::new() } else { format!(": **{verdict}**") };
    let mut t = format!("### {} from {}{verdict}\n\n", code(output), code(&r.input.path));
    if let Some(why) = &r.unusable {
        let _ = writeln!(t, "**Unusable**: {}\n", plain(why));
    }
    if !r.gates.is_empty() {
        t += "| gate | limit | measured | |\n|---|---|---|---|\n";
        for g in &r.gates {
            let verdict = match g.verdict {
                Verdict::Passed => "passed",
                Verdict::Failed => "**failed**",
                Verdict::Unclear => "too noisy to judge",
            };
            let _ = writeln!(
                t,
                "| {} | {} | {} | {verdict} |",
                code(&g.name.flag()) + &g.figure.as_deref().map_or(String::new(), |f| format!(" {f}")),
                plain(&g.limit_shown),
                plain(&g.shown)
            );
        }
        t += "\n";
    }
    t += "| | before | after | |\n|---|--:|--:|---|\n";
    for Row { name, before, after, note } in rows(r) {
        let [name, before, after, note] = [name, before, after, note].map(|cell| plain(cell.trim()));
        let _ = writeln!(t, "| {name} | {before} | {after} | {note} |");
    }
    if !r.warnings.is_empty() || !r.undone.is_empty() {
        t += "\n";
        r.undone.iter().for_each(|w| t += &format!("- **not done**: {}\n", plain(w)));
        r.warnings.iter().for_each(|w| t += &format!("- {}\n", plain(w)));
    }
    t
}

/// Text in which nothing is markup. What stands between backticks stays code.
fn plain(text: &str) -> String {
    let mut t = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => t.push(' '),
            '|' | '*' | '_' | '<' | '>' | '[' | ']' | '#' | '\\' => t.extend(['\\', c]),
            c => t.push(c),
        }
    }
    t
}

/// A name as code.
fn code(name: &str) -> String {
    format!("`{}`", name.replace(['`', '\n', '|'], " "))
}
