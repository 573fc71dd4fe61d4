//! `compress check`: a gate for model CI.

use crate::{
    args::CheckArgs,
    compress::{gates, verdict},
    data::{self, Sets},
    facts,
    measure::{self, Reference},
    plan::{self, DataPlan, RunPlan},
    terminal,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    onnx,
    report::{Recipe, Report},
};

/// Runs the subcommand.
pub fn run(args: CheckArgs) -> Result<()> {
    let (data, run) = (DataPlan::new(args.data)?, RunPlan::new(args.run)?);
    let backend = run.on.open()?;
    run.report.as_deref().map(plan::made).transpose()?;
    let options = args.read.into();
    let (original, model) = (onnx::read_with(&args.against, &options)?, onnx::read_with(&args.model, &options)?);
    same_signature(&original, &model).map_err(|e| e.in_file(&args.model))?;
    // Nothing is calibrated, so what --data gives is measured on as a whole.
    let data = DataPlan { eval: data.eval.or(data.data.clone()), ..data };
    let sets = Sets::open(&data, &original.graph, 1, run.seed)?;
    let quiet = run.quiet || run.json;
    let before = measure::session(&original.graph, &backend).map_err(|e| e.in_file(&args.against))?;
    let before = Reference::new(before, false);
    let after = measure::session(&model.graph, &backend).map_err(|e| e.in_file(&args.model))?;
    let suited = |e| if sets.evaluation.synthetic { data::unsuited(e, &original.graph) } else { e };
    let accuracy = measure::accuracy(&before, &after, &sets.evaluation, Kind::Data, quiet)
        .map_err(|e| suited(e).in_file(&args.model))?;
    let mut report = Report {
        schema: 1,
        input: facts::file(&args.against, &original),
        output: Some(facts::file(&args.model, &model)),
        passes: vec![],
        sensitivity: vec![],
        accuracy: Some(accuracy),
        speed: Some(measure::speed(&before.session, &after, &sets.evaluation, run.batch, &backend)?),
        layers: measure::layers(&original.graph, (&model.graph, &after), &sets.evaluation, &backend)?,
        gates: vec![],
        warnings: original.warnings.into_iter().chain(model.warnings.clone()).collect(),
        recipe: Recipe {
            version: env!("CARGO_PKG_VERSION"),
            flags: vec!["check".into()],
            seed: run.seed,
            data: Some(sets.evaluation.set.digest()?),
        },
    };
    if sets.evaluation.synthetic {
        report.warnings.push("NO DATA: compared on made-up inputs; figures on real data differ. Give --eval".into());
    }
    report.gates = gates(&args.gates, &report)?;
    if let Some(dir) = &run.report {
        onnx::write_atomic(&dir.join("report.json"), terminal::json(&report)?.as_bytes(), true)?;
    }
    if run.json {
        terminal::print(&terminal::json(&report)?);
    } else if !run.quiet {
        terminal::print(&format!("{} against {}\n", args.model.display(), args.against.display()));
        terminal::print(&terminal::table(&report));
    }
    verdict(&report.gates)
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
