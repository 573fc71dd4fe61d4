//! What rules look for, as exporters write it, with small variations.

use super::{
    dense::{batch_norm_of, conv_of, picture},
    done, entries, i, list,
};
use crate::{
    maker::{Maker, V},
    table::Entry,
};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] = &[
    entries!(true: constants 5, clamps 3, gelu 3, layer_norm 3, reduced 3, repeated 3, neutral 3),
    entries!(false: conv_block 8, padded 4, attention 5, heads 2, flattened 2, layers 4, expand_like 3, positions 2, window_of_shape 2),
];

fn scalar(m: &mut Maker, x: V, v: f32) -> Option<V> {
    let dtype = m.dtype(x);
    Some(m.number(dtype, v))
}

/// A constant for each channel of `[N, C, ...]`, written in one of the ways.
fn channels(m: &mut Maker, x: V) -> V {
    let (c, rank) = (m.shape(x)[1], m.rank(x));
    let mut tail = vec![c];
    tail.resize(rank - 1, 1);
    let mut full = vec![1];
    full.extend(&tail);
    let shape = m.one(&[tail, full, vec![], vec![1]]);
    m.weight(DType::F32, &shape)
}

/// Conv, BatchNormalization, Mul, Add, Relu: some of them.
fn conv_block(m: &mut Maker) -> Option<()> {
    let axes = m.one(&[1, 2, 2]);
    let x = picture(m, axes);
    let mut y = conv_of(m, x)?;
    if m.chance(0.6) {
        y = batch_norm_of(m, y)?;
    }
    for name in ["Mul", "Add", "Sub", "Mul"] {
        if m.chance(0.25) {
            let c = channels(m, y);
            let turned = name != "Sub" && m.chance(0.3);
            y = m.op(name, &if turned { [Some(c), Some(y)] } else { [Some(y), Some(c)] }, &[])?;
        }
    }
    if m.chance(0.6) {
        let name = m.one(&["Relu", "Relu", "HardSwish"]);
        y = m.op(name, &[Some(y)], &[])?;
    }
    if m.shape(y) == m.shape(x) && m.chance(0.7) {
        m.op("Add", &[Some(y), Some(x)], &[])?;
    }
    Some(())
}

fn padded(m: &mut Maker) -> Option<()> {
    let x = picture(m, 2);
    let pads: Vec<i64> = (0..8).map(|k| if k % 4 < 2 && m.chance(0.9) { 0 } else { m.int(0, 2) }).collect();
    let pads = m.ints(&pads);
    let zero = if m.chance(0.5) { scalar(m, x, 0.0) } else { None };
    let y = m.op("Pad", &[Some(x), Some(pads), zero], &[])?;
    if m.chance(0.6) {
        return done(conv_of(m, y));
    }
    let attrs = [("kernel_shape", list(&[2, 2])), ("count_include_pad", i(1))];
    done(m.op("AveragePool", &[Some(y)], &attrs))
}

fn constants(m: &mut Maker) -> Option<()> {
    let mut x = m.float(0..=4);
    let name = m.one(&["Add", "Mul", "Sub", "Div"]);
    for _ in 0..m.size(2, 3) {
        let (dtype, shape, rank) = (m.dtype(x), m.shape(x), m.rank(x));
        let from = m.size(0, rank);
        let shape = m.one(&[vec![], shape[from..].to_vec()]);
        let t = m.filled(dtype, &shape, 0.4, 2.0);
        let c = m.constant(t);
        let name = match name {
            "Add" | "Sub" => m.one(&["Add", "Sub"]),
            _ => m.one(&["Mul", "Div"]),
        };
        let turned = matches!(name, "Add" | "Mul") && m.chance(0.4);
        x = m.op(name, &if turned { [Some(c), Some(x)] } else { [Some(x), Some(c)] }, &[])?;
    }
    Some(())
}

fn clamps(m: &mut Maker) -> Option<()> {
    let mut x = m.float(0..=4);
    for _ in 0..m.size(2, 3) {
        if m.chance(0.5) {
            x = m.op("Relu", &[Some(x)], &[])?;
        } else {
            let (low, high) = m.one(&[(0.0, 6.0), (-1.0, 1.0), (0.0, 1.0), (-3.0, -1.0)]);
            let dtype = m.dtype(x);
            let bounds = [low, high].map(|v| m.chance(0.8).then(|| m.shared(Tensor::floats(dtype, &[], &[v]))));
            x = m.op("Clip", &[Some(x), bounds[0], bounds[1]], &[])?;
        }
    }
    Some(())
}

fn gelu(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 0..=4);
    let tanh = m.chance(0.4);
    let inside = if tanh {
        let three = scalar(m, x, 3.0);
        let cube = m.op("Pow", &[Some(x), three], &[])?;
        let a = scalar(m, x, 0.044715);
        let cube = m.op("Mul", &[a, Some(cube)], &[])?;
        let sum = m.op("Add", &[Some(x), Some(cube)], &[])?;
        let b = scalar(m, x, 0.797_884_6);
        m.op("Mul", &[Some(sum), b], &[])?
    } else if m.chance(0.5) {
        let root = scalar(m, x, std::f32::consts::SQRT_2);
        m.op("Div", &[Some(x), root], &[])?
    } else {
        let root = scalar(m, x, std::f32::consts::FRAC_1_SQRT_2);
        m.op("Mul", &[Some(x), root], &[])?
    };
    let bent = m.op(if tanh { "Tanh" } else { "Erf" }, &[Some(inside)], &[])?;
    let one = scalar(m, x, 1.0);
    let gate = m.op("Add", &[Some(bent), one], &[])?;
    let half = m.one(&[0.5, 0.5, 0.5, 0.25]);
    let half = scalar(m, x, half);
    if m.chance(0.5) {
        let y = m.op("Mul", &[Some(x), Some(gate)], &[])?;
        return done(m.op("Mul", &[Some(y), half], &[]));
    }
    let y = m.op("Mul", &[Some(x), half], &[])?;
    done(m.op("Mul", &[Some(y), Some(gate)], &[]))
}

fn layer_norm(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 1..=4);
    if m.rank(x) == 0 {
        return None;
    }
    let n = *m.shape(x).last()?;
    let axes = m.ints(&[-1]);
    let mean = m.op("ReduceMean", &[Some(x), Some(axes)], &[])?;
    let d = m.op("Sub", &[Some(x), Some(mean)], &[])?;
    let two = scalar(m, x, 2.0);
    let square =
        if m.chance(0.5) { m.op("Pow", &[Some(d), two], &[])? } else { m.op("Mul", &[Some(d), Some(d)], &[])? };
    let variance = m.op("ReduceMean", &[Some(square), Some(axes)], &[])?;
    let epsilon = scalar(m, x, 1e-3);
    let sum = m.op("Add", &[Some(variance), epsilon], &[])?;
    let root = m.op("Sqrt", &[Some(sum)], &[])?;
    let y = m.op("Div", &[Some(d), Some(root)], &[])?;
    let (scale, bias) = (m.weight(DType::F32, &[n]), m.weight(DType::F32, &[n]));
    let y = m.op("Mul", &[Some(y), Some(scale)], &[])?;
    done(m.op("Add", &[Some(y), Some(bias)], &[]))
}

/// Scaled products of queries and keys from constant weights, softmax, values, and a projection.
fn attention(m: &mut Maker) -> Option<()> {
    let (n, t, width, heads) = (m.size(1, 2), m.size(2, 3), 4usize, 2usize);
    let old = m.pick(|v| {
        v.known.tensor.dtype() == DType::F32
            && v.known.tensor.shape().len() == 3
            && v.known.tensor.shape()[2] == width
            && v.known.is_tame()
    });
    let x = match old {
        Some(x) => x,
        None => {
            let tensor = m.filled(DType::F32, &[n, t, width], -1.0, 1.0);
            m.input(tensor)
        }
    };
    let (n, t) = (m.shape(x)[0] as i64, m.shape(x)[1] as i64);
    let mut parts = vec![];
    for part in 0..3 {
        let weight = m.filled(DType::F32, &[width, width], -0.8, 0.8);
        let weight = m.constant(weight);
        let mut y = m.op("MatMul", &[Some(x), Some(weight)], &[])?;
        if m.chance(0.7) {
            let bias = m.filled(DType::F32, &[width], -0.5, 0.5);
            let bias = m.constant(bias);
            let operands = if m.chance(0.5) { [Some(y), Some(bias)] } else { [Some(bias), Some(y)] };
            y = m.op("Add", &operands, &[])?;
        }
        let target = m.one(&[[n, t, heads as i64, -1], [0, 0, heads as i64, (width / heads) as i64]]);
        let target = m.ints(&target);
        y = m.op("Reshape", &[Some(y), Some(target)], &[])?;
        let perm = if part == 1 { [0, 2, 3, 1] } else { [0, 2, 1, 3] };
        parts.push(m.op("Transpose", &[Some(y)], &[("perm", list(&perm))])?);
    }
    if m.chance(0.3) {
        let c = scalar(m, x, 0.8);
        parts[0] = m.op("Mul", &[Some(parts[0]), c], &[])?;
    }
    let mut scores = m.op("MatMul", &[Some(parts[0]), Some(parts[1])], &[])?;
    if m.chance(0.8) {
        let (name, v) = m.one(&[("Mul", 0.7), ("Div", 1.4)]);
        let c = scalar(m, x, v);
        scores = m.op(name, &[Some(scores), c], &[])?;
    }
    if m.chance(0.3) {
        let mask = m.filled(DType::F32, &[t as usize, t as usize], -2.0, 0.0);
        let mask = m.constant(mask);
        scores = m.op("Add", &[Some(scores), Some(mask)], &[])?;
    }
    let weights = m.op("Softmax", &[Some(scores)], &[("axis", i(-1))])?;
    let y = m.op("MatMul", &[Some(weights), Some(parts[2])], &[])?;
    let y = m.op("Transpose", &[Some(y)], &[("perm", list(&[0, 2, 1, 3]))])?;
    let target = m.ints(&[n, t, width as i64]);
    let y = m.op("Reshape", &[Some(y), Some(target)], &[])?;
    let weight = m.weight(DType::F32, &[width, 3]);
    let y = m.op("MatMul", &[Some(y), Some(weight)], &[])?;
    let bias = m.weight(DType::F32, &[3]);
    done(m.op("Add", &[Some(y), Some(bias)], &[]))
}

/// Split into heads and joined again with nothing, or little, in between.
fn heads(m: &mut Maker) -> Option<()> {
    let x = m.source(DType::F32, &[2, 3, 4]);
    let split = m.ints(&[0, 0, 2, 2]);
    let y = m.op("Reshape", &[Some(x), Some(split)], &[])?;
    let y = m.op("Transpose", &[Some(y)], &[("perm", list(&[0, 2, 1, 3]))])?;
    let y = if m.chance(0.4) { m.op("Tanh", &[Some(y)], &[])? } else { y };
    let y = m.op("Transpose", &[Some(y)], &[("perm", list(&[0, 2, 1, 3]))])?;
    let joined = m.ints(&[0, 0, 4]);
    done(m.op("Reshape", &[Some(y), Some(joined)], &[]))
}

/// A pool and what follows in a classifier.
fn flattened(m: &mut Maker) -> Option<()> {
    let x = picture(m, 2);
    let y = m.op("GlobalAveragePool", &[Some(x)], &[])?;
    let y = match m.int(0, 2) {
        0 => m.op("Flatten", &[Some(y)], &[])?,
        1 => {
            let axes = m.ints(&[2, 3]);
            m.op("Squeeze", &[Some(y), Some(axes)], &[])?
        }
        _ => {
            let target = m.ints(&[0, -1]);
            m.op("Reshape", &[Some(y), Some(target)], &[])?
        }
    };
    let c = m.shape(y)[1];
    let w = m.weight(DType::F32, &[c, 3]);
    let y = m.op("MatMul", &[Some(y), Some(w)], &[])?;
    let bias = m.weight(DType::F32, &[3]);
    done(m.op("Add", &[Some(y), Some(bias)], &[]))
}

/// A reduction, and its axes brought back or dropped.
fn reduced(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 2..=4);
    let (rank, kept) = (m.rank(x), m.chance(0.5));
    let axis = m.axis(rank);
    let axes = m.ints(&[axis]);
    let name = m.one(&["ReduceMean", "ReduceSum", "ReduceMax"]);
    let y = m.op(name, &[Some(x), Some(axes)], &[("keepdims", i(kept.into()))])?;
    let back = if kept { "Squeeze" } else { "Unsqueeze" };
    done(m.op(back, &[Some(y), Some(axes)], &[]))
}

/// The same twice.
fn repeated(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 0..=4);
    let name = m.one(&["Sigmoid", "Tanh", "Softplus"]);
    let (a, b) = (m.op(name, &[Some(x)], &[])?, m.op(name, &[Some(x)], &[])?);
    done(m.op("Add", &[Some(a), Some(b)], &[]))
}

/// What a neutral element does nothing to.
fn neutral(m: &mut Maker) -> Option<()> {
    let x = m.float(0..=4);
    let (name, v) = m.one(&[("Add", 0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0), ("Pow", 1.0)]);
    let c = if m.chance(0.7) {
        m.number(m.dtype(x), v)
    } else {
        let (dtype, shape) = (m.dtype(x), m.shape(x));
        let n = shape.iter().product();
        m.constant(Tensor::floats(dtype, &shape, &vec![v; n]))
    };
    let turned = matches!(name, "Add" | "Mul") && m.chance(0.4);
    done(m.op(name, &if turned { [Some(c), Some(x)] } else { [Some(x), Some(c)] }, &[]))
}

/// A layer of another kind than Conv, and what can move into it.
fn layers(m: &mut Maker) -> Option<()> {
    let mut y = match m.int(0, 2) {
        0 => {
            let x = picture(m, 2);
            let (c, out) = (m.shape(x)[1], m.size(1, 3));
            let w = m.weight(DType::F32, &[c, out, 2, 2]);
            let bias = m.maybe_weight(0.5, DType::F32, &[out]);
            m.op("ConvTranspose", &[Some(x), Some(w), bias], &[])?
        }
        1 => {
            let (rank, out) = (m.size(2, 3), m.size(1, 4));
            let x = m.x(rank);
            let k = m.shape(x)[rank - 1];
            let w = m.weight(DType::F32, &[k, out]);
            m.op("MatMul", &[Some(x), Some(w)], &[])?
        }
        _ => {
            let x = m.x(2);
            let (k, out) = (m.shape(x)[1], m.size(1, 4));
            let w = m.weight(DType::F32, &[out, k]);
            let bias = m.maybe_weight(0.5, DType::F32, &[out]);
            m.op("Gemm", &[Some(x), Some(w), bias], &[("transB", i(1))])?
        }
    };
    if m.chance(0.5) {
        y = batch_norm_of(m, y)?;
    }
    for name in ["Mul", "Add", "Div", "Sub"] {
        if m.chance(0.35) {
            let channels = if m.rank(y) == 4 { 1 } else { m.rank(y) - 1 };
            let mut shape = vec![m.shape(y)[channels]];
            shape.resize(m.rank(y) - channels, 1);
            let shape = m.one(&[shape, vec![], vec![1]]);
            let t = m.filled(DType::F32, &shape, 0.4, 2.0);
            let c = m.constant(t);
            let turned = matches!(name, "Mul" | "Add") && m.chance(0.4);
            y = m.op(name, &if turned { [Some(c), Some(y)] } else { [Some(y), Some(c)] }, &[])?;
        }
    }
    Some(())
}

/// What PyTorch makes of `x.expand(...)`: a target with ones where it had -1.
fn expand_like(m: &mut Maker) -> Option<()> {
    let like = m.of(DType::F32, 1..=4);
    let rank = m.rank(like);
    let shape = m.op("Shape", &[Some(like)], &[])?;
    let target = if m.chance(0.5) {
        let keep: Vec<i64> = (0..rank).map(|_| m.one(&[-1, 1])).collect();
        let (keep, minus) = (m.ints(&keep), m.ints(&[-1]));
        let hit = m.op("Equal", &[Some(keep), Some(minus)], &[])?;
        m.op("Where", &[Some(hit), Some(shape), Some(keep)], &[])?
    } else {
        shape
    };
    let ones = vec![1; m.size(0, rank)];
    let x = m.weight(DType::F32, &ones);
    let y = m.op("Expand", &[Some(x), Some(target)], &[])?;
    done(m.op("Add", &[Some(like), Some(y)], &[]))
}

/// Positions along an axis, looked up in a table.
fn positions(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 2..=3);
    let shape = m.op("Shape", &[Some(x)], &[])?;
    let (zero, one) = (m.scalar(0), m.scalar(1));
    let length = m.op("Gather", &[Some(shape), Some(one)], &[])?;
    let range = m.op("Range", &[Some(zero), Some(length), Some(one)], &[])?;
    let axes = m.ints(&[0]);
    let rows = m.op("Unsqueeze", &[Some(range), Some(axes)], &[])?;
    let table = m.filled(DType::F32, &[m.shape(x)[1].max(6), 3], -1.0, 1.0);
    let table = m.constant(table);
    done(m.op("Gather", &[Some(table), Some(rows)], &[]))
}

/// A Slice or Pad whose bounds come from a shape.
fn window_of_shape(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 1..=3);
    let shape = m.op("Shape", &[Some(x)], &[])?;
    let (zero, one) = (m.ints(&[0]), m.ints(&[1]));
    let size = m.op("Gather", &[Some(shape), Some(zero)], &[])?;
    let end = if m.chance(0.5) { m.op("Sub", &[Some(size), Some(one)], &[])? } else { size };
    let y = m.op("Slice", &[Some(x), Some(zero), Some(end), Some(zero)], &[])?;
    if m.chance(0.5) {
        let pads = m.op("Concat", &[Some(one), Some(zero)], &[("axis", i(0))])?;
        m.op("Pad", &[Some(x), Some(pads), None, Some(zero)], &[])?;
    }
    if m.chance(0.5) { done(m.op("Shape", &[Some(y)], &[])) } else { Some(()) }
}
