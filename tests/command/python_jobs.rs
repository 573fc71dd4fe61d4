//! `python/compress/_jobs.py` follows from the recipes: a function for each job, an argument for each option.
//! `UPDATE_GOLDEN=1 cargo test --test python_jobs` writes it.

use clap::{Arg, ArgAction, Args, Command};
use compress::{
    Answers, Bench, Check, Compress, DataSource, Distill, Draft, Explain, Inspect, Merge, Scorer, Search, Sensitivity,
    Sweep,
    values::{Bytes, Finite, Fraction, Milliseconds, NotNegative, Positive, Score, Seed, Share, Time},
};
use std::{any::TypeId, fmt::Write as _, path::PathBuf};

const HEAD: &str = r#""""The jobs. This file follows from the recipes in Rust: `UPDATE_GOLDEN=1 cargo test --test python_jobs` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ._data import Data, Path
from ._report import Report
from ._run import Evaluate, TrainingJob, run
"#;

/// A job as Python has it.
struct Job {
    name: &'static str,
    /// What it is in the recipe's own documentation.
    does: &'static str,
    options: Vec<Arg>,
    /// Whether a function can score models; whether it writes files.
    evaluates: bool,
    writes: bool,
}

fn job<T: Args>(name: &'static str, does: &'static str) -> Job {
    let command = T::augment_args(Command::new(name));
    let options: Vec<Arg> = command.get_arguments().cloned().collect();
    let has = |id: &str| options.iter().any(|a| a.get_id() == id);
    Job { name, does, evaluates: has("score"), writes: has("force"), options }
}

fn jobs() -> Vec<Job> {
    vec![
        job::<Compress>(
            "compress",
            "Compresses a model: prunes and quantises it, trains it to win accuracy back, measures that, and writes the result \
             and its report.",
        ),
        job::<Sweep>("sweep", "Compresses a model by several fractions of its weights, and says what each costs."),
        job::<Search>(
            "search",
            "Searches for the best ways to compress a model: forms of single layers, zeros, channels, calibration and training. The \
             result is the one that the limits and the wish ask for.",
        ),
        job::<Merge>(
            "merge",
            "Puts the parts of a sweep, a search or figures of layers together, which several machines did (`shard`).",
        ),
        job::<Answers>("answers", "Finds what a teacher answers to data, once for all jobs that learn from it."),
        job::<Check>(
            "check",
            "Compares a model with the one that it came from, and holds the figures against gates. Data is all measured on.",
        ),
        job::<Draft>(
            "draft",
            "Makes the fastest draft of a decoder, a small model that guesses its tokens (speculative decoding).",
        ),
        job::<Bench>("bench", "Times a model on our runtime."),
        job::<Explain>(
            "explain",
            "Says where the time of a model goes, on our runtime and on ONNX Runtime: kernel by kernel, and why in floats.",
        ),
        job::<Inspect>("inspect", "Shows what a model is made of."),
        job::<Sensitivity>("sensitivity", "Measures how much each layer minds INT8, zeros and the loss of channels."),
        job::<Distill>(
            "Distill",
            "Trains a model: by a teacher, by labels, or both. Iterate over the job to see its metrics as it goes, or call \
             `run`. A job keeps checkpoints, and goes on from the last with `resume`.",
        ),
    ]
}

/// The type of an option in Python.
fn annotation(arg: &Arg) -> String {
    let is = |id: TypeId| arg.get_value_parser().type_id() == id;
    let choices: Vec<String> = arg.get_possible_values().iter().map(|v| v.get_name()).map(quoted).collect();
    let number =
        [TypeId::of::<Fraction>(), TypeId::of::<Positive>(), TypeId::of::<NotNegative>(), TypeId::of::<Finite>()];
    let with_unit = [TypeId::of::<Share>(), TypeId::of::<Score>(), TypeId::of::<Bytes>()];
    let one = match () {
        () if !choices.is_empty() => format!("Literal[{}]", choices.join(", ")),
        () if is(TypeId::of::<PathBuf>()) => "Path".into(),
        () if is(TypeId::of::<DataSource>()) => "Data".into(),
        () if number.into_iter().any(is) => "float".into(),
        () if with_unit.into_iter().any(is) => "float | str".into(),
        () if [TypeId::of::<Milliseconds>(), TypeId::of::<Time>(), TypeId::of::<Scorer>()].into_iter().any(is) => {
            "str".into()
        }
        () if is(TypeId::of::<Seed>()) || arg.get_value_names().is_some_and(|n| n[0] == "N") => "int".into(),
        () => "str".into(),
    };
    match arg.get_action() {
        ArgAction::Append if one == "float" => "float | Iterable[float]".into(),
        ArgAction::Append => format!("{one} | Iterable[{one}]"),
        _ => one,
    }
}

/// Whether its value may be left out.
fn may_stand_alone(arg: &Arg) -> bool {
    arg.get_num_args().is_some_and(|n| n.min_values() == 0 && n.max_values() == 1)
}

/// A choice in Python: a number where it is one.
fn quoted(name: &str) -> String {
    if name.parse::<u32>().is_ok() { name.into() } else { format!("\"{name}\"") }
}

/// Its name.
fn name(arg: &Arg) -> String {
    arg.get_long().unwrap_or(arg.get_id().as_str()).replace('-', "_")
}

/// Its help, with options as Python has them.
fn help(arg: &Arg) -> String {
    let text = arg.get_help().map(|h| h.to_string()).unwrap_or_default();
    let text = text.replace(", - for standard output", "").replace("Fail (exit 9)", "Fail");
    let flags = regex::Regex::new("--([a-z0-9][a-z0-9-]*)").unwrap();
    let text = flags.replace_all(&text, |found: &regex::Captures| format!("`{}`", found[1].replace('-', "_")));
    let usual: Vec<String> = arg.get_default_values().iter().map(|v| v.to_string_lossy().into_owned()).collect();
    let takes_value = !matches!(arg.get_action(), ArgAction::SetTrue);
    let usual =
        if usual.is_empty() || !takes_value { String::new() } else { format!(" [default: {}]", usual.join(", ")) };
    format!("{text}{usual}")
}

/// Lines of at most this width, indented by `by`.
fn wrapped(text: &str, by: usize, first: usize) -> String {
    let mut lines = vec![" ".repeat(first)];
    for word in text.split_whitespace() {
        let last = lines.last_mut().unwrap();
        if last.trim().is_empty() || last.len() + 1 + word.len() <= 118 {
            if !last.trim().is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        } else {
            lines.push(format!("{}{word}", " ".repeat(by)));
        }
    }
    lines.join("\n")
}

fn function(job: &Job) -> String {
    let is_class = job.name == "Distill";
    let (by, keyword) = if is_class { (4, "def __init__") } else { (0, "def") };
    let pad = " ".repeat(by);
    let mut text = String::new();
    if is_class {
        let _ = writeln!(
            text,
            "class Distill(TrainingJob):\n    \"\"\"{}\n    \"\"\"\n",
            wrapped(job.does, 4, 0).trim_start()
        );
        let _ = writeln!(text, "{pad}{keyword}(\n{pad}    self,");
    } else {
        let _ = writeln!(text, "{keyword} {}(", job.name);
    }
    let is_input = |arg: &&Arg| arg.get_long().is_none();
    let mut docs = vec![];
    for arg in job.options.iter().filter(is_input) {
        let _ = writeln!(text, "{pad}    {}: {},", name(arg), annotation(arg));
        docs.push((name(arg), help(arg)));
    }
    let _ = writeln!(text, "{pad}    *,");
    // What is required first.
    let mut options: Vec<&Arg> = job.options.iter().filter(|a| !is_input(a)).collect();
    options.sort_by_key(|a| !a.is_required_set());
    for arg in options {
        if ["force", "resume"].contains(&&name(arg)[..]) {
            continue;
        }
        let (annotated, required) = (annotation(arg), arg.is_required_set());
        let _ = match arg.get_action() {
            ArgAction::SetTrue => writeln!(text, "{pad}    {}: bool = False,", name(arg)),
            _ if may_stand_alone(arg) => writeln!(text, "{pad}    {}: bool | {annotated} = False,", name(arg)),
            ArgAction::Append if !required => writeln!(text, "{pad}    {}: {annotated} = (),", name(arg)),
            _ if required => writeln!(text, "{pad}    {}: {annotated},", name(arg)),
            _ => writeln!(text, "{pad}    {}: {annotated} | None = None,", name(arg)),
        };
        docs.push((name(arg), help(arg)));
    }
    if job.evaluates {
        let _ = writeln!(text, "{pad}    evaluate: Evaluate | None = None,");
        docs.push((
            "evaluate".into(),
            "Scores a model: a function that is given a function from inputs to outputs, and returns a number; a higher one \
             is better. Gates look at its score, and with `max_drop` the search for what stays in floats does."
                .into(),
        ));
    }
    if let Some(resume) = job.options.iter().find(|a| name(a) == "resume") {
        let _ = writeln!(text, "{pad}    resume: bool = False,");
        docs.push(("resume".into(), help(resume)));
    }
    if job.writes {
        let _ = writeln!(text, "{pad}    force: bool = False,");
        docs.push(("force".into(), "Overwrite what exists.".into()));
    }
    let _ = writeln!(text, "{pad}    progress: bool = True,");
    docs.push(("progress".into(), "Show bars, where tqdm is installed.".into()));
    let _ = writeln!(text, "{pad}) -> {}:", if is_class { "None" } else { "Report" });
    let intro = if is_class { "A job that begins when it is iterated over, or run." } else { job.does };
    let _ = writeln!(text, "{pad}    \"\"\"{}\n", wrapped(intro, by + 4, 0).trim_start());
    let _ = writeln!(text, "{pad}    Args:");
    for (name, help) in docs {
        let _ = writeln!(text, "{}", wrapped(&format!("{name}: {help}"), by + 12, by + 8));
    }
    let _ = writeln!(text, "{pad}    \"\"\"");
    let _ = match is_class {
        true => writeln!(text, "{pad}    super().__init__(locals())"),
        false => writeln!(text, "    return run(\"{}\", locals())", job.name),
    };
    text
}

#[test]
fn the_functions_of_python_have_the_options_of_the_recipes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("python/compress/_jobs.py");
    let made = HEAD.to_string() + &jobs().iter().map(|job| format!("\n\n{}", function(job))).collect::<String>();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == made, "{} is not what the recipes say: UPDATE_GOLDEN=1 writes it", path.display());
}
