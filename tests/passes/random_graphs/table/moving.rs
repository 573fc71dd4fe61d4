//! Operators that move elements: shapes, orders, parts.

use super::{done, entries, i, list, s, some};
use crate::{
    maker::{Maker, V},
    table::Entry,
};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] = &[
    entries!(true: reshape 6, flatten 2, squeeze 3, unsqueeze 3, transpose 6, transposes 3, concat 4, split 3, slice 5, slices 3,
        pad 3, expand 2, tile 2, trilu 1, space 2, crop 1, reverse 1, shape_of 3, size_of 1),
    entries!(false: shape_arithmetic 5, constant_of_shape 2, eye 1, range 2, nothing 2, stack 2, concat_split 2, slices_apart 3),
];

/// Anything with elements to move.
fn thing(m: &mut Maker, ranks: std::ops::RangeInclusive<usize>) -> V {
    match m.int(0, 9) {
        0 => m.exact(DType::I64, ranks),
        1 => m.exact(DType::Bool, ranks),
        _ => m.float(ranks),
    }
}

/// A shape of the same size.
fn other_shape(m: &mut Maker, mut n: usize) -> Vec<usize> {
    let mut shape = vec![];
    for _ in 0..m.size(0, 3) {
        let factors: Vec<usize> = (1..=6).filter(|f| n.is_multiple_of(*f)).collect();
        let factor = m.one(&factors);
        shape.push(factor);
        n /= factor;
    }
    shape.insert(m.size(0, shape.len()), n);
    shape
}

fn reshape(m: &mut Maker) -> Option<()> {
    let mut x = thing(m, 0..=5);
    for _ in 0..m.size(1, 2) {
        let (n, old) = (m.at(x).len(), m.shape(x));
        if n == 0 {
            return None;
        }
        let mut target: Vec<i64> = other_shape(m, n).into_iter().map(|n| n as i64).collect();
        for (k, t) in target.iter_mut().enumerate() {
            if old.get(k).is_some_and(|n| *n as i64 == *t) && m.chance(0.4) {
                *t = 0;
            }
        }
        if m.chance(0.5) {
            let at = m.size(0, target.len() - 1);
            target[at] = -1;
        }
        // With zeros meant as such none can be copied.
        let meant = !target.contains(&0) && m.chance(0.1);
        let target = m.ints(&target);
        x = m.op("Reshape", &[Some(x), Some(target)], &if meant { vec![("allowzero", i(1))] } else { vec![] })?;
    }
    Some(())
}

fn flatten(m: &mut Maker) -> Option<()> {
    let x = thing(m, 0..=5);
    let r = m.rank(x) as i64;
    let axis = m.int(-r, r);
    done(m.op("Flatten", &[Some(x)], &[("axis", i(axis))]))
}

fn squeeze(m: &mut Maker) -> Option<()> {
    let x = m.pick(|v| v.known.tensor.shape().contains(&1))?;
    let shape = m.shape(x);
    let axes: Vec<i64> = (0..shape.len()).filter(|a| shape[*a] == 1 && m.chance(0.7)).map(|a| a as i64).collect();
    let axes = (!axes.is_empty()).then(|| m.ints(&axes));
    let y = m.op("Squeeze", &[Some(x), axes], &[])?;
    match axes {
        Some(axes) if m.chance(0.3) => done(m.op("Unsqueeze", &[Some(y), Some(axes)], &[])),
        _ => Some(()),
    }
}

fn unsqueeze(m: &mut Maker) -> Option<()> {
    let mut x = thing(m, 0..=3);
    for _ in 0..m.size(1, 2) {
        let rank = m.rank(x) + 1;
        let axis = m.axis(rank);
        let axes = m.ints(&[axis]);
        x = m.op("Unsqueeze", &[Some(x), Some(axes)], &[])?;
    }
    Some(())
}

fn transpose(m: &mut Maker) -> Option<()> {
    let x = thing(m, 0..=5);
    let perm = m.order(m.rank(x));
    let attrs = some(m, &[("perm", list(&perm))]);
    done(m.op("Transpose", &[Some(x)], &attrs))
}

/// One after another, which together may do nothing.
fn transposes(m: &mut Maker) -> Option<()> {
    let x = thing(m, 2..=4);
    let perm = m.order(m.rank(x));
    let mut back = vec![0; perm.len()];
    perm.iter().enumerate().for_each(|(k, p)| back[*p as usize] = k as i64);
    let y = m.op("Transpose", &[Some(x)], &[("perm", list(&perm))])?;
    let y = if m.chance(0.3) { m.op("Relu", &[Some(y)], &[]).unwrap_or(y) } else { y };
    let second = if m.chance(0.5) { back } else { m.order(perm.len()) };
    done(m.op("Transpose", &[Some(y)], &[("perm", list(&second))]))
}

fn concat(m: &mut Maker) -> Option<()> {
    let x = thing(m, 1..=4);
    if m.rank(x) == 0 {
        return None;
    }
    let (axis, rank, dtype) = (m.axis(m.rank(x)), m.rank(x), m.dtype(x));
    let at = (axis + rank as i64) as usize % rank;
    let mut operands = vec![Some(x)];
    for _ in 0..m.size(0, 2) {
        let mut shape = m.shape(x);
        shape[at] = m.size(1, 3);
        operands.push(Some(if m.chance(0.3) { x } else { m.weight(dtype, &shape) }));
    }
    done(m.op("Concat", &operands, &[("axis", i(axis))]))
}

fn split(m: &mut Maker) -> Option<()> {
    let x = thing(m, 1..=4);
    if m.rank(x) == 0 {
        return None;
    }
    let (axis, rank) = (m.axis(m.rank(x)), m.rank(x));
    let n = m.shape(x)[(axis + rank as i64) as usize % rank];
    let cut = m.size(0, n) as i64;
    if m.chance(0.5) {
        let parts = m.ints(&[cut, n as i64 - cut]);
        return m.ops("Split", &[Some(x), Some(parts)], &[("axis", i(axis))], 2).map(drop);
    }
    let count = m.size(1, n.min(3));
    let made = m.ops("Split", &[Some(x)], &[("axis", i(axis)), ("num_outputs", i(count as i64))], count)?;
    if m.chance(0.5) {
        let operands: Vec<Option<V>> = made.into_iter().map(Some).collect();
        m.op("Concat", &operands, &[("axis", i(axis))])?;
    }
    Some(())
}

/// A part of one axis.
fn cut(m: &mut Maker, x: V) -> Option<V> {
    let rank = m.rank(x);
    if rank == 0 {
        return None;
    }
    let axis = m.axis(rank);
    let n = m.shape(x)[(axis + rank as i64) as usize % rank] as i64;
    let (start, end) = (m.int(0, (n - 1).max(0)), m.int(1, n.max(1)));
    let (start, end) = if m.chance(0.7) { (start.min(end - 1), end) } else { (start - n, i64::MAX) };
    let backwards = m.chance(0.15);
    let (start, end, step) = if backwards { (-1, i64::MIN, -1) } else { (start, end, m.one(&[1, 1, 1, 2])) };
    let lists = [[start], [end], [axis], [step]].map(|l| Some(m.ints(&l)));
    let count = if step != 1 || m.chance(0.5) { 5 } else { 4 };
    let operands = [Some(x), lists[0], lists[1], lists[2], lists[3]];
    m.op("Slice", &operands[..count], &[])
}

fn slice(m: &mut Maker) -> Option<()> {
    let x = thing(m, 1..=5);
    done(cut(m, x))
}

fn slices(m: &mut Maker) -> Option<()> {
    let x = thing(m, 1..=4);
    let y = cut(m, x)?;
    done(cut(m, y))
}

/// All parts of one axis.
fn slices_apart(m: &mut Maker) -> Option<()> {
    let x = m.pick(|v| v.known.tensor.shape().last().is_some_and(|n| *n >= 2))?;
    let (n, axis) = (*m.shape(x).last()? as i64, m.rank(x) as i64 - 1);
    let at = m.int(1, n - 1);
    let mut parts = vec![];
    for (start, end) in [(0, at), (at, n)] {
        let lists = [start, end, axis].map(|v| Some(m.ints(&[v])));
        parts.push(m.op("Slice", &[Some(x), lists[0], lists[1], lists[2]], &[])?);
    }
    if m.chance(0.5) {
        parts.reverse();
        let turned = m.op("Concat", &[Some(parts[0]), Some(parts[1])], &[("axis", i(axis))])?;
        return (m.dtype(x) == DType::F32).then(|| m.op("Add", &[Some(turned), Some(x)], &[])).flatten().map(drop);
    }
    if m.chance(0.5) {
        for p in parts {
            m.op("Identity", &[Some(p)], &[])?;
        }
    }
    Some(())
}

fn pad(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    let (rank, dtype) = (m.rank(x), m.dtype(x));
    let mode = m.one(&["constant", "constant", "constant", "edge", "reflect", "wrap"]);
    let shape = m.shape(x);
    let most = |n: usize| if mode == "reflect" { (n as i64 - 1).min(2) } else { 2 };
    let least = if mode == "constant" && m.chance(0.2) { -1 } else { 0 };
    let pads: Vec<i64> =
        (0..2 * rank).map(|k| m.int(if shape[k % rank] > 2 { least } else { 0 }, most(shape[k % rank]))).collect();
    let pads = m.ints(&pads);
    let value = (mode == "constant" && m.chance(0.6)).then(|| {
        let v = m.one(&[0.0, 0.0, 1.5]);
        m.shared(Tensor::floats(dtype, &[], &[v]))
    });
    let attrs = if mode == "constant" { vec![] } else { vec![("mode", s(mode))] };
    done(m.op("Pad", &[Some(x), Some(pads), value], &attrs))
}

fn expand(m: &mut Maker) -> Option<()> {
    let x = thing(m, 0..=3);
    let mut target: Vec<i64> = m.shape(x).into_iter().map(|n| n as i64).collect();
    for t in target.iter_mut() {
        *t = if *t == 1 { m.int(1, 3) } else { m.one(&[1, *t]) };
    }
    if m.chance(0.3) {
        let front = m.int(1, 2);
        target.insert(0, front);
    }
    let target = m.ints(&target);
    done(m.op("Expand", &[Some(x), Some(target)], &[]))
}

fn tile(m: &mut Maker) -> Option<()> {
    let x = thing(m, 1..=3);
    let repeats: Vec<i64> = (0..m.rank(x)).map(|_| m.int(1, 2)).collect();
    let repeats = m.ints(&repeats);
    done(m.op("Tile", &[Some(x), Some(repeats)], &[]))
}

fn trilu(m: &mut Maker) -> Option<()> {
    let x = thing(m, 2..=4);
    let k = m.int(-2, 2);
    let k = m.chance(0.5).then(|| m.scalar(k));
    let attrs = some(m, &[("upper", i(0))]);
    done(m.op("Trilu", &[Some(x), k], &attrs))
}

fn space(m: &mut Maker) -> Option<()> {
    let depth = m.chance(0.5);
    let (c, n) = (m.size(1, 2), m.size(1, 2));
    let shape = if depth { [n, 4 * c, 2, 3] } else { [n, c, 4, 2] };
    let old = m.pick(|v| {
        let t = &v.known.tensor;
        t.dtype() == DType::F32
            && t.shape().len() == 4
            && if depth { t.shape()[1].is_multiple_of(4) } else { t.shape()[2..].iter().all(|n| n.is_multiple_of(2)) }
    });
    let x = old.unwrap_or_else(|| m.source(DType::F32, &shape));
    let mode = m.one(&["DCR", "CRD"]);
    let attrs = if depth { vec![("blocksize", i(2)), ("mode", s(mode))] } else { vec![("blocksize", i(2))] };
    done(m.op(if depth { "DepthToSpace" } else { "SpaceToDepth" }, &[Some(x)], &attrs))
}

fn crop(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    if m.rank(x) == 0 {
        return None;
    }
    let n = m.int(1, 6);
    let axis = m.axis(m.rank(x));
    let n = m.ints(&[n]);
    done(m.op("CenterCropPad", &[Some(x), Some(n)], &[("axes", list(&[axis]))]))
}

fn reverse(m: &mut Maker) -> Option<()> {
    let x = m.float(2..=4);
    let (time, batch) = m.one(&[(0, 1), (1, 0)]);
    let shape = m.shape(x);
    let lengths = m.filled(DType::I64, &[shape[batch]], 1.0, shape[time] as f32);
    let lengths = m.constant(lengths);
    let attrs = [("time_axis", i(time as i64)), ("batch_axis", i(batch as i64))];
    done(m.op("ReverseSequence", &[Some(x), Some(lengths)], &attrs))
}

fn shape_of(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=5);
    let r = m.rank(x) as i64;
    let (start, end) = (m.int(-r - 1, r), m.int(-r, r + 1));
    let attrs = if m.chance(0.5) { vec![] } else { some(m, &[("start", i(start)), ("end", i(end))]) };
    done(m.op("Shape", &[Some(x)], &attrs))
}

fn size_of(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=5);
    done(m.op("Size", &[Some(x)], &[]))
}

/// Shape, Gather, arithmetic, Concat, Reshape: what exporters write for `x.view(n, -1)`.
fn shape_arithmetic(m: &mut Maker) -> Option<()> {
    let x = m.float(2..=4);
    let (rank, all) = (m.rank(x), m.at(x).len());
    let shape = m.op("Shape", &[Some(x)], &[])?;
    let at = m.size(0, rank - 1) as i64;
    let single = m.chance(0.5);
    let mut part = if m.chance(0.3) {
        let lists = [at, at + 1].map(|v| Some(m.ints(&[v])));
        m.op("Slice", &[Some(shape), lists[0], lists[1]], &[])?
    } else {
        let index = if single { m.scalar(at) } else { m.ints(&[at]) };
        m.op("Gather", &[Some(shape), Some(index)], &[("axis", i(0))])?
    };
    if m.rank(part) == 0 {
        let zero = m.ints(&[0]);
        part = m.op("Unsqueeze", &[Some(part), Some(zero)], &[])?;
    }
    if m.chance(0.3) {
        let one = m.ints(&[1]);
        let name = m.one(&["Mul", "Div"]);
        part = m.op(name, &[Some(part), Some(one)], &[])?;
    }
    let rest = m.ints(&[-1]);
    let order = if m.chance(0.5) { [part, rest] } else { [rest, part] };
    let target = m.op("Concat", &order.map(Some), &[("axis", i(0))])?;
    if all == 0 { None } else { done(m.op("Reshape", &[Some(x), Some(target)], &[])) }
}

fn constant_of_shape(m: &mut Maker) -> Option<()> {
    let shape = if m.chance(0.5) {
        let x = m.float(0..=3);
        m.op("Shape", &[Some(x)], &[])?
    } else {
        let rank = m.size(0, 3);
        let shape: Vec<i64> = m.any_shape(rank).into_iter().map(|n| n as i64).collect();
        m.ints(&shape)
    };
    let value = if m.chance(0.5) { Tensor::f32(&[1], &[1.5]) } else { Tensor::i64s(&[7]) };
    let attrs = some(m, &[("value", value.into())]);
    done(m.op("ConstantOfShape", &[Some(shape)], &attrs))
}

fn eye(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 2..=2);
    let attrs = some(m, &[("k", i(1)), ("dtype", i(DType::F64 as i64))]);
    done(m.op("EyeLike", &[Some(x)], &attrs))
}

fn range(m: &mut Maker) -> Option<()> {
    if m.chance(0.3) {
        let v = [0.5, 3.0, 0.75].map(|v| Some(m.shared(Tensor::f32(&[], &[v]))));
        return done(m.op("Range", &v, &[]));
    }
    let x = m.float(1..=3);
    if m.rank(x) == 0 {
        return None;
    }
    let shape = m.op("Shape", &[Some(x)], &[])?;
    let (zero, one) = (m.scalar(0), m.scalar(1));
    let limit = m.op("Gather", &[Some(shape), Some(zero)], &[])?;
    done(m.op("Range", &[Some(zero), Some(limit), Some(one)], &[]))
}

/// Unsqueezed or reshaped values, side by side.
fn stack(m: &mut Maker) -> Option<()> {
    let x = thing(m, 1..=3);
    let (dtype, shape) = (m.dtype(x), m.shape(x));
    let other = m.weight(dtype, &shape);
    let rank = shape.len();
    let axis = m.size(0, rank) as i64;
    let mut parts = vec![];
    for v in [x, other, x].into_iter().take(m.size(2, 3)) {
        let part = if m.chance(0.9) {
            let axes = m.ints(&[axis]);
            m.op("Unsqueeze", &[Some(v), Some(axes)], &[])?
        } else {
            let mut target = shape.clone();
            target.insert(axis as usize, 1);
            m.reshape(v, &target)?
        };
        parts.push(Some(part));
    }
    done(m.op("Concat", &parts, &[("axis", i(axis))]))
}

/// Apart, a little arithmetic, and together again.
fn concat_split(m: &mut Maker) -> Option<()> {
    let x = m.pick(|v| {
        v.known.tensor.dtype() == DType::F32
            && v.known.tensor.shape().last().is_some_and(|n| n.is_multiple_of(2) && *n > 0)
    })?;
    let parts = m.ops("Split", &[Some(x)], &[("axis", i(-1)), ("num_outputs", i(2))], 2)?;
    let name = m.one(&["Identity", "Unsqueeze", "Transpose", "Neg", "Slice"]);
    let mut ends = vec![];
    for p in parts {
        let axes = m.ints(&[0]);
        let end = match name {
            "Unsqueeze" => m.op(name, &[Some(p), Some(axes)], &[])?,
            "Slice" => cut(m, p)?,
            _ => m.op(name, &[Some(p)], &[])?,
        };
        ends.push(Some(end));
    }
    let (a, b) = (m.shape(ends[0]?), m.shape(ends[1]?));
    let axis = m.one(&[0, -1]);
    if a == b { done(m.op("Concat", &ends, &[("axis", i(axis))])) } else { Some(()) }
}

/// What has no elements goes on.
fn nothing(m: &mut Maker) -> Option<()> {
    let old = m.pick_any(|v| v.known.tensor.is_empty() && v.known.tensor.dtype() == DType::F32);
    let x = match old {
        Some(x) => x,
        None => {
            let shape = [m.size(1, 3), 0, m.size(1, 3)];
            m.source(DType::F32, &shape)
        }
    };
    let name = m.one(&["Relu", "Transpose", "Concat", "ReduceSum", "Add", "Shape", "Sigmoid"]);
    let other = m.beside(x);
    let axes = m.ints(&[0]);
    let operands = match name {
        "Add" => vec![Some(x), Some(other)],
        "Concat" => vec![Some(x), Some(x)],
        "ReduceSum" => vec![Some(x), Some(axes)],
        _ => vec![Some(x)],
    };
    done(m.op(name, &operands, &if name == "Concat" { vec![("axis", i(0))] } else { vec![] }))
}
