//! The parts that all pages have: the frame, the verdict, gates, notes, and how to run it again.

use crate::{
    command::command,
    report::{FileFacts, Gate, Recorded, Verdict},
    shown,
};
use compress_compiler::words::{counted, option::FORCE};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// The page loads nothing: its style and its script are inside.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";

/// Longer texts are cut: a name may have any length.
const LONGEST: usize = 600;

/// Lines of a list of notes.
const MOST_NOTES: usize = 100;

/// A section of a page. It is left out where it has no content.
pub struct Section {
    /// Its anchor.
    pub id: &'static str,
    pub title: &'static str,
    pub content: Markup,
}

impl Section {
    pub fn new(id: &'static str, title: &'static str, content: Markup) -> Self {
        Self { id, title, content }
    }
}

/// One of the few figures at the head.
pub struct Headline {
    pub name: &'static str,
    pub value: String,
    /// What it is compared with, and what it was measured on.
    pub note: String,
}

/// How the whole turned out: an icon and a sentence.
pub struct Outcome {
    /// `None` where nobody asked for a verdict.
    pub verdict: Option<Verdict>,
    pub says: String,
}

/// The page.
pub fn page(title: &str, head: Markup, sections: Vec<Section>) -> String {
    let sections: Vec<Section> = sections.into_iter().filter(|s| !s.content.0.is_empty()).collect();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (cut(title)) }
                style { (PreEscaped(include_str!("page.css"))) }
            }
            body {
                header { (head) }
                nav aria-label="Sections" {
                    @for s in &sections { a href={ "#" (s.id) } { (s.title) } }
                }
                main {
                    @for s in &sections {
                        section #(s.id) {
                            h2 { (s.title) }
                            (s.content)
                        }
                    }
                }
                script { (PreEscaped(include_str!("page.js"))) }
            }
        }
    };
    markup.0.chars().map(printable).collect()
}

/// A character that HTML may have. What would turn the direction of text could make a name look like another.
fn printable(c: char) -> char {
    let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_none = matches!(c, '\u{fdd0}'..='\u{fdef}') || c as u32 & 0xfffe == 0xfffe;
    if c != '\n' && c.is_control() || turns || is_none { char::REPLACEMENT_CHARACTER } else { c }
}

/// A text without its middle, if it is too long.
pub fn cut(text: &str) -> String {
    shown::shortened(text, LONGEST)
}

/// A sentence of a report, in which names stand between backticks.
pub fn prose(text: &str) -> Markup {
    let text = cut(text);
    let parts: Vec<&str> = text.split('`').collect();
    // A name with a backtick of its own leaves one over.
    let paired = parts.len() % 2 == 1;
    html! {
        @if paired {
            @for (i, part) in parts.iter().enumerate() { @if i % 2 == 1 { code { (part) } } @else { (part) } }
        } @else { (text) }
    }
}

/// The last part of a path.
pub fn file_name(path: &str) -> String {
    cut(path.rsplit(['/', '\\']).next().unwrap_or(path))
}

/// What the page is of, how it turned out, and the figures that matter most.
pub fn head(what: &str, result: &str, from: Markup, outcome: &Outcome, figures: &[Headline]) -> Markup {
    html! {
        p.kind { (what) }
        h1 { (file_name(result)) }
        p.from { (from) }
        p.verdict { (icon(outcome.verdict)) span { (prose(&outcome.says)) } }
        dl.figures {
            @for f in figures {
                div { dt { (f.name) } dd { strong { (f.value) } span { (f.note) } } }
            }
        }
    }
}

/// The icon of a verdict; words stand beside it.
fn icon(verdict: Option<Verdict>) -> Markup {
    let (class, d) = match verdict {
        Some(Verdict::Passed) => ("good", "M4 8.5l3 3 5.5-7"),
        Some(Verdict::Failed) => ("bad", "M4.5 4.5l7 7m0-7l-7 7"),
        Some(Verdict::Unclear) => ("unclear", "M6 6a2 2 0 1 1 2 2.3v1m0 2.2v.1"),
        None => ("none", "M4.5 8h7"),
    };
    html! {
        svg.icon.(class) viewBox="0 0 16 16" width="16" height="16" aria-hidden="true" {
            circle cx="8" cy="8" r="8" {}
            path d=(d) {}
        }
    }
}

/// A verdict in a cell.
pub fn verdict(v: Verdict) -> Markup {
    let word = match v {
        Verdict::Passed => "passed",
        Verdict::Failed => "failed",
        Verdict::Unclear => "too noisy to judge",
    };
    html! { span.verdict { (icon(Some(v))) (word) } }
}

/// How gates turned out, in a sentence.
pub fn outcome(gates: &[Gate], unusable: Option<&str>) -> Outcome {
    let failed = gates.iter().filter(|g| g.verdict == Verdict::Failed).count();
    let unclear = gates.iter().filter(|g| g.verdict == Verdict::Unclear).count();
    let (verdict, says) = match (unusable, failed, unclear, gates.len()) {
        (Some(why), ..) => (Some(Verdict::Failed), format!("Not fit for use: {why}")),
        (None, 0, 0, 0) => (None, "No gates were set, so nothing was judged.".into()),
        (None, 0, 0, 1) => (Some(Verdict::Passed), "The gate passed.".into()),
        (None, 0, 0, n) => (Some(Verdict::Passed), format!("All {n} gates passed.")),
        (None, 0, unclear, n) => (
            Some(Verdict::Unclear),
            format!("{unclear} of {} can't be judged: the figures are too noisy.", counted(n, "gate")),
        ),
        (None, failed, _, n) => (Some(Verdict::Failed), format!("{failed} of {} failed.", counted(n, "gate"))),
    };
    Outcome { verdict, says }
}

/// Gates with limit and measured figure. `of` names the model of each, where there are several.
pub fn gates(all: &[(Option<String>, &Gate)]) -> Markup {
    let several = all.iter().any(|(of, _)| of.is_some());
    let titles = [("Fraction", false), ("Gate", false), ("Limit", true), ("Measured", true), ("Verdict", false)];
    html! {
        @if !all.is_empty() {
            (scroll("Gates", html! {
                table {
                    (heads(&titles[usize::from(!several)..]))
                    tbody {
                        @for (of, g) in all {
                            tr {
                                @if let Some(of) = of { td { (of) } }
                                th scope="row" { code { (g.name.flag()) } @if let Some(figure) = &g.figure { " " (figure) } }
                                td.num { (g.limit_shown) }
                                td.num { (g.shown) }
                                td { (verdict(g.verdict)) }
                            }
                        }
                    }
                }
            }))
        }
    }
}

/// What was left undone, then what a user should read, then advice.
pub fn notes(undone: &[String], warnings: &[String], advice: Option<&str>) -> Markup {
    let all = undone.iter().map(|w| ("Not done: ", w)).chain(warnings.iter().map(|w| ("", w)));
    let more = (undone.len() + warnings.len()).saturating_sub(MOST_NOTES);
    html! {
        @if !undone.is_empty() || !warnings.is_empty() || advice.is_some() {
            ul.notes {
                @if let Some(advice) = advice { li { strong { "Advice: " } (prose(advice)) } }
                @for (kind, what) in all.take(MOST_NOTES) { li { strong { (kind) } (prose(what)) } }
                @if more > 0 { li { (counted(more, "more note")) " in the report in JSON." } }
            }
        }
    }
}

/// The head of a table: titles, and whether numbers stand below.
pub fn heads(titles: &[(&str, bool)]) -> Markup {
    html! { thead { tr { @for (title, number) in titles { th scope="col" .num[*number] { (title) } } } } }
}

/// A table that is wider than a phone: it scrolls by itself, with the keyboard too.
pub fn scroll(name: &str, table: Markup) -> Markup {
    html! { div.scroll tabindex="0" role="group" aria-label=(name) { (table) } }
}

/// A command, with a button that copies it where scripts run.
pub fn copyable(command: &[String], what: &str) -> Markup {
    html! {
        div.command {
            pre tabindex="0" role="group" aria-label=(what) {
                code { @for (i, part) in command.iter().enumerate() { @if i > 0 { " " } span { (part) } } }
            }
            button.copy type="button" hidden aria-label={ "Copy: " (what) } { "Copy" }
        }
    }
}

/// What is needed to run the job again.
pub fn again(recorded: &Recorded, files: &[(&str, &FileFacts)]) -> Markup {
    let line = |name: &str, value: Markup| html! { tr { th scope="row" { (name) } td { (value) } } };
    html! {
        @match command(&recorded.run) {
            Some(command) => {
                (copyable(&command, "the command of this job"))
                p.legend { "Paths are relative to the folder in which the job ran. Add " code { (FORCE.flag()) } " to replace files that exist." }
            }
            None => p { "A program gave the data to this job, so that no command line repeats it." }
        }
        (scroll("Seed, version and digests", html! {
            table.facts {
                tbody {
                    (line("Seed", html! { (recorded.seed) }))
                    (line("Version", html! { "compress " (recorded.version) }))
                    @if let Some(data) = &recorded.data { (line("Data", html! { code { (cut(data)) } })) }
                    @for (what, file) in files {
                        (line(what, html! { (cut(&file.path)) br; (shown::bytes(file.bytes)) br; code { "sha256:" (file.sha256) } }))
                        @for part in &file.data {
                            (line("with weights in", html! { (cut(&part.path)) br; code { "sha256:" (part.sha256) } }))
                        }
                    }
                }
            }
        }))
    }
}
