//! The samples that a model is compressed on.

use super::{
    advice,
    plan::{CompressPlan, Purpose},
};
use crate::{
    data::{self, Sets},
    events::Monitor,
    facts, measure,
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    onnx::Model,
};
use compress_passes::prune::reconstruct;
use compress_runtime::session::Backend;

/// Samples to find activation ranges on.
const CALIBRATED: usize = 256;

/// The data, unless nothing would be measured: a model with an operator we can't run.
pub(super) fn open_sets(
    plan: &CompressPlan,
    model: &Model,
    singly: bool,
    backend: &Backend,
    warnings: &mut Vec<String>,
    monitor: &Monitor,
) -> Result<Option<Sets>> {
    let (g, recipe) = (&model.graph, plan.recipe);
    let (seed, shapes) = (recipe.on.seed.0, &recipe.measures.shape[..]);
    let in_model = |e: Error| e.in_file(&recipe.model);
    let data = recipe.data.beside(&recipe.model)?;
    let asked = recipe.calibration_samples.map(|n| n.get());
    if let Some((label, reason)) = facts::first_unknown(g).filter(|_| !backend.runs_any_operator()) {
        warnings.push(format!(
            "node {label} can't be run here ({reason}): it is kept as it is, and accuracy and speed were not measured"
        ));
        if !plan.recipe.calibrates() {
            return Ok(None);
        }
        // What lies before it is calibrated.
        let count = asked.unwrap_or(CALIBRATED);
        return Sets::open(&data, shapes, g, count, seed).map(Some).map_err(in_model);
    }
    let count = match asked {
        Some(n) => n,
        None if plan.options.reconstruct => reconstruct::affordable_samples(g)?,
        None => CALIBRATED,
    };
    let sets = Sets::open_running(&data, shapes, g, count, seed, (singly, backend));
    let sets = tolerate(sets.map_err(in_model), plan, g, warnings)?;
    let Some(mut sets) = sets else { return Ok(None) };
    if asked.is_none() && plan.options.reconstruct {
        // Of sizes that the model leaves open, the data tell how much work a sample is.
        let inputs = measure::timing_batch(&sets.calibration, 1)?.inputs;
        if let Ok(sized) = measure::sized(g, &inputs) {
            sets.calibrate_on(reconstruct::affordable_samples(&sized)?, seed);
        }
    }
    let validated = recipe.validation_samples.filter(|_| !sets.calibration.synthetic);
    if let Some(count) = validated {
        sets.validate_on(count.get(), seed).map_err(in_model)?;
    }
    if plan.options.search.is_some() || validated.is_some() {
        sets.keep_apart(seed);
    }
    if plan.makes_inputs() && plan.trains() && !sets.calibration.set.has_made_up_pictures() {
        return Err(in_model(data::no_pictures()));
    }
    if plan.makes_inputs() && plan.purpose != Purpose::Intent {
        let failed = sets.match_statistics(g, seed, backend, monitor).map_err(in_model)?;
        warnings.push(advice::without_data(plan, &sets, failed));
        if plan.trains() {
            sets.learn_from_pictures(g, seed).map_err(in_model)?;
            warnings.push(format!("trained on {} made-up pictures (dead leaves)", sets.training.len()));
        }
    }
    Ok(Some(sets))
}

/// A model that was only simplified is as good when the original can't be run on made-up
/// inputs: that is a warning. With data or with INT8 it is an error.
pub(super) fn tolerate<T>(
    result: Result<T>,
    plan: &CompressPlan,
    g: &Graph,
    warnings: &mut Vec<String>,
) -> Result<Option<T>> {
    let given = plan.recipe.data.any();
    match result.map_err(|e| if given { e } else { data::unsuited(e, g) }) {
        Ok(value) => Ok(Some(value)),
        Err(e) if given && e.kind() != Kind::Unsupported => Err(e),
        Err(e) if !matches!(e.kind(), Kind::Unsupported | Kind::Data) => Err(e),
        Err(e) if !plan.recipe.calibrates() => {
            warnings.push(format!("accuracy and speed were not measured: {e}"));
            Ok(None)
        }
        Err(e) => Err(e),
    }
}
