//! Layers: convolutions, products, pools, normalisations.

use super::{done, entries, f, i, list, s, some};
use crate::{
    maker::{Maker, V},
    table::Entry,
};
use compress_compiler::tensor::{DType, Tensor};

pub const ENTRIES: &[&[Entry]] = &[
    entries!(true: matmul 4, gemm 3, layer_norm 2, rms_norm 1, einsum 2),
    entries!(false: conv 6, conv_transpose 2, pool 4, global_pool 2, max_unpool 1, deform_conv 1, batch_norm 3, group_norm 1,
        instance_norm 1, lrn 1, integer_conv 1, integer_matmul 1, det 1),
];

/// A picture, or a row or volume: `[N, C, ...]` of `axes` spatial axes.
pub fn picture(m: &mut Maker, axes: usize) -> V {
    let large = m.pick(|v| {
        let t = &v.known.tensor;
        let shape = t.shape();
        t.dtype() == DType::F32 && shape.len() == axes + 2 && shape[2..].iter().all(|n| *n >= 3) && v.known.is_tame()
    });
    match large {
        Some(v) if m.chance(0.85) => v,
        _ => {
            let mut shape = vec![m.size(1, 2), m.one(&[1, 2, 3, 4])];
            shape.extend((0..axes).map(|_| m.size(3, 6)));
            let tensor = m.filled(DType::F32, &shape, -2.0, 2.0);
            m.input(tensor)
        }
    }
}

/// Strides, pads and dilations for windows of `kernel` over `size`, that leave room.
fn window(
    m: &mut Maker,
    size: &[usize],
    kernel: &[usize],
    dilated: bool,
) -> Vec<(&'static str, compress_compiler::attr::Attr)> {
    let n = size.len();
    let strides: Vec<i64> = (0..n).map(|_| m.one(&[1, 1, 1, 2])).collect();
    let dilations: Vec<i64> =
        (0..n).map(|a| if dilated && size[a] > 2 * kernel[a] { m.one(&[1, 2]) } else { 1 }).collect();
    let mut attrs = vec![];
    if m.chance(0.4) {
        attrs.push(("strides", list(&strides)));
    }
    if m.chance(0.15) {
        attrs.push(("auto_pad", s(m.one(&["SAME_UPPER", "SAME_LOWER", "VALID"]))));
        return attrs;
    }
    if m.chance(0.6) {
        let pads: Vec<i64> = (0..2 * n).map(|k| m.int(0, kernel[k % n] as i64 - 1)).collect();
        attrs.push(("pads", list(&pads)));
    }
    if dilated && m.chance(0.3) {
        attrs.push(("dilations", list(&dilations)));
    }
    attrs
}

fn kernel(m: &mut Maker, size: &[usize]) -> Vec<usize> {
    size.iter().map(|n| m.one(&[1, 2, 3]).min(*n)).collect()
}

pub fn conv_of(m: &mut Maker, x: V) -> Option<V> {
    let shape = m.shape(x);
    let (c, size) = (shape[1], &shape[2..]);
    let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
    let group = if m.chance(0.3) { m.one(&divisors) } else { 1 };
    let out = group * m.size(1, 3);
    let k = kernel(m, size);
    let mut weight = vec![out, c / group];
    weight.extend(&k);
    let w = m.weight(DType::F32, &weight);
    let bias = m.maybe_weight(0.5, DType::F32, &[out]);
    let mut attrs = window(m, size, &k, true);
    if group > 1 {
        attrs.push(("group", i(group as i64)));
    }
    m.op("Conv", &[Some(x), Some(w), bias], &attrs)
}

fn conv(m: &mut Maker) -> Option<()> {
    let axes = m.one(&[1, 2, 2, 2, 2, 3]);
    let x = picture(m, axes);
    done(conv_of(m, x))
}

fn conv_transpose(m: &mut Maker) -> Option<()> {
    let axes = m.size(1, 2);
    let x = picture(m, axes);
    let shape = m.shape(x);
    let c = shape[1];
    let group = if c.is_multiple_of(2) { m.one(&[1, 2]) } else { 1 };
    let out = m.size(1, 3);
    let k = kernel(m, &shape[2..]);
    let mut weight = vec![c, out];
    weight.extend(&k);
    let w = m.weight(DType::F32, &weight);
    let bias = m.maybe_weight(0.5, DType::F32, &[out * group]);
    let stride = m.int(1, 2);
    let mut attrs = some(m, &[("strides", list(&vec![stride; axes]))]);
    if m.chance(0.4) {
        let pads: Vec<i64> = (0..2 * axes).map(|a| m.int(0, (k[a % axes] as i64 - 1).min(1))).collect();
        attrs.push(("pads", list(&pads)));
    }
    if group > 1 {
        attrs.push(("group", i(group as i64)));
    }
    done(m.op("ConvTranspose", &[Some(x), Some(w), bias], &attrs))
}

fn pool(m: &mut Maker) -> Option<()> {
    let axes = m.size(1, 2);
    let name = m.one(&["MaxPool", "MaxPool", "AveragePool", "AveragePool", "LpPool"]);
    let indices = name == "MaxPool" && m.chance(0.2);
    let x = if indices { m.exact(DType::F32, axes + 2..=axes + 2) } else { picture(m, axes) };
    let shape = m.shape(x);
    let k = kernel(m, &shape[2..]);
    let wide: Vec<i64> = k.iter().map(|n| *n as i64).collect();
    let mut attrs = vec![("kernel_shape", list(&wide))];
    attrs.extend(window(m, &shape[2..], &k, name != "LpPool"));
    let automatic = attrs.iter().any(|a| a.0 == "auto_pad");
    if !automatic && m.chance(0.2) {
        attrs.push(("ceil_mode", i(1)));
    }
    if name == "AveragePool" && m.chance(0.4) {
        attrs.push(("count_include_pad", i(1)));
    }
    m.ops(name, &[Some(x)], &attrs, if indices { 2 } else { 1 }).map(drop)
}

fn max_unpool(m: &mut Maker) -> Option<()> {
    let shape = [m.size(1, 2), m.size(1, 2), 4, 4];
    // Equal elements would share a place.
    let n: usize = shape.iter().product();
    let mixed = Tensor::f32(&shape, &m.order(n).into_iter().map(|v| v as f32).collect::<Vec<_>>());
    let x = m.input(mixed);
    let attrs = [("kernel_shape", list(&[2, 2])), ("strides", list(&[2, 2]))];
    let made = m.ops("MaxPool", &[Some(x)], &attrs, 2)?;
    done(m.op("MaxUnpool", &[Some(made[0]), Some(made[1])], &attrs))
}

fn global_pool(m: &mut Maker) -> Option<()> {
    let axes = m.size(1, 2);
    let x = picture(m, axes);
    let name = m.one(&["GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"]);
    let y = m.op(name, &[Some(x)], &[])?;
    if m.chance(0.4) { done(m.op("Flatten", &[Some(y)], &[])) } else { Some(()) }
}

fn deform_conv(m: &mut Maker) -> Option<()> {
    let x = picture(m, 2);
    let shape = m.shape(x);
    let (n, c, h, w) = (shape[0], shape[1], shape[2], shape[3]);
    let out = m.size(1, 2);
    let weight = m.weight(DType::F32, &[out, c, 2, 2]);
    let offset = m.filled(DType::F32, &[n, 8, h - 1, w - 1], -0.8, 0.8);
    let offset = m.constant(offset);
    let bias = m.maybe_weight(0.5, DType::F32, &[out]);
    let mask = if bias.is_some() { m.maybe_weight(0.4, DType::F32, &[n, 4, h - 1, w - 1]) } else { None };
    done(m.op("DeformConv", &[Some(x), Some(weight), Some(offset), bias, mask], &[("kernel_shape", list(&[2, 2]))]))
}

/// A batch norm's scale, bias, mean and variance.
pub fn batch_norm_of(m: &mut Maker, x: V) -> Option<V> {
    let c = m.shape(x)[1];
    let mut operands = vec![Some(x)];
    operands.extend((0..3).map(|_| Some(m.weight(DType::F32, &[c]))));
    let variance = m.filled(DType::F32, &[c], 0.3, 2.0);
    operands.push(Some(m.constant(variance)));
    let attrs = some(m, &[("epsilon", f(1e-3))]);
    m.op("BatchNormalization", &operands, &attrs)
}

fn batch_norm(m: &mut Maker) -> Option<()> {
    let rank = m.size(2, 4);
    let x = m.x(rank);
    done(batch_norm_of(m, x))
}

fn group_norm(m: &mut Maker) -> Option<()> {
    let axes = m.size(1, 2);
    let x = picture(m, axes);
    let c = m.shape(x)[1];
    let groups = if c.is_multiple_of(2) { 2 } else { 1 };
    let (scale, bias) = (m.weight(DType::F32, &[c]), m.weight(DType::F32, &[c]));
    done(m.op("GroupNormalization", &[Some(x), Some(scale), Some(bias)], &[("num_groups", i(groups))]))
}

fn instance_norm(m: &mut Maker) -> Option<()> {
    let axes = m.size(1, 2);
    let x = picture(m, axes);
    let c = m.shape(x)[1];
    let (scale, bias) = (m.weight(DType::F32, &[c]), m.weight(DType::F32, &[c]));
    done(m.op("InstanceNormalization", &[Some(x), Some(scale), Some(bias)], &[]))
}

fn lrn(m: &mut Maker) -> Option<()> {
    let x = picture(m, 2);
    let size = m.one(&[1, 3]);
    let attrs = some(m, &[("alpha", f(0.01)), ("beta", f(0.6)), ("bias", f(1.5))]);
    done(m.op("LRN", &[Some(x)], &[vec![("size", i(size))], attrs].concat()))
}

fn layer_norm(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 2..=4);
    let (shape, rank) = (m.shape(x), m.rank(x));
    let axis = m.size(1, rank - 1);
    let scale = m.weight(DType::F32, &shape[axis..]);
    let bias = m.maybe_weight(0.6, DType::F32, &shape[axis..]);
    done(m.op("LayerNormalization", &[Some(x), Some(scale), bias], &[("axis", i(axis as i64))]))
}

fn rms_norm(m: &mut Maker) -> Option<()> {
    let x = m.of(DType::F32, 2..=4);
    let scale = m.weight(DType::F32, &m.shape(x)[m.rank(x) - 1..]);
    done(m.op("RMSNormalization", &[Some(x), Some(scale)], &[]))
}

fn matmul(m: &mut Maker) -> Option<()> {
    let x = m.float(1..=4);
    let (shape, dtype) = (m.shape(x), m.dtype(x));
    let k = *shape.last()?;
    let weight = match m.int(0, 5) {
        0 => vec![k],
        1 if shape.len() > 2 => vec![shape[0], k, 2].into_iter().skip(if shape.len() == 3 { 0 } else { 1 }).collect(),
        _ => vec![k, m.size(1, 5)],
    };
    let w = m.weight(dtype, &weight);
    let y = m.op("MatMul", &[Some(x), Some(w)], &[])?;
    if weight.len() == 2 && m.chance(0.5) {
        let bias = if m.chance(0.8) { m.weight(dtype, &[weight[1]]) } else { m.weight(dtype, &[]) };
        return done(m.op("Add", &[Some(y), Some(bias)], &[]));
    }
    Some(())
}

fn gemm(m: &mut Maker) -> Option<()> {
    let x = m.x(2);
    let (ta, tb) = (m.chance(0.25), m.chance(0.4));
    let (rows, k) = if ta { (m.shape(x)[1], m.shape(x)[0]) } else { (m.shape(x)[0], m.shape(x)[1]) };
    let n = m.size(1, 5);
    let w = m.weight(DType::F32, &if tb { [n, k] } else { [k, n] });
    let shape = m.one(&[vec![n], vec![], vec![1, n], vec![rows, 1], vec![rows, n]]);
    let c = m.maybe_weight(0.7, DType::F32, &shape);
    let mut attrs = some(m, &[("alpha", f(0.5)), ("beta", f(2.0))]);
    if m.chance(0.5) {
        attrs.clear();
    }
    if ta {
        attrs.push(("transA", i(1)));
    }
    if tb {
        attrs.push(("transB", i(1)));
    }
    done(m.op("Gemm", &[Some(x), Some(w), c], &attrs))
}

fn einsum(m: &mut Maker) -> Option<()> {
    let x = m.x(3);
    let shape = m.shape(x);
    let (equation, other) = m.one(&[
        ("bij,bjk->bik", vec![shape[0], shape[2], 2]),
        ("bij,jk->bik", vec![shape[2], 3]),
        ("bij->bji", vec![]),
        ("...j,j->...", vec![shape[2]]),
        ("abc->b", vec![]),
    ]);
    let other = (!other.is_empty()).then(|| m.weight(DType::F32, &other));
    let operands = [Some(x), other];
    done(m.op("Einsum", &operands[..if other.is_some() { 2 } else { 1 }], &[("equation", s(equation))]))
}

fn det(m: &mut Maker) -> Option<()> {
    let n = m.size(1, 3);
    let shape = [vec![n, n], vec![2, n, n]];
    let shape = m.one(&shape);
    let x = m.source(DType::F32, &shape);
    done(m.op("Det", &[Some(x)], &[]))
}

fn integer_conv(m: &mut Maker) -> Option<()> {
    let (c, out) = (m.size(1, 2), m.size(1, 3));
    let (x, w) = (m.source(DType::U8, &[1, c, 4, 4]), m.source(DType::I8, &[out, c, 2, 2]));
    let zero = m.shared(Tensor::ints(DType::U8, &[], &[2]));
    if m.chance(0.5) {
        return done(m.op("ConvInteger", &[Some(x), Some(w), Some(zero)], &[]));
    }
    let scales = [0.1, 0.2, 0.5].map(|v| Some(m.shared(Tensor::f32(&[], &[v]))));
    let none = m.shared(Tensor::ints(DType::I8, &[], &[0]));
    let operands = [Some(x), scales[0], Some(zero), Some(w), scales[1], Some(none), scales[2], Some(zero)];
    done(m.op("QLinearConv", &operands, &[]))
}

fn integer_matmul(m: &mut Maker) -> Option<()> {
    let (x, w) = (m.source(DType::U8, &[2, 3]), m.source(DType::I8, &[3, 4]));
    let zero = m.shared(Tensor::ints(DType::U8, &[], &[2]));
    let y = m.op("MatMulInteger", &[Some(x), Some(w), Some(zero)], &[])?;
    done(m.op("Cast", &[Some(y)], &[("to", i(DType::F32 as i64))]))
}
