//! The figures of a report as rows: what all of its forms for people show.

use crate::{
    Report,
    drafting::{Drafted, Drafting, Tried},
    report::{Accuracy, Deployed, FileFacts, Speed},
    shown,
};
use compress_compiler::{
    pass::Trained,
    words::{Unit, counted},
};
use compress_runtime::metrics::Metric;
use std::time::Duration;

/// Reasons to leave layers as they are that are named, those of the most work first.
const LEFT_NAMED: usize = 2;

/// A row: what it is about, a figure before, a figure after, and a note.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub name: String,
    pub before: String,
    pub after: String,
    pub note: String,
}

/// The figures of a report in the order in which people read them.
pub(crate) fn rows(r: &Report) -> Vec<Row> {
    let mut t = Table(vec![]);
    t.sizes(r);
    if let Some(m) = &r.memory {
        let (before, after) = (m.before_bytes as usize, m.after_bytes as usize);
        t.line("memory", &shown::bytes(before), &shown::bytes(after), "weights and live activations of a run");
    }
    for c in &r.coverage {
        let share = c.macs.map_or("an unknown share".into(), |m| format!("{:.1}%", 100.0 * m));
        let note = format!("layers; {share} of the multiply-accumulates");
        t.line(c.request, "", &format!("{} of {}", c.layers, c.of_layers), &note);
        for left in c.left.iter().take(LEFT_NAMED) {
            let share = left.macs.map_or(String::new(), |m| format!(", {:.1}%", 100.0 * m));
            t.line("", "", "", &format!("left: {} {}{share}: {}", left.layers, left.op, left.reason));
        }
    }
    if let Some(a) = &r.accuracy {
        t.accuracy(a);
    }
    for trained in r.passes.iter().flat_map(|p| &p.trained) {
        let [before, after, course] = training(trained);
        t.line(&trained.name, &before, &after, &course);
    }
    if let Some(s) = &r.speed {
        t.speed(s);
    }
    if let Some(d) = &r.drafting {
        t.drafted("greedy", &d.greedy, d);
        t.drafted("sampled", &d.sampled, d);
        for (i, tried) in d.tried.iter().enumerate() {
            t.tried(tried, d.chosen == Some(i));
        }
    }
    if let Some(d) = &r.deployed {
        t.deployed(d);
    }
    t.0
}

struct Table(Vec<Row>);

impl Table {
    fn line(&mut self, name: &str, before: &str, after: &str, note: &str) {
        self.0.push(Row { name: name.into(), before: before.into(), after: after.into(), note: note.into() });
    }

    fn sizes(&mut self, r: &Report) {
        let (input, Some(o)) = (&r.input, &r.output) else { return };
        let ratio = |a: usize, b: usize| if a == 0 { String::new() } else { format!("{:.3}x", b as f64 / a as f64) };
        self.line("size", &shown::bytes(input.bytes), &shown::bytes(o.bytes), &ratio(input.bytes, o.bytes));
        if let (Some(before), Some(after)) = (input.zstd_bytes, o.zstd_bytes) {
            self.line("size, zstd", &shown::bytes(before), &shown::bytes(after), &ratio(before, after));
        }
        self.line("operators", &input.nodes.to_string(), &o.nodes.to_string(), "");
        self.line("parameters", &input.parameters.to_string(), &o.parameters.to_string(), "");
        let zero = |f: &FileFacts| shown::percent(1.0 - f.nonzero as f64 / f.parameters.max(1) as f64);
        self.line("zeros", &zero(input), &zero(o), "");
        let unknown = match r.unknown_operators {
            0 => String::new(),
            n => format!("without those of {}", counted(n, "unknown operator")),
        };
        self.line("MACs", &shown::count(input.macs), &shown::count(o.macs), &unknown);
    }

    fn accuracy(&mut self, a: &Accuracy) {
        let made_up = if a.synthetic { ", made-up inputs" } else { "" };
        let samples = format!("{}{made_up}", counted(a.samples, "sample"));
        let what = a.output.as_ref().map_or(a.meaning.clone(), |output| format!("`{output}`: {}", a.meaning));
        let drop = a.drop.filter(|_| a.before.is_some()).map(|d| match a.metric.unit() {
            Unit::Share => format!("drop {:.2} points, ", d * 100.0),
            _ => format!("drop {d:.4}, "),
        });
        if a.metric != Metric::Sqnr {
            let shown = |v: Option<f64>| v.map_or(String::new(), |v| a.metric.unit().show(v));
            let on = if a.scored_apart { "samples of its own" } else { &samples };
            let note = format!("{}{on}; accuracy measured as {} of {what}", drop.unwrap_or_default(), a.metric);
            self.line(a.metric.name(), &shown(a.before), &shown(a.after), &note);
        }
        for f in &a.beside {
            let show = |v| f.metric.unit().show(v);
            self.line(f.metric.name(), &f.before.map(show).unwrap_or_default(), &show(f.value), &samples);
        }
        let worst = a.worst_output.as_ref().filter(|_| a.outputs.len() > 1 && !a.equal);
        let worst = worst.map_or(String::new(), |o| format!(", `{o}`, the worst of {}", a.outputs.len()));
        let measured = match a.metric {
            Metric::Sqnr => format!("; accuracy measured as sqnr of {}", a.meaning),
            _ => String::new(),
        };
        let kind = a.outputs.iter().find(|o| Some(&o.name) == a.worst_output.as_ref() && !a.equal);
        let kind = kind.and_then(|o| o.kind.as_ref()).map_or(String::new(), |kind| format!(", of {kind}"));
        if a.samples > 0 {
            self.line("output SQNR", "", &sqnr(a), &format!("{samples}{worst}{kind}{measured}"));
        }
    }

    fn tried(&mut self, t: &Tried, chosen: bool) {
        let way = |d: &Drafted| format!("{:.2}x, {} accepted", d.speedup, shown::percent(d.acceptance));
        let note = format!(
            "{} in {}, {}: greedy {}; sampled {}{}",
            counted(t.layers, "layer"),
            t.weights,
            shown::bytes(t.bytes),
            way(&t.greedy),
            way(&t.sampled),
            if chosen { " (chosen)" } else { "" }
        );
        self.line("tried", "", "", &note);
    }

    fn drafted(&mut self, way: &str, d: &Drafted, of: &Drafting) {
        let speed = |tokens: f64| format!("{tokens:.*}", usize::from(tokens < 10.0));
        let on = if of.engine.starts_with("onnxruntime") { &of.engine } else { &of.device };
        let note = format!(
            "tokens/s; {}, guesses {} a run, {} accepted, {:.2} tokens a run, {} of up to {} tokens, {on}",
            shown::speedup(d.speedup, d.interval),
            counted(d.draft_tokens, "token"),
            shown::percent(d.acceptance),
            d.tokens_per_run,
            counted(d.continued, "text"),
            of.tokens,
        );
        self.line(way, &speed(d.alone_tokens_per_second), &speed(d.tokens_per_second), &note);
    }

    fn speed(&mut self, s: &Speed) {
        let simplified = if s.as_is { "" } else { ", both simplified" };
        let device = if s.engine.starts_with("onnxruntime") { &s.engine } else { &s.device };
        let note = format!("{}, {}{simplified}, {device}", speedup(s), s.inputs);
        self.line("latency", &format!("{:.3} ms", s.before_ms), &format!("{:.3} ms", s.after_ms), &note);
        self.line("latency, p90", &format!("{:.3} ms", s.p90[0]), &format!("{:.3} ms", s.p90[1]), "");
    }
}

impl Table {
    /// Two lines of what an engine makes of the files.
    fn deployed(&mut self, d: &Deployed) {
        let (a, s) = (&d.accuracy, &d.speed);
        let shown = |v: Option<f64>| v.map_or(String::new(), |v| a.metric.unit().show(v));
        let near = if a.equal { "equal outputs".into() } else { format!("output SQNR {}", sqnr(a)) };
        let note = format!("{}; {} on {}", near, a.metric, counted(a.samples, "sample"));
        let (before, after) = if a.metric == Metric::Sqnr { (None, None) } else { (a.before, a.after) };
        self.line(&d.engine, &shown(before), &shown(after), &note);
        let threads = counted(s.threads, "thread");
        let (before, after) = (format!("{:.3} ms", s.before_ms), format!("{:.3} ms", s.after_ms));
        self.line("  latency", &before, &after, &format!("{}, files as they are, {threads}", speedup(s)));
    }
}

/// An interval that is wider tells nothing, as a share of its lower bound.
const NOISY: f64 = 0.5;

/// Whether the interval is so wide that it tells nothing.
pub fn is_noisy(s: &Speed) -> bool {
    s.interval[1] / s.interval[0] - 1.0 > NOISY
}

/// How many times as fast, and how sure that is.
pub fn speedup(s: &Speed) -> String {
    let [low, high] = s.interval;
    if is_noisy(s) {
        return format!("too noisy to judge ({low:.2}x to {high:.2}x)");
    }
    shown::speedup(s.speedup, s.interval)
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
        shown::duration(Duration::from_secs_f64(t.seconds)),
        t.ended
    );
    let score = |v: Option<f64>| v.map_or("-".into(), |v| t.unit.show(v));
    [score(t.before), score(t.after), course]
}
