//! `compress MODEL`: the main job.

use crate::{
    advice,
    args::CompressArgs,
    assess::{Assessment, Manner, compared_by},
    bisect,
    calibrate::{DataCalibrator, Timer},
    coverage,
    data::{self, Sets},
    facts, fit,
    gates::{self, Measurable},
    intent, interrupt,
    measure::{self, Reference},
    plan::CompressPlan,
    recover::DataTrainer,
    remarks, sensitivity, stdout, sweep, terminal,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::{self, Model},
    op::Op,
    pass::{Calibrator, Context, Pipeline, Stopwatch, Trainer},
    report::{FileFacts, Recipe, Report, Sensitivity},
};
use compress_passes::{Options, pipeline, prune::reconstruct, target::Target};
use compress_runtime::{burn::BurnEvaluator, memory, session::Backend};
use std::{path::Path, thread::JoinHandle, time::Instant};

/// Runs the main form of the command.
pub fn run(mut args: CompressArgs) -> Result<()> {
    let folder = stdout::redirect(&mut args)?;
    if !args.sweep.is_empty() {
        return sweep::run(args);
    }
    let mut plan = CompressPlan::new(args)?;
    plan.to_stdout = folder.is_some();
    if plan.dry_run {
        return intent::say(&plan);
    }
    let mut opened = Opened::new(&plan, false)?;
    if plan.bisect {
        return opened.bisect(&plan);
    }
    let report = opened.compress(&plan)?;
    if plan.run.json {
        terminal::print(&terminal::json(&report)?)?;
    } else if !plan.run.quiet {
        let to = if plan.to_stdout { Path::new("standard output") } else { &plan.output };
        let models = format!("{} -> {}\n", plan.model.display(), to.display());
        let headline = terminal::headline(&report, advice::of(&opened, &plan, &report)?.as_deref());
        stdout::show(&(headline + &models + &terminal::table(&report)), plan.to_stdout)?;
    }
    if plan.to_stdout {
        stdout::send(&report, &plan.output)?;
    }
    terminal::undone(&report);
    gates::verdict(&report, plan.gates.strict)
}

/// A model that is about to be compressed, once or several times, with what that needs.
pub struct Opened {
    pub original: Model,
    /// The model to learn from, if it is another.
    teacher: Option<Model>,
    pub backend: Backend,
    pub sets: Option<Sets>,
    /// The original, ready to run on the samples that are measured on.
    pub before: Option<Reference>,
    manner: Manner,
    facts: Facts,
    pub warnings: Vec<String>,
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
        let trains = plan.trains();
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
        let exact = pipeline(&plan.options, plan.stop_after.as_deref()).passes.iter().all(|p| p.is_exact());
        let exact = exact && plan.options.target == Target::Portable;
        let manner = Manner::of(&original, &plan.measures, &plan.gates, plan.data.eval.is_some(), exact);
        let check = measurable(plan, &original, manner.apart && !again, &mut warnings);
        let unknown = facts::unknown(&original.graph) > 0;
        let runs = trains || plan.options.reconstruct || plan.options.int8.is_some() || plan.sensitivity || plan.bisect;
        unmatched(plan, &original.graph)?;
        let sets = match check || runs {
            true => open_sets(plan, &original, manner.apart && !again, &backend, &mut warnings)?,
            false => None,
        };
        if let Some(sets) = &sets {
            let taught = teacher.as_ref().zip(plan.training.teacher.as_deref());
            fit::check(sets, &original.graph, taught.map(|(t, path)| (path, &t.graph)))?;
            warnings.extend(fit::mixed(sets));
            warnings.extend(fit::few(sets, plan.options.reconstruct, trains));
            warnings.extend(fit::far_from_real(sets)?.filter(|_| plan.options.int8.is_some()));
            warnings.extend(fit::few_to_calibrate(sets).filter(|_| plan.options.int8.is_some()));
        }
        let before = match &sets {
            Some(sets) if check && !unknown => {
                let probe = measure::probe(&original.graph, &backend, &sets.evaluation);
                let probe = probe.map_err(|e| e.in_file(&plan.model));
                let of = |session| manner.reference(session, &sets.evaluation, again);
                tolerate(probe, plan, &original.graph, &mut warnings)?.map(of).transpose()?
            }
            _ => None,
        };
        let accuracy = match (&sets, &before) {
            (Some(sets), Some(_)) => Some((compared_by(&original.graph, &plan.measures, sets)?.1, sets)),
            _ => None,
        };
        let can = Measurable { accuracy, why_not: warnings.last().cloned(), scored: plan.measures.score.is_some() };
        gates::feasible(&plan.gates, &can)?;
        let facts = Facts::of(&plan.model, &original);
        let mut this = Self { original, teacher, backend, sets, before, manner, facts, warnings, sensitivity: vec![] };
        if let Some(sets) = this.sets.as_ref().filter(|_| plan.sensitivity) {
            let quiet = plan.run.quiet || plan.run.json;
            let found = sensitivity::measure(&this.original.graph, plan, &sets.validation, &this.backend, quiet);
            this.sensitivity = found.map_err(|e| e.in_file(&plan.model))?;
            if !quiet {
                terminal::print(&sensitivity::table(&this.sensitivity))?;
            }
        }
        Ok(this)
    }

    /// What is asked of the passes. Noise says nothing of how inputs hang together, and nothing is solved for on it.
    pub fn options(&self, plan: &CompressPlan) -> Options {
        let noise = self.sets.as_ref().is_some_and(Sets::is_noise);
        // What can't be run is neither solved for nor trained.
        let runs = facts::unknown(&self.original.graph) == 0;
        Options {
            reconstruct: plan.options.reconstruct && !noise && runs,
            training: plan.options.training.filter(|_| runs),
            qat: plan.options.qat && runs,
            ..plan.options.clone()
        }
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
        let began = Instant::now();
        let mut report = Report {
            schema: 1,
            sensitivity: self.sensitivity.clone(),
            unknown_operators: facts::unknown(&self.original.graph),
            warnings: self.warnings.clone(),
            recipe: Recipe {
                version: env!("CARGO_PKG_VERSION"),
                flags: plan.flags.clone(),
                seed: plan.run.seed,
                data: None,
            },
            ..Report::default()
        };
        let mut model = self.compile(plan, &pipeline, plan.run.quiet || plan.run.json, &mut report)?;
        model.stripped = plan.strip;
        let staged = onnx::stage(&model, &plan.output, plan.external_data).map_err(|e| e.in_file(&plan.model))?;
        // What is measured is what was written, read back.
        let written = staged.read_back().map_err(|e| match e.kind() {
            // A dense input may end just below a limit, and the result above it.
            Kind::Limit => e.about("the result").in_file(&plan.model),
            _ => Error::bug(format!("the output does not read back: {e}")),
        })?;
        report.input = self.facts.get()?;
        report.output = Some(facts::file(plan.shown_output(), &written));
        let lossless = pipeline.passes.iter().all(|p| p.is_exact());
        match (&self.sets, &self.before) {
            (Some(sets), Some(before)) => {
                // Where nothing meant to change the outputs, what they are is our affair.
                let blame = if lossless { Kind::Bug } else { Kind::Data };
                let assessment = Assessment {
                    sets,
                    backend: &self.backend,
                    measures: &plan.measures,
                    gates: &plan.gates,
                    batch: plan.run.batch,
                    asked: plan.data.eval.is_some(),
                    blame,
                    made_here: true,
                    manner: self.manner,
                    work: began.elapsed(),
                    quiet: plan.run.quiet || plan.run.json,
                };
                let measured = assessment.run(&self.original, before, &written, &mut report);
                measured.map_err(|e| match e.kind() {
                    Kind::Bug => e.help("--bisect names the change that is wrong").in_file(&plan.model),
                    _ => e.in_file(&plan.model),
                })?;
            }
            _ => report.layers = facts::all_layers(&written.graph),
        }
        if report.unknown_operators > 0 && plan.trains() {
            let what = "asked for training: the model has operators that can't be run here, so it was not trained";
            report.undone.push(what.into());
        }
        remarks::of_compression(plan, lossless, &mut report);
        remarks::of_size(&written, &mut report);
        // At the sizes of what was measured.
        let batch = self.sets.as_ref().and_then(|s| measure::timing_batch(&s.evaluation, 1).ok());
        let sized = batch.and_then(|b| measure::sized(&written.graph, &b.inputs).ok());
        coverage::find(plan, sized.as_ref().unwrap_or(&written.graph), &mut report);
        let left = staged.left_behind(self.original.source());
        for file in &left.others {
            let file = file.display();
            let what = format!("{file} holds the weights of an earlier result: remove it if nothing needs it");
            report.warnings.push(what);
        }
        report.gates = gates::judged(&plan.gates, &report);
        if interrupt::stopped() {
            return Err(Error::interrupted());
        }
        staged.commit(plan.force)?;
        for file in &left.replaced {
            // Nobody needs it; that it stays does no harm.
            let _ = std::fs::remove_file(file);
        }
        onnx::write_atomic(&plan.report_path(), terminal::json(&report)?.as_bytes(), plan.force)?;
        Ok(report)
    }

    /// The model as `pipeline` makes it.
    ///
    /// # Errors
    /// Whatever passes can raise.
    pub fn compile(&self, plan: &CompressPlan, pipeline: &Pipeline, quiet: bool, report: &mut Report) -> Result<Model> {
        let mut model = self.original.clone();
        let evaluator = BurnEvaluator::cpu();
        let backend = &self.backend;
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
        let timed = self.sets.as_ref().filter(|_| self.before.is_some() || !plan.checks());
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

/// Samples to find activation ranges on.
const CALIBRATED: usize = 256;

/// Larger models are not run only to be measured, where original and result would both be in memory, beside what they
/// compute; one alone may take this share of what is free.
const MAX_MEASURED: u64 = 1_900_000_000;
const MAX_SHARE: f64 = 0.5;

/// Nor are those of more operators, which subgraphs in subgraphs have.
const MOST_OPERATORS: usize = 50_000;

/// Whether the models are run to measure them; says so where not. `apart` says that one is in memory at a time.
fn measurable(plan: &CompressPlan, model: &Model, apart: bool, warnings: &mut Vec<String>) -> bool {
    let (size, free) = (model.source().len(), memory::available());
    let operators: usize = model.graph.and_bodies().iter().map(|g| g.operators().count()).sum();
    let fits = size <= MAX_MEASURED || apart && free.is_some_and(|free| size as f64 <= MAX_SHARE * free as f64);
    let why = match () {
        () if !plan.checks() => "--check none".into(),
        () if !fits && apart => {
            let free = terminal::bytes(free.unwrap_or_default());
            format!("the model has {}, and {free} of memory are free", terminal::bytes(size as usize))
        }
        () if !fits => {
            format!("the model has {}, and two of them would have to be in memory", terminal::bytes(size as usize))
        }
        () if operators > MOST_OPERATORS => {
            format!("the model has {operators} operators, and measuring takes several copies of them")
        }
        () => return true,
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
        Err(e) if given && e.kind() != Kind::Unsupported => Err(e),
        Err(e) if !matches!(e.kind(), Kind::Unsupported | Kind::Data) => Err(e),
        Err(e) if plan.options.int8.is_none() => {
            warnings.push(format!("accuracy and speed were not measured: {e}"));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// # Errors
/// Usage for a filter of --exclude that matches no layer.
fn unmatched(plan: &CompressPlan, g: &Graph) -> Result<()> {
    // Fusion renames nothing, but merges layers: names of the file count as well as those of the layers.
    let mut names: Vec<&str> = vec![];
    for g in g.and_bodies() {
        for n in g.ids() {
            names.push(g.node(n).display_name());
            names.extend(g.node(n).outputs.first().map(|v| &v.name[..]));
        }
    }
    fit::check_filters("--exclude", &plan.options.exclude, &names, "node and no weight")
        .map_err(|e| e.in_file(&plan.model))
}

/// The data, unless nothing would be measured: a model with an operator we can't run.
fn open_sets(
    plan: &CompressPlan,
    model: &Model,
    singly: bool,
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
        warnings.push(format!(
            "node {label} can't be run here ({reason}): it is kept as it is, and accuracy and speed were not measured"
        ));
        if plan.options.int8.is_none() {
            return Ok(None);
        }
        // What lies before it is calibrated.
        let count = plan.calibration_samples.unwrap_or(CALIBRATED);
        return Sets::open(&plan.data, g, count, plan.run.seed).map(Some).map_err(|e| e.in_file(&plan.model));
    }
    let count = match plan.calibration_samples {
        Some(n) => n,
        None if plan.options.reconstruct => reconstruct::affordable_samples(g)?,
        None => CALIBRATED,
    };
    let sets = Sets::open_running(&plan.data, g, count, plan.run.seed, (singly, backend));
    let sets = tolerate(sets.map_err(|e| e.in_file(&plan.model)), plan, g, warnings)?;
    let Some(mut sets) = sets else { return Ok(None) };
    if plan.makes_inputs() && plan.trains() && !sets.calibration.set.has_made_up_pictures() {
        return Err(data::no_pictures().in_file(&plan.model));
    }
    if plan.makes_inputs() && !plan.dry_run {
        let quiet = plan.run.quiet || plan.run.json;
        let failed = sets.match_statistics(g, plan.run.seed, backend, quiet).map_err(|e| e.in_file(&plan.model))?;
        warnings.push(advice::without_data(plan, &sets, failed));
        if plan.trains() {
            sets.learn_from_pictures(g, plan.run.seed).map_err(|e| e.in_file(&plan.model))?;
            warnings.push(format!("trained on {} made-up pictures (dead leaves)", sets.training.len()));
        }
    }
    Ok(Some(sets))
}
