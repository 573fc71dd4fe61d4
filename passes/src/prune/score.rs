//! How much channels matter: a number for each unit of each group, comparable between groups. The lowest go first.

use super::{
    cut::{CHANNELS, is_contracted},
    groups::{Group, Groups, SizedAxis, Unit},
    reconstruct::channel_costs,
};
use crate::{layers::Layer, weight_matrix::WeightMatrix};
use compress_compiler::{
    choice,
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    part::only,
    pass::Context,
    tensor::Tensor,
    verify::verify,
    words::option::CHANNELS_BY,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a channel's importance is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelSaliency {
    /// The sum of the magnitudes of the weights that make it (Li et al. 2017).
    L1,
    /// The norm of the weights that make it.
    L2,
    /// How far the weights that make it are from those of the others of its group (geometric median, He et al. 2019).
    Median,
    /// The scale that a BatchNormalization of the original gave it (network slimming, Liu et al. 2017); where there is none, as
    /// [`ChannelSaliency::L1`].
    Scale,
    /// How large the values are that others read of it, on calibration data.
    Activation,
    /// The effect of its weights on the loss on labels (first-order Taylor expansion, Molchanov et al. 2019).
    Taylor,
    /// What the layers that read it lose in their outputs on calibration data when their other weights make up for it
    /// (the optimal brain surgeon, Hassibi and Stork 1993, for whole channels).
    Obs,
}

choice!(ChannelSaliency, "saliency of channels", [
    Obs "reconstruct" "the error on data that remains when the layers that read the channel compensate for it",
    L1 "l1" "the L1 norm of its weights",
    L2 "l2" "the L2 norm of its weights",
    Median "median" "the distance of its weights to those of other channels",
    Scale "scale" "its scale in BatchNormalization",
    Activation "activation" "the root mean square of its values on data",
    Taylor "taylor" "the effect of its weights on the loss (needs labels)",
]);

/// A measure of each index of a place, by the number of the place.
type Measures = BTreeMap<usize, Vec<f64>>;

/// The groups that are scored, and what they are groups of.
pub struct Scored<'a> {
    /// The graph.
    pub g: &'a Graph,
    /// All of its groups.
    pub all: &'a Groups,
    /// Those of which units may go.
    pub groups: &'a [&'a Group],
}

impl Scored<'_> {
    /// The scores of the units of each group.
    ///
    /// # Errors
    /// Unsupported or data when a model or its data doesn't have what is asked for; whatever running the graph can raise; interrupted.
    pub fn scores(&self, by: ChannelSaliency, cx: &Context) -> Result<Vec<Vec<f64>>> {
        let plain = |v: f64| v;
        Ok(match by {
            ChannelSaliency::L1 => self.comparable(&self.of_weights(f64::abs), plain),
            ChannelSaliency::L2 => self.comparable(&self.of_weights(square), f64::sqrt),
            ChannelSaliency::Median => self.comparable(&self.distances(cx)?, plain),
            ChannelSaliency::Scale => self.comparable(&self.scales()?, plain),
            ChannelSaliency::Activation => self.comparable(&self.activations(cx)?, f64::sqrt),
            ChannelSaliency::Taylor => self.comparable(&self.saliency(cx)?, plain),
            ChannelSaliency::Obs => self.solved(cx)?,
        })
    }

    /// Adds up what was measured of the indices of each unit, in parts of the mean of each place and then of the group: a place
    /// with more weights does not count for more.
    fn comparable(&self, measured: &Measures, root: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
        let means: BTreeMap<usize, f64> = measured.iter().map(|(place, m)| (*place, mean(m))).collect();
        let of = |group: &&Group| {
            let part = |(place, indices): &(usize, Vec<usize>)| {
                let sum = |m: &Vec<f64>| indices.iter().map(|i| m[*i]).sum::<f64>() / means[place];
                measured.get(place).map_or(0.0, sum)
            };
            let units: Vec<f64> = group.units.iter().map(|unit| root(unit.members.iter().map(part).sum())).collect();
            let mean = mean(&units);
            units.into_iter().map(|s| s / mean).collect()
        };
        self.groups.iter().map(of).collect()
    }

    /// The weights of the layers, each once, and the places of their output channels.
    fn made(&self) -> BTreeMap<NodeId, (usize, usize)> {
        let place = |l: &Layer| Some((l.weight, (self.all.place(l.weight.into(), l.axes.output)?, l.axes.output)));
        self.all.layers.iter().filter_map(place).collect()
    }

    fn of_weights(&self, measure: impl Fn(f64) -> f64) -> Measures {
        let of = |(weight, (place, axis)): (NodeId, (usize, usize))| {
            let t = self.g.constant(weight.into())?;
            Some((place, sums(t.shape(), &t.as_f32()?, axis, &measure)))
        };
        self.made().into_iter().filter_map(of).collect()
    }

    /// How far the weights of each channel are from those of others.
    fn distances(&self, cx: &Context) -> Result<Measures> {
        let mut measured = Measures::new();
        for (weight, (place, axis)) in self.made() {
            if let Some(t) = self.g.constant(weight.into())
                && let Some(values) = t.as_f32()
            {
                measured.insert(place, distances(&rows(t.shape(), &values, axis), cx)?);
            }
        }
        Ok(measured)
    }

    /// The scales of channels in BatchNormalizations, in the graph or folded into its layers.
    fn scales(&self) -> Result<Measures> {
        let scale = |(number, place): (usize, &SizedAxis)| {
            let folded = self.g.value(place.port).channel_scale.clone();
            let scale = folded.or_else(|| match self.g.op(place.port.node) {
                Op::BatchNorm(_) => Some(self.g.constant(self.g.operand(place.port.node, 1)?)?.as_f32()?.into()),
                _ => None,
            })?;
            let is_whole = place.axis == CHANNELS && scale.len() == place.size;
            is_whole.then(|| (number, scale.iter().map(|v| f64::from(v.abs())).collect()))
        };
        let scales: Measures = self.all.places.iter().enumerate().filter_map(scale).collect();
        if scales.is_empty() {
            let why = "no channel of the model is scaled by a BatchNormalization";
            return Err(Error::unsupported(why).help(format!("choose by other than {CHANNELS_BY} scale")));
        }
        // Of a group without any, the weights have to tell.
        let scaled = self.groups.iter().filter(|group| group.places.iter().any(|place| scales.contains_key(place)));
        let scaled: BTreeSet<usize> = scaled.flat_map(|group| group.places.iter().copied()).collect();
        let others = self.of_weights(f64::abs).into_iter().filter(|(place, _)| !scaled.contains(place));
        Ok(others.chain(scales).collect())
    }

    /// The mean square of what layers read of each channel, or of what they make where none reads it.
    fn activations(&self, cx: &Context) -> Result<Measures> {
        let calibrator = cx.calibrator.ok_or_else(|| Error::bug("there is no calibration data"))?;
        let mut seen: BTreeMap<usize, Port> = BTreeMap::new();
        for group in self.groups {
            let read = self.all.readers(group).filter_map(|l| self.g.operand(l.node, 0));
            let made = self.all.makers(group).map(|l| Port::from(l.node));
            let mut ports: Vec<Port> = read.collect();
            if ports.is_empty() {
                ports.extend(made);
            }
            for port in ports {
                let axes = 0..self.g.fact(port).rank().unwrap_or(0);
                seen.extend(axes.filter_map(|axis| self.all.place(port, axis)).map(|place| (place, port)));
            }
        }
        let ports: Vec<Port> = seen.values().copied().collect();
        let graph = only(self.g, &ports);
        let mut sums: Measures = seen.keys().map(|place| (*place, vec![0.0; self.all.places[*place].size])).collect();
        let samples = calibrator.samples().max(1) as f64;
        calibrator.run(&[&verify(&graph)?], calibrator.samples(), &mut |made| {
            for ((place, sums), values) in sums.iter_mut().zip(&made[0]) {
                let Some(x) = values.as_f32() else { continue };
                let inner: usize = values.shape()[self.all.places[*place].axis + 1..].iter().product();
                let (size, share) = (sums.len(), 1.0 / (samples * inner as f64));
                x.iter().enumerate().for_each(|(i, v)| sums[i / inner % size] += share * f64::from(v * v));
            }
            cx.check()
        })?;
        Ok(sums)
    }

    /// The effect of the weights of each channel on the loss.
    fn saliency(&self, cx: &Context) -> Result<Measures> {
        let trainer = cx.trainer.ok_or_else(|| Error::bug("there is nothing to train on"))?;
        let made = self.made();
        let weights: Vec<NodeId> = made.keys().copied().collect();
        let mut measured = Measures::new();
        for weight in trainer.saliency(self.g, &weights)? {
            let (place, axis) = made[&weight.node];
            let shape = self.g.constant(weight.node.into()).map(Tensor::shape).unwrap_or_default();
            measured.insert(place, sums(shape, &weight.saliency, axis, f64::from));
        }
        Ok(measured)
    }

    fn solved(&self, cx: &Context) -> Result<Vec<Vec<f64>>> {
        let read = |l: &Layer| {
            let place = self.all.place(l.weight.into(), WeightMatrix::of(self.g, l)?.input_axis())?;
            Some((l.weight, place))
        };
        // A weight has one axis of inputs, which is in one group.
        let read = |group: &&Group| self.all.readers(group).filter_map(read).collect::<BTreeMap<NodeId, usize>>();
        let read: Vec<BTreeMap<NodeId, usize>> = self.groups.iter().map(read).collect();
        let mut sets = BTreeMap::new();
        for (group, read) in self.groups.iter().zip(&read) {
            for (weight, place) in read {
                sets.insert(*weight, group.units.iter().map(|unit| indices(unit, *place)).collect());
            }
        }
        let calibrator = cx.calibrator.ok_or_else(|| Error::bug("there is no calibration data"))?;
        let find = || channel_costs(self.g, &sets, calibrator, cx);
        let costs = cx.known(self.g, format!("costs of {sets:?}"), find)?;
        let sum = |(group, read): (&&Group, &BTreeMap<NodeId, usize>)| {
            let mut sums = vec![0.0; group.units.len()];
            let mut add = |of: &[f64]| sums.iter_mut().zip(of).for_each(|(sum, cost)| *sum += cost);
            read.keys().filter_map(|weight| costs.get(weight)).for_each(|of| add(of));
            // What no layer reads has a share of the weights that it is multiplied by, or of those that make it.
            let others = self.multiplied(group, read);
            let makers = || self.all.makers(group).filter_map(|l| self.all.place(l.weight.into(), l.axes.output));
            let others = if read.is_empty() && others.is_empty() { makers().collect() } else { others };
            others.into_iter().for_each(|place| add(&self.energy(group, place)));
            sums
        };
        Ok(self.groups.iter().zip(&read).map(sum).collect())
    }

    /// The places of a group on constants that multiply its channels and are not weights of layers in `read`.
    fn multiplied(&self, group: &Group, read: &BTreeMap<NodeId, usize>) -> Vec<usize> {
        let multiplies = |place: &usize| {
            let SizedAxis { port, axis, .. } = self.all.places[*place];
            !read.contains_key(&port.node) && self.g.constant(port).is_some() && is_contracted(self.g, port, axis)
        };
        group.places.iter().copied().filter(multiplies).collect()
    }

    /// The share of the squares of a constant that each unit of a group has.
    fn energy(&self, group: &Group, place: usize) -> Vec<f64> {
        let SizedAxis { port, axis, .. } = self.all.places[place];
        let Some((t, values)) = self.g.constant(port).and_then(|t| Some((t, t.as_f32()?))) else { return vec![] };
        let of = sums(t.shape(), &values, axis, square);
        let whole = of.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        let share = |unit: &Unit| indices(unit, place).into_iter().map(|i| of[i]).sum::<f64>() / whole;
        group.units.iter().map(share).collect()
    }
}

/// The indices of a place that belong to a unit.
fn indices(unit: &Unit, place: usize) -> Vec<usize> {
    unit.members.iter().filter(|(p, _)| *p == place).flat_map(|(_, indices)| indices.iter().copied()).collect()
}

fn square(v: f64) -> f64 {
    v * v
}

/// At least the least positive number, to divide by.
fn mean(values: &[f64]) -> f64 {
    (values.iter().sum::<f64>() / values.len().max(1) as f64).max(f64::MIN_POSITIVE)
}

/// The sum of a measure over the elements at each index of an axis.
fn sums(shape: &[usize], values: &[f32], axis: usize, measure: impl Fn(f64) -> f64) -> Vec<f64> {
    let inner: usize = shape[axis + 1..].iter().product();
    let mut sums = vec![0.0; shape[axis]];
    for (i, chunk) in values.chunks(inner.max(1)).enumerate() {
        sums[i % shape[axis]] += chunk.iter().map(|v| measure(f64::from(*v))).sum::<f64>();
    }
    sums
}

/// The elements at each index of an axis.
fn rows(shape: &[usize], values: &[f32], axis: usize) -> Vec<Vec<f32>> {
    let inner: usize = shape[axis + 1..].iter().product();
    let mut rows = vec![vec![]; shape[axis]];
    for (i, chunk) in values.chunks(inner.max(1)).enumerate() {
        rows[i % shape[axis]].extend_from_slice(chunk);
    }
    rows
}

/// Rows to which distances are summed, at most: evenly spaced where there are more.
const NEIGHBOURS: usize = 256;

/// The sum of the distances of each row to others.
fn distances(rows: &[Vec<f32>], cx: &Context) -> Result<Vec<f64>> {
    let far = |a: &[f32], b: &[f32]| f64::from(a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f32>()).sqrt();
    let others: Vec<&Vec<f32>> = rows.iter().step_by(rows.len().div_ceil(NEIGHBOURS).max(1)).collect();
    let of = |a: &Vec<f32>| {
        cx.check()?;
        Ok(others.iter().map(|b| far(a, b)).sum())
    };
    rows.iter().map(of).collect()
}
