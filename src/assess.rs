//! Everything that is measured of a result beside its original: accuracy, layers, speed, memory.

use crate::{
    data::{Samples, Sets},
    deployed,
    events::Monitor,
    explain::{Engines, Seen},
    facts,
    given::Scorer,
    measure::{self, Pace, Reference},
    options::{Effort, GateOptions, MeasureOptions},
    remarks,
    report::Report,
    saturation::{self, Saturation},
    score,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::Model,
    tensor::Tensor,
    verify::verify,
    words::option::{AS_IS, CHECK, DATA, EVAL, MAX_DROP, MIN_SCORE, SCORE},
};
use compress_runtime::{
    metrics::{Answers, Measure, Metric},
    onnxruntime::Provider,
    session::{Backend, Session},
};
use std::{path::Path, time::Duration};

/// How the models are measured.
pub struct Assessment<'a> {
    pub sets: &'a Sets,
    pub backend: &'a Backend,
    pub measures: &'a MeasureOptions,
    pub gates: &'a GateOptions,
    /// Samples a batch when timing.
    pub batch: usize,
    /// Whether the samples were given to be measured on.
    pub asked: bool,
    /// Whose fault it is when the outputs can't be compared.
    pub blame: Kind,
    /// Whether the second model comes from the passes, so that it is simplified.
    pub made_here: bool,
    pub manner: Manner,
    /// How long the work took that is checked.
    pub work: Duration,
    /// Where ONNX Runtime is, if that was said.
    pub library: Option<&'a Path>,
    pub monitor: &'a Monitor<'a>,
}

/// What of two models is compared, and by what.
pub struct Compared {
    pub answers: Answers,
    pub measure: Measure,
    /// The places of these answers among the outputs of each.
    pub places: [Vec<usize>; 2],
}

impl Compared {
    /// The answers among the outputs of the first model, or the second.
    pub fn answers_in(&self, model: usize, outputs: &[Tensor]) -> Vec<Tensor> {
        self.places[model].iter().filter_map(|place| outputs.get(*place).cloned()).collect()
    }
}

/// What the answers of a model are compared by on some samples with those of another.
///
/// # Errors
/// Usage and data for a metric that doesn't fit.
pub fn compared_by([graph, other]: [&Graph; 2], measures: &MeasureOptions, sets: &Sets) -> Result<Compared> {
    let (answers, places) = Answers::shared(graph, other);
    let measure = answers.measure(measures.metric.as_ref(), sets.evaluation.set.is_labelled())?;
    if measure.metric == Metric::Perplexity && sets.evaluation.synthetic {
        return Err(Error::data("the metric `perplexity` needs text: made-up tokens follow each other by chance")
            .help(format!("give {DATA} or {EVAL}")));
    }
    Ok(Compared { answers, measure, places })
}

/// Without more said, accuracy is measured for so long, or for twice the time of the work; and speed for so long.
const ACCURACY: Duration = Duration::from_secs(4);
pub const MOST: Duration = Duration::from_secs(10);
pub const SPEED: Duration = Duration::from_millis(1500);
/// For how long each engine runs the models, to see their kernels.
const KERNELS: Duration = Duration::from_millis(500);
pub const GATED_SPEED: Duration = Duration::from_secs(8);
/// Bytes of weights above which one model is in memory at a time, and layers are not compared one by one.
const LARGE: u64 = 256 << 20;
/// Operators above which a model takes longer to be made ready than to run.
const MANY: usize = 10_000;
/// For how long the accuracy of large or long models is measured that were only simplified.
const SHORT: Duration = Duration::from_millis(100);

/// How models are measured, as far as the original and what was asked tell.
#[derive(Clone, Copy)]
pub struct Manner {
    /// One after the other, so that one is in memory at a time.
    pub one_at_a_time: bool,
    /// No longer than it takes to simplify them, and not timed.
    pub brief: bool,
}

impl Manner {
    /// How `original` is measured: in full if samples or gates are given to measure by. `exact` says that it is
    /// only simplified.
    pub fn of(original: &Model, measures: &MeasureOptions, gates: &GateOptions, asked: bool, exact: bool) -> Self {
        let looked = gates.of_accuracy();
        let timed = gates.of_speed() || measures.as_is;
        let more = measures.check == Effort::Full || measures.score.is_some() || asked || looked;
        let large = original.source().len() > LARGE;
        let operators = || original.graph.and_bodies().iter().map(|g| g.operators().count()).sum::<usize>();
        let brief = !more && exact && !timed && (large || operators() > MANY);
        Self { one_at_a_time: !more && large, brief }
    }

    /// The original, as others are compared with it. `again` says that several are.
    ///
    /// # Errors
    /// Whatever running it can raise.
    pub fn reference(self, session: Session, samples: &Samples, again: bool, monitor: &Monitor) -> Result<Reference> {
        match self.one_at_a_time && !again {
            true => Reference::recorded(session, samples, if self.brief { SHORT } else { ACCURACY }, monitor),
            false => Ok(Reference::new(session, again)),
        }
    }
}

impl Assessment<'_> {
    /// Measures `written`, and tells the report.
    ///
    /// # Errors
    /// Whatever running, reading and timing can raise.
    pub fn run(&self, original: &Model, before: &Reference, written: &Model, report: &mut Report) -> Result<()> {
        let Self { sets, backend, measures, monitor, .. } = self;
        let samples = &sets.evaluation;
        let full = measures.check == Effort::Full;
        let Manner { one_at_a_time, brief } = self.manner;
        let rest = || [original, written].into_iter().for_each(|m| m.source().release());
        rest();
        let after = Session::of_model(written, backend)?;
        let compared = compared_by([&original.graph, &written.graph], measures, sets)?;
        let gated = self.gates.of_accuracy();
        let time = match () {
            () if full || self.asked || gated => None,
            () if brief => Some(SHORT),
            () => Some((2 * self.work).clamp(ACCURACY, MOST)),
        };
        let mut accuracy = measure::accuracy(before, &after, samples, &compared, (self.blame, time), monitor)?;
        report.warnings.extend(remarks::shared_ranges(&written.graph, samples));
        if let Some(scorer) = &measures.score {
            let scored = match scorer {
                Scorer::Command(command) => score::score(command, &compared, before, &after, samples, monitor)?,
                Scorer::Given(_) => {
                    let of = |model: &Model| scorer.evaluated(&crate::Model::of_model(model, backend)?);
                    (of(original)?, of(written)?.unwrap_or(f64::NAN))
                }
            };
            let (old, new) = scored;
            if old.is_none() && self.gates.max_drop.is_some() {
                let what = format!(
                    "{MAX_DROP} compares two scores, and only that of the result is there: let {SCORE} print that of the original before it, or give {MIN_SCORE}"
                );
                report.warnings.push(what);
            }
            let means = match scorer {
                Scorer::Command(command) => format!("what `{command}` prints"),
                Scorer::Given(_) => "what the function that evaluates models returns".into(),
            };
            (accuracy.metric, accuracy.output, accuracy.meaning) = (Metric::Score, None, means);
            match scorer {
                Scorer::Command(_) => accuracy.samples = samples.indices.len(),
                Scorer::Given(_) => accuracy.scored_apart = true,
            }
            accuracy.unlike = 0;
            (accuracy.before, accuracy.after, accuracy.drop) = (old, Some(new), old.map(|old| old - new));
            accuracy.reason = None;
        }
        report.accuracy = Some(accuracy);
        report.layers = match one_at_a_time || brief {
            true => facts::all_layers(&written.graph),
            false => {
                let backends = [original, written].map(|model| backend.of(model));
                measure::layers(&original.graph, (&written.graph, &after), samples, &backends, monitor)?
            }
        };
        drop(after);
        rest();
        // ONNX Runtime simplifies what it loads.
        let by_file = backend.runs_any_operator();
        let as_is = measures.as_is || by_file;
        let simple = |graph: &Graph, is_simple: bool| -> Result<Option<Graph>> {
            if as_is || is_simple { Ok(None) } else { measure::simplified(graph, monitor).map(Some) }
        };
        let (a, b) = (simple(&original.graph, brief)?, simple(&written.graph, self.made_here)?);
        let (before, after) = (a.as_ref().unwrap_or(&original.graph), b.as_ref().unwrap_or(&written.graph));
        if brief {
            report.warnings.push(format!(
                "speed was not timed: engines simplify a model as they load it, and nothing else was done to this one. \
                 {CHECK} full times both simplified, {AS_IS} as the files have them"
            ));
        } else {
            let timed = self.gates.of_speed() || full;
            let pace = Pace { batch: self.batch, time: if timed { GATED_SPEED } else { SPEED }, as_is, one_at_a_time };
            let graphs = [verify(before)?, verify(after)?];
            let make = |i: usize| {
                if one_at_a_time {
                    rest();
                }
                match by_file {
                    true => Session::of_model([original, written][i], backend),
                    false => Session::new(&graphs[i], backend, &[]),
                }
            };
            report.speed = Some(measure::speed(&make, before, samples, &pace, backend, monitor)?);
        }
        report.memory = measure::memory([before, after], samples, self.batch).ok();
        self.count([before, after], report);
        remarks::of_accuracy(report);
        remarks::of_speed(report);
        if !brief && !one_at_a_time && facts::unknown(&written.graph) == 0 {
            report.saturation = saturation::find(&written.graph, samples, monitor)?;
            report.warnings.extend(report.saturation.as_ref().and_then(Saturation::warning));
        }
        if !brief && !one_at_a_time && !by_file {
            report.deployed = deployed::measured(self, original, written, &compared, report)?;
            let provider = report.deployed.is_some().then_some(Provider::Cpu);
            let engines = Engines { ours: Some(backend.of(written)), provider, warnings: vec![] };
            // What the original's kernels take is asked for advice on deployment alone.
            let beside = report.deployed.as_ref().map(|_| original);
            match Seen::of(written, beside, &engines, samples, (self.batch, KERNELS), monitor) {
                Ok(seen) => {
                    seen.tell(&mut report.layers);
                    report.deployed.iter_mut().for_each(|deployed| deployed.parts = seen.parts.clone());
                }
                Err(e) if e.kind() == Kind::Interrupted => return Err(e),
                Err(e) => report.warnings.push(format!("the kernels of layers are not shown: {e}")),
            }
        }
        Ok(())
    }

    /// Counts multiply-accumulates at the sizes of the samples, where the model leaves them open.
    fn count(&self, [before, after]: [&Graph; 2], report: &mut Report) {
        let Ok(inputs) = measure::timing_batch(&self.sets.evaluation, 1).map(|b| b.inputs) else { return };
        let macs = |graph: &Graph| measure::sized(graph, &inputs).map(|g| facts::macs(&g));
        if let (Ok(before), Ok(after), Some(output)) = (macs(before), macs(after), &mut report.output) {
            (report.input.macs, output.macs) = (before, after);
        }
    }
}
