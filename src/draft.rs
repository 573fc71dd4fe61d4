//! The fastest draft of a decoder: layers are left out, the rest learns from the whole, and weights become codes.

use crate::{
    compress::Compress,
    data::{Samples, Sets},
    drafting::{DraftOptions, Drafting, Tried},
    events::{Events, Monitor, watched},
    facts, files,
    given::DataSource,
    options::{DataOptions, DeviceOptions, Effort, MeasureOptions, ReadOptions, within},
    recipe::Recipe,
    report::{self, Recorded, Report},
    values::{Count, Int8, Positive, Whole},
};
use clap::Args;
use compress_compiler::{
    error::{Error, Kind, Result},
    onnx::{self, Model},
    words::{
        counted,
        option::{BATCH, EPOCHS, KEEP_LAYERS, LR, OUTPUT, TARGET},
    },
};
use compress_passes::{prune::depth, quant::weight_only::WeightFormat, target::Target};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Makes the fastest draft of a decoder: a small model that guesses its tokens (speculative decoding). Several are made, each of
/// fewer layers that learn from the whole model, in floats and in codes; the fastest on texts held out is kept.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Draft {
    /// The ONNX model, a decoder with a cache.
    pub model: PathBuf,
    /// Where the draft goes [default: MODEL with .draft.onnx].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Text to train on, as for compressing. Some of it chooses the draft, and a fifth is held out to judge that unless --eval is
    /// given.
    #[arg(long, value_name = "PATH", required = true)]
    pub data: DataSource,
    /// Text to judge the draft on.
    #[arg(long, value_name = "PATH")]
    pub eval: Option<DataSource>,
    /// The tokenizer of text, a tokenizer.json [default: the one beside the model; bytes for a model of 256 words].
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a sample of text [default: 128].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tokens: Option<Count<1_048_576>>,
    /// Layers that a draft keeps; may be repeated [default: all, half, a quarter, and one].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub keep_layers: Vec<Count<1024>>,
    /// Epochs of training of each draft [default: by the size of model and data, at most some minutes].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub epochs: Option<Whole<0, 1_000_000>>,
    /// The highest learning rate of training.
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub lr: Option<Positive>,
    /// The runtime that has to run the draft.
    #[arg(long, value_name = "RUNTIME", default_value_t, value_parser = crate::options::choices::<Target>())]
    pub target: Target,
    /// How drafts are judged.
    #[command(flatten)]
    #[serde(flatten)]
    pub draft: DraftOptions,
    /// Fail (exit 9) when the model with the draft is measurably less than this many times as fast.
    #[arg(long, value_name = "RATIO", allow_hyphen_values = true)]
    pub min_speedup: Option<Positive>,
    /// Where models run.
    #[command(flatten)]
    #[serde(flatten)]
    pub on: DeviceOptions,
    /// How models are read.
    #[command(flatten)]
    #[serde(flatten)]
    pub read: ReadOptions,
    /// Overwrite what exists.
    #[arg(long)]
    #[serde(skip)]
    pub force: bool,
}

/// What the weights of drafts become.
const FORMATS: [(&str, Option<WeightFormat>, Option<Int8>); 4] = [
    ("floats", None, None),
    ("int4", Some(WeightFormat::Int4), None),
    ("int8", Some(WeightFormat::Int8), None),
    ("int8=dynamic", None, Some(Int8::Dynamic)),
];

impl Draft {
    /// Makes drafts, and writes the fastest, with a report beside it. A gate that failed is not an error: [`Report::verdict`] has
    /// it.
    ///
    /// # Errors
    /// Usage for contradictions in the recipe; unsupported for a model whose layers can't be told apart; those of
    /// [`Compress::run`] and [`Check::run`](crate::Check::run).
    pub fn run(&self, events: &mut dyn Events) -> Result<Report> {
        let output = self.output();
        if files::same(&output, &self.model) {
            let help = format!("give another name with {OUTPUT}");
            return Err(Error::usage("the output would replace the model").in_file(&output).help(help));
        }
        if output.as_os_str() == "-" {
            return Err(Error::usage(format!("{OUTPUT} -: a draft goes to a file, with its report beside it")));
        }
        if self.target.is_for_codes() {
            return Err(Error::usage(format!("{TARGET} {}: drafts are made in floats too", self.target))
                .help(format!("leave {TARGET} out, or give {TARGET} onnxruntime")));
        }
        self.draft.check()?;
        if self.on.batch != DeviceOptions::default().batch {
            return Err(Error::usage(format!("{BATCH} has no effect: texts are continued one at a time")));
        }
        for path in [&output, &self.report_path()] {
            files::free(path, self.force, &OUTPUT.to_string())?;
        }
        files::placed(&output, &OUTPUT.to_string())?;
        let model = onnx::read_with(&self.model, &(&self.read).into())?;
        let all = depth::count(&model.graph).map_err(|e| e.in_file(&self.model))?;
        let depths = self.depths(all)?;
        let trains = [(EPOCHS, self.epochs.is_some()), (LR, self.lr.is_some())];
        if let Some((option, _)) = trains.into_iter().find(|(_, given)| *given && depths.iter().all(|n| *n == all)) {
            return Err(Error::usage(format!("{option} has no effect: no draft loses layers, so none is trained")));
        }
        // What can't be measured in the end is said before hours of training.
        let backend = self.on.open()?.of(&model);
        let sets = Sets::open(&self.texts()?, &[], &model.graph, 1, self.on.seed.0)?;
        self.draft.feasible((&model, &self.model), [&sets.validation, &sets.evaluation], &backend)?;
        drop(sets);
        let folder = tempfile::Builder::new().prefix(".compress-draft-").tempdir_in(files::folder(&output));
        let folder = folder.map_err(|e| Error::file(format!("cannot hold drafts: {e}")).in_file(&output))?;
        let mut made = vec![];
        for layers in depths {
            made.extend(self.of_layers(layers, all, folder.path(), events)?);
        }
        watched(events, |monitor| within(self.on.threads, false, || self.choose(&model, made, monitor)))
    }

    /// Where the draft goes.
    pub fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.model.with_extension("draft.onnx"))
    }

    /// What of it shapes the result.
    pub(crate) fn essence(&self) -> Self {
        Self {
            model: PathBuf::new(),
            output: None,
            data: DataSource::default(),
            eval: None,
            tokenizer: None,
            min_speedup: None,
            draft: DraftOptions { min_acceptance: None, ..self.draft.clone() },
            on: DeviceOptions { threads: None, ..self.on.clone() },
            ..self.clone()
        }
    }

    fn report_path(&self) -> PathBuf {
        self.output().with_extension("report.json")
    }

    /// How many of `all` layers drafts keep.
    fn depths(&self, all: usize) -> Result<Vec<usize>> {
        let mut depths: Vec<usize> = match &self.keep_layers[..] {
            [] => vec![all, all.div_ceil(2), all.div_ceil(4), 1],
            asked => asked.iter().map(|n| n.get()).collect(),
        };
        depths.sort_unstable_by(|a, b| b.cmp(a));
        depths.dedup();
        match depths.first().filter(|most| **most > all) {
            Some(most) => {
                Err(Error::data(format!("a draft of {most} layers: the model has {all}")).in_file(&self.model))
            }
            None => Ok(depths),
        }
    }

    fn texts(&self) -> Result<DataOptions> {
        let data = DataOptions {
            data: Some(self.data.clone()),
            eval: self.eval.clone(),
            tokenizer: self.tokenizer.clone(),
            tokens: self.tokens,
            ..DataOptions::default()
        };
        data.beside(&self.model)
    }

    /// Drafts of so many layers, in floats and in codes. The model itself is no draft in floats.
    fn of_layers(&self, layers: usize, all: usize, folder: &Path, events: &mut dyn Events) -> Result<Vec<Made>> {
        let path = |name: &str| folder.join(format!("layers-{layers}.{name}.onnx"));
        let texts = self.texts()?;
        let usual = || Compress {
            data: texts.clone(),
            target: self.target,
            measures: MeasureOptions { check: Effort::None, ..MeasureOptions::default() },
            on: self.on.clone(),
            read: self.read.clone(),
            ..Compress::default()
        };
        let mut model = self.model.clone();
        let mut made = vec![];
        if layers < all {
            model = path("floats");
            let job = Compress {
                model: self.model.clone(),
                output: Some(model.clone()),
                keep_layers: Some(layers.try_into()?),
                epochs: self.epochs,
                lr: self.lr,
                ..usual()
            };
            job.run(events)?;
        }
        for (name, weights, int8) in FORMATS {
            let codes = weights.is_some() || int8.is_some();
            if codes {
                let job = Compress { model: model.clone(), output: Some(path(name)), weights, int8, ..usual() };
                match job.run(events) {
                    Ok(_) => {}
                    // A target may have no such codes.
                    Err(e) if e.kind() == Kind::Unsupported => continue,
                    Err(e) => return Err(e),
                }
            }
            if codes || layers < all {
                made.push(Made { layers, weights: name, path: path(name) });
            }
        }
        Ok(made)
    }

    /// Writes the fastest of the drafts, and says how fast it is on texts that did not choose it.
    fn choose(&self, model: &Model, made: Vec<Made>, monitor: &Monitor) -> Result<Report> {
        let backend = self.on.open()?.of(model);
        let seed = self.on.seed.0;
        let sets = Sets::open(&self.texts()?, &[], &model.graph, 1, seed)?;
        let read = (&self.read).into();
        let drafting = |draft: &Model, path: &Path, samples: &Samples| {
            let models = ((model, self.model.as_path()), (draft, path));
            let measured = self.draft.measure(models, samples, (&backend, seed), monitor);
            measured.map_err(|e| samples.unfit_if_given(e))
        };
        let mut tried = vec![];
        let progress = monitor.step("try", made.len());
        for made in &made {
            let draft = onnx::read_with(&made.path, &read)?;
            tried.push(Tried::new(
                made.layers,
                made.weights,
                draft.source().len() as usize,
                drafting(&draft, &made.path, &sets.validation)?,
            ));
            progress.advance(1);
        }
        drop(progress);
        let fastest = (0..made.len()).max_by(|a, b| tried[*a].speedup().total_cmp(&tried[*b].speedup()));
        let fastest = fastest.ok_or_else(|| {
            let help = format!("give {KEEP_LAYERS} with fewer layers than the model has");
            Error::unsupported("no draft could be made").in_file(&self.model).help(help)
        })?;
        let draft = onnx::read_with(&made[fastest].path, &read)?;
        let staged = onnx::stage(&draft, &self.output(), false)?;
        let written = staged.read_back()?;
        let measured = drafting(&written, &self.output(), &sets.evaluation)?;
        let mut report = Report {
            schema: report::SCHEMA,
            input: facts::file(&self.model, model),
            output: Some(facts::file(&self.output(), &written)),
            unknown_operators: facts::unknown(&written.graph),
            warnings: model.warnings.clone(),
            recipe: Recorded::new(&Recipe::Draft(self.clone()), Some(sets.evaluation.set.digest()?)),
            gates: self.draft.judged(&measured, self.min_speedup),
            ..Report::default()
        };
        if measured.slows() {
            report.unusable =
                Some(format!("the fastest of {} is slower than the model alone", counted(tried.len(), "draft")));
        }
        report.warnings.extend(measured.warnings());
        report.drafting = Some(Drafting { tried, chosen: Some(fastest), ..measured });
        files::free(&self.report_path(), self.force, &OUTPUT.to_string())?;
        staged.commit(self.force)?;
        onnx::write_atomic(&self.report_path(), report::json(&report)?.as_bytes(), self.force)?;
        Ok(report)
    }
}

/// A draft that was made.
struct Made {
    layers: usize,
    /// What its weights are.
    weights: &'static str,
    path: PathBuf,
}
