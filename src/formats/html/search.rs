//! The page of a search: the front, and the ways of flags alone on it.

use super::{
    chart::{Axis, Chart, Mark, Sign, key},
    page::{self, Headline, Outcome, Section, file_name, page},
};
use crate::{
    report::Verdict,
    search::{Objectives, SearchPoint, SearchReport, lost},
    shown,
};
use compress_compiler::words::counted;
use maud::{Markup, html};
use std::time::Duration;

/// The report of a search as a page that needs nothing else.
pub fn search_html(r: &SearchReport) -> String {
    let gates: Vec<_> = r.gates.iter().map(|g| (None, g)).collect();
    let files: Vec<_> = [("Original", Some(&r.input)), ("Result", r.output.as_ref())]
        .into_iter()
        .filter_map(|(n, f)| Some((n, f?)))
        .collect();
    let sections = vec![
        Section::new("front", "What can be had together", front(r)),
        Section::new("course", "The course of the search", course(r)),
        Section::new("gates", "Limits", page::gates(&gates)),
        Section::new("notes", "Notes", page::notes(&[], &r.warnings, None)),
        Section::new("again", "Run it again", page::again(&r.recipe, &files)),
    ];
    let time = shown::duration(Duration::from_secs_f64(r.seconds));
    let from = html! { (counted(r.tried, "way")) " tried in " (time) };
    let head = page::head("Search", &r.input.path, from, &outcome(r), &headlines(r));
    page(&format!("{}: search", file_name(&r.input.path)), head, sections)
}

fn outcome(r: &SearchReport) -> Outcome {
    match r.verdict() {
        _ if r.output.is_none() => {
            Outcome { verdict: None, says: "A part of a search, without a result of its own.".into() }
        }
        Ok(()) => Outcome { verdict: Some(Verdict::Passed), says: "The result is within the limits.".into() },
        Err(_) => Outcome { verdict: Some(Verdict::Failed), says: "The result exceeds a limit.".into() },
    }
}

fn headlines(r: &SearchReport) -> Vec<Headline> {
    let Some(p) = r.taken() else { return vec![] };
    let Objectives { lost: by, time, size } = p.measured.unwrap_or(p.chosen_by);
    vec![
        Headline { name: "Result", value: p.number.to_string(), note: p.way.clone() },
        Headline {
            name: "Accuracy",
            value: lost(by, r.of_share),
            note: format!("on {}", counted(r.samples.measured, "sample")),
        },
        Headline {
            name: "Speed",
            value: format!("{:.2}x", 1.0 / time.max(1e-9)),
            note: "of the original, on our runtime".into(),
        },
        Headline { name: "Size", value: shown::bytes(p.bytes), note: format!("{:.1}% of the original", 100.0 * size) },
    ]
}

/// What counts of a point: at the end, or where it was chosen by.
fn of(p: &SearchPoint) -> Objectives {
    p.measured.unwrap_or(p.chosen_by)
}

fn front(r: &SearchReport) -> Markup {
    let time = |o: &Objectives| 1.0 / o.time.max(1e-9);
    let size = |o: &Objectives| 100.0 * o.size;
    html! {
        (key([
            (Sign::Dot(0), "a way that no other is better than".into()),
            (Sign::Dot(1), "flags alone".into()),
            (Sign::Dot(2), "the result".into()),
        ].into_iter()))
        div.charts {
            (plot(r, "times as fast as the original", &time))
            (plot(r, "size, % of the original", &size))
        }
        (table(r))
    }
}

fn plot(r: &SearchReport, across: &str, at: &dyn Fn(&Objectives) -> f64) -> Markup {
    let title = if r.of_share { "points lost" } else { "error, %" };
    let place = |p: &SearchPoint| (at(&of(p)), 100.0 * of(p).lost);
    let some = |which: &dyn Fn(&SearchPoint) -> bool| -> Vec<(f64, f64)> {
        r.points.iter().filter(|p| which(p)).map(place).filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    };
    let (best, plain) =
        (some(&|p| p.front && Some(p.number) != r.picked), some(&|p| p.plain && Some(p.number) != r.picked));
    let taken = some(&|p| Some(p.number) == r.picked);
    let all: Vec<(f64, f64)> = best.iter().chain(&plain).chain(&taken).copied().collect();
    if all.len() < 2 {
        return html! {};
    }
    let chart = Chart {
        says: format!("{title} over {across}, a point for each way. The table below has every value."),
        up: Axis::new(title, all.iter().map(|p| p.1), false),
        across: Axis::new(across, all.iter().map(|p| p.0), false),
        marks: vec![Mark::Dots(0, best), Mark::Dots(1, plain), Mark::Dots(2, taken)],
    };
    html! { figure { (chart.svg()) } }
}

fn table(r: &SearchReport) -> Markup {
    let titles = [
        ("Way", false),
        ("Accuracy", true),
        ("SQNR", true),
        ("Faster", true),
        ("Size", true),
        ("What", false),
        ("Recipe", false),
    ];
    html! {
        (page::scroll("What each way costs and gains", html! {
            table {
                (page::heads(&titles))
                tbody {
                    @for p in &r.points {
                        tr {
                            th scope="row" { (p.number) }
                            td.num { (lost(of(p).lost, r.of_share)) }
                            td.num { (p.sqnr_db.map_or_else(|| "equal".into(), |db| format!("{db:.1} dB"))) }
                            td.num { (format!("{:.2}x", 1.0 / of(p).time.max(1e-9))) }
                            td.num { (shown::bytes(p.bytes)) }
                            td {
                                (p.way)
                                @if Some(p.number) == r.picked { ", " strong { "the result" } }
                                @else if !p.front { ", flags alone that another way beats" }
                                @else if p.plain { ", flags alone" }
                            }
                            td { @if let Some(recipe) = &p.recipe { (file_name(recipe)) } }
                        }
                    }
                }
            }
        }))
        p.legend {
            strong { "Accuracy" } ": what is lost on "
            @if r.samples.measured > 0 { (counted(r.samples.measured, "sample")) " that no choice saw; of ways that others beat on " }
            (counted(r.samples.chose, "sample")) " that chose. "
            strong { "Recipe" } ": a file in " (r.folder) "/points that `compress run` makes the model of anew."
        }
    }
}

/// The hypervolume over the time.
fn course(r: &SearchReport) -> Markup {
    let points: Vec<(f64, f64)> = r.reached.iter().map(|p| (p.seconds / 60.0, 100.0 * p.hypervolume)).collect();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return html! {} };
    let end = (r.seconds / 60.0).max(last.0);
    let mut steps = vec![*first];
    for pair in points.windows(2) {
        steps.extend([(pair[1].0, pair[0].1), pair[1]]);
    }
    steps.push((end, last.1));
    let plain = 100.0 * r.plain;
    let chart = Chart {
        says: format!("The hypervolume rises from {:.1}% to {:.1}%; flags alone reach {plain:.1}%.", first.1, last.1),
        up: Axis::of_percents("hypervolume, %", steps.iter().map(|p| p.1).chain([plain])),
        across: Axis::new("minutes", steps.iter().map(|p| p.0).chain([0.0]), false),
        marks: vec![Mark::Line(0, steps), Mark::Level(plain)],
    };
    html! {
        (key([(Sign::Dashes, "flags alone".into())].into_iter()))
        figure { (chart.svg()) }
        p.legend {
            strong { "Hypervolume" } ": the part of what lies between the original and nothing lost in no time and no bytes that at least \
            one way is better than (Zitzler and Thiele 1998)."
        }
    }
}
