//! Evens out the ranges of the channels that layers read, so that one scale suits all of them.
//!
//! `W x = (W s) (x / s)`: with a factor for each input channel, what is wide in `x` moves into the weights, which have a scale
//! for each output channel. What makes `x` divides it, at no cost, where that is a layer and functions that a factor passes
//! (cross-layer equalisation, Nagel et al. 2019), or a normalisation (SmoothQuant, Xiao et al. 2023), or a product with a vector, as
//! exporters write those. Otherwise a Mul does.

use crate::layers::{Layer, is_excluded};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{activation::Activation, binary::Binary, pool::PoolKind, unary::Unary},
    tensor::{DType, Tensor},
};
use regex::Regex;

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
pub(super) fn factors(g: &Graph, group: &Group, alpha: f32, exclude: &[Regex]) -> Option<Vec<f32>> {
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
    let Some(limit) = divisor(g, group, exclude).and_then(|d| d.limit) else { return Some(factors) };
    let most = factors.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    let below = |(s, x): (&f32, &f32)| (s / most).clamp((x * ROOM / limit).clamp(1.0 / MOST, 1.0), 1.0);
    Some(factors.iter().zip(&widest).map(below).collect())
}

/// How much wider a channel may get on other data before a Clip cuts it, where that did not cut it before.
const ROOM: f32 = 2.0;

/// The largest factor: beyond it, a dead channel would be blown up.
const MOST: f32 = 64.0;

/// Divides the channels of the group's value by `factors`, without a change to what `exclude` names. Returns the value that its
/// layers read now. With `free` nothing is done where it takes another operator.
///
/// # Errors
/// What inference raises.
pub(super) fn equalise(
    g: &mut Graph,
    group: &Group,
    factors: &[f32],
    free: bool,
    exclude: &[Regex],
) -> Result<Option<Port>> {
    let inverse: Vec<f32> = factors.iter().map(|s| 1.0 / s).collect();
    let source = divisor(g, group, exclude);
    if source.is_none() && free {
        return Ok(None);
    }
    for l in &group.layers {
        let columns = Columns::of(g, l).ok_or_else(|| Error::bug("a weight without input channels"))?;
        scale(g, l.weight, |i| factors[columns.channel(i)])?;
    }
    if let Some(source) = source {
        for constant in source.constants {
            divide(g, constant, &inverse)?;
        }
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

/// Constants that can divide a group's value for its layers alone: those of a normalisation, of a layer behind functions that a factor
/// passes, or of a product with a vector.
struct Divisor {
    /// Operands, and the axis of each along which its channels are.
    constants: Vec<(NodeId, usize, usize)>,
    /// The most that a Clip between lets pass.
    limit: Option<f32>,
}

/// The factors by which what makes a group's value can divide it.
pub(super) enum Passed {
    AnyFactor,
    /// Those that leave the channels below what a Clip cuts.
    UpToAClip,
    Nothing,
}

/// By which factors a group's value can be divided without another operator, and without a change to what `exclude` names.
pub(super) fn passed(g: &Graph, group: &Group, exclude: &[Regex]) -> Passed {
    match divisor(g, group, exclude) {
        Some(Divisor { limit: None, .. }) => Passed::AnyFactor,
        Some(_) => Passed::UpToAClip,
        None => Passed::Nothing,
    }
}

fn divisor(g: &Graph, group: &Group, exclude: &[Regex]) -> Option<Divisor> {
    let reads = |n: NodeId| group.layers.iter().any(|l| l.node == n);
    let alone = |port: Port| !g.is_output(port) && g.uses(port).iter().all(|u| u.slot == 0 && reads(u.node));
    let mut found = Divisor { constants: vec![], limit: None };
    alone(group.input).then(|| divided(g, group, group.input, &mut found))??;
    let is_left = |(node, slot, _): &(NodeId, usize, usize)| {
        let name = g.operand(*node, *slot).map(|p| &g.value(p).name[..]).unwrap_or_default();
        is_excluded(g, *node, name, exclude)
    };
    (!found.constants.iter().any(is_left)).then_some(found)
}

/// Finds in `found` what divides the value at `port`, which nothing else reads.
fn divided(g: &Graph, group: &Group, port: Port, found: &mut Divisor) -> Option<()> {
    let (node, channels) = (port.node, group.channels.len());
    if port.slot != 0 {
        return None;
    }
    // Channels of products are along the last axis, with layers of any rank; those of convolutions along the second.
    let is_last = g.fact(group.input).rank().is_some_and(|rank| group.axis + 1 == rank) && group.axis > 0;
    let vector = |slot: usize| {
        let shape = g.operand(node, slot).and_then(|p| g.constant(p)).filter(|t| t.dtype() == DType::F32)?.shape();
        let (last, front) = shape.split_last()?;
        (*last == channels && front.iter().all(|n| *n == 1)).then_some((node, slot, front.len()))
    };
    let next = |slot: usize| g.operand(node, slot).filter(|p| g.only_use(*p).is_some());
    let layer = |op: &Op, found: &mut Divisor| {
        let axes = op.weight()?;
        let shape = g.constant(next(axes.slot)?).filter(|t| t.dtype() == DType::F32)?.shape();
        let fits = axes.rank.is_none_or(|rank| rank == shape.len()) && shape.get(axes.output) == Some(&channels);
        found.constants.push(fits.then_some((node, axes.slot, axes.output))?);
        let bias = axes.bias.filter(|slot| g.operand(node, *slot).is_some());
        found.constants.extend(bias.map(|slot| vector(slot).ok_or(())).transpose().ok()?);
        Some(())
    };
    match g.op(node) {
        Op::LayerNorm(_) | Op::RmsNorm(_) if port == group.input && is_last => {
            let given = [1, 2].into_iter().filter(|slot| g.operand(node, *slot).is_some());
            found.constants.extend(given.map(vector).collect::<Option<Vec<_>>>()?);
            Some(())
        }
        op @ Op::Conv(_) if group.axis == 1 => layer(op, found),
        op @ (Op::MatMul(_) | Op::Gemm(_)) if is_last => layer(op, found),
        Op::Binary(Binary::Mul) if is_last => match vector(0).or_else(|| vector(1)) {
            Some(constant) => {
                found.constants.push(constant);
                Some(())
            }
            None => [0, 1].into_iter().find_map(|slot| {
                let (before, limit) = (found.constants.len(), found.limit);
                let done = next(slot).and_then(|port| divided(g, group, port, found));
                if done.is_none() {
                    found.constants.truncate(before);
                    found.limit = limit;
                }
                done
            }),
        },
        Op::Binary(Binary::Add) if is_last => {
            let (constant, other) = match vector(0) {
                Some(constant) => (constant, 1),
                None => (vector(1)?, 0),
            };
            found.constants.push(constant);
            divided(g, group, next(other)?, found)
        }
        // The limit is that of the group's value, which nothing else may have scaled since.
        Op::Clip(_) if found.constants.is_empty() && !is_last => {
            let (_, high) = g.clamps(node).filter(|(low, high)| *low == 0.0 && *high > 0.0)?;
            found.limit = Some(found.limit.map_or(high, |l| l.min(high)));
            divided(g, group, next(0)?, found)
        }
        // Pools slide along the axes behind the channels.
        op if passes_factors(op) && (!is_last || !matches!(op, Op::Pool(_) | Op::GlobalPool(_))) => {
            divided(g, group, next(0)?, found)
        }
        _ => None,
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

/// Multiplies the elements of an operand by those of `by`, along an axis, for its reader alone.
fn divide(g: &mut Graph, (node, slot, axis): (NodeId, usize, usize), by: &[f32]) -> Result<()> {
    let port = g.operand(node, slot).ok_or_else(|| Error::bug("a divisor without its operand"))?;
    let tensor = g.constant(port).cloned().ok_or_else(|| Error::bug("a divisor is not a constant"))?;
    let behind: usize = tensor.shape()[axis + 1..].iter().product();
    let mut values = tensor.as_f32().ok_or_else(|| Error::bug("a divisor is not f32"))?.into_owned();
    values.iter_mut().enumerate().for_each(|(i, v)| *v *= by[i / behind % by.len()]);
    let new = Tensor::f32(tensor.shape(), &values);
    if g.only_use(port).is_some() {
        g.set_constant(port.node, new);
        return Ok(());
    }
    let name = g.value(port).name.clone();
    let new = g.add_constant(&g.fresh(&name), new);
    g.set_operand(node, slot, Some(new.into()));
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
