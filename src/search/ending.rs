//! The end of a search: the best are measured on samples that nothing saw before, and one of them becomes the result.

use super::{
    Search, Wish,
    front::Objectives,
    journal::Journal,
    report::{Reached, SearchPoint, SearchReport, SearchSamples},
    trial::{Lab, noise},
    tried::Tried,
    way::{Form, Way},
};
use crate::{
    assess::{GATED_SPEED, SPEED, compared_by},
    compress::{Compress, CompressPlan, Opened, Purpose},
    events::Monitor,
    gates, measure,
    options::{GateOptions, MeasureOptions},
    recipe::Recipe,
    report::{self, Accuracy, Gate, Recorded, Speed, Verdict},
    shown,
    values::Share,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    onnx,
    words::{counted, option},
};
use compress_runtime::session::Session;
use std::path::{Path, PathBuf};

/// What a result may lose where nobody says: a point of a share, or an error of a tenth (20 dB).
const MAX_DROP: f64 = 0.01;
const MAX_ERROR: f64 = 0.1;

/// Measures the best on the evaluation set, makes the result, and writes both reports.
///
/// # Errors
/// Whatever running and writing can raise; interrupted.
pub fn end(search: &Search, lab: &mut Lab, journal: &Journal, monitor: &Monitor) -> Result<SearchReport> {
    let all = journal.tried();
    let table = journal.begun().map_or(&[][..], |begun| &begun.table);
    let standings = journal.standings();
    let (best, taken): (Vec<&Tried>, Vec<Objectives>) = standings.front().into_iter().unzip();
    let first = all.first().ok_or_else(|| Error::usage("nothing was tried in the time").help("give more time"))?;
    if best.is_empty() {
        let why = all.iter().find_map(|t| t.failed.as_deref()).unwrap_or("none is fit for use");
        return Err(Error::unsupported(format!("no way to compress the model: {why}")).in_file(&search.model));
    }
    for tried in &best {
        // What was learnt later brought it back.
        if !journal.model(tried.number).exists() {
            let made = lab.try_out((&tried.way, table), &journal.model(tried.number), &[], monitor)?;
            journal.keep(tried, |_| made.staged.commit(true), table)?;
        }
    }
    // What is opened anew has the evaluation set.
    let recipe = first.way.recipe(search, table, Some(lab.validation))?;
    let opened = Opened::new(&CompressPlan::new(&recipe, Purpose::Intent)?, true, monitor)?;
    let figures = |path: &Path| measured((search, &*lab), &opened, path, monitor);
    let measured = best.iter().map(|tried| figures(&journal.model(tried.number))).collect::<Result<Vec<_>>>()?;
    let limit = search.max_drop.map_or(if lab.of_share { MAX_DROP } else { MAX_ERROR }, Share::get);
    let each = best.iter().zip(&taken).zip(&measured);
    let original = original_ms(&measured);
    let candidates: Vec<Candidate> =
        each.map(|((t, taken), m)| Candidate::new((t, taken.lost), (m, original), lab)).collect();
    let picked = pick(search, limit, &candidates);
    let tried = best[picked];
    // Without gates, which would shape what the search of INT8 aims for: the result is what was tried.
    let recipe = Compress {
        output: Some(search.output()),
        force: search.force || search.resume,
        ..tried.way.recipe(search, table, Some(lab.validation))?
    };
    let plan = CompressPlan::new(&recipe, Purpose::Compress)?;
    let mut made = Opened::new(&plan, false, monitor)?.compress(&plan, true, monitor)?;
    let output = made.output.clone().ok_or_else(|| Error::bug("a model without facts"))?;
    let is_same = tried.outcome.as_ref().is_some_and(|o| o.sha256 == output.sha256);
    // What limits are held against is measured in full, on the model that was written.
    let mut last = if is_same { measured[picked].clone() } else { figures(&plan.output)? };
    let gates = gates(search, limit, lab.of_share)?;
    if gates.of_speed() {
        let model = onnx::read_with(&plan.output, &(&search.read).into())?;
        let sets = opened.sets.as_ref().ok_or_else(|| Error::bug("a search without data"))?;
        last.speed = lab.speed(&model, &sets.evaluation, GATED_SPEED, monitor)?;
    }
    let Measured { accuracy, speed } = last;
    let error = noise(&accuracy).sqrt();
    (made.accuracy, made.speed) = (Some(accuracy.clone()), Some(speed));
    made.gates = gates::judged(&gates, &made);
    if !lab.of_share {
        made.gates.push(error_gate(limit, error));
    }
    onnx::write_atomic(&plan.report_path(), report::json(&made)?.as_bytes(), true)?;
    let mut warnings = made.warnings.clone();
    if !is_same {
        warnings.push(
            "the result was made anew by its recipe, and differs in its bytes from the model that was tried: what was timed on the way \
             decided otherwise"
                .into(),
        );
    }
    warnings.extend(unsure(search, limit, &candidates[picked], lab));
    warnings.extend(trained_on(all, &accuracy, lab));
    warnings.extend(lab.of_earlier_times());
    if tried.way == Way::plain(Form::Float) && search.wish != Wish::Nearest {
        let others = best.iter().zip(&candidates).filter(|(other, _)| other.number != tried.number);
        warnings.extend(only_floats(search, all, others, limit, lab));
    }
    let points = points(journal, &best, &measured, lab);
    let report = SearchReport {
        input: made.input.clone(),
        output: Some(output),
        picked: Some(tried.number),
        metric: accuracy.metric,
        samples: SearchSamples { chose: chose(all), measured: accuracy.samples },
        gates: made.gates,
        warnings,
        recipe: Recorded::new(&Recipe::Search(search.clone()), made.recipe.data.clone()),
        ..found(search, lab, journal, points)?
    };
    onnx::write_atomic(&search.folder().join(REPORT), report::json(&report)?.as_bytes(), true)?;
    Ok(report)
}

/// The report of a search in its folder.
pub const REPORT: &str = "search.json";

/// Writes the report of one of several parts of a search, of which nothing is measured on the evaluation set.
///
/// # Errors
/// Usage where nothing was tried; file when it can't be written.
pub fn part(search: &Search, lab: &Lab, journal: &Journal) -> Result<SearchReport> {
    let best: Vec<&Tried> = journal.standings().front().into_iter().map(|(tried, _)| tried).collect();
    let report = found(search, lab, journal, points(journal, &best, &[], lab))?;
    onnx::write_atomic(&search.folder().join(REPORT), report::json(&report)?.as_bytes(), true)?;
    Ok(report)
}

/// What is known without the evaluation set.
fn found(search: &Search, lab: &Lab, journal: &Journal, points: Vec<SearchPoint>) -> Result<SearchReport> {
    let all = journal.tried();
    let plain: Vec<Objectives> = journal.standings().all().filter(|(t, _)| t.plain).map(|(_, o)| o).collect();
    Ok(SearchReport {
        schema: report::SCHEMA,
        input: lab.input(),
        output: None,
        picked: None,
        metric: lab.metric,
        of_share: lab.of_share,
        samples: SearchSamples { chose: chose(all), measured: 0 },
        tried: all.len(),
        failed: all.iter().filter(|t| t.outcome.is_none()).count(),
        seconds: journal.spent().as_secs_f64(),
        points,
        reached: reached(all),
        plain: lab.worst().hypervolume(&plain),
        gates: vec![],
        warnings: vec![],
        folder: search.folder().display().to_string(),
        file: search.folder().join(REPORT).display().to_string(),
        recipe: Recorded::new(&Recipe::Search(search.clone()), lab.data()?),
    })
}

/// The samples that ways on the front were measured on.
fn chose(all: &[Tried]) -> usize {
    all.iter().filter_map(|t| t.outcome.as_ref()).filter(|o| !o.behind).map(|o| o.samples).max().unwrap_or(0)
}

/// One of the best, in front of the evaluation set.
#[derive(Clone)]
struct Measured {
    accuracy: Accuracy,
    speed: Speed,
}

fn measured((search, lab): (&Search, &Lab), opened: &Opened, path: &Path, monitor: &Monitor) -> Result<Measured> {
    let model = onnx::read_with(path, &(&search.read).into())?;
    let (Some(sets), Some(before)) = (&opened.sets, &opened.before) else {
        return Err(Error::bug("a search without data"));
    };
    let session = Session::of_model(&model, &opened.backend)?;
    let measures = MeasureOptions { metric: search.metric.clone(), ..MeasureOptions::default() };
    let compared = compared_by([&opened.original.graph, &model.graph], &measures, sets)?;
    let accuracy = measure::accuracy(before, &session, &sets.evaluation, &compared, (Kind::Data, None), monitor)?;
    drop(session);
    let speed = lab.speed(&model, &sets.evaluation, SPEED, monitor)?;
    Ok(Measured { accuracy, speed })
}

/// Milliseconds of the original: the least of all turns, as other work on the machine only adds to it.
fn original_ms(measured: &[Measured]) -> f64 {
    measured.iter().map(|m| m.speed.before_ms).fold(f64::INFINITY, f64::min)
}

impl Measured {
    /// Milliseconds of a run, where the original takes so many: ways were timed beside it, and not beside each other.
    fn ms(&self, original: f64) -> f64 {
        original / self.speed.speedup.max(1e-9)
    }
}

/// What a pick is made by: what was lost on the samples that chose, so that those at the end stay unseen; times are those of the end.
struct Candidate {
    lost: f64,
    /// What is lost at worst, by the number of samples (a standard error more).
    at_worst: f64,
    ms: f64,
    speedup: f64,
    bytes: usize,
    /// That it was chosen by.
    samples: usize,
}

impl Candidate {
    fn new((tried, lost): (&Tried, f64), (measured, original): (&Measured, f64), lab: &Lab) -> Self {
        let outcome = tried.outcome.clone().unwrap_or_default();
        let unsure = if lab.of_share { outcome.unsure().sqrt() } else { 0.0 };
        let speedup = measured.speed.speedup;
        let (ms, samples) = (measured.ms(original), outcome.samples);
        Self { lost, at_worst: lost + unsure, ms, speedup, bytes: outcome.bytes, samples }
    }

    /// By what parts it exceeds the limits.
    fn excess(&self, search: &Search, limit: f64) -> f64 {
        let over = |value: f64, most: Option<f64>| most.map_or(0.0, |most| (value / most.max(1e-9) - 1.0).max(0.0));
        over(self.at_worst.max(0.0), Some(limit))
            + over(self.bytes as f64, search.max_size.map(|b| b.get()))
            + over(self.ms, search.max_latency.map(|ms| ms.get()))
            + over(1.0 / self.speedup.max(1e-9), search.min_speedup.map(|s| 1.0 / s.get()))
    }
}

/// What is said where the pick may exceed a limit, as far as the samples tell that chose it.
fn unsure(search: &Search, limit: f64, picked: &Candidate, lab: &Lab) -> Option<String> {
    let samples = counted(picked.samples, "sample");
    match () {
        () if picked.at_worst > limit => Some(format!(
            "no way that was tried is sure to lose at most {}: of the {samples} that chose, the result may have lost {}",
            lost(limit, lab),
            lost(picked.at_worst, lab)
        )),
        () if picked.excess(search, limit) > 0.0 => Some("no way that was tried is within all limits".into()),
        () if lab.of_share && limit > 0.0 && (picked.samples as f64) < 1.0 / limit => {
            Some(format!("{samples} chose: too few to tell a loss of {} from none", lost(limit, lab)))
        }
        () => None,
    }
}

/// What is said where the result is the original in floats: why no other way was taken.
fn only_floats<'a>(
    search: &Search,
    all: &[Tried],
    others: impl Iterator<Item = (&'a &'a Tried, &'a Candidate)>,
    limit: f64,
    lab: &Lab,
) -> Option<String> {
    let nearest = others.min_by(|(_, a), (_, b)| a.at_worst.total_cmp(&b.at_worst));
    match nearest {
        Some((_, c)) if c.at_worst <= limit => None,
        Some((other, c)) => Some(format!(
            "the result is the original in floats: {} loses the least of the other ways, and may have lost {} on the {} that chose; {} allows {}",
            other.way.says(),
            lost(c.at_worst, lab),
            counted(c.samples, "sample"),
            option::MAX_DROP,
            lost(limit, lab)
        )),
        None if all.len() > 1 => {
            Some("the result is the original in floats: no other way that was tried is fit for use and better".into())
        }
        None if search.trials.is_some_and(|n| n.get() == 1) => None,
        None => Some("in this time the search tried nothing but floats: give more time".into()),
    }
}

/// What was lost, in words.
fn lost(lost: f64, lab: &Lab) -> String {
    if lab.of_share { format!("{:.2} points", 100.0 * lost) } else { shown::percent(lost) }
}

/// What is said where the original was probably trained on the samples that chose: it scores more on them than on those that it was
/// `measured` on at the end, by more than chance explains.
fn trained_on(all: &[Tried], measured: &Accuracy, lab: &Lab) -> Option<String> {
    let unchanged = all.iter().filter_map(|t| t.outcome.as_ref()).find(|o| o.noise <= UNCHANGED)?;
    let chose = unchanged.score.filter(|_| lab.of_share && lab.metric == measured.metric)?;
    let (samples, measured) = (measured.samples, measured.before?);
    let parts = 1.0 / unchanged.samples.max(1) as f64 + 1.0 / samples.max(1) as f64;
    let error = (measured * (1.0 - measured) * parts).sqrt();
    (chose - measured > 3.0 * error.max(1e-3)).then(|| {
        format!(
            "the original scores {} on the samples that chose and {} on the evaluation set: it was probably trained on the former, where \
             ways lose less; choose on data that it never saw",
            shown::percent(chose),
            shown::percent(measured)
        )
    })
}

/// Noise with which answers are those of the original.
const UNCHANGED: f64 = 1e-9;

/// The place of the one that the wish asks for among those within the limits, or of the nearest to them.
fn pick(search: &Search, limit: f64, candidates: &[Candidate]) -> usize {
    let merit = |c: &Candidate| match search.wish {
        Wish::Fastest => c.ms,
        Wish::Smallest => c.bytes as f64,
        Wish::Nearest => c.lost,
    };
    let order = |(_, a): &(usize, &Candidate), (_, b): &(usize, &Candidate)| {
        let of = |c: &Candidate| (c.excess(search, limit), merit(c), c.at_worst);
        let ((a, b, c), (x, y, z)) = (of(a), of(b));
        a.total_cmp(&x).then(b.total_cmp(&y)).then(c.total_cmp(&z))
    };
    candidates.iter().enumerate().min_by(order).map_or(0, |(i, _)| i)
}

fn gates(search: &Search, limit: f64, of_share: bool) -> Result<GateOptions> {
    Ok(GateOptions {
        max_drop: of_share.then(|| Share::try_from(limit)).transpose()?,
        max_size: search.max_size,
        max_latency: search.max_latency,
        min_speedup: search.min_speedup,
        ..GateOptions::default()
    })
}

fn error_gate(limit: f64, error: f64) -> Gate {
    let verdict = if error <= limit { Verdict::Passed } else { Verdict::Failed };
    Gate::new(
        option::MAX_DROP,
        shown::percent(limit),
        limit,
        format!("an error of {}", shown::percent(error)),
        error,
        verdict,
    )
}

fn points(journal: &Journal, best: &[&Tried], measured: &[Measured], lab: &Lab) -> Vec<SearchPoint> {
    let original = original_ms(measured);
    let of = |tried: &Tried, place: Option<usize>| {
        let outcome = tried.outcome.clone()?;
        let figures = place.and_then(|place| measured.get(place));
        let accuracy = figures.map(|m| &m.accuracy);
        let kept = |path: PathBuf| place.map(|_| path.display().to_string());
        Some(SearchPoint {
            number: tried.number,
            way: tried.way.says(),
            front: place.is_some(),
            plain: tried.plain,
            chosen_by: outcome.objectives,
            measured: figures.map(|m| Objectives {
                lost: lab.lost(&m.accuracy),
                time: 1.0 / m.speed.speedup.max(1e-9),
                size: outcome.objectives.size,
            }),
            before: accuracy.and_then(|a| a.before),
            after: accuracy.and_then(|a| a.after),
            ms: figures.map(|m| m.ms(original)),
            agreement: accuracy.and_then(|a| a.agreement),
            sqnr_db: accuracy
                .map_or_else(|| (outcome.noise > 0.0).then(|| -10.0 * outcome.noise.log10()), |a| a.sqnr_db),
            bytes: outcome.bytes,
            model: kept(journal.model(tried.number)),
            recipe: kept(journal.recipe(tried.number)),
        })
    };
    let others = journal.tried().iter().filter(|t| t.plain && !best.iter().any(|b| b.number == t.number));
    let mut points: Vec<SearchPoint> = best
        .iter()
        .enumerate()
        .filter_map(|(place, t)| of(t, Some(place)))
        .chain(others.filter_map(|t| of(t, None)))
        .collect();
    points.sort_by(|a, b| a.chosen_by.time.total_cmp(&b.chosen_by.time));
    points
}

/// What was reached after each way that added to it. What is learnt later may lower it: the last is that of the whole search.
fn reached(all: &[Tried]) -> Vec<Reached> {
    let mut reached: Vec<Reached> = vec![];
    for tried in all {
        let is_last = tried.number == all.len();
        if is_last || reached.last().is_none_or(|last| tried.reached > last.hypervolume) {
            reached.push(Reached { seconds: tried.at, tried: tried.number, hypervolume: tried.reached });
        }
    }
    reached
}
