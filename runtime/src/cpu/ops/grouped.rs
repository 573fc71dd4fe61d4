//! GroupQueryAttention: the cache with new keys and values in their places, and attention over it.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
    steps::{Operands, View},
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
    op::Op,
    ops::group_query_attention::GroupQueryAttention,
    tensor::{DType, Tensor},
};
use compress_kernels::{self as kernels, Attention, Head, Heads, MASKS, Mask, Rows, RowsMut};
use std::sync::Arc;

/// The float value `port`: attention, present keys or present values.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let Op::GroupQueryAttention(op) = g.op(port.node) else { return None };
    let total = g.fact(g.operand(port.node, 6)?);
    // Attention reads the other two.
    if g.node(port.node).outputs.len() < 3 || total.elems.is_none() {
        return None;
    }
    let operand = |slot: usize| g.operand(port.node, slot);
    let is_float = |p: &Port| g.fact(*p).dtype == Some(DType::F32);
    let last = operand(5)?;
    let fact = g.fact(last);
    let given = fact.dtype == Some(DType::I32) && fact.elems.is_none() && g.constant(last).is_none();
    let floats = [0, 1, 2, 3, 4].into_iter().filter_map(operand).all(|p| is_float(&p) && s.rank(p).is_some());
    let plain = op.softcap == 0.0 && !op.rotary_interleaved && operand(9).is_none() && operand(10).is_none();
    if !s.has(port.node) || s.on_device || !given || !floats || !plain {
        return None;
    }
    let angles = match op.do_rotary {
        true => {
            let table = |slot: usize| operand(slot).and_then(|p| g.constant(p)).filter(|t| t.shape().len() == 2);
            let (cos, sin) = (table(7)?.clone(), table(8)?.clone());
            (cos.shape() == sin.shape() && cos.dtype() == DType::F32 && sin.dtype() == DType::F32)
                .then_some([cos, sin])?
                .into()
        }
        false => None,
    };
    let size = |n: i64| usize::try_from(n).ok();
    let (heads, groups) = (size(op.num_heads)?, size(op.kv_num_heads)?);
    let packed = operand(1).is_none();
    let all = if packed { heads + 2 * groups } else { heads };
    let own = |slot: usize| if packed { operand(0) } else { operand(slot) };
    let last = Want::codes(last);
    Some(match port.slot {
        0 => {
            let present = [1, 2].map(|slot| Want::float(Port { node: port.node, slot }));
            let operands = vec![Want::float(operand(0)?), present[0], present[1], last];
            let op = op.clone();
            Lowering::with(operands, move |_| {
                let queries = Side { all, first: 0, heads, angles: angles.map(Angles::read) };
                Ok(Attended { queries, groups, op })
            })
        }
        slot => {
            let first = if packed { heads + (slot - 1) * groups } else { 0 };
            let all = if packed { all } else { groups };
            let angles = angles.filter(|_| slot == 1);
            let mut operands = vec![Want::float(own(slot)?), last];
            operands.extend(operand(slot + 2).map(Want::float));
            Lowering::with(operands, move |_| {
                Ok(Present(Side { all, first, heads: groups, angles: angles.map(Angles::read) }))
            })
        }
    })
}

/// Cosines and sines, a row for each position.
struct Angles {
    positions: usize,
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Angles {
    fn read([cos, sin]: [Tensor; 2]) -> Arc<Self> {
        let floats = |t: &Tensor| t.as_f32().map(|v| v.to_vec()).unwrap_or_default();
        let (positions, pairs) = (cos.shape()[0], cos.shape()[1]);
        Arc::new(Self { positions, pairs, cos: floats(&cos), sin: floats(&sin) })
    }
}

/// Heads that lie side by side among others, and the angles that turn them.
#[derive(Clone)]
struct Side {
    /// How many heads lie side by side.
    all: usize,
    /// Which is the first of these.
    first: usize,
    heads: usize,
    angles: Option<Arc<Angles>>,
}

/// `[batch, length, heads side by side]` and the size of a head.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    length: usize,
    width: usize,
    size: usize,
}

impl Side {
    /// # Errors
    /// Unsupported for sizes that don't fit, or positions without angles among `total`.
    fn sizes(&self, dims: &[usize], total: usize) -> Result<Sizes> {
        let [batch, length, width] = *dims else { return Err(Error::unsupported("queries of another rank")) };
        let size = width / self.all;
        let turned = self.angles.as_ref().is_none_or(|a| 2 * a.pairs <= size && total <= a.positions && a.pairs > 0);
        let is_empty = batch * length * size == 0;
        if size * self.all != width || total < length || !turned || is_empty {
            return Err(Error::unsupported("heads, keys and angles that don't fit each other"));
        }
        Ok(Sizes { batch, length, width, size })
    }

    /// Writes head `head` of sample `b`, a row of a head for each query, to `to`; the first has place `begin`.
    fn write(&self, isa: kernels::Isa, x: &[f32], of: Sizes, [b, head, begin]: [usize; 3], to: &mut [f32]) {
        let from = b * of.length * of.width + (self.first + head) * of.size;
        let x = Rows::new(&x[from..], of.length, of.size, of.width);
        let mut y = RowsMut::dense(to, of.length, of.size);
        let turned = self.angles.as_ref().map_or(0, |angles| 2 * angles.pairs);
        if turned < of.size {
            kernels::copy(x, y.reborrow());
        }
        if let Some(angles) = &self.angles {
            let table = |t| Rows::dense(t, angles.positions, angles.pairs);
            let y = RowsMut::new(to, of.length, turned, of.size);
            kernels::rotate(
                isa,
                x.columns(0, turned),
                [table(&angles.cos), table(&angles.sin)],
                |i| [begin + i; 2],
                y,
                1,
            );
        }
    }
}

/// For sample `b` of operand `at`, the position of its first query: behind all keys but those of this run. Of a prompt it is 0.
/// [`Present`] had the lengths checked; whatever they are, no more than `most`.
fn begin(o: &Operands, at: usize, b: usize, length: usize, most: usize) -> usize {
    let bytes: &[u8] = o.bytes(at);
    let last = bytes.as_chunks().0.get(b).map_or(0, |n| i32::from_ne_bytes(*n));
    usize::try_from(i64::from(last) + 1).unwrap_or(0).saturating_sub(length).min(most)
}

/// The cache with new rows in it.
struct Present(Side);

impl Lowered for Present {
    fn may_be_empty(&self) -> bool {
        true
    }

    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let [batch, groups, total, size] = *p.dims(output) else {
            return Err(Error::unsupported("a cache of another rank"));
        };
        let of = self.0.sizes(p.dims(inputs[0]), total)?;
        let nothing = [batch, groups, 0, size];
        let past = inputs.get(2).map_or(&nothing[..], |past| p.dims(*past));
        let before = past.get(2).copied().unwrap_or(0);
        let fits = (of.batch, of.size, groups) == (batch, size, self.0.heads);
        if !fits || past != [batch, groups, before, size] || before > total {
            return Err(Error::unsupported("a cache that doesn't fit keys"));
        }
        let most = before.min(total - of.length);
        let mut reads: Vec<(View, usize)> = vec![(p.dense(inputs[0]), 4), (p.dense(inputs[1]), p.size(inputs[1]))];
        if before > 0 {
            reads.push((p.dense(inputs[2]), 4));
        }
        p.check(inputs[1], move |bytes| {
            let lasts = bytes.as_chunks().0.iter().map(|n| i64::from(i32::from_ne_bytes(*n)));
            let fits = |last: i64| {
                let end = usize::try_from(last + 1).ok().filter(|end| *end <= total);
                end.is_some_and(|end| end.saturating_sub(of.length) <= before)
            };
            match lasts.clone().all(fits) && lasts.len() == batch {
                true => Ok(()),
                false => Err(Error::malformed(format!(
                    "seqlens_k of {:?} for {batch} samples of {} tokens behind a cache of {before}",
                    lasts.take(8).collect::<Vec<_>>(),
                    of.length
                ))),
            }
        })?;
        let y = p.fresh(output, Layout::Plain);
        let (isa, side) = (p.isa(), self.0.clone());
        p.step_of("cache", output, reads, y, 0, cost::bytes(8 * y.len()), move |o| {
            let x: &[f32] = o.slice(0);
            let past: &[f32] = if before > 0 { o.slice(2) } else { &[] };
            let begins: Vec<usize> = (0..of.batch).map(|b| begin(o, 1, b, of.length, most)).collect();
            let mut y = o.out::<f32>();
            for (i, to) in y.data().chunks_exact_mut(total * size).enumerate() {
                let (b, head) = (i / side.heads, i % side.heads);
                let (begin, past) = (begins[b] * size, &past[i * before * size..][..before * size]);
                let end = begin + of.length * size;
                to[..begin].copy_from_slice(&past[..begin]);
                side.write(isa, x, of, [b, head, begins[b]], &mut to[begin..end]);
                to[end..].fill(0.0);
            }
        });
        Ok(())
    }
}

/// Attention over a cache.
struct Attended {
    queries: Side,
    groups: usize,
    op: GroupQueryAttention,
}

impl Lowered for Attended {
    fn is_by_sample(&self, inputs: &[Operand], _output: &[usize]) -> bool {
        inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let [batch, groups, total, size] = *p.dims(inputs[1]) else {
            return Err(Error::unsupported("a cache of another rank"));
        };
        let of = self.queries.sizes(p.dims(inputs[0]), total)?;
        if (batch, groups, size) != (of.batch, self.groups, of.size) || p.dims(inputs[1]) != p.dims(inputs[2]) {
            return Err(Error::unsupported("a cache that doesn't fit queries"));
        }
        let (heads, length) = (self.queries.heads, of.length);
        let (isa, side) = (p.isa(), self.queries.clone());
        let last = (p.dense(inputs[3]), p.size(inputs[3]));
        let n = of.batch * heads;
        let turned = p.buffer(output, n * length, size);
        let x = (p.dense(inputs[0]), 4);
        p.step_of("rotary", output, vec![x, last], turned, 0, cost::bytes(16 * turned.len()), move |o| {
            let x: &[f32] = o.slice(0);
            let begins: Vec<usize> = (0..of.batch).map(|b| begin(o, 1, b, length, total - length)).collect();
            for (i, to) in o.out::<f32>().data().chunks_exact_mut(length * size).enumerate() {
                side.write(isa, x, of, [i / heads, i % heads, begins[i / heads]], to);
            }
        });
        // What a query doesn't see is taken out of its scores.
        let mask = p.buffer(output, of.batch * length, total);
        let window = usize::try_from(self.op.local_window_size).unwrap_or(usize::MAX);
        p.step_of("mask", output, vec![last], mask, 0, cost::bytes(4 * mask.len()), move |o| {
            let begins: Vec<usize> = (0..of.batch).map(|b| begin(o, 0, b, length, total - length)).collect();
            for (i, row) in o.out::<f32>().data().chunks_exact_mut(total).enumerate() {
                let at = begins[i / length] + i % length;
                for (j, v) in row.iter_mut().enumerate() {
                    *v = if j <= at && at - j < window { 0.0 } else { f32::NEG_INFINITY };
                }
            }
        });
        let scale = self.op.scale.unwrap_or_else(|| 1.0 / (size as f32).sqrt());
        let kernel = Attention::new(
            isa,
            Heads { depth: size, keys: total, width: size, keys_are_rows: true, scale, guarded: true },
        );
        let work = cost::macs32(isa, n as u64 * kernel.macs(length)) + cost::math(n * length * total);
        let scratch = kernel.scratch(length, p.parts(work));
        let whole = p.fresh(output, Layout::Plain);
        // Heads lie one below the other first, where there are several rows of each.
        let apart = length > 1 && heads > 1;
        let rows = n * length;
        let y = if apart { Some(p.buffer(output, rows, size)) } else { whole.reshaped(rows, size) };
        let y = y.ok_or_else(|| Error::unsupported("a result with gaps"))?;
        let reads = vec![(turned, 4), (p.dense(inputs[1]), 4), (p.dense(inputs[2]), 4), (mask, 4)];
        let shared = heads / groups;
        p.step_of("attention", output, reads, y, scratch, work, move |o| {
            let (q, k, v, mask): (&[f32], &[f32], &[f32], &[f32]) = (o.slice(0), o.slice(1), o.slice(2), o.slice(3));
            let parts = o.parts;
            let (y, scratch) = o.write();
            let head = |i: usize| {
                let at = (i / heads * groups + i % heads / shared) * total * size;
                let mut masks = [None; MASKS];
                masks[0] = Some(Mask::Added(Rows::dense(&mask[i / heads * length * total..], length, total)));
                Head {
                    queries: Rows::dense(&q[i * length * size..], length, size),
                    keys: Rows::dense(&k[at..], total, size),
                    values: Rows::dense(&v[at..], total, size),
                    masks,
                }
            };
            kernel.run(n, head, y, scratch, parts);
        });
        if apart {
            let dims = [of.batch, heads, length, size];
            p.step("transpose", output, &[y], whole, 0, cost::bytes(8 * rows * size), move |o| {
                let (x, parts) = (o.slice::<f32>(0), o.parts);
                kernels::permute(x, &dims, &[0, 2, 1, 3], o.out::<f32>().data(), parts);
            });
        }
        Ok(())
    }
}
