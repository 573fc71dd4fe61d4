//! LoRA (Hu et al. 2022): in the place of a weight, an update of low rank is trained.
//!
//! A layer `x W` becomes `x W + x D U`, with `D` of a few columns and `U` of as many rows. `W` stays, and so training has neither a
//! gradient nor moments of it. `U` begins with zeros: the model begins as it was. At the end `W + D U` takes the place of `W`.

use super::{
    random::{Purpose, Random},
    untie::untie,
};
use compress_compiler::{
    error::{Error, Result},
    graph::Graph,
    node::{NodeId, Port},
    op::{Op, Operator},
    ops::{binary::Binary, matmul::MatMul},
    tensor::Tensor,
    words::option::{FREEZE, LORA},
};
use rayon::prelude::*;
use regex::Regex;
use std::collections::BTreeMap;

/// The update of a weight.
struct Update {
    weight: NodeId,
    /// Whether outputs are the first axis of the weight as it is stored.
    outputs_first: bool,
    down: NodeId,
    up: NodeId,
}

/// A graph whose weights have updates.
pub struct LoRA {
    base: Graph,
    graph: Graph,
    updates: Vec<Update>,
    left_out: Vec<String>,
}

/// A layer that multiplies by a matrix, and how.
struct Reader {
    node: NodeId,
    outputs_first: bool,
}

impl LoRA {
    /// Gives the weights of products (MatMul and Gemm) updates of `rank`, drawn by `seed`. A weight stays as it is if it matches `freeze`,
    /// if one of its sizes doesn't exceed the rank, or if anything but products `x W` reads it: a table of words is looked up in, too.
    ///
    /// # Errors
    /// Unsupported when no weight can have an update.
    pub fn new(graph: &Graph, rank: usize, freeze: &[Regex], seed: u64) -> Result<Self> {
        let mut base = graph.clone();
        untie(&mut base);
        let mut made = Self { graph: base.clone(), base, updates: vec![], left_out: vec![] };
        let matrices: Vec<NodeId> = made.base.ids().filter(|n| is_multiplied(&made.base, *n)).collect();
        for weight in matrices {
            let name = made.base.value(weight.into()).name.clone();
            let readers = readers(&made.base, weight).filter(|_| smaller_side(&made.base, weight) > rank);
            match readers {
                _ if freeze.iter().any(|r| r.is_match(&name)) => {}
                Some(readers) => made.insert(weight, &readers, rank, seed)?,
                None => made.left_out.push(name),
            }
        }
        if made.updates.is_empty() {
            return Err(Error::unsupported(format!("{LORA} {rank}: no weight can have an update of this rank")).help(format!(
                "weights are matrices that MatMul or Gemm multiplies by, larger than the rank, and not matched by {FREEZE}: give a \
                 smaller rank, or train the model whole"
            )));
        }
        Ok(made)
    }

    /// The graph that is trained.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What is trained of it, and what the learning rate of each is in proportion to.
    pub fn trained(&self) -> BTreeMap<NodeId, f32> {
        self.updates.iter().flat_map(|update| [(update.down, 1.0), (update.up, 1.0)]).collect()
    }

    /// Weights of products that have no update, by name, and were not frozen.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The graph as it was, with the weights that [`LoRA::graph`] amounts to as it was `trained`.
    ///
    /// # Errors
    /// None for what was trained of [`LoRA::graph`].
    pub fn merged(&self, trained: &Graph) -> Result<Graph> {
        let mut merged = self.base.clone();
        let values = |g: &Graph, n: NodeId| -> Result<(Tensor, Vec<f32>)> {
            let t = g.constant(n.into()).ok_or_else(|| Error::bug("an update is not a constant"))?;
            Ok((t.clone(), t.as_f32().ok_or_else(|| Error::bug("an update is not of floats"))?.into_owned()))
        };
        for Update { weight, outputs_first, down, up } in &self.updates {
            let [(stored, mut w), (_, down), (_, up)] =
                [values(&self.base, *weight)?, values(trained, *down)?, values(trained, *up)?];
            let width = stored.shape().last().copied().unwrap_or(1).max(1);
            let [inputs, outputs] = if *outputs_first { [width, w.len() / width] } else { [w.len() / width, width] };
            let rank = down.len() / inputs.max(1);
            let at = |i: usize, o: usize| (0..rank).map(|r| down[i * rank + r] * up[r * outputs + o]).sum::<f32>();
            w.par_chunks_mut(width).enumerate().for_each(|(row, to)| {
                let each = to.iter_mut().enumerate();
                each.for_each(|(column, w)| *w += if *outputs_first { at(column, row) } else { at(row, column) });
            });
            merged.set_constant(*weight, Tensor::floats(stored.dtype(), stored.shape(), &w));
        }
        Ok(merged)
    }

    fn insert(&mut self, weight: NodeId, readers: &[Reader], rank: usize, seed: u64) -> Result<()> {
        let g = &mut self.graph;
        let name = g.value(weight.into()).name.clone();
        let stored = g.constant(weight.into()).map(Tensor::dtype).zip(matrix(g, weight));
        let Some(((dtype, [a, b]), outputs_first)) = stored.zip(readers.first().map(|r| r.outputs_first)) else {
            return Ok(());
        };
        let [inputs, outputs] = if outputs_first { [b, a] } else { [a, b] };
        let mut random = Random::new(seed, Purpose::Weights, 0, self.updates.len());
        let bound = 1.0 / (inputs as f32).sqrt();
        let drawn: Vec<f32> = (0..inputs * rank).map(|_| (random.unit() as f32 * 2.0 - 1.0) * bound).collect();
        let down = Tensor::floats(dtype, &[inputs, rank], &drawn);
        let up = Tensor::floats(dtype, &[rank, outputs], &vec![0.0; rank * outputs]);
        let [down, up] =
            [("down", down), ("up", up)].map(|(of, t)| g.add_constant(&g.fresh(&format!("{name}_{of}")), t));
        for Reader { node, .. } in readers {
            let mut x = g.operand(*node, 0);
            for (of, factor) in [("down", down), ("up", up)] {
                let output = g.fresh(&format!("{}_{of}", g.value((*node).into()).name));
                x = Some(g.add_node("", MatMul.into(), &[x, Some(factor.into())], &[&output])?.into());
            }
            let product = Port::from(*node);
            let output = g.fresh(&format!("{}_updated", g.value(product).name));
            let sum = g.add_node("", Binary::Add.into(), &[Some(product), x], &[&output])?;
            g.redirect(product, sum.into(), &[sum]);
            // Losses may read it by name.
            g.take_name(product, sum.into());
        }
        self.updates.push(Update { weight, outputs_first, down, up });
        Ok(())
    }
}

/// The sizes of a constant of floats that is a matrix.
fn matrix(g: &Graph, node: NodeId) -> Option<[usize; 2]> {
    let tensor = g.constant(node.into()).filter(|t| t.dtype().is_float())?;
    tensor.shape().try_into().ok()
}

/// Whether a constant is a matrix that a product reads, perhaps transposed.
fn is_multiplied(g: &Graph, node: NodeId) -> bool {
    let mut open = vec![Port::from(node)];
    while let Some(port) = open.pop() {
        for used in g.uses(port) {
            match g.op(used.node) {
                Op::MatMul(_) => return matrix(g, node).is_some(),
                // Its bias may be a matrix too.
                Op::Gemm(_) if used.slot < 2 => return matrix(g, node).is_some(),
                Op::Transpose(_) | Op::Identity(_) => open.push(used.node.into()),
                _ => {}
            }
        }
    }
    false
}

fn smaller_side(g: &Graph, node: NodeId) -> usize {
    matrix(g, node).map_or(0, |[a, b]| a.min(b))
}

/// Whether a node multiplies its first input by the matrix at `port`, as it is; then, whether outputs are its first axis.
fn product(g: &Graph, node: NodeId, port: Port) -> Option<bool> {
    let op = g.op(node);
    let plain = match op {
        Op::MatMul(_) => true,
        Op::Gemm(gemm) => gemm.alpha == 1.0 && !gemm.trans_a,
        _ => false,
    };
    let axes = op.weight().filter(|_| plain)?;
    let by = g.operand(node, axes.slot)? == port && g.operand(node, 0)? != port;
    by.then_some(axes.output == 0)
}

/// The products that multiply by a weight, if all that reads it are products that do so alike.
fn readers(g: &Graph, weight: NodeId) -> Option<Vec<Reader>> {
    let mut found = vec![];
    let mut open = vec![(Port::from(weight), false)];
    while let Some((port, turned)) = open.pop() {
        if g.is_output(port) {
            return None;
        }
        for used in g.uses(port) {
            match g.op(used.node) {
                Op::Transpose(_) if !turned => open.push((used.node.into(), true)),
                Op::Identity(_) => open.push((used.node.into(), turned)),
                _ => found.push(Reader { node: used.node, outputs_first: product(g, used.node, port)? != turned }),
            }
        }
    }
    let alike = found.windows(2).all(|pair| pair[0].outputs_first == pair[1].outputs_first);
    (alike && !found.is_empty()).then_some(found)
}
