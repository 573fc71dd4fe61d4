//! `compress distill` and `compress run`: training jobs.

use crate::{
    args::{DistillArgs, JobArgs, RunRecipeArgs},
    data::{Samples, Sets},
    facts, terminal,
    train_args::{Batch, Recipe},
    train_plan::TrainPlan,
    train_progress::{Follower, shown},
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::{self, SourceFile},
    pass::Context,
    report::FileFacts,
    verify::verify,
};
use compress_passes::simplify;
use compress_runtime::{
    burn::BurnEvaluator,
    metrics::Comparison,
    session::{Backend, Session},
    train::{
        augment::Augment,
        checkpoint::Checkpoints,
        init,
        job::{self, Ended, Job, Outcome, Spent, Watcher},
        loader::{Loader, LoaderOptions},
        model::{ModelOptions, Trainable},
        teacher::Teacher,
    },
};
use serde::Serialize;
use std::{cell::RefCell, time::Instant};

/// What `--batch auto` stays within besides memory: batches so large that an epoch has but a few steps learn badly.
const STEPS_AN_EPOCH: usize = 16;
const LARGEST_BATCH: usize = 4096;

/// Runs `compress distill`.
///
/// # Errors
/// Those of the job.
pub fn run(args: DistillArgs) -> Result<()> {
    let recipe = Recipe { student: args.student, train: args.train };
    if let Some(path) = &args.save_recipe {
        onnx::write_atomic(path, recipe.text()?.as_bytes(), args.job.force)?;
    }
    train(recipe, &args.job)
}

/// Runs `compress run`.
///
/// # Errors
/// Those of the recipe and of the job.
pub fn run_recipe(args: RunRecipeArgs) -> Result<()> {
    train(Recipe::read(&args.recipe)?, &args.job)
}

/// What a job's report says.
#[derive(Serialize)]
struct TrainReport {
    schema: u32,
    input: FileFacts,
    teacher: Option<FileFacts>,
    output: FileFacts,
    training: Training,
    warnings: Vec<String>,
    recipe: Recipe,
    data: String,
    version: &'static str,
}

#[derive(Serialize)]
struct Training {
    metric: &'static str,
    /// Samples that the score is of.
    samples: usize,
    before: f64,
    after: f64,
    ended: Ended,
    steps: u64,
    parameters: usize,
    seconds: f64,
    samples_per_second: f64,
    spent: Spent,
    bound: String,
    batch: usize,
}

fn train(recipe: Recipe, job: &JobArgs) -> Result<()> {
    let began = Instant::now();
    crate::keep_memory();
    let plan = TrainPlan::new(recipe, job)?;
    let backend = plan.on.open()?;
    let read = job.read.clone().into();
    let original = onnx::read_with(&plan.student, &read)?;
    let taught = match &plan.teacher {
        Some(path) => Some((path, onnx::read_with(path, &read)?)),
        None => None,
    };
    let mut student = original.clone();
    if plan.from_nothing {
        init::from_nothing(&mut student.graph, plan.job.seed);
    }
    let sets = Sets::open(&plan.data, &student.graph, usize::MAX, plan.job.seed)?;
    let (set, held) = (&sets.calibration.set, &sets.evaluation);
    let metric = metric(&student.graph, held, taught.is_some());
    let loss = plan.loss(metric != "sqnr", set.is_labelled())?;
    let needs_teacher = loss.needs_teacher();

    let (ours, theirs): (Vec<String>, Vec<String>) = plan.matched.iter().cloned().unzip();
    let options = ModelOptions { freeze: plan.freeze.clone(), features: ours, recompute: plan.recompute };
    let mut model = Trainable::new(&student.graph, &options, &backend.device).map_err(|e| e.in_file(&plan.student))?;
    let same_samples = plan.augment == Augment::default() && plan.job.epochs > 1;
    let teacher = match &taught {
        Some((path, t)) if needs_teacher => {
            let keep = if same_samples { set.len() } else { 0 };
            Some(Teacher::new(path, &t.graph, &theirs, &backend, keep)?)
        }
        _ => None,
    };
    let train = &sets.calibration.indices;
    let data = set.digest()?;
    // Files may change between two runs, which then are not one job.
    let scored = if plan.data.eval.is_some() { held.set.digest()? } else { data.clone() };
    let models = [Some(&original), taught.as_ref().map(|(_, t)| t)].into_iter().flatten();
    let models: Vec<&str> = models.flat_map(|m| m.source().files()).map(SourceFile::sha256).collect();
    let digest = [&plan.recipe.essence()?, &data, &scored, &models.join("\n")].map(String::as_str).join("\n");
    let digest = facts::sha256(digest.as_bytes());
    let checkpoints = (!job.dry_run).then(|| Checkpoints::open(&plan.folder)).transpose()?;
    let saved = match &checkpoints {
        Some(c) if job.resume => c.latest(&digest)?.map(|(found, _)| found),
        _ => None,
    };
    let resumed = saved.as_ref().map(|c| (c.step, c.epoch, c.batch));
    let batch = match (set.fixed_batch(), plan.batch, saved.as_ref().and_then(job::batch_of)) {
        (Some(n), ..) => n,
        (None, Batch::Fixed(n), _) => n.min(train.len()),
        // Another number may fit the memory by now.
        (None, Batch::Auto(_), Some(n)) => n,
        (None, Batch::Auto(_), None) => {
            let most = (train.len() / STEPS_AN_EPOCH).clamp(1, LARGEST_BATCH);
            let sample = |n: usize| Ok(set.batch(&train.iter().cycle().take(n).copied().collect::<Vec<_>>())?.inputs);
            model.largest_batch(most, sample).map_err(|e| e.in_file(&plan.student))?
        }
    };
    let loader = Loader::new(
        set.clone(),
        train.clone(),
        LoaderOptions {
            batch,
            seed: plan.job.seed,
            workers: plan.workers,
            prefetch: 2,
            augment: plan.augment,
            shuffle: true,
            drop_last: set.fixed_batch().is_some() || train.len() > batch,
        },
    )?;
    drop(saved);
    if job.dry_run {
        let summary = format!(
            "{} ({} parameters in {} tensors) -> {}\n{} epochs of {} batches of {batch}; {} samples to train on, {} to score\n",
            plan.student.display(),
            model.parameters().iter().map(|p| p.value.elements()).sum::<usize>(),
            model.parameters().len(),
            plan.output.display(),
            plan.job.epochs,
            loader.batches(),
            train.len(),
            held.indices.len(),
        );
        terminal::print(&summary);
        return Ok(());
    }

    let judge = Judge {
        held,
        backend: &backend,
        teacher: match &taught {
            Some((path, t)) if metric != "top1" => {
                Some(RefCell::new(Teacher::new(path, &t.graph, &[], &backend, held.set.len())?))
            }
            _ => None,
        },
        metric,
    };
    if !job.resume && !job.force && plan.folder.join("metrics.jsonl").exists() {
        return Err(Error::file("a job left its checkpoints here")
            .in_file(&plan.folder)
            .help("pass --resume to go on with it, --force to begin anew, or another folder with --checkpoint"));
    }
    let shape = (plan.job.epochs, loader.batches() as u64);
    let parameters = model.parameters().iter().map(|p| p.value.elements()).sum();
    let mut follower = Follower::new(&plan.folder, resumed, shape, metric, job.quiet || job.json)?;
    if let [first, rest @ ..] = model.left_out() {
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        follower.warn(&format!("`{first}`{more} stay as they are: nothing that learns reads them"));
    }
    let mut options = plan.job.clone();
    options.loss = loss;
    let work = Job {
        model,
        teacher,
        loader,
        options,
        score: &|graph| judge.score(graph),
        checkpoints: checkpoints.map(|c| (c, digest)),
        same_samples,
    };
    let done = work.run(resumed.is_some(), &mut follower).map_err(|e| e.in_file(&plan.student))?;
    let mut warnings = original.warnings.clone();
    warnings.append(&mut follower.warnings);
    drop(follower);
    if done.ended == Ended::Stopped {
        let help = format!("go on with --resume; the checkpoint is in {}", plan.folder.display());
        return Err(Error::interrupted().help(help));
    }

    student.graph = done.graph.clone();
    student.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
    student.set_metadata("compress.recipe", &facts::sha256(plan.recipe.essence()?.as_bytes()));
    let staged = onnx::stage(&student, &plan.output, false).map_err(|e| e.in_file(&plan.student))?;
    let written = staged.read_back().map_err(|e| Error::bug(format!("the output does not read back: {e}")))?;
    let report = TrainReport {
        schema: 1,
        input: facts::file(&plan.student, &original),
        teacher: taught.as_ref().map(|(path, t)| facts::file(path, t)),
        output: facts::file(&plan.output, &written),
        training: training(&done, metric, held.indices.len(), parameters, batch, began),
        warnings,
        recipe: plan.recipe.clone(),
        data,
        version: env!("CARGO_PKG_VERSION"),
    };
    let force = job.force || job.resume;
    staged.commit(force)?;
    onnx::write_atomic(&plan.report_path(), terminal::json(&report)?.as_bytes(), force)?;
    done.checkpoints.iter().try_for_each(Checkpoints::clear)?;
    if job.json {
        terminal::print(&terminal::json(&report)?);
    } else if !job.quiet {
        terminal::print(&format!("{} -> {}\n{}", plan.student.display(), plan.output.display(), table(&report)));
    }
    Ok(())
}

/// Scores models on what was held out.
struct Judge<'a> {
    held: &'a Samples,
    backend: &'a Backend,
    teacher: Option<RefCell<Teacher>>,
    metric: &'static str,
}

impl Judge<'_> {
    fn score(&self, graph: &Graph) -> Result<f64> {
        // As it would be deployed: with normalisations folded it runs several times as fast.
        let mut graph = graph.clone();
        simplify(&mut graph, &Context::new(&BurnEvaluator::cpu()))?;
        let session = Session::new(&verify(&graph)?, self.backend, &[])?;
        let mut compared = Comparison::blaming(Kind::Data);
        for indices in self.held.batches() {
            let batch = self.held.set.batch(indices)?;
            let made = session.run(&batch.inputs)?;
            if made.iter().any(|t| t.all_f32(f32::is_finite) == Some(false)) {
                // Worse than any model that gives numbers.
                return Ok(f64::MIN);
            }
            let answer = match &self.teacher {
                Some(t) => t.borrow_mut().answer(&batch.inputs, Some(indices))?.outputs,
                None => made.clone(),
            };
            compared.add(&answer, &made, batch.len, batch.labels.as_deref())?;
        }
        let score = match self.metric {
            "top1" => compared.top1_after(),
            "agreement" => compared.agreement(),
            _ => compared.sqnr_db(),
        };
        Ok(score.unwrap_or(f64::MIN).clamp(f64::MIN, f64::MAX))
    }
}

/// What a model is scored by: the share of right classes, that of classes which the teacher chooses too, or how
/// near its outputs are to the teacher's.
fn metric(graph: &Graph, held: &Samples, taught: bool) -> &'static str {
    let classes = graph.outputs().iter().any(|o| {
        let dims = graph.fact(o.port).dims().unwrap_or_default();
        let sizes: Vec<i64> = dims.iter().skip(1).map(|d| d.known().unwrap_or(2)).collect();
        !sizes.is_empty() && sizes.iter().filter(|n| **n > 1).count() == 1
    });
    match (classes, held.set.is_labelled(), taught) {
        (true, true, _) => "top1",
        (true, false, true) => "agreement",
        _ => "sqnr",
    }
}

fn training(
    done: &Outcome,
    metric: &'static str,
    samples: usize,
    parameters: usize,
    batch: usize,
    began: Instant,
) -> Training {
    let s = &done.spent;
    let share = |v: f64| 100.0 * v / (s.training() + s.scoring + s.saving).max(1e-9);
    let largest = [("computing", s.compute), ("running the teacher", s.teacher), ("waiting for data", s.data)]
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map_or("computing", |(name, _)| name);
    let bound = format!(
        "bound by {largest}: computing {:.0}%, teacher {:.0}%, waiting for data {:.0}%, scoring {:.0}%, checkpoints {:.0}%",
        share(s.compute),
        share(s.teacher),
        share(s.data),
        share(s.scoring),
        share(s.saving),
    );
    Training {
        metric,
        samples,
        before: done.first,
        after: done.best,
        ended: done.ended,
        steps: done.steps,
        parameters,
        seconds: began.elapsed().as_secs_f64(),
        samples_per_second: s.samples_per_second(done.samples),
        spent: *s,
        bound,
        batch,
    }
}

fn table(r: &TrainReport) -> String {
    let t = &r.training;
    let why = match t.ended {
        Ended::Finished => "all epochs done",
        Ended::Patience => "no better score for a while",
        Ended::Time => "the time was up",
        Ended::Stopped => "stopped",
    };
    let mut text = format!(
        "  {:<12} {} -> {} on {} samples held out\n  {:<12} {} steps of {} samples, {:.1} s, {:.0} samples/s: {why}\n  {:<12} {}\n",
        t.metric,
        shown(t.metric, t.before),
        shown(t.metric, t.after),
        t.samples,
        "training",
        t.steps,
        t.batch,
        t.seconds,
        t.samples_per_second,
        "speed",
        t.bound,
    );
    r.warnings.iter().for_each(|w| text += &format!("  note: {w}\n"));
    text
}
