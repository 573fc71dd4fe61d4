//! How much channels matter: a number for each unit of each group, comparable between groups. The lowest go first.

use super::{
    groups::{Group, Groups},
    layout::Layout,
    reconstruct::channel_costs,
};
use crate::layers::Layer;
use compress_compiler::{
    error::Result,
    graph::Graph,
    node::NodeId,
    pass::{Calibrator, Context},
    tensor::Tensor,
};
use std::collections::BTreeMap;

/// What a channel's importance is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The sum of the magnitudes of the weights that make it (Li et al. 2017).
    L1,
    /// The norm of the weights that make it.
    L2,
    /// How far the weights that make it are from those of the others of its group (geometric median, He et al. 2019).
    Median,
    /// What the layers that read it lose in their outputs on calibration data when their other weights make up for it
    /// (the optimal brain surgeon, Hassibi and Stork 1993, for whole channels).
    Solved,
}

/// A weight, one of its axes, and which of that axis' indices belong to each unit of a group.
type Sets = (NodeId, usize, Vec<Vec<usize>>);

/// The scores of the units of `groups`.
///
/// # Errors
/// Whatever running the graph can raise; interrupted.
pub fn scores(
    g: &Graph,
    all: &Groups,
    groups: &[&Group],
    layers: &[Layer],
    (by, calibrator): (Score, Option<&dyn Calibrator>),
    cx: &Context,
) -> Result<Vec<Vec<f64>>> {
    if let (Score::Solved, Some(calibrator)) = (by, calibrator) {
        return solved(g, all, groups, layers, calibrator, cx);
    }
    let made = |l: &Layer| Some((l.weight, l.axes.output));
    let of = |group: &&Group| {
        let mut sums = vec![0.0; group.units.len()];
        for (weight, axis, sets) in sets(all, group, layers, made) {
            let Some(t) = g.constant(weight.into()) else { continue };
            let rows = rows(t, axis);
            let measure: Vec<f64> = match by {
                Score::L1 => rows.iter().map(|row| row.iter().map(|v| v.abs()).sum()).collect(),
                Score::L2 | Score::Solved => rows.iter().map(|row| row.iter().map(|v| v * v).sum()).collect(),
                Score::Median => distances(&rows),
            };
            for (sum, set) in sums.iter_mut().zip(&sets) {
                *sum += set.iter().map(|i| measure[*i]).sum::<f64>();
            }
        }
        if matches!(by, Score::L2 | Score::Solved) {
            sums.iter_mut().for_each(|s| *s = s.sqrt());
        }
        let mean = sums.iter().sum::<f64>() / sums.len().max(1) as f64;
        sums.iter_mut().for_each(|s| *s /= mean.max(f64::MIN_POSITIVE));
        sums
    };
    Ok(groups.iter().map(of).collect())
}

fn solved(
    g: &Graph,
    all: &Groups,
    groups: &[&Group],
    layers: &[Layer],
    calibrator: &dyn Calibrator,
    cx: &Context,
) -> Result<Vec<Vec<f64>>> {
    let read = |l: &Layer| Some((l.weight, Layout::of(g, l)?.input_axis()));
    let found: Vec<Vec<_>> = groups.iter().map(|group| sets(all, group, layers, read)).collect();
    let every = found.iter().flatten().map(|(weight, _, sets)| (*weight, sets.clone())).collect();
    let costs = channel_costs(g, &every, calibrator, cx)?;
    let sum = |(group, found): (&&Group, &Vec<Sets>)| {
        let mut sums = vec![0.0; group.units.len()];
        for of in found.iter().filter_map(|(weight, ..)| costs.get(weight)) {
            sums.iter_mut().zip(of).for_each(|(sum, cost)| *sum += cost);
        }
        sums
    };
    Ok(groups.iter().zip(&found).map(sum).collect())
}

/// The weights with an axis in a group, as `axis` says which: and of that axis, which indices belong to each unit.
fn sets(all: &Groups, group: &Group, layers: &[Layer], axis: impl Fn(&Layer) -> Option<(NodeId, usize)>) -> Vec<Sets> {
    let mut found: BTreeMap<(NodeId, usize), usize> = BTreeMap::new();
    for (weight, axis) in layers.iter().filter_map(axis) {
        if let Some(place) = all.place(weight.into(), axis).filter(|place| group.places.contains(place)) {
            found.insert((weight, axis), place);
        }
    }
    let of = |((weight, axis), place): ((NodeId, usize), usize)| {
        let sets = group.units.iter().map(|unit| {
            let members = unit.members.iter().filter(|(p, _)| *p == place);
            members.flat_map(|(_, indices)| indices.iter().copied()).collect()
        });
        (weight, axis, sets.collect())
    };
    found.into_iter().map(of).collect()
}

/// The elements of a weight at each index of an axis.
fn rows(t: &Tensor, axis: usize) -> Vec<Vec<f64>> {
    let shape = t.shape();
    let inner: usize = shape[axis + 1..].iter().product();
    let mut rows = vec![vec![]; shape[axis]];
    for (i, v) in t.as_f32().unwrap_or_default().iter().enumerate() {
        rows[i / inner % shape[axis]].push(f64::from(*v));
    }
    rows
}

/// The sum of the distances of each row to all others.
fn distances(rows: &[Vec<f64>]) -> Vec<f64> {
    let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    rows.iter().map(|a| rows.iter().map(|b| far(a, b)).sum()).collect()
}
