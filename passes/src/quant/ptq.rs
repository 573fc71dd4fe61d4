//! What is quantised, and with which parameters.
//!
//! Activations become U8 where an integer kernel reads or writes them: at the input of every
//! layer (Conv, Gemm, MatMul by a constant), at the output of every Conv, and on the way
//! between them through operators that move values (MaxPool, Reshape, ...), join them
//! (Concat) or have an integer kernel of their own (Add, average pools). A Relu or Clip after
//! such an operator is part of its output's range and disappears. What leads to no further
//! layer stays in floating point, so a classifier's logits keep their resolution.

use super::{
    observe::Observer,
    params::Affine,
    qdq,
    scheme::{Codes, Scheme},
};
use crate::{
    layers::{Layer, excluded, layers, obstacle},
    nested::{self, ConstantRef, Nested, Reader, Way},
    target::Target,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port, Site},
    op::{Op, Operator, Quant},
    part::unreached,
    pass::{Context, Outcome, Pass, Skipped, Training, reasons},
    tensor::DType,
    verify::verify,
    words::option::INT8,
};
use regex::Regex;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Static quantisation, after training or with it; biases are INT32.
pub struct Int8 {
    /// What numbers become.
    pub scheme: Scheme,
    /// What has to run them.
    pub target: Target,
    /// Layers to leave in floating point.
    pub exclude: Vec<Regex>,
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
        let is_quantised = |g: &Graph| g.operators().any(|n| matches!(g.op(n), Op::Quantize(_) | Op::Dequantize(_)));
        if g.and_bodies().into_iter().any(is_quantised) {
            return Err(Error::unsupported("the model is quantised already")
                .help(format!("give the FP32 model, or drop {INT8}")));
        }
        if let Some(why) = self.target.obstacle(&self.scheme) {
            return Err(Error::unsupported(why));
        }
        let whole = nested::take(g);
        let mut draft = self.draft(g, &whole, &HashMap::new())?;
        let ranges = self.calibrate(g, &draft, cx)?;
        cx.check()?;
        let never: Vec<bool> = (0..draft.plans.len()).map(|i| i > 0 && draft.lacks(i, &ranges)).collect();
        let shared = draft.shared(&never);
        if !shared.is_empty() {
            draft = self.draft(g, &whole, &shared)?;
        }
        let zero = ranges.values().filter(|r| **r == Some((0.0, 0.0))).count();
        if zero > 0 {
            let what = if zero == 1 { "1 activation is".into() } else { format!("{zero} activations are") };
            out.warnings.push(format!("{what} zero on all of the calibration data, which says nothing of their range"));
        }
        out.skipped.append(&mut draft.skipped);
        let Draft { mut inner, plans, .. } = draft;
        for (i, mut plan) in plans.into_iter().enumerate() {
            let part = if i == 0 { &mut *g } else { &mut inner[i - 1].graph };
            if never[i] {
                out.skipped.extend(plan.layers.iter().map(|l| self.skipped(part, l.node, NEVER)));
                continue;
            }
            let ranges = plan.wanted.iter().map(|p| (*p, ranges.get(&(i, *p)).copied().flatten())).collect();
            let params = plan.parameters(part, ranges, self.scheme.activations.codes())?;
            qdq::insert(part, &plan, &params, &self.scheme)?;
            out.edits += plan.layers.len();
            if i > 0 {
                // What is inside of an operator is not trained.
                qdq::freeze(part, &self.scheme)?;
            }
        }
        if out.edits == 0 {
            out.warnings.push(format!("{INT8}: nothing was quantised: {}", reasons(&out.skipped)));
            return Ok(out);
        }
        nested::put_back(g, inner)?;
        if self.train {
            let trainer = cx.trainer.ok_or_else(|| Error::bug("training was planned without data"))?;
            let masked = g.ids().filter(|n| g.constant((*n).into()).is_some_and(|t| t.shape().len() > 1)).collect();
            let deploy = |g: &mut Graph| qdq::freeze(g, &self.scheme);
            let training = Training { name: "qat", share: 1.0, masked, masking: None, scales: true, deploy: &deploy };
            out.trained.push(trainer.train(g, training)?);
        }
        qdq::freeze(g, &self.scheme)?;
        Ok(out)
    }
}

/// A value's range on the calibration data, if it was reached.
type Reach = Option<(f32, f32)>;

const NEVER: &str = "calibration never ran the branch or loop that it is inside of";
const SHARED_NEVER: &str = "its weight is shared with a branch or loop that calibration never ran";
const SHARED_FLOAT: &str = "its weight is shared with a layer in another branch or loop that stays float";
const SHARED_OFTEN: &str =
    "many branches and loops share its weight: a copy of the codes for each would take more room";

/// Codes of so many graphs are smaller together than what they share.
const MOST_COPIES: usize = 3;

/// What is to be quantised: in the graph itself, then in each of those inside it.
struct Draft {
    /// Those inside, with weights of their own.
    inner: Vec<Nested>,
    plans: Vec<QuantisedValues>,
    /// What reads weights from around it.
    readers: Vec<Reader>,
    skipped: Vec<Skipped>,
}

impl Draft {
    /// Whether calibration did not reach what plan `i` quantises.
    fn lacks(&self, i: usize, ranges: &HashMap<(usize, Port), Reach>) -> bool {
        self.plans[i].wanted.iter().any(|p| ranges.get(&(i, *p)).is_none_or(Option::is_none))
    }

    /// Weights that stay where they are, and why: an operator that reads them stays in floats, as those of plans that are
    /// `never` reached do, or too many would have copies.
    fn shared(&self, never: &[bool]) -> HashMap<ConstantRef, &'static str> {
        let mut read_by: HashMap<&ConstantRef, Vec<&Reader>> = HashMap::new();
        self.readers.iter().for_each(|r| read_by.entry(&r.source).or_default().push(r));
        let is_float = |r: &&Reader| self.plans[r.at + 1].layers.iter().all(|l| l.node != r.node);
        let why = |by: &[&Reader]| match by.iter().map(|r| r.at).collect::<BTreeSet<_>>().len() {
            _ if by.iter().any(|r| never[r.at + 1]) => Some(SHARED_NEVER),
            _ if by.iter().any(is_float) => Some(SHARED_FLOAT),
            copies => (copies > MOST_COPIES).then_some(SHARED_OFTEN),
        };
        read_by.into_iter().filter_map(|(source, by)| Some((source.clone(), why(&by)?))).collect()
    }
}

impl Int8 {
    /// What is quantised, where the weights in `shared` stay where they are.
    fn draft(&self, g: &Graph, whole: &[Nested], shared: &HashMap<ConstantRef, &str>) -> Result<Draft> {
        let unreached = unreached(g)?;
        let blocked = |n: NodeId| {
            let first = unreached.get(&n)?;
            Some(format!("it depends on {}, which can't be run here", g.node(*first).label()))
        };
        let (mut inner, readers) = (whole.to_vec(), nested::outer_weights(g, whole));
        let (stay, own): (Vec<&Reader>, Vec<&Reader>) = readers.iter().partition(|r| shared.contains_key(&r.source));
        nested::own_weights(g, &mut inner, &own);
        let mut skipped: Vec<Skipped> =
            stay.iter().map(|r| self.skipped(&whole[r.at].graph, r.node, shared[&r.source])).collect();
        let mut plans = vec![QuantisedValues::new(g, self.choose(g, &blocked, &mut skipped)?)];
        for Nested { way, graph: part } in &inner {
            let around = way.first().and_then(|(n, _)| blocked(*n));
            plans.push(QuantisedValues::new(part, self.choose(part, &|_| around.clone(), &mut skipped)?));
        }
        Ok(Draft { inner, plans, readers, skipped })
    }

    /// The range of each value that is quantised, by the place of its plan.
    fn calibrate(&self, g: &Graph, draft: &Draft, cx: &Context) -> Result<HashMap<(usize, Port), Reach>> {
        let steps = self.scheme.activations.codes().steps();
        let ways = std::iter::once(vec![]).chain(draft.inner.iter().map(|n| n.way.clone()));
        let sites = |(i, (within, plan)): (usize, (Way, &QuantisedValues))| {
            plan.wanted.iter().map(move |port| (i, Site { within: within.clone(), port: *port })).collect::<Vec<_>>()
        };
        let (places, watch): (Vec<usize>, Vec<Site>) = ways.zip(&draft.plans).enumerate().flat_map(sites).unzip();
        let observers: Vec<Observer> = watch.iter().map(|_| Observer::new(self.scheme.calibration)).collect();
        if !watch.is_empty() {
            let calibrator = cx.calibrator.ok_or_else(|| Error::bug("int8 was planned without calibration data"))?;
            calibrator.observe(&verify(g)?, &watch, &|i, values| {
                observers[i].add(values).map_err(|e| e.at(g.node(watch[i].outermost()).label()))
            })?;
        }
        Ok(places.into_iter().zip(&watch).zip(&observers).map(|((i, s), o)| ((i, s.port), o.range(steps))).collect())
    }

    /// The layers that can be quantised; the others are reported. `blocked` says why a node can't be run.
    fn choose(
        &self,
        g: &Graph,
        blocked: &dyn Fn(NodeId) -> Option<String>,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Vec<Layer>> {
        let mut chosen = vec![];
        for l in &layers(g)? {
            let reason = excluded(g, l, &self.exclude)
                .or_else(|| blocked(l.node))
                .or_else(|| obstacle(g, l))
                .or_else(|| scaling_obstacle(g, l))
                .or_else(|| bias_obstacle(g, l))
                .or_else(|| input_obstacle(g, l));
            match reason {
                None => chosen.push(*l),
                Some(reason) => skipped.push(self.skipped(g, l.node, &reason)),
            }
        }
        Ok(chosen)
    }

    fn skipped(&self, g: &Graph, node: NodeId, reason: &str) -> Skipped {
        Skipped { rule: self.name().into(), node: g.node(node).display_name().into(), reason: reason.into() }
    }
}

fn scaling_obstacle(g: &Graph, l: &Layer) -> Option<String> {
    (g.op(l.node).quant() != Quant::Weighted).then(|| "it scales its product, which no integer kernel does".into())
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
        .then(|| "its input is not an f32 activation".into())
}

/// Which values are quantised, and how they hang together.
pub(super) struct QuantisedValues {
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

impl QuantisedValues {
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
    fn parameters(&mut self, g: &Graph, ranges: Vec<(Port, Reach)>, codes: Codes) -> Result<HashMap<Port, Affine>> {
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

/// Whether a node clamps its input from 0 up, to a constant if to any: what it does, the range of a U8 value with zero point 0
/// does as well.
fn saturates(g: &Graph, n: NodeId) -> bool {
    let constant = |port: &Port| g.constant(*port).is_some();
    g.clamps(n).is_some_and(|(low, _)| low == 0.0) && g.operands(n).iter().flatten().skip(1).all(constant)
}
