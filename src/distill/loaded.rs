//! A job's models, data and what follows from them together.

use super::{
    advice::Seen,
    nothing_better,
    plan::{self, DistillPlan},
    report::{TrainFigures, TrainReport},
    same_samples,
};
use crate::{
    answers as stored,
    data::{Samples, Sets},
    evaluator::{Evaluator, answers, measure, sequences},
    facts, files,
    fit::{Answers, check_filters, check_labels, check_teacher},
    recipe::Recipe,
    report::{self as reports, Recorded},
    values::Batch,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    onnx::{self, Model},
    words::{counted, option},
};
use compress_runtime::{
    device::GpuLoad,
    metrics::{self, Meaning, Measure},
    session::Backend,
    train::{
        augment::Augment,
        checkpoint::{Checkpoint, Checkpoints},
        init,
        job::{self, Outcome, Spent},
        loader::{Loader, LoaderOptions, Share},
        lora::LoRA,
        loss::{LossOptions, Setting, Takes},
        model::{ModelOptions, Trainable},
        ranks::Team,
        replicas::Replicas,
        stored::StoredAnswers,
        teacher::Teacher,
    },
};
use std::{borrow::Cow, path::PathBuf};

/// What a batch that fits the memory stays within besides: batches so large that an epoch has but a few steps learn badly.
const STEPS_AN_EPOCH: usize = 16;
const LARGEST_BATCH: usize = 4096;

/// The files of a job, and what follows from them together.
pub(super) struct LoadedJob {
    pub original: Model,
    /// The model that is trained: the original, or one with random weights.
    pub student: Model,
    /// The updates that are trained in the place of its weights.
    pub lora: Option<LoRA>,
    pub teacher: Option<(PathBuf, Model)>,
    pub sets: Sets,
    pub outputs: metrics::Answers,
    pub measure: Measure,
    pub loss: LossOptions,
    /// The digest of the data to train on.
    pub data: String,
}

impl LoadedJob {
    pub fn new(plan: &DistillPlan) -> Result<Self> {
        let recipe = plan.recipe;
        let read = (&recipe.read).into();
        let original = onnx::read_with(&recipe.student, &read)?;
        let teacher = match &recipe.teacher {
            Some(path) => Some((path.clone(), onnx::read_with(path, &read)?)),
            None => None,
        };
        let mut student = original.clone();
        let weights = original.graph.ids().filter(|n| original.graph.constant((*n).into()).is_some());
        let weights: Vec<&str> = weights.map(|n| &original.graph.value(n.into()).name[..]).collect();
        check_filters(option::FREEZE, &recipe.freeze, &weights, "weight").map_err(|e| e.in_file(&recipe.student))?;
        if recipe.from_nothing {
            init::from_nothing(&mut student.graph, plan.job.seed);
        }
        let sets = Sets::open(&plan.data, &[], &student.graph, usize::MAX, plan.job.seed)?;
        let outputs = answers(&student.graph);
        let measure = measure(&outputs, &sets.evaluation, teacher.is_some());
        let by_labels = measure.metric.judges_alone();
        let sequences = sequences(&outputs, &measure);
        let classes = measure.meaning == Meaning::Classes;
        let labelled = sets.calibration.set.is_labelled();
        let loss = plan.loss(Setting { classes, labelled, sequences, ..Setting::default() })?;
        let labelled = [(&sets.calibration, loss.takes(Takes::Labels)), (&sets.evaluation, by_labels)];
        for (samples, _) in labelled.into_iter().filter(|(_, used)| *used) {
            check_labels(&samples.set, &samples.indices, &student.graph)?;
        }
        if let Some((path, teacher)) = &teacher {
            let answers = match (!by_labels || loss.takes(Takes::Outputs), loss.takes(Takes::Scores)) {
                (true, _) => Answers::All,
                (_, true) => Answers::Scores,
                _ => Answers::None,
            };
            check_teacher(path, &teacher.graph, &student.graph, answers)?;
        }
        let data = sets.calibration.set.digest()?;
        let lora =
            recipe.lora.map(|rank| LoRA::new(&student.graph, rank.get(), &plan.freeze, plan.job.seed)).transpose();
        let lora = lora.map_err(|e| e.in_file(&recipe.student))?;
        Ok(Self { lora, original, student, teacher, sets, outputs, measure, loss, data })
    }

    /// The models that the result is made from.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        [&self.original].into_iter().chain(self.teacher.as_ref().map(|(_, t)| t))
    }

    pub fn samples(&self) -> &Samples {
        &self.sets.calibration
    }

    /// The digest of all that the result follows from. Files may change between two runs, which then are not one job.
    pub fn digest(&self, plan: &DistillPlan) -> Result<String> {
        let scored = if plan.data.eval.is_some() { self.sets.evaluation.set.digest()? } else { self.data.clone() };
        let recorded = Recorded::new(&Recipe::Distill(plan.recipe.clone()), Some(self.data.clone()));
        Ok(facts::sha256([recorded.digest(self.models())?, scored].join("\n").as_bytes()))
    }

    pub fn trainable(&self, plan: &DistillPlan, backend: &Backend) -> Result<Trainable> {
        let features = plan.recipe.matched.iter().map(|m| m.student.clone()).collect();
        let options = ModelOptions {
            // Updates have names of their own, and what is frozen has none.
            freeze: if self.lora.is_some() { vec![] } else { plan.freeze.clone() },
            features,
            recompute: plan.recipe.recompute,
            precision: plan.precision,
            only: self.lora.as_ref().map(LoRA::trained),
            ..ModelOptions::default()
        };
        let graph = self.lora.as_ref().map_or(&self.student.graph, LoRA::graph);
        Trainable::new(graph, &options, &backend.device).map_err(|e| e.in_file(&plan.recipe.student))
    }

    /// The graph as it is written.
    pub fn written<'a>(&self, trained: &'a Graph) -> Result<Cow<'a, Graph>> {
        match &self.lora {
            Some(lora) => lora.merged(trained).map(Cow::Owned),
            None => Ok(Cow::Borrowed(trained)),
        }
    }

    /// The samples of a batch: what the model fixes, what was asked for, what the job had that goes on from `saved`
    /// (by now another number may fit the memory), or what fits the memory.
    pub fn batch(&self, plan: &DistillPlan, model: &mut Trainable, saved: Option<&Checkpoint>) -> Result<usize> {
        let Samples { set, indices, .. } = self.samples();
        match (set.fixed_batch(), plan.batch, saved.and_then(job::batch_of)) {
            (Some(n), ..) => Ok(n),
            (None, Batch::Fixed(n), _) => Ok(n.get().min(indices.len())),
            (None, Batch::Auto, Some(n)) => Ok(n),
            (None, Batch::Auto, None) => {
                let most = (indices.len() / STEPS_AN_EPOCH).clamp(1, LARGEST_BATCH);
                let sample =
                    |n: usize| Ok(set.batch(&indices.iter().cycle().take(n).copied().collect::<Vec<_>>())?.inputs);
                model.largest_batch(most, sample).map_err(|e| e.in_file(&plan.recipe.student))
            }
        }
    }

    /// What to say where the model decides on the size of batches and not who asked for one.
    pub fn ignored_batch(&self, plan: &DistillPlan) -> Option<String> {
        let (fixed, asked) = (self.samples().set.fixed_batch()?, plan.recipe.batch?);
        if matches!(asked, Batch::Fixed(n) if n.get() == fixed) {
            return None;
        }
        Some(format!(
            "{} {asked} has no effect: the model fixes its batch at {}; {} adds up the gradients of several batches",
            option::BATCH,
            counted(fixed, "sample"),
            option::ACCUMULATE
        ))
    }

    pub fn replicas(&self, plan: &DistillPlan, backend: &Backend, batch: usize) -> Result<Replicas> {
        let (team, asked) = (Team::get(), plan.replicas);
        let refused = |why: &str| {
            let what = if team.count() > 1 {
                format!("{} ranks", team.count())
            } else {
                format!("{} {asked}", option::REPLICAS)
            };
            Err(Error::usage(format!("{what}: {why}")))
        };
        match asked {
            1 => Ok(Replicas::default()),
            _ if self.samples().set.fixed_batch().is_some() => refused("the model fixes the size of a batch"),
            n if n > team.count() && !backend.device.is_cpu() => refused("replicas share the threads of a CPU"),
            n => Replicas::of(team, n, batch, rayon::current_num_threads()),
        }
    }

    /// The batches, of which this rank reads its `share`.
    pub fn loader(&self, plan: &DistillPlan, batch: usize, share: &Share) -> Result<Loader> {
        let Samples { set, indices, .. } = self.samples();
        let options = LoaderOptions {
            batch,
            seed: plan.job.seed,
            workers: plan.workers,
            prefetch: 2,
            augment: plan.augment,
            shuffle: true,
            drop_last: set.fixed_batch().is_some() || indices.len() > batch,
            share: share.clone(),
        };
        Loader::new(set.clone(), indices.clone(), options)
    }

    /// What its speed is judged by: where the time went, what the GPU did, and the share of the cores that worked.
    pub fn seen<'a>(
        &self,
        plan: &DistillPlan,
        batch: usize,
        backend: &Backend,
        (spent, gpu, cores_busy): (&'a Spent, Option<&'a GpuLoad>, f64),
    ) -> Seen<'a> {
        let Samples { set, indices, .. } = self.samples();
        Seen {
            spent,
            gpu,
            cores_busy,
            cores: plan::cores(),
            workers: plan.workers,
            pictures: set.are_pictures(),
            augmented: plan.augment != Augment::default(),
            more_samples: set.fixed_batch().is_none() && batch < indices.len(),
            precision: plan.precision,
            multiplies_halves: backend.device.multiplies_halves(),
            recompute: plan.recipe.recompute,
        }
    }

    /// The teacher of the training, if its loss needs one.
    pub fn teacher(&self, plan: &DistillPlan, backend: &Backend) -> Result<Option<Teacher>> {
        let Some((path, model)) = self.teacher.as_ref().filter(|_| self.loss.needs_teacher()) else { return Ok(None) };
        let features: Vec<String> = plan.recipe.matched.iter().map(|m| m.teacher.clone()).collect();
        if let Some(folder) = &plan.recipe.answers {
            let outputs = stored::outputs(&model.graph);
            let of = stored::described(model, &self.data, &plan.data)?;
            let answers = StoredAnswers::open(folder, &of, &outputs)?;
            if let Some((missing, first)) = answers.missing(&self.samples().indices) {
                let (samples, count) = (counted(missing, "sample"), self.samples().indices.len());
                let what = format!("{samples} of the {count} to train on have no answer, the first is {first}");
                return Err(Error::data(what).in_file(folder).help("find the answers of the missing parts"));
            }
            return Ok(Some(Teacher::stored(answers, outputs.len())));
        }
        let keep = if same_samples(plan) && plan.job.epochs > 1 { self.samples().set.len() } else { 0 };
        Teacher::new(path, &model.graph, &features, backend, keep).map(Some)
    }

    pub fn judge<'a>(&'a self, backend: &'a Backend) -> Result<Evaluator<'a>> {
        let held = &self.sets.evaluation;
        let teacher = match &self.teacher {
            Some((path, t)) if !self.measure.metric.judges_alone() => {
                Some(Teacher::new(path, &t.graph, &[], backend, held.set.len())?)
            }
            _ => None,
        };
        Evaluator::new(held, backend, teacher, self.outputs.clone(), self.measure)
    }

    /// Writes the model, then its report; then the checkpoints are of no more use.
    pub fn write(
        &self,
        plan: &DistillPlan,
        done: &Outcome,
        training: TrainFigures,
        warnings: Vec<String>,
        digest: String,
    ) -> Result<TrainReport> {
        let recipe = plan.recipe;
        let recorded = Recorded::new(&Recipe::Distill(recipe.clone()), Some(self.data.clone()));
        let mut trained = self.student.clone();
        trained.graph = self.written(&done.graph)?.into_owned();
        trained.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
        trained.set_metadata("compress.recipe", &recorded.digest(self.models())?);
        let staged = onnx::stage(&trained, &plan.output, false).map_err(|e| e.in_file(&recipe.student))?;
        let written = staged.read_back().map_err(|e| Error::bug(format!("the output does not read back: {e}")))?;
        let report = TrainReport {
            schema: reports::SCHEMA,
            job: digest,
            input: facts::file(&recipe.student, &self.original),
            teacher: self.teacher.as_ref().map(|(path, t)| facts::file(path, t)),
            output: facts::file(&plan.output, &written),
            warnings,
            undone: nothing_better(&training).into_iter().collect(),
            training,
            recipe: recorded,
            data: self.data.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            done_before: false,
        };
        let force = recipe.force || recipe.resume;
        files::free(&plan.report_path(), force, &option::OUTPUT.to_string())?;
        staged.commit(force)?;
        onnx::write_atomic(&plan.report_path(), reports::json(&report)?.as_bytes(), force)?;
        done.checkpoints.iter().try_for_each(Checkpoints::clear)?;
        Ok(report)
    }
}
