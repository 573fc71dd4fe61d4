//! Where the time of a model goes, for people.

use crate::{EngineTime, Explained, ExplainedPart, Work, shown::shortened};
use compress_compiler::words::counted;
use std::fmt::Write as _;

/// Parts that are listed; --json has all.
const LISTED: usize = 20;
/// Letters of a name, and of a list of kernels that are shown.
const NAME: usize = 60;
const KERNELS: usize = 34;

/// Where the time of a model goes.
pub fn explained(e: &Explained) -> String {
    let mut out = format!("{}: batch {}, {}\n", e.model, e.batch, counted(e.threads, "thread"));
    let engines = [&e.ours, &e.onnxruntime].into_iter().flatten();
    engines.for_each(|engine| out += &line(engine, e.against.as_deref()));
    for warning in &e.warnings {
        let _ = writeln!(out, "  note: {warning}");
    }
    if !e.costliest.is_empty() {
        out += "\nThe costliest:\n";
    }
    for (i, sentence) in e.costliest.iter().enumerate() {
        let _ = writeln!(out, "  {}. {sentence}", i + 1);
    }
    if let Some(remedy) = &e.remedy {
        let _ = writeln!(out, "\nTo win it back: {}", remedy.sentence());
    }
    out += "\n";
    out += &table(e);
    out
}

fn line(engine: &EngineTime, against: Option<&str>) -> String {
    let beside = engine.against_ms.zip(against);
    let beside = beside.map_or(String::new(), |(ms, path)| {
        format!(", {:.2}x as fast as {path} ({ms:.3} ms)", ms / engine.ms.max(f64::MIN_POSITIVE))
    });
    format!(
        "  {}: {:.3} ms in kernels, {:.0}% of it on 8-bit codes, {:.0}% in conversions{beside}\n",
        engine.engine,
        engine.ms,
        100.0 * engine.int8,
        100.0 * engine.conversions
    )
}

/// An engine, and what it does for a part.
type Column = (&'static str, fn(&ExplainedPart) -> Option<&Work>);

fn table(e: &Explained) -> String {
    let theirs = e.onnxruntime.is_some();
    let mut columns: Vec<Column> = vec![];
    if theirs {
        columns.push(("ONNX Runtime", |p| p.onnxruntime.as_ref()));
    }
    if e.ours.is_some() {
        columns.push(("our runtime", |p| p.ours.as_ref()));
    }
    let against = e.parts.iter().any(|p| p.against_ms.is_some());
    let mut out = String::from(" ");
    for (name, _) in &columns {
        let _ = write!(out, " {:>9} {:>6}  {name:<KERNELS$}", "ms", "share");
    }
    if against {
        let _ = write!(out, " {:>12}", "original, ms");
    }
    out += "  node\n";
    for part in e.parts.iter().take(LISTED) {
        out += " ";
        for (_, of) in &columns {
            match of(part) {
                Some(w) => {
                    let kernels = clipped(&names(w));
                    let _ = write!(out, " {:>9.4} {:>5.1}%  {kernels:<KERNELS$}", w.ms, 100.0 * w.share);
                }
                None => {
                    let _ = write!(out, " {:>9} {:>6}  {:<KERNELS$}", "-", "", "");
                }
            }
        }
        if against {
            let ms = part.against_ms.map_or("-".into(), |ms| format!("{ms:.4}"));
            let _ = write!(out, " {ms:>12}");
        }
        let more = match part.nodes.len() {
            0 | 1 => String::new(),
            n => format!(", of {n} nodes"),
        };
        let op = if part.op.is_empty() { String::new() } else { format!(" ({}{more})", part.op) };
        let _ = writeln!(out, "  {}{op}", shortened(&part.node, NAME));
    }
    if e.parts.len() > LISTED {
        let _ = writeln!(out, "  and {} more parts", e.parts.len() - LISTED);
    }
    out
}

fn names(work: &Work) -> String {
    counted_names(&work.kernels.iter().map(|k| k.kernel.clone()).collect::<Vec<_>>())
}

/// Names of kernels with their number: `Transpose x2, QLinearConv`.
pub fn counted_names(kernels: &[String]) -> String {
    let mut counts: Vec<(&str, usize)> = vec![];
    for kernel in kernels {
        match counts.iter_mut().find(|(name, _)| *name == kernel) {
            Some((_, n)) => *n += 1,
            None => counts.push((kernel, 1)),
        }
    }
    let one = |(name, n): (&str, usize)| if n == 1 { name.to_string() } else { format!("{name} x{n}") };
    counts.into_iter().map(one).collect::<Vec<_>>().join(", ")
}

fn clipped(text: &str) -> String {
    match text.chars().count() > KERNELS {
        true => text.chars().take(KERNELS - 3).chain("...".chars()).collect(),
        false => text.into(),
    }
}
