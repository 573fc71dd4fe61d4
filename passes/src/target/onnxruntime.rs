//! Pass "target": operators of newer opsets, for a runtime that is known to have kernels for them.
//!
//! ONNX Runtime runs Attention and RMSNormalization of opset 23 faster than what they stand for.
//! Its Attention wants masks with a row for each query and a column for each key, where the
//! specification would broadcast; a mask without rows is expanded. It also refuses axes of size 0; a
//! batch or a length that is left open is taken to be more.

use super::{Capabilities, in_blocks, newest};
use crate::{
    attention::Chain,
    axes::AxisRuns,
    clean::Clean,
    nested,
    normalise::{as_scale, ones, scaled},
    quant::scheme::Granularity,
};
use compress_compiler::{
    error::Result,
    forms::{
        attention::{Mask, Scores, Weights},
        normalised::Normalised,
    },
    graph::Graph,
    node::{NodeId, Port},
    op::Op,
    ops::{
        attention::Attention, concat::Concat, expand::Expand, layer_norm::RmsNorm, shape::Shape, transpose::Transpose,
    },
    pass::{Context, Outcome, Pass},
    rewrite::{Edit, Ref, Rule, Verdict, rewrite},
    tensor::{DType, Tensor},
    value::Dim,
    words::option,
};

/// ONNX Runtime.
pub const TARGET: Capabilities = Capabilities {
    name: "onnxruntime",
    means: "ONNX Runtime, with newer operators that it has kernels for",
    // Its convolutions take blocks of 16 channels.
    channels: Some(16),
    codes: &[DType::U8, DType::I8],
    adapt: |scheme| scheme,
    slow_depthwise: true,
    dynamic: true,
    looks_up_codes: true,
    small_weights: true,
    lstm_by_codes: true,
    by_bits: true,
    granularities: &[Granularity::Tensor, Granularity::Channel],
    lower: Some(|| Box::new(ForOnnxRuntime)),
};

/// The opset that has these operators.
const OPSET: i64 = 23;

/// The pass "target", for ONNX Runtime.
#[derive(Debug)]
pub struct ForOnnxRuntime;

impl Pass for ForOnnxRuntime {
    fn name(&self) -> &'static str {
        "target"
    }

    fn run(&self, graph: &mut Graph, cx: &Context) -> Result<Outcome> {
        let by_bits: [Box<dyn Rule>; 2] = [Box::new(in_blocks::ToNBits), Box::new(in_blocks::ToGatherBlocks)];
        let mut done = nested::change_each(graph, |graph| rewrite(graph, &by_bits, cx))?;
        if newest(graph) < OPSET {
            let why = format!("{}: an operator that is kept as it is keeps the model at its opset", option::TARGET);
            done.warnings.push(why);
        } else {
            done.add(rewrite(graph, &[Box::new(ToAttention), Box::new(ToRmsNorm)], cx)?);
        }
        if done.edits > 0 {
            done.add(Clean.run(graph, cx)?);
        }
        Ok(done)
    }
}

/// `x / sqrt(mean(x²) + epsilon) * scale`, with a scale or without, is one RMSNormalization.
struct ToRmsNorm;

impl Rule for ToRmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Div", "Mul"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(rms_norm(graph, node).unwrap_or(Verdict::No))
    }
}

fn rms_norm(graph: &Graph, node: NodeId) -> Option<Verdict> {
    let norm = Normalised::of(graph, node)?;
    let mut edit = Edit::new();
    let scaled = scaled(graph, node.into(), norm.axis)
        .and_then(|(product, port, tensor)| Some((product, as_scale(graph, &mut edit, port, tensor, &norm.sizes)?)));
    // A scale of ones is gone by now.
    let (product, scale) = match scaled {
        Some(scaled) => scaled,
        None => (node.into(), edit.constant("scale", ones(&norm)?)),
    };
    let axis = norm.axis as i64 - graph.fact(norm.x).rank()? as i64;
    let op = RmsNorm { axis, epsilon: norm.epsilon, stash_type: DType::F32 };
    let fused = edit.node(&graph.node(product.node).name, op, &[Some(norm.x.into()), Some(scale)]);
    edit.replace(product, fused);
    Some(Verdict::Apply(edit))
}

/// All between the projections is one Attention.
struct ToAttention;

impl Rule for ToAttention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn roots(&self) -> &'static [&'static str] {
        &["Softmax"]
    }

    fn apply(&self, graph: &Graph, node: NodeId, _: &Context) -> Result<Verdict> {
        Ok(match Pattern::of(graph, node) {
            None => Verdict::No,
            Some(p) => p.fused(node).map_or_else(|why| Verdict::Skip(why.into()), Verdict::Apply),
        })
    }
}

/// Weights times values.
struct Pattern<'a> {
    graph: &'a Graph,
    scores: Scores,
    q: Port,
    /// The keys, transposed.
    k: Port,
    v: Port,
    context: Port,
}

/// What an Attention reads and takes the place of.
struct Operands {
    q: Ref,
    k: Ref,
    v: Ref,
    /// Heads of inputs with three axes.
    heads: Option<i64>,
    /// What multiplies queries and keys before.
    scale: f64,
    /// The queries again, and their axis.
    queries: (Port, i64),
    result: Port,
}

impl<'a> Pattern<'a> {
    fn of(graph: &'a Graph, softmax: NodeId) -> Option<Self> {
        let scores = Scores::of(graph, softmax).filter(|s| !s.are_replaced())?;
        let (q, k) = scores.operands(graph)?;
        // What PyTorch writes for queries that see no key, whose context ONNX Runtime's Attention makes 0 too.
        let guards = |n: &NodeId| matches!(graph.op(*n), Op::Where(_));
        let guard = graph.uses(softmax.into()).into_iter().map(|u| u.node).find(guards);
        let weights = Port::from(guard.unwrap_or(softmax));
        let reader = graph.only_use(weights).filter(|u| u.slot == 0)?.node;
        let Op::MatMul(_) = graph.op(reader) else { return None };
        let hidden = |port: Port| graph.only_use(port).is_some() || guard.is_some() && port == softmax.into();
        Weights::hidden(graph, weights, &hidden).filter(|w| w.softmax == softmax)?;
        let v = graph.operand(reader, 1)?;
        Some(Self { graph, scores, q, k, v, context: reader.into() })
    }

    fn dims(&self, port: Port) -> Option<&'a [Dim]> {
        self.graph.fact(port).dims()
    }

    fn fused(&self, softmax: NodeId) -> std::result::Result<Edit, &'static str> {
        let (Some([b, h, length, _]), Some([kb, kh, _, total]), Some([vb, vh, ..])) =
            (self.dims(self.q), self.dims(self.k), self.dims(self.v))
        else {
            return Err("queries, keys and values don't have four axes");
        };
        if !(b.same(kb) && b.same(vb) && h.same(kh) && h.same(vh)) {
            return Err("queries, keys and values may have batches or heads of different sizes");
        }
        if [self.q, self.k, self.v].into_iter().filter_map(|p| self.dims(p)).flatten().any(|d| *d == Dim::Known(0)) {
            return Err("ONNX Runtime's Attention refuses axes of size 0");
        }
        let dtype = self.graph.fact(self.q).dtype;
        let alike = [self.k, self.v].into_iter().all(|p| self.graph.fact(p).dtype == dtype);
        if !alike || !matches!(dtype, Some(DType::F32 | DType::F16)) {
            return Err("queries, keys and values are not all f32, or all f16");
        }
        let mut edit = Edit::new();
        let operands = match self.joined(h) {
            Some(operands) => operands,
            None => self.apart(&mut edit).ok_or("the keys are not transposed where they are multiplied")?,
        };
        let scale = self.scores.factors.iter().map(|f| f.value).product::<f64>() * operands.scale;
        if !(scale > 0.0 && (scale as f32).is_finite()) {
            return Err("the scale is not positive");
        }
        let mut inputs = vec![Some(operands.q), Some(operands.k), Some(operands.v)];
        match self.scores.masks[..] {
            [] => {}
            [Mask::Added(mask)] => {
                inputs.push(Some(self.mask(&mut edit, mask, &operands, [b, h, length, total])?));
            }
            _ => return Err("several masks are added"),
        }
        let op = Attention {
            is_causal: false,
            q_num_heads: operands.heads,
            kv_num_heads: operands.heads,
            scale: Some(scale as f32),
            softcap: 0.0,
            softmax_precision: None,
            qk_matmul_output_mode: 0,
            left_window_size: -1,
            right_window_size: -1,
        };
        let fused = edit.node(&self.graph.node(softmax).name, op, &inputs);
        edit.replace(operands.result, fused);
        Ok(edit)
    }

    /// Inputs and result as `[batch, length, heads * size]`, if that is what they are made of.
    fn joined(&self, heads: &Dim) -> Option<Operands> {
        let heads = heads.known().filter(|h| *h > 0)?;
        let (q, q_scale) = self.flat(self.q, [0, 2, 1, 3], heads)?;
        let (k, k_scale) = self.flat(self.k, [0, 3, 1, 2], heads)?;
        let (v, v_scale) = self.flat(self.v, [0, 2, 1, 3], heads)?;
        let dims = self.dims(self.context)?;
        let mut layout = AxisRuns::of(dims);
        let mut result = self.context;
        // Sums over values of one size are moved to where the heads are behind each other.
        let found = |layout: &AxisRuns| {
            let whole = |axis: usize, of: usize| layout.is_whole(axis, of, &dims[of]);
            let [_, _, last] = &layout.0[..] else { return false };
            let parts: Vec<usize> = last.iter().map(|p| p.axis).collect();
            let long = |axis: &usize| dims[*axis] != Dim::Known(1);
            let expected: Vec<usize> = [1, 3].into_iter().filter(long).collect();
            whole(0, 0) && whole(1, 2) && parts == expected && last.iter().all(|p| p.stride == 1)
        };
        while !found(&layout) {
            let reader = self.graph.only_use(result).filter(|u| u.slot == 0)?.node;
            layout = layout.through(self.graph, reader)?;
            result = reader.into();
        }
        (v_scale == 1.0).then_some(Operands {
            q: q.into(),
            k: k.into(),
            v: v.into(),
            heads: Some(heads),
            scale: q_scale * k_scale,
            queries: (q, 1),
            result,
        })
    }

    /// The value of three axes that is moved to `port`: batch, length, heads and size of a head go to
    /// `axes`. And what multiplies it on the way.
    fn flat(&self, port: Port, [b, s, h, d]: [usize; 4], heads: i64) -> Option<(Port, f64)> {
        let chain = Chain::to(self.graph, port);
        let starts = 0..=chain.nodes.len();
        starts.into_iter().find_map(|from| {
            let start = match from.checked_sub(1) {
                Some(before) => Port::from(*chain.nodes.get(before)?),
                None => chain.source,
            };
            let [batch, length, features] = self.dims(start)? else { return None };
            let size = features.known().filter(|f| f % heads == 0)? / heads;
            let layout = chain.layout(self.graph, from)?;
            let part = |axis: usize, stride: i64, size: i64| match &layout.0.get(axis)?[..] {
                [] => Some(size == 1),
                [p] => Some(p.axis == 2 && p.stride == stride && p.size == Dim::Known(size)),
                _ => None,
            };
            let fits = layout.0.len() == 4
                && layout.is_whole(b, 0, batch)
                && layout.is_whole(s, 1, length)
                && part(h, size, heads)?
                && part(d, 1, size)?;
            let factors = chain.factors(self.graph).into_iter();
            let on_the_way = factors.filter(|f| chain.nodes[from..].contains(&f.product.node));
            fits.then(|| (start, on_the_way.map(|f| f.value).product()))
        })
    }

    /// Inputs and result as `[batch, heads, length, size]`.
    fn apart(&self, edit: &mut Edit) -> Option<Operands> {
        let Op::Transpose(t) = self.graph.op(self.k.node) else { return None };
        let mut perm = t.resolve(4).ok()?;
        perm.swap(2, 3);
        let x = self.graph.operand(self.k.node, 0)?;
        let k = if perm.is_sorted() {
            x.into()
        } else {
            let perm = perm.into_iter().map(|axis| axis as i64).collect();
            edit.node(&self.graph.node(self.k.node).name, Transpose { perm }, &[Some(x.into())])
        };
        Some(Operands {
            q: self.q.into(),
            k,
            v: self.v.into(),
            heads: None,
            scale: 1.0,
            queries: (self.q, 2),
            result: self.context,
        })
    }

    /// The mask as ONNX Runtime wants it.
    fn mask(
        &self,
        edit: &mut Edit,
        mask: Port,
        operands: &Operands,
        [b, h, length, total]: [&Dim; 4],
    ) -> std::result::Result<Ref, &'static str> {
        if self.graph.fact(mask).dtype != self.graph.fact(self.q).dtype {
            return Err("the type of the mask is not known");
        }
        let dims = self.dims(mask).unwrap_or_default();
        let one = Dim::Known(1);
        let at = |from_last: usize| dims.len().checked_sub(from_last).map_or(&one, |i| &dims[i]);
        let fits = |from_last: usize, size: &Dim| *at(from_last) == one || at(from_last).same(size);
        let columns = at(1).same(total);
        if dims.is_empty() || !columns || !fits(2, length) || !fits(3, h) || !fits(4, b) {
            return Err("too little is known of the mask's shape, or it has no column for each key");
        }
        if dims.len() >= 2 && at(2).same(length) {
            return Ok(mask.into());
        }
        let name = &self.graph.value(mask).name;
        let target = match length {
            Dim::Known(n) => edit.constant("shape", Tensor::i64s(&[*n, 1])),
            _ => {
                // All layers that have this mask share its rows where queries and keys are as many.
                let (port, axis) = if length.same(total) { (mask, -1) } else { operands.queries };
                let op = Shape { start: axis, end: (axis != -1).then_some(axis + 1) };
                let rows = edit.node("", op, &[Some(port.into())]);
                let one = edit.constant("one", Tensor::i64s(&[1]));
                edit.node("", Concat { axis: 0 }, &[Some(rows), Some(one)])
            }
        };
        Ok(edit.node(&format!("{name}/Expand"), Expand, &[Some(mask.into()), Some(target)]))
    }
}
