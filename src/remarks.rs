//! What a user should read beside the figures: where one misleads, where a result is not fit for use.

use crate::{
    compress::CompressPlan,
    data::Samples,
    report::{Accuracy, LayerFacts, Report, Speed},
    shown,
};
use compress_compiler::{
    graph::Graph,
    onnx::Model,
    op::Op,
    words::{
        counted,
        option::{BISECT, METRIC, PREPROCESS, SCORE, STRIP},
    },
};
use compress_runtime::metrics::Metric;

/// Outputs that differ by rounding alone are closer than this.
const ROUNDING_DB: f64 = 40.0;

/// Below these a table warns, and below those a result is not fit for use.
const WARN: (f64, f64) = (20.0, 0.95);
const UNUSABLE: (f64, f64) = (10.0, 0.5);

/// A clock that is slower than this share of its fastest is told.
const CLOCK: f64 = 0.85;

/// A model that is right less often was not trained for these labels.
const LOST: f64 = 0.2;

/// Says where a number misleads.
pub fn of_compression(plan: &CompressPlan, lossless: bool, report: &mut Report) {
    if let Some(db) = report.accuracy.as_ref().and_then(|a| a.sqnr_db).filter(|db| lossless && *db < ROUNDING_DB) {
        report.warnings.push(format!(
            "simplification should not change the outputs, but they differ by more than rounding ({db:.1} dB): \
             {BISECT} names the change"
        ));
    }
    if let Some(a) = report.accuracy.as_ref().filter(|a| a.synthetic && !lossless) {
        let shared = match a.after.filter(|_| a.metric != Metric::Sqnr) {
            Some(value) => format!(", {} {}", a.metric, a.metric.unit().show(value)),
            None => String::new(),
        };
        let change = match a.sqnr_db {
            Some(db) => format!("differ from the original's by {db:.1} dB SQNR"),
            None if a.equal => "are the same".into(),
            None => "have no numbers to compare".into(),
        };
        report.warnings.push(format!(
            "on {} the outputs {change}{shared}: accuracy on real inputs was not measured",
            counted(a.samples, "made-up input")
        ));
    }
    if plan.options.prune.is_some() || plan.options.pattern.is_some() {
        report.warnings.extend(of_zeros(&report.layers));
    }
}

/// Says that the figures are those of a size of batches, where ranges are those of each run.
pub fn shared_ranges(graph: &Graph, samples: &Samples) -> Option<String> {
    let by_run = |g: &Graph| g.operators().any(|n| matches!(g.op(n), Op::DynamicQuantize(_) | Op::DynamicLstm(_)));
    let batch = samples.batch.min(samples.indices.len());
    (batch > 1 && graph.and_bodies().into_iter().any(by_run)).then(|| {
        format!(
            "samples of a batch share the ranges that INT8 finds in each run: accuracy was measured in batches of {batch}, and a sample \
             alone, or beside others, gets other answers"
        )
    })
}

/// Says that the clock of the processor fell while models were timed, if it did.
pub fn of_speed(report: &mut Report) {
    let slowest = report.speed.as_ref().and_then(|s| s.slowest_clock).filter(|slowest| *slowest < CLOCK);
    report.warnings.extend(slowest.map(clock));
}

/// Warns of a result that is slower than the original where it is going to run.
pub fn of_deployment(speed: &Speed, report: &mut Report) {
    if speed.interval[1] < 1.0 {
        report.warnings.push(format!(
            "WARNING: on ONNX Runtime the result is slower than the original: {:.2}x ({:.2}x to {:.2}x) on {}",
            speed.speedup,
            speed.interval[0],
            speed.interval[1],
            counted(speed.threads, "thread")
        ));
    }
}

fn clock(slowest: f64) -> String {
    format!(
        "the processor's clock fell to {:.0}% of its fastest while the models were timed (heat, a power limit or other work can \
         cause that): the milliseconds mix several clock rates, the ratio compares turns close to each other",
        100.0 * slowest
    )
}

/// Says how far the outputs of a result are from the original's, where that is far.
pub fn of_accuracy(report: &mut Report) {
    let Some(a) = &report.accuracy else { return };
    if let (Some(why), Some(output)) = (&a.reason, &a.output) {
        report
            .warnings
            .push(format!("output `{output}` is not measured by its answers: {why}; {METRIC} measures it otherwise"));
    }
    let lost = a.before.filter(|before| a.metric.needs_labels() && *before < LOST).map(|before| {
        format!(
            "WARNING: the original model is right on only {} of the samples: check that labels and {PREPROCESS} fit the model",
            shown::percent(before)
        )
    });
    let unlike = (a.unlike > 0 && a.metric != Metric::Score).then(|| {
        format!(
            "WARNING: for {} of {} the models return different numbers of results, which can't be compared: \
             {SCORE} COMMAND can score them",
            a.unlike,
            counted(a.samples + a.unlike, "sample")
        )
    });
    if a.silent {
        report.warnings.push(
            "WARNING: the original model answers zero to every sample: accuracy can't be measured on these samples"
                .into(),
        );
    }
    if a.metric.needs_labels() && a.after.is_none() {
        let what =
            "labels were not used: the data has one label per sample, and the outputs have several rows per sample";
        report.warnings.push(what.into());
    }
    if a.sqnr_db.is_none() && !a.equal && a.samples > 0 {
        let what = "the original's outputs are NaN for some samples, or zero throughout: SQNR can't be computed";
        report.warnings.push(what.into());
    }
    report.unusable = unusable(a);
    if report.unusable.is_none()
        && a.metric != Metric::Score
        && let Some(far) = far(a, WARN)
    {
        report.warnings.insert(0, format!("WARNING: {far}"));
    }
    report.warnings.splice(0..0, lost.into_iter().chain(unlike));
}

/// What of the figures is below these bounds: decibels, and a share of the original's answers.
fn far(a: &Accuracy, (db, share): (f64, f64)) -> Option<String> {
    let noisy = a.sqnr_db.filter(|v| *v < db).map(|v| {
        let worst = a.outputs.iter().find(|o| Some(&o.name) == a.worst_output.as_ref());
        let kind = worst.and_then(|o| o.kind.as_ref()).map_or(String::new(), |kind| format!(", of {kind}"));
        format!("output `{}` is at {v:.1} dB, below {db} dB{kind}", a.worst_output.as_deref().unwrap_or_default())
    });
    let shared = if a.before.is_none() && is_share(a) { a.after.map(|v| (a.metric.name(), v)) } else { None };
    let shared = shared.or(a.agreement.map(|v| ("agreement", v)));
    let lost = shared
        .filter(|(_, v)| *v < share)
        .map(|(metric, v)| format!("{metric} is {}, below {}", shown::percent(v), shown::percent(share)));
    let all: Vec<String> = lost.into_iter().chain(noisy).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn is_share(a: &Accuracy) -> bool {
    a.metric.is_share()
}

/// Why a result is not fit for use. What labels and texts say counts most, then what is shared with the original's answers: a
/// model that was trained may answer as well with other numbers.
pub fn unusable(a: &Accuracy) -> Option<String> {
    let (db, share) = UNUSABLE;
    if let Some((before, after)) = perplexity(a) {
        let risen = || format!("perplexity rose from {before:.4} to {after:.4}");
        return (after > before / share).then(risen);
    }
    match (a.before.filter(|_| is_share(a)), a.after) {
        // The user's own program says what a result is worth.
        _ if a.metric == Metric::Score => None,
        (Some(before), Some(after)) if after < before * share => {
            Some(format!("{} fell from {} to {}", a.metric, shown::percent(before), shown::percent(after)))
        }
        (Some(before), after) if before.max(after.unwrap_or(0.0)) >= LOST => None,
        // Of the other outputs nothing but their noise is known.
        (None, Some(after)) if is_share(a) && after >= WARN.1 && a.worst_output == a.output => None,
        _ => far(a, (db, share)),
    }
}

/// The perplexity of a text before and after, which says by itself what a decoder is worth.
fn perplexity(a: &Accuracy) -> Option<(f64, f64)> {
    if a.metric == Metric::Perplexity {
        return a.before.zip(a.after);
    }
    let figure = a.beside.iter().find(|f| f.metric == Metric::Perplexity)?;
    Some((figure.before?, figure.value))
}

/// A share of the file that is worth a word.
const WORTH: f64 = 0.05;
/// Larger than the original by a share and by bytes that are more than those of names and of a line of metadata.
const GROWN: (f64, usize) = (0.005, 4096);

/// Says where a file could be smaller.
pub fn of_size(written: &Model, report: &mut Report) {
    let Some(output) = &report.output else { return };
    let share = written.remark_bytes() as f64 / output.bytes.max(1) as f64;
    if share > WORTH {
        report.warnings.push(format!(
            "documentation and metadata of nodes, such as the exporter's stack traces, take {} of the file: {STRIP} \
             removes them",
            shown::percent(share)
        ));
    }
    let (before, after) = (report.input.bytes, output.bytes);
    if after as f64 > before as f64 * (1.0 + GROWN.0) && after > before + GROWN.1 {
        report.warnings.push(format!(
            "the result is larger than the original: its {} take more room than its smaller weights save",
            counted(output.nodes, "operator")
        ));
    }
}

/// Layers that are named one by one.
const NAMED: usize = 6;

/// What the zeros of a model are worth, if it has any.
fn of_zeros(layers: &[LayerFacts]) -> Option<String> {
    let sum = |bytes: fn(&LayerFacts) -> usize| layers.iter().map(bytes).sum::<usize>();
    let (dead, live) = (sum(|l| l.dead_bytes), sum(|l| l.live_bytes));
    let zeros = format!(
        "zeros do not make the file smaller, but they make a compressed copy of it smaller (size, zstd). They take {} of \
         the {} of weights",
        shown::bytes(dead),
        shown::bytes(dead + live)
    );
    let pruned: Vec<&LayerFacts> = layers.iter().filter(|l| l.dead_bytes > 0).collect();
    let faster: Vec<&str> = pruned.iter().filter(|l| l.skips_zeros == Some(true)).map(|l| &l.node[..]).collect();
    let speed = match faster.len() {
        _ if pruned.iter().all(|l| l.skips_zeros.is_none()) => "Their effect on speed was not measured".into(),
        0 => "No kernel runs faster for them: our runtime skips zeros in float 1x1 convolutions and matrix products only, \
              when most weights of the layer are zero (about 75%, or 90% for a single row)"
            .into(),
        n => {
            let names = if n <= NAMED { format!(" ({})", faster.join(", ")) } else { String::new() };
            let all = pruned.len();
            format!(
                "Our runtime skips the zeros of {n}{names} of the {all} pruned layers; the others do not run faster"
            )
        }
    };
    (dead > 0).then(|| format!("{zeros}. {speed}; ONNX Runtime's kernels do not skip zeros"))
}
