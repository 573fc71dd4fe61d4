//! A way, tried: compressed as its recipe says, and measured on samples that choose.

use super::{
    Search,
    front::{MOST_ERROR, MOST_LOST, Objectives, Worst},
    tried::Outcome,
    way::{Form, Way},
};
use crate::{
    assess::compared_by,
    compress::{Compress, CompressPlan, Opened, Purpose, Shared, calibrator::Timer},
    data::Samples,
    events::{Ask, Event, Monitor},
    facts,
    kept::{KeptTimes, structure},
    measure::{self, Pace, Reference},
    options::expressions,
    recipe::Recipe,
    remarks,
    report::{Accuracy, FileFacts, Recorded, Report, Speed},
    sensitivity::on_samples,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    memo::Memo,
    onnx::{self, Model, Staged},
    pass::Stopwatch,
    pipeline::Beginnings,
    verify::verify,
    words::{Unit, option::DATA},
};
use compress_passes::{
    prune::mask::Scope,
    quant::scheme::WeightBits,
    sensitivity::{LayerAlone, Measurement},
};
use compress_runtime::{metrics::Metric, session::Session};
use std::{
    cell::RefCell,
    collections::HashMap,
    path::Path,
    time::{Duration, Instant},
};

/// A third of the samples chooses, or so many.
const THIRD: usize = 3;
const MOST_VALIDATED: usize = 1000;
/// For how long the accuracy of a way is measured at most, and its speed.
const ACCURACY: Duration = Duration::from_secs(30);
const SPEED: Duration = Duration::from_millis(1000);
/// Samples of which inputs of layers are calibrated alone.
const CALIBRATED: usize = 64;

/// Tries ways on one model.
pub struct Lab<'a> {
    search: &'a Search,
    opened: Opened,
    /// How many samples choose.
    pub validation: usize,
    /// What is measured.
    pub metric: Metric,
    /// Whether that is a share.
    pub of_share: bool,
    /// Bytes of the original.
    pub bytes: usize,
    simple: Graph,
    kept: KeptTimes,
    /// The timings of each graph, by what of it decides them.
    timed: RefCell<HashMap<String, Vec<f64>>>,
}

/// A way that was tried, and the file that it made.
pub struct Made {
    pub outcome: Outcome,
    pub staged: Staged,
    /// Seconds until weights and channels were gone.
    pub beginning: f64,
}

impl<'a> Lab<'a> {
    /// Opens the model and the data of a search.
    ///
    /// # Errors
    /// Whatever reading and running the model on data can raise; data for too few samples.
    pub fn new(search: &'a Search, monitor: &Monitor) -> Result<Self> {
        let opened_by = |recipe: &Compress| -> Result<Opened> {
            let plan = CompressPlan::new(recipe, Purpose::Intent)?;
            Opened::new(&plan, true, monitor)
        };
        let all = Way::plain(Form::Float).recipe(search, &[], None)?;
        let mut opened = opened_by(&all)?;
        let count = opened.sets.as_ref().map_or(0, |sets| sets.to_choose_on());
        // Whole batches, of a model that takes no others.
        let batch = opened.sets.as_ref().map_or(1, |sets| sets.validation.timed(1));
        let validation = (count / THIRD).min(MOST_VALIDATED) / batch * batch;
        if validation == 0 {
            let at_once = if batch > 1 { format!(", and the model takes {batch} at once") } else { String::new() };
            let what = format!("{count} samples are too few to search on: a third of them chooses{at_once}");
            return Err(Error::data(what).help(format!("give more {DATA}")));
        }
        let recipe = Way::plain(Form::Float).recipe(search, &[], Some(validation))?;
        opened.choose_by(&CompressPlan::new(&recipe, Purpose::Intent)?, monitor)?;
        let in_model = |e: Error| e.in_file(&search.model);
        let sets = opened.sets.as_ref().ok_or_else(|| in_model(Error::unsupported(opened.warnings.join("; "))))?;
        let session = || Session::of_model(&opened.original, &opened.backend).map_err(in_model);
        let before = Reference::new(session()?, true);
        // The outputs suggest a metric, and answers may rule it out: all alike, they choose nothing.
        let compared = compared_by([&opened.original.graph; 2], &recipe.measures, sets)?;
        let limit = (Kind::Data, Some(ACCURACY));
        let metric = measure::accuracy(&before, &session()?, &sets.validation, &compared, limit, monitor)?.metric;
        opened.before = Some(before);
        let of_share = metric.unit() == Unit::Share;
        let simple = measure::simplified(&opened.original.graph, monitor).map_err(in_model)?;
        let bytes = opened.original.source().len() as usize;
        let kept = KeptTimes::of(&opened.backend);
        opened.shared = Some(Shared {
            beginnings: RefCell::new(Beginnings::up_to((MOST_BYTES / bytes.max(1)).clamp(1, MOST_BEGINNINGS))),
            memo: Memo::up_to(MOST_FINDINGS),
            judged: RefCell::default(),
        });
        let timed = RefCell::default();
        Ok(Self { search, opened, validation, metric, of_share, bytes, simple, kept, timed })
    }

    /// A digest of the model.
    pub fn digest(&self) -> String {
        self.opened.original.source().files().iter().map(|file| file.sha256()).collect::<Vec<_>>().join(",")
    }

    /// The model in numbers.
    pub fn input(&self) -> FileFacts {
        facts::file(&self.search.model, &self.opened.original)
    }

    /// A digest of the data that ways are made on.
    ///
    /// # Errors
    /// Whatever reading it can raise.
    pub fn data(&self) -> Result<Option<String>> {
        self.opened.sets.as_ref().map(|sets| sets.calibration.set.digest()).transpose()
    }

    /// What is said where times of earlier runs took part.
    pub fn of_earlier_times(&self) -> Option<String> {
        self.kept.told()
    }

    /// The worst that counts.
    pub fn worst(&self) -> Worst {
        Worst(if self.of_share { MOST_LOST } else { MOST_ERROR })
    }

    /// What each layer costs in few bits, alone.
    ///
    /// # Errors
    /// Whatever running the model can raise; interrupted.
    pub fn layers(&self, monitor: &Monitor) -> Result<Vec<LayerAlone>> {
        let sets = self.opened.sets.as_ref().ok_or_else(|| Error::bug("a search without data"))?;
        let backend = &self.opened.backend;
        let samples = sets.calibration.first(CALIBRATED);
        let (scope, target) = (Scope { exclude: expressions(&self.search.exclude), ends: true }, self.search.target);
        let measurement = Measurement { scheme: target.scheme(WeightBits::default()), target, scope };
        let graph = self.opened.original.graph.clone();
        match on_samples([&samples, &sets.validation], backend, monitor, |cx| measurement.alone(graph, cx)) {
            // What can't be quantised has no layers to choose from, and may be pruned all the same.
            Err(e) if e.kind() == Kind::Unsupported => {
                monitor.note(&format!("no layer is quantised: {e}"));
                Ok(vec![])
            }
            found => found.map_err(|e| e.in_file(&self.search.model)),
        }
    }

    /// The time of each layer of `table` in a model, in parts of a run of the original.
    ///
    /// # Errors
    /// Whatever running it can raise.
    pub fn layer_times(&self, table: &[LayerAlone], model: Option<&Model>) -> Result<Vec<f64>> {
        let sets = self.opened.sets.as_ref().ok_or_else(|| Error::bug("a search without data"))?;
        let inputs = measure::timing_batch(&sets.calibration, self.search.on.batch.get())?.inputs;
        let backend = &self.opened.backend;
        let run = |graph: &Graph| -> Result<(f64, Vec<f64>)> {
            let session = measure::session(graph, backend)?;
            session.run(&inputs)?;
            // Of several runs the least: other work on the machine only adds to it.
            let mut least: Option<(f64, Vec<f64>)> = None;
            for _ in 0..RUNS {
                let spent = session.profile(&inputs)?;
                let all: f64 = spent.iter().map(|s| s.ms).sum();
                if least.as_ref().is_none_or(|(best, _)| all < *best) {
                    let of = |layer: &LayerAlone| measure::spent_on(graph, &layer.node, &spent).unwrap_or(0.0);
                    least = Some((all, table.iter().map(of).collect()));
                }
            }
            Ok(least.unwrap_or_default())
        };
        let (whole, own) = run(&self.simple)?;
        let each = match model {
            Some(model) => run(&model.graph)?.1,
            None => own,
        };
        Ok(each.into_iter().map(|time| time / whole.max(1e-12)).collect())
    }

    /// Tries a way. One that stays behind the `front` (what its ways reach, and the noise of each) is measured on few samples.
    ///
    /// # Errors
    /// Whatever compressing and measuring can raise; interrupted.
    pub fn try_out(
        &mut self,
        (way, table): (&Way, &[LayerAlone]),
        path: &Path,
        front: &[(Objectives, f64)],
        monitor: &Monitor,
    ) -> Result<Made> {
        let recipe = way.recipe(self.search, table, Some(self.validation))?;
        let recipe = Compress { output: Some(path.into()), force: true, ..recipe };
        let plan = CompressPlan::new(&recipe, Purpose::Compress)?;
        self.opened.choose_by(&plan, monitor)?;
        let opened = &self.opened;
        let pipeline = plan.pipeline(&opened.options(&plan));
        // The file names its recipe: as a run of that would have it.
        let mut report = Report { recipe: Recorded::new(&Recipe::Compress(recipe.clone()), None), ..Report::default() };
        let model = opened.compile(&plan, &pipeline, &mut report, monitor)?;
        let idle = |name: &str| report.passes.iter().any(|pass| pass.name == name && pass.edits == 0);
        if let Some(name) = ["channels", "prune", "weights", "int8"].into_iter().find(|name| idle(name)) {
            return Err(Error::unsupported(format!("the pass {name} found nothing to do")));
        }
        let staged = onnx::stage(&model, &plan.output, false)?;
        let written = staged.read_back()?;
        let sets = opened.sets.as_ref().ok_or_else(|| Error::bug("a search without data"))?;
        let session = Session::of_model(&written, &opened.backend)?;
        let compared = compared_by([&opened.original.graph, &written.graph], &recipe.measures, sets)?;
        let before = opened.before.as_ref().ok_or_else(|| Error::bug("a search without the original"))?;
        let file = facts::file(path, &written);
        let time = self.time(&written, &file.sha256, 1, monitor)?;
        let size = file.bytes as f64 / self.bytes.max(1) as f64;
        let measured = |samples: &Samples| -> Result<(Outcome, Metric)> {
            let limit = (Kind::Data, Some(ACCURACY));
            let accuracy = measure::accuracy(before, &session, samples, &compared, limit, monitor)?;
            let outcome = Outcome {
                objectives: Objectives { lost: self.lost(&accuracy), time, size },
                noise: noise(&accuracy),
                score: accuracy.after,
                agreement: accuracy.agreement,
                samples: accuracy.samples,
                behind: false,
                bytes: file.bytes,
                sha256: file.sha256.clone(),
                unusable: remarks::unusable(&accuracy),
            };
            Ok((outcome, accuracy.metric))
        };
        let few = sets.validation.every(FEW);
        let some = (few.indices.len() >= LEAST && !front.is_empty()).then(|| measured(&few)).transpose()?;
        let tells = |(some, metric): &(Outcome, Metric)| some.samples >= LEAST && *metric == self.metric;
        let outcome = match some.filter(tells).filter(|(some, _)| self.is_behind(some, front)) {
            Some((some, _)) => Outcome { behind: true, ..some },
            None => {
                let (mut outcome, _) = measured(&sets.validation)?;
                // What was lucky once is no faster for it.
                if !self.is_behind(&outcome, front) {
                    outcome.objectives.time = self.time(&written, &file.sha256, TIMINGS, monitor)?;
                }
                outcome
            }
        };
        let beginning = opened.shared.as_ref().map_or(0.0, |shared| shared.beginnings.borrow().seconds());
        Ok(Made { outcome, staged, beginning: if way.prunes() { beginning } else { 0.0 } })
    }

    /// The time of a run of what was written, in parts of the original's: the middle of so many timings.
    fn time(&self, written: &Model, sha256: &str, timings: usize, monitor: &Monitor) -> Result<f64> {
        let sets = self.opened.sets.as_ref().ok_or_else(|| Error::bug("a search without data"))?;
        let (backend, batch) = (&self.opened.backend, self.search.on.batch.get());
        let whole = backend.runs_any_operator();
        // Ways that differ in values alone take the same time.
        let known = if whole { sha256.to_string() } else { structure(&written.graph) };
        let mut timed = self.timed.borrow_mut();
        let parts = timed.entry(known).or_default();
        let timer = Timer { samples: &sets.calibration, batch, backend, kept: &self.kept, monitor };
        let graphs = [verify(&self.simple)?, verify(&written.graph)?];
        let mut most = timings;
        while parts.len() < most {
            let [before, after] = match whole {
                false => timer.compare([&graphs[0], &graphs[1]])?,
                true => {
                    let timed = format!("{sha256} beside {}, {batch} at once", self.digest());
                    let find = || {
                        let speed = self.speed(written, &sets.calibration, SPEED, monitor)?;
                        Ok(vec![speed.before_ms, speed.before_ms / speed.speedup.max(1e-6)])
                    };
                    let ms = self.kept.get_or(&timed, find)?;
                    <[f64; 2]>::try_from(ms).map_err(|_| Error::bug("two models without two times"))?
                }
            };
            parts.push(after / before.max(1e-9));
            // Where values lie in memory makes a small model slower or faster for as long as it is timed.
            most = if before < SHORT_MS { TIMINGS } else { timings };
        }
        parts.sort_by(f64::total_cmp);
        Ok(parts[parts.len() / 2])
    }

    /// Times what was written beside the original, by turns, for so long.
    ///
    /// # Errors
    /// Whatever running and timing can raise.
    pub fn speed(&self, written: &Model, samples: &Samples, time: Duration, monitor: &Monitor) -> Result<Speed> {
        let backend = &self.opened.backend;
        // ONNX Runtime gets files as they are.
        let as_is = backend.runs_any_operator();
        let (models, graphs) = ([&self.opened.original, written], [verify(&self.simple)?, verify(&written.graph)?]);
        let make = |i: usize| match as_is {
            true => Session::of_model(models[i], backend),
            false => Session::new(&graphs[i], backend, &[]),
        };
        let pace = Pace { batch: self.search.on.batch.get(), time, as_is, one_at_a_time: false };
        measure::speed(&make, &self.simple, samples, &pace, backend, monitor)
    }

    /// Whether a way stays behind the `front`, even if it was measured badly by chance: in loss, and in time.
    fn is_behind(&self, some: &Outcome, front: &[(Objectives, f64)]) -> bool {
        let Objectives { lost, time, .. } = some.objectives;
        let unsure = if self.of_share { 2.0 * some.unsure().sqrt() } else { UNSURE * lost };
        // By chance alone, no way gains.
        let lost = (lost - unsure).max(lost.min(0.0));
        let at_best = Objectives { lost, time: (1.0 - UNSURE_TIME) * time, ..some.objectives };
        let noise = UNSURE_NOISE * some.noise;
        lost > self.worst().0 || front.iter().any(|(other, of_other)| other.beats(*of_other, &at_best, noise))
    }

    /// What was lost: of the metric, or of answers as such.
    pub fn lost(&self, accuracy: &Accuracy) -> f64 {
        match accuracy.drop.filter(|_| self.of_share) {
            Some(drop) => drop,
            None => noise(accuracy).sqrt(),
        }
    }
}

/// What passes found out about graphs by calibration: so much is kept.
const MOST_FINDINGS: usize = 16;

/// Ways that begin alike share what comes of that: so many graphs are kept at most, and about so many bytes of them.
const MOST_BEGINNINGS: usize = 32;
const MOST_BYTES: usize = 1 << 30;

/// One of so many samples tells whether a way is measured on all, where they are not too few; and how far an error may be off that they
/// tell, and one timing, in parts of them.
const FEW: usize = 8;
const LEAST: usize = 32;
const UNSURE: f64 = 0.3;
const UNSURE_TIME: f64 = 0.05;
/// What the noise of all answers is at least, in parts of that of few.
const UNSURE_NOISE: f64 = 0.5;

/// Timings of which the middle counts, for ways that may be on the front; for all where the original takes less than so many milliseconds.
const TIMINGS: usize = 3;
const SHORT_MS: f64 = 5.0;

/// Runs of which the least counts.
const RUNS: usize = 5;

/// The noise of the outputs, in parts of the signal.
pub fn noise(accuracy: &Accuracy) -> f64 {
    match accuracy.sqnr_db {
        _ if accuracy.equal => 0.0,
        Some(db) => 10f64.powf(-db / 10.0),
        None => 1.0,
    }
}

/// Stops what is tried when the time of the search is over, and tells nothing of it.
pub struct Watch<'a> {
    monitor: Monitor<'a>,
    ends: Option<Instant>,
}

impl<'a> Watch<'a> {
    /// A watch over what is tried until `ends`, if it does.
    pub fn new(monitor: Monitor<'a>, ends: Option<Instant>) -> Self {
        Self { monitor, ends }
    }

    fn is_over(&self) -> bool {
        self.ends.is_some_and(|ends| Instant::now() >= ends)
    }
}

impl Ask for Watch<'_> {
    fn tell(&self, _: Event) {}

    fn stopped(&self) -> bool {
        self.is_over() || self.monitor.stopped()
    }
}
