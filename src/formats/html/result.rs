//! The page of a job that made or checked one model.

use super::{
    layers,
    page::{self, Headline, Section, file_name, page},
    passes,
};
use crate::{
    Report,
    report::{Accuracy, Speed},
    rows::{Row, is_noisy, rows, sqnr},
    shown,
};
use compress_compiler::words::counted;
use compress_runtime::metrics::Metric;
use maud::{Markup, html};

/// The report of a compression or of a check as a page that needs nothing else: no network, no font, no script to be read.
pub fn html(r: &Report) -> String {
    let checked = r.recipe.run.get("job").and_then(|job| job.as_str()) == Some("check");
    let result = r.output.as_ref().map_or(&r.input.path, |o| &o.path);
    let (kind, from) = match checked {
        true => ("Check of a model", html! { "compared with " strong { (file_name(&r.input.path)) } }),
        false => ("Compression of a model", html! { "made from " strong { (file_name(&r.input.path)) } }),
    };
    let outcome = page::outcome(&r.gates, r.unusable.as_deref());
    let gates: Vec<_> = r.gates.iter().map(|g| (None, g)).collect();
    let files = [Some(("Original", &r.input)), r.output.as_ref().map(|o| ("Result", o))];
    let files: Vec<_> = files.into_iter().flatten().collect();
    let sections = vec![
        Section::new("gates", "Gates", page::gates(&gates)),
        Section::new("notes", "Not done, and notes", page::notes(&r.undone, &r.warnings, r.advice.as_deref())),
        Section::new("figures", "Before and after", before_and_after(r)),
        Section::new("passes", "Passes", passes::passes(r)),
        Section::new("layers", "Layers", layers::layers(r)),
        Section::new("ranges", "Clipped activations", passes::ranges(r)),
        Section::new("training", "Training", passes::trainings(r)),
        Section::new("again", "Run it again", page::again(&r.recipe, &files)),
    ];
    let head = page::head(kind, result, from, &outcome, &headlines(r));
    page(&format!("{}: report", file_name(result)), head, sections)
}

fn headlines(r: &Report) -> Vec<Headline> {
    let size = r.output.as_ref().map(|o| Headline {
        name: "Size",
        value: shown::bytes(o.bytes),
        note: match r.input.bytes {
            0 => String::new(),
            before => format!("{:.1}% of {} before", 100.0 * o.bytes as f64 / before as f64, shown::bytes(before)),
        },
    });
    let deployed = r
        .deployed
        .iter()
        .flat_map(|d| [accuracy("Accuracy, ONNX Runtime", &d.accuracy), Some(speed("Speed, ONNX Runtime", &d.speed))]);
    let ours =
        [size, r.accuracy.as_ref().and_then(|a| accuracy("Accuracy", a)), r.speed.as_ref().map(|s| speed("Speed", s))];
    ours.into_iter().chain(deployed).flatten().collect()
}

/// The metric, or signal to noise where nothing says what is right.
pub fn accuracy(name: &'static str, a: &Accuracy) -> Option<Headline> {
    let samples = format!("{}{}", counted(a.samples, "sample"), if a.synthetic { ", made-up inputs" } else { "" });
    let show = |v: f64| a.metric.unit().show(v);
    match (a.after, a.before) {
        (Some(after), before) if a.metric != Metric::Sqnr => {
            let before = before.map_or(String::new(), |b| format!(", {} before", show(b)));
            Some(Headline { name, value: show(after), note: format!("{}{before}; {samples}", a.metric) })
        }
        _ if a.samples > 0 => {
            Some(Headline { name, value: sqnr(a), note: format!("signal to noise of the outputs; {samples}") })
        }
        _ => None,
    }
}

/// How many times as fast.
pub fn speed(name: &'static str, s: &Speed) -> Headline {
    let place = if s.engine.starts_with("onnxruntime") { &s.engine } else { &s.device };
    let [low, high] = s.interval;
    let sure = format!("{low:.2}x to {high:.2}x with 95% confidence");
    let times = format!("{:.3} ms, {:.3} ms before; {place}", s.after_ms, s.before_ms);
    match is_noisy(s) {
        true => Headline { name, value: "unclear".into(), note: format!("too noisy to judge: {sure}; {times}") },
        false => Headline { name, value: format!("{:.2}x", s.speedup), note: format!("{sure}; {times}") },
    }
}

/// What some names of rows mean.
const MEANINGS: &[(&str, &str)] = &[
    ("size", "all files of the model, and the ratio of after to before"),
    ("size, zstd", "the same after zstd, as a download is"),
    ("zeros", "the share of all parameters that is zero"),
    ("MACs", "multiply-accumulates of one sample"),
    ("agreement", "the share of samples, or of the answers to them, that both models answer alike"),
    ("output SQNR", "signal to quantisation noise of the outputs beside the original's: a higher value is better"),
    ("latency", "the time of one run"),
    ("latency, p90", "nine of ten runs take no longer"),
];

fn before_and_after(r: &Report) -> Markup {
    // What has no name says more of the row before.
    let mut all: Vec<(Row, Vec<String>)> = vec![];
    for row in rows(r) {
        match all.last_mut() {
            Some((_, notes)) if row.name.is_empty() => notes.push(row.note),
            _ => all.push((row.clone(), vec![row.note])),
        }
    }
    let meaning = |name: &str| MEANINGS.iter().find(|(n, _)| *n == name).map(|(_, means)| *means);
    html! {
        (page::scroll("Before and after", html! {
            table.figures {
                (page::heads(&[("Figure", false), ("Before", true), ("After", true)]))
                tbody {
                    @for (row, notes) in &all {
                        tr {
                            th scope="row" .inner[row.name.starts_with(' ')] {
                                (page::cut(row.name.trim()))
                                @if let Some(means) = meaning(&row.name) { span.means { (means) } }
                                @for note in notes.iter().filter(|n| !n.is_empty()) { span.note { (page::prose(note)) } }
                            }
                            td.num { (row.before) }
                            td.num { (row.after) }
                        }
                    }
                }
            }
        }))
    }
}
