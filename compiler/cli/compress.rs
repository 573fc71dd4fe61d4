//! `compress MODEL`: the main job.

use crate::{
    args::{CompressArgs, GateArgs},
    bisect,
    data::{self, Sets},
    facts, interrupt, measure,
    measure::DataCalibrator,
    plan::CompressPlan,
    terminal,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::{self, Model},
    op::Op,
    pass::{Calibrator, Context, Pipeline},
    report::{FileFacts, Gate, Recipe, Report},
};
use compress_passes::pipeline;
use compress_runtime::{
    burn::BurnEvaluator,
    session::{Backend, Session},
};

/// Runs the main form of the command.
pub fn run(args: CompressArgs) -> Result<()> {
    let plan = CompressPlan::new(args)?;
    let backend = if plan.dry_run { None } else { Some(plan.run.on.open()?) };
    let original = onnx::read_with(&plan.model, &plan.read)?;
    let pipeline = pipeline(&plan.options, plan.stop_after.as_deref());
    let Some(backend) = backend else {
        let names: Vec<&str> = pipeline.passes.iter().map(|p| p.name()).collect();
        terminal::print(&format!(
            "{} ({} operators) -> {}\npasses: {}\n",
            plan.model.display(),
            original.graph.operators().count(),
            plan.output.display(),
            names.join(", ")
        ));
        return Ok(());
    };
    let mut report = Report {
        schema: 1,
        input: FileFacts::default(),
        output: None,
        passes: vec![],
        accuracy: None,
        speed: None,
        layers: vec![],
        gates: vec![],
        warnings: original.warnings.clone(),
        recipe: Recipe {
            version: env!("CARGO_PKG_VERSION"),
            flags: plan.flags.clone(),
            seed: plan.run.seed,
            data: None,
        },
    };
    // This reads all of a model that may be large, so it goes on beside the work.
    let counting = std::thread::spawn({
        let graph = original.graph.clone();
        move || facts::nonzero(&graph)
    });
    let check = measurable(&plan, &original, &mut report);
    if plan.bisect {
        let sets = open_sets(&plan, &original, &mut report)?;
        let sets = sets.ok_or_else(|| Error::unsupported(report.warnings.join("; ")).in_file(&plan.model))?;
        return bisect::run(&plan, &original.graph, &pipeline, &sets, &backend).map_err(|e| e.in_file(&plan.model));
    }
    let sets = if check || plan.options.int8.is_some() { open_sets(&plan, &original, &mut report)? } else { None };
    let before = match &sets {
        Some(sets) if check => {
            let probe = measure::probe(&original.graph, &backend, &sets.evaluation);
            tolerate(probe.map_err(|e| e.in_file(&plan.model)), &plan, &original.graph, &mut report)?
        }
        _ => None,
    };
    let mut model = original.clone();
    compile(&plan, &mut model, &pipeline, sets.as_ref(), &backend, &mut report)?;

    let recipe = serde_json::to_string(&report.recipe).map_err(|e| Error::bug(e.to_string()))?;
    model.set_metadata("compress.version", env!("CARGO_PKG_VERSION"));
    model.set_metadata("compress.recipe", &facts::sha256(recipe.as_bytes()));
    let staged = onnx::stage(&model, &plan.output, plan.external_data).map_err(|e| e.in_file(&plan.model))?;
    // What is measured is what was written, read back.
    let written = staged.read_back().map_err(|e| match e.kind() {
        // A dense input may end just below a limit, and the result above it.
        Kind::Limit => e.about("the result").in_file(&plan.model),
        _ => Error::bug(format!("the output does not read back: {e}")),
    })?;
    counting.join().map_err(|_| Error::bug("counting zeros failed"))?;
    report.input = facts::file(&plan.model, &original);
    report.output = Some(facts::file(&plan.output, &written));
    let lossless = pipeline.passes.iter().all(|p| p.is_exact());
    match (&sets, before) {
        (Some(sets), Some(before)) => {
            measure_all(&plan, (&original, &before), &written, lossless, sets, &backend, &mut report)
                .map_err(|e| e.in_file(&plan.model))?
        }
        _ => report.layers = facts::layers(&written.graph).into_iter().map(|(_, l)| l).collect(),
    }
    honest_sentences(&plan, lossless, &mut report);
    for file in staged.left_behind(original.source()) {
        let file = file.display();
        report.warnings.push(format!("{file} holds the weights of an earlier result: remove it if nothing needs it"));
    }
    report.gates = gates(&plan.gates, &report)?;

    if interrupt::stopped() {
        return Err(Error::interrupted());
    }
    staged.commit(plan.force)?;
    onnx::write_atomic(&plan.report_path(), terminal::json(&report)?.as_bytes(), plan.force)?;
    if plan.run.json {
        terminal::print(&terminal::json(&report)?);
    } else if !plan.run.quiet {
        terminal::print(&format!("{} -> {}\n", plan.model.display(), plan.output.display()));
        terminal::print(&terminal::table(&report));
    }
    verdict(&report.gates)
}

/// Outputs that differ by rounding alone are closer than this.
const ROUNDING_DB: f64 = 40.0;

/// Larger models are not run only to be measured: original and result would both have to be in
/// the device's memory, beside what they compute.
const MAX_MEASURED: u64 = 1_900_000_000;

/// Whether the models are run to measure them; says so where not.
fn measurable(plan: &CompressPlan, model: &Model, report: &mut Report) -> bool {
    let size = model.source().len();
    if plan.check && size <= MAX_MEASURED {
        return true;
    }
    let why = if plan.check {
        format!("the model has {}, and two of them would have to be in memory", terminal::bytes(size as usize))
    } else {
        "--no-check".into()
    };
    report.warnings.push(format!("accuracy and speed were not measured: {why}"));
    false
}

/// A model that was only simplified is as good when the original can't be run on made-up
/// inputs: that is a warning. With data or with INT8 it is an error.
fn tolerate<T>(result: Result<T>, plan: &CompressPlan, g: &Graph, report: &mut Report) -> Result<Option<T>> {
    let given = plan.data.data.is_some() || plan.data.eval.is_some();
    match result.map_err(|e| if given { e } else { data::unsuited(e, g) }) {
        Ok(value) => Ok(Some(value)),
        Err(e) if given || !matches!(e.kind(), Kind::Unsupported | Kind::Data) => Err(e),
        Err(e) if plan.options.int8.is_none() => {
            report.warnings.push(format!("accuracy and speed were not measured: {e}"));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The data, unless nothing would be measured: a model with an operator we can't run.
fn open_sets(plan: &CompressPlan, model: &Model, report: &mut Report) -> Result<Option<Sets>> {
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
        report.warnings.push(format!(
            "node {label} can't be run here ({reason}): it is kept as it is, and accuracy and speed were not measured"
        ));
        return Ok(None);
    }
    let sets = Sets::open(&plan.data, g, plan.calibration_samples, plan.run.seed);
    let sets = tolerate(sets.map_err(|e| e.in_file(&plan.model)), plan, g, report)?;
    let Some(sets) = sets else { return Ok(None) };
    if sets.calibration.synthetic && plan.options.int8.is_some() {
        report.warnings.push(
            "NO DATA: activation ranges were calibrated on made-up inputs (standard normal); accuracy on real \
             inputs may be far lower than any figure here. Give --data"
                .into(),
        );
    }
    Ok(Some(sets))
}

fn compile(
    plan: &CompressPlan,
    model: &mut Model,
    pipeline: &Pipeline,
    sets: Option<&Sets>,
    backend: &Backend,
    report: &mut Report,
) -> Result<()> {
    let evaluator = BurnEvaluator::cpu();
    let calibrator =
        sets.map(|s| DataCalibrator { samples: &s.calibration, backend, quiet: plan.run.quiet || plan.run.json });
    if let Some(s) = sets
        && plan.options.int8.is_some()
    {
        report.recipe.data = Some(s.calibration.set.digest()?);
    }
    let cx = Context {
        calibrator: calibrator.as_ref().map(|c| c as &dyn Calibrator),
        stopped: &interrupt::stopped,
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
    Ok(())
}

fn measure_all(
    plan: &CompressPlan,
    (original, before): (&Model, &Session),
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
    report.layers = measure::layers(&original.graph, &written.graph, &sets.evaluation, backend)?;
    report.speed = Some(measure::speed(before, &after, &sets.evaluation, plan.run.batch, backend)?);
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
    let mut say = |s: String| report.warnings.push(s);
    if plan.options.prune.is_some() {
        say("zeros make the file no smaller, only a compressed copy (size, zstd). Our runtime leaves them out of float \
             1x1 convolutions and matrix products, which are faster when most of a layer's weights are zero (from \
             about 75% on, 90% for a single row); its other kernels and ONNX Runtime's are no faster for them"
            .into());
    }
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
