//! What a person sees: progress on stderr, tables on stdout.

use crate::train_progress::shown;
use compress_compiler::{
    error::{Error, Result},
    pass::Trained,
    report::{Accuracy, FileFacts, Gate, Report, Speed, Verdict, counted},
};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::{
    cell::RefCell,
    fmt::Write as _,
    io::{ErrorKind, IsTerminal, Write as _},
    time::{Duration, Instant},
};

/// Prints to stdout. A reader that went away (`| head`) is no error.
///
/// # Errors
/// File when nothing can be written there, as on a full disk.
pub fn print(text: &str) -> Result<()> {
    write(text.as_bytes())
}

/// Writes bytes to stdout, as [`print`].
///
/// # Errors
/// As [`print`].
pub fn write(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::file(format!("standard output: {e}"))),
        _ => Ok(()),
    }
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
        let unknown = if r.unknown_operators > 0 {
            format!("without those of {}", counted(r.unknown_operators, "unknown operator"))
        } else {
            String::new()
        };
        line("MACs", &count(input.macs), &count(o.macs), &unknown);
    }
    if let Some(m) = &r.memory {
        let (before, after) = (m.before_bytes as usize, m.after_bytes as usize);
        line("memory", &bytes(before), &bytes(after), "weights and live activations of a run");
    }
    for c in &r.coverage {
        let share = c.macs.map_or("an unknown share".into(), |m| format!("{:.1}%", 100.0 * m));
        let note = format!("layers; {share} of the multiply-accumulates");
        line(c.request, "", &format!("{} of {}", c.layers, c.of_layers), &note);
    }
    if let Some(a) = &r.accuracy {
        let made_up = if a.synthetic { ", made-up inputs" } else { "" };
        let note = format!("{}{made_up}", counted(a.samples, "sample"));
        let what = a.output.as_ref().map_or(a.meaning.clone(), |output| format!("`{output}`: {}", a.meaning));
        let drop = a.drop.filter(|_| a.before.is_some()).map(|d| match a.metric {
            "score" => format!("drop {d:.4}, "),
            _ => format!("drop {:.2} points, ", d * 100.0),
        });
        if a.metric != "sqnr" {
            let shown = |v: Option<f64>| v.map_or(String::new(), |v| metric(a.metric, v));
            let note = format!("{}{note}; accuracy measured as {} of {what}", drop.unwrap_or_default(), a.metric);
            line(a.metric, &shown(a.before), &shown(a.after), &note);
        }
        for f in &a.beside {
            line(f.metric, "", &metric(f.metric, f.value), &note);
        }
        let worst = a.worst_output.as_ref().filter(|_| a.outputs.len() > 1 && !a.equal);
        let worst = worst.map_or(String::new(), |o| format!(", `{o}`, the worst of {}", a.outputs.len()));
        let measured =
            if a.metric == "sqnr" { format!("; accuracy measured as sqnr of {}", a.meaning) } else { String::new() };
        if a.samples > 0 {
            line("output SQNR", "", &sqnr(a), &format!("{note}{worst}{measured}"));
        }
    }
    for t in r.passes.iter().flat_map(|p| &p.trained) {
        let [before, after, course] = training(t);
        line(t.name, &before, &after, &course);
    }
    if let Some(s) = &r.speed {
        let simplified = if s.as_is { "" } else { ", both simplified" };
        let note = format!("{}, {}{simplified}, {}", speedup(s), s.inputs, s.device);
        line("latency", &format!("{:.3} ms", s.before_ms), &format!("{:.3} ms", s.after_ms), &note);
        line("latency, p90", &format!("{:.3} ms", s.p90[0]), &format!("{:.3} ms", s.p90[1]), "");
    }
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
pub fn headline(r: &Report, advice: Option<&str>) -> String {
    let mut t = String::new();
    if let Some(why) = &r.unusable {
        let advice = advice.map_or(String::new(), |a| format!(". {a}"));
        let _ = writeln!(t, "UNUSABLE: {why}{advice}");
    }
    for g in r.gates.iter().filter(|g| g.verdict == Verdict::Failed) {
        let _ = writeln!(t, "FAILED: {} is {}, measured {}", g.name, g.limit_shown, g.shown);
    }
    t
}

/// Tells on stderr, whatever is quiet, what was asked for and not done.
pub fn undone(r: &Report) {
    r.undone.iter().for_each(|what| eprintln!("warning: {what}"));
}

/// An interval that is wider tells nothing, as a share of its lower bound.
const NOISY: f64 = 0.5;

/// How many times as fast, and how sure that is.
pub fn speedup(s: &Speed) -> String {
    let [low, high] = s.interval;
    if high / low - 1.0 > NOISY {
        return format!("too noisy to judge ({low:.2}x to {high:.2}x)");
    }
    format!("{:.2}x ({low:.2}x to {high:.2}x)", s.speedup)
}

/// A metric's value for people.
pub fn metric(name: &str, value: f64) -> String {
    match name {
        "sqnr" => format!("{value:.1} dB"),
        "max-error" => format!("{value:.2e}"),
        "score" | "cosine" => format!("{value:.4}"),
        _ => percent(value),
    }
}

/// How far outputs are from the original's.
pub fn sqnr(a: &Accuracy) -> String {
    match a.sqnr_db {
        Some(db) => format!("{db:.1} dB"),
        None if a.equal => "equal".into(),
        None => "not a number".into(),
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
