//! Weights of layers in floats that are stored as codes all the same: a file is as small as if the layers were quantised.

use super::{
    Best, Search,
    limits::USUAL_DB,
    options::Noise,
    remedies::Proposal,
    weights::{self, Task},
};
use crate::{
    layers::Layer,
    quant::{choices::Rounded, params, qdq::LeastScales, scheme::INT8, storage},
};
use compress_compiler::{
    error::Result, graph::Graph, judge::decibels, node::NodeId, tensor::Tensor, verify::verify, words::counted,
};
use std::{collections::BTreeMap, sync::Arc};

/// What all of them together may add to the noise of the answers, in parts of it.
const MOST_NOISE: f64 = 0.02;

/// Where the answers are better than they have to be, that is a part of the noise that they may have, but no more than this part of
/// their own.
const MOST_BEYOND: f64 = 0.2;

/// Those weights as codes that change the answers least for the bytes that they save, rounded by what their layers read.
pub(super) fn as_codes(search: &Search, best: &Best) -> Result<Vec<Proposal>> {
    let variant = &best.variant;
    let g = &variant.graph;
    if !search.int8.target.capabilities().small_weights {
        return Ok(vec![]);
    }
    let weights = storage::weights(g, &variant.choices);
    let layer = |n: &NodeId| crate::layers::layer(g, *n).filter(|l| weights.contains_key(&l.weight));
    let layers: Vec<Layer> = variant.choices.float.keys().filter(|n| g.contains(**n)).filter_map(layer).collect();
    let is_own = |l: &&Layer| layers.iter().filter(|o| o.weight == l.weight).count() == 1;
    // Of layers in floats, biases stay.
    let task = |l: &Layer| Task::of(g, l).map(Task::without_shift);
    let tasks: Vec<Task> = layers.iter().filter(is_own).filter_map(task).collect();
    let of_recurrent = |(constant, channels): (&NodeId, &storage::Channels)| {
        let is_layer = layers.iter().any(|l| l.weight == *constant);
        let values = g.constant((*constant).into()).filter(|_| !is_layer)?.as_f32()?;
        Some((*constant, nearest(&values, channels)))
    };
    let mut rounded: Vec<(NodeId, Rounded)> = weights.iter().filter_map(of_recurrent).collect();
    if tasks.is_empty() && rounded.is_empty() {
        return Ok(vec![]);
    }
    let free = LeastScales::new();
    weights::each(search, g, tasks, INT8.weights, &free, &mut |l, r, _| rounded.push((l.weight, r)))?;
    let mut found = vec![];
    let count = rounded.len();
    for (i, (constant, rounded)) in rounded.into_iter().enumerate().take_while(|_| !search.is_over()) {
        (search.cx.progress)("weights alone", i, count);
        let noise = alone(search, g, constant, &rounded)?;
        tracing::info!(weight = g.value(constant.into()).name, db = decibels(noise), "alone");
        found.push((noise / rounded.values.len().max(1) as f64, noise, constant, rounded));
    }
    (search.cx.progress)("weights alone", count, count);
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let noise = Noise::of(&best.likeness).both();
    let usual = 10f64.powf(-USUAL_DB / 10.0);
    let most = (noise.max(usual) * MOST_NOISE).min(noise * MOST_BEYOND);
    let mut all = 0.0;
    let fits = found.into_iter().filter(|(_, noise, ..)| {
        let fits = all + noise <= most;
        all += if fits { *noise } else { 0.0 };
        fits
    });
    let stored: BTreeMap<NodeId, Arc<Rounded>> = fits.map(|(_, _, constant, r)| (constant, Arc::new(r))).collect();
    let what = format!("{} of layers in floats stored as codes", counted(stored.len(), "weight"));
    let mut variant = variant.clone();
    let proposes = !stored.is_empty();
    variant.choices.stored = Some(stored);
    Ok(if proposes { vec![Proposal::of(what, variant)] } else { vec![] })
}

/// A weight of a recurrent layer rounded to the nearest codes.
fn nearest(values: &[f32], storage::Channels { shape, axis, .. }: &storage::Channels) -> Rounded {
    let scales = params::weight_scales(values, shape, *axis, INT8.weights, |_| 0.0);
    let values = params::nearest(values, shape, *axis, &scales, INT8.weights.codes.range());
    Rounded { values, scales }
}

/// The noise in the answers where only this weight is rounded.
fn alone(search: &Search, g: &Graph, constant: NodeId, rounded: &Rounded) -> Result<f64> {
    search.cx.check()?;
    let mut only = g.clone();
    let shape = g.constant(constant.into()).map_or(vec![], |t| t.shape().to_vec());
    only.set_constant(constant, Tensor::f32(&shape, &rounded.values));
    Ok(Noise::of(&search.judge.judge(&verify(&only)?, search.few)?).both())
}
