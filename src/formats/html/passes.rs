//! What each pass did and left alone, what a search tried, what ranges cut off, and how trainings went.

use super::{
    chart::{Axis, Chart, Mark},
    page::{cut, heads, prose, scroll},
};
use crate::{report::Report, rows::training, shown::shortened};
use compress_compiler::{
    clipping::{ClippedValue, Clipping},
    pass::{EpochScore, Skipped},
    pipeline::PassReport,
    words::{Unit, counted},
};
use maud::{Markup, html};

/// Reasons of a pass that are shown, and nodes that are named for each.
const REASONS: usize = 8;
const NODES: usize = 4;

/// Epochs in a table; of more, some are left out.
const EPOCHS: usize = 100;

const NAME: usize = 80;

/// What each pass did, then what a search tried.
pub fn passes(r: &Report) -> Markup {
    let does = |p: &PassReport| compress_passes::STAGES.iter().find(|s| s.name == p.name).map_or("", |s| s.does);
    html! {
        @if !r.passes.is_empty() {
            (scroll("Passes", html! {
                table.passes {
                    (heads(&[("Pass", false), ("Changes", true), ("Time, s", true)]))
                    tbody {
                        @for p in &r.passes {
                            tr .more[!p.skipped.is_empty()] {
                                th scope="row" { (p.name) span.note { (does(p)) } }
                                td.num { (p.edits) }
                                td.num { (format!("{:.1}", p.seconds)) }
                            }
                            @if !p.skipped.is_empty() { tr { td.left colspan="3" { "Left alone:" (left(&p.skipped)) } } }
                        }
                    }
                }
            }))
            p.legend {
                "Passes in the order in which they ran. A change is one edit of the graph, such as a layer that was quantised \
                 or a node that was fused."
            }
        }
        @for p in r.passes.iter().filter(|p| !p.tried.is_empty()) { (tried(p)) }
    }
}

/// Each reason once, with its nodes, those of most nodes first.
fn left(skipped: &[Skipped]) -> Markup {
    let mut reasons: Vec<(&str, Vec<&str>)> = vec![];
    for s in skipped {
        match reasons.iter_mut().find(|(reason, _)| *reason == s.reason) {
            Some((_, nodes)) => nodes.push(&s.node),
            None => reasons.push((&s.reason, vec![&s.node])),
        }
    }
    reasons.sort_by_key(|(_, nodes)| std::cmp::Reverse(nodes.len()));
    let more: usize = reasons.iter().skip(REASONS).map(|(_, nodes)| nodes.len()).sum();
    html! {
        ul {
            @for (reason, nodes) in reasons.iter().take(REASONS) {
                li {
                    (prose(reason)) ": " (counted(nodes.len(), "node")) ", "
                    @for (i, node) in nodes.iter().take(NODES).enumerate() {
                        @if i > 0 { ", " }
                        code { (shortened(node, NAME)) }
                    }
                    @if nodes.len() > NODES { " and " (nodes.len() - NODES) " more" }
                }
            }
            @if more > 0 { li { (counted(more, "more node")) " for other reasons; the report in JSON has each." } }
        }
    }
}

fn tried(p: &PassReport) -> Markup {
    html! {
        h3 { "What the search of pass " (p.name) " tried" }
        (scroll("What the search tried", html! {
            table.tried {
                (heads(&[("Remedy", false), ("SQNR, dB", true), ("Time", true), ("Size", true), ("Result", false)]))
                tbody {
                    @for t in &p.tried {
                        tr {
                            th scope="row" { (t.name) span.note { (cut(&t.what)) } }
                            td.num { (format!("{:.1}", t.likeness.sqnr_db())) }
                            td.num { (format!("{:.2}", t.time)) }
                            td.num { (format!("{:.2}", t.size)) }
                            td { @if t.kept { strong { "kept" } } @else { "not kept" } }
                        }
                    }
                }
            }
        }))
        p.legend {
            strong { "SQNR" } ": signal to quantisation noise of the outputs, on samples that calibration doesn't see. "
            strong { "Time" } ": predicted for ONNX Runtime, in parts of that of floats. "
            strong { "Size" } ": of the weights, in parts of that of floats."
        }
    }
}

/// The columns of clipped activations.
const CLIPPED: [(&str, bool); 7] = [
    ("Activation", false),
    ("Least seen", true),
    ("Range from", true),
    ("Range to", true),
    ("Largest seen", true),
    ("Clipped, %", true),
    ("SQNR, dB", true),
];

/// The activations that lose most by their ranges.
pub fn ranges(r: &Report) -> Markup {
    html! { @for c in r.passes.iter().filter_map(|p| p.clipping.as_ref()) { (clipping(c)) } }
}

fn clipping(c: &Clipping) -> Markup {
    let most = c.worst.iter().flat_map(|v| [v.low, v.high, v.range[0], v.range[1]]).fold(0f32, |m, v| m.max(v.abs()));
    // Four digits of the largest.
    let decimals = (3.0 - most.max(f32::MIN_POSITIVE).log10().floor()).clamp(0.0, 9.0) as usize;
    let number = |v: f32| format!("{v:.decimals$}");
    html! {
        @if c.worst.is_empty() {
            p {
                "The range of each of the " (counted(c.values, "quantised activation"))
                " covers all that calibration saw, as far as readers tell it apart: nothing is clipped."
            }
        } @else {
            p {
                (c.clipped) " of " (counted(c.values, "quantised activation"))
                " lose something by their range: elements outside of it are set to its ends. "
                @if c.worst.len() < c.clipped { "These " (c.worst.len()) " lose most." }
            }
            p.legend {
                "Bars: how the elements that calibration saw are distributed. Dashed lines: the range of the codes. "
                "Bars outside of them, in orange, are clipped."
            }
            div.charts { @for v in &c.worst { (histogram(v)) } }
            (scroll("Clipped activations", html! {
                table {
                    (heads(&CLIPPED))
                    tbody {
                        @for v in &c.worst {
                            tr {
                                th scope="row" { (shortened(&v.name, NAME)) }
                                td.num { (number(v.low)) } td.num { (number(v.range[0])) }
                                td.num { (number(v.range[1])) } td.num { (number(v.high)) }
                                td.num { (format!("{:.4}", 100.0 * v.share)) }
                                td.num { (format!("{:.1}", v.sqnr_db)) }
                            }
                        }
                    }
                }
            }))
            p.legend {
                strong { "Clipped" } ": the share of elements outside of the range by more than half a step. "
                strong { "SQNR" } ": signal to noise of clipping alone, without rounding."
            }
        }
    }
}

fn histogram(v: &ClippedValue) -> Markup {
    let bins = &v.histogram;
    let all = bins.counts.iter().sum::<u64>().max(1) as f64;
    let bars = || {
        let at = bins.counts.iter().enumerate().filter(|(_, n)| **n > 0);
        at.map(|(i, n)| (bins.from + i as f64 * bins.width, bins.width, (*n as f64 / all).log10()))
    };
    let [low, high] = v.range.map(f64::from);
    let is_inside = |(from, width, _): &(f64, f64, f64)| (low..=high).contains(&(from + width / 2.0));
    let ends = [bins.from, bins.from + bins.width * bins.counts.len() as f64];
    let least = bins.counts.iter().copied().filter(|n| *n > 0).min().unwrap_or(1) as f64 / all;
    let name = shortened(&v.name, NAME / 2);
    let up = Axis::of_shares("share of elements, logarithmic", least * 0.9);
    let lowest = (ends[0].min(low), ends[1].max(high));
    let chart = Chart {
        says: format!("How the elements of {name} are distributed; the table below has its range and what is clipped."),
        across: Axis::new("value of an element", [lowest.0, lowest.1].into_iter(), false).between(lowest.0, lowest.1),
        up,
        marks: vec![
            Mark::Bars(0, bars().filter(is_inside).collect()),
            Mark::Bars(1, bars().filter(|bar| !is_inside(bar)).collect()),
            Mark::Edge(low),
            Mark::Edge(high),
        ],
    };
    html! { figure { h3.name { (name) } (chart.svg()) } }
}

/// The course of each training that was part of a pass.
pub fn trainings(r: &Report) -> Markup {
    html! {
        @for t in r.passes.iter().flat_map(|p| &p.trained) {
            @let [before, after, course_in_words] = training(t);
            h3 { (t.name) ": " (before) " to " (after) }
            p { (course_in_words) }
            (course(&t.course, &t.metric, t.unit))
        }
    }
}

/// The loss and the score epoch by epoch, as charts and as a table.
pub fn course(all: &[EpochScore], metric: &str, unit: Unit) -> Markup {
    let (factor, suffix, decimals) = match unit {
        Unit::Share => (100.0, ", %", 2),
        Unit::Decibels => (1.0, ", dB", 1),
        Unit::Number | Unit::Scientific => (1.0, "", 6),
    };
    let finite = |of: &dyn Fn(&EpochScore) -> Option<f64>| -> Vec<(f64, f64)> {
        all.iter().filter_map(|e| Some((e.epoch as f64, of(e).filter(|v| v.is_finite())?))).collect()
    };
    let scores = finite(&|e| e.score.map(|v| factor * v));
    let losses = finite(&|e| e.loss);
    let title = format!("{metric}{suffix}");
    let every = all.len().div_ceil(EPOCHS).max(1);
    let is_shown = |i: usize| i.is_multiple_of(every) || i + 1 == all.len();
    let rows = all.iter().enumerate().filter(|(i, _)| is_shown(*i)).map(|(_, e)| e);
    let cell = |v: Option<f64>, decimals: usize| v.map_or(String::new(), |v| format!("{v:.decimals$}"));
    html! {
        @if all.len() > 1 {
            div.charts {
                (curve(&format!("{title}, held-out samples"), scores, 0, unit == Unit::Share))
                (curve("mean loss of the epoch", losses, 1, false))
            }
            (scroll("Epochs", html! {
                table {
                    (heads(&[("Epoch", true), ("Loss", true), (&title, true)]))
                    tbody {
                        @for e in rows {
                            tr {
                                th.num scope="row" { (e.epoch) }
                                td.num { (cell(e.loss, 4)) }
                                td.num { (cell(e.score.map(|v| factor * v), decimals)) }
                            }
                        }
                    }
                }
            }))
            p.legend {
                "Epoch 0 is the model before the first step. " strong { "Loss" } ": the mean over the epoch, on the samples that are trained on. "
                strong { (title) } ": on samples held out of training."
                @if every > 1 { " One epoch of " (every) " is shown; the report in JSON has all." }
            }
        }
    }
}

fn curve(title: &str, points: Vec<(f64, f64)>, series: usize, percents: bool) -> Markup {
    let (Some(first), Some(last)) = (points.first().copied(), points.last().copied()) else { return html! {} };
    let chart = Chart {
        says: format!("{title}, by epoch: from {:.4} to {:.4}. The table below has every value.", first.1, last.1),
        across: Axis::new("epoch", points.iter().map(|p| p.0), true).between(0.0, last.0.max(1.0)),
        up: match percents {
            true => Axis::of_percents(title, points.iter().map(|p| p.1)),
            false => Axis::new(title, points.iter().map(|p| p.1), false),
        },
        marks: vec![Mark::Line(series, points.clone()), Mark::Dots(series, points)],
    };
    html! { figure { (chart.svg()) } }
}
