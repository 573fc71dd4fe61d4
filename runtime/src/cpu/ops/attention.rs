//! Attention, as one operator or as exporters write it, `Softmax(Q * K' * scale + mask) * V`, in one kernel.

use super::{
    logic,
    matmul::{Matrices, StridedMatrices},
};
use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::{Operands, View},
};
use compress_compiler::{
    error::{Error, Result},
    forms::attention::{Factor, Mask, Scores, Weights},
    node::{Port, Use},
    op::Op,
    ops::{attention as op, unary::Unary},
    tensor::DType,
};
use compress_kernels::{self as kernels, Attention, Head, Heads, MASKS, Rows};

/// Transposes and multiplications that are looked through before a product.
const MOVES: usize = 4;

/// The float value `port`, where it is sums of values by weights of keys.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    if let Op::Attention(op) = g.op(port.node) {
        return of_operator(s, port, op);
    }
    let Op::MatMul(_) = g.op(port.node) else { return None };
    let guarded =
        |uses: &[Use]| matches!(uses, [a, b] if [a, b].iter().any(|u| matches!(g.op(u.node), Op::Unary(Unary::IsNaN))));
    let hidden = |port: Port| {
        let uses = g.element_uses(port);
        s.has(port.node) && !s.is_pinned(port) && (uses.len() == 1 || guarded(&uses))
    };
    let weights = Weights::hidden(g, g.operand(port.node, 0)?, &hidden)?;
    let scores = Scores::hidden(g, weights.softmax, &hidden)?;
    let (q, k) = scores.operands(g)?;
    let (q, k) = (Moved::to(s, q, false)?, Moved::to(s, k, true)?);
    let v = Moved::unscaled(s, g.operand(port.node, 1)?)?;
    let rank = s.rank(port)?;
    let is_part = s.has(port.node)
        && [q.source, k.source, v.source].iter().all(|p| g.fact(*p).dtype == Some(DType::F32))
        && [&q, &k, &v].iter().all(|m| m.axes.0.len() == rank)
        && scores.masks.len() <= MASKS;
    if !is_part {
        return None;
    }
    let scale = scores.factors.iter().map(|f| f.value).product::<f64>() * q.factor * k.factor;
    let (k, v) = (k.before_repeats(s), v.before_repeats(s));
    let mut operands: Vec<Want> = [&q, &k, &v].iter().map(|m| Want::float(m.source)).collect();
    let shapes: Vec<Port> = [&k, &v].iter().flat_map(|m| m.repeated).flatten().collect();
    let repeated = [&k, &v].map(|m| m.repeated.is_some());
    let mut masks = vec![];
    for mask in &scores.masks {
        let (want, kind) = match *mask {
            Mask::Added(mask) => (Want::float(mask), Masking::Added),
            Mask::Chosen { condition, keeps, other } => {
                (Want::codes(condition), Masking::Kept { keeps, other: s.scalar(other)? })
            }
        };
        let dtype = if let Masking::Added = kind { DType::F32 } else { DType::Bool };
        if g.fact(want.port).dtype != Some(dtype) || s.rank(want.port)? > rank {
            return None;
        }
        operands.push(want);
        masks.push(kind);
    }
    let lies = [q, k, v].map(|m| Lies::Axes(m.axes));
    let scale = Some(scale as f32);
    let op = Fused { lies, repeated, joined: false, masks, scale, guarded: weights.guarded };
    Some(Lowering::of(operands, op).with_shapes(shapes))
}

/// The first output of an Attention without past keys, limits of distance and caps.
fn of_operator<'g>(s: &Scope<'g>, port: Port, op: &op::Attention) -> Option<Lowering<'g>> {
    let g = s.graph;
    let operand = |slot: usize| g.operand(port.node, slot);
    let is_float = |p: &Port| g.fact(*p).dtype == Some(DType::F32);
    let (q, k, v) = (operand(0)?, operand(1)?, operand(2)?);
    let plain = port.slot == 0
        && (4..7).all(|slot| operand(slot).is_none())
        && !op.is_causal
        && !op.has_window()
        && op.softcap == 0.0
        && op.softmax_precision.is_none_or(|t| t == DType::F32);
    if !plain || !s.has(port.node) || ![q, k, v].iter().all(is_float) {
        return None;
    }
    let lies = |port: Port, heads: Option<i64>, keys: bool| match s.rank(port)? {
        3 => Some(Lies::Joined(usize::try_from(heads?).ok().filter(|n| *n > 0)?)),
        4 => Some(Lies::Axes(Matrices(if keys { vec![0, 1, 3, 2] } else { vec![0, 1, 2, 3] }))),
        _ => None,
    };
    let kv = op.kv_num_heads;
    let lies = [lies(q, op.q_num_heads, false)?, lies(k, kv, true)?, lies(v, kv, false)?];
    let mut operands: Vec<Want> = [q, k, v].map(Want::float).into();
    let mut masks = vec![];
    if let Some(mask) = operand(3) {
        let (want, kind) = match g.fact(mask).dtype? {
            DType::F32 => (Want::float(mask), Masking::Added),
            DType::Bool => (Want::codes(mask), Masking::Kept { keeps: true, other: f32::NEG_INFINITY }),
            _ => return None,
        };
        s.rank(mask).filter(|rank| *rank <= 4)?;
        operands.push(want);
        masks.push(kind);
    }
    let joined = matches!(lies[0], Lies::Joined(_));
    Some(Lowering::of(operands, Fused { lies, repeated: [false; 2], joined, masks, scale: op.scale, guarded: true }))
}

/// A value that is transposed and multiplied by numbers before it is read.
struct Moved {
    source: Port,
    axes: Matrices,
    factor: f64,
    /// Where several heads of queries share one of `source`: values that have it once for each, `[batch, heads, shared, ..]` and
    /// `[batch, heads * shared, ..]`.
    repeated: Option<[Port; 2]>,
}

impl Moved {
    /// The matrices of `port`, which lie row by row; or, if `either`, column by column.
    fn to(s: &Scope, port: Port, either: bool) -> Option<Self> {
        let rank = s.rank(port).filter(|r| *r >= 2)?;
        let mut at = Self { source: port, axes: Matrices((0..rank).collect()), factor: 1.0, repeated: None };
        let (mut axes, mut source, mut factor) = (at.axes.0.clone(), port, 1.0);
        for _ in 0..MOVES {
            if s.inner(source).is_none() {
                break;
            }
            if let Op::Transpose(op) = s.graph.op(source.node) {
                let perm = op.resolve(rank).ok()?;
                axes.iter_mut().for_each(|axis| *axis = perm[*axis]);
                source = s.graph.operand(source.node, 0)?;
            } else if let Some(by) = Factor::of(s.graph, source.node) {
                (source, factor) = (by.x, factor * by.value);
            } else {
                break;
            }
            if axes[rank - 1] == rank - 1 || either && axes[rank - 2] == rank - 1 {
                at = Self { source, axes: Matrices(axes.clone()), factor, repeated: None };
            }
        }
        Some(at)
    }

    /// As [`Moved::to`], of a value that no number multiplies.
    fn unscaled(s: &Scope, port: Port) -> Option<Self> {
        let rank = s.rank(port).filter(|r| *r >= 2)?;
        let plain = || Self { source: port, axes: Matrices((0..rank).collect()), factor: 1.0, repeated: None };
        Some(Self::to(s, port, false).filter(|m| m.factor == 1.0).unwrap_or_else(plain))
    }

    /// The same of the heads that are there once, where each was copied for several heads of queries: by Unsqueeze, Expand and
    /// Reshape, as Hugging Face's `repeat_kv` does.
    fn before_repeats(self, s: &Scope) -> Self {
        let g = s.graph;
        let operand = |port: Port| g.operand(port.node, 0).filter(|_| s.inner(port).is_some());
        let found = || -> Option<(Port, [Port; 2])> {
            let joined = self.source;
            let (Op::Reshape(_), [0, 1, _, _]) = (g.op(joined.node), &self.axes.0[..]) else { return None };
            let expanded = operand(joined)?;
            let Op::Expand(_) = g.op(expanded.node) else { return None };
            let apart = operand(expanded)?;
            let Op::Unsqueeze(_) = g.op(apart.node) else { return None };
            let x = operand(apart)?;
            let axes = g.constant(g.operand(apart.node, 1)?)?.as_i64()?;
            (s.rank(x) == Some(4) && matches!(axes[..], [2 | -3])).then_some((x, [expanded, joined]))
        };
        match found() {
            Some((source, repeated)) => Self { source, repeated: Some(repeated), ..self },
            None => self,
        }
    }
}

/// What becomes of scores.
#[derive(Clone, Copy)]
enum Masking {
    Added,
    Kept { keeps: bool, other: f32 },
}

/// How the heads of an operand lie.
enum Lies {
    /// Along axes of their own; those of keys are the ones of the transposed keys.
    Axes(Matrices),
    /// So many side by side along the last of three axes.
    Joined(usize),
}

impl Lies {
    /// The matrices in a dense value of sizes `dims`; of `keys`, the transposed ones.
    fn strided(&self, dims: &[usize], keys: bool) -> StridedMatrices {
        match self {
            Self::Axes(axes) => axes.strided(dims),
            Self::Joined(heads) => {
                let (length, width) = (dims[1], dims[2] / heads);
                let size = if keys { [width, length] } else { [length, width] };
                StridedMatrices { batch: vec![(dims[0], length * dims[2]), (*heads, width)], size, stride: dims[2] }
            }
        }
    }
}

/// Weights of keys, and sums of values by them.
struct Fused {
    /// Of queries, keys and values.
    lies: [Lies; 3],
    /// Whether keys and values are there once for several heads of queries; the shapes of what has them for each follow the masks.
    repeated: [bool; 2],
    /// Whether the heads of the result are side by side along the last of three axes.
    joined: bool,
    masks: Vec<Masking>,
    /// One by the root of the features unless given.
    scale: Option<f32>,
    guarded: bool,
}

/// Where each head's matrix begins in `m`; several heads may share one.
fn starts(m: &StridedMatrices, batch: &[usize]) -> Result<Vec<usize>> {
    let own: Vec<usize> = m.batch.iter().map(|b| b.0).collect();
    let differ = || Error::unsupported("heads of queries, keys and values in different numbers");
    let ((last, front), (own_last, own_front)) =
        (batch.split_last().ok_or_else(differ)?, own.split_last().ok_or_else(differ)?);
    if front != own_front || !last.is_multiple_of(*own_last) {
        return Err(differ());
    }
    let shared = last / own_last;
    Ok(m.starts(&own).into_iter().flat_map(|at| std::iter::repeat_n(at, shared)).collect())
}

/// Where a mask lies for each head.
struct Laid {
    kind: Masking,
    /// Which operand it is.
    operand: usize,
    starts: Vec<usize>,
    rows: usize,
    width: usize,
}

/// The elements of a mask.
#[derive(Clone, Copy)]
enum Elements<'a> {
    Floats(&'a [f32]),
    Bools { of: &'a [u8], keeps: bool, other: f32 },
}

impl Laid {
    fn elements<'a>(&self, o: &Operands<'a>) -> Elements<'a> {
        match self.kind {
            Masking::Added => Elements::Floats(o.slice(self.operand)),
            Masking::Kept { keeps, other } => Elements::Bools { of: o.slice(self.operand), keeps, other },
        }
    }

    fn mask<'a>(&self, elements: Elements<'a>, head: usize) -> kernels::Mask<'a> {
        let (at, rows, width) = (self.starts[head], self.rows, self.width);
        match elements {
            Elements::Bools { of, keeps, other } => {
                kernels::Mask::Kept { condition: Rows::dense(&of[at..], rows, width), keeps, other }
            }
            Elements::Floats(of) => kernels::Mask::Added(Rows::dense(&of[at..], rows, width)),
        }
    }
}

impl Lowered for Fused {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        let (heads, masks) = inputs[..3 + self.masks.len()].split_at(3);
        // The first axis is one of heads, not of their rows.
        output.len() > 2
            && heads.iter().zip(&self.lies).all(|(x, lies)| {
                let first = |axes: &Matrices| x.dims.len() == output.len() && axes.0[0] == 0;
                !x.is_constant && matches!(lies, Lies::Axes(axes) if first(axes)) || matches!(lies, Lies::Joined(_))
            })
            // With fewer axes than scores have, a mask has none of samples.
            && (!self.joined || masks.iter().all(|x| x.dims.len() == 4 && !x.is_constant))
            && (self.joined || super::elementwise::is_by_sample(masks, output))
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let [q, k, v] = [0, 1, 2].map(|i| self.lies[i].strided(p.dims(inputs[i]), i == 1));
        let mut shapes = inputs[3 + self.masks.len()..].iter().map(|id| p.dims(*id));
        for (id, _) in inputs[1..3].iter().zip(self.repeated).filter(|(_, repeated)| *repeated) {
            let (own, expanded, joined) = (p.dims(*id), shapes.next(), shapes.next());
            let [batch, heads, rows, width] = *own else { return Err(Error::bug("heads of another rank")) };
            let shared = expanded.and_then(|dims| dims.get(2)).copied().unwrap_or(0);
            if expanded != Some(&[batch, heads, shared, rows, width])
                || joined != Some(&[batch, heads * shared, rows, width])
            {
                return Err(Error::unsupported("heads that are repeated in another way"));
            }
        }
        let batch: Vec<usize> = q.batch.iter().map(|b| b.0).collect();
        let ([queries, depth], [_, keys], [_, width]) = (q.size, k.size, v.size);
        let keys_are_rows = match &self.lies[1] {
            Lies::Axes(axes) => axes.transposed(),
            Lies::Joined(_) => true,
        };
        if k.size[0] != depth || v.size[0] != keys {
            return Err(Error::unsupported("queries, keys and values that don't fit each other"));
        }
        let starts: Vec<[usize; 3]> = {
            let (q, k, v) = (starts(&q, &batch)?, starts(&k, &batch)?, starts(&v, &batch)?);
            q.into_iter().zip(k).zip(v).map(|((q, k), v)| [q, k, v]).collect()
        };
        let n = starts.len();
        let scores = [&batch[..], &[queries, keys]].concat();
        let mut masks = vec![];
        for (i, kind) in self.masks.iter().enumerate() {
            let own = p.dims(inputs[3 + i]).to_vec();
            let fits = own.iter().rev().zip(scores.iter().rev()).all(|(own, all)| *own == 1 || own == all);
            if !fits || own.len() > scores.len() {
                return Err(Error::unsupported("a mask of fewer keys than there are"));
            }
            let steps = logic::steps(&own, &scores);
            let (outer, last) = steps.split_at(batch.len());
            let size = |axis: usize| if last[axis] == 0 { 1 } else { scores[batch.len() + axis] };
            let mut starts = vec![0];
            for (n, step) in batch.iter().zip(outer) {
                starts = starts.iter().flat_map(|at| (0..*n).map(move |i| at + i * step)).collect();
            }
            masks.push(Laid { kind: *kind, operand: 3 + i, starts, rows: size(0), width: size(1) });
        }
        let read = &inputs[..3 + self.masks.len()];
        let reads: Vec<(View, usize)> = read.iter().map(|id| (p.dense(*id), p.size(*id))).collect();
        // What lies side by side in the end lies one below the other first, unless both are the same.
        let apart = self.joined && queries > 1 && batch.last() != Some(&1);
        let rows = n * queries;
        let whole = if self.joined { p.fresh(output, Layout::Plain) } else { p.output(output, Layout::Plain) };
        let y = match apart {
            true => p.buffer(output, rows, width),
            false => whole.reshaped(rows, width).ok_or_else(|| Error::unsupported("a result with gaps"))?,
        };
        let scale = self.scale.unwrap_or_else(|| 1.0 / (depth as f32).sqrt());
        let heads = Heads { depth, keys, width, keys_are_rows, scale, guarded: self.guarded };
        let kernel = Attention::new(p.isa(), heads);
        let work = cost::macs32(p.isa(), n as u64 * kernel.macs(queries))
            + cost::math(n * queries * keys)
            + cost::bytes(8 * n * keys * (depth + width));
        let scratch = kernel.scratch(queries, p.parts(work));
        let k_size = if keys_are_rows { [keys, depth] } else { [depth, keys] };
        p.step_of("attention", output, reads, y, scratch, work, move |o| {
            let (of_q, of_k, of_v): (&[f32], &[f32], &[f32]) = (o.slice(0), o.slice(1), o.slice(2));
            let elements: Vec<Elements> = masks.iter().map(|m| m.elements(o)).collect();
            let parts = o.parts;
            let (y, scratch) = o.write();
            let head = |i: usize| {
                let [at_q, at_k, at_v] = starts[i];
                let mut of_masks = [None; MASKS];
                for ((to, mask), elements) in of_masks.iter_mut().zip(&masks).zip(&elements) {
                    *to = Some(mask.mask(*elements, i));
                }
                Head {
                    queries: Rows::new(&of_q[at_q..], queries, depth, q.stride),
                    keys: Rows::new(&of_k[at_k..], k_size[0], k_size[1], k.stride),
                    values: Rows::new(&of_v[at_v..], keys, width, v.stride),
                    masks: of_masks,
                }
            };
            kernel.run(n, head, y, scratch, parts);
        });
        if apart {
            let dims = [&batch[..], &[queries, width]].concat();
            p.step("transpose", output, &[y], whole, 0, cost::bytes(8 * rows * width), move |o| {
                let (x, parts) = (o.slice::<f32>(0), o.parts);
                kernels::permute(x, &dims, &[0, 2, 1, 3], o.out::<f32>().data(), parts);
            });
        }
        Ok(())
    }
}
