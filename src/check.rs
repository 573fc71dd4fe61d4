//! A model beside the one that it came from: a gate for model CI.

use crate::{
    assess::{Assessment, Manner, compared_by},
    baseline,
    compress::needs,
    data::Sets,
    drafting::DraftOptions,
    events::{Events, Monitor, watched},
    facts, files, fit,
    gates::{self, Measurable},
    options::{DataOptions, DeviceOptions, Effort, GateOptions, MeasureOptions, ReadOptions, within},
    recipe::Recipe,
    report::{self, Recorded, Report},
};
use clap::Args;
use compress_compiler::{
    error::{Error, Kind, Result},
    forms::decoder::Decoder,
    node::NodeId,
    onnx::{self, Model},
    words::option::{
        AGAINST, ALLOW_SYNTHETIC, AS_IS, BASELINE, BATCH, CHECK, DATA, DRAFTS_FOR, EVAL, MAX_SIZE, METRIC,
        MIN_ACCEPTANCE, MIN_SPEEDUP, SCORE, SHAPE, UPDATE_BASELINE,
    },
};
use compress_runtime::session::Session;
use serde::{Deserialize, Serialize};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// What a check does.
type Job<'a> = dyn Fn(&Monitor) -> Result<Report> + Send + Sync + 'a;

/// Compares a model with the one that it came from, and holds the figures against gates.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Check {
    /// The ONNX model to check.
    pub model: PathBuf,
    /// The model it came from.
    #[arg(long, value_name = "FILE")]
    pub against: Option<PathBuf>,
    /// A decoder for which the model guesses tokens (speculative decoding), in place of --against: measures how many guesses it
    /// accepts, and how much faster it is.
    #[arg(long, value_name = "FILE")]
    pub drafts_for: Option<PathBuf>,
    /// How a draft is judged.
    #[command(flatten)]
    #[serde(flatten)]
    pub draft: DraftOptions,
    /// Where data comes from.
    #[command(flatten)]
    #[serde(flatten)]
    pub data: DataOptions,
    /// What the model has to keep.
    #[command(flatten)]
    #[serde(flatten)]
    pub gates: GateOptions,
    /// What is measured.
    #[command(flatten)]
    #[serde(flatten)]
    pub measures: MeasureOptions,
    /// Where models run.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// Fail (exit 9) when size, accuracy or the ratio of speeds is worse than what this file has of the model, by more than 1%
    /// (15% of the speed, if it is measurable).
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Accept the figures of this run: write them into the file of --baseline, unless another gate fails.
    #[arg(long)]
    pub update_baseline: bool,
    /// Write report.json into this folder, in place of an older one.
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
}

impl Check {
    /// Compares the models. A gate that failed is not an error: [`Report::verdict`] has it.
    ///
    /// # Errors
    /// Usage for contradictions in the recipe; data for models that can't be compared; whatever reading and running them
    /// can raise; interrupted when `events` asks to stop.
    pub fn run(&self, events: &mut dyn Events) -> Result<Report> {
        needs::data(&self.data)?;
        needs::shapes(&self.measures.shape, self.data.any())?;
        if self.measures.check == Effort::None {
            return Err(Error::usage(format!("{CHECK} none: a check has to measure something"))
                .help(format!("say {CHECK} auto or {CHECK} full")));
        }
        if self.update_baseline && self.baseline.is_none() {
            return Err(Error::usage(format!("{UPDATE_BASELINE} has no effect without {BASELINE}")));
        }
        if self.baseline.is_some() && !self.data.any() && !self.gates.allow_synthetic {
            let what = format!("{BASELINE} needs data: figures on made-up inputs say little about real inputs");
            return Err(Error::data(what).help(format!("give {EVAL}")));
        }
        let job: Box<Job> = match (&self.against, &self.drafts_for) {
            (Some(original), None) => {
                self.draft.needs_a_draft()?;
                Box::new(|monitor| self.compare(original, monitor))
            }
            (None, Some(model)) => {
                self.fits_a_draft()?;
                Box::new(|monitor| self.as_draft(model, monitor))
            }
            _ => {
                let help = format!("give one of {AGAINST} and {DRAFTS_FOR}, with the other model");
                return Err(Error::usage("a check compares two models").help(help));
            }
        };
        watched(events, |monitor| within(self.on.threads, false, || job(monitor)))
    }

    /// What a run over `sets` reports, before anything is measured.
    fn begun(&self, (path, before): (&Path, &Model), after: &Model, sets: &Sets) -> Result<Report> {
        let warnings = before.warnings.iter().chain(&after.warnings).cloned();
        let digest = Some(sets.evaluation.set.digest()?);
        Ok(Report {
            schema: report::SCHEMA,
            input: facts::file(path, before),
            output: Some(facts::file(&self.model, after)),
            unknown_operators: facts::unknown(&after.graph),
            warnings: warnings.collect(),
            recipe: Recorded::new(&Recipe::Check(self.clone()), digest),
            ..Report::default()
        })
    }

    /// The data, of which all is measured on as nothing is calibrated.
    fn data(&self, beside: &Path) -> Result<DataOptions> {
        Ok(DataOptions { eval: self.data.eval.clone().or(self.data.data.clone()), ..self.data.beside(beside)? })
    }

    /// Judges the figures of `report`, and writes it.
    fn end(&self, report: &mut Report) -> Result<()> {
        if self.data.data.is_some() && self.data.eval.is_some() {
            report.undone.push(format!("{DATA} has no effect beside {EVAL}: a check calibrates nothing"));
        }
        // Before a baseline accepts anything, and again for what that leaves undone.
        gates::strict(&self.gates, report);
        if let Some(path) = &self.baseline {
            baseline::judge(path, &self.model, report, self.update_baseline)?;
        }
        gates::strict(&self.gates, report);
        if let Some(folder) = &self.report {
            onnx::write_atomic(&folder.join("report.json"), report::json(report)?.as_bytes(), true)?;
        }
        Ok(())
    }

    /// Refuses what is not measured of a draft.
    fn fits_a_draft(&self) -> Result<()> {
        self.draft.check()?;
        let (measures, usual) = (&self.measures, MeasureOptions::default());
        let others = [
            (BASELINE, self.baseline.is_some()),
            (METRIC, measures.metric.is_some()),
            (SCORE, measures.score.is_some()),
            (SHAPE, !measures.shape.is_empty()),
            (CHECK, measures.check != usual.check),
            (AS_IS, measures.as_is),
            (ALLOW_SYNTHETIC, self.gates.allow_synthetic),
            (BATCH, self.on.batch != DeviceOptions::default().batch),
        ];
        let gates = GateOptions { min_speedup: None, ..self.gates.clone() };
        let asked = others.into_iter().find(|(_, given)| *given).map(|(option, _)| option);
        match asked.or(gates.measured()) {
            None => Ok(()),
            Some(option) => Err(Error::usage(format!("{option} has no effect with {DRAFTS_FOR}"))
                .help(format!("a draft has the gates {MIN_ACCEPTANCE}, {MIN_SPEEDUP} and {MAX_SIZE}"))),
        }
    }

    /// Has the model guess the tokens of the decoder at `path`.
    fn as_draft(&self, path: &Path, monitor: &Monitor) -> Result<Report> {
        let backend = self.on.open()?;
        self.report.as_deref().map(files::made).transpose()?;
        let read = (&self.read).into();
        let (model, draft) = (onnx::read_with(path, &read)?, onnx::read_with(&self.model, &read)?);
        let backend = backend.of(&model);
        let sets = Sets::open(&self.data(path)?, &[], &model.graph, 1, self.on.seed.0)?;
        let mut report = self.begun((path, &model), &draft, &sets)?;
        let models = ((&model, path), (&draft, self.model.as_path()));
        let drafting = self.draft.measure(models, &sets.evaluation, (&backend, self.on.seed.0), monitor)?;
        report.gates = self.draft.judged(&drafting, self.gates.min_speedup);
        report.gates.extend(gates::judged(&GateOptions { min_speedup: None, ..self.gates.clone() }, &report));
        report.warnings.extend(drafting.warnings());
        report.drafting = Some(drafting);
        self.end(&mut report)?;
        Ok(report)
    }

    fn compare(&self, against: &Path, monitor: &Monitor) -> Result<Report> {
        let backend = self.on.open()?;
        self.report.as_deref().map(files::made).transpose()?;
        let read = (&self.read).into();
        let (original, model) = (onnx::read_with(against, &read)?, onnx::read_with(&self.model, &read)?);
        let backend = backend.of(&original);
        let renamed = same_signature(&original, &model).map_err(|e| e.in_file(&self.model))?;
        let (asked, data) = (self.data.any(), self.data(against)?);
        let manner = Manner::of(&original, &self.measures, &self.gates, asked, false);
        let (shapes, seed) = (&self.measures.shape, self.on.seed.0);
        let sets = Sets::open_running(&data, shapes, &original.graph, 1, seed, (manner.one_at_a_time, &backend))?;
        fit::check_labels(&sets.evaluation.set, &sets.evaluation.indices, &original.graph)?;
        let measured = compared_by([&original.graph, &model.graph], &self.measures, &sets)?.measure;
        let scored = self.measures.score.is_some();
        gates::feasible(&self.gates, &Measurable { accuracy: Some((measured, &sets)), why_not: None, scored })?;
        let before = Session::of_model(&original, &backend).map_err(|e| e.in_file(against))?;
        let suited = |e| sets.evaluation.unfit(e, &original.graph);
        let before = manner.reference(before, &sets.evaluation, false, monitor);
        let before = before.map_err(|e| suited(e).in_file(against))?;
        let mut report = self.begun((against, &original), &model, &sets)?;
        report.warnings.extend(renamed.into_iter().chain(fit::mixed(&sets)).chain(fit::unread(&sets)));
        let assessment = Assessment {
            sets: &sets,
            backend: &backend,
            measures: &self.measures,
            gates: &self.gates,
            batch: self.on.batch.get(),
            asked,
            blame: Kind::Data,
            made_here: false,
            manner,
            work: Duration::ZERO,
            library: self.on.ort.as_deref(),
            monitor,
        };
        assessment.run(&original, &before, &model, &mut report).map_err(|e| suited(e).in_file(&self.model))?;
        if sets.evaluation.synthetic {
            report.warnings.push(format!(
                "NO DATA: compared on made-up inputs ({}); figures on real data differ. Give {EVAL}",
                sets.sizes
            ));
        }
        report.gates = gates::judged(&self.gates, &report);
        report.warnings.extend(gates::too_few(&self.gates, &report));
        self.end(&mut report)?;
        Ok(report)
    }
}

/// Both models must take the same inputs; outputs are compared in order. Says so where they have other names. Caches of decoders
/// are neither: one may have fewer layers.
///
/// # Errors
/// Data for other inputs, or another number of outputs.
pub(crate) fn same_signature(a: &Model, b: &Model) -> Result<Option<String>> {
    let as_many = a.graph.inputs().len() == b.graph.inputs().len();
    let inputs = |m: &Model| -> Vec<String> {
        let counted = |n: &NodeId| as_many || Decoder::of(&m.graph).is_none_or(|decoder| !decoder.makes(*n));
        m.graph.inputs().iter().filter(|n| counted(n)).map(|n| m.graph.value((*n).into()).name.clone()).collect()
    };
    let outputs = |m: &Model| -> Vec<String> {
        let all = m.graph.outputs();
        let places = if as_many { (0..all.len()).collect() } else { Decoder::answers(&m.graph) };
        places.into_iter().map(|place| all[place].name.clone()).collect()
    };
    let listed = |names: &[String]| names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ");
    let differ = |what: &str, a: &[String], b: &[String]| {
        Error::data(format!("the {what} are {}, those of the model that it is compared with {}", listed(b), listed(a)))
            .help("both have to take the same inputs, and to have as many outputs in the same order")
    };
    let (of_a, of_b) = ((inputs(a), outputs(a)), (inputs(b), outputs(b)));
    if of_a.0 != of_b.0 {
        return Err(differ("inputs", &of_a.0, &of_b.0));
    }
    if of_a.1.len() != of_b.1.len() {
        return Err(differ("outputs", &of_a.1, &of_b.1));
    }
    let other = of_a.1 != of_b.1;
    Ok(other.then(|| {
        format!("outputs have other names, and are compared in order: {} with {}", listed(&of_b.1), listed(&of_a.1))
    }))
}
