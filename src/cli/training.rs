//! Training jobs as text.

use crate::{Ablation, TrainIntent, TrainReport};
use compress_compiler::words::counted;
use compress_runtime::train::job::Ended;

/// How a job ended, for people.
pub fn table(r: &TrainReport) -> String {
    if !r.done_before {
        return done(r);
    }
    let score = |score| r.training.metric.unit().show(score);
    let (before, after) = (score(r.training.before), score(r.training.after));
    format!("{} is done already ({before} -> {after}); --force without --resume does it again\n", r.output.path)
}

fn done(r: &TrainReport) -> String {
    let t = &r.training;
    let why = match t.ended {
        Ended::Finished => "all epochs done",
        Ended::Patience => "no better score for a while",
        Ended::Time => "the time was up",
        Ended::Stopped => "stopped",
    };
    let mut text = format!(
        "{} -> {}\n  {:<12} {} -> {} on {} samples held out\n  \
         {:<12} {} steps of {} samples, {:.1} s, {:.0} samples/s: {why}\n  {:<12} {}\n",
        r.input.path,
        r.output.path,
        t.metric.name(),
        t.metric.unit().show(t.before),
        t.metric.unit().show(t.after),
        t.samples,
        "training",
        t.steps,
        t.batch,
        t.seconds,
        t.samples_per_second,
        "speed",
        t.bound,
    );
    text += &t.advice.as_ref().map_or(String::new(), |advice| format!("  {:<12} {advice}\n", "advice"));
    r.warnings.iter().for_each(|w| text += &format!("  note: {w}\n"));
    text
}

/// What a job would do, for people.
pub fn intent(i: &TrainIntent) -> String {
    format!(
        "{} ({} parameters in {} tensors) -> {}\n\
         {} epochs of {} batches of {}; {} samples to train on, {} to score\n",
        i.student, i.parameters, i.tensors, i.output, i.epochs, i.batches, i.batch, i.samples, i.scored,
    )
}

/// Whether loading limits a job, for people.
pub fn ablation(a: &Ablation) -> String {
    let mut text = format!("{}: batches of {}, on {}\n", a.student, counted(a.batch, "sample"), a.device);
    let waits = 100.0 * a.loaded.spent.data / a.loaded.spent.training().max(1e-9);
    text += &format!(
        "  {:<12} {:.0} samples/s, waiting for data {waits:.0}% of the time ({})\n",
        "as asked",
        a.loaded.samples_per_second,
        counted(a.workers, "worker"),
    );
    text +=
        &format!("  {:<12} {:.0} samples/s, on a batch that is there\n", "not loading", a.resident.samples_per_second);
    text += &match a.loading_limits {
        Some(true) => format!("  loading costs {:.0}% of the speed\n", 100.0 * a.loading_costs),
        Some(false) => "  loading costs less than 10% of the speed: it is not what limits training\n".into(),
        None => "  rounds differ too much to say what loading costs: other work keeps this machine busy\n".into(),
    };
    a.warnings.iter().for_each(|w| text += &format!("  note: {w}\n"));
    text + &a.advice.as_ref().map_or(String::new(), |advice| format!("  {:<12} {advice}\n", "advice"))
}
