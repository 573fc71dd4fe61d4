//! What a person sees: progress on stderr, tables on stdout.

use crate::train_progress::shown;
use compress_compiler::{
    error::{Error, Result},
    pass::Trained,
    report::{Accuracy, FileFacts, Gate, Report, counted},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{
    cell::RefCell,
    fmt::Write as _,
    io::{IsTerminal, Write as _},
    time::{Duration, Instant},
};

/// Prints to stdout. A reader that went away (`| head`) is no error.
pub fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Pretty JSON with a newline.
///
/// # Errors
/// Bug: what we serialise has no map keys that JSON lacks.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map(|s| s + "\n").map_err(|e| Error::bug(e.to_string()))
}

/// A long step. A bar on a terminal, a plain line at its end elsewhere, nothing when quiet.
pub struct Progress {
    what: String,
    bar: ProgressBar,
    start: Instant,
    plain: bool,
}

impl Progress {
    /// Begins a step of `total` units.
    pub fn new(what: &str, total: usize, quiet: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = if quiet || !terminal { ProgressBar::hidden() } else { ProgressBar::new(total as u64) };
        if let Ok(style) = ProgressStyle::with_template("{msg:<10} {bar:30} {pos}/{len} {per_sec} {eta} left") {
            bar.set_style(style);
        }
        bar.set_message(what.to_string());
        Self { what: what.into(), bar, start: Instant::now(), plain: !quiet && !terminal }
    }

    /// A line beside the bar.
    pub fn say(&self, line: &str) {
        if self.plain {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Counts `n` more units.
    pub fn advance(&self, n: usize) {
        self.bar.inc(n as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.plain {
            eprintln!("{} {:.1} s", self.what, self.start.elapsed().as_secs_f64());
        }
    }
}

/// Shows what passes tell of long work.
pub fn steps(quiet: bool) -> impl Fn(&str, usize, usize) {
    let shown: RefCell<Option<Progress>> = RefCell::new(None);
    move |what, done, of| {
        let mut shown = shown.borrow_mut();
        match done {
            0 => {
                let progress = Progress::new(what, of, quiet);
                progress.say(&format!("{what}: {}", counted(of, "layer")));
                *shown = Some(progress);
            }
            _ if done == of => *shown = None,
            _ => shown.iter().for_each(|progress| progress.advance(1)),
        }
    }
}

/// The report as a short table.
pub fn table(r: &Report) -> String {
    let mut t = String::new();
    let mut line = |a: &str, b: &str, c: &str, d: &str| {
        let _ = writeln!(t, "{}", format!("  {a:<14}{b:>14}{c:>14}   {d}").trim_end());
    };
    let (input, output) = (&r.input, r.output.as_ref());
    line("", "before", "after", "");
    if let Some(o) = output {
        let ratio = |a: usize, b: usize| if a == 0 { String::new() } else { format!("{:.3}x", b as f64 / a as f64) };
        line("size", &bytes(input.bytes), &bytes(o.bytes), &ratio(input.bytes, o.bytes));
        if let (Some(before), Some(after)) = (input.zstd_bytes, o.zstd_bytes) {
            line("size, zstd", &bytes(before), &bytes(after), &ratio(before, after));
        }
        line("operators", &input.nodes.to_string(), &o.nodes.to_string(), "");
        line("parameters", &input.parameters.to_string(), &o.parameters.to_string(), "");
        let zero = |f: &FileFacts| percent(1.0 - f.nonzero as f64 / f.parameters.max(1) as f64);
        line("of them zero", &zero(input), &zero(o), "");
        line("MACs", &count(input.macs), &count(o.macs), "");
    }
    if let Some(a) = &r.accuracy {
        let made_up = if a.synthetic { ", made-up inputs" } else { "" };
        let note = format!("{}{made_up}", counted(a.samples, "sample"));
        if let (Some(before), Some(after), Some(drop)) = (a.before, a.after, a.drop) {
            line("accuracy", &percent(before), &percent(after), &format!("drop {:.2} points, {note}", drop * 100.0));
        }
        if let Some(agreement) = a.agreement {
            line("same class", "", &percent(agreement), &note);
        }
        line("output SQNR", "", &sqnr(a), &note);
    }
    for t in r.passes.iter().flat_map(|p| &p.trained) {
        let [before, after, course] = training(t);
        line(t.name, &before, &after, &course);
    }
    if let Some(s) = &r.speed {
        let note = format!("{:.2}x, batch {}, {}", s.speedup, s.batch, s.device);
        line("latency", &format!("{:.3} ms", s.before_ms), &format!("{:.3} ms", s.after_ms), &note);
        line("latency, p90", &format!("{:.3} ms", s.p90[0]), &format!("{:.3} ms", s.p90[1]), "");
    }
    for Gate { name, limit, value, passed } in &r.gates {
        let verdict = if *passed { "passed" } else { "FAILED" };
        let _ = writeln!(t, "  gate {name}: {verdict} (limit {limit}, measured {value:.4})");
    }
    for w in &r.warnings {
        let _ = writeln!(t, "  note: {w}");
    }
    t
}

/// How far outputs are from the original's.
pub fn sqnr(a: &Accuracy) -> String {
    match a.sqnr_db {
        Some(db) => format!("{db:.1} dB"),
        None if a.equal => "equal".into(),
        None => "no number".into(),
    }
}

/// What a training did: the score before and after, and the rest in words.
pub fn training(t: &Trained) -> [String; 3] {
    let epochs = if t.epochs < t.planned { format!("{} of {}", t.epochs, t.planned) } else { t.epochs.to_string() };
    let course = format!(
        "{} on {} for validation; {epochs} epoch{} of {}, {}: {}",
        t.metric,
        counted(t.validated, "sample"),
        if t.planned == 1 { "" } else { "s" },
        counted(t.samples, "sample"),
        duration(Duration::from_secs_f64(t.seconds)),
        t.ended
    );
    let score = |v: Option<f64>| v.map_or("-".into(), |v| shown(t.metric, v));
    [score(t.before), score(t.after), course]
}

/// A size for people.
pub fn bytes(n: usize) -> String {
    match n as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.1} kB", b / 1e3),
        _ => format!("{n} B"),
    }
}

/// A large count for people.
pub fn count(n: u64) -> String {
    match n as f64 {
        c if c >= 1e9 => format!("{:.2} G", c / 1e9),
        c if c >= 1e6 => format!("{:.2} M", c / 1e6),
        c if c >= 1e3 => format!("{:.1} k", c / 1e3),
        _ => n.to_string(),
    }
}

/// A time for people.
pub fn duration(d: Duration) -> String {
    match d.as_secs() {
        s if s >= 5400 => format!("{:.1} h", s as f64 / 3600.0),
        s if s >= 90 => format!("{:.0} min", s as f64 / 60.0),
        _ => format!("{:.0} s", d.as_secs_f64().max(1.0)),
    }
}

/// A share for people.
pub fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
}
