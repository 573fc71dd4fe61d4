//! Channels that go: what stays of every axis, what the model costs then, and the surgery.

use super::groups::{Groups, SizedAxis, Unit};
use compress_compiler::{
    axes::{Axis, Flow, Kept, Tie},
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Value},
    op::{Inputs, Operator},
    tensor::{DType, Tensor},
    value::{Dim, Fact},
};
use std::collections::{BTreeMap, BTreeSet};

/// Places, by their numbers, and how many of their indices stay.
pub type Sizes = Vec<(usize, usize)>;

/// The axis along which BatchNormalization scales.
pub const CHANNELS: usize = 1;

/// A choice of units to remove.
#[derive(Clone)]
pub struct Cut<'a> {
    groups: &'a Groups,
    /// Of each place that loses indices, which stay.
    keep: BTreeMap<usize, Vec<bool>>,
}

impl<'a> Cut<'a> {
    /// Nothing goes.
    pub fn new(groups: &'a Groups) -> Self {
        Self { groups, keep: BTreeMap::new() }
    }

    /// Removes a unit, unless an axis would lose its last index. Says whether it did.
    pub fn remove(&mut self, unit: &Unit) -> bool {
        let left = |place: usize| match self.keep.get(&place) {
            Some(keep) => keep.iter().filter(|k| **k).count(),
            None => self.groups.places[place].size,
        };
        if unit.members.iter().any(|(place, indices)| left(*place) <= indices.len()) {
            return false;
        }
        for (place, indices) in &unit.members {
            let size = self.groups.places[*place].size;
            let keep = self.keep.entry(*place).or_insert_with(|| vec![true; size]);
            indices.iter().for_each(|i| keep[*i] = false);
        }
        true
    }

    /// Puts a unit back that was removed.
    pub fn put_back(&mut self, unit: &Unit) {
        for (place, indices) in &unit.members {
            if let Some(keep) = self.keep.get_mut(place) {
                indices.iter().for_each(|i| keep[*i] = true);
            }
        }
    }

    /// Whether a unit goes.
    pub fn removes(&self, unit: &Unit) -> bool {
        let goes = |(place, indices): &(usize, Vec<usize>)| self.keep.get(place).is_some_and(|k| !k[indices[0]]);
        unit.members.first().is_some_and(goes)
    }

    /// The places that lose indices, and how many stay of each: what its cost depends on.
    pub fn sizes(&self) -> Sizes {
        let size = |(place, keep): (&usize, &Vec<bool>)| (*place, keep.iter().filter(|k| **k).count());
        self.keep.iter().filter(|(_, keep)| keep.contains(&false)).map(size).collect()
    }

    /// The indices that stay of a place, if any goes.
    pub fn kept(&self, place: usize) -> Option<Vec<usize>> {
        let keep = self.keep.get(&place).filter(|keep| keep.contains(&false))?;
        Some((0..keep.len()).filter(|i| keep[*i]).collect())
    }

    /// The places that lose indices, and what stays of them.
    fn changed(&self) -> impl Iterator<Item = (Port, usize, Vec<usize>)> + '_ {
        self.keep.keys().filter_map(|place| {
            let at = self.groups.places[*place];
            Some((at.port, at.axis, self.kept(*place)?))
        })
    }

    /// What stays of the axes of a node.
    pub fn of(&self, g: &Graph, node: NodeId) -> Kept {
        let mut kept = Kept::default();
        let operands = g.operands(node).into_iter().enumerate().filter_map(|(slot, p)| Some((p?, slot, true)));
        let results = (0..g.node(node).outputs.len()).map(|slot| (Port { node, slot }, slot, false));
        for (port, slot, operand) in operands.chain(results) {
            for axis in 0..g.fact(port).rank().unwrap_or(0) {
                if let Some(indices) = self.groups.place(port, axis).and_then(|place| self.kept(place)) {
                    kept.insert(if operand { Axis::In(slot, axis) } else { Axis::Out(slot, axis) }, indices);
                }
            }
        }
        kept
    }

    /// What is known of the operands and the results of a node then, and what stays of their axes.
    fn facts(&self, g: &Graph, node: NodeId) -> (Kept, Vec<Option<Fact>>, Vec<Fact>) {
        let kept = self.of(g, node);
        let operand =
            |(slot, port): (usize, Option<Port>)| Some(narrow(g.fact(port?), |axis| kept.count(Axis::In(slot, axis))));
        let operands = g.operands(node).into_iter().enumerate().map(operand).collect();
        let result = |(slot, v): (usize, &Value)| narrow(&v.fact, |axis| kept.count(Axis::Out(slot, axis)));
        let results = g.node(node).outputs.iter().enumerate().map(result).collect();
        (kept, operands, results)
    }

    /// The multiply-accumulates of a node then.
    pub fn macs(&self, g: &Graph, node: NodeId) -> u64 {
        let (kept, mut operands, results) = self.facts(g, node);
        if kept.is_empty() {
            return g.macs(node);
        }
        let Ok(narrowed) = g.channel_slice(node, &kept) else { return g.macs(node) };
        for (slot, tensor) in &narrowed.operands {
            if let Some(fact) = operands.get_mut(*slot) {
                *fact = Some(Fact::of(tensor));
            }
        }
        let operands: Vec<Option<&Fact>> = operands.iter().map(Option::as_ref).collect();
        narrowed.op.as_ref().unwrap_or(g.op(node)).macs(&Inputs(&operands), &results.iter().collect::<Vec<_>>())
    }

    /// What the cost of a node depends on then, in words.
    pub fn shape(&self, g: &Graph, node: NodeId) -> String {
        let (_, operands, results) = self.facts(g, node);
        let shapes = operands.iter().flatten().chain(&results).map(Fact::to_string).collect::<Vec<_>>();
        format!("{} {}", g.op(node).op_type(), shapes.join(" "))
    }

    /// The elements of a constant then.
    pub fn elements(&self, g: &Graph, constant: NodeId) -> u64 {
        let Some(t) = g.constant(constant.into()) else { return 0 };
        let left = |axis: usize| self.groups.place(constant.into(), axis).and_then(|place| self.kept(place));
        let sizes = t.shape().iter().enumerate().map(|(axis, n)| left(axis).map_or(*n, |kept| kept.len()));
        sizes.product::<usize>() as u64
    }

    /// Zeroes what goes in the weights of layers, and in all others that multiply it. Returns, of the layers that lose input
    /// channels, which elements of their weights stay.
    pub fn mask(&self, g: &mut Graph) -> BTreeMap<NodeId, Vec<bool>> {
        let output: BTreeMap<NodeId, usize> = self.groups.layers.iter().map(|l| (l.weight, l.axes.output)).collect();
        let mut masks: BTreeMap<NodeId, Vec<bool>> = BTreeMap::new();
        let mut read = BTreeSet::new();
        for (place, stays) in &self.keep {
            let SizedAxis { port, axis, size } = self.groups.places[*place];
            let Some(t) = g.constant(port) else { continue };
            if !output.contains_key(&port.node) && !is_contracted(g, port, axis) {
                continue;
            }
            let inner: usize = t.shape()[axis + 1..].iter().product();
            let keep = masks.entry(port.node).or_insert_with(|| vec![true; t.len()]);
            keep.iter_mut().enumerate().for_each(|(i, k)| *k &= stays[i / inner % size]);
            if output.get(&port.node).is_some_and(|output| *output != axis) {
                read.insert(port.node);
            }
        }
        for (weight, keep) in &masks {
            let Some(t) = g.constant((*weight).into()).filter(|t| t.dtype() == DType::F32) else { continue };
            let values = t.as_f32().unwrap_or_default();
            let values: Vec<f32> = values.iter().zip(keep).map(|(v, k)| if *k { *v } else { 0.0 }).collect();
            let masked = Tensor::f32(t.shape(), &values);
            g.set_constant(*weight, masked);
        }
        masks.retain(|weight, _| read.contains(weight));
        masks
    }

    /// The nodes that lose indices of an operand or a result.
    pub fn nodes(&self, g: &Graph) -> BTreeSet<NodeId> {
        let around = |port: Port| g.uses(port).into_iter().map(|u| u.node).chain([port.node]);
        self.changed().flat_map(|(port, ..)| around(port).collect::<Vec<_>>()).collect()
    }

    /// Removes the indices: weights are sliced, sizes that operators keep follow, and shapes are inferred anew.
    ///
    /// # Errors
    /// A bug where an operator's axes_map was wrong, or what memory allows.
    pub fn apply(&self, g: &mut Graph) -> Result<()> {
        let mut narrowed = vec![];
        for node in self.nodes(g) {
            narrowed.push((node, g.channel_slice(node, &self.of(g, node))?));
        }
        for (port, axis, kept) in self.changed() {
            if let Some(t) = g.constant(port) {
                let sliced = sliced(t, axis, &kept)?;
                g.set_constant(port.node, sliced);
            } else {
                // Inference fills what it can't tell with what was known.
                let fact = narrow(g.fact(port), |i| (i == axis).then_some(kept.len()));
                g.set_fact(port, fact);
                let scale = g.value(port).channel_scale.as_ref().filter(|_| axis == CHANNELS);
                if let Some(scale) = scale.and_then(|s| kept.iter().map(|i| s.get(*i).copied()).collect()) {
                    g.set_channel_scale(port, scale);
                }
            }
        }
        for (node, change) in narrowed {
            if let Some(op) = change.op {
                g.set_op(node, op);
            }
            for (slot, tensor) in change.operands {
                let old = g.operand(node, slot);
                let name =
                    old.map_or_else(|| format!("{}_{slot}", g.node(node).display_name()), |p| g.value(p).name.clone());
                match old.filter(|p| g.constant(*p).is_some() && g.only_use(*p).is_some()) {
                    Some(own) => g.set_constant(own.node, tensor),
                    None => {
                        let name = g.fresh(&name);
                        let constant = g.add_constant(&name, tensor);
                        g.set_operand(node, slot, Some(constant.into()));
                    }
                }
            }
        }
        g.infer_all()?;
        for (port, axis, kept) in self.changed() {
            let size = g.fact(port).dims().and_then(|d| d.get(axis)).and_then(Dim::known);
            if size != Some(kept.len() as i64) {
                let what = format!("axis {axis} of `{}` should have kept {} indices", g.value(port).name, kept.len());
                return Err(Error::bug(format!("{what}, and has {size:?}")));
            }
        }
        Ok(())
    }
}

/// Whether an operator sums over an axis of a constant.
pub(super) fn is_contracted(g: &Graph, constant: Port, axis: usize) -> bool {
    let sums = |tie: &Tie| tie.len() > 1 && tie.iter().all(|(axis, _)| matches!(axis, Axis::In(..)));
    g.uses(constant).iter().any(|u| match g.axes_map(u.node, Axis::In(u.slot, axis)) {
        Flow::Tied(tie) => sums(&tie),
        Flow::Either(_) | Flow::Closed(_) => false,
    })
}

/// A fact with other sizes where `left` says so.
fn narrow(fact: &Fact, left: impl Fn(usize) -> Option<usize>) -> Fact {
    let shape = fact.dims().map(|dims| {
        let size = |(axis, dim): (usize, &Dim)| left(axis).map_or_else(|| dim.clone(), Dim::from);
        dims.iter().enumerate().map(size).collect()
    });
    Fact::new(fact.dtype, shape)
}

/// The tensor with only `kept` of the indices of `axis`.
fn sliced(t: &Tensor, axis: usize, kept: &[usize]) -> Result<Tensor> {
    let mut shape = t.shape().to_vec();
    let inner = shape[axis + 1..].iter().product::<usize>() * t.dtype().size();
    let row = shape[axis] * inner;
    let outer: usize = shape[..axis].iter().product();
    let bytes = t.bytes();
    let mut out = Vec::with_capacity(outer * kept.len() * inner);
    for o in 0..outer {
        for i in kept {
            out.extend_from_slice(&bytes[o * row + i * inner..][..inner]);
        }
    }
    shape[axis] = kept.len();
    Tensor::new(t.dtype(), shape, out)
}
