//! The page of a training job.

use super::{
    page::{self, Headline, Outcome, Section, file_name, page},
    passes::course,
};
use crate::{TrainReport, report::Verdict, shown};
use compress_compiler::words::counted;
use compress_runtime::train::job::Ended;
use maud::{Markup, html};
use std::time::Duration;

/// The report of a training job as a page that needs nothing else.
pub fn training_html(r: &TrainReport) -> String {
    let t = &r.training;
    let mut files = vec![("Original", &r.input), ("Result", &r.output)];
    files.extend(r.teacher.as_ref().map(|teacher| ("Teacher", teacher)));
    let sections = vec![
        Section::new("notes", "Not done, and notes", page::notes(&r.undone, &r.warnings, None)),
        Section::new("training", "Course of the training", course(&t.course, t.metric.name(), t.metric.unit())),
        Section::new("time", "Where the time went", time(r)),
        Section::new("again", "Run it again", page::again(&r.recipe, &files)),
    ];
    let from = html! {
        "trained from " strong { (file_name(&r.input.path)) }
        @match &r.teacher {
            Some(teacher) => { ", with " strong { (file_name(&teacher.path)) } " as teacher" }
            None => { ", on labels" }
        }
    };
    let head = page::head("Training of a model", &r.output.path, from, &outcome(r), &headlines(r));
    page(&format!("{}: training", file_name(&r.output.path)), head, sections)
}

fn outcome(r: &TrainReport) -> Outcome {
    match r.training.after > r.training.before {
        true => Outcome { verdict: Some(Verdict::Passed), says: "Training made the model better.".into() },
        false => {
            Outcome { verdict: Some(Verdict::Failed), says: "No epoch was better than the model at the start.".into() }
        }
    }
}

fn headlines(r: &TrainReport) -> Vec<Headline> {
    let t = &r.training;
    let why = match t.ended {
        Ended::Finished => "all epochs are done",
        Ended::Patience => "the score no longer rose",
        Ended::Time => "the time was up",
        Ended::Stopped => "it was stopped",
    };
    let show = |v| t.metric.unit().show(v);
    vec![
        Headline {
            name: "Score",
            value: show(t.after),
            note: format!("{}, {} before; {} held out", t.metric, show(t.before), counted(t.samples, "sample")),
        },
        Headline {
            name: "Duration",
            value: shown::duration(Duration::from_secs_f64(t.seconds.max(0.0))),
            note: format!("{} of {}; {why}", counted(t.steps as usize, "step"), counted(t.batch, "sample")),
        },
        Headline {
            name: "Speed",
            value: format!("{:.0} samples/s", t.samples_per_second),
            note: "scores and checkpoints aside".into(),
        },
        Headline {
            name: "Size",
            value: shown::bytes(r.output.bytes),
            note: format!("{} trained", counted(t.parameters, "parameter")),
        },
    ]
}

fn time(r: &TrainReport) -> Markup {
    let s = &r.training.spent;
    let parts = [
        ("Computing", s.compute, "forward, backward, and the change of the weights"),
        ("Teacher", s.teacher, "running the teacher"),
        ("Data", s.data, "waiting for samples"),
        ("Scoring", s.scoring, "running the model on held-out samples"),
        ("Checkpoints", s.saving, "writing them"),
    ];
    let all: f64 = parts.iter().map(|p| p.1).sum();
    html! {
        @if all > 0.0 {
            (page::scroll("Where the time went", html! {
                table {
                    (page::heads(&[("Part", false), ("Time, s", true), ("Share, %", true)]))
                    tbody {
                        @for (name, seconds, means) in parts {
                            tr {
                                th scope="row" { (name) span.note { (means) } }
                                td.num { (format!("{seconds:.1}")) }
                                td.num { (format!("{:.1}", 100.0 * seconds / all)) }
                            }
                        }
                    }
                }
            }))
            @if let Some(advice) = &r.training.advice {
                p { "To make it faster: " (advice) "." }
            }
        }
    }
}
