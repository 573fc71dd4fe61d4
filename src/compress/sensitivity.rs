//! How much each layer minds: the model with one layer pruned alone, beside the model as it was.

use super::CompressPlan;
use crate::{
    data::Samples,
    events::Monitor,
    measure,
    report::{PrunedAlone, Sensitivity},
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    node::NodeId,
    pass::Context,
    tensor::Tensor,
};
use compress_passes::{layers::layers, prune::mask::highest, simplify};
use compress_runtime::{
    burn::BurnInterpreter,
    dataset::Batch,
    metrics::{Answers, Comparison, Measure},
    session::{Backend, Session},
};

/// The fractions of a layer that are tried.
const FRACTIONS: [f64; 4] = [0.5, 0.8, 0.9, 0.95];

/// Samples that the models run on.
const SAMPLES: usize = 256;

/// Prunes every layer that may be pruned alone, by magnitude and without training, and compares the outputs.
///
/// # Errors
/// Whatever running or reading can raise; interrupted.
pub fn measure(
    graph: &Graph,
    plan: &CompressPlan,
    samples: &Samples,
    backend: &Backend,
    monitor: &Monitor,
) -> Result<Vec<Sensitivity>> {
    let mut dense = graph.clone();
    simplify(&mut dense, &Context::new(&BurnInterpreter::cpu()))?;
    let all = layers(&dense)?;
    let (weights, _) = plan.options.scope().prunable(&dense, "sensitivity")?;
    // In the order of the network.
    let mut layers: Vec<(NodeId, NodeId)> = vec![];
    for l in all.iter().filter(|l| weights.contains(&l.weight)) {
        if layers.iter().all(|(_, weight)| *weight != l.weight) {
            layers.push((l.node, l.weight));
        }
    }
    let session = measure::session(&dense, backend)?;
    let batches = samples.batches().take(SAMPLES.div_ceil(samples.batch)).map(|i| samples.set.batch(i));
    let batches: Vec<Batch> = batches.collect::<Result<_>>()?;
    let answers =
        batches.iter().map(|b| monitor.check().and_then(|()| session.run(&b.inputs))).collect::<Result<Vec<_>>>()?;
    let outputs = Answers::of(&dense);
    let measured = outputs.measure(plan.recipe.measures.metric.as_ref(), samples.set.is_labelled())?;
    let progress = monitor.step("sensitivity", layers.len() * FRACTIONS.len());
    let mut found = vec![];
    for (node, weight) in layers {
        let tensor = dense.constant(weight.into()).cloned().ok_or_else(|| Error::bug("a weight is not a constant"))?;
        let values = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?;
        let scores = [values.iter().map(|v| v.abs()).collect()];
        let mut pruned = vec![];
        for fraction in FRACTIONS {
            let keep = highest(&scores, fraction).concat();
            let kept: Vec<f32> = values.iter().zip(keep).map(|(v, keep)| if keep { *v } else { 0.0 }).collect();
            dense.set_constant(weight, Tensor::f32(tensor.shape(), &kept));
            let session = measure::session(&dense, backend)?;
            let compared = compare(&session, &batches, &answers, (&outputs, measured), monitor)?;
            pruned.push(PrunedAlone {
                fraction,
                accuracy: compared.value().1.filter(|_| compared.metric().0.needs_labels()),
                agreement: compared.agreement(),
                sqnr_db: compared.sqnr_db().filter(|db| db.is_finite()),
            });
            progress.advance(1);
        }
        dense.set_constant(weight, tensor.clone());
        let node = dense.node(node).display_name().to_string();
        found.push(Sensitivity { node, weights: tensor.len(), pruned });
    }
    Ok(found)
}

fn compare(
    session: &Session,
    batches: &[Batch],
    answers: &[Vec<Tensor>],
    (outputs, measured): (&Answers, Measure),
    monitor: &Monitor,
) -> Result<Comparison> {
    let mut compared = Comparison::new(Kind::Data, outputs, measured);
    for (batch, answers) in batches.iter().zip(answers) {
        monitor.check()?;
        compared.add(batch, answers, &session.run(&batch.inputs)?)?;
    }
    Ok(compared)
}
