//! Training jobs as text.

use crate::{TrainIntent, TrainReport};
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
