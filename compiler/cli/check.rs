//! `compress check`: a gate for model CI.

use crate::{
    args::{CheckArgs, Effort},
    assess::{Assessment, Manner, compared_by},
    data::{self, Samples, Sets},
    facts, fit,
    gates::{self, Measurable},
    measure,
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
    same_signature(&original, &model).map_err(|e| e.in_file(&args.model))?;
    // Nothing is calibrated, so what --data gives is measured on as a whole.
    let asked = data.eval.is_some() || data.data.is_some();
    let data = DataPlan { eval: data.eval.or(data.data.clone()), shapes: args.measures.shape.clone(), ..data };
    let runs = |samples: &Samples| measure::probe(&original.graph, &backend, samples).map(drop);
    let manner = Manner::of(&original, &args.measures, &args.gates, asked, false);
    let sets = Sets::open_running(&data, &original.graph, 1, run.seed, (manner.apart, &runs))?;
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
        warnings: original.warnings.iter().chain(&model.warnings).cloned().collect(),
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
    report.gates = gates::judged(&args.gates, &report)?;
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

/// Inputs and outputs are compared in order, so both models must call them the same.
fn same_signature(a: &onnx::Model, b: &onnx::Model) -> Result<()> {
    let names = |m: &onnx::Model| -> (Vec<String>, Vec<String>) {
        let g = &m.graph;
        let inputs = g.inputs().iter().map(|n| g.value((*n).into()).name.clone());
        (inputs.collect(), g.outputs().iter().map(|o| o.name.clone()).collect())
    };
    let (a, b) = (names(a), names(b));
    if a == b {
        return Ok(());
    }
    Err(Error::data(format!(
        "inputs and outputs are {:?} -> {:?}, those of the original {:?} -> {:?}",
        b.0, b.1, a.0, a.1
    )))
}
