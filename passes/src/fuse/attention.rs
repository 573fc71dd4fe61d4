//! Scales and biases around attention that can be had for nothing.
//!
//! The products of queries and keys are scaled: that can be done to the weights that make the
//! queries. A bias of the keys adds `q * b` to all products of a query, which softmax doesn't
//! see. Weights of a query sum to 1, if there are any, so a bias of the values comes out as it went
//! in, and can be added where the result is projected. All of it is exact but for rounding.

use super::{
    layer::{ConstantLayer, widened},
    shared, succeed,
};
use crate::{attention::Chain, axes::AxisRuns};
use compress_compiler::{
    error::Result,
    forms::attention::{Scores, weighed},
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{binary::Binary, gemm::Gemm},
    pass::Context,
    rewrite::{Edit, Ref, Rule, Verdict},
    tensor::Tensor,
    value::Dim,
};

/// Numbers that multiply the products, the queries or the keys move into the constant weights
/// that make the queries, or else the keys.
pub(super) struct AttentionScale;

impl Rule for AttentionScale {
    fn name(&self) -> &'static str {
        "attention-scale"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Softmax"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        let Some(scores) = Scores::of(graph, node) else { return Ok(Verdict::No) };
        let Some((q, k)) = scores.operands(graph) else { return Ok(Verdict::No) };
        let chains = [Chain::to(graph, q), Chain::to(graph, k)];
        let mut factors = scores.factors;
        factors.extend(chains.iter().flat_map(|c| c.factors(graph)));
        if factors.is_empty() {
            return Ok(Verdict::No);
        }
        let Some(layer) = chains.iter().find_map(|c| Projection::new(graph, c.source)) else {
            return Ok(Verdict::Skip("neither queries nor keys come from constant weights that only they need".into()));
        };
        let mut edit = Edit::new();
        let scale: f64 = factors.iter().map(|f| f.value).product();
        let Some(scaled) = layer.scaled(&mut edit, scale) else {
            return Ok(Verdict::Skip("the scaled weights would not be finite".into()));
        };
        for f in factors {
            edit.replace(f.product, f.x.into());
        }
        edit.replace(layer.result, scaled);
        Ok(Verdict::Apply(edit))
    }
}

/// A MatMul or Gemm with a constant weight, and the Add of a constant behind it.
struct Projection<'a> {
    graph: &'a Graph,
    /// What the whole makes.
    result: Port,
    product: NodeId,
    add: Option<Bias<'a>>,
}

impl<'a> Projection<'a> {
    fn new(graph: &'a Graph, result: Port) -> Option<Self> {
        graph.only_use(result)?;
        let add = Bias::added(graph, result.node);
        let product = add.as_ref().map_or(result, |b| b.x).node;
        let constant =
            |slot| graph.operand(product, slot).is_none_or(|p| graph.constant(p).and_then(widened).is_some());
        let layer = match graph.op(product) {
            Op::MatMul(_) => graph.operand(product, 1).is_some_and(|w| graph.fact(w).rank() == Some(2)),
            Op::Gemm(_) => true,
            _ => false,
        };
        let alone = add.as_ref().is_none_or(|b| graph.only_use(b.x).is_some() && widened(b.tensor).is_some());
        (layer && alone && constant(1) && constant(2)).then_some(Self { graph, result, product, add })
    }

    /// The same with all constants multiplied.
    fn scaled(&self, edit: &mut Edit, scale: f64) -> Option<Ref> {
        let times = |edit: &mut Edit, port: Port| {
            let tensor = self.graph.constant(port)?;
            let values: Vec<f32> = widened(tensor)?.iter().map(|v| (v * scale) as f32).collect();
            let finite = values.iter().all(|v| v.is_finite());
            finite.then(|| succeed(self.graph, edit, port, Tensor::f32(tensor.shape(), &values)))
        };
        let mut operands: Vec<Option<Ref>> = vec![];
        for (slot, port) in self.graph.operands(self.product).into_iter().enumerate() {
            operands.push(match (slot, port) {
                (1.., Some(p)) => Some(times(edit, p)?),
                (_, p) => p.map(Ref::Old),
            });
        }
        let name = |n| &self.graph.node(n).name;
        let product = edit.node(name(self.product), self.graph.op(self.product).clone(), &operands);
        let Some(bias) = &self.add else { return Some(product) };
        edit.replace(bias.x, product);
        let bias_port = times(edit, bias.port)?;
        Some(edit.node(name(self.result.node), Binary::Add, &[Some(product), Some(bias_port)]))
    }
}

/// A constant that an Add puts on a value without making it larger.
struct Bias<'a> {
    x: Port,
    port: Port,
    tensor: &'a Tensor,
}

impl<'a> Bias<'a> {
    fn added(graph: &'a Graph, node: NodeId) -> Option<Self> {
        let Op::Binary(Binary::Add) = graph.op(node) else { return None };
        let (a, b) = (graph.operand(node, 0)?, graph.operand(node, 1)?);
        let (x, port, tensor) = match (graph.constant(a), graph.constant(b)) {
            (None, Some(t)) => (a, b, t),
            (Some(t), None) => (b, a, t),
            _ => return None,
        };
        let (from, to) = (graph.fact(x).dims()?, graph.fact(node.into()).dims()?);
        let kept = from.len() == to.len() && from.iter().zip(to).all(|(a, b)| a.same(b) || *b == Dim::Unknown);
        // What is not known cannot have grown by a constant of size 1 along it.
        let grown = |(d, n): (&Dim, &usize)| d.known().is_none() && *n != 1;
        let grown = to.iter().rev().zip(tensor.shape().iter().rev()).any(grown);
        (kept && !grown).then_some(Self { x, port, tensor })
    }

    /// The bias of each of `n` features, the last axis, if it is the same along all other axes.
    fn features(&self, n: usize) -> Option<Vec<f64>> {
        let (last, others) = self.tensor.shape().split_last().unwrap_or((&1, &[]));
        if !others.iter().all(|d| *d == 1) || (*last != 1 && *last != n) {
            return None;
        }
        let values = widened(self.tensor)?;
        (0..n).map(|i| values.get(i % last.max(&1)).copied()).collect()
    }
}

/// The keys' bias goes.
pub(super) struct KeyBias;

impl Rule for KeyBias {
    fn name(&self) -> &'static str {
        "key-bias"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["MatMul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        // What replaces products knows nothing of the bias.
        let scores = Scores::from(graph, node).filter(|s| !s.are_replaced());
        let keys = scores.and_then(|s| s.operands(graph)).map(|(_, k)| k);
        let Some(keys) = keys else { return Ok(Verdict::No) };
        let chain = Chain::to(graph, keys);
        let Some(bias) = Bias::added(graph, chain.source.node) else { return Ok(Verdict::No) };
        if graph.only_use(chain.source).is_none() {
            return Ok(shared(graph, chain.source));
        }
        if bias.tensor.is_finite() != Some(true) {
            return Ok(Verdict::No);
        }
        let (Some(layout), Some(rank)) = (chain.layout(graph, 0), graph.fact(chain.source).rank()) else {
            return Ok(Verdict::Skip("too little is known of its keys' shape".into()));
        };
        // The axes along which the bias differs must not become that of the keys.
        let first = rank - bias.tensor.shape().len().min(rank);
        let varies = bias.tensor.shape().iter().enumerate().filter(|(_, d)| **d != 1).map(|(i, _)| first + i);
        let along = layout.0.len() - 1;
        if varies.into_iter().any(|axis| layout.has(along, axis)) {
            return Ok(Verdict::Skip("the keys' bias is not the same for all keys".into()));
        }
        Ok(Verdict::Apply(Edit::swap(chain.source, bias.x)))
    }
}

/// The values' bias moves into that of the layer behind.
pub(super) struct ValueBias;

impl Rule for ValueBias {
    fn name(&self) -> &'static str {
        "value-bias"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["MatMul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(value_bias(graph, node).unwrap_or(Verdict::No))
    }
}

fn value_bias(graph: &Graph, sums: NodeId) -> Option<Verdict> {
    let weights = graph.operand(sums, 0)?;
    weighed(graph, weights.node)?;
    let chain = Chain::to(graph, graph.operand(sums, 1)?);
    let bias = Bias::added(graph, chain.source.node)?;
    if graph.only_use(chain.source).is_none() {
        return Some(shared(graph, chain.source));
    }
    if !chain.factors(graph).is_empty() {
        return None;
    }
    let dims = graph.fact(chain.source).dims()?;
    let (features, size) = (dims.len().checked_sub(1)?, dims.last()?.known()?);
    let size = usize::try_from(size).ok().filter(|n| *n == bias.tensor.len())?;
    let values = bias.features(size)?;
    let layout = start(graph, chain.layout(graph, 0)?, weights, sums.into(), features)?;
    let (layer, layout) = reader_of(graph, sums.into(), layout)?;
    if !has_keys(graph, weights, sums.into()) {
        return Some(Verdict::Skip("there may be no keys, and no weights whose sum is 1".into()));
    }
    let order = order(&layout, features)?;
    let values: Vec<f64> = order.into_iter().map(|i| values.get(i).copied()).collect::<Option<_>>()?;
    let result = Port::from(layer);
    let shift = projected(graph, layer, &values)?;
    let verdict = match graph.op(layer) {
        Op::Gemm(_) => match ConstantLayer::new(graph, layer) {
            Ok(l) => l.absorb(result, &vec![1.0; shift.len()], &shift),
            Err(verdict) => verdict,
        },
        _ => added(graph, result, &shift)?,
    };
    Some(match verdict {
        Verdict::Apply(mut edit) => {
            edit.replace(chain.source, bias.x.into());
            Verdict::Apply(edit)
        }
        other => other,
    })
}

/// Whether there is a key, or no query either, where `weights` of keys make `context`.
fn has_keys(graph: &Graph, weights: Port, context: Port) -> bool {
    let Some(keys) = graph.fact(weights).dims().and_then(<[Dim]>::last) else { return false };
    let queries = graph.fact(context).dims().and_then(|dims| dims.iter().nth_back(1));
    keys.known().is_some_and(|n| n > 0) || queries.is_some_and(|q| q.same(keys))
}

/// Where features of the values are in `context`, the weighted sums of values laid out so.
fn start(graph: &Graph, values: AxisRuns, weights: Port, context: Port, features: usize) -> Option<AxisRuns> {
    let dims = graph.fact(context).dims()?;
    let rank = dims.len();
    let same_rank = graph.fact(weights).rank() == Some(rank) && values.0.len() == rank && rank >= 2;
    // Sums over anything but whole rows of weights would not keep the bias.
    if !same_rank || values.has(rank - 2, features) {
        return None;
    }
    // All other axes get numbers of their own, behind those of the values' source.
    let own = AxisRuns::of(dims).0.into_iter().map(|mut axis| {
        axis.iter_mut().for_each(|p| p.axis += features + 1);
        axis
    });
    let axes = own.zip(values.0).enumerate();
    Some(AxisRuns(
        axes.map(|(i, (own, value))| {
            let carries = i != rank - 2 && value.iter().any(|p| p.axis == features);
            if carries { value } else { own }
        })
        .collect(),
    ))
}

/// The MatMul or Gemm with a constant matrix that reads `port` after it was only moved, and
/// where its features then are.
fn reader_of(graph: &Graph, mut port: Port, mut layout: AxisRuns) -> Option<(NodeId, AxisRuns)> {
    loop {
        let reader = graph.only_use(port).filter(|u| u.slot == 0)?.node;
        match graph.op(reader) {
            Op::MatMul(_) | Op::Gemm(Gemm { trans_a: false, .. }) => return Some((reader, layout)),
            _ => layout = layout.through(graph, reader)?,
        }
        port = reader.into();
    }
}

/// Which features are along the last axis, in their order, if they are there only and alone.
fn order(layout: &AxisRuns, features: usize) -> Option<Vec<usize>> {
    let (last, others) = layout.0.split_last()?;
    let apart = others.iter().flatten().all(|p| p.axis != features) && last.iter().all(|p| p.axis == features);
    let mut order = vec![0];
    for part in last {
        let (stride, size) = (usize::try_from(part.stride).ok()?, usize::try_from(part.size.known()?).ok()?);
        order = order.into_iter().flat_map(|i| (0..size).map(move |j| i + j * stride)).collect();
    }
    apart.then_some(order)
}

/// What the constant matrix of `layer` makes of a row.
fn projected(graph: &Graph, layer: NodeId, row: &[f64]) -> Option<Vec<f64>> {
    let tensor = graph.constant(graph.operand(layer, 1)?)?;
    let (alpha, transposed) = match graph.op(layer) {
        Op::Gemm(g) => (f64::from(g.alpha), g.trans_b),
        _ => (1.0, false),
    };
    let &[rows, columns] = tensor.shape() else { return None };
    let (inputs, outputs) = if transposed { (columns, rows) } else { (rows, columns) };
    let weight = widened(tensor)?;
    if inputs != row.len() || weight.is_empty() {
        return None;
    }
    let mut out = vec![0.0; outputs];
    for (i, w) in weight.iter().enumerate() {
        let (input, output) = if transposed { (i % columns, i / columns) } else { (i / columns, i % columns) };
        out[output] += alpha * row[input] * w;
    }
    Some(out)
}

/// Adds `shift` to the constant that is added to `product`.
fn added(graph: &Graph, product: Port, shift: &[f64]) -> Option<Verdict> {
    let add = graph.only_use(product)?.node;
    let bias = Bias::added(graph, add).filter(|b| b.x == product)?;
    let sum: Vec<f32> = bias.features(shift.len())?.iter().zip(shift).map(|(b, s)| (b + s) as f32).collect();
    if !sum.iter().all(|v| v.is_finite()) {
        return Some(Verdict::Skip("the new bias would not be finite".into()));
    }
    let mut edit = Edit::new();
    let sum = succeed(graph, &mut edit, bias.port, Tensor::f32(&[sum.len()], &sum));
    let new = edit.node(&graph.node(add).name, Binary::Add, &[Some(product.into()), Some(sum)]);
    edit.replace(add.into(), new);
    Some(Verdict::Apply(edit))
}
