//! Operators that find places by index.

use super::{done, entries, i, s, some};
use crate::{maker::Maker, table::Entry};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] = &[
    entries!(true: gather 4, gather_elements 1, gather_nd 1, scatter_nd 1, scatter_elements 1, one_hot 1),
    entries!(false: tensor_scatter 1, non_zero 1, compress 1, unique 1, top_k 2),
];

/// Indices of an axis of size `n`, some counted from the end.
fn indices(m: &mut Maker, shape: &[usize], n: usize) -> usize {
    let low = if m.chance(0.3) { -(n as f32) } else { 0.0 };
    let t = m.filled(DType::I64, shape, low, n as f32 - 1.0);
    if m.chance(0.7) { m.shared(t) } else { m.input(t) }
}

fn gather(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    let (shape, rank) = (m.shape(x), m.rank(x));
    let axis = m.size(0, rank.checked_sub(1)?);
    let wanted = m.one(&[vec![], vec![2], vec![1], vec![2, 2]]);
    let at = indices(m, &wanted, shape[axis]);
    done(m.op("Gather", &[Some(x), Some(at)], &[("axis", i(axis as i64))]))
}

fn gather_elements(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    let (mut shape, rank) = (m.shape(x), m.rank(x));
    let axis = m.size(0, rank.checked_sub(1)?);
    let n = shape[axis];
    shape[axis] = m.size(1, 3);
    let at = indices(m, &shape, n);
    done(m.op("GatherElements", &[Some(x), Some(at)], &[("axis", i(axis as i64))]))
}

fn gather_nd(m: &mut Maker) -> Option<()> {
    let x = m.float(2..=4);
    let shape = m.shape(x);
    let n = *shape[..2].iter().min()?;
    let at = indices(m, &[3, 2], n);
    done(m.op("GatherND", &[Some(x), Some(at)], &[]))
}

fn scatter_nd(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 1..=3);
    let shape = m.shape(x);
    let at = m.int(0, *shape.first()? as i64 - 1);
    let at = m.shared(Tensor::ints(DType::I64, &[1, 1], &[at]));
    let mut wanted = vec![1];
    wanted.extend(&shape[1..]);
    let updates = m.weight(DType::F32, &wanted);
    let reduction = m.one(&["none", "none", "add", "mul", "max", "min"]);
    done(m.op("ScatterND", &[Some(x), Some(at), Some(updates)], &[("reduction", s(reduction))]))
}

fn scatter_elements(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 1..=3);
    let (mut shape, rank) = (m.shape(x), m.rank(x));
    let axis = m.size(0, rank.checked_sub(1)?);
    let n = shape[axis];
    shape[axis] = 1;
    let at = indices(m, &shape, n);
    let updates = m.weight(DType::F32, &shape);
    let reduction = m.one(&["none", "none", "add", "mul", "max", "min"]);
    done(m.op(
        "ScatterElements",
        &[Some(x), Some(at), Some(updates)],
        &[("axis", i(axis as i64)), ("reduction", s(reduction))],
    ))
}

fn tensor_scatter(m: &mut Maker) -> Option<()> {
    let past = m.source(DType::F32, &[2, 2, 5, 3]);
    let update = m.weight(DType::F32, &[2, 2, 2, 3]);
    let at = m.filled(DType::I64, &[2], 0.0, 3.0);
    let at = m.constant(at);
    done(m.op("TensorScatter", &[Some(past), Some(update), Some(at)], &[("axis", i(-2))]))
}

fn one_hot(m: &mut Maker) -> Option<()> {
    let n = m.size(2, 4);
    let at = indices(m, &[2, 2], n);
    let (depth, values) = (m.scalar(n as i64), m.shared(Tensor::f32(&[2], &[0.0, 1.0])));
    let axis = m.int(-1, 2);
    let attrs = some(m, &[("axis", i(axis))]);
    done(m.op("OneHot", &[Some(at), Some(depth), Some(values)], &attrs))
}

fn non_zero(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 1..=3);
    done(m.op("NonZero", &[Some(x)], &[]))
}

fn compress(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=3);
    let (shape, rank) = (m.shape(x), m.rank(x));
    let axis = m.size(0, rank.checked_sub(1)?);
    let n = m.size(1, shape[axis]);
    let condition = m.filled(DType::Bool, &[n], 0.0, 1.0);
    let condition = if m.chance(0.5) { m.constant(condition) } else { m.input(condition) };
    done(m.op("Compress", &[Some(x), Some(condition)], &[("axis", i(axis as i64))]))
}

fn unique(m: &mut Maker) -> Option<()> {
    let x = m.exact(DType::F32, 1..=2);
    let n = m.size(1, 4);
    let attrs = some(m, &[("sorted", i(0))]);
    m.ops("Unique", &[Some(x)], &attrs, n).map(drop)
}

fn top_k(m: &mut Maker) -> Option<()> {
    let indices = m.chance(0.5);
    let x = if indices { m.exact(DType::F32, 1..=3) } else { m.of(DType::F32, 1..=3) };
    let (shape, rank) = (m.shape(x), m.rank(x));
    let axis = m.size(0, rank.checked_sub(1)?);
    let k = m.int(1, shape[axis] as i64);
    let k = m.ints(&[k]);
    let attrs = some(m, &[("largest", i(0))]);
    let attrs = [vec![("axis", i(axis as i64))], attrs].concat();
    m.ops("TopK", &[Some(x), Some(k)], &attrs, if indices { 2 } else { 1 }).map(drop)
}
