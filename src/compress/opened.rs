//! A model that is about to be compressed: read, in front of its data, and compressed once or several times.

use super::{
    advice,
    best::BestSoFar,
    calibrator::{DataCalibrator, Timer},
    coverage,
    judge::{HeldOut, SAMPLES, SAMPLES_OF_SHARE},
    judged::{Dealt, Judged},
    plan::CompressPlan,
    recipe::Compress,
    sets::{open_sets, tolerate},
    trainer::DataTrainer,
};
use crate::{
    assess::{Assessment, Manner, compared_by},
    data::Sets,
    events::Monitor,
    facts, files, fit,
    gates::{self, Measurable},
    kept::KeptTimes,
    measure::{self, Reference},
    recipe::Recipe,
    remarks,
    report::{self, FileFacts, Recorded, Report},
    shown,
    values::Filter,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    judge::Judges,
    memo::Memo,
    onnx::{self, Model},
    pass::{Calibrator, Context, Stopwatch, Trainer},
    pipeline::{Beginnings, Pipeline},
    spill::Spill,
    words::option::{BISECT, CHECK, EXCLUDE, LAYER, REPORT},
};
use compress_passes::{Options, before_codes};
use compress_runtime::{
    burn::BurnInterpreter,
    memory,
    session::{Backend, Session},
};
use std::{
    cell::RefCell,
    path::Path,
    thread::JoinHandle,
    time::{Duration, Instant},
};

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
    /// What earlier plans found out, if more plans follow.
    pub shared: Option<Shared>,
}

/// What plans for one model share.
pub struct Shared {
    /// What they made before anything became codes.
    pub beginnings: RefCell<Beginnings>,
    /// What passes found out about graphs.
    pub memo: Memo,
    /// How graphs were judged.
    pub judged: RefCell<Judged>,
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
    pub fn new(plan: &CompressPlan, again: bool, monitor: &Monitor) -> Result<Self> {
        let recipe = plan.recipe;
        let backend = recipe.on.open()?;
        let read = (&recipe.read).into();
        let mut original = onnx::read_with(&recipe.model, &read)?;
        let backend = backend.of(&original);
        let teacher = recipe.teacher.as_ref().map(|path| onnx::read_with(path, &read)).transpose()?;
        let mut warnings = original.warnings.clone();
        let exact = plan.pipeline(&plan.options).passes.iter().all(|p| p.is_exact());
        let exact = exact && plan.options.target.capabilities().lower.is_none();
        let manner = Manner::of(&original, &recipe.measures, &recipe.gates, recipe.data.eval.is_some(), exact);
        let check = measurable(plan, &original, manner.one_at_a_time && !again, &mut warnings);
        unmatched(recipe, &original.graph)?;
        let sets = match check || plan.runs() {
            true => open_sets(plan, &original, manner.one_at_a_time && !again, &backend, &mut warnings, monitor)?,
            false => None,
        };
        if let Some(sets) = sets.as_ref().filter(|_| backend.runs_any_operator()) {
            let seen = measure::see_unknown(&mut original.graph, &backend, &sets.evaluation);
            seen.map_err(|e| e.in_file(&recipe.model))?;
        }
        if let Some(sets) = &sets {
            let taught = teacher.as_ref().zip(recipe.teacher.as_deref());
            fit::check(sets, &original.graph, taught.map(|(t, path)| (path, &t.graph)))?;
            warnings.extend(fit::mixed(sets).into_iter().chain(fit::unread(sets)));
            warnings.extend(fit::few(sets, plan.options.reconstruct, plan.trains()));
            warnings.extend(fit::far_from_real(sets)?.filter(|_| plan.recipe.calibrates()));
            warnings.extend(fit::few_to_calibrate(sets).filter(|_| plan.recipe.calibrates()));
        }
        let before = match &sets {
            Some(sets) if check && runs(&original, &backend) => {
                let probe = Session::of_model(&original, &backend);
                let probe = probe.and_then(|session| measure::probed(session, &sets.evaluation));
                let probe = probe.map_err(|e| e.in_file(&recipe.model));
                let of = |session| manner.reference(session, &sets.evaluation, again, monitor);
                tolerate(probe, plan, &original.graph, &mut warnings)?.map(of).transpose()?
            }
            _ => None,
        };
        let accuracy = match (&sets, &before) {
            (Some(sets), Some(_)) => {
                let graphs = [&original.graph; 2];
                Some((compared_by(graphs, &recipe.measures, sets)?.measure, sets))
            }
            _ => None,
        };
        let scored = recipe.measures.score.is_some();
        gates::feasible(&recipe.gates, &Measurable { accuracy, why_not: warnings.last().cloned(), scored })?;
        let facts = Facts::of(&recipe.model, &original);
        let this = Self { original, teacher, backend, sets, before, manner, facts, warnings, shared: None };
        Ok(this)
    }

    /// Opens the data as `plan` says, for a search: the samples that choose between results take the place of those that results are
    /// measured on, which nothing sees.
    ///
    /// # Errors
    /// Whatever reading the data can raise.
    pub fn choose_by(&mut self, plan: &CompressPlan, monitor: &Monitor) -> Result<()> {
        let mut warnings = vec![];
        let sets = open_sets(plan, &self.original, false, &self.backend, &mut warnings, monitor)?;
        self.sets = sets.map(Sets::for_choosing);
        Ok(())
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

    /// Compresses the model, measures what that gave, and writes both the result and its report.
    ///
    /// # Errors
    /// Whatever passes, measuring and writing can raise; interrupted. A failed gate is none.
    pub fn compress(&mut self, plan: &CompressPlan, advise: bool, monitor: &Monitor) -> Result<Report> {
        let recipe = plan.recipe;
        let pipeline = plan.pipeline(&self.options(plan));
        let began = Instant::now();
        let mut report = Report {
            schema: report::SCHEMA,
            unknown_operators: facts::unknown(&self.original.graph),
            warnings: self.warnings.clone(),
            recipe: Recorded::new(&Recipe::Compress(recipe.as_shown()), None),
            ..Report::default()
        };
        let mut model = self.compile(plan, &pipeline, &mut report, monitor)?;
        model.stripped = recipe.strip;
        let in_model = |e: Error| e.in_file(&recipe.model);
        let staged = onnx::stage(&model, &plan.output, recipe.external_data).map_err(in_model)?;
        // What is measured is what was written, read back.
        let mut written = staged.read_back().map_err(|e| match e.kind() {
            // A dense input may end just below a limit, and the result above it.
            Kind::Limit => e.about("the result").in_file(&recipe.model),
            _ => Error::bug(format!("the output does not read back: {e}")),
        })?;
        if let Some(sets) = self.sets.as_ref().filter(|_| self.backend.runs_any_operator()) {
            let backend = self.backend.of(&written);
            measure::see_unknown(&mut written.graph, &backend, &sets.evaluation).map_err(in_model)?;
        }
        report.input = self.facts.get()?;
        report.output = Some(facts::file(plan.shown_output(), &written));
        let lossless = pipeline.passes.iter().all(|p| p.is_exact());
        self.assess(plan, &written, (lossless, began.elapsed()), &mut report, monitor).map_err(in_model)?;
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
        report.gates = gates::judged(&recipe.gates, &report);
        report.warnings.extend(gates::too_few(&recipe.gates, &report));
        gates::strict(&recipe.gates, &mut report);
        if advise {
            report.advice = advice::of(self, plan, &report, monitor)?;
            if let Some(remedy) = advice::for_deployment(self, plan, &report, monitor)? {
                report.warnings.push(remedy.sentence());
                report.deployed.iter_mut().for_each(|d| d.remedy = Some(remedy.clone()));
            }
        }
        monitor.check()?;
        // It may have come meanwhile: a model without its report would stay.
        files::free(&plan.report_path(), recipe.force, &REPORT.to_string())?;
        staged.commit(recipe.force)?;
        for file in &left.replaced {
            // Nobody needs it; that it stays does no harm.
            let _ = std::fs::remove_file(file);
        }
        onnx::write_atomic(&plan.report_path(), report::json(&report)?.as_bytes(), recipe.force)?;
        Ok(report)
    }

    /// Measures `written` beside the original, where they can be run.
    fn assess(
        &self,
        plan: &CompressPlan,
        written: &Model,
        (lossless, work): (bool, Duration),
        report: &mut Report,
        monitor: &Monitor,
    ) -> Result<()> {
        let recipe = plan.recipe;
        let (Some(sets), Some(before)) = (&self.sets, &self.before) else {
            report.layers = facts::all_layers(&written.graph);
            return Ok(());
        };
        let assessment = Assessment {
            sets,
            backend: &self.backend,
            measures: &recipe.measures,
            gates: &recipe.gates,
            batch: recipe.on.batch.get(),
            asked: recipe.data.eval.is_some(),
            // Where nothing meant to change the outputs, what they are is our affair.
            blame: if lossless { Kind::Bug } else { Kind::Data },
            made_here: true,
            manner: self.manner,
            work,
            library: recipe.on.ort.as_deref(),
            monitor,
        };
        assessment.run(&self.original, before, written, report).map_err(|e| match e.kind() {
            Kind::Bug => e.help(format!("{BISECT} names the change that is wrong")),
            _ => e,
        })
    }

    /// The model as `pipeline` makes it.
    ///
    /// # Errors
    /// Whatever passes can raise.
    pub fn compile(
        &self,
        plan: &CompressPlan,
        pipeline: &Pipeline,
        report: &mut Report,
        monitor: &Monitor,
    ) -> Result<Model> {
        let recipe = plan.recipe;
        let mut model = self.original.clone();
        let interpreter = BurnInterpreter::cpu();
        let backend = &self.backend;
        // What our runtime knows it calibrates, inside of branches and loops too; the values are the same.
        let ours = Backend::cpu();
        let known = facts::unknown(&self.original.graph) == 0 && backend.runs_any_operator();
        let calibrating = if known { &ours } else { backend };
        let calibrator =
            self.sets.as_ref().map(|s| DataCalibrator { samples: &s.calibration, backend: calibrating, monitor });
        let path = recipe.teacher.as_deref().unwrap_or(&recipe.model);
        let teacher = self.teacher.as_ref().unwrap_or(&self.original);
        let trainer = self.sets.as_ref().map(|sets| DataTrainer {
            teacher: (path, &teacher.graph),
            sets,
            epochs: recipe.epochs.map(|n| n.get()),
            rate: recipe.lr.map(|x| x.get()),
            seed: recipe.on.seed.0,
            backend,
            monitor,
        });
        // What doesn't run on made-up inputs is not timed on them.
        let timed = self.sets.as_ref().filter(|_| self.before.is_some() || !recipe.checks());
        let batch = recipe.on.batch.get();
        let kept_times = KeptTimes::of(backend);
        let timer = timed.map(|s| Timer { samples: &s.calibration, batch, backend, kept: &kept_times, monitor });
        // Made-up inputs are too much alike to tell ways to quantise apart, and a search has several copies of a model in memory.
        let judges = runs(&self.original, &self.backend) && self.original.source().len() <= MAX_MEASURED;
        let judged = self.sets.as_ref().filter(|s| judges && !s.calibration.synthetic);
        let held_out = judged.map(|s| HeldOut {
            samples: &s.validation,
            most: if recipe.gates.max_drop.is_some() { SAMPLES_OF_SHARE } else { SAMPLES },
            metric: recipe.measures.metric.as_ref(),
            // Only a limit of its drop makes the search ask for it.
            scorer: recipe.measures.score.as_ref().filter(|_| recipe.gates.max_drop.is_some()),
            backend,
            monitor,
        });
        let shared = self.shared.as_ref();
        let dealt = held_out.as_ref().zip(shared).map(|(held_out, shared)| Dealt::new(held_out, None, &shared.judged));
        let kept = BestSoFar::new(&plan.output, &self.original);
        let options = &plan.options;
        let looks = recipe.stores_weights() || options.reconstruct || options.low_rank.is_some();
        if let Some(s) = &self.sets
            && (recipe.calibrates() || looks || options.training.is_some())
        {
            report.recipe.data = Some(s.calibration.set.digest()?);
        }
        let spill =
            (self.original.source().len() > SPILLED).then(|| Spill::within(files::folder(&plan.output))).transpose()?;
        let cx = Context {
            spill: spill.as_ref(),
            memo: shared.map(|shared| &shared.memo),
            original: Some(&self.original.graph),
            calibrator: calibrator.as_ref().map(|c| c as &dyn Calibrator),
            trainer: trainer.as_ref().map(|t| t as &dyn Trainer),
            judges: dealt.as_ref().map(|d| d as &dyn Judges).or(held_out.as_ref().map(|h| h as &dyn Judges)),
            stopwatch: timer.as_ref().map(|t| t as &dyn Stopwatch),
            stopped: &|| monitor.stopped(),
            progress: &monitor.passes(),
            note: &|line| monitor.note(line),
            found: &|make| kept.keep(make, monitor),
            ..Context::new(&interpreter)
        };
        let mut step = 0;
        let done = match shared.filter(|_| spill.is_none()) {
            Some(shared) => {
                let samples = self.sets.as_ref().map_or(0, |s| s.calibration.indices.len());
                let mut beginnings = shared.beginnings.borrow_mut();
                // Epochs of QAT come later.
                let trained = options.training.map(|_| (recipe.epochs, recipe.lr));
                beginnings.given(format!("{samples} samples, training {trained:?}"));
                pipeline.run_from(before_codes(pipeline), &mut beginnings, &mut model.graph, &cx)
            }
            None => pipeline.run(&mut model.graph, &cx, &mut |pass, graph| {
                step += 1;
                if let Some(dir) = &recipe.dump_ir {
                    let file = dir.join(format!("{step:02}-{}.txt", pass.name));
                    onnx::write_atomic(&file, graph.to_string().as_bytes(), true)?;
                }
                Ok(())
            }),
        };
        let (passes, warnings) = done.map_err(|e| e.in_file(&recipe.model))?;
        kept.remove();
        report.warnings.extend(kept_times.told());
        report.passes = passes;
        report.warnings.extend(warnings);
        model.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
        model
            .set_metadata("compress.recipe", &report.recipe.digest([&self.original].into_iter().chain(&self.teacher))?);
        Ok(model)
    }
}

/// Whether a model can be run as a whole.
fn runs(model: &Model, backend: &Backend) -> bool {
    backend.runs_any_operator() || facts::unknown(&model.graph) == 0
}

/// What passes make of the weights of larger models is kept on disk.
const SPILLED: u64 = 1 << 30;

/// Larger models are not run only to be measured, where original and result would both be in memory, beside what they
/// compute; one alone may take this share of what is free.
const MAX_MEASURED: u64 = 1_900_000_000;
const MAX_SHARE: f64 = 0.5;

/// Nor are those of more operators, which subgraphs in subgraphs have.
const MOST_OPERATORS: usize = 50_000;

/// Whether the models are run to measure them; says so where not. `one_at_a_time` says that one is in memory at a time.
fn measurable(plan: &CompressPlan, model: &Model, one_at_a_time: bool, warnings: &mut Vec<String>) -> bool {
    let (size, free) = (model.source().len(), memory::available());
    let operators: usize = model.graph.and_bodies().iter().map(|g| g.operators().count()).sum();
    let fits = size <= MAX_MEASURED || one_at_a_time && free.is_some_and(|free| size as f64 <= MAX_SHARE * free as f64);
    let why = match () {
        () if !plan.recipe.checks() => format!("{CHECK} none"),
        () if !fits && one_at_a_time => {
            let free = shown::bytes(free.unwrap_or_default());
            format!("the model has {}, and {free} of memory are free", shown::bytes(size as usize))
        }
        () if !fits => {
            format!("the model has {}, and two of them would have to be in memory", shown::bytes(size as usize))
        }
        () if operators > MOST_OPERATORS => {
            format!("the model has {operators} operators, and measuring takes several copies of them")
        }
        () => return true,
    };
    warnings.push(format!("accuracy and speed were not measured: {why}"));
    false
}

/// # Errors
/// Usage for a filter that matches no layer.
fn unmatched(recipe: &Compress, g: &Graph) -> Result<()> {
    // Fusion renames nothing, but merges layers: names of the file count as well as those of the layers.
    let mut names: Vec<&str> = vec![];
    for g in g.and_bodies() {
        for n in g.ids() {
            names.push(g.node(n).display_name());
            names.extend(g.node(n).outputs.first().map(|v| &v.name[..]));
        }
    }
    let named: Vec<Filter> = recipe.layer.iter().map(|rule| rule.name.clone()).collect();
    [(EXCLUDE, &recipe.exclude), (LAYER, &named)].into_iter().try_for_each(|(option, filters)| {
        fit::check_filters(option, filters, &names, "node and no weight").map_err(|e| e.in_file(&recipe.model))
    })
}
