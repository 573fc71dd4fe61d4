//! Operators with a weight and a bias, and how a scale and a shift of each output channel
//! move into them.

use super::succeed;
use compress_compiler::{
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::gemm::Gemm,
    rewrite::{Edit, Ref, Verdict},
    tensor::{DType, Tensor},
};
use std::sync::Arc;

/// Whether `op` has weights that rules of this folder may change.
pub(super) fn is_layer(op: &Op) -> bool {
    matches!(op, Op::Conv(_) | Op::ConvTranspose(_) | Op::Gemm(_) | Op::MatMul(_))
}

/// A layer with a constant weight.
pub(super) struct ConstantLayer<'a> {
    graph: &'a Graph,
    node: NodeId,
    op: &'a Op,
    weight: Port,
    tensor: &'a Tensor,
    /// The scale of each channel, where a BatchNormalization gave it one.
    pub(super) channel_scale: Option<Arc<[f32]>>,
    /// The number of output channels.
    pub(super) channels: usize,
    /// The rank of the output and its axis of channels.
    pub(super) output: (usize, usize),
}

impl<'a> ConstantLayer<'a> {
    /// The layer at `node`; the error is what to answer when there is none to change.
    pub(super) fn new(graph: &'a Graph, node: NodeId) -> Result<Self, Verdict> {
        let op = graph.op(node);
        let weight = graph.operand(node, 1).ok_or(Verdict::No)?;
        let name = &graph.value(weight).name;
        let Some(tensor) = graph.constant(weight) else {
            if matches!(op, Op::MatMul(_)) {
                return Err(Verdict::No); // a product of two activations
            }
            return Err(Verdict::Skip(format!("the weight `{name}` is not constant")));
        };
        if tensor.dtype() != DType::F32 {
            return Err(Verdict::Skip(format!("the weight `{name}` is {}, not f32", tensor.dtype())));
        }
        let shape = tensor.shape();
        let (channels, output) = match (op, shape) {
            (Op::Conv(_), [m, _, _, ..]) => (*m, (shape.len(), 1)),
            (Op::ConvTranspose(c), [inputs, m, _, ..]) => {
                // Broken models end here: `in_channels` below divides by what this ensures.
                let group = usize::try_from(c.group).ok().filter(|g| *g > 0 && *inputs > 0 && inputs % g == 0);
                (m * group.ok_or(Verdict::No)?, (shape.len(), 1))
            }
            (Op::Gemm(g), [rows, columns]) => (if g.trans_b { *rows } else { *columns }, (2, 1)),
            (Op::MatMul(_), [_, columns]) => {
                let rank = graph.fact(node.into()).rank().filter(|r| *r >= 2).ok_or(Verdict::No)?;
                (*columns, (rank, rank - 1))
            }
            _ => return Err(Verdict::No),
        };
        let channel_scale = graph.value(node.into()).channel_scale.clone();
        Ok(Self { graph, node, op, weight, tensor, channel_scale, channels, output })
    }

    /// The output channel that the weight's element `i` belongs to.
    fn channel(&self, i: usize) -> usize {
        let shape = self.tensor.shape();
        match self.op {
            Op::ConvTranspose(c) => {
                let taps: usize = shape[2..].iter().product();
                let (input, m) = (i / (taps * shape[1]), i / taps % shape[1]);
                let in_channels = shape[0] / c.group as usize;
                input / in_channels * shape[1] + m
            }
            Op::Gemm(Gemm { trans_b: false, .. }) | Op::MatMul(_) => i % shape[1],
            _ => i / shape[1..].iter().product::<usize>(),
        }
    }

    /// The bias by output channel, or what to answer when it cannot be changed.
    fn bias(&self) -> Result<Vec<f64>, Verdict> {
        let Some(port) = self.graph.operand(self.node, 2) else { return Ok(vec![0.0; self.channels]) };
        let name = &self.graph.value(port).name;
        let bias = self.graph.constant(port);
        let bias = bias.ok_or_else(|| Verdict::Skip(format!("the bias `{name}` is not constant")))?;
        let (values, beta) = match self.op {
            Op::Gemm(g) => (self.per_channel(bias), f64::from(g.beta)),
            _ => ((bias.shape() == [self.channels]).then(|| widened(bias)).flatten(), 1.0),
        };
        Ok(values.ok_or(Verdict::No)?.into_iter().map(|v| v * beta).collect())
    }

    /// What `t` holds for each output channel, if it broadcasts over the output along no other
    /// axis and does not make it larger.
    pub(super) fn per_channel(&self, t: &Tensor) -> Option<Vec<f64>> {
        let (rank, axis) = self.output;
        let first = rank.checked_sub(t.shape().len())?;
        let fits = |(i, d): (usize, &usize)| *d == 1 || (first + i == axis && *d == self.channels);
        let values = widened(t).filter(|_| t.shape().iter().enumerate().all(fits))?;
        // All sizes are 1 or the number of channels, so one element serves all or each has its own.
        Some((0..self.channels).map(|i| values[i % values.len()]).collect())
    }

    /// Makes the layer compute `scale * y + shift`, by output channel, in place of `result`.
    pub(super) fn absorb(&self, result: Port, scale: &[f64], shift: &[f64]) -> Verdict {
        match self.absorbed(result, scale, shift) {
            Ok(edit) => Verdict::Apply(edit),
            Err(verdict) => verdict,
        }
    }

    fn absorbed(&self, result: Port, scale: &[f64], shift: &[f64]) -> Result<Edit, Verdict> {
        let shifted = shift.iter().any(|s| *s != 0.0);
        if shifted && matches!(self.op, Op::MatMul(_)) {
            return Err(Verdict::No);
        }
        let weight = widened(self.tensor).ok_or(Verdict::No)?;
        let weight: Vec<f32> = weight.iter().enumerate().map(|(i, w)| (w * scale[self.channel(i)]) as f32).collect();
        let bias: Vec<f32> = self.bias()?.iter().zip(scale).zip(shift).map(|((b, a), c)| (b * a + c) as f32).collect();
        if !weight.iter().chain(&bias).all(|v| v.is_finite()) {
            return Err(Verdict::Skip("the fused weights would not be finite".into()));
        }
        let mut edit = Edit::new();
        let mut operands: Vec<Option<Ref>> = vec![self.graph.operand(self.node, 0).map(Ref::Old)];
        operands.push(Some(succeed(self.graph, &mut edit, self.weight, Tensor::f32(self.tensor.shape(), &weight))));
        let old_bias = self.graph.operand(self.node, 2);
        if old_bias.is_some() || shifted {
            let bias = Tensor::f32(&[bias.len()], &bias);
            operands.push(Some(match old_bias {
                Some(old) => succeed(self.graph, &mut edit, old, bias),
                None => edit.constant(&format!("{}_bias", self.graph.value(self.weight).name), bias),
            }));
        }
        let op = match self.op {
            // `beta` has gone into the bias.
            Op::Gemm(g) => Gemm { beta: 1.0, ..g.clone() }.into(),
            op => op.clone(),
        };
        let fused = edit.node(&self.graph.node(self.node).name, op, &operands);
        if let Some(scale) = &self.channel_scale {
            edit.channel_scale(fused, scale.clone());
        }
        edit.replace(result, fused);
        Ok(edit)
    }
}

/// The elements of an f32 tensor; the new weights are computed in f64 and rounded once.
pub(super) fn widened(t: &Tensor) -> Option<Vec<f64>> {
    let values = (t.dtype() == DType::F32).then(|| t.as_f32()).flatten()?;
    Some(values.iter().map(|v| f64::from(*v)).collect())
}
