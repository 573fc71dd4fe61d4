//! Runs of a model as a trace: Chrome's format of events, which Perfetto reads too.

use crate::events::Monitor;
use compress_compiler::{
    error::{Error, Result},
    onnx::write_atomic,
    tensor::Tensor,
};
use compress_kernels::traced;
use compress_runtime::{cpu::Spent, session::Session};
use serde_json::{Value, json};
use std::{collections::HashMap, path::Path, time::Instant};

/// Runs that are shown, and those before.
const SHOWN: usize = 5;
const WARMUP: usize = 3;
/// Threads that take pieces of a batch are numbered from here.
const FIRST_WORKER: usize = 1000;

/// Runs the model a few times, and writes what each thread did into the file at `path`: on the first line the steps, on the
/// others the parts of them that helpers did, or the steps of other pieces of the batch.
///
/// # Errors
/// What running it raises; interrupted; file when it can't be written.
pub fn write(path: &Path, session: &Session, inputs: &[Tensor], monitor: &Monitor) -> Result<()> {
    for _ in 0..WARMUP {
        monitor.check()?;
        session.run(inputs)?;
    }
    let began = Instant::now();
    let (runs, helped) = traced(|| (0..SHOWN).map(|_| run(session, inputs, monitor)).collect::<Result<Vec<_>>>());
    let since = |at: Instant| at.saturating_duration_since(began).as_secs_f64() * 1e6;
    let span = |name: &str, thread: usize, from: f64, to: f64, args: Value| {
        let (kind, dur) = ("kernel", to - from);
        json!({ "name": name, "cat": kind, "ph": "X", "pid": 1, "tid": thread, "ts": from, "dur": dur, "args": args })
    };
    let mut events = vec![named(0, "steps")];
    let mut steps: Vec<(Instant, Instant, &Spent)> = vec![];
    let runs = runs?;
    let mut workers = 0;
    for (started, ended, spent) in &runs {
        events.push(span("run", 0, since(*started), since(*ended), json!({})));
        for step in spent {
            let (worker, of) = step.worker;
            let end = step.started + std::time::Duration::from_secs_f64(step.ms * of as f64 / 1e3);
            let thread = FIRST_WORKER * usize::from(worker > 0) + worker;
            events.push(span(step.kernel.name, thread, since(step.started), since(end), json!({ "node": step.node })));
            steps.push((step.started, end, step));
            workers = workers.max(worker);
        }
    }
    let mut threads = HashMap::new();
    for h in &helped {
        let next = threads.len() + 1;
        let thread = *threads.entry(h.thread).or_insert(next);
        let step = steps.iter().find(|(from, to, _)| *from <= h.began && h.began <= *to).map(|(_, _, step)| step);
        let (name, node) = step.map_or(("work", ""), |s| (s.kernel.name, &s.node));
        events.push(span(name, thread, since(h.began), since(h.ended), json!({ "node": node })));
    }
    events.extend((1..=threads.len()).map(|i| named(i, &format!("helper {i}"))));
    events.extend((1..=workers).map(|i| named(FIRST_WORKER + i, &format!("pieces of the batch, thread {}", i + 1))));
    let text = serde_json::to_string(&json!({ "traceEvents": events, "displayTimeUnit": "ms" }));
    write_atomic(path, text.map_err(|e| Error::bug(e.to_string()))?.as_bytes(), true)
}

type Run = (Instant, Instant, Vec<Spent>);

fn run(session: &Session, inputs: &[Tensor], monitor: &Monitor) -> Result<Run> {
    monitor.check()?;
    let started = Instant::now();
    let spent = session.profile(inputs)?;
    Ok((started, Instant::now(), spent))
}

/// The name of a thread.
fn named(thread: usize, name: &str) -> Value {
    json!({ "name": "thread_name", "ph": "M", "pid": 1, "tid": thread, "args": { "name": name } })
}
