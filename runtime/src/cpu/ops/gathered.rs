//! GatherElements along the last axis, as relative positions take it: by numbers that are known, or come from elsewhere.

use crate::cpu::{
    cost,
    lowering::{Lowered, Lowering, Operand, ValueId, Want},
    plan::{Layout, Planner},
    scope::Scope,
};
use compress_compiler::{
    error::{Error, Result},
    node::Port,
    op::Op,
    tensor::{DType, Tensor},
    value,
};
use compress_kernels as kernels;
use std::sync::Arc;

/// The float value `port`, where it is made of elements of another, row by row.
pub(super) fn lowering<'g>(s: &Scope<'g>, port: Port) -> Option<Lowering<'g>> {
    let g = s.graph;
    let Op::GatherElements(op) = g.op(port.node) else { return None };
    let (x, at) = (g.operand(port.node, 0)?, g.operand(port.node, 1)?);
    let (rank, fact) = (s.rank(x)?, g.fact(at));
    let fits = s.has(port.node)
        && !s.on_device
        && g.fact(x).dtype == Some(DType::F32)
        && matches!(fact.dtype, Some(DType::I64 | DType::I32))
        && s.rank(at) == Some(rank)
        && value::axis(op.axis, rank).ok()? + 1 == rank;
    if !fits {
        return None;
    }
    if let Some(indices) = g.constant(at) {
        return Some(Lowering::with(vec![Want::float(x)], move |_| Ok(Take { known: Some(Known::of(indices)?) })));
    }
    // Small integers that shapes tell are no value here.
    fact.elems.is_none().then(|| Lowering::of(vec![Want::float(x), Want::codes(at)], Take { known: None }))
}

struct Take {
    /// Which elements, if that is known; else the second operand says it.
    known: Option<Known>,
}

/// Indices, which may count from behind.
struct Known {
    shape: Vec<usize>,
    indices: Arc<[i64]>,
}

impl Known {
    fn of(t: &Tensor) -> Result<Self> {
        let indices = t.as_i64().ok_or_else(|| Error::bug("indices that are not integers"))?;
        Ok(Self { shape: t.shape().to_vec(), indices: indices.into() })
    }
}

/// Whether an index is one of `n` elements, counted from either end.
fn is_within(i: i64, n: i64) -> bool {
    (-n..n).contains(&i)
}

fn index(i: i64, n: i64) -> usize {
    (if i < 0 { i + n } else { i }) as usize
}

impl Lowered for Take {
    fn is_by_sample(&self, inputs: &[Operand], output: &[usize]) -> bool {
        self.known.is_none() && output.len() > 1 && inputs.iter().all(|x| !x.is_constant)
    }

    fn plan(&self, p: &mut Planner, inputs: &[ValueId], output: ValueId) -> Result<()> {
        let (dims, made) = (p.dims(inputs[0]).to_vec(), p.dims(output).to_vec());
        let (Some((n, before)), Some((_, rows))) = (dims.split_last(), made.split_last()) else {
            return Err(Error::unsupported("elements of a scalar"));
        };
        if before != rows || self.known.as_ref().is_some_and(|known| known.shape != made) {
            return Err(Error::unsupported("elements of some rows only"));
        }
        let n = *n as i64;
        let odd = move |i: i64| Error::malformed(format!("index {i} is out of range for an axis of {n}"));
        let x = p.read(inputs[0], Layout::Plain);
        let y = p.output(output, Layout::Plain);
        let work = cost::bytes(16 * y.len());
        if let Some(Known { indices, .. }) = &self.known {
            if let Some(i) = indices.iter().find(|i| !is_within(**i, n)) {
                return Err(odd(*i));
            }
            let indices = indices.clone();
            p.step("take", output, &[x], y, 0, work, move |o| {
                let (x, parts) = (o.read(0), o.parts);
                kernels::take(x, |i| index(indices[i], n), o.out(), parts);
            });
            return Ok(());
        }
        let (at, size) = (p.dense(inputs[1]), p.size(inputs[1]));
        let wide = size == size_of::<i64>();
        p.check(inputs[1], move |bytes| {
            let wrong = match wide {
                true => bytes.as_chunks().0.iter().map(|b| i64::from_ne_bytes(*b)).find(|i| !is_within(*i, n)),
                false => bytes.as_chunks().0.iter().map(|b| i32::from_ne_bytes(*b).into()).find(|i| !is_within(*i, n)),
            };
            wrong.map_or(Ok(()), |i| Err(odd(i)))
        })?;
        let reads = vec![(x, size_of::<f32>()), (at, size)];
        p.step_of("take", output, reads, y, 0, work, move |o| {
            let (x, bytes, parts) = (o.read(0), o.bytes(1), o.parts);
            let y = o.out();
            match wide {
                true => {
                    let all = bytes.as_chunks().0;
                    kernels::take(x, |i| index(i64::from_ne_bytes(all[i]), n), y, parts);
                }
                false => {
                    let all = bytes.as_chunks().0;
                    kernels::take(x, |i| index(i32::from_ne_bytes(all[i]).into(), n), y, parts);
                }
            }
        });
        Ok(())
    }
}
