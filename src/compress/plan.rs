//! A recipe in, decisions out: everything is checked once, before any work.

use super::{Compress, needs};
use crate::{
    files,
    given::DataSource,
    options::{DataOptions, DeviceOptions, Effort as CheckEffort, GateOptions, MeasureOptions, expressions},
    values::{FormRule, Int8},
};
use compress_compiler::{
    error::{Error, Result},
    onnx,
    pipeline::Pipeline,
    words::option,
};
use compress_passes::{
    Factorised, Options, Recovery, STAGES, pipeline,
    prune::{
        recover::WeightSaliency,
        score::ChannelSaliency,
        structured::{ChannelBudget, Channels},
    },
    quant::{
        scheme::{DYNAMIC, Scheme},
        search::{Budget as SearchBudget, Effort, Goal},
        weight_only::WeightFormat,
    },
};
use compress_runtime::session::EngineChoice;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// What a recipe is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// All that it says.
    Compress,
    /// To say what it would do.
    Intent,
    /// To find the change that alters the outputs: nothing is trained or written.
    Bisect,
}

/// What a compression will do.
pub struct CompressPlan<'a> {
    pub recipe: &'a Compress,
    /// Where the result goes.
    pub output: PathBuf,
    /// What is asked of the passes.
    pub options: Options,
    pub purpose: Purpose,
}

impl<'a> CompressPlan<'a> {
    /// # Errors
    /// Usage for contradictions and impossible values; file when the output can't be there.
    pub fn new(recipe: &'a Compress, purpose: Purpose) -> Result<Self> {
        let output = recipe.output();
        if files::same(&recipe.model, &output) {
            let help = format!("give another name with {}", option::OUTPUT);
            return Err(Error::usage("the output would replace the input").in_file(&output).help(help));
        }
        let data = [&recipe.data.data, &recipe.data.eval].into_iter().flatten().filter_map(DataSource::path);
        for read in data.chain(recipe.teacher.as_deref()) {
            if files::same(read, &output) {
                return Err(Error::usage("the output would replace a file that the job reads").in_file(&output));
            }
        }
        if onnx::weight_files(&recipe.model).iter().any(|weights| files::same(weights, &output)) {
            return Err(Error::usage("the output would replace the weights of the input").in_file(&output));
        }
        needs::check(recipe, purpose)?;
        if let Some(stop) = &recipe.stop_after
            && !STAGES.iter().any(|s| s.name == stop)
        {
            let known: Vec<&str> = STAGES.iter().map(|s| s.name).collect();
            let what = format!("{} {stop}", option::STOP_AFTER);
            return Err(Error::usage(what).help(format!("passes: {}", known.join(", "))));
        }
        let plan = Self { recipe, output, options: options(recipe, purpose), purpose };
        plan.check_files()?;
        Ok(plan)
    }

    /// Whether everything can be written that has to be.
    fn check_files(&self) -> Result<()> {
        let Self { recipe, output, .. } = self;
        let report = self.report_path();
        if files::same(&report, output) || files::same(&report, &recipe.model) {
            return Err(Error::usage("the report would replace a model")
                .in_file(&report)
                .help(format!("give another {}", option::REPORT)));
        }
        let writes = self.purpose == Purpose::Compress;
        for (path, by) in [(output, option::OUTPUT), (&report, option::REPORT)] {
            files::free(path, recipe.force || !writes, &by.to_string())?;
        }
        if !writes {
            return Ok(());
        }
        files::placed(output, &option::OUTPUT.to_string())?;
        recipe.report.iter().chain(&recipe.dump_ir).try_for_each(|folder| files::made(folder))
    }

    /// The passes for these options.
    pub fn pipeline(&self, options: &Options) -> Pipeline {
        pipeline(options, self.recipe.stop_after.as_deref())
    }

    /// Whether the model is run to be compressed.
    pub fn runs(&self) -> bool {
        let factorises = self.options.low_rank.is_some_and(|of| of.by_data);
        let looks = self.options.reconstruct || self.recipe.calibrates() || self.options.weights_by_data || factorises;
        self.trains() || looks || self.purpose == Purpose::Bisect
    }

    /// Whether something is trained.
    pub fn trains(&self) -> bool {
        self.options.qat || self.options.training.is_some()
    }

    /// Whether inputs are made up on which something is decided.
    pub fn makes_inputs(&self) -> bool {
        self.recipe.data.data.is_none() && (self.recipe.calibrates() || self.options.reconstruct)
    }

    /// Where the result is said to be.
    pub fn shown_output(&self) -> &Path {
        self.recipe.shown_as.as_deref().unwrap_or(&self.output)
    }

    /// Where the report goes.
    pub fn report_path(&self) -> PathBuf {
        match &self.recipe.report {
            Some(folder) => folder.join("report.json"),
            None => self.output.with_extension("report.json"),
        }
    }
}

fn options(r: &Compress, purpose: Purpose) -> Options {
    let prunes = r.prune.is_some() || r.prune_pattern.is_some();
    let channels = r.prune_channels.map(|fraction| Channels {
        fraction: fraction.get(),
        of: r.channels_budget,
        by: r.channels_by.unwrap_or(ChannelSaliency::Obs),
        round: r.round_channels.map(|n| n.get()),
        pays: !r.cut_anyway && r.channels_budget != ChannelBudget::Parameters,
        cuts: r.channels_cuts.map_or(1, |n| n.get()),
    });
    let low_rank = r.low_rank.map(|fraction| Factorised {
        fraction: fraction.get(),
        round: r.round_channels.map(|n| n.get()),
        pays: !r.cut_anyway,
        by_data: r.data.data.is_some(),
    });
    let recovers = prunes || channels.is_some() || low_rank.is_some() || r.keep_layers.is_some();
    // A search for a wrong change trains nothing.
    let may_train = purpose != Purpose::Bisect;
    let training = Recovery { by: r.prune_by.unwrap_or(WeightSaliency::Obs), must: r.epochs.is_some() };
    Options {
        layers: r.keep_layers.map(|n| n.get()),
        channels,
        low_rank,
        prune: r.prune.map(|f| f.get()),
        pattern: r.prune_pattern,
        prune_budget: r.prune_budget,
        reconstruct: (prunes || r.prune_channels.is_some()) && r.prune_by != Some(WeightSaliency::Magnitude),
        prune_ends: r.prune_ends,
        training: (needs::trains(r) && recovers && may_train).then_some(training),
        scheme: r.quantises().then(|| r.scheme()),
        weights: r.weights,
        block: r.block.unwrap_or_default().get(),
        rules: r.layer.iter().map(FormRule::rule).collect(),
        weights_by_data: r.stores_weights() && r.weights != Some(WeightFormat::Fp8) && r.data.data.is_some(),
        search: (r.calibrates() && r.effort != Effort::Quick && purpose != Purpose::Bisect).then(|| SearchBudget {
            effort: r.effort,
            time: r.time.map(|ms| Duration::from_secs_f64(ms.get() / 1000.0)),
            goal: Goal {
                sqnr_db: r.aim.or(r.gates.min_sqnr).map(|db| db.get()),
                drop: r.gates.max_drop.filter(|_| r.aim.is_none()).map(|share| share.get()),
            },
        }),
        qat: r.qat && may_train,
        exclude: expressions(&r.exclude),
        target: r.target,
        any_operator: matches!(r.on.engine, EngineChoice::OnnxRuntime(_)),
    }
}

impl Compress {
    /// Where the result goes.
    pub fn output(&self) -> PathBuf {
        self.output.clone().unwrap_or_else(|| self.model.with_extension("compressed.onnx"))
    }

    /// Whether it is quantised.
    pub fn quantises(&self) -> bool {
        self.int8.is_some() || self.qat && self.weights.is_none()
    }

    /// Whether weights alone become codes, of some layers or of all.
    pub fn stores_weights(&self) -> bool {
        self.weights.is_some() || self.layer.iter().any(|rule| rule.form.weights().is_some())
    }

    /// Whether it is quantised by ranges that calibration finds.
    pub fn calibrates(&self) -> bool {
        self.int8 == Some(Int8::Static) || self.qat && self.weights.is_none()
    }

    /// The recipe as its report has it: the file in which a result is before it is printed is gone then.
    pub(crate) fn as_shown(&self) -> Self {
        Self { output: self.shown_as.clone().or(self.output.clone()), ..self.clone() }
    }

    /// What of it shapes the result.
    pub(crate) fn essence(&self) -> Self {
        Self {
            model: PathBuf::new(),
            output: None,
            report: None,
            dump_ir: None,
            data: DataOptions {
                preprocess: self.data.preprocess.clone(),
                tokens: self.data.tokens,
                ..DataOptions::default()
            },
            gates: GateOptions::default(),
            // Made-up samples have these sizes.
            measures: MeasureOptions { shape: self.measures.shape.clone(), ..MeasureOptions::default() },
            on: DeviceOptions { threads: None, batch: DeviceOptions::default().batch, ..self.on.clone() },
            ..self.clone()
        }
    }

    /// The codes that activations and weights become, if they do.
    pub(super) fn scheme(&self) -> Scheme {
        let scheme = self.target.scheme(self.weight_bits);
        let calibration = self.calibration.unwrap_or(scheme.calibration);
        let activations = if self.int8 == Some(Int8::Dynamic) { DYNAMIC } else { scheme.activations };
        Scheme { activations, calibration, reduce_range: self.reduce_range, ..scheme }
    }

    /// Whether the models are run to measure them.
    pub fn checks(&self) -> bool {
        self.measures.check != CheckEffort::None
    }

    /// Whether its work has many short steps: those of a training, or of matching made-up inputs.
    pub fn takes_many_steps(&self) -> bool {
        let options = options(self, Purpose::Compress);
        let trains = options.qat || options.training.is_some();
        let tunes = options.search.is_some_and(|search| search.effort == Effort::Best);
        trains || tunes || self.data.data.is_none() && (self.calibrates() || options.reconstruct)
    }
}
