//! Which values of a graph become codes, and with which parameters.
//!
//! Activations become codes where an integer kernel reads or writes them: at the input of every
//! layer (Conv, Gemm, MatMul by a constant), at the output of every Conv, and on the way
//! between them through operators that move values (MaxPool, Reshape, ...), join them
//! (Concat) or have an integer kernel of their own (Add, average pools). A Relu or Clip after
//! such an operator is part of its output's range and disappears, if codes end at zero. What
//! leads to no further layer stays in floating point, so a classifier's logits keep their
//! resolution. With [`Placement::LayerInputs`] only what layers read becomes codes, and what leads to it unchanged.

use super::{
    choices::Choices,
    params::Affine,
    scheme::{Codes, Placement, Scheme},
    seen::Reach,
};
use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Use},
    op::{Op, Operator, Quant},
    ops::{binary::Binary, unary::Unary},
    tensor::DType,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Which values are quantised, and how they hang together.
pub(super) struct QuantisedValues {
    /// The layers that become integer.
    pub layers: Vec<Layer>,
    /// The values that become U8.
    pub wanted: BTreeSet<Port>,
    /// Operators between layers that become integer too.
    pub taken: BTreeSet<NodeId>,
    /// Sums of what a convolution makes with what a layer reads as well, which they take in codes.
    pub sums: BTreeSet<NodeId>,
    /// For a wanted value after an activation that its range makes needless: the value before.
    pub before: BTreeMap<Port, Port>,
    /// Values that share their parameters, as a forest.
    parent: HashMap<Port, Port>,
    /// The output and an input of a join: they share parameters where that is sound.
    tied: Vec<(Port, Port)>,
}

/// The range of values that hang together, and the most it may be: where a Relu or Clip was
/// dropped, `[0, high]` does its work.
#[derive(Clone, Copy)]
struct Range {
    low: f32,
    high: f32,
    bounds: (f32, f32),
}

impl Range {
    fn union(self, o: Self) -> Self {
        Self {
            low: self.low.min(o.low),
            high: self.high.max(o.high),
            bounds: (self.bounds.0.max(o.bounds.0), self.bounds.1.min(o.bounds.1)),
        }
    }

    fn is_sound(self) -> bool {
        self.low >= self.bounds.0 && self.high <= self.bounds.1
    }
}

impl QuantisedValues {
    /// The values that make `layers` integer.
    pub(super) fn new(g: &Graph, layers: Vec<Layer>, scheme: &Scheme, choices: &Choices) -> Self {
        let everywhere = scheme.placement == Placement::Kernels;
        let clamps = scheme.activations.codes().clamps();
        let integer: BTreeSet<NodeId> = layers.iter().map(|l| l.node).collect();
        let mut plan = Self {
            layers,
            wanted: BTreeSet::new(),
            taken: BTreeSet::new(),
            sums: BTreeSet::new(),
            before: BTreeMap::new(),
            parent: HashMap::new(),
            tied: vec![],
        };
        let mut queue: Vec<Port> = vec![];
        for l in &plan.layers {
            queue.extend(g.operand(l.node, 0));
            if everywhere && matches!(g.op(l.node), Op::Conv(_)) {
                let after = if clamps { after_activation(g, l.node.into()) } else { l.node.into() };
                queue.push(after);
            }
        }
        while let Some(port) = queue.pop() {
            if g.fact(port).dtype != Some(DType::F32) || !plan.wanted.insert(port) {
                continue;
            }
            let source = if clamps { before_activation(g, port) } else { port };
            let node = source.node;
            let operands: Vec<Port> = g.operands(node).into_iter().flatten().collect();
            let activations: Vec<Port> = operands.iter().copied().filter(|p| is_activation(g, *p)).collect();
            let from_integer = |p: &Port| {
                let source = before_activation(g, *p).node;
                integer.contains(&source)
                    || matches!(g.op(source).quant(), Quant::Same | Quant::Tied | Quant::Arithmetic)
            };
            let take = match g.op(node).quant() {
                Quant::Weighted => integer.contains(&node),
                // ONNX Runtime's fast kernel of MaxPool on codes is for the layout of integer convolutions.
                Quant::Same if everywhere && matches!(g.op(node), Op::Pool(_)) => {
                    source == port && activations.first().is_some_and(from_integer)
                }
                Quant::Same => source == port && activations.first() == operands.first() && !activations.is_empty(),
                Quant::Tied => source == port && activations.len() == operands.len(),
                // An integer kernel pays when an operand comes from one.
                Quant::Arithmetic => {
                    let here = (everywhere || activations.len() == 1) && !choices.sums.contains(&node);
                    here && activations.len() == operands.len() && activations.iter().any(from_integer)
                }
                Quant::Float => false,
            };
            if !take {
                continue;
            }
            if source != port {
                plan.before.insert(port, source);
            }
            match g.op(node).quant() {
                Quant::Weighted | Quant::Float => continue,
                Quant::Same => {
                    plan.join(port, activations[0]);
                    queue.push(activations[0]);
                }
                Quant::Tied => {
                    plan.tied.extend(activations.iter().map(|p| (port, *p)));
                    queue.extend(&activations);
                }
                Quant::Arithmetic => queue.extend(&activations),
            }
            plan.taken.insert(node);
        }
        if !everywhere {
            let is_conv = |p: Port| integer.contains(&p.node) && matches!(g.op(p.node), Op::Conv(_));
            let adds = |n: &NodeId| g.operands(*n).into_iter().flatten().any(is_conv);
            let is_sum = |n: &NodeId| *g.op(*n) == Op::Binary(Binary::Add) && adds(n);
            plan.sums = g.operators().filter(is_sum).collect();
        }
        plan
    }

    fn root(&self, mut p: Port) -> Port {
        while let Some(up) = self.parent.get(&p) {
            p = *up;
        }
        p
    }

    fn join(&mut self, a: Port, b: Port) {
        let (a, b) = (self.root(a), self.root(b));
        if a != b {
            self.parent.insert(a, b);
        }
    }

    /// Parameters of every wanted value: those that hang together cover all their ranges.
    ///
    /// # Errors
    /// Data where calibration reached no value.
    pub(super) fn parameters(
        &mut self,
        g: &Graph,
        ranges: Vec<(Port, Reach)>,
        codes: Codes,
    ) -> Result<HashMap<Port, Affine>> {
        let mut merged: HashMap<Port, Range> = HashMap::new();
        for (port, range) in ranges {
            let Some((low, high)) = range else {
                return Err(Error::data("calibration reached no value of an activation; is the data set empty?"));
            };
            let bounds = if self.before.contains_key(&port) { bounds(g, port.node) } else { (f32::MIN, f32::MAX) };
            // What all readers take for the same needs no codes of its own.
            let (least, most) = heeded(g, port, 0);
            let r = Range { low: low.max(least.min(0.0)), high: high.min(most.max(0.0)), bounds };
            merged.entry(self.root(port)).and_modify(|m| *m = m.union(r)).or_insert(r);
        }
        // A join shares its parameters with an input unless that would undo a dropped Relu or
        // Clip; then the input keeps its own, and the kernel of the join rescales it.
        for (out, input) in std::mem::take(&mut self.tied) {
            let (a, b) = (self.root(out), self.root(input));
            let union = merged[&a].union(merged[&b]);
            if a != b && union.is_sound() {
                self.join(out, input);
                merged.insert(self.root(out), union);
            }
        }
        let affine = |p: &Port| {
            let r = merged[&self.root(*p)];
            (*p, Affine::covering(r.low, r.high, codes))
        };
        Ok(self.wanted.iter().map(affine).collect())
    }
}

fn is_activation(g: &Graph, port: Port) -> bool {
    g.constant(port).is_none() && g.fact(port).dtype == Some(DType::F32)
}

/// The value after the Relu or Clip that alone reads `port`, or `port`.
fn after_activation(g: &Graph, port: Port) -> Port {
    match g.only_use(port) {
        Some(u) if u.slot == 0 && saturates(g, u.node) => u.node.into(),
        _ => port,
    }
}

/// The value before the Relu or Clip that makes `port`, if only that reads it and an
/// integer kernel could make it; else `port`.
fn before_activation(g: &Graph, port: Port) -> Port {
    if !saturates(g, port.node) {
        return port;
    }
    let Some(source) = g.operand(port.node, 0) else { return port };
    let fits = matches!(g.op(source.node).quant(), Quant::Weighted | Quant::Arithmetic);
    if fits && g.only_use(source).is_some() { source } else { port }
}

/// What a Relu or Clip lets through.
fn bounds(g: &Graph, n: NodeId) -> (f32, f32) {
    g.clamps(n).unwrap_or((f32::MIN, f32::MAX))
}

/// Movements that are looked through from a value to the functions that tell its elements apart.
const MOVED: usize = 4;

/// Between which values its readers tell a value's elements apart, `moved` so often already.
pub(super) fn heeded(g: &Graph, port: Port, moved: usize) -> (f32, f32) {
    const ALL: (f32, f32) = (f32::MIN, f32::MAX);
    let uses = g.uses(port);
    let sigmoid = uses.iter().find(|u| *g.op(u.node) == Op::Unary(Unary::Sigmoid)).map(|u| u.node);
    // `x * sigmoid(x)` is as good as zero where the sigmoid is.
    let gated = |u: &Use| {
        let by_itself = *g.op(u.node) == Op::Binary(Binary::Mul)
            && sigmoid.is_some_and(|s| g.operand(u.node, 1 - u.slot) == Some(s.into()));
        by_itself.then_some((g.heeds(sigmoid?)?.0, f32::MAX))
    };
    // What only moves elements, or takes the largest of some, tells as much apart as its readers.
    let passed = |u: &Use| {
        let moves = g.op(u.node).quant() == Quant::Same && g.node(u.node).outputs.len() == 1 && moved < MOVED;
        moves.then(|| heeded(g, u.node.into(), moved + 1))
    };
    let own = |u: &Use| g.heeds(u.node).or_else(|| passed(u));
    let of = |u: &Use| gated(u).or_else(|| (u.slot == 0).then(|| own(u)).flatten()).unwrap_or(ALL);
    match g.is_output(port) || uses.is_empty() {
        true => ALL,
        false if uses.len() == 2 && uses.iter().any(|u| gated(u).is_some()) => {
            uses.iter().find_map(gated).unwrap_or(ALL)
        }
        false => uses.iter().map(of).fold((f32::MAX, f32::MIN), |a, b| (a.0.min(b.0), a.1.max(b.1))),
    }
}

/// Whether a node clamps its input from 0 up, to a constant if to any: what it does, the range of codes does whose least stands for zero
/// does as well.
fn saturates(g: &Graph, n: NodeId) -> bool {
    let constant = |port: &Port| g.constant(*port).is_some();
    g.clamps(n).is_some_and(|(low, _)| low == 0.0) && g.operands(n).iter().flatten().skip(1).all(constant)
}
