//! The page of a sweep: what each fraction costs and gains.

use super::{
    chart::{Axis, Chart, Mark, Sign, key},
    page::{self, Headline, Outcome, Section, file_name, page},
    result,
};
use crate::{
    command::command,
    report::{Accuracy, SweepPoint, SweepReport, Verdict},
    rows::{sqnr, training},
    shown,
};
use compress_compiler::words::{Unit, counted, option::PRUNE};
use compress_runtime::metrics::Metric;
use maud::{Markup, html};

/// Names of points that are nearer than this share of both axes would overlap.
const APART: f64 = 0.1;

/// The report of a sweep as a page that needs nothing else.
pub fn sweep_html(r: &SweepReport) -> String {
    let gates: Vec<_> =
        r.sweep.iter().flat_map(|p| p.gates.iter().map(|g| (Some(p.fraction.to_string()), g))).collect();
    let sections = vec![
        Section::new("front", "Accuracy, size and speed", front(r)),
        Section::new("gates", "Gates", page::gates(&gates)),
        Section::new("notes", "Notes", notes(r)),
        Section::new("commands", "The command of each model", commands(r)),
        Section::new("again", "Run it again", {
            let files = r.sweep.iter().map(|p| ("Result", &p.output));
            page::again(&r.recipe, &[("Original", &r.input)].into_iter().chain(files).collect::<Vec<_>>())
        }),
    ];
    let from = html! { "pruned by " (counted(r.sweep.len(), "fraction")) };
    let head = page::head("Sweep", &r.input.path, from, &outcome(r), &headlines(r));
    page(&format!("{}: sweep", file_name(&r.input.path)), head, sections)
}

fn outcome(r: &SweepReport) -> Outcome {
    let passed = r.sweep.iter().filter(|p| p.passed).count();
    let of = counted(r.sweep.len(), "model");
    match r.sweep.iter().any(|p| !p.gates.is_empty()) || passed < r.sweep.len() {
        false => Outcome { verdict: None, says: format!("{of}. No gates were set, so nothing was judged.") },
        true if passed == 0 => {
            Outcome { verdict: Some(Verdict::Failed), says: format!("None of {of} passed the gates.") }
        }
        true => Outcome { verdict: Some(Verdict::Passed), says: format!("{passed} of {of} passed the gates.") },
    }
}

/// Of the point that prunes most of those that pass.
fn headlines(r: &SweepReport) -> Vec<Headline> {
    let Some(p) = r.sweep.iter().rfind(|p| p.passed && p.unusable.is_none()) else { return vec![] };
    let bytes = |f: &crate::report::FileFacts| f.zstd_bytes.unwrap_or(f.bytes);
    let gated = r.sweep.iter().any(|p| !p.gates.is_empty());
    let most = Headline {
        name: if gated { "Largest fraction that passes" } else { "Largest fraction" },
        value: p.fraction.to_string(),
        note: format!("{} of all parameters are zero", shown::percent(p.sparsity)),
    };
    let size = Headline {
        name: "Size there, after zstd",
        value: shown::bytes(bytes(&p.output)),
        note: format!("{} before", shown::bytes(bytes(&r.input))),
    };
    let size = (p.output.zstd_bytes.is_some() && r.input.zstd_bytes.is_some()).then_some(size);
    let accuracy = p.accuracy.as_ref().and_then(|a| result::accuracy("Accuracy there", a));
    let speed = p.speed.as_ref().map(|s| result::speed("Speed there", s));
    [Some(most), size, accuracy, speed].into_iter().flatten().collect()
}

/// What is plotted of accuracy: its name and unit, the value of a point, and that of the original.
struct Measured {
    title: String,
    of: fn(&Accuracy) -> Option<f64>,
    original: Option<f64>,
    percents: bool,
}

impl Measured {
    fn of(r: &SweepReport) -> Option<Self> {
        let a = r.sweep.first()?.accuracy.as_ref()?;
        Some(match a.metric.unit() {
            Unit::Decibels | Unit::Scientific => {
                Self { title: "SQNR of the outputs, dB".into(), of: |a| a.sqnr_db, original: None, percents: false }
            }
            Unit::Number => Self { title: a.metric.to_string(), of: |a| a.after, original: a.before, percents: false },
            Unit::Share => Self {
                title: format!("{}, %", a.metric),
                of: |a| a.after.map(|v| 100.0 * v),
                original: a.before.map(|v| 100.0 * v),
                percents: true,
            },
        })
    }
}

fn front(r: &SweepReport) -> Markup {
    html! {
        @if let Some(m) = Measured::of(r) {
            (key([
                Some((Sign::Dot(0), "a model of the sweep; the chart over size names its fraction".into())),
                m.original.map(|_| (Sign::Dashes, "the original".into())),
            ].into_iter().flatten()))
            div.charts {
                (plot(r, &m, "weights asked to be zero, %", &|p| Some(100.0 * p.fraction), false))
                (plot(r, &m, "size after zstd, kB", &|p| p.output.zstd_bytes.map(|b| b as f64 / 1e3), true))
            }
        }
        (table(r))
    }
}

/// Accuracy over something; `names` says whether points are named.
fn plot(r: &SweepReport, m: &Measured, across: &str, at: &dyn Fn(&SweepPoint) -> Option<f64>, names: bool) -> Markup {
    let place = |p: &SweepPoint| Some((at(p)?, (m.of)(p.accuracy.as_ref()?).filter(|v| v.is_finite())?));
    let mut points: Vec<(f64, f64, String)> =
        r.sweep.iter().filter_map(|p| place(p).map(|(x, y)| (x, y, p.fraction.to_string()))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    if points.len() < 2 {
        return html! {};
    }
    let axis = Axis::new(across, points.iter().map(|p| p.0), false);
    let values = points.iter().map(|p| p.1).chain(m.original);
    let up = if m.percents { Axis::of_percents(&m.title, values) } else { Axis::new(&m.title, values, false) };
    let mut named: Vec<&(f64, f64, String)> = vec![];
    for point in points.iter().filter(|_| names) {
        let apart = |a: f64, b: f64, axis: &Axis| (a - b).abs() >= APART * (axis.high - axis.low);
        if named.iter().all(|other| apart(point.0, other.0, &axis) || apart(point.1, other.1, &up)) {
            named.push(point);
        }
    }
    let named = named.into_iter().map(|(x, y, name)| Mark::Name((*x, *y), name.clone()));
    let line: Vec<(f64, f64)> = points.iter().map(|(x, y, _)| (*x, *y)).collect();
    let level = m.original.map(Mark::Level);
    let chart = Chart {
        says: format!("{} over {across}, a point for each fraction. The table below has every value.", m.title),
        up,
        across: axis,
        marks: [Mark::Line(0, line.clone()), Mark::Dots(0, line)].into_iter().chain(level).chain(named).collect(),
    };
    html! { figure { (chart.svg()) } }
}

type Of = Box<dyn Fn(&SweepPoint) -> Option<String>>;

/// A figure of each model; one that no model has is left out.
struct Column {
    title: &'static str,
    means: &'static str,
    original: Option<String>,
    of: Of,
}

fn columns(r: &SweepReport) -> Vec<Column> {
    let accuracy = r.sweep.first().and_then(|p| p.accuracy.as_ref());
    let metric = accuracy.map(|a| a.metric).filter(|m| *m != Metric::Sqnr);
    let name = metric.map_or("", |m| m.name());
    let score = move |v: Option<f64>| v.zip(metric).map(|(v, m)| m.unit().show(v));
    let zeros = 1.0 - r.input.nonzero as f64 / r.input.parameters.max(1) as f64;
    let ms = |v: f64| format!("{v:.3}");
    let speed = r.sweep.first().and_then(|p| p.speed.as_ref());
    let column = |title, means, original, of: Of| Column { title, means, original, of };
    let all = vec![
        column(
            "Zeros",
            "the share of all parameters that is zero",
            Some(shown::percent(zeros)),
            Box::new(|p| Some(shown::percent(p.sparsity))),
        ),
        column(
            name,
            "the metric of accuracy",
            score(accuracy.and_then(|a| a.before)),
            Box::new(move |p| score(p.accuracy.as_ref().and_then(|a| a.after))),
        ),
        column(
            "Agreement",
            "the share of samples, or of the answers to them, that both models answer alike",
            None,
            Box::new(|p| p.accuracy.as_ref()?.agreement.map(shown::percent)),
        ),
        column(
            "SQNR",
            "signal to quantisation noise of the outputs beside the original's",
            None,
            Box::new(|p| p.accuracy.as_ref().map(sqnr)),
        ),
        column(
            "Size",
            "all files of the model",
            Some(shown::bytes(r.input.bytes)),
            Box::new(|p| Some(shown::bytes(p.output.bytes))),
        ),
        column(
            "Size, zstd",
            "the same after zstd, where zeros cost next to nothing",
            r.input.zstd_bytes.map(shown::bytes),
            Box::new(|p| p.output.zstd_bytes.map(shown::bytes)),
        ),
        column(
            "Latency, ms",
            "the time of one run on our runtime",
            speed.map(|s| ms(s.before_ms)),
            Box::new(move |p| p.speed.as_ref().map(|s| ms(s.after_ms))),
        ),
    ];
    all.into_iter().filter(|c| r.sweep.iter().any(|p| (c.of)(p).is_some())).collect()
}

fn table(r: &SweepReport) -> Markup {
    let columns = columns(r);
    let gated = r.sweep.iter().any(|p| !p.gates.is_empty() || !p.passed);
    let titles: Vec<(&str, bool)> = [("Fraction", false)]
        .into_iter()
        .chain(columns.iter().map(|c| (c.title, true)))
        .chain(gated.then_some(("Gates", false)))
        .collect();
    html! {
        (page::scroll("Figures of each fraction", html! {
            table {
                (page::heads(&titles))
                tbody {
                    tr {
                        th scope="row" { "original" }
                        @for c in &columns { td.num { (c.original.as_deref().unwrap_or_default()) } }
                        @if gated { td {} }
                    }
                    @for (i, p) in r.sweep.iter().enumerate() {
                        tr {
                            th scope="row" {
                                @if command(&p.recipe.run).is_some() { a href={ "#command-" (i) } { (p.fraction) } }
                                @else { (p.fraction) }
                            }
                            @for c in &columns { td.num { ((c.of)(p).unwrap_or_default()) } }
                            @if gated { td { (page::verdict(if p.passed { Verdict::Passed } else { Verdict::Failed })) } }
                        }
                    }
                }
            }
        }))
        p.legend {
            strong { "Fraction" } ": the share of prunable weights that was asked to be zero. "
            @for c in &columns { strong { (c.title) } ": " (c.means) ". " }
            @if let Some(a) = r.sweep.first().and_then(|p| p.accuracy.as_ref()) {
                "Measured on " (counted(a.samples, "sample")) @if a.synthetic { ", made-up inputs" } "."
            }
        }
    }
}

fn notes(r: &SweepReport) -> Markup {
    html! {
        (page::notes(&[], &r.warnings, None))
        @for p in &r.sweep {
            @let notes = page::notes(&p.undone, &p.warnings, None);
            @if !notes.0.is_empty() || p.unusable.is_some() || !p.trained.is_empty() {
                h3 { "Fraction " (p.fraction) }
                @if let Some(why) = &p.unusable { p { strong { "Not fit for use: " } (page::prose(why)) } }
                @for t in &p.trained {
                    @let [before, after, course] = training(t);
                    p { strong { (t.name) } ": " (before) " to " (after) ", " (course) }
                }
                (notes)
            }
        }
    }
}

fn commands(r: &SweepReport) -> Markup {
    html! {
        @for (i, p) in r.sweep.iter().enumerate() {
            @if let Some(command) = command(&p.recipe.run) {
                h3 id={ "command-" (i) } { (PRUNE.flag()) " " (p.fraction) ": " (file_name(&p.output.path)) }
                (page::copyable(&command, &format!("the command for fraction {}", p.fraction)))
            }
        }
    }
}
