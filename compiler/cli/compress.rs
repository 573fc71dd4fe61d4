//! `compress MODEL`: the main job.

use crate::{
    args::{CompressArgs, GateArgs},
    bisect,
    data::{self, Sets},
    facts, fit, interrupt,
    measure::{self, DataCalibrator, Reference, Timer},
    plan::CompressPlan,
    recover::DataTrainer,
    sensitivity, sweep, terminal,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::{self, Model},
    op::Op,
    pass::{Calibrator, Context, Pipeline, Stopwatch, Trainer},
    report::{FileFacts, Gate, LayerFacts, Recipe, Report, Sensitivity, counted},
};
use compress_passes::{Options, pipeline, prune::reconstruct};
use compress_runtime::{burn::BurnEvaluator, session::Backend};
use std::{path::Path, thread::JoinHandle};

/// Runs the main form of the command.
pub fn run(args: CompressArgs) -> Result<()> {
    if !args.sweep.is_empty() {
        return sweep::run(args);
    }
    let plan = CompressPlan::new(args)?;
    if plan.dry_run {
        return say(&plan);
    }
    let mut opened = Opened::new(&plan, false)?;
    if plan.bisect {
        return opened.bisect(&plan);
    }
    let report = opened.compress(&plan)?;
    if plan.run.json {
        terminal::print(&terminal::json(&report)?);
    } else if !plan.run.quiet {
        terminal::print(&format!("{} -> {}\n", plan.model.display(), plan.output.display()));
        terminal::print(&terminal::table(&report));
    }
    verdict(&report.gates)
}

/// Says what would be done, and does no more than look at the layers, where that was asked for.
pub fn say(plan: &CompressPlan) -> Result<()> {
    if plan.sensitivity {
        let opened = Opened::new(plan, false)?;
        if plan.run.json {
            terminal::print(&terminal::json(&serde_json::json!({"schema": 1, "sensitivity": opened.sensitivity}))?);
        }
        return Ok(());
    }
    let original = onnx::read_with(&plan.model, &plan.read)?;
    let pipeline = pipeline(&plan.options, plan.stop_after.as_deref());
    let names: Vec<&str> = pipeline.passes.iter().map(|p| p.name()).collect();
    terminal::print(&format!(
        "{} ({} operators) -> {}\npasses: {}\n",
        plan.model.display(),
        original.graph.operators().count(),
        plan.output.display(),
        names.join(", ")
    ));
    Ok(())
}

/// A model that is about to be compressed, once or several times, with what that needs.
pub struct Opened {
    original: Model,
    /// The model to learn from, if it is another.
    teacher: Option<Model>,
    backend: Backend,
    sets: Option<Sets>,
    /// The original, ready to run on the samples that are measured on.
    before: Option<Reference>,
    facts: Facts,
    warnings: Vec<String>,
    pub sensitivity: Vec<Sensitivity>,
}

/// The facts of the original. They ask for all of a model that may be large, and are found beside the work.
enum Facts {
    Counting(Option<JoinHandle<FileFacts>>),
    Known(FileFacts),
}

impl Facts {
    fn of(path: &Path, model: &Model) -> Self {
        let (path, model) = (path.to_path_buf(), model.clone());
        Self::Counting(Some(std::thread::spawn(move || facts::file(&path, &model))))
    }

    fn get(&mut self) -> Result<FileFacts> {
        if let Self::Counting(thread) = self {
            let facts = thread.take().and_then(|t| t.join().ok());
            *self = Self::Known(facts.ok_or_else(|| Error::bug("looking at the model failed"))?);
        }
        match self {
            Self::Known(facts) => Ok(facts.clone()),
            Self::Counting(_) => Err(Error::bug("nobody looked at the model")),
        }
    }
}

impl Opened {
    /// Reads what `plan` names, and the layers alone if it says so. `again` says that more plans follow.
    ///
    /// # Errors
    /// Whatever reading and running the model on data can raise.
    pub fn new(plan: &CompressPlan, again: bool) -> Result<Self> {
        let trains = plan.options.qat || plan.options.training.is_some();
        // Made-up inputs are matched in many short steps, as those of a training are.
        let backend = if trains || plan.makes_inputs() {
            crate::keep_memory();
            plan.run.on.open_among()?
        } else {
            plan.run.on.open()?
        };
        let original = onnx::read_with(&plan.model, &plan.read)?;
        let teacher = plan.training.teacher.as_ref().map(|path| onnx::read_with(path, &plan.read)).transpose()?;
        let mut warnings = original.warnings.clone();
        let check = measurable(plan, &original, &mut warnings);
        let runs = trains || plan.options.reconstruct || plan.options.int8.is_some() || plan.sensitivity || plan.bisect;
        let sets = if check || runs { open_sets(plan, &original, &backend, &mut warnings)? } else { None };
        if let Some(sets) = &sets {
            let taught = teacher.as_ref().zip(plan.training.teacher.as_deref());
            fit::check(sets, &original.graph, taught.map(|(t, path)| (path, &t.graph)))?;
            warnings.extend(fit::few(sets, plan.options.reconstruct, trains));
        }
        let before = match &sets {
            Some(sets) if check => {
                let probe = measure::probe(&original.graph, &backend, &sets.evaluation);
                let probe = probe.map_err(|e| e.in_file(&plan.model));
                tolerate(probe, plan, &original.graph, &mut warnings)?.map(|s| Reference::new(s, again))
            }
            _ => None,
        };
        let facts = Facts::of(&plan.model, &original);
        let mut this = Self { original, teacher, backend, sets, before, facts, warnings, sensitivity: vec![] };
        if let Some(sets) = this.sets.as_ref().filter(|_| plan.sensitivity) {
            let quiet = plan.run.quiet || plan.run.json;
            let found = sensitivity::measure(&this.original.graph, plan, &sets.validation, &this.backend, quiet);
            this.sensitivity = found.map_err(|e| e.in_file(&plan.model))?;
            if !quiet {
                terminal::print(&sensitivity::table(&this.sensitivity));
            }
        }
        Ok(this)
    }

    /// What is asked of the passes. Noise says nothing of how inputs hang together, and nothing is solved for on it.
    fn options(&self, plan: &CompressPlan) -> Options {
        let noise = self.sets.as_ref().is_some_and(|s| s.calibration.synthetic && s.matched.is_none());
        Options { reconstruct: plan.options.reconstruct && !noise, ..plan.options.clone() }
    }

    /// Names the change, if any, that alters the outputs.
    fn bisect(&self, plan: &CompressPlan) -> Result<()> {
        let why = || Error::unsupported(self.warnings.join("; ")).in_file(&plan.model);
        let sets = self.sets.as_ref().ok_or_else(why)?;
        let pipeline = pipeline(&self.options(plan), plan.stop_after.as_deref());
        bisect::run(plan, &self.original.graph, &pipeline, sets, &self.backend).map_err(|e| e.in_file(&plan.model))
    }

    /// Compresses the model, measures what that gave, and writes both the result and its report.
    ///
    /// # Errors
    /// Whatever passes, measuring and writing can raise; interrupted. A failed gate is none.
    pub fn compress(&mut self, plan: &CompressPlan) -> Result<Report> {
        let pipeline = pipeline(&self.options(plan), plan.stop_after.as_deref());
        let mut report = Report {
            schema: 1,
            input: FileFacts::default(),
            output: None,
            passes: vec![],
            sensitivity: self.sensitivity.clone(),
            accuracy: None,
            speed: None,
            layers: vec![],
            gates: vec![],
            warnings: self.warnings.clone(),
            recipe: Recipe {
                version: env!("CARGO_PKG_VERSION"),
                flags: plan.flags.clone(),
                seed: plan.run.seed,
                data: None,
            },
        };
        let model = self.compile(plan, &pipeline, &mut report)?;
        let staged = onnx::stage(&model, &plan.output, plan.external_data).map_err(|e| e.in_file(&plan.model))?;
        // What is measured is what was written, read back.
        let written = staged.read_back().map_err(|e| match e.kind() {
            // A dense input may end just below a limit, and the result above it.
            Kind::Limit => e.about("the result").in_file(&plan.model),
            _ => Error::bug(format!("the output does not read back: {e}")),
        })?;
        report.input = self.facts.get()?;
        report.output = Some(facts::file(&plan.output, &written));
        let lossless = pipeline.passes.iter().all(|p| p.is_exact());
        match (&self.sets, &self.before) {
            (Some(sets), Some(before)) => {
                let measured =
                    measure_all(plan, (&self.original, before), &written, lossless, sets, &self.backend, &mut report);
                measured.map_err(|e| e.in_file(&plan.model))?;
            }
            _ => report.layers = facts::layers(&written.graph).into_iter().map(|(_, l)| l).collect(),
        }
        honest_sentences(plan, lossless, &mut report);
        for file in staged.left_behind(self.original.source()) {
            let file = file.display();
            let what = format!("{file} holds the weights of an earlier result: remove it if nothing needs it");
            report.warnings.push(what);
        }
        report.gates = gates(&plan.gates, &report)?;
        if interrupt::stopped() {
            return Err(Error::interrupted());
        }
        staged.commit(plan.force)?;
        onnx::write_atomic(&plan.report_path(), terminal::json(&report)?.as_bytes(), plan.force)?;
        Ok(report)
    }

    fn compile(&self, plan: &CompressPlan, pipeline: &Pipeline, report: &mut Report) -> Result<Model> {
        let mut model = self.original.clone();
        let evaluator = BurnEvaluator::cpu();
        let (quiet, backend) = (plan.run.quiet || plan.run.json, &self.backend);
        let calibrator = self.sets.as_ref().map(|s| DataCalibrator { samples: &s.calibration, backend, quiet });
        let path = plan.training.teacher.as_deref().unwrap_or(&plan.model);
        let teacher = self.teacher.as_ref().unwrap_or(&self.original);
        let trainer = self.sets.as_ref().map(|sets| DataTrainer {
            teacher: (path, &teacher.graph),
            sets,
            plan: &plan.training,
            seed: plan.run.seed,
            backend,
            quiet,
        });
        // What doesn't run on made-up inputs is not timed on them.
        let timed = self.sets.as_ref().filter(|_| self.before.is_some() || !plan.check);
        let timer = timed.map(|s| Timer { samples: &s.calibration, batch: plan.run.batch, backend });
        let options = &plan.options;
        if let Some(s) = &self.sets
            && (options.int8.is_some() || options.reconstruct || options.training.is_some())
        {
            report.recipe.data = Some(s.calibration.set.digest()?);
        }
        let cx = Context {
            original: Some(&self.original.graph),
            calibrator: calibrator.as_ref().map(|c| c as &dyn Calibrator),
            trainer: trainer.as_ref().map(|t| t as &dyn Trainer),
            stopwatch: timer.as_ref().map(|t| t as &dyn Stopwatch),
            stopped: &interrupt::stopped,
            progress: &terminal::steps(quiet),
            ..Context::new(&evaluator)
        };
        let mut step = 0;
        let (passes, warnings) = pipeline
            .run(&mut model.graph, &cx, &mut |pass, graph| {
                step += 1;
                if let Some(dir) = &plan.dump_ir {
                    let file = dir.join(format!("{step:02}-{}.txt", pass.name));
                    onnx::write_atomic(&file, graph.to_string().as_bytes(), true)?;
                }
                Ok(())
            })
            .map_err(|e| e.in_file(&plan.model))?;
        report.passes = passes;
        report.warnings.extend(warnings);
        let recipe = serde_json::to_string(&report.recipe).map_err(|e| Error::bug(e.to_string()))?;
        model.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
        model.set_metadata("compress.recipe", &facts::sha256(recipe.as_bytes()));
        Ok(model)
    }
}

/// Outputs that differ by rounding alone are closer than this.
const ROUNDING_DB: f64 = 40.0;

/// Samples to find activation ranges on.
const CALIBRATED: usize = 256;

/// Larger models are not run only to be measured: original and result would both have to be in
/// the device's memory, beside what they compute.
const MAX_MEASURED: u64 = 1_900_000_000;

/// Whether the models are run to measure them; says so where not.
fn measurable(plan: &CompressPlan, model: &Model, warnings: &mut Vec<String>) -> bool {
    let size = model.source().len();
    if plan.check && size <= MAX_MEASURED {
        return true;
    }
    let why = if plan.check {
        format!("the model has {}, and two of them would have to be in memory", terminal::bytes(size as usize))
    } else {
        "--no-check".into()
    };
    warnings.push(format!("accuracy and speed were not measured: {why}"));
    false
}

/// A model that was only simplified is as good when the original can't be run on made-up
/// inputs: that is a warning. With data or with INT8 it is an error.
fn tolerate<T>(result: Result<T>, plan: &CompressPlan, g: &Graph, warnings: &mut Vec<String>) -> Result<Option<T>> {
    let given = plan.data.data.is_some() || plan.data.eval.is_some();
    match result.map_err(|e| if given { e } else { data::unsuited(e, g) }) {
        Ok(value) => Ok(Some(value)),
        Err(e) if given || !matches!(e.kind(), Kind::Unsupported | Kind::Data) => Err(e),
        Err(e) if plan.options.int8.is_none() => {
            warnings.push(format!("accuracy and speed were not measured: {e}"));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The data, unless nothing would be measured: a model with an operator we can't run.
fn open_sets(
    plan: &CompressPlan,
    model: &Model,
    backend: &Backend,
    warnings: &mut Vec<String>,
) -> Result<Option<Sets>> {
    let g = &model.graph;
    let mut nodes = g.and_bodies().into_iter().flat_map(|g| g.operators().map(move |n| g.node(n)));
    let opaque = nodes.find_map(|n| match &n.op {
        Op::Opaque(o) => Some((n.label(), o.reason.clone())),
        _ => None,
    });
    if let Some((label, reason)) = opaque {
        if plan.options.int8.is_some() {
            return Err(Error::unsupported(reason)
                .at(label)
                .in_file(&plan.model)
                .help("INT8 needs to run the model for calibration; without --int8 this node is kept as it is"));
        }
        warnings.push(format!(
            "node {label} can't be run here ({reason}): it is kept as it is, and accuracy and speed were not measured"
        ));
        return Ok(None);
    }
    let count = match plan.calibration_samples {
        Some(n) => n,
        None if plan.options.reconstruct => reconstruct::affordable_samples(g)?,
        None => CALIBRATED,
    };
    let sets = Sets::open(&plan.data, g, count, plan.run.seed);
    let sets = tolerate(sets.map_err(|e| e.in_file(&plan.model)), plan, g, warnings)?;
    let Some(mut sets) = sets else { return Ok(None) };
    if plan.makes_inputs() {
        let quiet = plan.run.quiet || plan.run.json;
        let failed = sets.match_statistics(g, plan.run.seed, backend, quiet).map_err(|e| e.in_file(&plan.model))?;
        warnings.push(without_data(plan, &sets, failed));
    }
    Ok(Some(sets))
}

/// What was done on which inputs, where none were given.
fn without_data(plan: &CompressPlan, sets: &Sets, failed: Option<String>) -> String {
    let why = failed.map_or("the model has no BatchNormalization to match them to".into(), |e| {
        format!("they could not be matched to its BatchNormalizations: {e}")
    });
    let done = match (plan.options.reconstruct, plan.options.int8.is_some(), sets.matched) {
        (prunes, int8, Some([first, last])) => {
            let what = match (prunes, int8) {
                (true, true) => "layers were pruned and activation ranges calibrated",
                (true, false) => "layers were pruned",
                _ => "activation ranges were calibrated",
            };
            let count = sets.calibration.indices.len();
            format!(
                "{what} on {count} made-up inputs: noise, changed until the BatchNormalizations read about the means \
                 and variances that they saw in training (squared error {first:.3} at first, {last:.3} then)"
            )
        }
        (_, true, None) => {
            format!("activation ranges were calibrated on made-up inputs (standard normal noise: {why})")
        }
        _ => format!("weights were chosen by magnitude, as made-up inputs would be mere noise ({why})"),
    };
    format!("NO DATA: {done}; accuracy on real inputs may be far lower than any figure here. Give --data")
}

fn measure_all(
    plan: &CompressPlan,
    (original, before): (&Model, &Reference),
    written: &Model,
    lossless: bool,
    sets: &Sets,
    backend: &Backend,
    report: &mut Report,
) -> Result<()> {
    let quiet = plan.run.quiet || plan.run.json;
    let after = measure::session(&written.graph, backend)?;
    // Where nothing meant to change the outputs, what they are is our affair.
    let blame = if lossless { Kind::Bug } else { Kind::Data };
    let accuracy = measure::accuracy(before, &after, &sets.evaluation, blame, quiet);
    report.accuracy = Some(accuracy.map_err(|e| match e.kind() {
        Kind::Bug => e.help("--bisect names the change that is wrong"),
        _ => e,
    })?);
    report.layers = measure::layers(&original.graph, (&written.graph, &after), &sets.evaluation, backend)?;
    report.speed = Some(measure::speed(&before.session, &after, &sets.evaluation, plan.run.batch, backend)?);
    Ok(())
}

/// Says where a number misleads.
fn honest_sentences(plan: &CompressPlan, lossless: bool, report: &mut Report) {
    if let Some(db) = report.accuracy.as_ref().and_then(|a| a.sqnr_db).filter(|db| lossless && *db < ROUNDING_DB) {
        report.warnings.push(format!(
            "simplification alone should change nothing, but the outputs differ by more than rounding ({db:.1} dB): \
             --bisect names the change"
        ));
    }
    if report.accuracy.as_ref().is_some_and(|a| a.sqnr_db.is_none() && !a.equal) {
        let what =
            "the original's outputs are NaN for some samples, or zero throughout: how far they changed is no number";
        report.warnings.push(what.into());
    }
    if let Some(a) = report.accuracy.as_ref().filter(|a| a.synthetic && !lossless) {
        let class =
            a.agreement.map(|s| format!(", {} are of the same class", terminal::percent(s))).unwrap_or_default();
        let change = match a.sqnr_db {
            Some(db) => format!("differ from the original's by {db:.1} dB SQNR"),
            None if a.equal => "are the same".into(),
            None => "have no numbers to compare".into(),
        };
        report.warnings.push(format!(
            "on {} the outputs {change}{class}: accuracy on real inputs was not measured",
            counted(a.samples, "made-up input")
        ));
    }
    if plan.options.prune.is_some() || plan.options.pattern.is_some() {
        report.warnings.extend(of_zeros(&report.layers));
    }
}

/// Layers that are named one by one.
const NAMED: usize = 6;

/// What the zeros of a model are worth, if it has any.
fn of_zeros(layers: &[LayerFacts]) -> Option<String> {
    let sum = |bytes: fn(&LayerFacts) -> usize| layers.iter().map(bytes).sum::<usize>();
    let (dead, live) = (sum(|l| l.dead_bytes), sum(|l| l.live_bytes));
    let zeros = format!(
        "zeros make the file no smaller, only a compressed copy (size, zstd): {} of the {} of weights are dead",
        terminal::bytes(dead),
        terminal::bytes(dead + live)
    );
    let pruned: Vec<&LayerFacts> = layers.iter().filter(|l| l.dead_bytes > 0).collect();
    let faster: Vec<&str> = pruned.iter().filter(|l| l.skips_zeros == Some(true)).map(|l| &l.node[..]).collect();
    let speed = match faster.len() {
        _ if pruned.iter().all(|l| l.skips_zeros.is_none()) => "What they do to speed was not measured".into(),
        0 => "No kernel is faster for them: ours leave zeros out of float 1x1 convolutions and matrix products alone, \
              when most of a layer's weights are zero (from about 75% on, 90% for a single row)"
            .into(),
        n => {
            let names = if n <= NAMED { format!(" ({})", faster.join(", ")) } else { String::new() };
            let all = pruned.len();
            format!(
                "Our runtime leaves them out of {n}{names} of the {all} layers that have any, and no others are faster"
            )
        }
    };
    (dead > 0).then(|| format!("{zeros}. {speed}; ONNX Runtime's kernels are no faster for zeros"))
}

/// Holds the measured figures against the gates.
pub fn gates(gates: &GateArgs, report: &Report) -> Result<Vec<Gate>> {
    let mut out = vec![];
    let unmeasured = |flag: &str| {
        Error::data(format!("{flag} was asked, but it was not measured"))
            .help("see the warnings; give --data or --eval")
    };
    if let Some(limit) = gates.max_drop {
        let a = report.accuracy.as_ref().ok_or_else(|| unmeasured("--max-drop"))?;
        // Without labels the share of samples that change their class bounds the drop.
        let value = a.drop.or(a.agreement.map(|g| 1.0 - g)).ok_or_else(|| unmeasured("--max-drop"))?;
        out.push(Gate { name: "--max-drop", limit, value, passed: value <= limit });
    }
    if let Some(limit) = gates.min_speedup {
        let value = report.speed.as_ref().ok_or_else(|| unmeasured("--min-speedup"))?.speedup;
        out.push(Gate { name: "--min-speedup", limit, value, passed: value >= limit });
    }
    if let (Some(limit), Some(o)) = (gates.max_size, &report.output) {
        let value = o.bytes as f64;
        out.push(Gate { name: "--max-size", limit, value, passed: value <= limit });
    }
    Ok(out)
}

/// # Errors
/// Gate when one failed.
pub fn verdict(gates: &[Gate]) -> Result<()> {
    match gates.iter().find(|g| !g.passed) {
        None => Ok(()),
        Some(g) => Err(Error::gate(format!("{} is {}, measured {:.4}", g.name, g.limit, g.value))),
    }
}
