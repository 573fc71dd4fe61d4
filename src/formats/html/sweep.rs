//! The page of a sweep: what each fraction costs and gains.

use super::{
    chart::{Axis, Chart, Mark},
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
    let Some(p) = r.sweep.iter().filter(|p| p.passed && p.unusable.is_none()).next_back() else { return vec![] };
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
    of: Box<dyn Fn(&Accuracy) -> Option<f64>>,
    original: Option<f64>,
}

impl Measured {
    fn of(r: &SweepReport) -> Option<Self> {
        let a = r.sweep.first()?.accuracy.as_ref()?;
        Some(match a.metric.unit() {
            Unit::Decibels | Unit::Scientific => {
                Self { title: "SQNR of the outputs, dB".into(), of: Box::new(|a| a.sqnr_db), original: None }
            }
            Unit::Number => Self { title: a.metric.to_string(), of: Box::new(|a| a.after), original: a.before },
            Unit::Share => Self {
                title: format!("{}, %", a.metric),
                of: Box::new(|a| a.after.map(|v| 100.0 * v)),
                original: a.before.map(|v| 100.0 * v),
            },
        })
    }
}

fn front(r: &SweepReport) -> Markup {
    html! {
        @if let Some(m) = Measured::of(r) {
            (key(&m))
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
    let up = Axis::new(&m.title, points.iter().map(|p| p.1).chain(m.original), false);
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

/// What points, names and lines are.
fn key(m: &Measured) -> Markup {
    html! {
        ul.key {
            li { svg width="12" height="12" viewBox="0 0 12 12" aria-hidden="true" { path.dots.s0 d="M6 6h0" {} } "a model of the sweep; the chart over size names its fraction" }
            @if m.original.is_some() {
                li { svg width="24" height="12" viewBox="0 0 24 12" aria-hidden="true" { path.dashed d="M0 6h24" {} } "the original" }
            }
        }
    }
}

fn table(r: &SweepReport) -> Markup {
    let first = r.sweep.first().and_then(|p| p.accuracy.as_ref());
    let metric = first.map(|a| a.metric);
    let score = |v: Option<f64>| v.zip(metric).map_or(String::new(), |(v, m)| m.unit().show(v));
    let share = |v: Option<f64>| v.map_or(String::new(), shown::percent);
    let zstd = |b: Option<usize>| b.map_or(String::new(), shown::bytes);
    let zeros = 1.0 - r.input.nonzero as f64 / r.input.parameters.max(1) as f64;
    let ms = |v: f64| format!("{v:.3}");
    let titles = [
        (metric.map_or("", |m| m.name()), first.is_some()),
        ("Agreement", first.is_some_and(|a| a.agreement.is_some())),
        ("SQNR", first.is_some()),
    ];
    let passed = |p: &SweepPoint| if p.passed { Verdict::Passed } else { Verdict::Failed };
    let line = |cells: [String; 3]| {
        html! {
            @for (cell, (_, has)) in cells.into_iter().zip(titles) { @if has { td.num { (cell) } } }
        }
    };
    html! {
        (page::scroll("Figures of each fraction", html! {
            table {
                thead { tr {
                    th scope="col" { "Fraction" } th.num scope="col" { "Zeros" }
                    @for (title, has) in titles { @if has { th.num scope="col" { (title) } } }
                    th.num scope="col" { "Size" } th.num scope="col" { "Size, zstd" }
                    th.num scope="col" { "Latency, ms" } th scope="col" { "Gates" }
                } }
                tbody {
                    tr {
                        th scope="row" { "original" } td.num { (shown::percent(zeros)) }
                        (line([score(first.and_then(|a| a.before)), String::new(), String::new()]))
                        td.num { (shown::bytes(r.input.bytes)) } td.num { (zstd(r.input.zstd_bytes)) }
                        td.num { (r.sweep.first().and_then(|p| p.speed.as_ref()).map_or(String::new(), |s| ms(s.before_ms))) } td {}
                    }
                    @for (i, p) in r.sweep.iter().enumerate() {
                        @let a = p.accuracy.as_ref();
                        tr {
                            th scope="row" { a href={ "#command-" (i) } { (p.fraction) } } td.num { (shown::percent(p.sparsity)) }
                            (line([score(a.and_then(|a| a.after)), share(a.and_then(|a| a.agreement)), a.map_or(String::new(), sqnr)]))
                            td.num { (shown::bytes(p.output.bytes)) } td.num { (zstd(p.output.zstd_bytes)) }
                            td.num { (p.speed.as_ref().map_or(String::new(), |s| ms(s.after_ms))) }
                            td { @if !p.gates.is_empty() || !p.passed { (page::verdict(passed(p))) } }
                        }
                    }
                }
            }
        }))
        p.legend {
            strong { "Fraction" } ": the share of prunable weights that was asked to be zero; it leads to the command of the model. "
            strong { "Zeros" } ": the share of all parameters that is zero. "
            strong { "SQNR" } ": signal to quantisation noise of the outputs beside the original's. "
            strong { "Size, zstd" } ": the file after zstd, where zeros cost next to nothing. "
            strong { "Latency" } ": the time of one run on our runtime."
            @if let Some(a) = first { " Measured on " (counted(a.samples, "sample")) @if a.synthetic { ", made-up inputs" } "." }
        }
    }
}

fn notes(r: &SweepReport) -> Markup {
    let of = |p: &SweepPoint| page::notes(&p.undone, &p.warnings, None);
    html! {
        (page::notes(&[], &r.warnings, None))
        @for p in &r.sweep {
            @let notes = of(p);
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
