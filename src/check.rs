//! A model beside the one that it came from: a gate for model CI.

use crate::{
    assess::{Assessment, Manner, compared_by},
    baseline,
    compress::needs,
    data::{self, Sets},
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
    onnx::{self, Model},
    words::option::{BASELINE, CHECK, DATA, EVAL, UPDATE_BASELINE},
};
use compress_runtime::session::Session;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, time::Duration};

/// Compares a model with the one that it came from, and holds the figures against gates.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Check {
    /// The ONNX model to check.
    pub model: PathBuf,
    /// The model it came from.
    #[arg(long, value_name = "FILE")]
    pub against: PathBuf,
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
        watched(events, |monitor| within(self.on.threads, false, || self.compare(monitor)))
    }

    fn compare(&self, monitor: &Monitor) -> Result<Report> {
        let backend = self.on.open()?;
        self.report.as_deref().map(files::made).transpose()?;
        let read = (&self.read).into();
        let (original, model) = (onnx::read_with(&self.against, &read)?, onnx::read_with(&self.model, &read)?);
        let backend = backend.of(&original);
        let renamed = same_signature(&original, &model).map_err(|e| e.in_file(&self.model))?;
        // Nothing is calibrated, so what `data` gives is measured on as a whole.
        let asked = self.data.any();
        let data =
            DataOptions { eval: self.data.eval.clone().or(self.data.data.clone()), ..self.data.beside(&self.against) };
        let manner = Manner::of(&original, &self.measures, &self.gates, asked, false);
        let (shapes, seed) = (&self.measures.shape, self.on.seed.0);
        let sets = Sets::open_running(&data, shapes, &original.graph, 1, seed, (manner.one_at_a_time, &backend))?;
        fit::check_labels(&sets.evaluation.set, &sets.evaluation.indices, &original.graph)?;
        let (_, measured) = compared_by(&original.graph, &self.measures, &sets)?;
        let scored = self.measures.score.is_some();
        gates::feasible(&self.gates, &Measurable { accuracy: Some((measured, &sets)), why_not: None, scored })?;
        let before = Session::of_model(&original, &backend).map_err(|e| e.in_file(&self.against))?;
        let before = manner.reference(before, &sets.evaluation, false, monitor)?;
        let suited = |e| if sets.evaluation.synthetic { data::unsuited(e, &original.graph) } else { e };
        let warnings = original.warnings.iter().chain(&model.warnings).cloned();
        let digest = Some(sets.evaluation.set.digest()?);
        let mut report = Report {
            schema: report::SCHEMA,
            input: facts::file(&self.against, &original),
            output: Some(facts::file(&self.model, &model)),
            unknown_operators: facts::unknown(&model.graph),
            warnings: warnings.chain(renamed).chain(fit::mixed(&sets)).chain(fit::unread(&sets)).collect(),
            recipe: Recorded::new(&Recipe::Check(self.clone()), digest),
            ..Report::default()
        };
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
        if self.data.data.is_some() && self.data.eval.is_some() {
            report.undone.push(format!("{DATA} has no effect beside {EVAL}: a check calibrates nothing"));
        }
        report.gates = gates::judged(&self.gates, &report);
        if let Some(path) = &self.baseline {
            baseline::judge(path, &self.model, &mut report, self.update_baseline)?;
        }
        if let Some(folder) = &self.report {
            onnx::write_atomic(&folder.join("report.json"), report::json(&report)?.as_bytes(), true)?;
        }
        Ok(report)
    }
}

/// Both models must take the same inputs; outputs are compared in order. Says so where they have other names.
///
/// # Errors
/// Data for other inputs, or another number of outputs.
pub(crate) fn same_signature(a: &Model, b: &Model) -> Result<Option<String>> {
    let inputs =
        |m: &Model| m.graph.inputs().iter().map(|n| m.graph.value((*n).into()).name.clone()).collect::<Vec<_>>();
    let outputs = |m: &Model| m.graph.outputs().iter().map(|o| o.name.clone()).collect::<Vec<_>>();
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
