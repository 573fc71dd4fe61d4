//! Weights trained as they are rounded: the quantised graph learns to answer as the floats do, by gradients that pass
//! through rounding as if it were not there (straight-through estimator, Bengio et al. 2013). It learns from values inside too,
//! so that a few hundred samples tell enough (Li et al. 2021, BRECQ).

use super::{Best, Search, remedies::Proposal};
use crate::{
    layers::Layer,
    quant::{choices::Rounded, params, ptq::Variant, qdq},
};
use compress_compiler::{
    error::{Error, Kind, Result},
    graph::Graph,
    judge::unsaturated,
    node::{NodeId, Port},
    op::Op,
    pass::Tuning,
    verify::verify,
    words::{counted, option::EFFORT},
};
use std::{collections::BTreeSet, sync::Arc};

/// Layers whose outputs are learnt from, besides those of the graph. (Of PP-OCR's 47 layers, 10 are better than none or all.)
const INNER: usize = 10;

/// Codes in the root mean square of a bias.
const BIAS_CODES: f32 = 30.0;

/// The weights and biases of all layers, trained.
pub(super) fn trained(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let Some(trainer) = search.cx.trainer else { return Ok(vec![]) };
    let variant = &best.variant;
    let plan = search.values(variant)?;
    // A weight has one set of scales that it is trained under, and others that read it need it as it is.
    let is_own = |l: &&Layer| qdq::is_read_by_layers_only(&variant.graph, &plan, l);
    let layers: Vec<Layer> = plan.layers.iter().filter(is_own).copied().collect();
    if layers.is_empty() {
        return Ok(vec![]);
    }
    let mut g = variant.graph.clone();
    search.int8.quantise(&mut g, search.whole, &variant.seen, &variant.choices)?;
    let constants = layers.iter().flat_map(|l| steps(&g, l)).collect();
    let score = |graph: &Graph| {
        let mut graph = graph.clone();
        search.int8.freeze(&mut graph, &variant.choices)?;
        Ok(search.judge.judge(&verify(&graph)?, search.judge.samples())?.nearness())
    };
    let sized = search.judge.sized(&variant.graph)?;
    let tuning = Tuning {
        teacher: &variant.graph,
        constants,
        places: places(&variant.graph, &g, &layers),
        macs: sized.operators().map(|n| sized.macs(n)).sum(),
        time: search.time_left(),
        score: &score,
    };
    let (epochs, samples) = match trainer.tune(&mut g, tuning) {
        // What was found without training is good all the same.
        Err(e) if !matches!(e.kind(), Kind::Interrupted | Kind::Bug) => {
            search.warn(format!("{EFFORT} best: weights were not trained: {e}"));
            return Ok(vec![]);
        }
        done => done?,
    };
    let (epochs, samples) = (counted(epochs as usize, "epoch"), counted(samples, "sample"));
    let what = format!("{} trained under rounding, {epochs} of {samples}", counted(layers.len(), "weight"));
    Ok(vec![Proposal::of(what, adopted(search, variant, &layers, &g)?)])
}

/// The weight and the bias of a layer, and how far a code is from the next: of a bias, as if it had a weight's range.
fn steps(g: &Graph, l: &Layer) -> Vec<(NodeId, f32)> {
    let mean = |v: &[f32]| v.iter().sum::<f32>() / v.len().max(1) as f32;
    let scales = qdq::dequantized(g, l.node, l.axes.slot).map(|(scales, _)| mean(&scales));
    let rms = |v: &[f32]| (v.iter().map(|v| v * v).sum::<f32>() / v.len().max(1) as f32).sqrt();
    let bias = qdq::bias(g, l).map(|(port, values)| (port.node, rms(&values) / BIAS_CODES));
    scales.map(|scale| (l.weight, scale)).into_iter().chain(bias).collect()
}

/// The names of the values that tell most of the answers, and of the outputs of some layers, evenly spread: of those that the
/// quantised graph has too, where codes make some activations needless.
fn places(g: &Graph, quantised: &Graph, layers: &[Layer]) -> Vec<String> {
    let mut ports: Vec<Port> = g.outputs().iter().flat_map(|o| ends(g, o.port)).collect();
    let every = layers.len().div_ceil(INNER).max(1);
    ports.extend(layers.iter().skip(every / 2).step_by(every).map(|l| Port::from(l.node)));
    let mut found: BTreeSet<Port> = BTreeSet::new();
    let is_in_both = |p: &Port| quantised.contains(p.node) && quantised.value(*p).name == g.value(*p).name;
    ports.into_iter().filter(is_in_both).filter(|p| found.insert(*p)).map(|p| g.value(p).name.clone()).collect()
}

/// What an output is made of, before functions that hide noise.
fn ends(g: &Graph, port: Port) -> Vec<Port> {
    match (unsaturated(g, port), g.op(port.node)) {
        (Some(before), _) => vec![before],
        (None, Op::Concat(_)) => g.operands(port.node).into_iter().flatten().flat_map(|p| ends(g, p)).collect(),
        _ => vec![port],
    }
}

/// The variant with the weights and biases of its layers as they are in `trained`.
fn adopted(search: &Search, variant: &Variant, layers: &[Layer], trained: &Graph) -> Result<Variant> {
    let mut new = variant.clone();
    let params = search.parameters(variant, search.values(variant)?)?;
    for l in layers {
        let scales = qdq::dequantized(trained, l.node, l.axes.slot).map(|(scales, _)| scales);
        let (Some(scales), Some(weight)) = (scales, trained.constant(l.weight.into())) else { continue };
        let values = weight.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?;
        let range = search.int8.scheme.weights.codes.range();
        let values = params::nearest(&values, weight.shape(), l.axes.output, &scales, range);
        let rounded = search.settled(variant, l, &params, Rounded { values, scales });
        new.choices.rounded.insert(l.weight, Arc::new(rounded));
        let (before, after) = (qdq::bias(&variant.graph, l), qdq::bias(trained, l));
        if let Some((_, after)) = after {
            let before = before.map_or_else(|| vec![0.0; after.len()], |(_, before)| before);
            let added: Vec<f32> = after.iter().zip(&before).map(|(a, b)| a - b).collect();
            new.choices.biases.insert(l.node, added.into());
        }
    }
    Ok(new)
}
