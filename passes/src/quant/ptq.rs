//! What is quantised, and with which parameters.
//!
//! Activations become U8 where an integer kernel reads or writes them: at the input of every
//! layer (Conv, Gemm, MatMul by a constant), at the output of every Conv, and on the way
//! between them through operators that move values (MaxPool, Reshape, ...), join them
//! (Concat) or have an integer kernel of their own (Add, average pools). A Relu or Clip after
//! such an operator is part of its output's range and disappears. What leads to no further
//! layer stays in floating point, so a classifier's logits keep their resolution.

use super::{
    observe::{Calibration, Observer},
    params::Affine,
    qdq,
};
use crate::{
    WeightBits,
    layers::{Layer, excluded, layers, obstacle},
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator, Quant},
    ops::unary::Unary,
    part::unreached,
    pass::{Context, Outcome, Pass, Skipped, Training, reasons},
    tensor::DType,
    value::Fact,
    verify::verify,
};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Static quantisation, after training or with it: U8 activations, S8 weights per channel, INT32 biases.
pub struct Int8 {
    /// How activation ranges are chosen.
    pub calibration: Calibration,
    /// Layers to leave in floating point.
    pub exclude: Vec<Regex>,
    /// The type of weights' codes.
    pub weights: WeightBits,
    /// Whether weights and scales are trained as they will be rounded (quantisation-aware training).
    pub train: bool,
}

impl Pass for Int8 {
    fn name(&self) -> &'static str {
        "int8"
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn run(&self, g: &mut Graph, cx: &Context) -> Result<Outcome> {
        let mut out = Outcome::default();
        if g.operators().any(|n| matches!(g.op(n), Op::Quantize(_) | Op::Dequantize(_))) {
            return Err(
                Error::unsupported("the model is quantised already").help("give the FP32 model, or drop --int8")
            );
        }
        let layers = self.choose(g, &mut out)?;
        if layers.is_empty() {
            out.warnings.push(format!("--int8: nothing was quantised: {}", reasons(&out.skipped)));
            return Ok(out);
        }
        let mut plan = Plan::new(g, layers);
        let watch: Vec<Port> = plan.wanted.iter().copied().collect();
        let observers: Vec<Observer> = watch.iter().map(|_| Observer::new(self.calibration)).collect();
        let calibrator = cx.calibrator.ok_or_else(|| Error::bug("int8 was planned without calibration data"))?;
        calibrator.observe(&verify(g)?, &watch, &|i, values| {
            observers[i].add(values).map_err(|e| e.at(g.node(watch[i].node).label()))
        })?;
        cx.check()?;
        let ranges = watch.iter().zip(&observers).map(|(p, o)| (*p, o.range()));
        let params = plan.parameters(g, ranges)?;
        out.edits = plan.layers.len();
        let dtype = match self.weights {
            WeightBits::Four => DType::I4,
            WeightBits::Eight => DType::I8,
        };
        qdq::insert(g, &plan, &params, dtype)?;
        if self.train {
            let trainer = cx.trainer.ok_or_else(|| Error::bug("training was planned without data"))?;
            let masked = g.ids().filter(|n| g.constant((*n).into()).is_some_and(|t| t.shape().len() > 1)).collect();
            let training =
                Training { name: "qat", share: 1.0, masked, masking: None, scales: true, deploy: &qdq::freeze };
            out.trained.push(trainer.train(g, training)?);
        }
        qdq::freeze(g)?;
        Ok(out)
    }
}

impl Int8 {
    /// The layers that can be quantised; the others are reported.
    fn choose(&self, g: &Graph, out: &mut Outcome) -> Result<Vec<Layer>> {
        let all = layers(g)?;
        let unreached = unreached(g)?;
        let unknown = |n: &NodeId| format!("it depends on {}, which can't be run here", g.node(*n).label());
        let mut chosen = vec![];
        for l in &all {
            let reason = match obstacle(g, l) {
                _ if excluded(g, l, &self.exclude) => Some("excluded by --exclude".into()),
                None if unreached.contains_key(&l.node) => unreached.get(&l.node).map(unknown),
                Some(o) => Some(o),
                None if g.op(l.node).quant() != Quant::Weighted => {
                    Some("it scales its product, which no integer kernel does".into())
                }
                None => bias_obstacle(g, l).or_else(|| input_obstacle(g, l)),
            };
            match reason {
                None => chosen.push(*l),
                Some(reason) => out.skipped.push(Skipped {
                    rule: self.name().into(),
                    node: g.node(l.node).display_name().into(),
                    reason,
                }),
            }
        }
        Ok(chosen)
    }
}

fn bias_obstacle(g: &Graph, l: &Layer) -> Option<String> {
    let port = g.operand(l.node, l.axes.bias?)?;
    let channels = g.constant(l.weight.into())?.shape()[l.axes.output];
    match g.constant(port) {
        None => Some("its bias is computed".into()),
        Some(t)
            if !(t.len() == 1 || t.shape().last() == Some(&t.len()) && t.len() == channels)
                || t.dtype() != DType::F32 =>
        {
            Some(format!("its bias is {t:?}, not one value a channel"))
        }
        Some(t) if !t.as_f32()?.iter().all(|v| v.is_finite()) => Some("its bias has NaN or infinite values".into()),
        Some(_) => None,
    }
}

fn input_obstacle(g: &Graph, l: &Layer) -> Option<String> {
    let input = g.operand(l.node, 0)?;
    (g.constant(input).is_some() || g.fact(input).dtype != Some(DType::F32))
        .then(|| "its input is no f32 activation".into())
}

/// Which values are quantised, and how they hang together.
pub(super) struct Plan {
    /// The layers that become integer.
    pub layers: Vec<Layer>,
    /// The values that become U8.
    pub wanted: BTreeSet<Port>,
    /// Operators between layers that become integer too.
    pub taken: BTreeSet<NodeId>,
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

impl Plan {
    fn new(g: &Graph, layers: Vec<Layer>) -> Self {
        let integer: BTreeSet<NodeId> = layers.iter().map(|l| l.node).collect();
        let mut plan = Self {
            layers,
            wanted: BTreeSet::new(),
            taken: BTreeSet::new(),
            before: BTreeMap::new(),
            parent: HashMap::new(),
            tied: vec![],
        };
        let mut queue: Vec<Port> = vec![];
        for l in &plan.layers {
            queue.extend(g.operand(l.node, 0));
            if matches!(g.op(l.node), Op::Conv(_)) {
                queue.push(after_activation(g, l.node.into()));
            }
        }
        while let Some(port) = queue.pop() {
            if g.fact(port).dtype != Some(DType::F32) || !plan.wanted.insert(port) {
                continue;
            }
            let source = before_activation(g, port);
            let node = source.node;
            let operands: Vec<Port> = g.operands(node).into_iter().flatten().collect();
            let activations: Vec<Port> = operands.iter().copied().filter(|p| is_activation(g, *p)).collect();
            let take = match g.op(node).quant() {
                Quant::Weighted => integer.contains(&node),
                Quant::Same => source == port && activations.first() == operands.first() && !activations.is_empty(),
                Quant::Tied => source == port && activations.len() == operands.len(),
                // An integer kernel pays when an operand comes from one.
                Quant::Arithmetic => {
                    let from_integer = |p: &Port| {
                        let source = before_activation(g, *p).node;
                        integer.contains(&source)
                            || matches!(g.op(source).quant(), Quant::Same | Quant::Tied | Quant::Arithmetic)
                    };
                    activations.len() == operands.len() && activations.iter().any(from_integer)
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
    fn parameters(
        &mut self,
        g: &Graph,
        ranges: impl Iterator<Item = (Port, Option<(f32, f32)>)>,
    ) -> Result<HashMap<Port, Affine>> {
        let mut merged: HashMap<Port, Range> = HashMap::new();
        for (port, range) in ranges {
            let Some((low, high)) = range else {
                return Err(Error::data("calibration reached no value of an activation; is the data set empty?"));
            };
            let bounds = if self.before.contains_key(&port) { bounds(g, port.node) } else { (f32::MIN, f32::MAX) };
            let r = Range { low, high, bounds };
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
            (*p, Affine::covering(r.low, r.high))
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
    let high = match g.op(n) {
        Op::Clip(_) => g.operand(n, 2).and_then(|p| g.fact(p).floats.as_ref()?.first().copied()),
        _ => None,
    };
    (0.0, high.unwrap_or(f32::MAX))
}

/// Whether a node is a Relu, or a Clip from 0 up: what it does, the range of a U8 value with
/// zero point 0 does as well.
fn saturates(g: &Graph, n: NodeId) -> bool {
    let zero = |f: &Fact| f.floats.as_deref() == Some(&[0.0]);
    match g.op(n) {
        Op::Unary(Unary::Relu) => true,
        Op::Clip(_) => {
            let constant = |p| g.constant(p).is_some();
            g.operand(n, 1).is_some_and(|p| constant(p) && zero(g.fact(p))) && g.operand(n, 2).is_none_or(constant)
        }
        _ => false,
    }
}
