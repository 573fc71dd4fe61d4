//! `compress check`: a gate for model CI.

use crate::{
    args::{CheckArgs, Effort},
    assess::{Assessment, Manner, compared_by},
    data::{self, Sets},
    facts, fit,
    gates::{self, Measurable},
    measure, needs,
    plan::{self, DataPlan, RunPlan},
    terminal,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    onnx,
    report::{Recipe, Report},
};
use std::time::Duration;

/// Runs the subcommand.
pub fn run(args: CheckArgs) -> Result<()> {
    needs::data(&args.data)?;
    needs::shapes(&args.measures.shape, args.data.data.is_some() || args.data.eval.is_some())?;
    let (data, run) = (DataPlan::new(args.data)?, RunPlan::new(args.run)?);
    if args.measures.check == Effort::None {
        return Err(
            Error::usage("a check that measures nothing: --check none").help("say --check auto or --check full")
        );
    }
    let backend = run.on.open()?;
    run.report.as_deref().map(plan::made).transpose()?;
    let options = args.read.into();
    let (original, model) = (onnx::read_with(&args.against, &options)?, onnx::read_with(&args.model, &options)?);
    let renamed = same_signature(&original, &model).map_err(|e| e.in_file(&args.model))?;
    // Nothing is calibrated, so what --data gives is measured on as a whole.
    let asked = data.eval.is_some() || data.data.is_some();
    let data = DataPlan { eval: data.eval.or(data.data.clone()), shapes: args.measures.shape.clone(), ..data };
    let manner = Manner::of(&original, &args.measures, &args.gates, asked, false);
    let sets = Sets::open_running(&data, &original.graph, 1, run.seed, (manner.apart, &backend))?;
    fit::check_labels(&sets.evaluation.set, &sets.evaluation.indices, &original.graph)?;
    let (_, measured) = compared_by(&original.graph, &args.measures, &sets)?;
    let scored = args.measures.score.is_some();
    gates::feasible(&args.gates, &Measurable { accuracy: Some((measured, &sets)), why_not: None, scored })?;
    let quiet = run.quiet || run.json;
    let before = measure::session(&original.graph, &backend).map_err(|e| e.in_file(&args.against))?;
    let before = manner.reference(before, &sets.evaluation, false)?;
    let suited = |e| if sets.evaluation.synthetic { data::unsuited(e, &original.graph) } else { e };
    let mut report = Report {
        schema: 1,
        input: facts::file(&args.against, &original),
        output: Some(facts::file(&args.model, &model)),
        unknown_operators: facts::unknown(&model.graph),
        warnings: original
            .warnings
            .iter()
            .chain(&model.warnings)
            .cloned()
            .chain(renamed)
            .chain(fit::mixed(&sets))
            .collect(),
        recipe: Recipe {
            version: env!("CARGO_PKG_VERSION"),
            flags: vec!["check".into()],
            seed: run.seed,
            data: Some(sets.evaluation.set.digest()?),
        },
        ..Report::default()
    };
    let assessment = Assessment {
        sets: &sets,
        backend: &backend,
        measures: &args.measures,
        gates: &args.gates,
        batch: run.batch,
        asked,
        blame: Kind::Data,
        made_here: false,
        manner,
        work: Duration::ZERO,
        quiet,
    };
    assessment.run(&original, &before, &model, &mut report).map_err(|e| suited(e).in_file(&args.model))?;
    if sets.evaluation.synthetic {
        report.warnings.push(format!(
            "NO DATA: compared on made-up inputs ({}); figures on real data differ. Give --eval",
            sets.sizes
        ));
    }
    report.gates = gates::judged(&args.gates, &report);
    if let Some(dir) = &run.report {
        onnx::write_atomic(&dir.join("report.json"), terminal::json(&report)?.as_bytes(), true)?;
    }
    if run.json {
        terminal::print(&terminal::json(&report)?)?;
    } else if !run.quiet {
        terminal::print(&terminal::headline(&report, None))?;
        terminal::print(&format!("{} against {}\n", args.model.display(), args.against.display()))?;
        terminal::print(&terminal::table(&report))?;
    }
    gates::verdict(&report, args.gates.strict)
}

/// Both models must take the same inputs; outputs are compared in order. Says so where they have other names.
///
/// # Errors
/// Data for other inputs, or another number of outputs.
fn same_signature(a: &onnx::Model, b: &onnx::Model) -> Result<Option<String>> {
    let inputs =
        |m: &onnx::Model| m.graph.inputs().iter().map(|n| m.graph.value((*n).into()).name.clone()).collect::<Vec<_>>();
    let outputs = |m: &onnx::Model| m.graph.outputs().iter().map(|o| o.name.clone()).collect::<Vec<_>>();
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
