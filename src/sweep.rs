//! A model compressed by several fractions, and the figures of all side by side.

use crate::{
    compress::{Compress, CompressPlan, Intent, Opened, Purpose, needs},
    events::{Event, Events, Monitor},
    files,
    plot::{Chart, Line, svg},
    recipe::Recipe,
    report::{self, Accuracy, FileFacts, Recorded, SweepPoint, SweepReport},
    shard::Shard,
    values::Fraction,
};
use clap::Args;
use compress_compiler::words::{Unit, counted};
use compress_compiler::{
    error::{Error, Result},
    onnx,
    words::option,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt::Display,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// Compresses a model by each of several fractions.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Sweep {
    /// The fractions.
    #[command(flatten)]
    #[serde(flatten)]
    pub fractions: Fractions,
    /// What is done for each.
    #[command(flatten)]
    #[serde(flatten)]
    pub compress: Compress,
}

/// The fractions of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Fractions {
    /// Prune by each of these fractions in turn, e.g. 0.5,0.7,0.9: a model and a report each, named after the fraction,
    /// and a table and a plot of all. Gates hold for each; it fails (exit 9) when no model passes them.
    #[arg(long, value_name = "FRACTIONS", value_delimiter = ',',
        conflicts_with_all = ["prune", "prune_pattern", "dump_ir"])]
    pub sweep: Vec<Fraction>,
    /// Do a part of a sweep alone, e.g. 2/4: the second, sixth and so on of the fractions. `compress merge` makes the report and the
    /// plot of all, once all parts are done.
    #[arg(long, value_name = "I/N", requires = "sweep")]
    pub shard: Option<Shard>,
}

impl Sweep {
    /// Compresses the model by each fraction, the least first. The result of each is written when it is done; then a report
    /// and a plot of all. A gate that failed is not an error: [`SweepReport::verdict`] has it.
    ///
    /// # Errors
    /// Those of [`Compress::run`].
    pub fn run(&self, events: &mut dyn Events) -> Result<SweepReport> {
        let files = self.files();
        let recipes = self.recipes()?;
        let plans = recipes.iter().map(|r| CompressPlan::new(r, Purpose::Compress)).collect::<Result<Vec<_>>>()?;
        files.check(self.compress.force)?;
        self.first().on_its_threads(events, |monitor| self.sweep(&files, &plans, monitor))
    }

    /// What [`Sweep::run`] would do: for the first fraction in full, for the others which files they would write.
    ///
    /// # Errors
    /// Those of [`Compress::run`].
    pub fn intents(&self, events: &mut dyn Events) -> Result<Vec<Intent>> {
        let recipes = self.recipes()?;
        let plans = recipes.iter().map(|r| CompressPlan::new(r, Purpose::Intent)).collect::<Result<Vec<_>>>()?;
        self.first().on_its_threads(events, |monitor| {
            let opened = Opened::new(first(&plans)?, true, monitor)?;
            plans.iter().map(|plan| Intent::of(&opened, plan)).collect()
        })
    }

    fn sweep(&self, files: &Files, plans: &[CompressPlan], monitor: &Monitor) -> Result<SweepReport> {
        let mut opened = Opened::new(first(plans)?, true, monitor)?;
        let (mut points, mut reports) = (vec![], vec![]);
        for plan in plans {
            // Each has one.
            let fraction = plan.recipe.prune.unwrap_or_default().get();
            monitor.tell(Event::Part { fraction, output: &plan.output });
            let report = opened.compress(plan, false, monitor)?;
            points.push(point(fraction, plan, &report)?);
            report.undone.iter().for_each(|what| monitor.tell(Event::Undone(what)));
            reports.push(report);
        }
        let mut warnings = reports.first().map(|r| r.warnings.clone()).unwrap_or_default();
        warnings.retain(|w| reports.iter().all(|r| r.warnings.contains(w)));
        points.iter_mut().for_each(|p| p.warnings.retain(|w| !warnings.contains(w)));
        let first = reports.into_iter().next().ok_or_else(|| Error::bug("no fraction was done"))?;
        let recipe = Recorded::new(&Recipe::Sweep(self.clone()), first.recipe.data);
        self.sum_up(files, (first.input, recipe), (points, warnings))
    }

    /// Writes the plot of the models, unless they are those of a part, and the report of all.
    fn sum_up(
        &self,
        files: &Files,
        (input, recipe): (FileFacts, Recorded),
        (sweep, mut warnings): (Vec<SweepPoint>, Vec<String>),
    ) -> Result<SweepReport> {
        let whole = self.fractions.shard.is_none();
        let chart = plotted(&self.compress.model, &sweep).filter(|_| whole);
        let plot = chart.map(|plot| svg(&[plot])).transpose()?;
        match &plot {
            Some(plot) => onnx::write_atomic(&files.plot, plot.as_bytes(), self.compress.force)?,
            None if whole => {
                files.remove_plot()?;
                warnings.push("no plot was made: for some fraction there is no accuracy to plot".into());
            }
            None => {}
        }
        let report = SweepReport {
            schema: report::SCHEMA,
            input,
            sweep,
            plot: plot.map(|_| files.plot.display().to_string()),
            warnings,
            file: files.report.display().to_string(),
            recipe,
        };
        onnx::write_atomic(&files.report, report::json(&report)?.as_bytes(), self.compress.force)?;
        Ok(report)
    }

    /// The report and the plot of a whole sweep, of those of its `parts`.
    ///
    /// # Errors
    /// File when they can't be written, or are there already; usage for parts that did not compress the same model on the same data.
    pub(crate) fn merged(&self, parts: Vec<SweepReport>) -> Result<SweepReport> {
        let files = self.files();
        files.check(self.compress.force)?;
        let other = |what: &str| Error::usage(format!("the parts are not of one sweep: they differ in {what}"));
        let of = |part: &SweepReport| (part.input.clone(), part.recipe.clone());
        let (input, mut recipe) = parts.first().map(of).ok_or_else(|| Error::bug("a sweep without parts"))?;
        if parts.iter().any(|part| part.input.sha256 != input.sha256) {
            return Err(other("the model"));
        }
        if parts.iter().any(|part| part.recipe.data != recipe.data) {
            return Err(other("the data"));
        }
        if parts.iter().any(|part| part.recipe.version != recipe.version) {
            return Err(other("the version of this program"));
        }
        let metric = |point: &SweepPoint| point.accuracy.as_ref().map(|a| a.metric);
        // Without a gate, the time that measuring may take decides on how many samples it is done.
        let score = |point: &SweepPoint| {
            point.accuracy.as_ref().and_then(|a| Some((a.samples, a.before?, a.metric.is_share())))
        };
        let points = || parts.iter().flat_map(|part| &part.sweep);
        // Another kind of processor may round otherwise, and other samples of the same data are right by chance.
        let apart = |(n, a, is_share): (usize, f64, bool), (m, b, _): (usize, f64, bool)| match n == m {
            true => (a - b).abs() > ALIKE * a.abs().max(b.abs()),
            false => is_share && (a - b).abs() > 3.0 * (0.25 / n.min(m).max(1) as f64).sqrt(),
        };
        let first = points().next();
        let differs = |a: &SweepPoint, b: &SweepPoint| {
            metric(a) != metric(b) || score(a).zip(score(b)).is_some_and(|(a, b)| apart(a, b))
        };
        if points().any(|point| first.is_some_and(|first| differs(first, point))) {
            return Err(other("the data that was measured on"));
        }
        let shared = |w: &String| parts.iter().all(|part| part.warnings.contains(w));
        let warnings: Vec<String> = parts[0].warnings.iter().filter(|w| shared(w)).cloned().collect();
        let mut points: Vec<SweepPoint> = vec![];
        for mut part in parts {
            part.warnings.retain(|w| !warnings.contains(w));
            for point in part.sweep {
                let own = part.warnings.iter().chain(&point.warnings).cloned().collect();
                points.push(SweepPoint { warnings: own, ..point });
            }
        }
        points.sort_by(|a, b| a.fraction.total_cmp(&b.fraction));
        let done: Vec<f64> = points.iter().map(|p| p.fraction).collect();
        if done != self.fractions().iter().map(|f| f.get()).collect::<Vec<_>>() {
            return Err(other("the fractions"));
        }
        recipe.run.remove(option::SHARD.0);
        self.sum_up(&files, (input, recipe), (points, warnings))
    }

    fn files(&self) -> Files {
        let output = self.compress.output();
        let beside = |extension: &str| match (&self.compress.report, self.fractions.shard) {
            (Some(folder), Some(shard)) => shard.of_path(&folder.join("sweep"), extension),
            (Some(folder), None) => folder.join(extension),
            (None, Some(shard)) => shard.of_path(&output, extension),
            (None, None) => output.with_extension(extension),
        };
        Files { report: beside("report.json"), plot: beside("sweep.svg") }
    }

    /// The fractions, the least first.
    pub fn fractions(&self) -> Vec<Fraction> {
        let mut fractions = self.fractions.sweep.clone();
        fractions.sort_by(|a, b| a.get().total_cmp(&b.get()));
        fractions.dedup();
        fractions
    }

    /// Those that are done: those of its part, if it is one.
    pub fn own(&self) -> Vec<Fraction> {
        let has = |i: usize| self.fractions.shard.is_none_or(|shard| shard.has(i));
        self.fractions().into_iter().enumerate().filter(|(i, _)| has(*i)).map(|(_, fraction)| fraction).collect()
    }

    /// The models that it makes, their reports, and the plot.
    pub(crate) fn outputs(&self) -> Vec<PathBuf> {
        let output = self.compress.output();
        let models = self.own().into_iter().map(|f| named(&output, f.get()));
        models.flat_map(|m| [m.with_extension("report.json"), m]).chain([self.files().plot]).collect()
    }

    /// What of it shapes the results.
    pub(crate) fn essence(&self) -> Self {
        Self { fractions: Fractions { sweep: self.fractions(), shard: None }, compress: self.compress.essence() }
    }

    /// The recipe of the least fraction.
    pub(crate) fn first(&self) -> Compress {
        Compress { prune: self.own().first().copied(), ..self.compress.clone() }
    }

    /// What is to be done for each fraction, the least first.
    fn recipes(&self) -> Result<Vec<Compress>> {
        let c = &self.compress;
        let others: [(&dyn Display, bool); 3] = [
            (&option::PRUNE, c.prune.is_some()),
            (&option::PRUNE_PATTERN, c.prune_pattern.is_some()),
            (&option::DUMP_IR, c.dump_ir.is_some()),
        ];
        others.into_iter().try_for_each(|other| needs::apart(&[(&option::SWEEP, true), other]))?;
        let fractions = self.own();
        if let (Some(shard), true) = (self.fractions.shard, fractions.is_empty()) {
            let count = self.fractions().len();
            let (is, fractions) = (if count == 1 { "is" } else { "are" }, counted(count, "fraction"));
            let what = format!("{} {shard}: there {is} {fractions}", option::SHARD);
            return Err(Error::usage(what).help("divide the sweep into no more parts than that"));
        }
        if fractions.is_empty() {
            return Err(Error::usage(format!("{} needs a fraction", option::SWEEP)));
        }
        let output = self.compress.output();
        let of = |fraction: &Fraction| Compress {
            prune: Some(*fraction),
            output: Some(named(&output, fraction.get())),
            report: self.compress.report.as_ref().map(|folder| folder.join(fraction.to_string())),
            ..self.compress.clone()
        };
        Ok(fractions.iter().map(of).collect())
    }
}

fn first<'a>(plans: &'a [CompressPlan<'a>]) -> Result<&'a CompressPlan<'a>> {
    plans.first().ok_or_else(|| Error::bug("a sweep over nothing"))
}

impl SweepReport {
    /// What the run amounts to.
    ///
    /// # Errors
    /// Gate when no model passes, unless they are a part: gates are those of the whole.
    pub fn verdict(&self) -> Result<()> {
        if self.recipe.run.contains_key(option::SHARD.0) {
            return Ok(());
        }
        match self.sweep.iter().any(|p| p.passed) {
            true => Ok(()),
            false => {
                let undone = self.sweep.iter().find_map(|p| p.undone.first());
                let why = undone.map_or(String::new(), |what| format!("; not done: {what}"));
                let unusable = self.sweep.iter().find_map(|p| p.unusable.as_ref());
                let unfit = unusable.map_or(String::new(), |why| format!("; unusable: {why}"));
                Err(Error::gate(format!("none of the {} models passed the gates{why}{unfit}", self.sweep.len())))
            }
        }
    }
}

/// By what part the score of the original may differ from machine to machine.
const ALIKE: f64 = 5e-3;

/// What there is besides the models and their reports.
struct Files {
    report: PathBuf,
    plot: PathBuf,
}

impl Files {
    fn check(&self, force: bool) -> Result<()> {
        for path in [&self.report, &self.plot] {
            files::free(path, force, &format!("{} or {}", option::OUTPUT, option::REPORT))?;
        }
        Ok(())
    }

    /// A plot of an earlier sweep is not one of this.
    fn remove_plot(&self) -> Result<()> {
        match std::fs::remove_file(&self.plot) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(Error::file(format!("cannot be removed: {e}")).in_file(&self.plot))
            }
            _ => Ok(()),
        }
    }
}

/// `model.onnx` as `model-0.9.onnx`.
fn named(output: &Path, fraction: f64) -> PathBuf {
    let part = |p: Option<&std::ffi::OsStr>| p.unwrap_or_default().to_string_lossy().into_owned();
    let extension = output.extension().map_or("onnx".into(), |e| part(Some(e)));
    output.with_file_name(format!("{}-{fraction}.{extension}", part(output.file_stem())))
}

fn point(fraction: f64, plan: &CompressPlan, report: &report::Report) -> Result<SweepPoint> {
    let output = report.output.clone().ok_or_else(|| Error::bug("a model without facts"))?;
    let complete = report.undone.is_empty() || !plan.recipe.gates.strict;
    Ok(SweepPoint {
        fraction,
        sparsity: 1.0 - output.nonzero as f64 / output.parameters.max(1) as f64,
        output,
        report: plan.report_path().display().to_string(),
        accuracy: report.accuracy.clone(),
        speed: report.speed.clone(),
        gates: report.gates.clone(),
        passed: complete && report.unusable.is_none() && report.gates.iter().all(|g| g.passed),
        undone: report.undone.clone(),
        trained: report.passes.iter().flat_map(|p| p.trained.clone()).collect(),
        warnings: report.warnings.clone(),
        unusable: report.unusable.clone(),
        recipe: report.recipe.clone(),
    })
}

/// What is plotted over the fractions: the metric if it is a share or a score, else noise.
fn plotted(model: &Path, points: &[SweepPoint]) -> Option<Chart> {
    let first = points.first()?.accuracy.as_ref()?;
    let (label, values, original) = match first.metric.unit() {
        Unit::Decibels | Unit::Scientific => {
            ("signal to noise of the outputs, dB".into(), of_all(points, |a| a.sqnr_db)?, None)
        }
        Unit::Number => (first.metric.to_string(), of_all(points, |a| a.after)?, first.before),
        Unit::Share => {
            let percents = of_all(points, |a| a.after.map(|v| v * 100.0))?;
            (format!("{}, %", first.metric), percents, first.before.map(|v| v * 100.0))
        }
    };
    let name = model.file_name()?.to_string_lossy().into_owned();
    let points = points.iter().map(|p| p.fraction * 100.0).zip(values).collect();
    Some(Chart {
        title: format!("{name}: what pruning costs"),
        across: "weights asked to be zero, %".into(),
        up: label,
        lines: vec![Line { name: String::new(), points }],
        level: original.map(|v| (v, "original".into())),
    })
}

fn of_all(points: &[SweepPoint], of: fn(&Accuracy) -> Option<f64>) -> Option<Vec<f64>> {
    points.iter().map(|p| p.accuracy.as_ref().and_then(of)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_part_of_the_name() {
        assert_eq!(named(Path::new("a/b.c.onnx"), 0.95), Path::new("a/b.c-0.95.onnx"));
        assert_eq!(named(Path::new("out"), 0.5), Path::new("out-0.5.onnx"));
    }
}
