//! Evens out the ranges of the channels that layers read, so that one scale suits all of them.
//!
//! `W x = (W s) (x / s)`: with a factor for each input channel, what is wide in `x` moves into the weights, which have a scale
//! for each output channel. What makes `x` divides it, at no cost, where that is a layer and functions that a factor passes
//! (cross-layer equalisation, Nagel et al. 2019), or a normalisation (SmoothQuant, Xiao et al. 2023). Otherwise a Mul does.

use crate::layers::Layer;
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{activation::Activation, binary::Binary, pool::PoolKind, unary::Unary},
    rewrite::remove_dead,
    tensor::{DType, Tensor},
};

/// A value, and the layers that read it: all of its readers that become integer.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// The value.
    pub input: Port,
    /// The layers.
    pub layers: Vec<Layer>,
    /// Its axis of channels.
    pub axis: usize,
    /// The least and the largest value of each channel.
    pub channels: Vec<(f32, f32)>,
}

impl Group {
    /// The layers that read `input`; `None` where its channels can't be told apart in all of their weights, or weights are
    /// read elsewhere too.
    pub fn of(g: &Graph, input: Port, layers: Vec<Layer>) -> Option<Self> {
        let dims = g.fact(input).dims()?;
        let axis = match g.op(layers.first()?.node) {
            Op::Conv(_) => 1,
            _ => dims.len().checked_sub(1)?,
        };
        let count = Columns::of(g, layers.first()?)?.count;
        let known = dims.get(axis)?.known();
        if known.is_some_and(|n| n != count as i64) {
            return None;
        }
        let fits = |l: &Layer| {
            let is_conv = matches!(g.op(l.node), Op::Conv(_));
            let plain = !matches!(g.op(l.node), Op::Gemm(gemm) if gemm.trans_a);
            let own = g.uses(l.weight.into()).iter().all(|u| layers.iter().any(|o| o.node == u.node));
            plain
                && own
                && is_conv == (axis == 1 && dims.len() > 2)
                && Columns::of(g, l).is_some_and(|c| c.count == count)
        };
        let all = layers.iter().all(fits);
        all.then(|| Self { input, layers, axis, channels: vec![(0.0, 0.0); count] })
    }

    /// The largest magnitude of each channel.
    pub fn widest(&self) -> Vec<f32> {
        self.channels.iter().map(|(low, high)| high.max(-low)).collect()
    }

    /// Widens the channels that reach furthest to the extremes of the value, of which more was seen.
    pub fn reach(&mut self, (low, high): (f32, f32)) {
        if let Some(lowest) = self.channels.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)) {
            lowest.0 = lowest.0.min(low);
        }
        if let Some(highest) = self.channels.iter_mut().max_by(|a, b| a.1.total_cmp(&b.1)) {
            highest.1 = highest.1.max(high);
        }
    }

    /// The ranges of the channels, where some are always zero.
    pub fn without(&self, some: &[usize]) -> Vec<(f32, f32)> {
        let of = |(c, range): (usize, &(f32, f32))| if some.contains(&c) { (0.0, 0.0) } else { *range };
        self.channels.iter().enumerate().map(of).collect()
    }

    /// Whether each channel has a weight of its own, whose scale takes any factor.
    pub fn is_depthwise(&self, g: &Graph) -> bool {
        let alone = |l: &Layer| g.constant(l.weight.into()).is_some_and(|t| t.shape()[l.axes.input] == 1);
        self.channels.len() > 1 && self.layers.iter().all(alone)
    }
}

/// To which input channel the elements of a weight belong.
struct Columns {
    /// Input channels of all groups.
    count: usize,
    /// Elements behind an index of the axis of input channels, its size, and the output channels of a group.
    behind: usize,
    size: usize,
    outputs: usize,
}

impl Columns {
    fn of(g: &Graph, l: &Layer) -> Option<Self> {
        let shape = g.constant(l.weight.into())?.shape();
        let behind = shape[l.axes.input + 1..].iter().product();
        let size = shape[l.axes.input];
        let (count, outputs) = match g.op(l.node) {
            Op::Conv(conv) => {
                let groups = usize::try_from(conv.group).ok().filter(|n| *n > 0)?;
                (size * groups, shape[0] / groups)
            }
            Op::MatMul(_) | Op::Gemm(_) => (size, usize::MAX),
            _ => return None,
        };
        Some(Self { count, behind, size, outputs: outputs.max(1) })
    }

    fn channel(&self, i: usize) -> usize {
        let within = i / self.behind % self.size;
        if self.outputs == usize::MAX {
            within
        } else {
            i / self.behind / self.size / self.outputs * self.size + within
        }
    }
}

/// The factors that share the ranges between inputs and weights: `max|x|^alpha / max|w|^(1 - alpha)` of each channel.
/// Where a Clip stands between, no channel gets wider than it, and those that reach it stay.
pub(super) fn factors(g: &Graph, group: &Group, alpha: f32) -> Option<Vec<f32>> {
    let widest = group.widest();
    let mut weights = vec![0f32; widest.len()];
    for l in &group.layers {
        let columns = Columns::of(g, l)?;
        for (i, w) in g.constant(l.weight.into())?.as_f32()?.iter().enumerate() {
            let most = &mut weights[columns.channel(i)];
            *most = most.max(w.abs());
        }
    }
    let of = |(x, w): (&f32, &f32)| match x.powf(alpha) / w.powf(1.0 - alpha) {
        s if s.is_normal() => Some(s),
        // A channel that is always zero, or whose weights are.
        _ => None,
    };
    let factors: Vec<Option<f32>> = widest.iter().zip(&weights).map(of).collect();
    // Only their ratios matter: around 1 the values keep about their size.
    let logs: Vec<f32> = factors.iter().flatten().map(|s| s.ln()).collect();
    let mean = (logs.iter().sum::<f32>() / logs.len().max(1) as f32).exp();
    let near = |s: &Option<f32>| s.map_or(1.0, |s| (s / mean).clamp(1.0 / MOST, MOST));
    let factors: Vec<f32> = factors.iter().map(near).collect();
    let Some(limit) = divisor(g, group).and_then(|d| d.limit) else { return Some(factors) };
    let most = factors.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    let below = |(s, x): (&f32, &f32)| (s / most).clamp((x * ROOM / limit).clamp(1.0 / MOST, 1.0), 1.0);
    Some(factors.iter().zip(&widest).map(below).collect())
}

/// How much wider a channel may get on other data before a Clip cuts it, where that did not cut it before.
const ROOM: f32 = 2.0;

/// The largest factor: beyond it, a dead channel would be blown up.
const MOST: f32 = 64.0;

/// Divides the channels of the group's value by `factors`. Returns the value that its layers read now, and whether that is
/// the same. With `free` nothing is done where it takes another operator.
///
/// # Errors
/// What inference raises.
pub(super) fn equalise(g: &mut Graph, group: &Group, factors: &[f32], free: bool) -> Result<Option<Port>> {
    let inverse: Vec<f32> = factors.iter().map(|s| 1.0 / s).collect();
    let source = divisor(g, group);
    if source.is_none() && free {
        return Ok(None);
    }
    for l in &group.layers {
        let columns = Columns::of(g, l).ok_or_else(|| Error::bug("a weight without input channels"))?;
        scale(g, l.weight, |i| factors[columns.channel(i)])?;
    }
    if let Some(source) = source {
        divide(g, source.node, &inverse)?;
        return Ok(Some(group.input));
    }
    let name = format!("{}_equalised", g.value(group.input).name);
    let rank = g.fact(group.input).rank().unwrap_or(1);
    let mut shape = vec![1; rank - group.axis];
    shape[0] = inverse.len();
    let by = g.add_constant(&format!("{name}_scale"), Tensor::f32(&shape, &inverse));
    let output = g.fresh(&name);
    let product = g.add_node(&name, Binary::Mul.into(), &[Some(group.input), Some(by.into())], &[&output])?;
    group.layers.iter().for_each(|l| g.set_operand(l.node, 0, Some(product.into())));
    Ok(Some(product.into()))
}

/// A node that can divide a group's value for its layers alone: a normalisation, or a layer behind functions that a factor
/// passes.
struct Divisor {
    node: NodeId,
    /// The most that a Clip between lets pass.
    limit: Option<f32>,
}

/// Whether a layer or a normalisation before can divide the channels of a group.
pub(super) fn is_free(g: &Graph, group: &Group) -> bool {
    divisor(g, group).is_some()
}

fn divisor(g: &Graph, group: &Group) -> Option<Divisor> {
    let mut limit: Option<f32> = None;
    let reads = |n: NodeId| group.layers.iter().any(|l| l.node == n);
    let mut port = group.input;
    let alone = !g.is_output(port) && g.uses(port).iter().all(|u| u.slot == 0 && reads(u.node));
    if !alone || port.slot != 0 {
        return None;
    }
    loop {
        let node = port.node;
        let vector = |slot: usize| match g.operand(node, slot) {
            None => true,
            Some(p) => g.constant(p).is_some_and(|t| t.dtype() == DType::F32 && t.shape() == [group.channels.len()]),
        };
        match g.op(node) {
            Op::LayerNorm(_) if port == group.input && group.axis > 0 => {
                return (vector(1) && vector(2)).then_some(Divisor { node, limit });
            }
            op @ Op::Conv(_) if group.axis == 1 => {
                let weight = g.operand(node, op.weight()?.slot)?;
                let rows = g.constant(weight).filter(|t| t.dtype() == DType::F32)?.shape()[0];
                let own = g.only_use(weight).is_some();
                return (own && rows == group.channels.len() && vector(2)).then_some(Divisor { node, limit });
            }
            Op::Clip(_) => {
                let (_, high) = g.clamps(node).filter(|(low, high)| *low == 0.0 && *high > 0.0)?;
                limit = Some(limit.map_or(high, |l| l.min(high)));
                port = g.operand(node, 0)?;
            }
            op if passes_factors(op) => port = g.operand(node, 0)?,
            _ => return None,
        }
        g.only_use(port)?;
    }
}

/// Whether `f(s x) = s f(x)` for each channel and any positive `s`.
fn passes_factors(op: &Op) -> bool {
    match op {
        Op::Unary(Unary::Relu) | Op::Activation(Activation::LeakyRelu { .. }) => true,
        Op::Pool(p) => !p.indices && matches!(p.kind, PoolKind::Max | PoolKind::Average),
        Op::GlobalPool(p) => matches!(p.kind, PoolKind::Max | PoolKind::Average),
        _ => false,
    }
}

/// Multiplies what a normalisation or a convolution makes, channel by channel.
fn divide(g: &mut Graph, node: NodeId, inverse: &[f32]) -> Result<()> {
    let is_norm = matches!(g.op(node), Op::LayerNorm(_));
    if !is_norm {
        let weight = g.operand(node, 1).ok_or_else(|| Error::bug("a convolution without a weight"))?.node;
        let each = g.constant(weight.into()).map_or(1, |t| t.len() / inverse.len()).max(1);
        scale(g, weight, |i| inverse[i / each])?;
    }
    for slot in if is_norm { 1..3 } else { 2..3 } {
        let Some(port) = g.operand(node, slot) else { continue };
        let values = g.constant(port).and_then(|t| Some(t.as_f32()?.into_owned())).unwrap_or_default();
        let values: Vec<f32> = values.iter().zip(inverse).map(|(v, i)| v * i).collect();
        let name = g.value(port).name.clone();
        let new = g.add_constant(&name, Tensor::f32(&[values.len()], &values));
        g.set_operand(node, slot, Some(new.into()));
        remove_dead(g, port.node);
    }
    Ok(())
}

/// Multiplies the elements of a constant.
fn scale(g: &mut Graph, constant: NodeId, by: impl Fn(usize) -> f32) -> Result<()> {
    let tensor = g.constant(constant.into()).cloned().ok_or_else(|| Error::bug("a weight is not a constant"))?;
    let mut values = tensor.as_f32().ok_or_else(|| Error::bug("a weight is not f32"))?.into_owned();
    values.iter_mut().enumerate().for_each(|(i, w)| *w *= by(i));
    g.set_constant(constant, Tensor::f32(tensor.shape(), &values));
    Ok(())
}
