//! How much channels matter: a number for each unit of each group, comparable between groups. The lowest go first.

use super::{
    groups::{Group, Groups, Unit},
    layout::Layout,
    reconstruct::{channel_costs, only},
};
use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    pass::Context,
    tensor::Tensor,
    verify::verify,
};
use std::collections::{BTreeMap, BTreeSet};

/// What a channel's importance is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// The sum of the magnitudes of the weights that make it (Li et al. 2017).
    L1,
    /// The norm of the weights that make it.
    L2,
    /// How far the weights that make it are from those of the others of its group (geometric median, He et al. 2019).
    Median,
    /// The scale that a BatchNormalization of the original gave it (network slimming, Liu et al. 2017); where there is none, as
    /// [`Score::L1`].
    Scale,
    /// How large the values are that others read of it, on calibration data.
    Activation,
    /// How much the loss on labels feels the weights that make it (first-order Taylor expansion, Molchanov et al. 2019).
    Taylor,
    /// What the layers that read it lose in their outputs on calibration data when their other weights make up for it
    /// (the optimal brain surgeon, Hassibi and Stork 1993, for whole channels).
    Solved,
}

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
    pub fn scores(&self, by: Score, cx: &Context) -> Result<Vec<Vec<f64>>> {
        let plain = |v: f64| v;
        Ok(match by {
            Score::L1 => self.comparable(&self.of_weights(magnitudes), plain),
            Score::L2 => self.comparable(&self.of_weights(squares), f64::sqrt),
            Score::Median => self.comparable(&self.of_weights(distances), plain),
            Score::Scale => self.comparable(&self.scales(cx)?, plain),
            Score::Activation => self.comparable(&self.activations(cx)?, f64::sqrt),
            Score::Taylor => self.comparable(&self.felt(cx)?, plain),
            Score::Solved => self.solved(cx)?,
        })
    }

    /// Adds up what was measured of the indices of each unit, in parts of the mean of its group.
    fn comparable(&self, measured: &Measures, root: impl Fn(f64) -> f64) -> Vec<Vec<f64>> {
        let of = |group: &&Group| {
            let part = |(place, indices): &(usize, Vec<usize>)| {
                measured.get(place).map_or(0.0, |m| indices.iter().map(|i| m[*i]).sum())
            };
            let units = group.units.iter().map(|unit| root(unit.members.iter().map(part).sum()));
            let units: Vec<f64> = units.collect();
            let mean = units.iter().sum::<f64>() / units.len().max(1) as f64;
            units.into_iter().map(|s| s / mean.max(f64::MIN_POSITIVE)).collect()
        };
        self.groups.iter().map(of).collect()
    }

    /// The weights of the layers, each once, and the places of their output channels.
    fn made(&self) -> BTreeMap<NodeId, (usize, usize)> {
        let place = |l: &Layer| Some((l.weight, (self.all.place(l.weight.into(), l.axes.output)?, l.axes.output)));
        self.all.layers.iter().filter_map(place).collect()
    }

    fn of_weights(&self, measure: impl Fn(&[Vec<f64>]) -> Vec<f64>) -> Measures {
        let of = |(weight, (place, axis)): (NodeId, (usize, usize))| {
            let t = self.g.constant(weight.into())?;
            let values: Vec<f64> = t.as_f32()?.iter().map(|v| f64::from(*v)).collect();
            Some((place, measure(&rows(t.shape(), &values, axis))))
        };
        self.made().into_iter().filter_map(of).collect()
    }

    /// What the BatchNormalizations of the original gave the channels of values that are still there.
    fn scales(&self, cx: &Context) -> Result<Measures> {
        let original = cx.original.ok_or_else(|| Error::bug("the original is not at hand"))?;
        let ports: BTreeMap<&str, Port> = (self.g.operators())
            .flat_map(|node| {
                self.g.node(node).outputs.iter().enumerate().map(move |(slot, v)| (v, Port { node, slot }))
            })
            .map(|(value, port)| (&value.name[..], port))
            .collect();
        let of = |node: NodeId| {
            matches!(original.op(node), Op::BatchNorm(_)).then_some(())?;
            let scale = original.constant(original.operand(node, 1)?)?.as_f32()?;
            // What it is folded into keeps the name of the result.
            let port = ports.get(&original.value(node.into()).name[..])?;
            Some((self.all.place(*port, 1)?, scale.iter().map(|v| f64::from(v.abs())).collect()))
        };
        let mut scales: Measures = original.operators().filter_map(of).collect();
        if scales.is_empty() {
            let why = "no channel of the model is scaled by a BatchNormalization";
            return Err(Error::unsupported(why).help("choose by other than --channels-by scale"));
        }
        // Of channels that an earlier cut left, the original doesn't say which they are.
        scales.retain(|place, scale: &mut Vec<f64>| self.all.places[*place].size == scale.len());
        // Of a group without any, the weights have to tell.
        let scaled = self.groups.iter().filter(|group| group.places.iter().any(|place| scales.contains_key(place)));
        let scaled: BTreeSet<usize> = scaled.flat_map(|group| group.places.iter().copied()).collect();
        let others = self.of_weights(magnitudes).into_iter().filter(|(place, _)| !scaled.contains(place));
        Ok(others.chain(scales).collect())
    }

    /// The mean square of what layers read of each channel.
    fn activations(&self, cx: &Context) -> Result<Measures> {
        let calibrator = cx.calibrator.ok_or_else(|| Error::bug("there is no calibration data"))?;
        let mut read: BTreeMap<usize, Port> = BTreeMap::new();
        for l in &self.all.layers {
            let Some(port) = self.g.operand(l.node, 0) else { continue };
            let axes = 0..self.g.fact(port).rank().unwrap_or(0);
            read.extend(axes.filter_map(|axis| self.all.place(port, axis)).map(|place| (place, port)));
        }
        let ports: Vec<Port> = read.values().copied().collect();
        let graph = only(self.g, &ports);
        let mut sums: Measures = read.keys().map(|place| (*place, vec![0.0; self.all.places[*place].size])).collect();
        let samples = calibrator.samples().max(1) as f64;
        calibrator.run(&[&verify(&graph)?], &mut |made| {
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

    /// How much the loss feels the weights that make each channel.
    fn felt(&self, cx: &Context) -> Result<Measures> {
        let trainer = cx.trainer.ok_or_else(|| Error::bug("there is nothing to train on"))?;
        let made = self.made();
        let weights: Vec<NodeId> = made.keys().copied().collect();
        let mut measured = Measures::new();
        for weight in trainer.felt(self.g, &weights)? {
            let (place, axis) = made[&weight.node];
            let shape = self.g.constant(weight.node.into()).map(Tensor::shape).unwrap_or_default();
            let felt: Vec<f64> = weight.felt.iter().map(|v| f64::from(*v)).collect();
            measured.insert(place, rows(shape, &felt, axis).iter().map(|row| row.iter().sum()).collect());
        }
        Ok(measured)
    }

    fn solved(&self, cx: &Context) -> Result<Vec<Vec<f64>>> {
        let read = |l: &Layer| {
            let place = self.all.place(l.weight.into(), Layout::of(self.g, l)?.input_axis())?;
            Some((l.weight, place))
        };
        // A weight has one axis of inputs, which is in one group.
        let read: BTreeMap<NodeId, usize> = self.all.layers.iter().filter_map(read).collect();
        let sets = |group: &&Group| -> BTreeMap<NodeId, Vec<Vec<usize>>> {
            let within = read.iter().filter(|(_, place)| group.places.contains(place));
            let sets = |place: usize| {
                let of = |unit: &Unit| {
                    let members = unit.members.iter().filter(|(p, _)| *p == place);
                    members.flat_map(|(_, indices)| indices.iter().copied()).collect()
                };
                group.units.iter().map(of).collect()
            };
            within.map(|(weight, place)| (*weight, sets(*place))).collect()
        };
        let found: Vec<_> = self.groups.iter().map(sets).collect();
        let every = found.iter().flatten().map(|(weight, sets)| (*weight, sets.clone())).collect();
        let calibrator = cx.calibrator.ok_or_else(|| Error::bug("there is no calibration data"))?;
        let costs = channel_costs(self.g, &every, calibrator, cx)?;
        let sum = |(group, found): (&&Group, &BTreeMap<NodeId, _>)| {
            let mut sums = vec![0.0; group.units.len()];
            for of in found.keys().filter_map(|weight| costs.get(weight)) {
                sums.iter_mut().zip(of).for_each(|(sum, cost)| *sum += cost);
            }
            sums
        };
        Ok(self.groups.iter().zip(&found).map(sum).collect())
    }
}

/// The elements at each index of an axis.
fn rows(shape: &[usize], values: &[f64], axis: usize) -> Vec<Vec<f64>> {
    let inner: usize = shape[axis + 1..].iter().product();
    let mut rows = vec![vec![]; shape[axis]];
    for (i, v) in values.iter().enumerate() {
        rows[i / inner % shape[axis]].push(*v);
    }
    rows
}

fn magnitudes(rows: &[Vec<f64>]) -> Vec<f64> {
    rows.iter().map(|row| row.iter().map(|v| v.abs()).sum()).collect()
}

fn squares(rows: &[Vec<f64>]) -> Vec<f64> {
    rows.iter().map(|row| row.iter().map(|v| v * v).sum()).collect()
}

/// The sum of the distances of each row to all others.
fn distances(rows: &[Vec<f64>]) -> Vec<f64> {
    let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
    rows.iter().map(|a| rows.iter().map(|b| far(a, b)).sum()).collect()
}
